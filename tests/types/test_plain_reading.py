"""Plain dicts of the commonest shapes are read without pydantic, into the very same messages."""

from __future__ import annotations

import pickle
from itertools import product
from typing import Any

import pytest
from pydantic import ValidationError

from agent.types import AgentConfig, AgentRequest, FrozenDict, Message, Role, ToolSpec, Value
from agent.types.messages import _plain_message
from agent.types.notes import kept_notes

ABSENT: Any = object()
CONTENTS: tuple[Any, ...] = (
    "hi", "", None, 5, ["hi"], [],
    [{"type": "text", "text": "a"}, {"type": "text", "text": ""}],
    [{"type": "text", "text": "a", "cache": "short"}], [{"type": "text", "text": 3}], [{"type": "image", "text": "a"}],
)  # fmt: skip
ARGUMENTS: tuple[Any, ...] = (
    '{"a":{"b":[1.5,true,null]}}', "", None, "{", "[1]", "null", '{"a":NaN}', {"a": [1, {"b": (1, 2)}]}, {1: 2}, {},
)  # fmt: skip


def called(arguments: Any, **fields: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}, **fields}


CALLS: tuple[Any, ...] = (
    ABSENT, None, [], "x", [called("{}"), called("{}")], [called("{}", id=3)], [called("{}", type="odd")],
    [called("{}", index=0)], [{"id": "c", "name": "f", "arguments": {}}], *([called(one)] for one in ARGUMENTS),
)  # fmt: skip


def anatomy(value: Any) -> Any:
    """All that a value consists of, types, order and given fields included."""
    if isinstance(value, Value):
        fields = [(name, anatomy(one)) for name, one in value.__dict__.items()]
        return type(value), fields, value.model_fields_set, value.__pydantic_extra__, value.__pydantic_private__
    if isinstance(value, dict):
        return type(value), [(key, anatomy(one)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [anatomy(one) for one in value]
    return type(value), value


def read(data: dict[str, Any], read_as: Any) -> Any:
    try:
        return anatomy(read_as(data))
    except ValidationError as error:
        return [problem["type"] for problem in error.errors()]


@pytest.mark.parametrize("role", ["user", "system", "assistant", "tool", "developer", "tool_result", Role.USER, "x", 3])
def test_a_dict_is_read_as_pydantic_reads_it(role: Any) -> None:
    for content, calls, id, name in product(CONTENTS, CALLS, (ABSENT, None, "t", 3), (ABSENT, None, "n", 4)):
        fields = {"role": role, "content": content, "tool_calls": calls, "tool_call_id": id, "name": name}
        data = {key: value for key, value in fields.items() if value is not ABSENT}
        for one in (data, {**data, "id": "m"}):
            assert read(one, lambda data: AgentRequest(messages=[data]).messages[0]) == read(
                one, Message.model_validate
            ), one


@pytest.mark.parametrize(
    "data",
    [
        {"role": "user", "content": "hi"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [called('{"a":1}')]},
        {"role": "tool", "content": "found", "tool_call_id": "c"},
        {"role": "tool", "content": "found", "tool_call_id": "c", "name": "f"},
    ],
)
def test_the_commonest_shapes_take_the_short_way(data: dict[str, Any]) -> None:
    message = _plain_message(data)
    assert message == Message.model_validate(data)
    assert message is not None
    assert kept_notes(message) == {}


def test_what_was_passed_is_neither_changed_nor_shared() -> None:
    data: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [called({"a": [1]})]}
    request = AgentRequest.from_dict({"messages": [data]})
    data["tool_calls"][0]["function"]["arguments"]["a"].append(2)
    assert request.messages[0].tool_calls is not None
    assert request.messages[0].tool_calls[0].arguments == {"a": [1]}


@pytest.mark.parametrize("role", [*Role, *(role.value for role in Role)])
@pytest.mark.parametrize("content", ["", "Hello", "caf\u00e9 \U0001f600"])
def test_a_message_of_words_is_what_pydantic_would_have_made_of_it(role: Any, content: str) -> None:
    made, read = Message(role, content), Message.model_validate({"role": role, "content": content})
    assert made == read
    assert list(made.__dict__.items()) == list(read.__dict__.items()), "a field is missing, or out of order"
    assert made.model_fields_set == read.model_fields_set
    assert type(made.role) is Role
    assert made.to_dict() == read.to_dict()
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize(("role", "content"), [("nobody", "x"), (1, "x"), (None, "x"), ("user", 1)])
def test_what_is_no_message_is_said_by_pydantic(role: Any, content: Any) -> None:
    with pytest.raises(ValidationError):
        Message(role, content)


SCHEMA = {"type": "object", "properties": {"x": {"type": ["string", "null"], "default": None}}, "required": ["x"]}


@pytest.mark.parametrize(
    "given", [{}, {"description": "Does it."}, {"parameters": SCHEMA}, {"description": "", "parameters": {}}]
)
def test_a_plain_tool_is_what_pydantic_would_have_made_of_it(given: dict[str, Any]) -> None:
    made, read = ToolSpec(name="do.it-1", **given), ToolSpec.model_validate({"name": "do.it-1", **given})
    assert made == read
    assert hash(made) == hash(read)
    assert list(made.__dict__) == list(read.__dict__)
    assert made.model_fields_set == read.model_fields_set
    assert made.to_dict() == read.to_dict()
    assert type(made.parameters) is type(read.parameters) is FrozenDict


def test_schemas_that_compare_equal_are_told_apart() -> None:
    """Whatever is kept of one schema is not taken for another: 1, 1.0 and true are not the same."""
    values: tuple[Any, ...] = (1, True, 1.0, "1", b"1", [1], (1,), [True], {"1": 1}, {1: 1}, -0.0, 0.0, None, 10**30)
    for value in (*values, *reversed(values)):
        given: dict[str, Any] = {"name": "look", "parameters": {"type": "object", "default": value}}
        assert anatomy(ToolSpec(**given)) == anatomy(ToolSpec.model_validate(given)), value
    orders: tuple[dict[str, Any], ...] = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert [list(ToolSpec(name="look", parameters=order).parameters) for order in orders] == [["a", "b"], ["b", "a"]]


def test_a_tool_keeps_its_schema_whatever_becomes_of_what_was_passed() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"n": {"enum": [1]}}}
    tools = [ToolSpec(name="look", parameters=schema), ToolSpec(name="see", parameters=schema)]
    schema["properties"]["n"]["enum"].append(2)
    tools.append(ToolSpec(name="watch", parameters=schema))
    assert [tool.parameters["properties"]["n"]["enum"] for tool in tools] == [[1], [1], [1, 2]]
    with pytest.raises(TypeError, match="read-only"):
        tools[0].parameters["properties"]["n"]["enum"].append(3)


