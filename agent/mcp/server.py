"""MCP server for tools, over standard input and output or HTTP.

Tool calls run through `agent.tools`, as in the loop. HTTP listens on loopback by default. Clients can call the tools,
so other addresses require a token or `allow_anyone`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import socket
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, Self, TypedDict

from typing_extensions import Unpack, override

from ..engine.context import run_validation
from ..engine.drivers.asyncio import AioRun
from ..engine.flow import Cancel, Emit, Emitted, Failed, Finished, Flow, Now, Spawn, Wait
from ..errors import ConfigurationError, TimeoutError, printable
from ..providers.base import is_loopback
from ..tools.base import AgentToolResult, Signal, Tool, ToolContext
from ..tools.execution import RunningCall, run_with_retries
from ..tools.functions import as_tool
from ..tools.results import error_result, error_text
from ..types import TextContent, ToolResult, thaw
from .errors import require_sdk
from .tools import RISK, make_annotations, to_mcp_result

if TYPE_CHECKING:
    import mcp_types
    from mcp.server import Server

_CLOSE_TIMEOUT = 2.0


class ServingSettings(TypedDict, total=False):
    """Options of a tool server."""

    name: str
    """The server's name. Default: "agent"."""
    instructions: str
    """Instructions for the client's model."""
    allow_exec: bool
    """Serve tools of the risk `exec`. Clients can then execute code on this machine."""
    timeout: float
    """Seconds for a call of a tool without its own limit. Default: 60."""
    max_output_bytes: int
    """Maximum size of a result; longer ones are truncated with a note. Default: 256 KiB."""
    max_calls: int
    """Maximum number of concurrent calls. Default: 64."""
    max_sessions: int
    """Maximum number of HTTP sessions; more clients get status 503. Default: 256."""
    session_timeout: float
    """Seconds after which an unused HTTP session expires. Default: 1800."""


