"""What a run is made of: how the model is asked, which tools there are, and who has a say."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..engine.context import Context
from ..engine.flow import Flow, Invoke
from ..errors import AgentError, ConfigurationError, ToolExecutionError
from ..models.prices import to_dollars, to_units
from ..tools.base import Signal, Tool, ToolContext
from ..types import AgentRequest, AgentResponse, Message, ToolCall, ToolLoopConfig
from .events import AgentMessage, read_message
from .journal import Journal


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


ModelCall: TypeAlias = Callable[[Sequence[Message], int, Context], Flow[AgentResponse]]
"""Ask the model: with a conversation, in which turn, within which limits. While it streams, it emits StreamEvents."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Who has a say in a run. Each may be plain or async; plain ones are kept off an event loop.

    Args:
        before_tool_call: See `agent.loop.hooks`.
        after_tool_call: May replace a result before the model sees it.
        transform_context: What of the conversation matters for the next question, such as a `Compaction`.
        convert_to_llm: What becomes of messages with roles of their own; by default they are left out.
        get_steering_messages: Asked after each tool and each turn; what it returns is heard before anything else.
        get_follow_up_messages: Asked when the run would end.
        journal: Where the run is written down, so that it can go on after a crash.
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
    """One run, before it begins."""

    call_model: ModelCall
    tools: Callable[[AgentResponse | None], Mapping[str, Tool]]
    """The tools by name; after an answer, as whoever gave it knows them."""
    request: AgentRequest
    config: ToolLoopConfig = field(default_factory=ToolLoopConfig)
    hooks: Hooks = field(default_factory=Hooks)
    deps: Any = None
    signal: Signal = field(default_factory=Signal)
    prompts: Sequence[AgentMessage] = ()
    """What is said at the beginning."""
    is_retried: bool = False
    """Whether it is a sub-agent's run that was tried before: what its journal holds is billed already."""


def heard(name: str, function: Callable[..., Any], *args: Any) -> Flow[Any]:
    """Ask a hook. What it raises ends the run, with an error that says which hook it was."""
    try:
        return (yield from Invoke(function, args, blocking=True))
    except AgentError:
        raise
    except Exception as error:
        raise ToolExecutionError(f"{name} failed: {type(error).__name__}: {error}") from error


def messages_from(name: str, provide: Callable[[], Any] | None) -> Flow[list[AgentMessage]]:
    """What a hook has waiting."""
    if provide is None:
        return []
    given = yield from heard(name, provide)
    return [read_message(message) for message in given or ()]


def takes_second(function: Callable[..., Any]) -> bool:
    """Whether a hook wants the signal besides the conversation."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) > 1


class Bill:
    """The answers that were paid for, and their sum."""

    __slots__ = ("_known", "_source", "_units", "_unpriced", "opened")

    def __init__(self) -> None:
        self.opened = False
        """Whether anything was charged, or could have been."""
        self._units = 0
        self._known = True
        self._source: str | None = None
        self._unpriced: list[AgentResponse] = []

    @classmethod
    def brought_forward(cls, cost: float, *, known: bool) -> Bill:
        """Of a run that goes on from another one."""
        bill = cls()
        bill.opened = True
        bill._units, bill._known = to_units(cost), known
        return bill

    def add(self, response: AgentResponse) -> None:
        self.opened = True
        self._unpriced.append(response)

    @property
    def cost(self) -> float:
        """As far as it is known."""
        self._add_up()
        return to_dollars(self._units)

    @property
    def known(self) -> bool:
        """Whether every answer has a price."""
        self._add_up()
        return self._known

    def total(self) -> tuple[float | None, str | None]:
        """The cost and who says so; of a sum with an unknown part nothing is known but that it is larger."""
        return (self.cost if self.known and self.opened else None), self._source

    def _add_up(self) -> None:
        while self._unpriced:
            response = self._unpriced.pop(0)
            self._source = response.cost_source
            if response.cost_estimate is not None:
                self._units += to_units(response.cost_estimate)
            elif response.usage is not None:
                self._known = False


def bill_of(response: AgentResponse) -> AgentResponse:
    """What an answer cost, without its content."""
    facts = ("usage", "cost_estimate", "cost_source", "route", "warnings")
    return AgentResponse.model_validate({name: getattr(response, name) for name in facts})
