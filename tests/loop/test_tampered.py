"""Damaged or modified paused runs: a typed error, and no call without a verdict."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import Agent, Hooks, ToolContext, errors, tool
from agent.loop import MemoryJournal, PausedRun
from agent.testing import scripted_agent
from agent.types import Message, ToolResult
from tests.loop.pause_helpers import NOBODY, WAYS, Till, as_router, ask_about, call, pause, pays, reload, run_by
from tests.support.cases import examples
from tests.support.values import json_values


def document(**options: Any) -> dict[str, Any]:
    """Of a run whose calls c1 and c3 wait, while c2 was made."""
    paused = reload(pause(Till(), *pays("c1", "c2", "c3"), ask=ask_about("c1", "c3"), **options))
    data: dict[str, Any] = json.loads(paused.to_json())
    return data


def put(data: dict[str, Any], path: str, value: Any) -> None:
    *inside, last = path.split(".")
    at: Any = data
    for step in inside:
        at = at[int(step)] if isinstance(at, list) else at[step]
    at[int(last) if isinstance(at, list) else last] = value


def result_of(id: str) -> dict[str, Any]:
    return ToolResult(tool_call_id=id, name="pay", content="paid").model_dump(mode="json", exclude_none=True)


def tool_message(*ids: str) -> dict[str, Any]:
    parts = [ToolResult(tool_call_id=id, name="pay", content="paid") for id in ids]
    return Message(role="tool", content=parts).model_dump(mode="json", exclude_none=True)


def calls(data: dict[str, Any]) -> list[Any]:
    found: list[Any] = data["messages"][1]["content"]
    return found


def create_message(role: str) -> dict[str, Any]:
    return {"role": role, "content": "Fine."}


APPROVED = {"approved": True}
TAMPERED: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "a pending call is removed": ("waiting", lambda data: data["waiting"].pop()),
    "all pending calls are removed": ("waiting", lambda data: put(data, "waiting", [])),
    "a pending call is there twice": ("waiting", lambda data: data["waiting"].append(data["waiting"][0])),
    "a pending call is unknown": ("waiting", lambda data: put(data, "waiting.0.id", "c9")),
    "a pending call brings its own call": ("waiting.0.call", lambda data: put(data, "waiting.0.call", {"name": "pay"})),
    "a pending call has a result": ("waiting", lambda data: data["results"].append(result_of("c1"))),
    "a result is there twice": ("results", lambda data: data["results"].append(data["results"][0])),
    "a result is of no call": ("results", lambda data: data["results"].append(result_of("c9"))),
    "a result is of the wrong type": ("results.0.tool_call_id", lambda data: put(data, "results.0.tool_call_id", 5)),
    "a result is missing": ("waiting", lambda data: put(data, "results", [])),
    "a verdict is of no call": ("verdicts", lambda data: put(data, "verdicts", {"c9": APPROVED})),
    "a verdict is of a call that was made": ("verdicts", lambda data: put(data, "verdicts", {"c2": APPROVED})),
    "a verdict is no verdict": ("verdicts.c1", lambda data: put(data, "verdicts", {"c1": True})),
    "a verdict is nearly true": ("verdicts", lambda data: put(data, "verdicts", {"c1": {"approved": "yes"}})),
    "a verdict is misspelt": ("verdicts.c1.aproved", lambda data: put(data, "verdicts", {"c1": {"aproved": True}})),
    "a call has the id of another": ("messages", lambda data: put(data, "messages.1.content.0.id", "c3")),
    "a call has another id": ("waiting", lambda data: put(data, "messages.1.content.0.id", "c7")),
    "a call has no id": ("messages", lambda data: put(data, "messages.1.content.0.id", "")),
    "a call is added": ("waiting", lambda data: calls(data).append({**calls(data)[0], "id": "c4"})),
    "a call is removed": ("waiting", lambda data: calls(data).pop()),
    "the answer is removed": ("messages", lambda data: data["messages"].pop()),
    "another answer follows": ("messages", lambda data: data["messages"].append(create_message("assistant"))),
    "words follow the calls": ("messages", lambda data: data["messages"].append(create_message("user"))),
    "a result of the second call comes first": ("messages", lambda data: data["messages"].append(tool_message("c2"))),
    "a waiting call has a result message": ("waiting", lambda data: data["messages"].append(tool_message("c1"))),
    "a call is held for no reason": ("held", lambda data: put(data, "held", ["c2"])),
    "a call that waits is held as well": ("held", lambda data: put(data, "held", ["c3"])),
    "an unknown call is held": ("held", lambda data: put(data, "held", ["c9"])),
    "it starts in the future": ("start", lambda data: put(data, "start", 9)),
    "it starts before the beginning": ("start", lambda data: put(data, "start", -1)),
    "no turn was taken": ("turn", lambda data: put(data, "turn", 0)),
    "too many turns were taken": ("turn", lambda data: put(data, "turn", 2)),
    "the turn is a text": ("turn", lambda data: put(data, "turn", "1")),
    "an answer is counted twice": ("answers", lambda data: data["answers"].append({})),
    "it costs nothing that is known": ("known_cost", lambda data: put(data, "known_cost", -1.0)),
    "notes are a list": ("notes", lambda data: put(data, "notes", [1])),
    "notes start elsewhere": ("notes", lambda data: put(data, "notes.start", 1)),
    "notes count in words": ("notes.repairs", lambda data: put(data, "notes.repairs", "none")),
    "notes repeat themselves": ("notes.repeats", lambda data: put(data, "notes.repeats", [1])),
    "notes have an aside nowhere": ("notes", lambda data: put(data, "notes.asides", [[99, {"role": "note"}]])),
    "notes have an aside of the wrong type": ("notes.asides", lambda data: put(data, "notes.asides", ["x"])),
    "notes tell of an unknown call": ("notes", lambda data: put(data, "notes.outcomes", {"c9": "completed"})),
    "notes tell of a waiting call": ("notes", lambda data: put(data, "notes.misfits", ["c1"])),
    "notes tell of no outcome": ("notes.outcomes.c2", lambda data: put(data, "notes.outcomes.c2", "fine")),
    "a call waits in a run that is none": ("waiting.0.run", lambda data: put(data, "waiting.0.run", {"run_id": "x"})),
    "it is of another version": ("version", lambda data: put(data, "version", 1)),
}  # fmt: skip


@pytest.mark.parametrize("how", TAMPERED)
def test_a_tampered_document_is_rejected_by_a_typed_error_that_names_the_field(how: str) -> None:
    data = document()
    field, tamper = TAMPERED[how]
    tamper(data)
    with pytest.raises(errors.ConfigurationError) as raised:
        PausedRun.from_json(json.dumps(data))
    assert (raised.value.field or "").startswith(field)


def test_an_inconsistent_run_is_rejected_however_it_was_made() -> None:
    """A program may make the document itself, without reading any JSON."""
    data = document()
    data["waiting"].pop()
    paused = PausedRun.model_validate(data)
    till = Till()
    uses: list[Callable[[], Any]] = [
        lambda: paused.pending,
        lambda: paused.undecided,
        lambda: paused.approve(),
        lambda: scripted_agent(NOBODY).run(paused, tools=[till.pay]),
        lambda: scripted_agent(NOBODY).run_stream(paused, tools=[till.pay]),
    ]
    for use in uses:
        with pytest.raises(errors.ConfigurationError) as raised:
            use()
        assert raised.value.field == "waiting"
    assert till.paid == []


def test_a_plain_tool_is_not_run_in_the_name_of_a_sub_agent() -> None:
    """Moving a waiting call into a nested run with verdicts approves nothing."""
    data = document()
    inner = json.loads(PausedRun.from_json(json.dumps(data)).approve().to_json())
    data["waiting"][0] = {"id": "c1", "run": inner}
    till = Till()
    with pytest.raises(errors.ConfigurationError) as raised:
        scripted_agent(NOBODY).run(PausedRun.from_json(json.dumps(data)), tools=[till.pay])
    assert raised.value.field == "tools"
    assert till.paid == []


@pytest.mark.parametrize("cut", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_document_is_a_typed_error(cut: float) -> None:
    text = json.dumps(document())
    with pytest.raises(errors.ConfigurationError, match="PausedRun"):
        PausedRun.from_json(text[: int(len(text) * cut)])


def paths(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document."""
    yield at
    for key, value in data.items() if isinstance(data, Mapping) else enumerate(data) if isinstance(data, list) else ():
        yield from paths(value, (*at, key))


