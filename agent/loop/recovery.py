"""Recovery: write runs to a journal and restore them from it, and convert paused runs to data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json, to_jsonable_python

from ..engine.flow import Flow, Invoke
from ..errors import AgentError, ConfigurationError
from ..tools.base import NestedTool
from ..types import AgentResponse, FrozenDict, Message, Role, ToolResult
from .events import AgentMessage, coerce_message, to_model_messages
from .hooks import RunCost, RunPlan, extract_cost
from .journal import JournalEntry, JournalError
from .results import PausedRun, RunNotes, WaitingCall, open_turn, read_history, results_in
from .run_state import RunState, Slot


@dataclass(frozen=True, slots=True)
class StartedCall:
    """A call that started before the run was interrupted."""

    arguments: Mapping[str, Any]
    is_nested: bool
    """Whether it is a sub-agent's run, which has its own entries."""


def find_started_call(state: RunState, slot: Slot) -> StartedCall | None:
    """Return the journal's start entry of a call, or None."""
    entry = state.journal_entries.get(f"begun:{slot.call.id}")
    return None if entry is None else StartedCall(entry["arguments"], entry.get("nested", False))


def restore(state: RunState, slot: Slot) -> None:
    """Restore a call's pending decision or its result from the journal."""
    waiting = state.journal_entries.get(f"waiting:{slot.call.id}")
    if waiting is not None and slot.waiting is None:
        slot.waiting = WaitingCall(id=slot.call.id, reason=waiting["reason"], kind=waiting["kind"])
    entry = state.journal_entries.get(f"ended:{slot.call.id}")
    if entry is None:
        return
    slot.restore(ToolResult.model_validate(entry["result"]), entry["outcome"], is_invalid=entry.get("misfit", False))
    for response in entry.get("spent", ())[slot.charges_before_resume :]:
        state.charge_nested(AgentResponse.model_validate(response))


def write_waiting(plan: RunPlan, state: RunState, slot: Slot) -> Flow[None]:
    """Write that a call waits, before the pause is reported: a restarted run must not execute it."""
    if plan.hooks.journal is None:
        return
    assert slot.waiting is not None
    data = {"reason": slot.waiting.reason, "kind": slot.waiting.kind}
    yield from _write(plan, state, f"waiting:{slot.call.id}", data)


def write_started(plan: RunPlan, state: RunState, slot: Slot) -> Flow[None]:
    """Write that a call is about to be executed."""
    if plan.hooks.journal is None:
        return
    assert slot.context is not None
    key = f"begun:{slot.call.id}"
    data = {"name": slot.call.name, "arguments": _to_json_data(slot.context.arguments)}
    if isinstance(slot.tool, NestedTool):
        data["nested"] = True
    if not (yield from _write(plan, state, key, data)) and key not in state.journal_entries:
        raise _conflict(state)


def write_ended(plan: RunPlan, state: RunState, slot: Slot) -> Flow[None]:
    """Write a call's result, before it is reported."""
    if plan.hooks.journal is None or slot.journaled:
        return
    assert slot.result is not None
    arguments = slot.context.arguments if slot.context is not None else slot.call.arguments
    data: dict[str, Any] = {
        "name": slot.call.name,
        "arguments": _to_json_data(arguments),
        "outcome": slot.outcome,
        "result": slot.result.model_dump(mode="json", exclude_none=True),
    }
    if slot.is_invalid:
        data["misfit"] = True
    if slot.charges:
        data["spent"] = [_dump_response(extract_cost(response)) for response in slot.charges]
    if not (yield from _write(plan, state, f"ended:{slot.call.id}", data)):
        raise _conflict(state)
    slot.journaled = True


def write_message(plan: RunPlan, state: RunState, message: AgentMessage) -> Flow[None]:
    """Write a user or custom message."""
    if plan.hooks.journal is None:
        return
    data = {"message": message.to_dict()} if isinstance(message, Message) else {"custom": _to_json_data(message)}
    yield from _write_next_message(plan, state, data)


def write_response(plan: RunPlan, state: RunState, response: AgentResponse) -> Flow[None]:
    """Write a model response, before its calls are executed."""
    if plan.hooks.journal is None:
        return
    data: dict[str, Any] = {"response": _dump_response(response)}
    if response.output is not None:
        data["output"] = _dump_output(plan, response.output)
    if misnamed := {slot.call.id: slot.raw_name for slot in state.slots if slot.raw_name != slot.call.name}:
        data["named"] = misnamed
    yield from _write_next_message(plan, state, data)


def _dump_response(response: AgentResponse) -> dict[str, Any]:
    return response.model_dump(mode="json", exclude_none=True, exclude={"text", "tool_calls", "output"})


def _write_next_message(plan: RunPlan, state: RunState, data: Mapping[str, Any]) -> Flow[None]:
    place = len(state.history) - state.start
    if not (yield from _write(plan, state, f"message:{place}", data)):
        raise _conflict(state)


