"""Infinite numbers such as 1e999 are rejected like NaN, and the text of the model is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import Agent, errors
from agent.engine.wire import Answer, WireRequest, parse_finite_json
from agent.testing import VendorScript, scripted_agent
from agent.transports.scripted import ScriptedTransport
from agent.types import ToolCall
from tests.loop.result_checks import call
from tests.loop.test_odd_calls import TARGETS
from tests.support.values import json_values

NUMBERS = (
    "1e999", "-1e999", "1e+309", "1E0400", "1.5e308", "9" * 309, "9" * 400 + ".0", "1e-999", "1e45", "-0.0", "NaN",
    "Infinity",
)  # fmt: skip
INFINITE = ("1e999", "-1e999", "1e+309", "1E0400", "9" * 400 + ".0", "NaN", "Infinity")


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_out_of_range_are_no_json(number: str) -> None:
    for text in (number, f'{{"a": [1, {number}]}}'):
        if number in INFINITE:
            with pytest.raises(ValueError, match=r"number|value|ident"):
                parse_finite_json(text)
            with pytest.raises(ValueError, match="arguments are not valid JSON"):
                ToolCall(id="c", name="f", arguments=f'{{"a": {number}}}')
        else:
            json.dumps(parse_finite_json(text), allow_nan=False)


floats = st.floats(allow_nan=False).map(repr) | st.from_regex(
    r"-?[1-9][0-9]{0,330}(\.[0-9]{1,5})?([eE][+-]?[0-9]{1,4})?", fullmatch=True
)
"""The text of numbers, of which many are out of range."""


@given(st.lists(floats, max_size=4), json_values)
def test_every_accepted_value_can_be_written(numbers: list[str], value: Any) -> None:
    text = f'{{"numbers": [{", ".join(numbers).replace("inf", "1e999")}], "value": {json.dumps(value)}}}'
    try:
        accepted = parse_finite_json(text)
    except ValueError:
        assert any(abs(float(number)) == float("inf") for number in numbers)
    else:
        assert parse_finite_json(json.dumps(accepted, allow_nan=False)) == accepted


@given(st.lists(floats, max_size=2))
def test_every_accepted_output_and_argument_can_be_written(numbers: list[str]) -> None:
    text = f'{{"numbers": [{", ".join(numbers).replace("inf", "1e999")}]}}'
    agent = scripted_agent(text, text, text)
    try:
        json.dumps(agent.json("?", schema={"type": "object"}).output, allow_nan=False)
    except errors.SchemaValidationError as error:
        kept = error.text
    else:
        kept = text
    assert kept == text


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_a_call_with_such_arguments_is_not_executed_and_keeps_its_text(target: str, streamed: bool) -> None:
    def look(x: float) -> str:
        raise AssertionError("executed")

    script = VendorScript(call("c1", "look", x=77777), "Done.")

    def network(request: WireRequest) -> Answer:
        answer = script(request)
        pieces = [piece.outcome for piece in answer.iter_pieces()]
        body = b"".join(piece for piece in pieces if isinstance(piece, bytes))
        answer.pieces = [body.replace(b"77777", b"1e999")]
        return answer

    agent = Agent(target, transport=ScriptedTransport(network), api_key="k", tools=[look], max_retries=0)
    result = agent.run_stream("Hi").collect() if streamed else agent.run("Hi")
    calls = [part for message in result.messages for part in message.parts if isinstance(part, ToolCall)]
    assert all("1e999" in str(part.invalid_arguments) or "Infinity" in str(part.invalid_arguments) for part in calls)
    assert len(calls) == 1
    json.dumps([message.to_dict() for message in result.messages], allow_nan=False)


def test_the_correction_request_quotes_the_answer() -> None:
    agent = scripted_agent('{"x": 1e999}', '{"x": 1}')
    response = agent.json("?", schema={"type": "object"})
    assert response.output == {"x": 1}


def test_arguments_with_half_a_character_are_no_json() -> None:
    with pytest.raises(ValueError, match="arguments are not valid JSON"):
        ToolCall(id="c", name="f", arguments='{"a": "\ud800"}')
