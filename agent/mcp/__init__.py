"""Client and server of the Model Context Protocol (MCP).

`MCPServer` connects to a server and provides its tools. `serve` and related functions serve your own tools. Both need
the extra `mcp`, which is imported on first use.
"""

from __future__ import annotations

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
