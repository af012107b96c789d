"""Hooks: tool approval and compaction; the plan of one run, and its cost.

`before_tool_call` gets each call after its arguments are validated, and returns one of the decisions below. None leaves
the decision to the tool's risk.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from ..engine.context import Context
from ..engine.flow import Flow, Invoke
from ..errors import AgentError, ConfigurationError, ToolExecutionError
from ..models.prices import to_dollars, to_units
from ..models.token_estimates import estimate_prompt
from ..tools.base import AgentToolResult, Signal, Tool, ToolContext
from ..types import AgentRequest, AgentResponse, Message, Role, ToolCall, ToolLoopConfig, ToolResult
from ..types.option_errors import check_keywords
from .events import AgentMessage, coerce_message
from .journal import Journal

if TYPE_CHECKING:
    from ..client import Client


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


# Compaction: a `transform_context` hook that summarizes old turns. It cuts only between turns, so that a tool call
# keeps its result. Summaries are cached, and extended when the conversation outgrows the window again.

_PROMPT = (
    "Summarize the conversation above for a reader who continues it without having seen it. Keep every fact, "
    "decision, name, number and open question that may matter later; leave out pleasantries. Answer with the "
    "summary only."
)
_SUMMARY = "Summary of the conversation so far:\n\n{summary}"
_MAX_RESULT_CHARACTERS = 2_000
_CONVERSATIONS = 16
"""Number of conversations whose summaries are kept: one object may serve several."""


class Compaction:
    """Summarize old turns when the conversation takes too much of the context window.

    ```python
    from agent import Agent
    from agent.loop import Compaction

    agent = Agent("scripted:echo")
    result = agent.run("Hello!", transform_context=Compaction(agent, window=100_000))
    ```

    Args:
        caller: The agent or router that writes the summaries. A small model suffices.
        window: Size of the context window in tokens. Defaults to that of the model.
        at: Share of the window at which old turns are summarized.
        keep: Share of the window that is kept for the latest turns.
    """

    def __init__(self, caller: Client, *, window: int | None = None, at: float = 0.8, keep: float = 0.3) -> None:
        known = window if window is not None else caller.capabilities.max_context_tokens
        if known is None:
            raise ConfigurationError("The context window of the model is unknown.", field="window", fix="Pass window=.")
        if not 0 < keep < at <= 1:
            raise ConfigurationError("keep must be less than at.", field="keep", fix="Use 0 < keep < at <= 1.")
        self._caller = caller
        self._limit = int(known * at)
        self._kept = int(known * keep)
        self._lock = threading.Lock()
        self._summaries: list[tuple[list[AgentMessage], Message]] = []
        self.count: int = 0
        """Number of summaries written."""

    def __call__(self, messages: Sequence[AgentMessage]) -> list[AgentMessage]:
        """Return the messages that fit. Raises the error of a failed summary."""
        compacted, replaced = self._apply_summaries(messages)
        if _tokens(compacted) <= self._limit:
            return compacted
        cut = self._cut(compacted)
        if cut == 0:
            return compacted  # one turn that is too long by itself: nothing here can help
        summary = self._summarize([message for message in compacted[:cut] if isinstance(message, Message)])
        with self._lock:
            self._summaries.insert(0, (list(messages[: cut + replaced]), summary))
            del self._summaries[_CONVERSATIONS:]
        return [summary, *compacted[cut:]]

    def _apply_summaries(self, messages: Sequence[AgentMessage]) -> tuple[list[AgentMessage], int]:
        """Replace summarized messages; return the result, and by how many messages it is shorter."""
        with self._lock:
            summaries = list(self._summaries)
        for summarized, summary in summaries:
            count = len(summarized)
            if messages[:count] == summarized:
                return [summary, *messages[count:]], count - 1
        return list(messages), 0

    def _cut(self, messages: Sequence[AgentMessage]) -> int:
        """Return where the old turns end: before a user message, or a response to tool results."""
        room = self._kept
        cut = 0
        for place in range(len(messages) - 1, 0, -1):
            room -= _tokens(messages[place : place + 1])
            if _is_turn_start(messages, place):
                if room < 0 and cut:
                    break
                cut = place
                if room < 0:
                    break
        return cut

    def _summarize(self, old: Sequence[Message]) -> Message:
        self.count += 1
        request = AgentRequest(messages=(*(_to_plain_text(message) for message in old), Message.user(_PROMPT)))
        response = self._caller.complete(request)
        summary = response.text
        if not summary:
            raise AgentError("The model returned an empty summary of the conversation.")
        return Message.user(_SUMMARY.format(summary=summary))


def _is_turn_start(messages: Sequence[AgentMessage], place: int) -> bool:
    """Whether a conversation may start here: not with a tool result, whose call would be missing."""
    message = messages[place]
    if not isinstance(message, Message):
        return False
    return message.role is Role.USER or (
        message.role is Role.ASSISTANT
        and isinstance(before := messages[place - 1], Message)
        and before.role is Role.TOOL
    )


def _to_plain_text(message: Message) -> Message:
    """Write calls and results as text, with long results cut."""
    if isinstance(message.content, str):
        return message
    lines: list[str] = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            lines.append(f"[called {part.name} with {dict(part.arguments)}]")
        elif isinstance(part, ToolResult):
            lines.append(f"[{part.name or 'the tool'} returned: {part.text[:_MAX_RESULT_CHARACTERS]}]")
        elif part.text:
            lines.append(part.text)
        else:
            lines.append(f"[{part.type}]")
    role = Role.USER if message.role is Role.TOOL else message.role
    return Message(role, "\n".join(lines))


def _tokens(messages: Sequence[Any]) -> int:
    """Estimate the tokens of messages, each as if sent alone."""
    return sum(
        estimate_prompt(AgentRequest(messages=(message,))).tokens
        for message in messages
        if isinstance(message, Message)
    )
