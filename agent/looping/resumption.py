"""Pausing a run and resuming it: from a record to a paused run, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..types import AgentResponse, Message, Role
from .bill import Bill
from .journaling import digest
from .paused import PausedRun, RunNotes, open_turn, read_history, results_in
from .plan import Plan
from .record import Record, Slot
from .shapes import AgentMessage, read_message

_FACTS = ("provider", "model", "usage", "stop_reason", "latency_ms", "cost_estimate", "cost_source", "id", "request_id")


def pause_run(plan: Plan, record: Record) -> PausedRun:
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


def _notes(plan: Plan, record: Record) -> RunNotes:
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


def resume_record(paused: PausedRun) -> Record:
    """The record of a paused run, as it was when it paused. Raises ConfigurationError if it is inconsistent."""
    paused.check()
    notes = paused.notes
    record = Record(paused.run_id, *read_history(paused))
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
    return [one.changed(content=message.parts) for one, message in zip(facts, said[-paused.turn :], strict=True)]


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
