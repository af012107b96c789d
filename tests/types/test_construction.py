"""How values are constructed: from what, and without sharing mutable data with it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from agent.types import AgentRequest, Message, Role, ToolSpec


def count_calls(arguments: Any, **fields: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}, **fields}


def test_what_was_passed_is_neither_changed_nor_shared() -> None:
    data: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [count_calls({"a": [1]})]}
    request = AgentRequest.from_dict({"messages": [data]})
    data["tool_calls"][0]["function"]["arguments"]["a"].append(2)
    assert request.messages[0].tool_calls is not None
    assert request.messages[0].tool_calls[0].arguments == {"a": [1]}


def test_a_tool_keeps_its_schema_whatever_becomes_of_what_was_passed() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"n": {"enum": [1]}}}
    tools = [ToolSpec(name="look", parameters=schema), ToolSpec(name="see", parameters=schema)]
    schema["properties"]["n"]["enum"].append(2)
    tools.append(ToolSpec(name="watch", parameters=schema))
    assert [tool.parameters["properties"]["n"]["enum"] for tool in tools] == [[1], [1], [1, 2]]
    with pytest.raises(TypeError, match="read-only"):
        tools[0].parameters["properties"]["n"]["enum"].append(3)


def test_making_a_tool_takes_nothing_out_of_what_it_is_given() -> None:
    """Values that are no JSON are kept as they are, such as iterators."""
    numbers = (number for number in (1, 2, 3))
    tool = ToolSpec(name="count", parameters={"type": "object", "default": numbers})
    assert tool.parameters["default"] is numbers
    assert list(numbers) == [1, 2, 3]


@pytest.mark.parametrize("role", [*Role, *(role.value for role in Role)])
@pytest.mark.parametrize("content", ["", "Hello", "caf\u00e9 \U0001f600"])
def test_a_message_of_plain_text_equals_a_validated_one(role: Any, content: str) -> None:
    made, read = Message(role, content), Message.model_validate({"role": role, "content": content})
    assert made == read
    assert list(made.__dict__.items()) == list(read.__dict__.items()), "a field is missing, or out of order"
    assert made.model_fields_set == read.model_fields_set
    assert type(made.role) is Role
    assert made.to_dict() == read.to_dict()
    assert pickle.loads(pickle.dumps(made)) == made
    assert made.copy_with(name="n").model_fields_set == {"role", "content", "name"}
    assert made.model_fields_set == {"role", "content"}


@pytest.mark.parametrize(("role", "content"), [("nobody", "x"), (1, "x"), (None, "x"), ("user", 1), ([], "x")])
def test_an_invalid_message_is_refused(role: Any, content: Any) -> None:
    with pytest.raises(ValidationError):
        Message(role, content)
