"""Built-in tools of generateContent."""

from __future__ import annotations

import re
from typing import assert_never

from ...types import BuiltinTool, CodeExecution, ComputerUse, FileSearch, ImageGeneration, McpConnector, WebSearch
from ..encoding import EncodingContext, JsonDict

_IMAGE_SIZE = re.compile(r"(?P<aspectRatio>\d+:\d+)|(?P<imageSize>\d+[kK]|512(?:px)?)")


def encode_builtin_tool(context: EncodingContext, tool: BuiltinTool, *, vertex: bool) -> JsonDict:
    """Return the tool. Image generation is no tool of this API, but a setting."""
    encoded: JsonDict
    match tool:
        case WebSearch():
            supported = ("blocked_domains",) if vertex else ()
            context.drop_tool_settings(tool, *supported)
            excluded = {"excludeDomains": list(tool.blocked_domains)} if vertex and tool.blocked_domains else {}
            encoded = {"googleSearch": {**excluded, **tool.extra}}
        case CodeExecution():
            context.drop_tool_settings(tool)
            encoded = {"codeExecution": {**tool.extra}}
        case ComputerUse():
            context.drop_tool_settings(tool, "environment")
            place = "BROWSER" if tool.environment == "browser" else "DESKTOP"
            encoded = {"computerUse": {"environment": f"ENVIRONMENT_{place}", **tool.extra}}
        case FileSearch() if not vertex and (tool.filters is None or isinstance(tool.filters, str)):
            search: JsonDict = {"fileSearchStoreNames": list(tool.stores)}
            if tool.max_results is not None:
                search["topK"] = tool.max_results
            if tool.filters:
                search["metadataFilter"] = tool.filters
            encoded = {"fileSearch": {**search, **tool.extra}}
        case McpConnector() if not vertex and tool.url is not None:
            context.drop_tool_settings(tool, "label", "url", "token")
            transport: JsonDict = {"url": tool.url}
            if tool.token is not None:
                transport["headers"] = {"Authorization": f"Bearer {tool.token.get_secret_value()}"}
            encoded = {"mcpServers": [{"name": tool.label, "streamableHttpTransport": transport, **tool.extra}]}
        case FileSearch() | McpConnector() | ImageGeneration():
            raise context.builtin_tool_error(tool)
        case _:
            assert_never(tool)
    return encoded


def encode_image_generation(context: EncodingContext, tool: ImageGeneration) -> JsonDict:
    """Return settings of the generation: the kinds of output and the size of images."""
    context.drop_tool_settings(tool, "size")
    image: JsonDict = {**tool.extra}
    if tool.size is not None:
        if (match := _IMAGE_SIZE.fullmatch(tool.size)) is None:
            context.warn(f"size of image_generation was left out: {context.provider} takes sizes such as 16:9 or 2K")
        else:
            image |= {key: value for key, value in match.groupdict().items() if value is not None}
    return {"responseModalities": ["TEXT", "IMAGE"], **({"imageConfig": image} if image else {})}
