"""The scripted provider: replies, errors, streams and generated examples."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel

from agent import Agent, RetryConfig, ToolSpec, errors
from agent.engine.wire import Answer
from agent.providers.scripted import generate_example
from agent.testing import Script, ScriptedTransport, scripted_agent
from agent.types import ContentPart, Message, RefusalContent, TextContent, ThinkingContent, ToolCall


class Point(BaseModel):
    x: int


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("plain", "plain"),
        (TextContent(text="part"), "part"),
        ([ThinkingContent(thinking="hm"), TextContent(text="parts")], "parts"),
        (Point(x=1), '{"x":1}'),
        ({"x": 2}, '{"x":2}'),
        (lambda body: f"about {body['model']}", "about script"),
    ],
    ids=["text", "part", "parts", "model", "dict", "function"],
)
def test_a_line_may_be_many_things(line: Any, text: str) -> None:
    assert scripted_agent(line).complete("hi").text == text
    assert scripted_agent(line).stream("hi").collect().text == text


@pytest.mark.parametrize(
    "error",
    [
        errors.RateLimitError("x", retry_after=3.0),
        errors.AuthenticationError("x"),
        errors.QuotaExceededError("x"),
        errors.ModelNotFoundError("x"),
        errors.ContextLengthError("x"),
        errors.BadRequestError("x"),
        errors.ContentFilterError("x"),
        errors.OverloadedError("x"),
        errors.ConnectionError("x"),
        errors.TimeoutError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_in_a_script_is_met_as_that_error(error: errors.AgentError) -> None:
    for call in ("complete", "stream"):
        agent = scripted_agent(error, max_retries=0)
        with pytest.raises(type(error)) as caught:
            agent.complete("hi") if call == "complete" else agent.stream("hi").collect()
        assert caught.value.retry_after == error.retry_after


def test_any_other_exception_is_a_lost_connection() -> None:
    with pytest.raises(errors.ConnectionError, match="OSError: unplugged"):
        scripted_agent(OSError("unplugged"), max_retries=0).complete("hi")


def test_a_script_that_is_used_up_says_so() -> None:
    agent = scripted_agent("only one")
    agent.complete("hi")
    with pytest.raises(errors.BadRequestError, match="no more lines"):
        agent.complete("hi")


def test_a_script_that_is_used_up_does_not_hide_the_failure() -> None:
    with pytest.raises(errors.OverloadedError, match="busy"):
        scripted_agent(errors.OverloadedError("busy"), retry=RetryConfig(initial_delay=0.0)).complete("hi")
    with pytest.raises(errors.BadRequestError, match="no more lines for 'That answer does not fit"):
        scripted_agent("no JSON").json("hi", schema=list[int])


def test_without_lines_it_echoes_what_it_was_told() -> None:
    agent = Agent("scripted:echo")
    assert agent.complete("hi").text == "You said: hi"
    picture = Message.user([ContentPart.text_part("look"), ContentPart.image_data_part(b"x")])
    assert agent.complete(picture).text == "You said: look [image_url]"


@pytest.mark.parametrize("choice", ["required", "f"])
def test_a_forced_tool_is_called_with_an_example(choice: str) -> None:
    tool = ToolSpec(name="f", parameters={"type": "object", "properties": {"n": {"type": "integer", "minimum": 5}}})
    (call,) = Agent("scripted:echo").complete("hi", tools=[tool], tool_choice=choice).tool_calls
    assert (call.name, call.arguments) == ("f", {"n": 5})


def test_a_refusal_and_a_call_survive_the_wire() -> None:
    script = [RefusalContent(refusal="no way at all")]
    assert scripted_agent(script).stream("hi").collect().refusal == "no way at all"
    call = ToolCall(id="c9", name="f", arguments={"deep": {"er": [1, 2, {"est": "ü"}]}})
    assert scripted_agent(call).stream("hi").collect().tool_calls == [call]


def test_requests_are_recorded_in_order() -> None:
    script = Script("a", "b")
    agent = Agent("scripted:m", transport=ScriptedTransport(script))
    agent.complete("one")
    agent.complete("two")
    assert [request["messages"][0]["content"] for request in script.requests] == ["one", "two"]


def test_an_answer_may_be_given_byte_by_byte() -> None:
    answer = Answer([b'{"choices":[{"message":{"content":"raw"},"finish_reason":"stop"}]}'])
    assert scripted_agent(answer).complete("hi").text == "raw"


SCHEMAS: dict[str, dict[str, Any]] = {
    "string": {"type": "string", "minLength": 10},
    "short string": {"type": "string", "maxLength": 3},
    "date": {"type": "string", "format": "date"},
    "integer": {"type": "integer", "minimum": 7},
    "number above": {"type": "number", "exclusiveMinimum": 2},
    "number below": {"type": "number", "maximum": -3},
    "between": {"type": "integer", "minimum": -9, "maximum": -3},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "enum": {"enum": ["a", "b"]},
    "const": {"const": 3},
    "default": {"type": "string", "default": "d"},
    "several types": {"type": ["string", "null"]},
    "array": {"type": "array", "items": {"type": "integer"}, "minItems": 2},
    "any of": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "object": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"$ref": "#/$defs/B"}},
        "required": ["a", "b"],
        "$defs": {"B": {"type": "object", "properties": {"c": {"type": "integer"}}, "required": ["c"]}},
    },
    "tree": {
        "$ref": "#/$defs/Node",
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
            }
        },
    },
}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_the_example_for_a_schema_fits_it(schema: dict[str, Any]) -> None:
    value = generate_example(schema)
    if schema is not SCHEMAS["tree"]:  # an endless tree is cut off somewhere
        jsonschema.validate(value, schema)
    assert value is not None or schema == {"type": "null"}


def test_what_cannot_be_read_has_no_example() -> None:
    assert generate_example(True) is None
    assert generate_example({}) is None
    assert generate_example({"$ref": "#/$defs/Nowhere"}) is None
