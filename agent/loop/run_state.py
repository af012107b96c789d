"""What a run has come to so far: the conversation, the calls of the present turn, and the bill.

The flow writes it; the stream that a caller holds reads it. If the flow is stopped in the middle, this is all that is
left of it, and it is enough to end the story: every call answered, every message closed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json

from ..engine.context import Inbox
from ..errors import AgentError
from ..tools.base import AgentToolResult, Tool, ToolContext
from ..tools.execution import Running
from ..tools.results import failed, is_finite
from ..types import (
    AgentResponse,
    Attempt,
    Fold,
    FrozenDict,
    Message,
    Role,
    Route,
    StreamEvent,
    ToolCall,
    ToolResult,
    Usage,
    thaw,
)
from ..types.usage import LazyCost
from .events import (
    AgentEndEvent,
    AgentEvent,
    AgentMessage,
    AgentStartEvent,
    MessageEndEvent,
    MessageStartEvent,
    MessageUpdateEvent,
    ToolExecutionEndEvent,
    ToolExecutionStartEvent,
    TurnEndEvent,
    TurnStartEvent,
    told,
)
from .hooks import Bill, bill_of
from .journal import Outcome
from .results import PausedRun, RunResult, Verdict, WaitingCall

INTERRUPTED = "The call was interrupted; whether it took effect is not known."
NOT_RUN = "The call was not made: the run ended before."
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_.:-]")
_BROKEN_OFF = frozenset(("length", "content_filter", "refusal", "error"))
"""Reasons for which a vendor stops in the middle of an answer."""


@dataclass(slots=True, eq=False)
class Slot:
    """One call of the present turn, from the model's wish to its result."""

    call: ToolCall
    named: str
    """As the model wrote the name, which may not be a name at all."""
    cut_off: bool = False
    tool: Tool | None = None
    arguments: Any = None
    context: ToolContext[Any] | None = None
    running: Running | None = None
    until: float = 0.0
    started: bool = False
    """Whether its start has been told."""
    ended: bool = False
    """Whether its end has been told."""
    result: ToolResult | None = None
    outcome: Outcome = "running"
    misfit: bool = False
    """The call could not be made as the model wrote it."""
    waiting: WaitingCall | None = None
    """Why the call waits for a decision. Once it waits, only a verdict lets it be executed."""
    verdict: Verdict | None = None
    noted: bool = False
    """Whether its result is in the journal."""
    spent: list[AgentResponse] = field(default_factory=list)
    """Answers that were paid for while it ran."""
    spent_before: int = 0
    """How many of them are on the bill of the run since before it was resumed."""
    _key: str = ""
    _message: Message | None = None

    @property
    def key(self) -> str:
        """The same for calls of the same tool with the same arguments."""
        if not self._key:
            self._key = _digest(_written([self.call.name, thaw(self.call.arguments)]))
        return self._key

    @property
    def message(self) -> Message:
        """The message with the result, built once."""
        if self._message is None:
            result = self.result
            assert result is not None
            self._message = Message(Role.TOOL, (result,), tool_call_id=result.tool_call_id, name=result.name)
        return self._message

    @property
    def is_undecided(self) -> bool:
        """Whether the call waits for a decision."""
        if self.result is not None or self.waiting is None:
            return False
        if self.waiting.run is not None:
            return not self.waiting.run.has_verdicts
        return self.verdict is None

    def is_billed(self) -> bool:
        """Whether the call was paid for since the run was started or resumed: it is being retried then."""
        return len(self.spent) > self.spent_before

    def wait(self, waiting: WaitingCall) -> None:
        """Leave the call without a result until it is decided."""
        self.waiting, self.verdict, self.running = waiting, None, None

    def start(self) -> ToolExecutionStartEvent:
        self.started = True
        return ToolExecutionStartEvent(
            tool_call_id=self.call.id,
            tool_name=self.call.name,
            args=self.context.arguments if self.context else self.call.arguments,
        )

    def end(self) -> ToolExecutionEndEvent:
        assert self.result is not None
        self.ended = True
        return ToolExecutionEndEvent(
            tool_call_id=self.call.id,
            tool_name=self.call.name,
            result=shown(self.result),
            is_error=self.result.is_error,
        )

    def suspend(self, paused: PausedRun) -> ToolExecutionEndEvent:
        """End the execution of a sub-agent whose run has paused. The call goes on waiting."""
        self.wait(WaitingCall(id=self.call.id, run=paused, spent=list(map(bill_of, self.spent))))
        self.ended = True
        names = ", ".join(call.name for call in paused.pending)
        text = f"The agent waits for a decision about: {names}."
        result = AgentToolResult([{"type": "text", "text": text}], details={"paused": True})
        return ToolExecutionEndEvent(tool_call_id=self.call.id, tool_name=self.call.name, result=result)

    def fail(self, message: str, outcome: Outcome) -> None:
        self.result, self.outcome = failed(message, self.call.id, self.call.name), outcome

    def recall(self, result: ToolResult, outcome: Outcome, *, misfit: bool = False) -> None:
        """Take a result from before: it has been told, and is not written down again."""
        self.result, self.outcome, self.misfit = result, outcome, misfit
        self.started = self.ended = self.noted = True


