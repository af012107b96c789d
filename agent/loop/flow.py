"""The loop: call the model, execute its tool calls, add the results, repeat until it makes no calls.

One flow serves sync, async and simulated drivers. It emits the events of `agent.loop.events` and returns the result. A
failure is reported in the last events and then raised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from typing_extensions import override

from ..engine.context import Context, TurnRef
from ..engine.flow import Emit, Flow, Now, intercept
from ..errors import AgentError, BudgetExceededError, ConfigurationError
from ..tools.base import AgentToolResult, NestedTool, Nesting, Suspended, Tool, ToolContext
from ..types import Message, Role
from .events import (
    AgentEndEvent,
    AgentEvent,
    AgentMessage,
    LazyMessageUpdate,
    MessageEndEvent,
    MessageStartEvent,
    to_model_messages,
)
from .hooks import RunPlan, accepts_signal, call_hook, poll_messages
from .recovery import restore_run, write_end, write_message, write_response
from .results import RunResult
from .run_state import PartialMessage, RunState
from .setup import Runner, check_run_options, pause_run, prepare_run
from .tool_calls import run_calls


class _WaitsForApproval(Exception):
    """Leaves the turn loop when calls wait for a decision."""


def run_loop(plan: RunPlan, state: RunState, context: Context) -> Flow[RunResult]:
    """Run to the end, or until a call waits for a decision."""
    state.started_at = yield from Now()
    try:
        if not (yield from restore_run(plan, state)):
            yield from _start_turn(plan, state, plan.prompts[len(state.added) :])  # the rest was read from the journal
            yield from _run_turns(plan, state, context)
            yield from write_end(plan, state)
    except _WaitsForApproval:
        return (yield from _pause_run(plan, state))
    except Exception as error:
        if isinstance(error, AgentError):
            state.charge_failed_attempts(error)
        yield Emit(state.close("error", error))
        if isinstance(error, AgentError):
            error.result = state.result(now=(yield from Now()), stop_reason="error")
            error.attempts = error.result.route
        raise
    state.ended = True
    yield Emit([*state.start_run(), AgentEndEvent(messages=state.added)])
    return state.result(now=(yield from Now()))


def _run_turns(plan: RunPlan, state: RunState, context: Context) -> Flow[None]:
    """Run turns until the model makes no calls and no messages are queued."""
    if not _is_waiting_for_calls(state):
        yield from _call_model(plan, state, context)
    while True:
        yield from _finish_turn(plan, state, context)
        messages: list[AgentMessage] = [*state.resumed_steering, *state.steered, *state.steering.take()]
        state.resumed_steering, state.steered = [], []
        messages += yield from poll_messages("get_steering_messages", plan.hooks.get_steering_messages)
        if not messages and not _needs_model_call(state):
            messages = state.follow_ups.take()
            messages += yield from poll_messages("get_follow_up_messages", plan.hooks.get_follow_up_messages)
            if not messages:
                return
        _check_budgets(plan, state)
        yield from _start_turn(plan, state, messages)
        yield from _call_model(plan, state, context)


def _is_waiting_for_calls(state: RunState) -> bool:
    """Whether a resumed run stopped after a response: its tool calls, or its end, come next."""
    last = state.history[-1] if state.turn else None
    return isinstance(last, Message) and last.role in (Role.ASSISTANT, Role.TOOL)


def _needs_model_call(state: RunState) -> bool:
    """Whether tool results are to be sent, or the vendor paused the response."""
    assert state.latest is not None
    return bool(state.slots) or state.latest.stop_reason == "pause"


def _start_turn(plan: RunPlan, state: RunState, messages: Sequence[AgentMessage]) -> Flow[None]:
    """Start a turn with these messages."""
    for message in messages:
        state.pending_events += state.append_messages(message)
        yield from write_message(plan, state, message)
    yield Emit([*state.start_turn(), *state.take_events()])


def _call_model(plan: RunPlan, state: RunState, context: Context) -> Flow[None]:
    """Call the model and add its response."""
    messages = yield from _prepare_messages(plan, state)
    state.turn += 1
    state.slots = []
    state.partial_message = partial_message = PartialMessage()
    model_context = Context(
        deadline=context.deadline,
        origin=state.started_at,
        run=TurnRef(state.run_id, state.turn),
        user_context=context.user_context,
    )
    response = yield from intercept(
        plan.call_model(messages, state.turn, model_context), lambda emit: _forward_stream_events(partial_message, emit)
    )
    message = state.add_response(response)
    state.partial_message = None
    assert state.latest is not None
    begun: list[AgentEvent] = [] if partial_message.begun else [MessageStartEvent(message=message)]
    state.pending_events = [*begun, MessageEndEvent(message=message)]
    yield from write_response(plan, state, state.latest)
    yield Emit(state.take_events())


def _prepare_messages(plan: RunPlan, state: RunState) -> Flow[Sequence[Message]]:
    """Return the messages to send, after the context hooks."""
    messages: Sequence[AgentMessage] = state.history
    hooks = plan.hooks
    if hooks.transform_context is not None:
        args = (list(messages), plan.signal) if accepts_signal(hooks.transform_context) else (list(messages),)
        messages = yield from call_hook("transform_context", hooks.transform_context, *args)
    if hooks.convert_to_llm is not None:
        converted = yield from call_hook("convert_to_llm", hooks.convert_to_llm, list(messages))
        return [message if isinstance(message, Message) else Message.from_dict(message) for message in converted]
    return to_model_messages(messages)


def _forward_stream_events(partial_message: PartialMessage, emit: Emit) -> Flow[None]:
    """Emit the stream events of a response as run events."""
    events: list[AgentEvent] = []
    for event in emit.events:
        partial_message.add(event)
        if not partial_message.begun:
            partial_message.begun = True
            events.append(MessageStartEvent(message=partial_message.build()))
        if event.type not in ("message_start", "message_end"):
            events.append(LazyMessageUpdate(event, partial_message.build))
    if events:
        yield Emit(events)


def _finish_turn(plan: RunPlan, state: RunState, context: Context) -> Flow[None]:
    """Execute the tool calls of the turn, and end it."""
    if state.slots:
        _check_budgets(plan, state)
        yield from run_calls(plan, state, context)
        state.charge_nested_responses()
        if any(slot.is_undecided for slot in state.slots):
            raise _WaitsForApproval
    yield Emit(state.end_turn())


def _check_budgets(plan: RunPlan, state: RunState) -> None:
    """Raise BudgetExceededError if the model may not be called again. No tool is executed then either."""
    config = plan.config
    if state.turn >= config.max_iterations:
        raise BudgetExceededError(f"The run reached max_iterations: {state.turn} model calls.")
    tokens = state.usage.total_tokens if state.usage is not None else 0
    if config.token_budget is not None and tokens >= config.token_budget:
        raise BudgetExceededError(f"The run exceeded token_budget: {tokens} of {config.token_budget} tokens.")
    if config.cost_budget is None:
        return
    if state.cost.dollars >= config.cost_budget:
        raise BudgetExceededError(
            f"The run exceeded cost_budget: ${state.cost.dollars:.4f} of ${config.cost_budget:.4f}."
        )
    if not state.cost.known:
        state.warnings["the price of some responses is unknown; cost_budget does not include them"] = None


def _pause_run(plan: RunPlan, state: RunState) -> Flow[RunResult]:
    state.charge_nested_responses()
    state.ended = True
    paused = pause_run(plan, state)
    yield Emit([*state.end_turn(), AgentEndEvent(messages=state.added)])
    return state.result(now=(yield from Now()), stop_reason="pause", paused=paused)


_SETTINGS = frozenset(field.name for field in fields(Tool))
_TASK = {
    "type": "object",
    "properties": {"task": {"type": "string", "description": "The task, with everything needed to do it."}},
    "required": ["task"],
    "additionalProperties": False,
}


@dataclass
class SubAgent(NestedTool):
    """A tool that runs another agent."""

    runner: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, runner: Runner, name: str, description: str, settings: Mapping[str, Any]) -> SubAgent:
        own = {key: value for key, value in settings.items() if key in _SETTINGS}
        options = {key: value for key, value in settings.items() if key not in _SETTINGS}
        if "isolation" in own:
            raise ConfigurationError(
                "A sub-agent cannot be isolated: it is part of the run.", field="isolation", fix="Remove it."
            )
        own = {"parameters": _TASK, "risk": "network", "timeout": 600.0, **own}
        client, rest = runner._select(options)
        check_run_options(rest)
        return cls(name, description, **own, runner=client, options=rest)

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
        """Run the other agent as part of this run; report its events as partial results.

        A sub-agent without its own journal writes to its parent's journal, and pauses with its parent.
        """
        nesting: Nesting = context.nesting or Nesting(Context())
        options = self._options(context)
        if nesting.journal is not None and (self.runner.hooks is None or self.runner.hooks.journal is None):
            options.setdefault("journal", nesting.journal)
        request = nesting.paused or _task(arguments)
        run = prepare_run(self.runner, request, options, streaming=False, is_retried=nesting.is_retried())
        run.state.charge_parent = context.account
        deadline = nesting.context.deadline
        result: RunResult = yield from intercept(
            run_loop(run.plan, run.state, Context(deadline=deadline)), _report_as_progress
        )
        return Suspended(result.paused) if result.paused is not None and context.nesting else _to_tool_output(result)

    @override
    async def run(self, arguments: Any, context: ToolContext[Any]) -> Any:
        """Run the agent outside a run, such as behind an MCP server."""
        return _to_tool_output(await self.runner.arun(_task(arguments), **self._options(context)))

    def _options(self, context: ToolContext[Any]) -> dict[str, Any]:
        return {"deps": context.deps, "run_id": f"{context.run_id}/{context.call_id}", **self.options}


def _task(arguments: Mapping[str, Any]) -> str:
    if set(arguments) == {"task"}:
        return str(arguments["task"])
    return "\n".join(f"{name}: {value}" for name, value in arguments.items())


def _report_as_progress(emit: Emit) -> Flow[None]:
    yield Emit([AgentToolResult(content=[], details={"event": event}) for event in emit.events])


def _to_tool_output(result: RunResult) -> Any:
    if result.paused is not None:
        waiting = ", ".join(call.name for call in result.paused.pending)
        return AgentToolResult(f"The agent waits for approval of: {waiting}.", is_error=True)
    return result.output if result.output is not None else result.text or ""
