"""Overrides are validated alone: one setting does not validate a long conversation again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent.calls.requests import read_request
from agent.errors import ConfigurationError
from agent.types import AgentRequest, Message, ToolSpec
from agent.types._base import validate_with


def look(name: str = "look") -> ToolSpec:
    return ToolSpec(name=name, parameters={"type": "object", "properties": {}})


GIVEN: list[Any] = [
    AgentRequest(input="hi"),
    AgentRequest(input="hi", tools=[look("own")], temperature=0.5, stop="END", output_schema={"type": "object"}),
    AgentRequest(messages=[Message("user", "hi")], metadata={"a": [1]}, system="s"),
]
OVERRIDES: list[dict[str, Any]] = [
    {"tools": (look(), look("other"))},
    {"tools": ()},
    {"tools": ({"type": "web_search"}, {"name": "plain"})},
    {"temperature": 1, "max_tokens": 5, "stop": "STOP"},
    {"output_schema": {"type": "object", "properties": {}}},
    {"messages": [{"role": "user", "content": "other"}], "input": None},
    {"thinking": "low", "logprobs": True, "metadata": {"b": {"c": 1}}},
    {"tools": (look(), look())},
    {"tools": (5,)},
    {"tools": None, "temperature": 9},
    {"messages": "hi"},
]


def outcome(make: Callable[[], AgentRequest]) -> Any:
    try:
        made = validate_with(make)
    except ConfigurationError as error:
        return str(error), error.field, error.fix
    return list(made.__dict__.items()), made.model_fields_set


@pytest.mark.parametrize("overrides", OVERRIDES)
@pytest.mark.parametrize("given", GIVEN)
def test_what_comes_of_them_is_a_changed_copy(given: AgentRequest, overrides: dict[str, Any]) -> None:
    assert outcome(lambda: read_request(given, overrides)) == outcome(lambda: given.model_copy(update=overrides))


@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ("temprature", "Did you mean temperature?"),
        ("reasoning_effort", "Use thinking=."),
        ("response_format", "Use schema=."),
        ("max_completion_tokens", "Use max_tokens=."),
        ("deps", "Pass it to run() or run_stream(), which execute tools: run(..., deps=...)."),
        ("before_tool_call", "run(..., before_tool_call=...)"),
        ("concurrency", "Pass it to batch() or batch_stream()."),
        ("keep_partial", "Pass it to session()."),
        ("base_url", "Agent(..., base_url=...)"),
        ("strategy", 'route={"strategy": ...}'),
        ("max_turns", 'run(..., loop={"max_iterations": ...})'),
        ("stream", "Call stream() or astream() instead."),
        ("zzz", "Use one of api_key, background, betas,"),
    ],
)
def test_an_unknown_option_is_an_error_that_names_the_right_one(option: str, fix: str) -> None:
    with pytest.raises(ConfigurationError, match=f"has no option '{option}'") as caught:
        read_request("hi", {option: 1})
    assert caught.value.field == option
    assert fix in (caught.value.fix or "")


@pytest.mark.parametrize(
    "messages",
    [
        [Message("user", "hi"), Message("assistant", "ho")],
        (Message("user", "hi"),),
        [Message("user", "hi"), {"role": "user", "content": "ho"}],
        [],
        [Message("user", "hi"), 5],
        ["hi"],
    ],
)
def test_a_list_is_read_as_the_messages_of_a_request(messages: Any) -> None:
    assert outcome(lambda: read_request(messages, {})) == outcome(lambda: AgentRequest(messages=messages))