def write_end(plan: RunPlan, state: RunState) -> Flow[None]:
    yield from _write(plan, state, "end", {})


# A run that goes on


def restore_run(plan: RunPlan, state: RunState) -> Flow[bool]:
    """Restore the state of an earlier run with this id. Return whether that run had ended."""
    if plan.hooks.journal is None:
        return False
    entries: Sequence[JournalEntry] = yield from _call_journal(plan, state, plan.hooks.journal.read, state.run_id)
    state.journal_entries = {entry.key: entry.data for entry in entries}
    request = {"digest": hash_request(plan, state)}
    recorded = state.journal_entries.get("request")
    if recorded is None:
        if not (yield from _write(plan, state, "request", request)):
            raise _conflict(state)
    elif recorded != request:
        raise ConfigurationError(
            f"The run {state.run_id!r} was started with a different request.",
            field="run_id",
            fix="Use a new run_id, or the original request.",
        )
    charge_parent = state.charge_parent
    if plan.is_retried:
        state.charge_parent = None  # the first attempt charged what the journal holds
    try:
        _restore_results(state)
        while (data := state.journal_entries.get(f"message:{len(state.history) - state.start + 1}")) is not None:
            _replay_message(plan, state, data)
    except (ValidationError, LookupError, TypeError) as error:
        raise JournalError(f"The journal of the run {state.run_id!r} cannot be read: {error}") from error
    finally:
        state.charge_parent = charge_parent
    return "end" in state.journal_entries


def hash_request(plan: RunPlan, state: RunState) -> str:
    """Return a digest of the system prompt, the earlier conversation and the prompts."""
    if not state.digest:
        messages = [message.to_dict() for message in to_model_messages([*state.history[: state.start], *plan.prompts])]
        text = repr((plan.request.system, messages))
        state.digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    return state.digest


def _replay_message(plan: RunPlan, state: RunState, data: Mapping[str, Any]) -> None:
    """Restore one message, and after a response the results of its calls."""
    if state.slots:  # a later message means that the calls of the turn are done
        state.track_progress()
        state.charge_nested_responses()
        state.slots = []
    if "response" in data:
        state.turn += 1
        state.add_response(_read_response(plan, data))
        for slot in state.slots:
            slot.raw_name = data.get("named", {}).get(slot.call.id, slot.raw_name)
        _restore_results(state)
    elif "message" in data:
        state.history.append(Message.from_dict(data["message"]))
    else:
        state.history.append(dict(data["custom"]))


def _restore_results(state: RunState) -> None:
    for slot in state.slots:
        if slot.result is None:
            restore(state, slot)
    state.take_ready_results()


def _read_response(plan: RunPlan, data: Mapping[str, Any]) -> AgentResponse:
    response = AgentResponse.model_validate(dict(data["response"]))
    if "output" not in data:
        return response
    adapter = _output_adapter(plan)
    try:
        output = data["output"] if adapter is None else adapter.validate_json(to_json(data["output"]))
    except ValidationError as error:
        raise ConfigurationError(
            "The recorded output does not match the schema.",
            field="schema",
            fix="Use the schema the run was started with.",
        ) from error
    return response.model_copy(update={"output": output})


def _dump_output(plan: RunPlan, output: Any) -> Any:
    adapter = _output_adapter(plan)
    if adapter is None:
        return _to_json_data(output)
    return adapter.dump_python(output, mode="json", by_alias=True, round_trip=True)


def _output_adapter(plan: RunPlan) -> TypeAdapter[Any] | None:
    schema = plan.request.output_schema
    if schema is None or isinstance(schema, FrozenDict):
        return None
    return schema if isinstance(schema, TypeAdapter) else TypeAdapter(schema)


# Reading and writing


def _to_json_data(value: Any) -> Any:
    """Convert any value to JSON data: hooks may put arbitrary objects into arguments."""
    return to_jsonable_python(value, fallback=str, bytes_mode="base64")


def _write(plan: RunPlan, state: RunState, key: str, data: Mapping[str, Any]) -> Flow[bool]:
    """Write an entry. Return False if it existed, from this run or from another process."""
    journal = plan.hooks.journal
    return (
        True
        if journal is None
        else bool((yield from _call_journal(plan, state, journal.write, state.run_id, key, data)))
    )


def _call_journal(plan: RunPlan, state: RunState, method: Any, *args: Any) -> Flow[Any]:
    try:
        return (yield from Invoke(method, args, blocking=True))
    except AgentError:
        raise
    except Exception as error:  # a custom journal may raise anything
        raise JournalError(
            f"The journal of the run {state.run_id!r} failed: {type(error).__name__}: {error}"
        ) from error


def _conflict(state: RunState) -> JournalError:
    return JournalError(f"Another process is continuing the run {state.run_id!r}.")


# Paused runs

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
