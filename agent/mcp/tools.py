"""The tools of a server, as a model sees them: with names that every vendor takes, judged by what they may do."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic_core import PydanticSerializationError, to_json
from typing_extensions import override

from ..errors import ConfigurationError
from ..tools.base import AgentToolResult, ArgumentsError, Signal, Tool, ToolContext, ToolError
from ..types import thaw
from ..types.config import Risk
from .content import MCPResult, read_result
from .errors import words_for_a_model

if TYPE_CHECKING:
    import mcp_types
    from mcp import Client

    from .client import MCPServer, ServerSettings


T = TypeVar("T")


def called(
    tool: MCPTool, arguments: Mapping[str, Any], context: ToolContext[Any], seconds: float | None
) -> Callable[[Client], Awaitable[MCPResult]]:
    """What the session shall do. If it is cancelled, or the context's signal is set, the server is told to stop."""
    from mcp import MCPError

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        text = message or (f"{progress:g}" if total is None else f"{progress:g} of {total:g}")
        details = {"progress": progress, "total": total, "message": message}
        context.report(AgentToolResult(content=text, details=details))

    async def call(client: Client) -> MCPResult:
        given = dict(arguments)
        try:
            to_json(given)
        except (PydanticSerializationError, ValueError):
            raise ToolError("The arguments cannot be written as JSON.") from None
        calling = client.call_tool(tool.original, given, read_timeout_seconds=seconds, progress_callback=tell)
        try:
            return read_result(await _unless(context.signal, calling))
        except MCPError as error:
            if (words := words_for_a_model(error)) is not None:
                raise ToolError(words) from error
            raise

    return call


async def _unless(signal: Signal, work: Coroutine[Any, Any, T]) -> T:
    """The work's result, unless the signal comes first."""
    working = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(signal.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ToolError("The call was given up.")
        return working.result()
    finally:
        waiting.cancel()
        if not working.done():
            working.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody else will ask
            working.cancel()
            # Until the server has been told. A server in this process may take its time to notice.
            await asyncio.wait({working}, timeout=1.0)


_LONGEST = 64
_NOT_TAKEN = re.compile(r"[^a-zA-Z0-9_-]")


def names_for(originals: Iterable[str], prefix: str = "") -> dict[str, str]:
    """For each original name the one that a model sees. A name that fits stays as it is, unless two would be alike."""
    wanted = {original: prefix + original for original in originals}
    fitted = {original: _fitted(name) for original, name in wanted.items()}
    shared = Counter(fitted.values())
    settled = {
        original
        for original, name in fitted.items()
        if name == wanted[original] or (shared[name] == 1 and len(wanted[original]) <= _LONGEST)
    }
    taken = {fitted[original] for original in settled}
    for original in sorted(wanted.keys() - settled):
        fitted[original] = _told_apart(fitted[original], wanted[original], taken)
        taken.add(fitted[original])
    return fitted


def _fitted(name: str) -> str:
    name = _NOT_TAKEN.sub("_", name)
    if not name[:1].isalpha() and not name.startswith("_"):
        name = f"_{name}"
    return name[:_LONGEST]


def _told_apart(name: str, wanted: str, taken: set[str]) -> str:
    """The name with a few digits that depend on the original alone; with more of them if that is taken, too."""
    digest = hashlib.sha256(wanted.encode("utf-8", "surrogatepass")).hexdigest()
    for digits in range(8, _LONGEST - 1, 8):
        made = f"{name[: _LONGEST - digits - 1]}_{digest[:digits]}"
        if made not in taken:
            return made
    raise AssertionError("two different names have the same SHA-256")


RISK = "agent-llm-router/risk"
"""The key of `_meta` under which our servers name a risk that MCP has no hint for."""


class Judged(NamedTuple):
    risk: Risk
    idempotent: bool


def judged(tool: mcp_types.Tool, trusted: bool) -> Judged:
    """The risk of a server's tool, and whether it may run twice."""
    hints = tool.annotations
    if (tool.meta or {}).get(RISK) == "exec":
        return Judged("exec", False)
    if hints is None:
        return Judged("write", False)
    harmless = trusted and hints.read_only_hint is True
    idempotent = harmless or (trusted and hints.idempotent_hint is True)
    if hints.open_world_hint is True and (harmless or hints.destructive_hint is not True):
        return Judged("network", idempotent)
    return Judged("read" if harmless else "write", idempotent)


def annotations_of(tool: Tool) -> dict[str, Any]:
    """One of our tools, in MCP's words."""
    return {
        "read_only_hint": tool.risk == "read",
        "destructive_hint": tool.risk in ("write", "exec"),
        "idempotent_hint": tool.idempotent or tool.risk == "read",
        "open_world_hint": tool.risk in ("network", "exec"),
    }


@dataclass
class MCPTool(Tool):
    """A tool that runs at a server."""

    original: str = ""
    """What the server calls it."""
    title: str | None = None
    """What people may call it, says the server."""
    output_schema: Mapping[str, Any] | None = None
    """JSON schema of the structured content, where the server promises some; the content is checked against it."""
    server: MCPServer | None = field(default=None, repr=False, compare=False)
    definition: mcp_types.Tool | None = field(default=None, repr=False, compare=False)

    @override
    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """As far as the server's schema allows: a broken one, or one that leads elsewhere, is left to the server."""
        try:
            checked: dict[str, Any] = super().check(arguments)
        except ArgumentsError:
            raise
        except Exception:  # whatever a validator makes of what is no schema, or of one that it would have to fetch
            checked = thaw(dict(arguments))
        return checked

    @override
    async def run(self, arguments: Mapping[str, Any], context: ToolContext[Any]) -> MCPResult:
        assert self.server is not None
        limits = [seconds for seconds in (self.timeout, context.seconds_left()) if seconds not in (None, float("inf"))]
        return await self.server.acall_tool(self, arguments, context, min(limits, default=None))


def chosen_tools(
    server: MCPServer, offered: Sequence[mcp_types.Tool], before: Sequence[MCPTool], settings: ServerSettings
) -> list[MCPTool]:
    """Those that are wanted. A tool that has not changed is the same object as before."""
    only = settings.get("only")
    wanted = None if only is None else set(only)
    unwanted = set(settings.get("without", ()))
    names = names_for((tool.name for tool in offered), settings.get("prefix", ""))
    known = {tool.original: tool for tool in before}
    chosen: list[MCPTool] = []
    for tool in offered:
        if tool.name in unwanted or (wanted is not None and tool.name not in wanted):
            continue
        old = known.get(tool.name)
        if old is not None and old.name == names[tool.name] and old.definition == tool:
            chosen.append(old)
        else:
            chosen.append(_made(server, tool, names[tool.name], settings))
    return chosen


def _made(server: MCPServer, tool: mcp_types.Tool, name: str, settings: ServerSettings) -> MCPTool:
    risk, idempotent = judged(tool, settings.get("trust", False))
    made = MCPTool(
        name=name,
        description=tool.description or tool.title or "",
        parameters=tool.input_schema,
        timeout=settings.get("timeout"),
        risk=settings.get("risk", risk),
        idempotent=idempotent,
        original=tool.name,
        title=tool.title or (tool.annotations.title if tool.annotations is not None else None),
        output_schema=tool.output_schema,
        server=server,
        definition=tool,
    )
    try:
        made.spec  # noqa: B018  # made now, so that a description that cannot be sent is found now
    except ConfigurationError as error:
        raise ConfigurationError(
            f"The server's tool {tool.name!r} cannot be offered: {error}",
            field="tools",
            fix=f"Leave it out: without=[{tool.name!r}].",
        ) from error
    return made
