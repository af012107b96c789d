"""The tools of a server, as a model sees them: with names that every vendor takes, judged by what they may do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ..errors import ConfigurationError
from ..tools.base import ArgumentsError, Tool, ToolContext
from ..types import thaw
from .content import MCPResult
from .hints import judged
from .names import names_for

if TYPE_CHECKING:
    import mcp_types

    from .client import MCPServer, ServerSettings


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
