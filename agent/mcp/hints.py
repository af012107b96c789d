"""What a server says its tools do to the world, and what we make of it.

Annotations are hints, and a server may lie. A hint that warns is believed from anyone; one that reassures, and would
spare a call its approval or let it run twice, only from a server that the caller trusts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..tools.base import Tool
from ..types.config import Risk

if TYPE_CHECKING:
    import mcp_types

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