class ToolServer:
    """Tools served over MCP. `mcp` is the SDK's server object, to mount or to use in process."""

    def __init__(self, tools: Any, **settings: Unpack[ServingSettings]) -> None:  # Any: tools of every kind
        require_sdk()
        self.name: str = settings.get("name", "agent")
        self._settings = settings
        is_single = not isinstance(tools, Iterable) or isinstance(tools, Tool | dict)
        converted = [read_tool(value) for value in ([tools] if is_single else tools)]
        hidden = () if settings.get("allow_exec", False) else ("exec",)
        self.tools: Sequence[Tool] = tuple(tool for tool in converted if tool.risk not in hidden)
        self.excluded: Sequence[str] = tuple(tool.name for tool in converted if tool.risk in hidden)
        """Names of tools that execute code, and are served only with `allow_exec`."""
        self._tools_by_name = _index_by_name(self.tools)
        self._running = 0
        if self.excluded and not self.tools:
            raise ConfigurationError(
                f"No tools are left to serve, because all execute code: {', '.join(self.excluded)}.",
                field="tools",
                fix="Pass allow_exec=True if the clients may execute code on this machine.",
            )

    @cached_property
    def mcp(self) -> Server[Any]:  # Any: a server with any state
        """The SDK's low-level server."""
        from importlib.metadata import version  # lazy: slow to import

        from mcp.server import Server

        return Server(
            self.name,
            version=version("agent-llm-router"),
            instructions=self._settings.get("instructions"),
            on_list_tools=self._list,
            on_call_tool=self._call,
            get_tool_input_schema=self._find_schema,
        )

    def _find_schema(self, name: str) -> dict[str, Any] | None:
        tool = self._tools_by_name.get(name)
        return None if tool is None else _input_schema(tool)

    def stdio(self) -> None:
        """Serve over standard input and output until the client disconnects. Tools print to stderr."""
        _serve_stdio_server(self.mcp)

    def http(
        self, host: str = "127.0.0.1", port: int = 0, *, token: str | None = None, allow_anyone: bool = False
    ) -> HttpListener:
        """Serve over streamable HTTP in a thread, until `close()` or the end of `with`. `url` is the address.

        Args:
            host: The address to listen on; any other than loopback requires a token.
            port: The port; 0 for any free port.
            token: The bearer token that clients must send.
            allow_anyone: Serve other machines without a token.
        """
        app = self.mcp.streamable_http_app(
            host=host,
            max_sessions=self._settings.get("max_sessions", 256),
            session_idle_timeout=self._settings.get("session_timeout", 1800.0),
        )
        return HttpListener(app, host, port, token, allow_anyone)

    async def _list(self, context: Any, params: Any) -> mcp_types.ListToolsResult:
        import mcp_types

        return mcp_types.ListToolsResult(tools=[_to_mcp_tool(tool) for tool in self.tools])

    async def _call(self, context: Any, params: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
        from mcp import MCPError
        from mcp_types import INVALID_PARAMS

        tool = self._tools_by_name.get(params.name)
        if tool is None:
            raise MCPError(INVALID_PARAMS, f"There is no tool {params.name[:80]!r}.")
        call_id = str(context.request_id)
        if self._running >= self._settings.get("max_calls", 64):
            return to_mcp_result(error_result("Too many concurrent calls; try again later.", call_id, tool.name))
        self._running += 1
        try:
            result = await self._answer(tool, params.arguments or {}, call_id, context.session)
        except Exception as error:
            result = error_result(error_text(error), call_id, tool.name)
        finally:
            self._running -= 1
        return to_mcp_result(result)

    async def _answer(self, tool: Tool, arguments: dict[str, Any], call_id: str, session: Any) -> ToolResult:
        running = RunningCall(Signal())
        context: ToolContext[Any] = ToolContext(
            call_id=call_id, tool_name=tool.name, risk=tool.risk, arguments=arguments, signal=running.signal
        )
        seconds = tool.timeout or self._settings.get("timeout", 60.0)
        limit = self._settings.get("max_output_bytes", 256 * 1024)
        nowhere: Any = None  # the flow of a tool call sends no requests itself
        run = AioRun(nowhere, _limit_time(seconds, _validate_and_run(running, tool, context, seconds, limit)))
        count = 0.0
        try:
            while (reports := await run.advance()) is not None:
                for report in reports:
                    count += 1
                    await session.report_progress(*_progress_values(report, count))
        finally:
            running.cancel()  # cancels the tool if the client has disconnected
        result: ToolResult = run.result
        return result


def serve(tools: Any, **settings: Unpack[ServingSettings]) -> ToolServer:  # Any: tools of every kind
    """Create a server of tools, functions, agents, routers, or a single one of these."""
    return ToolServer(tools, **settings)


def serve_stdio(tools: Any, **settings: Unpack[ServingSettings]) -> None:  # Any: tools of every kind
    """Serve tools over standard input and output, until the client disconnects."""
    ToolServer(tools, **settings).stdio()


def serve_http(
    tools: Any,  # Any: tools of every kind
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    token: str | None = None,
    allow_anyone: bool = False,
    **settings: Unpack[ServingSettings],
) -> HttpListener:
    """Serve tools over streamable HTTP in a thread; see `ToolServer.http`."""
    return ToolServer(tools, **settings).http(host, port, token=token, allow_anyone=allow_anyone)


def as_mcp_server(tools: Any, **settings: Unpack[ServingSettings]) -> Server[Any]:  # Any: tools of every kind
    """Return the SDK's server object for tools, to mount in a web application or to use in process."""
    return ToolServer(tools, **settings).mcp


def read_tool(value: Any, name: str = "ask") -> Tool:
    """Convert a value to a tool. An agent or a router becomes a tool that takes a task."""
    if not isinstance(value, Tool) and callable(make := getattr(value, "as_tool", None)):
        value = make(name, "Ask a language model to do a task described in text.")
    tool = as_tool(value)
    if not tool.can_run:
        raise ConfigurationError(
            f"The tool {tool.name!r} has no function to run.", field="tools", fix="Pass a tool with a function."
        )
    return tool


def _index_by_name(tools: Sequence[Tool]) -> dict[str, Tool]:
    found = {tool.name: tool for tool in tools}
    if len(found) < len(tools):
        twice = sorted({tool.name for tool in tools if found[tool.name] is not tool})
        raise ConfigurationError(
            f"Two tools have the same name: {', '.join(twice)}.", field="tools", fix="Rename or remove one."
        )
    return found


def _input_schema(tool: Tool) -> dict[str, Any]:
    schema: dict[str, Any] = thaw(tool.spec.parameters) or {"properties": {}}
    return {"type": "object", **schema}


def _to_mcp_tool(tool: Tool) -> mcp_types.Tool:
    import mcp_types

    return mcp_types.Tool(
        name=tool.name,
        description=tool.spec.description or None,
        input_schema=_input_schema(tool),
        annotations=mcp_types.ToolAnnotations(**make_annotations(tool)),
        _meta={RISK: "exec"} if tool.risk == "exec" else None,
    )


# A call, as a flow


def _validate_and_run(
    running: RunningCall, tool: Tool, context: ToolContext[Any], seconds: float, limit: int
) -> Flow[Any]:
    arguments = yield from run_validation(tool.check, context.arguments, seconds=seconds)
    return (yield from run_with_retries(running, tool, arguments, context, seconds, limit, inf))


def _limit_time(seconds: float, steps: Flow[Any]) -> Flow[Any]:
    """Run a tool with a time limit, and forward its reports."""
    until = (yield from Now()) + seconds
    branch = yield from Spawn(steps)
    while True:
        match (yield from Wait([branch], max(0.0, until - (yield from Now())))):
            case Emitted(events=reports):
                yield Emit(reports)
            case Finished(value=result):
                answer: ToolResult = result
                return answer
            case Failed(error=error):
                raise error
            case _:
                yield from Cancel([branch])
                raise TimeoutError(f"The tool did not end within {seconds:g} s.")


def _progress_values(report: Any, count: float) -> tuple[float, float | None, str | None]:
    """Convert a report of a tool to progress, total and message."""
    if not isinstance(report, AgentToolResult):
        return count, None, str(report)[:1_000]
    details = report.details if isinstance(report.details, dict) else {}
    content = report.content
    text = content if isinstance(content, str) else "".join(p.text for p in content if isinstance(p, TextContent))
    done, total = details.get("progress"), details.get("total")
    return done if isinstance(done, int | float) else count, total, text[:1_000] or None


# Listeners


def _serve_stdio_server(server: Server[Any]) -> None:
    """Serve until standard input ends or Ctrl-C.

    A daemon thread reads, because reading standard input cannot be interrupted.
    """
    from mcp.server.stdio import stdio_server  # lazy: needs the extra

    failures: list[BaseException] = []

    async def run() -> None:
        async with stdio_server() as (read_stream, write_stream):
            await server.run(read_stream, write_stream, server.create_initialization_options())

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=main, daemon=True, name="agent-mcp stdin")
    thread.start()
    with suppress(KeyboardInterrupt):
        thread.join()
    if failures:
        raise failures[0]


