"""Typed output: the value fits its schema, or there is an error. Never a silent None."""

from __future__ import annotations

import asyncio
from datetime import date
from enum import StrEnum
from typing import Any

import pytest
from pydantic import BaseModel

from agent import errors
from agent.testing import scripted_agent
from agent.types import AgentResponse, RefusalContent, ToolCall


class Colour(StrEnum):
    RED = "red"


class City(BaseModel):
    name: str
    people: int
    founded: date | None = None
    colour: Colour = Colour.RED


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["name"],
}


def test_a_model_is_filled() -> None:
    response = scripted_agent({"name": "Ulm", "people": 1, "founded": "0850-07-22"}).json("?", schema=City)
    assert response.output == City(name="Ulm", people=1, founded=date(850, 7, 22))


def test_the_async_twin_does_the_same() -> None:
    agent = scripted_agent({"name": "Ulm", "people": 1})
    assert asyncio.run(agent.ajson("?", schema=City)).output == City(name="Ulm", people=1)


def test_any_type_will_do() -> None:
    assert scripted_agent("[1, 2]").json("?", schema=list[int]).output == [1, 2]


def test_a_json_schema_is_checked() -> None:
    assert scripted_agent('{"name": "Ulm"}').json("?", schema=SCHEMA).output == {"name": "Ulm"}
    with pytest.raises(errors.SchemaValidationError, match="people"):
        scripted_agent('{"name": "Ulm", "people": "many"}').json("?", schema=SCHEMA)


def test_complete_and_stream_fill_the_output_too() -> None:
    assert scripted_agent("[1]").complete("?", schema=list[int]).output == [1]
    assert scripted_agent("[1]").stream("?", schema=list[int]).collect().output == [1]


def test_a_whole_answer_in_a_code_fence_is_forgiven() -> None:
    assert scripted_agent("```json\n[1]\n```").json("?", schema=list[int]).output == [1]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("not json", "not JSON"),
        ('{"name": "Ulm", "people": ', "not JSON"),
        ('{"name": "Ulm"}', "people"),
        ('Sure! {"name": "Ulm", "people": 1}', "not JSON"),
        ("```json\n{oops\n```", "not JSON"),
        (AgentResponse(text='{"name": "Ulm", "people": 1}', stop_reason="length"), "cut off"),
        (RefusalContent(refusal="No."), "refused"),
        ("", "empty"),
    ],
)
def test_what_does_not_fit_is_an_error_with_the_models_words(answer: Any, reason: str) -> None:
    with pytest.raises(errors.SchemaValidationError, match=reason) as caught:
        scripted_agent(answer).json("?", schema=City)
    assert caught.value.response is not None
    assert caught.value.text == caught.value.response.text
    assert not caught.value.retryable


def test_a_call_in_place_of_the_output_is_left_to_the_caller() -> None:
    response = scripted_agent(ToolCall(id="c", name="f")).complete("?", schema=City)
    assert response.output is None
    assert response.has_tool_calls


def test_a_schema_that_is_none_is_the_callers_mistake() -> None:
    with pytest.raises(errors.ConfigurationError, match="not a valid JSON schema") as caught:
        scripted_agent("{}").json("?", schema={"type": "banana"})
    assert caught.value.field == "output_schema"
    with pytest.raises(errors.ConfigurationError, match="no JSON schema") as caught:
        scripted_agent("{}").json("?", schema=object())
    assert caught.value.field == "output_schema"


def test_the_default_script_makes_up_what_fits() -> None:
    output = scripted_agent().json("?", schema=City).output
    assert isinstance(output, City)
