"""The loop itself: ask the model, make the calls it wants, tell it what came of them, until it has nothing to ask for.

One flow for every way to run it. It emits the events of `agent.loop.events` and returns the result; what goes wrong
is told as the last events of the story, and then raised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from typing_extensions import override

from ..engine.context import Context, RunTurn
from ..engine.flow import Emit, Flow, Now, intercept
from ..errors import AgentError, BudgetExceededError, ConfigurationError
from ..tools.base import AgentToolResult, NestedTool, Nesting, Suspended, Tool, ToolContext
from ..types import AgentResponse, Message, Role, Route
from .events import (
    AgentEndEvent,
    AgentEvent,
    AgentMessage,
    LiveUpdate,
    MessageEndEvent,
    MessageStartEvent,
    to_model_messages,
)
from .hooks import RunPlan, heard, messages_from, takes_second
from .recovery import note_answer, note_end, note_message, restored
from .results import RunResult
from .run_state import RunState, Speaking
from .setup import Runner, pause_run, prepare_run
from .tool_calls import run_calls


class _Waits(Exception):
    """Calls wait for a person. Internal: it only leaves the loops."""


def run_loop(plan: RunPlan, record: RunState, context: Context) -> Flow[RunResult]:
    """Run to the end, or to the point where a person has to decide."""
    record.began = yield from Now()
    try:
        if not (yield from restored(plan, record)):
            yield from _said(plan, record, plan.prompts[len(record.added) :])  # those that no journal holds already
            yield from _turns(plan, record, context)
            yield from note_end(plan, record)
    except _Waits:
        return (yield from _paused(plan, record))
    except Exception as error:
        if isinstance(error, AgentError):
            record.account_for(error)
        yield Emit(record.closing("error", error))
        if isinstance(error, AgentError):
            error.result = record.result(now=(yield from Now()), stop_reason="error")
            error.attempts = error.result.route
        raise
    record.over = True
    yield Emit([*record.run_begins(), AgentEndEvent(messages=record.added)])
    return record.result(now=(yield from Now()))


def _turns(plan: RunPlan, record: RunState, context: Context) -> Flow[None]:
    """Turn after turn; when there is nothing left to do, whatever was kept for that moment."""
    if not _has_answered(record):
        yield from _spoken(plan, record, context)
    while True:
        yield from _acted(plan, record, context)
        said: list[AgentMessage] = [*record.unsaid, *record.steered, *record.steering.take()]
        record.unsaid, record.steered = [], []
        said += yield from messages_from("get_steering_messages", plan.hooks.get_steering_messages)
        if not said and not _goes_on(record):
            said = record.follow_ups.take()
            said += yield from messages_from("get_follow_up_messages", plan.hooks.get_follow_up_messages)
            if not said:
                return
        _check_budgets(plan, record)
        yield from _said(plan, record, said)
        yield from _spoken(plan, record, context)


def _has_answered(record: RunState) -> bool:
    """Whether a run that is taken up again stopped behind an answer: its calls, or its end, come next."""
    last = record.history[-1] if record.turn else None
    return isinstance(last, Message) and last.role in (Role.ASSISTANT, Role.TOOL)


def _goes_on(record: RunState) -> bool:
    """Whether the model expects to be asked again: its calls have results, or its vendor took a break."""
    assert record.latest is not None
    return bool(record.slots) or record.latest.stop_reason == "pause"


def _said(plan: RunPlan, record: RunState, messages: Sequence[AgentMessage]) -> Flow[None]:
    """Begin a turn, with what somebody says in it."""
    for message in messages:
        record.untold += record.say(message)
        yield from note_message(plan, record, message)
    yield Emit([*record.turn_begins(), *record.news()])


def _spoken(plan: RunPlan, record: RunState, context: Context) -> Flow[None]:
    """Ask the model, and take in what it says."""
    messages = yield from _prepare_messages(plan, record)
    record.turn += 1
    record.slots = []
    record.speaking = speaking = Speaking()
    asked = Context(
        deadline=context.deadline, run=RunTurn(record.run_id, record.turn), user_context=context.user_context
    )
    started = yield from Now()
    response = yield from intercept(
        plan.call_model(messages, record.turn, asked), lambda emit: _passed_on(speaking, emit)
    )
    message = record.hear(_placed(response, started - record.began))
    record.speaking = None
    assert record.latest is not None
    begun: list[AgentEvent] = [] if speaking.begun else [MessageStartEvent(message=message)]
    record.untold = [*begun, MessageEndEvent(message=message)]
    yield from note_answer(plan, record, record.latest)
    yield Emit(record.news())


def _placed(response: AgentResponse, offset: float) -> AgentResponse:
    """Its attempts are told from the beginning of the run."""
    if not response.route or offset <= 0:
        return response
    moved = [attempt.copy_with(started=(attempt.started or 0.0) + offset) for attempt in response.route]
    return response.copy_with(route=Route(moved, response.route.candidates))


def _prepare_messages(plan: RunPlan, record: RunState) -> Flow[Sequence[Message]]:
    """The conversation as the model gets it."""
    messages: Sequence[AgentMessage] = record.history
    hooks = plan.hooks
    if hooks.transform_context is not None:
        given = (list(messages), plan.signal) if takes_second(hooks.transform_context) else (list(messages),)
        messages = yield from heard("transform_context", hooks.transform_context, *given)
    if hooks.convert_to_llm is not None:
        converted = yield from heard("convert_to_llm", hooks.convert_to_llm, list(messages))
        return [message if isinstance(message, Message) else Message.from_dict(message) for message in converted]
    return to_model_messages(messages)


def _passed_on(speaking: Speaking, emit: Emit) -> Flow[None]:
    """What the model streams, as events of the run."""
    events: list[AgentEvent] = []
    for event in emit.events:
        speaking.add(event)
        if not speaking.begun:
            speaking.begun = True
            events.append(MessageStartEvent(message=speaking.so_far()))
        if event.type not in ("message_start", "message_end"):
            events.append(LiveUpdate(event, speaking.so_far))
    if events:
        yield Emit(events)


def _acted(plan: RunPlan, record: RunState, context: Context) -> Flow[None]:
    """Make the calls of the turn, and end it."""
    if record.slots:
        _check_budgets(plan, record)
        yield from run_calls(plan, record, context)
        record.settle()
        if any(slot.is_undecided for slot in record.slots):
            raise _Waits
    yield Emit(record.turn_ends())


def _check_budgets(plan: RunPlan, record: RunState) -> None:
    """Nothing is done whose result nobody would see: a run that may not ask again makes no more calls."""
    config = plan.config
    if record.turn >= config.max_iterations:
        raise BudgetExceededError(f"The model was asked {record.turn} times without coming to an end (max_iterations).")
    tokens = record.usage.total_tokens if record.usage is not None else 0
    if config.token_budget is not None and tokens >= config.token_budget:
        raise BudgetExceededError(f"The run used {tokens} tokens of {config.token_budget} (token_budget).")
    if config.cost_budget is None:
        return
    if record.bill.cost >= config.cost_budget:
        raise BudgetExceededError(f"The run cost ${record.bill.cost:.4f} of ${config.cost_budget:.4f} (cost_budget).")
    if not record.bill.known:
        record.warnings["what some answers cost is not known, so cost_budget did not see them"] = None


def _paused(plan: RunPlan, record: RunState) -> Flow[RunResult]:
    record.settle()
    record.over = True
    paused = pause_run(plan, record)
    yield Emit([*record.turn_ends(), AgentEndEvent(messages=record.added)])
    return record.result(now=(yield from Now()), stop_reason="pause", paused=paused)


_SETTINGS = frozenset(field.name for field in fields(Tool))
_TASK = {
    "type": "object",
    "properties": {"task": {"type": "string", "description": "What to do, with everything needed to do it."}},
    "required": ["task"],
    "additionalProperties": False,
}


@dataclass
class SubAgent(NestedTool):
    """A tool that asks another agent."""

    runner: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, runner: Runner, name: str, description: str, settings: Mapping[str, Any]) -> SubAgent:
        own = {key: value for key, value in settings.items() if key in _SETTINGS}
        options = {key: value for key, value in settings.items() if key not in _SETTINGS}
        if "isolation" in own:
            raise ConfigurationError("A sub-agent is part of its caller's run.", field="isolation", fix="Leave it out.")
        own = {"parameters": _TASK, "risk": "network", "timeout": 600.0, **own}
        return cls(name, description, **own, runner=runner, options=options)

    @property
    @override
    def is_async(self) -> bool:
        return True

    @property
    @override
    def can_run(self) -> bool:
        return True

    @override
    def steps(self, arguments: Any, context: ToolContext[Any]) -> Flow[Any]:
        """The run of the other agent, as part of this one. What it does is shown as partial results.

        It shares the journal of its caller unless it has one of its own, and pauses with it.
        """
        nesting: Nesting = context.nesting or Nesting(Context())
        options = self._options(context)
        if nesting.journal is not None and (self.runner.hooks is None or self.runner.hooks.journal is None):
            options.setdefault("journal", nesting.journal)
        request = nesting.paused or _task(arguments)
        run = prepare_run(self.runner, request, options, streaming=False, is_retried=nesting.is_retried())
        run.record.bill_caller = context.account
        deadline = nesting.context.deadline
        result: RunResult = yield from intercept(
            run_loop(run.plan, run.record, Context(deadline=deadline)), _report_as_progress
        )
        return Suspended(result.paused) if result.paused is not None and context.nesting else _answer(result)

    @override
    async def run(self, arguments: Any, context: ToolContext[Any]) -> Any:
        """Outside a run of ours, such as behind an MCP server."""
        return _answer(await self.runner.arun(_task(arguments), **self._options(context)))

    def _options(self, context: ToolContext[Any]) -> dict[str, Any]:
        return {"deps": context.deps, "run_id": f"{context.run_id}/{context.call_id}", **self.options}


def _task(arguments: Mapping[str, Any]) -> str:
    if set(arguments) == {"task"}:
        return str(arguments["task"])
    return "\n".join(f"{name}: {value}" for name, value in arguments.items())


def _report_as_progress(emit: Emit) -> Flow[None]:
    yield Emit([AgentToolResult(content=[], details={"event": event}) for event in emit.events])


def _answer(result: RunResult) -> Any:
    if result.paused is not None:
        waiting = ", ".join(call.name for call in result.paused.pending)
        return AgentToolResult(f"The agent waits for a person to approve: {waiting}.", is_error=True)
    return result.output if result.output is not None else result.text or ""
