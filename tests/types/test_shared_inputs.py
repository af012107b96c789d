"""Values do not share mutable data with what they were made from."""

from __future__ import annotations

from typing import Any

import pytest

from agent.types import AgentRequest, ToolSpec


def called(arguments: Any, **fields: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}, **fields}


def test_what_was_passed_is_neither_changed_nor_shared() -> None:
    data: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [called({"a": [1]})]}
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
    """What is no JSON stays what it is: an iterator has been read once it has been written down."""
    numbers = (number for number in (1, 2, 3))
    tool = ToolSpec(name="count", parameters={"type": "object", "default": numbers})
    assert tool.parameters["default"] is numbers
    assert list(numbers) == [1, 2, 3]
