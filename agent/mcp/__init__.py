"""Tools of any server that speaks the Model Context Protocol, for our loop; and our tools as such a server.

`MCPServer` is a server whose tools we use; `serve` and its kin make a server of our tools. Both need the extra `mcp`,
which is loaded on first use.
"""

from __future__ import annotations

from .client import MCPServer, ServerSettings
from .content import MCPResult
from .server import ServingSettings, ToolServer, as_mcp_server, serve, serve_http, serve_stdio
from .tools import MCPTool

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
