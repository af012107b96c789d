"""A run and its journal: what is written when, and how a run that was cut short finds its place again."""

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
from ..types import AgentResponse, FrozenDict, Message, ToolResult
from .events import AgentMessage, to_model_messages
from .hooks import RunPlan, bill_of
from .journal import JournalEntry, JournalError
from .results import WaitingCall
from .run_state import RunState, Slot


@dataclass(frozen=True, slots=True)
class Beginning:
    """How a call began in an earlier life of the run."""

    arguments: Mapping[str, Any]
    is_nested: bool
    """Whether it is the run of a sub-agent, which has entries of its own."""


def begun_before(record: RunState, slot: Slot) -> Beginning | None:
    """How a call began before the run was cut short; None if it did not begin."""
    begun = record.known.get(f"begun:{slot.call.id}")
    return None if begun is None else Beginning(begun["arguments"], begun.get("nested", False))


def recall(record: RunState, slot: Slot) -> None:
    """Restore from the journal that a call waits, or the result of one that ended."""
    waiting = record.known.get(f"waiting:{slot.call.id}")
    if waiting is not None and slot.waiting is None:
        slot.waiting = WaitingCall(id=slot.call.id, reason=waiting["reason"], kind=waiting["kind"])
    ended = record.known.get(f"ended:{slot.call.id}")
    if ended is None:
        return
    slot.recall(ToolResult.model_validate(ended["result"]), ended["outcome"], misfit=ended.get("misfit", False))
    for answer in ended.get("spent", ())[slot.spent_before :]:
        record.charge_elsewhere(AgentResponse.model_validate(answer))


def note_waiting(plan: RunPlan, record: RunState, slot: Slot) -> Flow[None]:
    """RunState that a call waits, before the pause is reported: a restarted run must not execute it."""
    if plan.hooks.journal is None:
        return
    assert slot.waiting is not None
    data = {"reason": slot.waiting.reason, "kind": slot.waiting.kind}
    yield from _written(plan, record, f"waiting:{slot.call.id}", data)


def begin(plan: RunPlan, record: RunState, slot: Slot) -> Flow[None]:
    """Write down that a call is about to be made."""
    if plan.hooks.journal is None:
        return
    assert slot.context is not None
    key = f"begun:{slot.call.id}"
    data = {"name": slot.call.name, "arguments": _plain(slot.context.arguments)}
    if isinstance(slot.tool, NestedTool):
        data["nested"] = True
    if not (yield from _written(plan, record, key, data)) and key not in record.known:
        raise _somebody_else(record)


def finish(plan: RunPlan, record: RunState, slot: Slot) -> Flow[None]:
    """Write down what a call came to, before anybody is told."""
    if plan.hooks.journal is None or slot.noted:
        return
    assert slot.result is not None
    arguments = slot.context.arguments if slot.context is not None else slot.call.arguments
    data: dict[str, Any] = {
        "name": slot.call.name,
        "arguments": _plain(arguments),
        "outcome": slot.outcome,
        "result": slot.result.model_dump(mode="json", exclude_none=True),
    }
    if slot.misfit:
        data["misfit"] = True
    if slot.spent:
        data["spent"] = [_dump_response(bill_of(answer)) for answer in slot.spent]
    if not (yield from _written(plan, record, f"ended:{slot.call.id}", data)):
        raise _somebody_else(record)
    slot.noted = True


def note_message(plan: RunPlan, record: RunState, message: AgentMessage) -> Flow[None]:
    """Write down what somebody has just said."""
    if plan.hooks.journal is None:
        return
    data = {"message": message.to_dict()} if isinstance(message, Message) else {"custom": _plain(message)}
    yield from _noted(plan, record, data)


def note_answer(plan: RunPlan, record: RunState, response: AgentResponse) -> Flow[None]:
    """Write down what the model has just said: before anything is done about it."""
    if plan.hooks.journal is None:
        return
    data: dict[str, Any] = {"response": _dump_response(response)}
    if response.output is not None:
        data["output"] = _written_output(plan, response.output)
    if misnamed := {slot.call.id: slot.named for slot in record.slots if slot.named != slot.call.name}:
        data["named"] = misnamed
    yield from _noted(plan, record, data)


def _dump_response(response: AgentResponse) -> dict[str, Any]:
    return response.model_dump(mode="json", exclude_none=True, exclude={"text", "tool_calls", "output"})


def _noted(plan: RunPlan, record: RunState, data: Mapping[str, Any]) -> Flow[None]:
    place = len(record.history) - record.start
    if not (yield from _written(plan, record, f"message:{place}", data)):
        raise _somebody_else(record)