def test_making_a_tool_takes_nothing_out_of_what_it_is_given() -> None:
    """What is no JSON stays what it is: an iterator has been read once it has been written down."""
    numbers = (number for number in (1, 2, 3))
    tool = ToolSpec(name="count", parameters={"type": "object", "default": numbers})
    assert tool.parameters["default"] is numbers
    assert list(numbers) == [1, 2, 3]


@pytest.mark.parametrize(
    "given", [{"name": "a b"}, {"name": ""}, {"name": 1}, {"name": "a", "parameters": [1]}, {"description": "nameless"}]
)
def test_what_is_no_tool_is_said_by_pydantic(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ToolSpec(**given)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"api_key": "sk-1"},
    {"base_url": "http://127.0.0.1:80/v1", "api_key": "sk-1"},
    {"max_tokens": 5, "max_retries": 0},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_plain_settings_are_what_pydantic_would_have_made_of_them(settings: dict[str, Any]) -> None:
    made = AgentConfig.plain("openai", "gpt-4o", settings)
    read = AgentConfig(provider="openai", model="gpt-4o", **settings)
    assert made is not None
    assert made == read
    assert list(made.__dict__) == list(read.__dict__)
    assert [type(value) for value in made.__dict__.values()] == [type(value) for value in read.__dict__.values()]
    assert made.model_fields_set == read.model_fields_set
    assert "sk-1" not in repr(made)


@pytest.mark.parametrize(
    "settings",
    [
        {"api_key": ""},
        {"api_key": "a b"},
        {"api_key": 5},
        {"apikey": "sk-1"},
        {"base_url": "ftp://x"},
        {"base_url": "http://user:password@host"},
        {"max_tokens": 0},
        {"max_tokens": True},
        {"max_retries": 11},
        {"temperature": 0.5},
    ],
)
def test_settings_that_need_a_closer_look_are_left_to_pydantic(settings: dict[str, Any]) -> None:
    assert AgentConfig.plain("openai", "gpt-4o", settings) is None
