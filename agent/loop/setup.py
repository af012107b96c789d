"""From what a caller passes to a run: the request, the options, the tools, and where it begins.

It knows agents and routers only by the few things it asks of them, so that both run the same loop.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

from ..calls.requests import RequestLike, read_request
from ..engine.context import Call, Context
from ..engine.flow import Flow
from ..errors import ConfigurationError
from ..tools.base import Signal, Tool
from ..tools.functions import as_tool
from ..types import AgentRequest, AgentResponse, Message, Role, ToolLoopConfig, ToolSpec
from .events import AgentMessage, read_message, to_model_messages
from .hooks import Bill, Hooks, RunPlan
from .recovery import digest
from .results import PausedRun, RunNotes, open_turn, read_history, results_in
from .run_state import RunState, Slot

_FACTS = ("provider", "model", "usage", "stop_reason", "latency_ms", "cost_estimate", "cost_source", "id", "request_id")


def pause_run(plan: RunPlan, record: RunState) -> PausedRun:
    """Everything that is needed to resume the run, as data."""
    open_slots = [slot for slot in record.slots if slot.result is None]
    return PausedRun(
        run_id=record.run_id,
        request=plan.request,
        messages=[message for message in record.history if isinstance(message, Message)],
        start=sum(isinstance(message, Message) for message in record.history[: record.start]),
        turn=record.turn,
        waiting=[slot.waiting for slot in open_slots if slot.waiting is not None],
        held=[slot.call.id for slot in open_slots if slot.waiting is None],
        verdicts={slot.call.id: slot.verdict for slot in open_slots if slot.waiting and slot.verdict},
        results=[slot.result for slot in record.slots[record.told_results :] if slot.result is not None],
        usage=record.usage,
        cost=record.bill.cost,
        costs_known=record.bill.known,
        attempts=record.attempts,
        answers=[
            AgentResponse.model_validate({name: getattr(answer, name) for name in _FACTS})
            for answer in record.responses
        ],
        warnings=tuple(record.warnings),
        notes=_notes(plan, record),
    )


def _notes(plan: RunPlan, record: RunState) -> RunNotes:
    return RunNotes(
        digest=digest(plan, record),
        start=record.start,
        asides=[
            (place, dict(message)) for place, message in enumerate(record.history) if not isinstance(message, Message)
        ],
        outcomes={slot.call.id: slot.outcome for slot in record.slots if slot.result is not None},
        misfits=[slot.call.id for slot in record.slots if slot.misfit],
        repairs=record.repairs,
        repeats=record.repeats,
        steering=[_as_dict(message) for message in (*record.unsaid, *record.steered, *record.steering.take())],
        follow_ups=[_as_dict(message) for message in record.follow_ups.take()],
    )


def _as_dict(message: AgentMessage) -> dict[str, Any]:
    return message.to_dict() if isinstance(message, Message) else dict(message)


def resume_record(paused: PausedRun) -> RunState:
    """The record of a paused run, as it was when it paused. Raises ConfigurationError if it is inconsistent."""
    paused.check()
    notes = paused.notes
    record = RunState(paused.run_id, *read_history(paused))
    record.turn = paused.turn
    record.usage = paused.usage
    record.bill = Bill.brought_forward(paused.cost or 0.0, known=paused.costs_known)
    record.attempts = list(paused.attempts)
    record.warnings = dict.fromkeys(paused.warnings)
    record.digest = notes.digest
    record.repairs = notes.repairs
    record.repeats = dict(notes.repeats)
    record.responses = _responses(paused)
    record.unsaid = [read_message(message) for message in notes.steering]
    for message in notes.follow_ups:
        record.follow_ups.put(read_message(message))
    place, _ = open_turn(paused.messages)
    answer = paused.messages[place]
    record.told_results = len(results_in(paused.messages[place + 1 :]))
    record.slots = _open_slots(paused, place)
    record.latest = AgentResponse(
        content=answer.parts, stop_reason="tool_calls", provider=answer.provider or "", model=answer.model or ""
    )
    return record


def _responses(paused: PausedRun) -> list[AgentResponse]:
    said = [message for message in paused.messages[paused.start :] if message.role is Role.ASSISTANT]
    facts: Sequence[AgentResponse] = paused.answers or [AgentResponse()] * paused.turn
    return [one.copy_with(content=message.parts) for one, message in zip(facts, said[-paused.turn :], strict=True)]


def _open_slots(paused: PausedRun, place: int) -> list[Slot]:
    """The calls of the turn in which the run paused, with their results, reasons to wait and verdicts."""
    notes = paused.notes
    results = {one.tool_call_id: one for one in (*results_in(paused.messages[place + 1 :]), *paused.results)}
    waiting = {one.id: one for one in paused.waiting}
    slots: list[Slot] = []
    for call in paused.messages[place].tool_calls or ():
        slot = Slot(call, call.name, waiting=waiting.get(call.id), verdict=paused.verdicts.get(call.id))
        if slot.waiting is not None:
            slot.spent, slot.spent_before = list(slot.waiting.spent), len(slot.waiting.spent)
        if (result := results.get(call.id)) is not None:
            slot.recall(result, notes.outcomes.get(call.id, "completed"), misfit=call.id in notes.misfits)
        slots.append(slot)
    return slots


_HOOKS = frozenset(field.name for field in fields(Hooks))
RUN_OPTIONS = _HOOKS | {"loop", "deps", "run_id", "history", "prompts"}
"""What `run` takes besides the fields of a request."""


class Runner(Protocol):
    """What a run asks of an agent or a router."""

    hooks: Hooks | None

    @property
    def loop(self) -> ToolLoopConfig: ...

    def _prepare(self, request: RequestLike, overrides: Mapping[str, Any]) -> AgentRequest: ...

    def _call(self, *, streaming: bool) -> Call: ...

    def own_tools(self, response: AgentResponse | None) -> Sequence[Any]: ...


class PreparedRun:
    """A run that can be started once, by whichever driver."""

    __slots__ = ("deadline", "plan", "record")

    def __init__(self, plan: RunPlan, record: RunState, deadline: float | None) -> None:
        self.plan = plan
        self.record = record
        self.deadline = deadline
        """Seconds for the whole of it."""


def prepare_run(
    runner: Runner,
    request: RequestLike | PausedRun,
    options: Mapping[str, Any],
    *,
    streaming: bool,
    is_retried: bool = False,
) -> PreparedRun:
    """Make a run ready. What is wrong with the request is raised here, before anything is sent.

    The options `history` and `prompts` stand for the request's messages and input where these hold more than a request
    can: messages with roles of their own.
    """
    run_options = {name: value for name, value in options.items() if name in RUN_OPTIONS}
    overrides = {name: value for name, value in options.items() if name not in RUN_OPTIONS}
    history, prompts = run_options.get("history"), run_options.get("prompts")
    config = _config(run_options.get("loop"), runner.loop)
    hooks = _hooks(runner.hooks or Hooks(), run_options)
    if isinstance(request, PausedRun):
        record = resume_record(request)
        asked = read_request(request.request, {**overrides, "messages": request.messages})
        said: Sequence[AgentMessage] = ()
    else:
        asked = read_request(request, overrides)
        before = list(asked.messages) if history is None else list(history)
        said = prompts if prompts is not None else () if not asked.input else (Message.user(asked.input),)
        record = RunState(run_options.get("run_id") or f"run_{os.urandom(8).hex()}", before, len(before))
        if history is not None or prompts is not None:
            asked = asked.model_copy(update={"input": None, "messages": to_model_messages([*before, *said])})
    prepared = runner._prepare(asked, {})
    plan = RunPlan(
        call_model=_asking(runner._call(streaming=streaming), prepared),
        tools=_toolbox(runner, prepared),
        request=asked.copy_with(input=None, messages=()),
        config=config,
        hooks=hooks,
        deps=run_options.get("deps"),
        signal=Signal(),
        prompts=said,
        is_retried=is_retried,
    )
    limits = [limit for limit in (prepared.deadline, config.time_budget) if limit is not None]
    return PreparedRun(plan, record, min(limits, default=None))


def _config(given: Any, own: ToolLoopConfig) -> ToolLoopConfig:
    if given is None:
        return own
    if isinstance(given, ToolLoopConfig):
        return given
    if isinstance(given, Mapping):
        return own.model_copy(update=dict(given))
    raise ConfigurationError(
        f"loop is a {type(given).__name__}.", field="loop", fix="Pass a ToolLoopConfig, or a dict of its fields."
    )


def _hooks(own: Hooks, options: Mapping[str, Any]) -> Hooks:
    given = {name: value for name, value in options.items() if name in _HOOKS and value is not None}
    return replace(own, **given) if given else own


def _asking(call: Call, prepared: AgentRequest) -> Any:
    forced = prepared.tool_choice not in (None, "auto", "none")

    def ask(messages: Sequence[Message], turn: int, context: Context) -> Flow[AgentResponse]:
        changes: dict[str, Any] = {"input": None, "messages": tuple(messages)}
        if forced and turn > 1:
            changes["tool_choice"] = None  # a tool that must be called in every turn would be called for ever
        return call(prepared.copy_with(**changes), context)

    return ask


def _toolbox(runner: Runner, prepared: AgentRequest) -> Any:
    """The tools that can be called, by name. A request's own go first, unless they are mere descriptions."""
    requested = _by_name(prepared.tools)

    def tools(response: AgentResponse | None) -> Mapping[str, Tool]:
        own = _by_name(runner.own_tools(response))
        if not own:
            return requested
        return {**own, **{name: tool for name, tool in requested.items() if tool.can_run or name not in own}}

    return tools


def _by_name(tools: Sequence[Any]) -> dict[str, Tool]:
    return {tool.name: as_tool(tool) for tool in tools if isinstance(tool, ToolSpec | Tool)}
