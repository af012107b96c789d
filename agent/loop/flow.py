"""The loop: call the model, execute its tool calls, add the results, repeat until it makes no calls.

One flow serves sync, async and simulated drivers. It emits the events of `agent.loop.events` and returns the result. A
failure is reported in the last events and then raised.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ..calls.requests import CALL_OPTIONS, REQUEST_OPTIONS, RequestLike, read_request
from ..engine.context import Call, Context, TurnRef
from ..engine.flow import Emit, Flow, Now, intercept
from ..errors import AgentError, BudgetExceededError, ConfigurationError
from ..tools.base import AgentToolResult, NestedTool, Nesting, Signal, Suspended, Tool, ToolContext, count_positional
from ..tools.functions import as_tool
from ..types import AgentRequest, AgentResponse, Message, Role, ToolLoopConfig, ToolSpec
from ..types._base import validate_with
from ..types.option_errors import check_options
from .events import (
    AgentEndEvent,
    AgentEvent,
    AgentMessage,
    LazyMessageUpdate,
    MessageEndEvent,
    MessageStartEvent,
    to_model_messages,
)
from .hooks import Hooks, RunPlan, call_hook, poll_messages
from .recovery import pause_run, restore_run, restore_state, write_end, write_message, write_response
from .results import PausedRun, RunResult
from .run_state import PartialMessage, RunState
from .tool_calls import run_calls

if TYPE_CHECKING:
    from ..base_client import BaseClient


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
        args = (list(messages), plan.signal) if count_positional(hooks.transform_context, 2) > 1 else (list(messages),)
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


# Preparation

_HOOKS = frozenset(field.name for field in fields(Hooks))
RUN_OPTIONS = _HOOKS | {"loop", "deps", "run_id", "history", "prompts"}
"""Options of `run` besides the fields of a request."""
_ALL_OPTIONS = REQUEST_OPTIONS | RUN_OPTIONS


def check_run_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for an unknown option of a run."""
    check_options(options, _ALL_OPTIONS, "A run", CALL_OPTIONS)


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A run that is ready to start, on any driver."""

    plan: RunPlan
    state: RunState
    deadline: float | None
    """Seconds for the whole run."""


def prepare_run(
    runner: BaseClient,
    request: RequestLike | PausedRun,
    options: Mapping[str, Any],
    *,
    streaming: bool,
    is_retried: bool = False,
) -> PreparedRun:
    """Read the request and the options, and raise their errors before anything is sent.

    The options `history` and `prompts` replace the messages and input of the request; they may hold custom roles.
    """
    check_run_options(options)
    run_options = {name: value for name, value in options.items() if name in RUN_OPTIONS}
    overrides = {name: value for name, value in options.items() if name not in RUN_OPTIONS}
    history, prompts = run_options.get("history"), run_options.get("prompts")
    config = _read_loop_config(run_options.get("loop"), runner.loop)
    own_hooks = {name: value for name, value in run_options.items() if name in _HOOKS and value is not None}
    hooks = runner.hooks or Hooks()
    if own_hooks:
        hooks = replace(hooks, **own_hooks)
    if isinstance(request, PausedRun):
        state = restore_state(request)
        agent_request = read_request(request.request, {**overrides, "messages": request.messages})
        new_messages: Sequence[AgentMessage] = ()
    else:
        agent_request = read_request(request, overrides)
        before = list(agent_request.messages) if history is None else list(history)
        new_messages = (
            prompts if prompts is not None else () if not agent_request.input else (Message.user(agent_request.input),)
        )
        state = RunState(run_options.get("run_id") or f"run_{os.urandom(8).hex()}", before, len(before))
        if history is not None or prompts is not None:
            agent_request = agent_request.model_copy(
                update={"input": None, "messages": to_model_messages([*before, *new_messages])}
            )
    prepared = runner._prepare(agent_request, {})
    plan = RunPlan(
        call_model=_create_model_call(runner._call(streaming=streaming), prepared),
        tools=_create_tool_lookup(runner, prepared),
        request=agent_request.copy_with(input=None, messages=()),
        config=config,
        hooks=hooks,
        deps=run_options.get("deps"),
        signal=Signal(),
        prompts=new_messages,
        is_retried=is_retried,
    )
    limits = [limit for limit in (prepared.deadline, config.time_budget) if limit is not None]
    return PreparedRun(plan, state, min(limits, default=None))


def _read_loop_config(value: Any, default: ToolLoopConfig) -> ToolLoopConfig:
    if value is None:
        return default
    if isinstance(value, ToolLoopConfig):
        return value
    if isinstance(value, Mapping):
        check_options(value, ToolLoopConfig.model_fields, "loop")
        return validate_with(lambda: default.model_copy(update=dict(value)))
    raise ConfigurationError(
        f"loop is a {type(value).__name__}.", field="loop", fix="Pass a ToolLoopConfig, or a dict of its fields."
    )


def _create_model_call(call: Call, prepared: AgentRequest) -> Any:
    forced = prepared.tool_choice not in (None, "auto", "none")

    def call_model(messages: Sequence[Message], turn: int, context: Context) -> Flow[AgentResponse]:
        changes: dict[str, Any] = {"input": None, "messages": tuple(messages)}
        if forced and turn > 1:
            changes["tool_choice"] = None  # a forced tool in every turn would never end
        return call(prepared.copy_with(**changes), context)

    return call_model


def _create_tool_lookup(runner: BaseClient, prepared: AgentRequest) -> Any:
    """Return a function that finds tools by name. A request's own tools win, unless they cannot run."""
    requested = _index_tools(prepared.tools)

    def tools(response: AgentResponse | None) -> Mapping[str, Tool]:
        own = _index_tools(runner.own_tools(response))
        if not own:
            return requested
        return {**own, **{name: tool for name, tool in requested.items() if tool.can_run or name not in own}}

    return tools


def _index_tools(tools: Sequence[Any]) -> dict[str, Tool]:
    return {tool.name: as_tool(tool) for tool in tools if isinstance(tool, ToolSpec | Tool)}


# Sub-agents

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
    def of(cls, runner: BaseClient, name: str, description: str, settings: Mapping[str, Any]) -> SubAgent:
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
