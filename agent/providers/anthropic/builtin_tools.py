"""Built-in tools of the Messages API."""

from __future__ import annotations

import re
from typing import assert_never

from ...types import BuiltinTool, CodeExecution, ComputerUse, FileSearch, ImageGeneration, McpConnector, WebSearch
from ..encoding import EncodingContext, JsonDict

COMPUTER = "computer"
"""Name of the computer tool, which the API prescribes."""
_COMPUTER_TYPES = (
    (r"opus-4[-.][5-9]|sonnet-4[-.][6-9]|(?:opus|sonnet|haiku|fable|mythos)-[5-9]", "computer_20251124"),
    (r"", "computer_20250124"),
)
"""Versions of the computer tool by models."""


def encode_builtin_tool(context: EncodingContext, tool: BuiltinTool) -> JsonDict:
    """Return the tool, and add the keys that it requires to the body."""
    encoded: JsonDict
    match tool:
        case WebSearch():
            context.drop_tool_settings(tool, "max_uses", "allowed_domains", "blocked_domains", "user_location")
            encoded = _encode_web_search(tool)
        case CodeExecution():
            context.drop_tool_settings(tool, "container")
            encoded = {"type": "code_execution_20250825", "name": "code_execution"}
            if tool.container is not None:
                context.body["container"] = tool.container
        case ComputerUse():
            context.drop_tool_settings(tool, "width", "height")
            version = next(version for pattern, version in _COMPUTER_TYPES if re.search(pattern, context.model.lower()))
            encoded = {"type": version, "name": COMPUTER}
            encoded |= {"display_width_px": tool.width, "display_height_px": tool.height}
        case McpConnector() if tool.url is not None:
            context.drop_tool_settings(tool, "label", "url", "token", "allowed_tools")
            encoded = _encode_toolset(tool)
            context.body.setdefault("mcp_servers", []).append(_encode_server(tool, tool.url))
        case McpConnector() | FileSearch() | ImageGeneration():
            raise context.builtin_tool_error(tool)
        case _:
            assert_never(tool)
    return {**encoded, **tool.extra}


def _encode_web_search(tool: WebSearch) -> JsonDict:
    encoded: JsonDict = {"type": "web_search_20250305", "name": "web_search"}
    if tool.max_uses is not None:
        encoded["max_uses"] = tool.max_uses
    encoded |= {
        key: list(domains)
        for key, domains in (("allowed_domains", tool.allowed_domains), ("blocked_domains", tool.blocked_domains))
        if domains
    }
    if tool.user_location is not None:
        encoded["user_location"] = {"type": "approximate", **tool.user_location.to_dict()}
    return encoded


def _encode_toolset(tool: McpConnector) -> JsonDict:
    encoded: JsonDict = {"type": "mcp_toolset", "mcp_server_name": tool.label}
    if tool.allowed_tools:
        encoded["default_config"] = {"enabled": False}
        encoded["configs"] = {name: {"enabled": True} for name in tool.allowed_tools}
    return encoded


def _encode_server(tool: McpConnector, url: str) -> JsonDict:
    server: JsonDict = {"type": "url", "name": tool.label, "url": url}
    if tool.token is not None:
        server["authorization_token"] = tool.token.get_secret_value()
    return server