def mutate(draw: Any, data: Any) -> Any:
    """The document with a value removed, doubled, moved or replaced."""
    places = [place for place in paths(data) if place]
    place = draw(st.sampled_from(places))
    at = data
    for step in place[:-1]:
        at = at[step]
    match draw(st.sampled_from(["remove", "double", "move", "replace"])):
        case "remove":
            del at[place[-1]]
        case "double" if isinstance(at, list):
            at.append(at[place[-1]])
        case "move":
            other = draw(st.sampled_from(places))
            found = data
            for step in other:
                if not isinstance(found, dict | list) or (isinstance(found, list) and not isinstance(step, int)):
                    return data
                try:
                    found = found[step]
                except (KeyError, IndexError):
                    return data
            at[place[-1]] = json.loads(json.dumps(found))
        case _:
            at[place[-1]] = draw(json_values)
    return data


def create_nested_document() -> dict[str, Any]:
    """Of a run in which a call of a sub-agent waits, besides another call."""
    till = Till()
    inner = scripted_agent(
        pays("i1", "i2", "i3"), tools=[till.pay], hooks=Hooks(before_tool_call=ask_about("i1", "i2"))
    )
    result = scripted_agent([call("o1", "helper", task="Pay."), *pays("c2")]).run(
        "Go.", tools=[till.pay, inner.as_tool("helper", "Helps.")], before_tool_call=ask_about("c2")
    )
    data: dict[str, Any] = json.loads(reload(result).to_json())
    return data


