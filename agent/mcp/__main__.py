"""Serve tools over MCP: `python -m agent.mcp module:attribute …`.

An attribute is a tool, a function, an agent, a router, or a list of these.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from operator import attrgetter
from typing import Any

from ..errors import AgentError, ConfigurationError
from ..tools.base import Tool
from .server import ToolServer, read_tool


def import_tools(reference: str) -> list[Tool]:
    """Load the tools of `module:attribute`."""
    module_name, colon, path = reference.partition(":")
    if not colon or not module_name or not path:
        raise ConfigurationError(
            f"{reference!r} is not a reference to a tool.",
            field="tools",
            fix="Write module:attribute, such as my_tools:search.",
        )
    try:
        value: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise ConfigurationError(
            f"There is no module {module_name!r}.", field="tools", fix="Run the command where it can be imported."
        ) from error
    try:
        value = attrgetter(path)(value)
    except AttributeError:
        raise ConfigurationError(
            f"{module_name} has no {path}.", field="tools", fix="Check the name after the colon."
        ) from None
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return [read_tool(item, path.rpartition(".")[2]) for item in values]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m agent.mcp", description="Serve tools over MCP.")
    parser.add_argument("tools", nargs="+", metavar="module:attribute", help="a tool, a function, an agent, or a list")
    parser.add_argument("--name", default="agent", help="the server's name for its clients")
    parser.add_argument("--allow-exec", action="store_true", help="serve tools that execute code, too")
    parser.add_argument("--http", action="store_true", help="listen on HTTP at 127.0.0.1 instead of stdin and stdout")
    parser.add_argument("--port", type=int, default=0, help="for --http; by default any free port")
    options = parser.parse_args(arguments)
    try:
        tools = [tool for reference in options.tools for tool in import_tools(reference)]
        server = ToolServer(tools, name=options.name, allow_exec=options.allow_exec)
        if server.excluded:
            _write_stderr(f"Excluded, because they execute code: {', '.join(server.excluded)}. See --allow-exec.")
        if options.http:
            with server.http(port=options.port) as listener:
                _write_stderr(f"Listening at {listener.url}")
                listener.wait()
        else:
            server.stdio()
    except AgentError as error:
        _write_stderr(str(error))
        return 2
    return 0


def _write_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
