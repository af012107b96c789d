"""Typed output: the value fits its schema, or there is an error. Never a silent None."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import date
from enum import StrEnum
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, TypeAdapter

from agent import Agent, errors
from agent.calls.structured_output import Misfit, _add_usage, read_value
from agent.testing import Script, ScriptedTransport, scripted_agent
from agent.types import AgentRequest, AgentResponse, RefusalContent, ToolCall, Usage
from tests.support.drivers import Driver


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
        scripted_agent(*['{"name": "Ulm", "people": "many"}'] * 3).json("?", schema=SCHEMA)


def test_complete_and_stream_fill_the_output_too() -> None:
    assert scripted_agent("[1]").complete("?", schema=list[int]).output == [1]
    assert scripted_agent("[1]").stream("?", schema=list[int]).collect().output == [1]


@pytest.mark.parametrize(
    "answer",
    [
        "```json\n[1]\n```",
        "Sure, here it is:\n```\n[1]\n```\nAnything else?",
        "The answer is [1].",
        'As {} and [1, 2, "x"] are wrong: [1]',
        " \n[1]\n",
        "```json\n[1]```",
    ],
)
def test_one_value_among_other_words_is_forgiven(answer: str) -> None:
    script = Script(answer)
    agent = Agent("scripted:script", transport=ScriptedTransport(script))
    assert agent.json("?", schema=list[int]).output == [1]
    assert len(script.requests) == 1


MISFITS = [
    ("not json", "not JSON"),
    ('{"name": "Ulm", "people": ', "not JSON"),
    ('{"name": "Ulm", "people": 1, "inner": {"name": "Bonn", "people": 2}', "not JSON"),
    ('{"name": "Ulm"}', "people: Field required"),
    ('{"name": "Ulm", "people": 1, "people": 2}', "'people' appears twice"),
    ('{"name": "Ulm", "people": 1} {"name": "Bonn", "people": 2}', "2 valid values"),
    ('Sure! {"name": "Ulm", "people": "few"}', "people: Input should be"),
    ("```json\n{oops\n```", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ('{"name": "Ulm", "people": NaN}', "not JSON"),
    ("", "empty"),
]


@pytest.mark.parametrize(("answer", "reason"), MISFITS)
def test_what_does_not_fit_is_an_error_with_the_models_words(answer: Any, reason: str) -> None:
    script = Script(answer, answer, answer)
    with pytest.raises(errors.SchemaValidationError, match=reason) as caught:
        Agent("scripted:script", transport=ScriptedTransport(script)).json("?", schema=City)
    assert len(script.requests) == 3
    assert caught.value.response is not None
    assert caught.value.text == caught.value.response.text
    assert not caught.value.retryable
    assert len(caught.value.attempts) == 3


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (AgentResponse(text='{"name": "Ulm", "people": 1}', stop_reason="length"), "cut off"),
        (AgentResponse(text='{"name": "Ulm", "people": 1}', stop_reason="content_filter"), "filter"),
        (RefusalContent(refusal="No."), "refused"),
    ],
)
def test_what_asking_again_does_not_mend_is_not_asked_again(answer: Any, reason: str) -> None:
    script = Script(answer)
    with pytest.raises(errors.SchemaValidationError, match=reason):
        Agent("scripted:script", transport=ScriptedTransport(script)).json("?", schema=City)
    assert len(script.requests) == 1


def test_the_model_is_told_what_is_wrong_and_everything_is_paid_for(drive: Driver) -> None:
    answers = Script('{"name": "Ulm"}', '{"name": "Ulm", "people": "few"}', '{"name": "Ulm", "people": 1}')
    request = AgentRequest(input="Which city?", output_schema=City)
    outcome = drive.complete(answers, request)
    assert outcome.ok.output == City(name="Ulm", people=1)
    assert [attempt.error for attempt in outcome.ok.route] == [None, None, None]
    spent = [attempt.usage for attempt in outcome.ok.route]
    assert outcome.ok.usage == spent[0] + spent[1] + spent[2]  # type: ignore[operator]
    last = answers.requests[-1]["messages"]
    assert [message["role"] for message in last] == ["user", "assistant", "user", "assistant", "user"]
    assert "people: Field required" in last[2]["content"]
    assert last[3]["content"] == '{"name": "Ulm", "people": "few"}'
    assert request.messages == ()


def test_the_error_carries_what_all_answers_cost() -> None:
    with pytest.raises(errors.SchemaValidationError) as caught:
        scripted_agent("a", "b", "c").complete("?", schema=City)
    spent = [attempt.usage.completion_tokens for attempt in caught.value.attempts if attempt.usage]
    assert spent == [1, 1, 1]
    assert caught.value.response is not None
    assert caught.value.response.usage is not None
    assert caught.value.response.usage.completion_tokens == 3
    assert caught.value.text == "c"


def test_a_failure_while_asking_again_is_that_failure() -> None:
    with pytest.raises(errors.AuthenticationError) as caught:
        scripted_agent("no", errors.AuthenticationError("expired")).json("?", schema=City)
    assert [attempt.error for attempt in caught.value.attempts] == [None, "AuthenticationError"]


def test_a_call_after_asking_again_is_left_to_the_caller() -> None:
    response = scripted_agent("no", ToolCall(id="c", name="f")).complete("?", schema=City)
    assert response.has_tool_calls
    assert response.output is None


def test_a_stream_is_not_asked_again(drive: Driver) -> None:
    answers = Script('{"name": "Ulm"}')
    outcome = drive.stream(answers, AgentRequest(input="?", output_schema=City))
    assert isinstance(outcome.failed, errors.SchemaValidationError)
    assert outcome.failed.committed
    assert outcome.text == outcome.failed.text == '{"name": "Ulm"}'
    assert outcome.events[-1].type == "error"
    assert len(answers.requests) == 1


def test_nulls_for_what_is_optional_and_wrappers_are_undone(drive: Driver) -> None:
    answers = Script('{"name": "Ulm", "people": 1, "founded": null, "colour": null}', '{"value": [1]}')
    outcome = drive.complete(answers, AgentRequest(input="?", output_schema=City))
    assert outcome.ok.output == City(name="Ulm", people=1)
    assert drive.complete(answers, AgentRequest(input="?", output_schema=list[int])).ok.output == [1]


def test_a_type_adapter_is_a_schema_too() -> None:
    assert scripted_agent("[1]").json("?", schema=TypeAdapter(list[int])).output == [1]


def test_a_call_in_place_of_the_output_is_left_to_the_caller() -> None:
    response = scripted_agent(ToolCall(id="c", name="f")).complete("?", schema=City)
    assert response.output is None
    assert response.has_tool_calls


def test_a_schema_that_is_none_is_the_callers_mistake() -> None:
    with pytest.raises(errors.ConfigurationError, match="not a valid JSON schema") as caught:
        scripted_agent("{}").json("?", schema={"type": "banana"})
    assert caught.value.field == "output_schema"
    with pytest.raises(errors.ConfigurationError, match="no JSON schema") as caught:
        scripted_agent("{}").json("?", schema=object())  # type: ignore[call-overload]
    assert caught.value.field == "output_schema"


def test_the_default_script_makes_up_what_fits() -> None:
    output = scripted_agent().json("?", schema=City).output
    assert isinstance(output, City)


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    people: int
    founded: date
    colours: tuple[Colour, ...]


def test_a_strict_model_stays_strict_and_reads_the_json_form_of_what_json_lacks() -> None:
    fits = {"people": 1, "founded": "0850-07-22", "colours": ["red"]}
    wrong = {**fits, "people": "1"}
    script = Script(wrong, fits)
    response = Agent("scripted:script", transport=ScriptedTransport(script)).json("?", schema=Strict)
    assert response.output == Strict(people=1, founded=date(850, 7, 22), colours=(Colour.RED,))
    assert "people: Input should be a valid integer" in script.requests[1]["messages"][-1]["content"]


class Code(BaseModel):
    code: str


def test_a_fence_inside_a_fenced_value_does_no_harm() -> None:
    value = {"code": "```python\nprint()\n```"}
    script = Script(f"```json\n{json.dumps(value)}\n```")
    agent = Agent("scripted:script", transport=ScriptedTransport(script))
    assert agent.json("?", schema=Code, output_mode="prompted").output == Code(**value)


@pytest.mark.timing
def test_a_long_gap_in_a_fence_is_read_in_no_time() -> None:
    with pytest.raises(Misfit):
        read_value("```json\n" + " " * 200_000 + "?", SCHEMA, lambda value: value)
    started = time.perf_counter()
    assert read_value("```json\n" + " " * 200_000 + '{"name": "Ulm"}\n  ```', SCHEMA, lambda value: value)
    assert time.perf_counter() - started < 2


def test_a_sum_of_costs_that_nobody_knows_has_no_source() -> None:
    billed = AgentResponse(text="no", usage=Usage(prompt_tokens=1, completion_tokens=1))
    known = AgentResponse(text="no", cost_estimate=0.5, cost_source="vendor", usage=billed.usage)
    assert _add_usage(known, known).cost_source == "vendor"
    assert (_add_usage(billed, known).cost_estimate, _add_usage(billed, known).cost_source) == (None, None)
