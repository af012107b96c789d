"""Hooks, tool approval, the plan of one run, and its cost.

`before_tool_call` gets each call after its arguments are validated, and returns one of the decisions below. None leaves
the decision to the tool's risk.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..engine.context import Context
from ..engine.flow import Flow, Invoke
from ..errors import AgentError, ConfigurationError, ToolExecutionError
from ..models.prices import to_dollars, to_units
from ..tools.base import AgentToolResult, Signal, Tool, ToolContext
from ..types import AgentRequest, AgentResponse, Message, ToolCall, ToolLoopConfig, ToolResult
from ..types.option_errors import check_keywords
from .events import AgentMessage, coerce_message
from .journal import Journal


@dataclass(frozen=True)
class Allow:
    """Run the call, whatever its risk."""


@dataclass(frozen=True)
class Deny:
    """Reject the call. The model gets the reason as the tool result."""

    reason: str = "The call was denied."


@dataclass(frozen=True)
class Change:
    """Run the call with these arguments instead. They are validated like the model's."""

    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ask:
    """Pause the run until a person decides. It can be resumed later, in another process."""

    reason: str = "A person has to approve this call."


Decision: TypeAlias = Allow | Deny | Change | Ask
HookDecision: TypeAlias = Decision | bool | None
# Any: hooks see the contexts of tools with all dependencies
BeforeToolCall: TypeAlias = Callable[[ToolCall, ToolContext[Any]], HookDecision | Awaitable[HookDecision]]
"""Hook before a tool call, sync or async. True allows, False denies, None leaves the decision to the tool's risk."""
Replacement: TypeAlias = ToolResult | AgentToolResult | str | None
AfterToolCall: TypeAlias = Callable[[ToolCall, ToolResult, ToolContext[Any]], Replacement | Awaitable[Replacement]]
"""Hook after a tool call, sync or async. None keeps the result."""


def parse_decision(value: Any) -> Decision | None:
    """Convert a hook's return value to a decision. An unknown value must not pass for consent."""
    match value:
        case None | Allow() | Deny() | Change() | Ask():
            return value
        case True:
            return Allow()
        case False:
            return Deny()
        case _:
            raise ConfigurationError(
                f"before_tool_call returned {type(value).__name__}.",
                field="before_tool_call",
                fix="Return Allow(), Deny(reason), Change(arguments), Ask(reason), True, False or None.",
            )


def decide_by_risk(tool: Tool, config: ToolLoopConfig) -> Decision:
    """Apply the default policy: allow the risks in `config.allowed_risks`, deny the others."""
    if tool.risk in config.allowed_risks:
        return Allow()
    return Deny(f"The tool {tool.name!r} may {_RISK_ACTIONS[tool.risk]}, which needs approval here.")


_RISK_ACTIONS = {"read": "read", "write": "change things", "network": "use the network", "exec": "run code"}


@dataclass(frozen=True)
class ApprovalRules:
    """A `before_tool_call` hook that decides by tool name or risk.

    ```python
    from agent.loop import ApprovalRules

    careful = ApprovalRules(ask={"write", "exec"}, deny={"delete_everything"})
    ```

    A tool's name takes precedence over its risk, `deny` over `ask`, and `ask` over `allow`.
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


ModelCall: TypeAlias = Callable[[Sequence[Message], int, Context], Flow[AgentResponse]]
"""Call the model with a conversation, a turn number and a context. A streaming call emits StreamEvents."""


@check_keywords("Hooks")
@dataclass(frozen=True, slots=True)
class Hooks:
    """Hooks called during runs. Each may be plain or async; plain hooks run in a thread.

    Args:
        before_tool_call: Approves, denies or changes a tool call; see `ApprovalRules`.
        after_tool_call: May replace a tool result before the model sees it.
        transform_context: Selects or rewrites messages before each model call, such as `Compaction`.
        convert_to_llm: Converts messages with custom roles. By default they are left out.
        get_steering_messages: Called after each tool and each turn; its messages are added before the next model call.
        get_follow_up_messages: Called when the run would end.
        journal: Records the run, so that it can be resumed after a crash.
    """

    before_tool_call: BeforeToolCall | None = None
    after_tool_call: AfterToolCall | None = None
    transform_context: Callable[..., Any] | None = None
    convert_to_llm: Callable[..., Any] | None = None
    get_steering_messages: Callable[[], Any] | None = None
    get_follow_up_messages: Callable[[], Any] | None = None
    journal: Journal | None = None


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The immutable inputs of one run."""

    call_model: ModelCall
    tools: Callable[[AgentResponse | None], Mapping[str, Tool]]
    """Returns the tools by name. After a response, these are the tools of the target that sent it."""
    request: AgentRequest
    config: ToolLoopConfig = field(default_factory=ToolLoopConfig)
    hooks: Hooks = field(default_factory=Hooks)
    deps: Any = None
    signal: Any = field(default_factory=Signal)
    """The abort signal: a `Signal`, or an `asyncio.Event` of the caller."""
    prompts: Sequence[AgentMessage] = ()
    """Messages added at the start of the run."""
    is_retried: bool = False
    """Whether a sub-agent's run is being retried. The costs in its journal are charged already."""


def call_hook(name: str, function: Callable[..., Any], *args: Any) -> Flow[Any]:
    """Call a hook. An unexpected exception ends the run with an error that names the hook."""
    try:
        return (yield from Invoke(function, args, blocking=True))
    except AgentError:
        raise
    except Exception as error:
        raise ToolExecutionError(f"{name} failed: {type(error).__name__}: {error}") from error


def poll_messages(name: str, provide: Callable[[], Any] | None) -> Flow[list[AgentMessage]]:
    """Return the messages that a hook has queued."""
    if provide is None:
        return []
    messages = yield from call_hook(name, provide)
    return [coerce_message(message) for message in messages or ()]


def accepts_signal(function: Callable[..., Any]) -> bool:
    """Whether a `transform_context` hook takes the abort signal as its second parameter."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) > 1


@dataclass(slots=True)
class RunCost:
    """Total cost of the responses of a run. Prices are looked up when the total is read."""

    earlier: float | None = None
    """US dollars of the run before it was paused, or None for a new run."""
    earlier_known: bool = True
    """Whether every response before the pause had a price."""
    responses: list[AgentResponse] = field(default_factory=list)

    @property
    def dollars(self) -> float:
        """US dollars, without responses whose price is unknown."""
        costs = [self.earlier, *(response.cost_estimate for response in self.responses)]
        return to_dollars(sum(to_units(cost) for cost in costs if cost is not None))

    @property
    def known(self) -> bool:
        """Whether every response has a price."""
        return self.earlier_known and not any(
            response.cost_estimate is None and response.usage is not None for response in self.responses
        )

    def total(self) -> tuple[float | None, str | None]:
        """Return the cost and its source. The cost is None if a price is unknown."""
        has_charges = self.earlier is not None or bool(self.responses)
        source = self.responses[-1].cost_source if self.responses else None
        return (self.dollars if self.known and has_charges else None), source


def extract_cost(response: AgentResponse) -> AgentResponse:
    """Return a copy of a response without its content: usage, cost and route."""
    facts = ("usage", "cost_estimate", "cost_source", "route", "warnings")
    return AgentResponse.model_validate({name: getattr(response, name) for name in facts})
