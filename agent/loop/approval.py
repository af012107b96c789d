"""Who may call which tool: what is asked before a call and after it, and what can be said.

`before_tool_call` sees each call with checked arguments, and says one of the decisions below, or None for "no opinion":
then the tool's risk decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..errors import ConfigurationError
from ..tools.base import Tool, ToolContext
from ..types import ToolCall, ToolLoopConfig


@dataclass(frozen=True)
class Allow:
    """Run it, whatever its risk."""


@dataclass(frozen=True)
class Deny:
    """Do not run it. The model is told the reason."""

    reason: str = "The call was denied."


@dataclass(frozen=True)
class Change:
    """Run it with these arguments instead. They are checked like the model's own."""

    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ask:
    """A person shall decide: the run pauses, and can be resumed later, in another process."""

    reason: str = "A person has to approve this call."


Decision: TypeAlias = Allow | Deny | Change | Ask
BeforeToolCall: TypeAlias = Callable[..., Any]
"""`(call, context) → Decision | bool | None`, plain or async. True allows, False denies."""
AfterToolCall: TypeAlias = Callable[..., Any]
"""`(call, result, context) → ToolResult | AgentToolResult | str | None`, plain or async. None keeps the result."""


def read_decision(said: Any) -> Decision | None:
    """What a hook said. Anything unknown is an error: taking it for consent could do harm."""
    match said:
        case None | Allow() | Deny() | Change() | Ask():
            return said
        case True:
            return Allow()
        case False:
            return Deny()
        case _:
            raise ConfigurationError(
                f"before_tool_call said {type(said).__name__}.",
                field="before_tool_call",
                fix="Return Allow(), Deny(reason), Change(arguments), Ask(reason), True, False or None.",
            )


def by_risk(tool: Tool, config: ToolLoopConfig) -> Decision:
    """What holds when nobody has an opinion."""
    if tool.risk in config.allowed_risks:
        return Allow()
    return Deny(f"The tool {tool.name!r} may {_MEANS[tool.risk]}, and that is not allowed here unless it is approved.")


_MEANS = {"read": "read", "write": "change things", "network": "use the network", "exec": "run code"}


@dataclass(frozen=True)
class ApprovalRules:
    """A ready `before_tool_call`: by name or by risk, what to allow, deny or ask about.

    ```python
    from agent.loop import ApprovalRules

    careful = ApprovalRules(ask={"write", "exec"}, deny={"delete_everything"})
    ```

    Names go before risks; among either, deny before ask before allow.
    """

    allow: frozenset[str] | set[str] = frozenset()
    ask: frozenset[str] | set[str] = frozenset()
    deny: frozenset[str] | set[str] = frozenset()

    def __call__(self, call: ToolCall, context: ToolContext[Any]) -> Decision | None:
        for key in (call.name, context.risk):
            if key in self.deny:
                return Deny(f"Calls of {call.name!r} are not allowed.")
            if key in self.ask:
                return Ask(f"{call.name} needs approval.")
            if key in self.allow:
                return Allow()
        return None
