"""Built-in tools of the Responses API."""

from __future__ import annotations

from typing import assert_never

from ...types import BuiltinTool, CodeExecution, ComputerUse, FileSearch, ImageGeneration, McpConnector, WebSearch
from ..encoding import EncodingContext, JsonDict

COMPUTER = "computer"
"""Name of calls of the computer tool."""
_PREVIEW = "computer-use-preview"
"""Part of the names of models with the first version of the computer tool."""
RESULTS = {
    "web_search": "web_search_call.action.sources",
    "code_interpreter": "code_interpreter_call.outputs",
    "file_search": "file_search_call.results",
}
"""Values of `include` that request the results of tools, by the type of the tool."""


def encode_builtin_tool(context: EncodingContext, tool: BuiltinTool) -> JsonDict:
    encoded: JsonDict
    match tool:
        case WebSearch():
            context.drop_tool_settings(tool, "allowed_domains", "user_location", "context_size")
            encoded = _encode_web_search(tool)
        case CodeExecution():
            created: JsonDict = {"type": "auto"}
            if tool.file_ids and tool.container is None:
                created["file_ids"] = list(tool.file_ids)
            elif tool.file_ids:
                context.drop_tool_settings(tool, "container")
            encoded = {"type": "code_interpreter", "container": tool.container or created}
        case FileSearch() if not isinstance(tool.filters, str):
            encoded = {"type": "file_search", "vector_store_ids": list(tool.stores)}
            if tool.max_results is not None:
                encoded["max_num_results"] = tool.max_results
            if tool.filters is not None:
                encoded["filters"] = tool.filters
        case ComputerUse() if _PREVIEW in context.model:
            encoded = {"type": "computer_use_preview", "environment": tool.environment}
            encoded |= {"display_width": tool.width, "display_height": tool.height}
        case ComputerUse():
            context.drop_tool_settings(tool)
            encoded = {"type": COMPUTER}
        case McpConnector():
            encoded = _encode_mcp(tool)
        case ImageGeneration():
            settings = ("model", "size", "quality", "background", "partial_images")
            encoded = {"type": "image_generation", **_pick(tool, *settings)}
            if tool.format is not None:
                encoded["output_format"] = tool.format
        case FileSearch():
            raise context.feature_error(
                f"{context.provider} does not support a filter in text for file_search.",
                field="tools",
                fix="Pass a dict, such as {'type': 'eq', 'key': 'year', 'value': 2026}.",
            )
        case _:
            assert_never(tool)
    return {**encoded, **tool.extra}


def _encode_web_search(tool: WebSearch) -> JsonDict:
    encoded: JsonDict = {"type": "web_search"}
    if tool.allowed_domains:
        encoded["filters"] = {"allowed_domains": list(tool.allowed_domains)}
    if tool.user_location is not None:
        encoded["user_location"] = {"type": "approximate", **tool.user_location.to_dict()}
    if tool.context_size is not None:
        encoded["search_context_size"] = tool.context_size
    return encoded


def _encode_mcp(tool: McpConnector) -> JsonDict:
    encoded: JsonDict = {"type": "mcp", "server_label": tool.label, **_pick(tool, "connector_id", "require_approval")}
    if tool.url is not None:
        encoded["server_url"] = tool.url
    if tool.token is not None:
        encoded["authorization"] = tool.token.get_secret_value()
    if tool.allowed_tools:
        encoded["allowed_tools"] = list(tool.allowed_tools)
    return encoded


def _pick(tool: BuiltinTool, *settings: str) -> JsonDict:
    """Return the settings that are set."""
    return {name: value for name in settings if (value := getattr(tool, name)) is not None}
