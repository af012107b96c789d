"""Preparing runs: read the request and options, or restore the state of a paused run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from ..calls.requests import CALL_OPTIONS, REQUEST_OPTIONS, RequestLike, read_request
from ..engine.context import Call, Context
from ..engine.flow import Flow
from ..errors import ConfigurationError
from ..tools.base import Signal, Tool
from ..tools.functions import as_tool
from ..types import AgentRequest, AgentResponse, Message, Role, ToolLoopConfig, ToolSpec
from ..types._base import validate_with
from ..types.option_errors import check_options
from .events import AgentMessage, coerce_message, to_model_messages
from .hooks import Hooks, RunCost, RunPlan
from .recovery import hash_request
from .results import PausedRun, RunNotes, open_turn, read_history, results_in
from .run_state import RunState, Slot

_FACTS = ("provider", "model", "usage", "stop_reason", "latency_ms", "cost_estimate", "cost_source", "id", "request_id")


def pause_run(plan: RunPlan, state: RunState) -> PausedRun:
    """Return everything needed to resume the run, as data."""
    open_slots = [slot for slot in state.slots if slot.result is None]
    return PausedRun(
        run_id=state.run_id,
        request=plan.request,
        messages=[message for message in state.history if isinstance(message, Message)],
        start=sum(isinstance(message, Message) for message in state.history[: state.start]),
        turn=state.turn,
        waiting=[slot.waiting for slot in open_slots if slot.waiting is not None],
        held=[slot.call.id for slot in open_slots if slot.waiting is None],
        verdicts={slot.call.id: slot.verdict for slot in open_slots if slot.waiting and slot.verdict},
        results=[slot.result for slot in state.slots[state.reported_results :] if slot.result is not None],
        usage=state.usage,
        known_cost=state.cost.dollars,
        costs_known=state.cost.known,
        attempts=state.attempts,
        answers=[
            AgentResponse.model_validate({name: getattr(answer, name) for name in _FACTS}) for answer in state.responses
        ],
        warnings=tuple(state.warnings),
        notes=_build_notes(plan, state),
    )


def _build_notes(plan: RunPlan, state: RunState) -> RunNotes:
    return RunNotes(
        digest=hash_request(plan, state),
        start=state.start,
        asides=[
            (place, dict(message)) for place, message in enumerate(state.history) if not isinstance(message, Message)
        ],
        outcomes={slot.call.id: slot.outcome for slot in state.slots if slot.result is not None},
        misfits=[slot.call.id for slot in state.slots if slot.is_invalid],
        repairs=state.repairs,
        repeats=state.repeats,
        steering=[_as_dict(message) for message in (*state.resumed_steering, *state.steered, *state.steering.take())],
        follow_ups=[_as_dict(message) for message in state.follow_ups.take()],
    )


def _as_dict(message: AgentMessage) -> dict[str, Any]:
    return message.to_dict() if isinstance(message, Message) else dict(message)


def restore_state(paused: PausedRun) -> RunState:
    """Restore the state of a paused run. Raise ConfigurationError if it is inconsistent."""
    paused.check()
    notes = paused.notes
    state = RunState(paused.run_id, *read_history(paused))
    state.turn = paused.turn
    state.usage = paused.usage
    state.cost = RunCost(paused.known_cost or 0.0, paused.costs_known)
    state.attempts = list(paused.attempts)
    state.warnings = dict.fromkeys(paused.warnings)
    state.digest = notes.digest
    state.repairs = notes.repairs
    state.repeats = dict(notes.repeats)
    state.responses = _restore_responses(paused)
    state.resumed_steering = [coerce_message(message) for message in notes.steering]
    for message in notes.follow_ups:
        state.follow_ups.put(coerce_message(message))
    place, _ = open_turn(paused.messages)
    answer = paused.messages[place]
    state.reported_results = len(results_in(paused.messages[place + 1 :]))
    state.slots = _restore_slots(paused, place)
    state.latest = AgentResponse(
        content=answer.parts, stop_reason="tool_calls", provider=answer.provider or "", model=answer.model or ""
    )
    return state


def _restore_responses(paused: PausedRun) -> list[AgentResponse]:
    messages = [message for message in paused.messages[paused.start :] if message.role is Role.ASSISTANT]
    facts: Sequence[AgentResponse] = paused.answers or [AgentResponse()] * paused.turn
    return [
        response.copy_with(content=message.parts)
        for response, message in zip(facts, messages[-paused.turn :], strict=True)
    ]


def _restore_slots(paused: PausedRun, place: int) -> list[Slot]:
    """Return the calls of the open turn with their results, reasons to wait and verdicts."""
    notes = paused.notes
    results = {result.tool_call_id: result for result in (*results_in(paused.messages[place + 1 :]), *paused.results)}
    waiting = {call.id: call for call in paused.waiting}
    slots: list[Slot] = []
    for call in paused.messages[place].tool_calls or ():
        slot = Slot(call, call.name, waiting=waiting.get(call.id), verdict=paused.verdicts.get(call.id))
        if slot.waiting is not None:
            slot.charges, slot.charges_before_resume = list(slot.waiting.spent), len(slot.waiting.spent)
        if (result := results.get(call.id)) is not None:
            slot.restore(result, notes.outcomes.get(call.id, "completed"), is_invalid=call.id in notes.misfits)
        slots.append(slot)
    return slots


_HOOKS = frozenset(field.name for field in fields(Hooks))
RUN_OPTIONS = _HOOKS | {"loop", "deps", "run_id", "history", "prompts"}
"""Options of `run` besides the fields of a request."""
_ALL_OPTIONS = REQUEST_OPTIONS | RUN_OPTIONS


class Runner(Protocol):
    """The interface of agents and routers that runs need."""

    hooks: Hooks | None

    @property
    def loop(self) -> ToolLoopConfig: ...

    def _select(self, options: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]: ...

    def _prepare(self, request: RequestLike, overrides: Mapping[str, Any]) -> AgentRequest: ...

    def _call(self, *, streaming: bool) -> Call: ...

    def own_tools(self, response: AgentResponse | None) -> Sequence[Any]: ...


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
    runner: Runner,
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


def _create_tool_lookup(runner: Runner, prepared: AgentRequest) -> Any:
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
