"""Mutable state of one run: conversation, tool calls of the current turn, and cost.

The flow writes it, and the run's stream reads it. If the flow is stopped midway, `RunState.close` produces the events
that end the run: every call gets a result, and every message ends.
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
from ..tools.execution import RunningCall
from ..tools.results import error_result, is_finite
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
    ToolResultEvent,
    Usage,
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
    create_message_events,
)
from .hooks import RunCost, extract_cost
from .journal import Outcome
from .results import PausedRun, RunResult, Verdict, WaitingCall

INTERRUPTED = "The call was interrupted; it may have taken effect."
NOT_RUN = "The call was not executed: the run ended before."
_INVALID_NAME_CHARACTERS = re.compile(r"[^a-zA-Z0-9_.:-]")
_INCOMPLETE = frozenset(("length", "content_filter", "refusal", "error"))
"""Stop reasons of incomplete responses."""


@dataclass(slots=True, eq=False)
class Slot:
    """One tool call of the current turn, from the response to its result."""

    call: ToolCall
    raw_name: str
    """The name as the model wrote it, which may be invalid."""
    truncated: bool = False
    tool: Tool | None = None
    arguments: Any = None
    context: ToolContext[Any] | None = None
    running: RunningCall | None = None
    expires_at: float = 0.0
    started: bool = False
    """Whether its start event was emitted."""
    ended: bool = False
    """Whether its end event was emitted."""
    result: ToolResult | None = None
    outcome: Outcome = "running"
    is_invalid: bool = False
    """Whether the call was rejected before execution, such as for an argument error."""
    waiting: WaitingCall | None = None
    """Why the call waits for a decision. A waiting call is executed only with a verdict."""
    verdict: Verdict | None = None
    journaled: bool = False
    """Whether its result is in the journal."""
    charges: list[AgentResponse] = field(default_factory=list)
    """Costs of sub-agents that the call ran."""
    charges_before_resume: int = 0
    """How many of the charges the run's cost already contained when it was resumed."""
    _key: str = ""
    _message: Message | None = None

    @property
    def key(self) -> str:
        """Equal for calls of the same tool with the same arguments."""
        if not self._key:
            self._key = _digest(_encode([self.call.name, self.call.arguments]))
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
        """Whether this execution has charges already, so that it is a retry."""
        return len(self.charges) > self.charges_before_resume

    def wait_for_decision(self, waiting: WaitingCall) -> None:
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
            result=to_tool_result(self.result),
            is_error=self.result.is_error,
        )

    def pause_nested(self, paused: PausedRun) -> ToolExecutionEndEvent:
        """End the execution of a sub-agent whose run has paused; the call waits."""
        self.wait_for_decision(WaitingCall(id=self.call.id, run=paused, spent=list(map(extract_cost, self.charges))))
        self.ended = True
        names = ", ".join(call.name for call in paused.pending)
        text = f"The agent waits for a decision about: {names}."
        result = AgentToolResult([{"type": "text", "text": text}], details={"paused": True})
        return ToolExecutionEndEvent(tool_call_id=self.call.id, tool_name=self.call.name, result=result)

    def fail(self, message: str, outcome: Outcome) -> None:
        self.result, self.outcome = error_result(message, self.call.id, self.call.name), outcome

    def restore(self, result: ToolResult, outcome: Outcome, *, is_invalid: bool = False) -> None:
        """Set a result from before: its events were emitted, and the journal has it."""
        self.result, self.outcome, self.is_invalid = result, outcome, is_invalid
        self.started = self.ended = self.journaled = True