class HttpListener:
    """A running HTTP server. It stops with `close()`, at the end of `with`, or with the program."""

    def __init__(self, app: Any, host: str, port: int, token: str | None, allow_anyone: bool) -> None:
        import uvicorn  # lazy: needs the extra

        if token is not None and len(token) < 16:
            raise ConfigurationError(
                "The token is shorter than 16 characters.", field="token", fix="Use secrets.token_urlsafe()."
            )
        address = f"[{host}]" if ":" in host else host
        if not is_loopback(f"http://{address}") and token is None and not allow_anyone:
            raise ConfigurationError(
                f"Any machine that reaches {host} could call the tools.",
                field="host",
                fix="Pass token=, listen at 127.0.0.1, or pass allow_anyone=True.",
            )
        self._socket = _bind(host, port)
        self.host: str = host
        self.port: int = self._socket.getsockname()[1]
        self.url: str = f"http://{address}:{self.port}/mcp"
        config = uvicorn.Config(
            app if token is None else _TokenAuth(app, token),
            loop="asyncio",
            log_config=None,
            log_level="critical",
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=1,
            server_header=False,
        )
        self._server = uvicorn.Server(config)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main, daemon=True, name=f"agent-mcp :{self.port}")
        self._thread.start()
        while self._thread.is_alive() and not self._server.started:
            self._thread.join(0.005)
        if self._failure is not None:
            raise self._failure

    @override
    @printable
    def __repr__(self) -> str:
        return f"HttpListener({self.url!r})"

    def wait(self) -> None:
        """Block until the server is closed, or until Ctrl-C."""
        with suppress(KeyboardInterrupt):
            while self._thread.is_alive():
                self._thread.join(1.0)

    def close(self) -> None:
        self._server.should_exit = True
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _main(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except BaseException as error:
            self._failure = error
        finally:
            self._socket.close()


class _TokenAuth:
    """ASGI middleware that checks a bearer token. Hashes are compared in constant time."""

    def __init__(self, app: Any, token: str) -> None:
        self._app = app
        self._token_hash = _hash(token)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or self._is_authorized(scope["headers"]):
            await self._app(scope, receive, send)
            return
        headers = [(b"www-authenticate", b"Bearer"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def _is_authorized(self, headers: list[tuple[bytes, bytes]]) -> bool:
        sent = b"".join(value for name, value in headers if name.lower() == b"authorization")
        kind, _, token = sent.decode("latin-1").partition(" ")
        return hmac.compare_digest(_hash(token.strip()), self._token_hash) and kind.lower() == "bearer"


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8")).digest()


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio disables Nagle's algorithm (40 ms per response) only if the protocol is given.
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((host, port))
            made.listen(128)
        except BaseException:
            made.close()
            raise
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(
            f"The server cannot listen at {host}:{port}: {why}.",
            field="port",
            fix="Choose another port, or 0 for any free port.",
        ) from error
    return made
