"""Request bodies for the engine. No model is loaded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent import errors
from agent.local.engine import (
    encode_count_request,
    encode_request,
    encode_truncation,
    is_error,
    is_truncation,
    read_error_status,
)

MOST = 2**53 - 1


def encode(settings: dict[str, Any] | None = None, **body: Any) -> dict[str, Any]:
    asked: dict[str, Any] = json.loads(encode_request({"messages": [], **body}, settings or {}))
    return asked


def bound(schema: dict[str, Any]) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    sent: dict[str, Any] = encode(response_format=form)["response_format"]["json_schema"]["schema"]
    assert sent.pop("x-guidance")["whitespace_flexible"] is False
    return sent


def test_every_request_is_streamed_and_can_be_stopped() -> None:
    asked = encode(stream=False)
    assert asked["stream"] is True
    assert asked["return_progress"] is True


def test_what_the_request_says_counts_more_than_the_settings_of_the_model() -> None:
    assert encode({"temperature": 0.2, "top_p": 0.9}, temperature=1.0)["temperature"] == 1.0
    assert encode({"temperature": 0.2, "top_p": 0.9}, temperature=1.0)["top_p"] == 0.9


def test_who_wants_the_same_text_again_gets_it_computed_in_the_same_way() -> None:
    assert encode(seed=1)["cache_prompt"] is False
    assert encode(temperature=0)["cache_prompt"] is False
    assert encode(temperature=0.5)["cache_prompt"] is True
    assert encode(seed=1, cache_prompt=True)["cache_prompt"] is True


@pytest.mark.parametrize("seed", [-1, 2**32 - 1, 2**32, 2**70, -(2**40)])
def test_no_seed_is_taken_for_a_wish_to_be_surprised(seed: int) -> None:
    assert 0 <= encode(seed=seed)["seed"] < 2**32 - 1


def test_a_limit_is_a_number_that_the_engine_can_hold() -> None:
    assert encode(max_tokens=7)["max_tokens"] == 7
    assert encode(max_tokens=10**12)["max_tokens"] == 2**31 - 1


@pytest.mark.parametrize("value", [-1, 3, 9, 1e308, "x"])
def test_a_setting_that_would_end_the_process_is_refused(value: Any) -> None:
    with pytest.raises(errors.ConfigurationError, match="mirostat"):
        encode(mirostat=value)
    assert encode(mirostat=2)["mirostat"] == 2


# Schemas


def test_numbers_have_an_end() -> None:
    assert bound({"type": "integer"}) == {"type": "integer", "minimum": -MOST, "maximum": MOST}
    assert bound({"type": "number"}) == {"type": "number", "minimum": -MOST, "maximum": MOST, "multipleOf": 1e-6}
    assert bound({"type": ["integer", "null"]})["maximum"] == MOST
    assert bound({"anyOf": [{"type": "integer"}, {"type": "null"}]})["anyOf"][0]["maximum"] == MOST


def test_what_a_schema_says_about_a_number_stays_as_it_is() -> None:
    for bounds in ({"minimum": 1, "maximum": 5}, {"exclusiveMinimum": 0, "exclusiveMaximum": 2}):
        assert bound({"type": "integer", **bounds}) == {"type": "integer", **bounds}
    assert bound({"type": "number", "multipleOf": 0.5})["multipleOf"] == 0.5
    assert bound({"type": "number", "enum": [3.14159265358979]}) == {
        "type": "number",
        "enum": [3.14159265358979],
    }


def test_an_end_never_leaves_nothing_to_say() -> None:
    assert bound({"type": "integer", "minimum": 2**60}) == {"type": "integer", "minimum": 2**60}
    assert bound({"type": "number", "maximum": -1e20}) == {
        "type": "number",
        "maximum": -1e20,
        "multipleOf": 1e-6,
    }
    assert "multipleOf" not in bound({"type": "number", "minimum": 1e-9, "maximum": 3e-9})


def test_an_object_ends_with_its_properties_unless_it_says_otherwise() -> None:
    closed = {"type": "object", "properties": {"a": {"type": "null"}}}
    assert bound(closed) == {**closed, "additionalProperties": False}
    ways: tuple[dict[str, Any], ...] = (
        {"additionalProperties": True},
        {"anyOf": [{}]},
        {"$ref": "#"},
        {"patternProperties": {}},
    )
    for more in ways:
        assert bound({**closed, **more}) == {**closed, **more}
    assert bound({"type": "object"}) == {"type": "object"}


def test_properties_may_have_the_names_of_keywords() -> None:
    names = ("enum", "not", "type", "const", "properties")
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    sent = bound(schema)["properties"]
    assert [sent[name]["maximum"] for name in names] == [MOST] * 5


def test_what_only_looks_like_a_schema_is_left_alone() -> None:
    for keyword in ("const", "default"):
        assert bound({keyword: {"type": "integer"}}) == {keyword: {"type": "integer"}}
    assert bound({"enum": [{"type": "integer"}]}) == {"enum": [{"type": "integer"}]}


def test_an_object_of_any_shape_is_an_object() -> None:
    sent = encode(response_format={"type": "json_object"})["response_format"]
    assert sent["type"] == "json_schema"
    assert sent["json_schema"]["schema"]["type"] == "object"


@pytest.mark.parametrize("form", [{"type": "json_schema"}, {"type": "json_schema", "json_schema": {}}, "x", 7])
def test_a_form_that_makes_no_sense_is_left_to_the_engine_to_refuse(form: Any) -> None:
    assert encode(response_format=form)["response_format"] == form


# Calls


def call(arguments: str) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "say", "arguments": arguments}}


def test_a_call_that_was_cut_off_can_be_told_to_the_engine_again() -> None:
    history = [{"role": "assistant", "tool_calls": [call('{"text": "Once'), call('{"text": "Hi"}')]}]
    for body in (encode(messages=history), json.loads(encode_count_request({"messages": history}))):
        first, second = (made["function"]["arguments"] for made in body["messages"][0]["tool_calls"])
        assert json.loads(first) == {"unreadable": '{"text": "Once'}
        assert second == '{"text": "Hi"}'


def test_what_the_engine_says_of_a_call_without_an_end_is_that_it_was_cut_off() -> None:
    said = b'{"error":{"code":500,"message":"Invalid diff: now finding less tool calls!","type":"server_error"}}'
    assert is_truncation(said)
    assert not is_truncation(b'{"error":{"code":500,"message":"anything else"}}')
    assert not is_truncation(b'{"choices":[],"text":"now finding less tool calls"}')
    end = json.loads(encode_truncation(b'{"id":"x","choices":[{"delta":{"content":"a"}}]}', 20, 8))
    assert end["id"] == "x"
    assert end["choices"][0]["finish_reason"] == "length"
    assert end["usage"] == {"completion_tokens": 8, "prompt_tokens": 20, "total_tokens": 28}


def test_a_failure_without_a_usual_code_is_the_engines_fault() -> None:
    for code in (None, "x", 200, 7000):
        piece = json.dumps({"error": {"code": code}}, separators=(",", ":")).encode()
        assert is_error(piece)
        assert read_error_status(piece) == 500