def note_end(plan: RunPlan, record: RunState) -> Flow[None]:
    yield from _written(plan, record, "end", {})


# A run that goes on


def restored(plan: RunPlan, record: RunState) -> Flow[bool]:
    """Read what an earlier run under this id had done, and take its place. True if it had come to its end."""
    if plan.hooks.journal is None:
        return False
    entries: Sequence[JournalEntry] = yield from _asked(plan, record, plan.hooks.journal.read, record.run_id)
    record.known = {entry.key: entry.data for entry in entries}
    asked = {"digest": digest(plan, record)}
    begun = record.known.get("request")
    if begun is None:
        if not (yield from _written(plan, record, "request", asked)):
            raise _somebody_else(record)
    elif begun != asked:
        raise ConfigurationError(
            f"The run {record.run_id!r} was begun with another request.",
            field="run_id",
            fix="Use a new run_id, or ask the same question.",
        )
    bill_caller = record.bill_caller
    if plan.is_retried:
        record.bill_caller = None  # what the journal holds was billed by the first try
    try:
        _recall_results(record)
        while (data := record.known.get(f"message:{len(record.history) - record.start + 1}")) is not None:
            _replay(plan, record, data)
    except (ValidationError, LookupError, TypeError) as error:
        raise JournalError(f"What is written about the run {record.run_id!r} cannot be read: {error}") from error
    finally:
        record.bill_caller = bill_caller
    return "end" in record.known


def digest(plan: RunPlan, record: RunState) -> str:
    """Of what was asked. Prompts are a part of the question, the conversation before it another."""
    if not record.digest:
        said = [message.to_dict() for message in to_model_messages([*record.history[: record.start], *plan.prompts])]
        text = repr((plan.request.system, said))
        record.digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    return record.digest


def _replay(plan: RunPlan, record: RunState, data: Mapping[str, Any]) -> None:
    """Put a message back, and after a model's the results of its calls, as far as there are any."""
    if record.slots:  # whatever follows the calls of a turn, they are dealt with
        record.count_calls()
        record.settle()
        record.slots = []
    if "response" in data:
        record.turn += 1
        record.hear(_read_answer(plan, data))
        for slot in record.slots:
            slot.named = data.get("named", {}).get(slot.call.id, slot.named)
        _recall_results(record)
    elif "message" in data:
        record.history.append(Message.from_dict(data["message"]))
    else:
        record.history.append(dict(data["custom"]))


def _recall_results(record: RunState) -> None:
    for slot in record.slots:
        if slot.result is None:
            recall(record, slot)
    record.ready_results()


def _read_answer(plan: RunPlan, data: Mapping[str, Any]) -> AgentResponse:
    response = AgentResponse.model_validate(dict(data["response"]))
    if "output" not in data:
        return response
    adapter = _adapter(plan)
    try:
        output = data["output"] if adapter is None else adapter.validate_json(to_json(data["output"]))
    except ValidationError as error:
        raise ConfigurationError(
            "The output of the run does not fit the schema.", field="schema", fix="Use the schema it was begun with."
        ) from error
    return response.model_copy(update={"output": output})


def _written_output(plan: RunPlan, output: Any) -> Any:
    adapter = _adapter(plan)
    if adapter is None:
        return _plain(output)
    return adapter.dump_python(output, mode="json", by_alias=True, round_trip=True)


def _adapter(plan: RunPlan) -> TypeAdapter[Any] | None:
    schema = plan.request.output_schema
    if schema is None or isinstance(schema, FrozenDict):
        return None
    return schema if isinstance(schema, TypeAdapter) else TypeAdapter(schema)


# Reading and writing


def _plain(value: Any) -> Any:
    """JSON, whatever hooks put into arguments."""
    return to_jsonable_python(value, fallback=str, bytes_mode="base64")


def _written(plan: RunPlan, record: RunState, key: str, data: Mapping[str, Any]) -> Flow[bool]:
    """False if that was written before: by this run in an earlier life, or by somebody else."""
    journal = plan.hooks.journal
    return True if journal is None else bool((yield from _asked(plan, record, journal.write, record.run_id, key, data)))


def _asked(plan: RunPlan, record: RunState, method: Any, *args: Any) -> Flow[Any]:
    try:
        return (yield from Invoke(method, args, blocking=True))
    except AgentError:
        raise
    except Exception as error:  # of anybody's database
        raise JournalError(
            f"The journal of the run {record.run_id!r} failed: {type(error).__name__}: {error}"
        ) from error


def _somebody_else(record: RunState) -> JournalError:
    return JournalError(f"The run {record.run_id!r} is being continued by another process.")
