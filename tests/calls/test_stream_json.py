"""A value while it arrives: plain and growing on the way, typed at the end."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import pairwise
from typing import Any

import pytest
from pydantic import BaseModel

from agent import Agent, errors
from agent.calls.streams import Partials
from agent.testing import Answer, Piece, Script, ScriptedTransport, scripted_agent
from agent.types import StreamEvent, ToolCall
from tests.support.drivers import run_and_leave_nothing


class City(BaseModel):
    name: str
    twins: list[str] = []


TEXT = '{"name": "Ulm an der Donau", "twins": ["Neu Ulm", "Jinotega am Fluss"]}'
WHOLE = json.loads(TEXT)


def grows(smaller: Any, larger: Any) -> bool:
    """Whether one partial value can become the other."""
    if isinstance(smaller, dict):
        return isinstance(larger, dict) and all(key in larger and grows(smaller[key], larger[key]) for key in smaller)
    if isinstance(smaller, list):
        return isinstance(larger, list) and len(smaller) <= len(larger) and all(map(grows, smaller, larger))
    if isinstance(smaller, str):
        return isinstance(larger, str) and larger.startswith(smaller)
    return bool(smaller == larger)


def check(partials: list[Any]) -> None:
    assert len(partials) > 3
    assert partials[-1] == WHOLE
    assert all(isinstance(partial, dict) for partial in partials)
    for before, after in pairwise(partials):
        assert before != after
        assert grows(before, after)


@pytest.mark.parametrize("mode", ["native", "tool", "prompted"])
def test_partials_grow_into_the_whole(mode: Any) -> None:
    line = ToolCall(id="1", name="final_answer", arguments=WHOLE) if mode == "tool" else TEXT
    stream = scripted_agent(line).stream_json("?", schema=City, output_mode=mode)
    check(list(stream))
    assert stream.output == City(**WHOLE)
    assert stream.response.output == stream.output
    assert json.loads(stream.text) == WHOLE
    assert stream.usage is not None


@pytest.mark.parametrize("mode", ["native", "tool", "prompted"])
def test_the_async_twin_does_the_same(mode: Any) -> None:
    line = ToolCall(id="1", name="final_answer", arguments=WHOLE) if mode == "tool" else TEXT

    async def main() -> None:
        stream = scripted_agent(line).astream_json("?", schema=City, output_mode=mode)
        check([partial async for partial in stream])
        assert stream.output == City(**WHOLE)

    run_and_leave_nothing(main())


def test_a_json_schema_gives_plain_values() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    stream = scripted_agent('{"a": null}').stream_json("?", schema=schema)
    assert list(stream)[-1] == {}  # null stood for what was left out
    assert stream.output == {}


def test_wrappers_are_taken_off_on_the_way() -> None:
    stream = scripted_agent('{"value": ["one two", "three four"]}').stream_json("?", schema=list[str])
    partials = list(stream)
    assert all(isinstance(partial, list) for partial in partials)
    assert partials[-1] == stream.output == ["one two", "three four"]


def test_fences_and_words_around_the_value_do_no_harm() -> None:
    stream = scripted_agent(f"Here it is:\n```json\n{TEXT}\n```\nDone.").stream_json("?", schema=City)
    check(list(stream))
    assert stream.output == City(**WHOLE)


def test_what_does_not_fit_is_an_error_at_the_end() -> None:
    stream = scripted_agent('{"twins": ["a b"]}').stream_json("?", schema=City)
    partials = []
    with pytest.raises(errors.SchemaValidationError, match="name"):
        for partial in stream:
            partials.append(partial)
    assert partials[-1] == {"twins": ["a b"]}

    async def main() -> None:
        with pytest.raises(errors.SchemaValidationError, match="name"):
            async for _ in scripted_agent("{}").astream_json("?", schema=City):
                pass

    asyncio.run(main())


def test_a_call_of_the_callers_tool_gives_no_value() -> None:
    stream = scripted_agent(ToolCall(id="1", name="f", arguments={"a": 1})).stream_json("?", schema=City)
    assert list(stream) == []
    assert stream.output is None
    assert stream.response.has_tool_calls


def test_collect_skips_the_partials() -> None:
    assert scripted_agent(TEXT).stream_json("?", schema=City).collect().output == City(**WHOLE)
    assert asyncio.run(scripted_agent(TEXT).astream_json("?", schema=City).collect()).output == City(**WHOLE)


def test_there_must_be_a_schema() -> None:
    for method in ("stream_json", "astream_json"):
        with pytest.raises(errors.ConfigurationError, match="no schema"):
            getattr(scripted_agent(TEXT), method)("?")


def test_before_the_end_there_is_no_output() -> None:
    with scripted_agent(TEXT).stream_json("?", schema=City) as stream:
        partials = iter(stream)
        next(partials)
        with pytest.raises(errors.ConfigurationError, match="not ended"):
            _ = stream.output


def create_hanging_agent() -> Agent:
    """Says the first words, and then nothing for a long time."""
    whole = Script(TEXT)

    def network(request: Any) -> Answer:
        answer = whole(request)
        pieces = [
            Piece(piece.outcome, 30.0 if number > 4 else 0.0) for number, piece in enumerate(answer.iter_pieces())
        ]
        return Answer(pieces, headers=answer.headers)

    return Agent("scripted:script", transport=ScriptedTransport(network))


def test_leaving_the_loop_closes_the_stream() -> None:
    started = time.monotonic()
    stream = create_hanging_agent().stream_json("?", schema=City)
    for _ in stream:
        break
    with pytest.raises(errors.ConfigurationError, match="cannot be resumed"):
        list(stream)

    async def main() -> None:
        left = create_hanging_agent().astream_json("?", schema=City)
        async for _ in left:
            break
        async with create_hanging_agent().astream_json("?", schema=City) as other:
            await anext(aiter(other))

    run_and_leave_nothing(main())
    assert time.monotonic() - started < 10


def test_abort_reaches_whoever_iterates() -> None:
    stream = create_hanging_agent().stream_json("?", schema=City)
    with pytest.raises(errors.Aborted):
        for _ in stream:
            stream.abort()

    async def main() -> None:
        stream = create_hanging_agent().astream_json("?", schema=City)
        with pytest.raises(errors.Aborted):
            async for _ in stream:
                stream.abort()

    run_and_leave_nothing(main())


def test_a_restart_begins_the_value_again() -> None:
    partials = Partials(lambda value: value, lambda value: value)
    assert partials.feed(StreamEvent.text_delta('{"a": "x', index=0)) == {"a": "x"}
    assert partials.feed(StreamEvent.restart_event("elsewhere")) is Partials.NOTHING
    assert partials.feed(StreamEvent.text_delta('{"b": 1', index=0)) == {"b": 1}
    assert partials.feed(StreamEvent.text_delta("words [", index=1)) == []


def test_reading_a_long_value_takes_time_in_proportion_to_its_length() -> None:
    reads = 0

    def count(value: Any) -> Any:
        nonlocal reads
        reads += len(json.dumps(value))
        return value

    text = json.dumps({"items": [f"number {n}" for n in range(4_000)]})
    partials = Partials(count, count)
    for start in range(0, len(text), 4):
        partials.feed(StreamEvent.text_delta(text[start : start + 4], index=0))
    assert reads < 300 * len(text)


@pytest.mark.parametrize("schema", [list[City], dict[str, City]])
def test_what_is_iterated_over_stays_plain_to_the_end(schema: Any) -> None:
    value: Any = [WHOLE] if schema == list[City] else {"one": WHOLE}
    stream = scripted_agent(json.dumps(value)).stream_json("?", schema=schema, output_mode="prompted")
    assert list(stream)[-1] == value
    assert stream.output == ([City(**WHOLE)] if schema == list[City] else {"one": City(**WHOLE)})


def test_the_last_piece_of_a_fenced_value_is_not_lost_when_the_fence_comes_with_it() -> None:
    partials = Partials(lambda value: value, lambda value: value)
    assert partials.feed(StreamEvent.text_delta('```json\n{"a": [1', index=0)) == {"a": [1]}
    assert partials.feed(StreamEvent.text_delta(", 2]}\n```\nThat is all {really}.", index=0)) == {"a": [1, 2]}


def test_a_stream_that_did_not_come_to_its_end_has_no_output() -> None:
    left = scripted_agent(TEXT).stream_json("?", schema=City)
    with left:
        next(iter(left))
    assert left.response.text is not None
    with pytest.raises(errors.ConfigurationError, match="was closed before its end") as caught:
        _ = left.output
    assert caught.value.field == "output"


def test_a_stream_whose_value_does_not_fit_raises_that_for_its_output_and_response() -> None:
    misfit = scripted_agent('{"twins": []}').stream_json("?", schema=City)
    with pytest.raises(errors.SchemaValidationError):
        list(misfit)
    for name in ("output", "response"):
        with pytest.raises(errors.SchemaValidationError):
            getattr(misfit, name)
    assert misfit.text == misfit.partial.text == '{"twins": []}'