def to_tool_result(result: ToolResult) -> AgentToolResult:
    """Convert a result to the type that events carry."""
    content = result.content
    parts: Sequence[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    return AgentToolResult(content=parts, details=result.details or {}, is_error=result.is_error)


def message_stop_reason(response: AgentResponse) -> str | None:
    """Return the stop reason for a message: an unknown one as received."""
    return (response.raw_stop_reason if response.stop_reason == "other" else None) or response.stop_reason


class PartialMessage:
    """The model's message while it is streamed."""

    __slots__ = ("_fold", "begun", "has_reported_error")

    def __init__(self) -> None:
        self._fold = Fold()
        self.begun: bool = False
        self.has_reported_error: bool = False
        """Whether an error event was emitted."""

    def add(self, event: StreamEvent) -> None:
        self._fold.add(event)
        self.has_reported_error = self.has_reported_error or event.type == "error"

    def build(self) -> Message:
        return self._fold.partial(open_calls=True).message


def _collect_call_ids(history: Iterable[AgentMessage]) -> set[str]:
    return {
        call.id
        for message in history
        if isinstance(message, Message) and message.role is Role.ASSISTANT
        for call in message.tool_calls or ()
    }


def _make_unique(id: str, taken: set[str]) -> str:
    while id in taken:
        id += "_"
    return id


@dataclass(slots=True, eq=False)
class RunState:
    """Mutable state of one run."""

    run_id: str
    history: list[AgentMessage]
    start: int
    """Length of the history before the run."""
    steering: Inbox = field(default_factory=Inbox)
    follow_ups: Inbox = field(default_factory=Inbox)
    turn: int = 0
    started_at: float = 0.0
    latest: AgentResponse | None = None
    partial_message: PartialMessage | None = None
    slots: list[Slot] = field(default_factory=list)
    reported_results: int = 0
    """How many results of this turn have become messages."""
    steered: list[AgentMessage] = field(default_factory=list)
    resumed_steering: list[AgentMessage] = field(default_factory=list)
    """Steering messages from before a pause. They are added after this turn and skip no approved call."""
    usage: Usage | None = None
    cost: RunCost = field(default_factory=RunCost)
    attempts: list[Attempt] = field(default_factory=list)
    warnings: dict[str, None] = field(default_factory=dict)
    responses: list[AgentResponse] = field(default_factory=list)
    """All model responses, in order."""
    nested_responses: list[AgentResponse] = field(default_factory=list)
    """Costs of sub-agents that are not yet part of the total."""
    call_ids: set[str] | None = None
    """Ids of all calls in the conversation, collected at the first response with calls."""
    repeats: dict[str, tuple[str, int]] = field(default_factory=dict)
    """For each call key: a digest of the result, and how often it occurred in a row."""
    repairs: int = 0
    """Consecutive turns without a valid call."""
    digest: str = ""
    """Digest of the request: a journal continues only with the same request."""
    journal_entries: Mapping[str, Any] = field(default_factory=dict)
    """Entries of the journal when the run started."""
    opened: bool = False
    """Whether the start event was emitted."""
    in_turn: bool = False
    pending_events: list[AgentEvent] = field(default_factory=list)
    """Events that are emitted after they are in the journal."""
    ended: bool = False
    error: BaseException | None = None
    charge_parent: Callable[[AgentResponse], None] | None = None
    """For a sub-agent's run: adds a response to the cost of the parent run."""

    # The conversation

    @property
    def added(self) -> list[AgentMessage]:
        return self.history[self.start :]

    def start_run(self) -> list[AgentEvent]:
        events: list[AgentEvent] = [] if self.opened else [AgentStartEvent()]
        self.opened = True
        return events

    def start_turn(self) -> list[AgentEvent]:
        self.in_turn = True
        return [*self.start_run(), TurnStartEvent()]

    def end_turn(self) -> list[AgentEvent]:
        message = next(m for m in reversed(self.history) if isinstance(m, Message) and m.role is Role.ASSISTANT)
        self.in_turn = False
        return [TurnEndEvent(message=message, tool_results=self.result_messages())]

    def take_events(self) -> list[AgentEvent]:
        events, self.pending_events = self.pending_events, []
        return events

    def append_messages(self, *messages: AgentMessage) -> list[AgentEvent]:
        self.history += messages
        return create_message_events(*messages)

    def add_response(self, response: AgentResponse) -> Message:
        """Add a response: its cost, its message, and slots for its calls."""
        self.latest = response
        self.charge_response(response)
        if self.charge_parent is not None:
            self.charge_parent(response)
        response, self.slots = self._read_calls(response)
        self.reported_results = 0
        message = Message(
            Role.ASSISTANT,
            response.content,
            usage=response.usage,
            stop_reason=message_stop_reason(response),
            provider=response.provider or None,
            model=response.model or None,
        )
        self.history.append(message)
        self.latest = response
        self.responses.append(response)
        return message

    def _read_calls(self, response: AgentResponse) -> tuple[AgentResponse, list[Slot]]:
        """Create a slot for each call, with a unique id, a valid name and JSON arguments."""
        if not response.has_tool_calls:
            return response, []
        if self.call_ids is None:
            self.call_ids = _collect_call_ids(self.history)
        content: list[Any] = []
        slots: list[Slot] = []
        for part in response.content:
            if not isinstance(part, ToolCall):
                content.append(part)
                continue
            changes: dict[str, Any] = {}
            if not part.id or part.id in self.call_ids:
                changes["id"] = _make_unique(f"call_{self.turn}_{len(slots) + 1}", self.call_ids)
            if _INVALID_NAME_CHARACTERS.search(part.name) or not part.name:
                # Every vendor rejects such a name in the next request, even the one whose model wrote it.
                changes["name"] = _INVALID_NAME_CHARACTERS.sub("_", part.name)[:64] or "unnamed"
            if not is_finite(part.arguments):  # a model may write 1e999, which JSON encoders reject
                raw = to_json(part.arguments, inf_nan_mode="constants").decode()
                changes |= {"arguments": FrozenDict(), "invalid_arguments": raw}
            call = part.copy_with(**changes) if changes else part
            self.call_ids.add(call.id)
            content.append(call)
            slots.append(Slot(call, part.name))
        if response.stop_reason in _INCOMPLETE:
            slots[-1].truncated = True  # the arguments may be incomplete even if they are valid JSON
        if any(new is not old for new, old in zip(content, response.content, strict=True)):
            response = response.copy_with(content=tuple(content))
        return response, slots

    def take_ready_results(self) -> list[AgentEvent]:
        """Add results as messages in the order of the calls, up to the first missing result."""
        events: list[AgentEvent] = []
        while self.reported_results < len(self.slots):
            slot = self.slots[self.reported_results]
            if slot.result is None:
                break
            message = slot.message
            self.history.append(message)
            events += [
                MessageStartEvent(message=message),
                MessageUpdateEvent(message=message, assistant_message_event=ToolResultEvent(message.text)),
                MessageEndEvent(message=message),
            ]
            self.reported_results += 1
        return events

    def result_messages(self) -> list[Message]:
        """The result messages of this turn."""
        return [slot.message for slot in self.slots[: self.reported_results] if slot.result is not None]

    def track_progress(self) -> None:
        """Count turns without a valid call and repeated identical calls."""
        self.repairs = self.repairs + 1 if self.slots and all(slot.is_invalid for slot in self.slots) else 0
        executed = {slot.key: slot for slot in self.slots if slot.outcome in ("completed", "failed")}
        for key, slot in executed.items():
            assert slot.result is not None
            digest = _digest(slot.result.text)
            previous, times = self.repeats.get(key, ("", 0))
            self.repeats[key] = (digest, times + 1 if digest == previous else 1)

    # Cost

    def charge(self, slot: Slot, response: AgentResponse) -> None:
        """Add a response that a call paid for."""
        slot.charges.append(response)
        self.charge_nested(response)

    def charge_nested(self, response: AgentResponse) -> None:
        """Add a response of a sub-agent to the cost."""
        self.nested_responses.append(response)
        if self.charge_parent is not None:
            self.charge_parent(response)

    def charge_response(self, response: AgentResponse) -> None:
        self.attempts += response.route
        self._add(response)
        self.warnings.update(dict.fromkeys(response.warnings))

    def _add(self, response: AgentResponse) -> None:
        if response.usage is not None:
            self.usage = response.usage if self.usage is None else self.usage + response.usage
        self.cost.responses.append(response)

    def charge_failed_attempts(self, error: AgentError) -> None:
        """Add the attempts of a failed model call, with their usage and cost."""
        self.attempts += error.attempts
        for attempt in error.attempts:
            if attempt.usage is not None:
                self._add(AgentResponse(usage=attempt.usage, cost_estimate=attempt.cost))

    def charge_nested_responses(self) -> None:
        """Add the collected costs of sub-agents to the total."""
        while self.nested_responses:
            self.charge_response(self.nested_responses.pop(0))

    # The end

    def result(self, *, now: float, stop_reason: str | None = None, paused: PausedRun | None = None) -> RunResult:
        self.charge_nested_responses()
        latest = self.latest or AgentResponse()
        facts = {name: value for name, value in latest.__dict__.items() if name in AgentResponse.model_fields}
        facts |= {
            "usage": self.usage,
            "route": Route(self.attempts, ()),
            "latency_ms": (now - self.started_at) * 1000,
            "warnings": tuple(self.warnings),
            "run_id": self.run_id,
            "turns": self.turn,
            "messages": tuple(message for message in self.added if isinstance(message, Message)),
            "paused": paused,
        }
        if stop_reason is not None:
            facts["stop_reason"] = stop_reason
        result = RunResult.model_validate(facts).with_cost(LazyCost.lazy(self.cost.total))
        if latest.raw is not None:
            object.__setattr__(result, "_raw", latest.raw)
        object.__setattr__(result, "_responses", tuple(self.responses))
        return result

    def close(self, reason: str, error: BaseException | None) -> list[AgentEvent]:
        """End the run early: give every open call a result, and add a message with the reason."""
        events = self.start_run()
        if not self.in_turn:
            if self.reported_results == len(self.slots):  # otherwise the run was resumed, and its calls are open
                self.slots, self.reported_results = [], 0
            events.append(TurnStartEvent())
        events += self.take_events()
        events += self._close_calls()
        events += self._close_message(reason, _describe_end(reason, error))
        self.partial_message = None
        self.ended, self.error = True, error
        return events

    def _close_calls(self) -> list[AgentEvent]:
        events: list[AgentEvent] = []
        for slot in self.slots:
            if slot.result is None:
                if slot.running is not None:
                    slot.running.cancel()
                if slot.running is not None or (slot.waiting is not None and slot.waiting.run is not None):
                    slot.fail(INTERRUPTED, "interrupted")
                else:
                    slot.fail(NOT_RUN, "skipped")
            if not slot.ended:
                events += [*(() if slot.started else (slot.start(),)), slot.end()]
        return events + self.take_ready_results()

    def _close_message(self, reason: str, message_text: str) -> list[AgentEvent]:
        partial_message = self.partial_message or PartialMessage()
        partial = partial_message.build()
        content = [part for part in partial.parts if not isinstance(part, ToolCall)]  # an incomplete call is no call
        message = Message(Role.ASSISTANT, content or "", stop_reason=reason, error_message=message_text)
        events: list[AgentEvent] = []
        if not partial_message.begun:
            events.append(MessageStartEvent(message=message))
        if not partial_message.has_reported_error:
            events.append(
                MessageUpdateEvent(message=message, assistant_message_event=StreamEvent.error_event(message_text))
            )
        results = self.result_messages()
        self.history.append(message)
        events += [
            MessageEndEvent(message=message),
            TurnEndEvent(message=message, tool_results=results),
            AgentEndEvent(messages=self.added),
        ]
        return events


_encode = json.JSONEncoder(sort_keys=True, default=str).encode


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def _describe_end(reason: str, error: BaseException | None) -> str:
    if error is None:
        return "the run was aborted"
    if isinstance(error, AgentError):
        return str(error)
    return f"{type(error).__name__}: {error}"
