"""Our tools as a server of the Model Context Protocol.

A `ToolServer` decides which tools are shown and how a call of one is answered. How a call runs is decided by
`agent.tools`, as in the loop; how bytes get here, by `listening` and the SDK.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, TypedDict

from typing_extensions import Unpack

from ..engine.drivers.asyncio import AioRun
from ..engine.flow import Cancel, Emit, Emitted, Failed, Finished, Flow, Now, Spawn, Wait
from ..errors import ConfigurationError, TimeoutError
from ..tools.base import AgentToolResult, Signal, Tool, ToolContext
from ..tools.execution import Running, tried
from ..tools.functions import as_tool
from ..tools.results import error_text, failed
from ..types import TextContent, ToolResult, thaw
from .content import written
from .errors import require_sdk
from .tools import RISK, annotations_of

if TYPE_CHECKING:
    import mcp_types
    from mcp.server import Server

    from .http_server import HttpListener


class ServingSettings(TypedDict, total=False):
    """What may be said about a server of tools."""

    name: str
    """The server's name, for its clients: "agent"."""
    instructions: str
    """How to use it, for the model at the other end."""
    allow_exec: bool
    """Show tools of the risk `exec`, too. Whoever reaches the server can then run code here."""
    timeout: float
    """Seconds for a call of a tool that has no limit of its own: 60."""
    max_output_bytes: int
    """Of one result; the rest is cut off, and the client is told: 256 KiB."""
    max_calls: int
    """How many calls may run at the same time: 64."""