def shown(result: ToolResult) -> AgentToolResult:
    """A result as events carry it."""
    content = result.content
    parts: Sequence[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    return AgentToolResult(content=parts, details=result.details or {}, is_error=result.is_error)


class Speaking:
    """The model's message while it arrives."""

    __slots__ = ("_fold", "begun", "complained")

    def __init__(self) -> None:
        self._fold = Fold()
        self.begun = False
        self.complained = False
        """Whether an error event has been told already."""

    def add(self, event: StreamEvent) -> None:
        self._fold.add(event)
        self.complained = self.complained or event.type == "error"

    def so_far(self) -> Message:
        return self._fold.partial().message


class CallIds:
    """The ids of all tool calls in a conversation."""

    __slots__ = ("_ids",)

    def __init__(self, history: Iterable[AgentMessage]) -> None:
        self._ids = {
            call.id
            for message in history
            if isinstance(message, Message) and message.role is Role.ASSISTANT
            for call in message.tool_calls or ()
        }

    def __contains__(self, id: str) -> bool:
        return id in self._ids

    def add(self, id: str) -> None:
        self._ids.add(id)

    def another(self, id: str) -> str:
        """Return this id, or a variant that no call has."""
        while id in self:
            id += "_"
        return id


@dataclass(slots=True, eq=False)
class RunState:
    """One run, as far as it has come."""

    run_id: str
    history: list[AgentMessage]
    start: int
    """How much of the history was there before."""
    steering: Inbox = field(default_factory=Inbox)
    follow_ups: Inbox = field(default_factory=Inbox)
    turn: int = 0
    began: float = 0.0
    latest: AgentResponse | None = None
    speaking: Speaking | None = None
    slots: list[Slot] = field(default_factory=list)
    told_results: int = 0
    """How many results of this turn have become messages."""
    steered: list[AgentMessage] = field(default_factory=list)
    unsaid: list[AgentMessage] = field(default_factory=list)
    """Messages that were sent to the run before it paused: said after this turn, they skip no approved call."""
    usage: Usage | None = None
    bill: Bill = field(default_factory=Bill)
    attempts: list[Attempt] = field(default_factory=list)
    warnings: dict[str, None] = field(default_factory=dict)
    responses: list[AgentResponse] = field(default_factory=list)
    """Each answer of the model, in order."""
    elsewhere: list[AgentResponse] = field(default_factory=list)
    """Answers that sub-agents got: part of the bill, not of the conversation."""
    ids: CallIds | None = None
    """Of all calls in the conversation, once there is one that may not have the same."""
    repeats: dict[str, tuple[str, int]] = field(default_factory=dict)
    """For each call that was made: what it brought, and how often in a row."""
    repairs: int = 0
    """How many turns in a row had no call that could be made."""
    digest: str = ""
    """Of what was asked, for the journal: a run goes on only with the same question."""
    known: Mapping[str, Any] = field(default_factory=dict)
    """What the journal held when the run began."""
    opened: bool = False
    """Whether the run's beginning has been told."""
    in_turn: bool = False
    untold: list[AgentEvent] = field(default_factory=list)
    """What has happened, and is told as soon as it is written down."""
    over: bool = False
    error: BaseException | None = None
    bill_caller: Callable[[AgentResponse], None] | None = None
    """For a sub-agent's run: puts an answer on the bill of the run that called it."""

    # The conversation

    @property
    def added(self) -> list[AgentMessage]:
        return self.history[self.start :]

    def run_begins(self) -> list[AgentEvent]:
        events: list[AgentEvent] = [] if self.opened else [AgentStartEvent()]
        self.opened = True
        return events

    def turn_begins(self) -> list[AgentEvent]:
        self.in_turn = True
        return [*self.run_begins(), TurnStartEvent()]

    def turn_ends(self) -> list[AgentEvent]:
        message = next(m for m in reversed(self.history) if isinstance(m, Message) and m.role is Role.ASSISTANT)
        self.in_turn = False
        return [TurnEndEvent(message=message, tool_results=self.results_told())]

    def news(self) -> list[AgentEvent]:
        """What has not been told yet."""
        events, self.untold = self.untold, []
        return events

    def say(self, *messages: AgentMessage) -> list[AgentEvent]:
        self.history += messages
        return told(*messages)

    def hear(self, response: AgentResponse) -> Message:
        """Take an answer: onto the bill, into the conversation, and its calls into slots."""
        self.latest = response
        self.account(response)
        if self.bill_caller is not None:
            self.bill_caller(response)
        response, self.slots = self._calls_of(response)
        self.told_results = 0
        message = response.message.copy_with(
            stop_reason=response.stop_reason, provider=response.provider or None, model=response.model or None
        )
        self.history.append(message)
        self.latest = response
        self.responses.append(response)
        return message

    def _calls_of(self, response: AgentResponse) -> tuple[AgentResponse, list[Slot]]:
        """The calls of an answer, under ids that are theirs alone: vendors leave them out, or use them twice."""
        if not response.has_tool_calls:
            return response, []
        if self.ids is None:
            self.ids = CallIds(self.history)
        content: list[Any] = []
        slots: list[Slot] = []
        for part in response.content:
            if not isinstance(part, ToolCall):
                content.append(part)
                continue
            changes: dict[str, Any] = {}
            if not part.id or part.id in self.ids:
                changes["id"] = self.ids.another(f"call_{self.turn}_{len(slots) + 1}")
            if _NOT_IN_A_NAME.search(part.name) or not part.name:
                # No vendor takes such a name back, not even the one whose model made it up.
                changes["name"] = _NOT_IN_A_NAME.sub("_", part.name)[:64] or "unnamed"
            if not is_finite(part.arguments):  # 1e999 is JSON to read, but not to write
                written = to_json(part.arguments, inf_nan_mode="constants").decode()
                changes |= {"arguments": FrozenDict(), "invalid_arguments": written}
            call = part.copy_with(**changes) if changes else part
            self.ids.add(call.id)
            content.append(call)
            slots.append(Slot(call, part.name))
        if response.stop_reason in _BROKEN_OFF:
            slots[-1].cut_off = True  # its arguments may look complete, and not be
        if any(new is not old for new, old in zip(content, response.content, strict=True)):
            response = response.copy_with(content=tuple(content))
        return response, slots

    def ready_results(self) -> list[AgentEvent]:
        """Results become messages in the order of the calls, each as soon as all before it are there."""
        events: list[AgentEvent] = []
        while self.told_results < len(self.slots):
            slot = self.slots[self.told_results]
            if slot.result is None:
                break
            events += self.say(slot.message)
            self.told_results += 1
        return events

    def results_told(self) -> list[Message]:
        """The result messages of this turn."""
        return [slot.message for slot in self.slots[: self.told_results] if slot.result is not None]

    def count_calls(self) -> None:
        """Keep in mind what the calls of this turn brought: a run that does not get anywhere is ended."""
        self.repairs = self.repairs + 1 if self.slots and all(slot.misfit for slot in self.slots) else 0
        made = {slot.key: slot for slot in self.slots if slot.outcome in ("completed", "failed")}
        for key, slot in made.items():
            assert slot.result is not None
            brought = _digest(slot.result.text)
            before, times = self.repeats.get(key, ("", 0))
            self.repeats[key] = (brought, times + 1 if brought == before else 1)

    # The bill

    def charge(self, slot: Slot, response: AgentResponse) -> None:
        """Bill an answer that a call paid for, and note which call it was."""
        slot.spent.append(response)
        self.charge_elsewhere(response)

    def charge_elsewhere(self, response: AgentResponse) -> None:
        """Bill an answer that is no part of this conversation."""
        self.elsewhere.append(response)
        if self.bill_caller is not None:
            self.bill_caller(response)

    def account(self, response: AgentResponse) -> None:
        self.attempts += response.route
        self._add(response)
        self.warnings.update(dict.fromkeys(response.warnings))

    def _add(self, response: AgentResponse) -> None:
        if response.usage is not None:
            self.usage = response.usage if self.usage is None else self.usage + response.usage
        self.bill.add(response)

    def account_for(self, error: AgentError) -> None:
        """A model call that failed was tried, too, and what came of it before it broke was paid for."""
        self.attempts += error.attempts
        for attempt in error.attempts:
            if attempt.usage is not None:
                self._add(AgentResponse(usage=attempt.usage, cost_estimate=attempt.cost))

    def settle(self) -> None:
        """Take what sub-agents spent onto the bill."""
        while self.elsewhere:
            self.account(self.elsewhere.pop(0))

    # The end

    def result(self, *, now: float, stop_reason: str | None = None, paused: PausedRun | None = None) -> RunResult:
        self.settle()
        latest = self.latest or AgentResponse()
        facts = {name: value for name, value in latest.__dict__.items() if name in AgentResponse.model_fields}
        facts |= {
            "usage": self.usage,
            "route": Route(self.attempts, ()),
            "latency_ms": (now - self.began) * 1000,
            "warnings": tuple(self.warnings),
            "run_id": self.run_id,
            "turns": self.turn,
            "messages": tuple(message for message in self.added if isinstance(message, Message)),
            "paused": paused,
        }
        if stop_reason is not None:
            facts["stop_reason"] = stop_reason
        made = RunResult.model_validate(facts).with_cost(LazyCost.lazy(self.bill.total))
        if latest.raw is not None:
            object.__setattr__(made, "_raw", latest.raw)
        object.__setattr__(made, "_responses", tuple(self.responses))
        return made

    def closing(self, reason: str, error: BaseException | None) -> list[AgentEvent]:
        """The events that end a run which cannot go on: calls answered, and a message that says why."""
        events = self.run_begins()
        if not self.in_turn:
            if self.told_results == len(self.slots):  # or it is a run that was taken up again, and its calls are open
                self.slots, self.told_results = [], 0
            events.append(TurnStartEvent())
        events += self.news()
        events += self._answered()
        events += self._last_words(reason, _words(reason, error))
        self.speaking = None
        self.over, self.error = True, error
        return events

    def _answered(self) -> list[AgentEvent]:
        events: list[AgentEvent] = []
        for slot in self.slots:
            if slot.result is None:
                if slot.running is not None:
                    slot.running.give_up()
                if slot.running is not None or (slot.waiting is not None and slot.waiting.run is not None):
                    slot.fail(INTERRUPTED, "interrupted")
                else:
                    slot.fail(NOT_RUN, "skipped")
            if not slot.ended:
                events += [*(() if slot.started else (slot.start(),)), slot.end()]
        return events + self.ready_results()

    def _last_words(self, reason: str, words: str) -> list[AgentEvent]:
        speaking = self.speaking or Speaking()
        partial = speaking.so_far()
        content = [part for part in partial.parts if not isinstance(part, ToolCall)]  # half a call is none
        message = Message(Role.ASSISTANT, content or "", stop_reason=reason, error_message=words)
        events: list[AgentEvent] = []
        if not speaking.begun:
            events.append(MessageStartEvent(message=message))
        if not speaking.complained:
            events.append(MessageUpdateEvent(message=message, assistant_message_event=StreamEvent.error_event(words)))
        results = self.results_told()
        self.history.append(message)
        events += [
            MessageEndEvent(message=message),
            TurnEndEvent(message=message, tool_results=results),
            AgentEndEvent(messages=self.added),
        ]
        return events


_written = json.JSONEncoder(sort_keys=True, default=str).encode  # made once: `json.dumps` would make it for each call


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def _words(reason: str, error: BaseException | None) -> str:
    if error is None:
        return "the run was aborted"
    if isinstance(error, AgentError):
        return str(error)
    return f"{type(error).__name__}: {error}"
