"""Client and server of the Model Context Protocol (MCP).

`MCPServer` connects to a server and provides its tools. `serve` and related functions serve your own tools. Both need
the extra `mcp`, which is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._missing_names import reject_names
from .client import MCPServer, ServerSettings
from .server import ServingSettings, ToolServer, as_mcp_server, serve, serve_http, serve_stdio
from .tools import MCPResult, MCPTool

__all__ = [
    "MCPResult",
    "MCPServer",
    "MCPTool",
    "ServerSettings",
    "ServingSettings",
    "ToolServer",
    "as_mcp_server",
    "serve",
    "serve_http",
    "serve_stdio",
]

if not TYPE_CHECKING:
    __getattr__ = reject_names(__name__, __all__)