class ToolServer:
    """Tools that others may call. `mcp` is the SDK's server object, to be mounted or used in this process."""

    def __init__(self, tools: Any, **settings: Unpack[ServingSettings]) -> None:
        require_sdk()
        self.name = settings.get("name", "agent")
        self._settings = settings
        given = [read_tool(value) for value in ([tools] if _is_one(tools) else tools)]
        hidden = () if settings.get("allow_exec", False) else ("exec",)
        self.tools: Sequence[Tool] = tuple(tool for tool in given if tool.risk not in hidden)
        self.left_out: Sequence[str] = tuple(tool.name for tool in given if tool.risk in hidden)
        """Names of tools that run code, and are not shown unless `allow_exec` says so."""
        self._by_name = _by_name(self.tools)
        self._running = 0
        if self.left_out and not self.tools:
            raise ConfigurationError(
                f"All of these tools run code, and none is shown: {', '.join(self.left_out)}.",
                field="tools",
                fix="Pass allow_exec=True if whoever reaches the server may run code here.",
            )

    @cached_property
    def mcp(self) -> Server[Any]:
        """A low-level server of the SDK."""
        from importlib.metadata import version  # lazy: slow to import

        from mcp.server import Server

        return Server(
            self.name,
            version=version("agent-llm-router"),
            instructions=self._settings.get("instructions"),
            on_list_tools=self._list,
            on_call_tool=self._call,
            get_tool_input_schema=lambda name: _schema(self._by_name[name]) if name in self._by_name else None,
        )

    def stdio(self) -> None:
        """Serve whoever started this program, until they leave. What the tools print goes to stderr."""
        from .http_server import serve_stdin  # lazy: needs the extra

        serve_stdin(self.mcp)

    def http(
        self, host: str = "127.0.0.1", port: int = 0, *, token: str | None = None, allow_anyone: bool = False
    ) -> HttpListener:
        """Serve over streamable HTTP, in a thread, until `close()` or the end of `with`. Its `url` says where.

        Args:
            host: Elsewhere than on this machine's own addresses, a token is required.
            port: 0 for any that is free.
            token: What clients must send as `Authorization: Bearer …`.
            allow_anyone: Serve other machines without a token.
        """
        from .http_server import HttpListener  # lazy: needs the extra

        return HttpListener(self.mcp, host, port, token, allow_anyone)

    async def _list(self, context: Any, params: Any) -> mcp_types.ListToolsResult:
        import mcp_types

        return mcp_types.ListToolsResult(tools=[_described(tool) for tool in self.tools])

    async def _call(self, context: Any, params: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
        from mcp import MCPError
        from mcp_types import INVALID_PARAMS

        tool = self._by_name.get(params.name)
        if tool is None:
            raise MCPError(INVALID_PARAMS, f"There is no tool {params.name[:80]!r}.")
        call_id = str(context.request_id)
        if self._running >= self._settings.get("max_calls", 64):
            return written(failed("The call was not made: too many are running.", call_id, tool.name))
        self._running += 1
        try:
            result = await self._answer(tool, params.arguments or {}, call_id, context.session)
        except Exception as error:
            result = failed(error_text(error), call_id, tool.name)
        finally:
            self._running -= 1
        return written(result)

    async def _answer(self, tool: Tool, given: dict[str, Any], call_id: str, session: Any) -> ToolResult:
        running = Running(Signal())
        context: ToolContext[Any] = ToolContext(
            call_id=call_id, tool_name=tool.name, risk=tool.risk, arguments=given, signal=running.signal
        )
        seconds = tool.timeout or self._settings.get("timeout", 60.0)
        limit = self._settings.get("max_output_bytes", 256 * 1024)
        nowhere: Any = None  # a flow that calls a tool sends nothing itself, and agents know their own way
        steps = tried(running, tool, tool.check(given), context, seconds, limit, inf)
        run = AioRun(nowhere, _within(seconds, steps))
        told = 0.0
        try:
            while (reports := await run.advance()) is not None:
                for report in reports:
                    told += 1
                    await session.report_progress(*_progress(report, told))
        finally:
            running.give_up()  # if it has ended, that changes nothing; if the client has left, the tool learns it
        result: ToolResult = run.result
        return result


def serve(tools: Any, **settings: Unpack[ServingSettings]) -> ToolServer:
    """A server of these tools: `Tool`s, functions, agents, routers, or one of them. It runs when told how."""
    return ToolServer(tools, **settings)


def serve_stdio(tools: Any, **settings: Unpack[ServingSettings]) -> None:
    """Serve tools over standard input and output, until the client leaves."""
    ToolServer(tools, **settings).stdio()


def serve_http(
    tools: Any,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    token: str | None = None,
    allow_anyone: bool = False,
    **settings: Unpack[ServingSettings],
) -> HttpListener:
    """Serve tools over streamable HTTP, in a thread: see `ToolServer.http`."""
    return ToolServer(tools, **settings).http(host, port, token=token, allow_anyone=allow_anyone)


def as_mcp_server(tools: Any, **settings: Unpack[ServingSettings]) -> Server[Any]:
    """The SDK's own server object with these tools, for this process or to be mounted in a web application."""
    return ToolServer(tools, **settings).mcp


def read_tool(value: Any, name: str = "ask") -> Tool:
    """Anything that is a tool, or can be one. An agent or a router becomes a tool that takes a task in words."""
    if not isinstance(value, Tool) and callable(make := getattr(value, "as_tool", None)):
        value = make(name, "Ask a language model. It gets a task in words, and answers in words.")
    tool = as_tool(value)
    if not tool.can_run:
        raise ConfigurationError(
            f"The tool {tool.name!r} is a description only.", field="tools", fix="Give it a function to run."
        )
    return tool


def _is_one(tools: Any) -> bool:
    return not isinstance(tools, Iterable) or isinstance(tools, Tool | dict)


def _by_name(tools: Sequence[Tool]) -> dict[str, Tool]:
    found = {tool.name: tool for tool in tools}
    if len(found) < len(tools):
        twice = sorted({tool.name for tool in tools if found[tool.name] is not tool})
        raise ConfigurationError(
            f"Two tools have the same name: {', '.join(twice)}.", field="tools", fix="Rename or remove one."
        )
    return found


def _schema(tool: Tool) -> dict[str, Any]:
    schema: dict[str, Any] = thaw(tool.spec.parameters) or {"properties": {}}
    return {"type": "object", **schema}


def _described(tool: Tool) -> mcp_types.Tool:
    import mcp_types

    return mcp_types.Tool(
        name=tool.name,
        description=tool.spec.description or None,
        input_schema=_schema(tool),
        annotations=mcp_types.ToolAnnotations(**annotations_of(tool)),
        _meta={RISK: "exec"} if tool.risk == "exec" else None,
    )


# A call, as a flow


def _within(seconds: float, steps: Flow[Any]) -> Flow[Any]:
    """The tool's result, its reports on the way, or an end when the time is up."""
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


def _progress(report: Any, told: float) -> tuple[float, float | None, str | None]:
    """What a tool reports, as a number that grows, and words."""
    if not isinstance(report, AgentToolResult):
        return told, None, str(report)[:1_000]
    details = report.details if isinstance(report.details, dict) else {}
    content = report.content
    text = content if isinstance(content, str) else "".join(p.text for p in content if isinstance(p, TextContent))
    done, total = details.get("progress"), details.get("total")
    return done if isinstance(done, int | float) else told, total, text[:1_000] or None