def list_held(paused: PausedRun) -> list[str]:
    nested = [one.run for one in paused.waiting if one.run is not None]
    return [*paused.held, *(id for run in nested for id in list_held(run))]


RUNNERS: list[Callable[[Agent], Any]] = [lambda agent: agent, as_router, lambda agent: agent.session("s")]


@settings(max_examples=examples(200, 3_000))
@given(st.data())
def test_no_mutation_of_a_document_executes_a_call_without_a_verdict(data: st.DataObject) -> None:
    made: list[str] = []

    @tool
    def pay(amount: int, context: ToolContext[Any]) -> str:
        made.append(context.call_id)
        return f"paid {amount}"

    waits = data.draw(st.sampled_from([document, create_nested_document]))()
    decided = data.draw(st.sampled_from([(), ("c1",), ("c2",), ("o1/i1",), ("c2", "o1/i1", "o1/i2")]))
    paused = PausedRun.from_json(json.dumps(waits))
    paused = paused.approve(*decided) if {*decided} <= {one.id for one in paused.pending} and decided else paused
    waits = json.loads(paused.to_json())
    for _ in range(data.draw(st.integers(1, 3))):
        waits = mutate(data.draw, waits)
    try:
        paused = PausedRun.from_json(json.dumps(waits))
        undecided = [one.call.id for one in paused.undecided]
        allowed = Counter(one.call.id for one in paused.pending) - Counter(undecided) + Counter(list_held(paused))
        helper = scripted_agent("Paid.", tools=[pay]).as_tool("helper", "Helps.")
        runner = data.draw(st.sampled_from(RUNNERS))(scripted_agent("Done."))
        options = {"journal": MemoryJournal()} if data.draw(st.booleans()) else {}
        result = run_by(data.draw(st.sampled_from(WAYS)), runner, paused, tools=[pay, helper], **options)
    except errors.ConfigurationError:
        assert made == [] or decided
        return
    except errors.AgentError:
        result = None
    assert Counter(made) <= allowed, "it was executed without a verdict"
    if undecided:
        assert result is not None
        assert result.paused is not None
        assert Counter(undecided) <= Counter(one.call.id for one in result.paused.pending)
