"""A server on the official SDK: its server class, its stdio runner, its streamable HTTP application.

Run it with `stdio`, or with `http` and a file to which it writes the port it found.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
READ_ONLY = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
TWICE = types.ToolAnnotations(idempotent_hint=True, destructive_hint=True)
OUTSIDE = types.ToolAnnotations(open_world_hint=True, read_only_hint=True)


def make() -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("official", instructions="Be kind to it.", log_level="CRITICAL")
    seen: list[str] = []
    grown: list[str] = []

    @server.tool(annotations=READ_ONLY)
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @server.tool(annotations=TWICE)
    def where() -> dict[str, Any]:
        """Says which process this is."""
        return {"pid": os.getpid(), "thread": threading.get_ident()}

    @server.tool(annotations=OUTSIDE)
    async def count(n: int, ctx: Context[Any, Any]) -> str:
        """Counts, and says how far it is."""
        for number in range(1, n + 1):
            await ctx.report_progress(number, n, f"at {number}")
        return f"counted to {n}"

    @server.tool()
    async def hang(label: str) -> str:
        """Never ends by itself."""
        seen.append(f"{label} began")
        try:
            await asyncio.sleep(60)
        except BaseException as error:
            seen.append(f"{label} {type(error).__name__}")
            raise
        return "slept"

    @server.tool()
    def events() -> list[str]:
        """Return the events of `hang`."""
        return seen

    @server.tool()
    def block(seconds: float) -> str:
        """Blocks a thread."""
        time.sleep(seconds)
        return "unblocked"

    @server.tool()
    def fail() -> str:
        raise ValueError("secret detail")

    @server.tool(structured_output=False)
    def media() -> list[Any]:
        """One of each."""
        return [
            types.TextContent(text="a pixel"),
            types.ImageContent(data=base64.b64encode(PIXEL).decode(), mime_type="image/png"),
            types.AudioContent(data=base64.b64encode(b"RIFF").decode(), mime_type="audio/wav"),
            types.EmbeddedResource(resource=types.TextResourceContents(uri="note://1", text="a note")),
            types.EmbeddedResource(
                resource=types.BlobResourceContents(
                    uri="pdf://1", blob=base64.b64encode(b"%PDF").decode(), mime_type="application/pdf"
                )
            ),
            types.EmbeddedResource(
                resource=types.BlobResourceContents(
                    uri="zip://1", blob=base64.b64encode(b"PK\3\4").decode(), mime_type="application/zip"
                )
            ),
            types.ResourceLink(name="more", uri="https://example.com/more"),
        ]

    @server.tool(structured_output=False)
    def long(size: int) -> str:
        """Much text."""
        return "x" * size

    @server.tool()
    async def ask(ctx: Context[Any, Any]) -> str:
        """Wants to ask the user something."""
        from pydantic import BaseModel

        class Answer(BaseModel):
            password: str

        return str(await ctx.elicit("What is your password?", Answer))

    @server.tool()
    async def grow(ctx: Context[Any, Any]) -> str:
        """Adds a tool to this server."""
        grown.append(f"late_{len(grown)}")
        server.add_tool(add, name=grown[-1])
        await ctx.notify_tools_changed()
        await ctx.session.send_tool_list_changed()
        return grown[-1]

    for odd in ("files.read", "files:read", "näh/e", "9lives", "n" * 100):
        server.add_tool(add, name=odd)

    @server.resource("note://greeting", mime_type="text/plain")
    def read_greeting() -> str:
        """A note."""
        return "hello"

    @server.prompt()
    def review(code: str) -> str:
        """Asks for a review."""
        return f"Review this: {code}"

    return server


def main() -> None:
    server = make()
    if sys.argv[1] == "stdio":
        server.run()
        return
    import uvicorn

    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    app = server.streamable_http_app(json_response="json" in sys.argv[3:])
    Path(sys.argv[2]).write_text(str(listener.getsockname()[1]))
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listener])


if __name__ == "__main__":
    main()
