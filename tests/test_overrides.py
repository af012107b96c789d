"""Overrides are validated alone: one setting does not validate a long conversation again."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from agent import Agent, Hooks, Router, Target, tool
from agent.batch import run_file
from agent.calls.requests import CALL_OPTIONS, REQUEST_OPTIONS, read_request
from agent.errors import ConfigurationError
from agent.loop import AgentLoop
from agent.sessions import AgentSession
from agent.testing import Script, SimulatedLoop, Simulation, scripted_agent, simulate
from agent.types import AgentRequest, Message, ToolLoopConfig, ToolSpec
from agent.types._base import validate_with
from agent.types.option_errors import _SYNONYMS, AGENT_KEYS
from agent.types.options import RouteOptions


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


AGENT = scripted_agent()
ROUTER = Router([AGENT])
CALLS = [
    f"{prefix}{name}"
    for name in ("complete", "stream", "json", "stream_json", "run", "run_stream")
    for prefix in ("", "a")
]
BATCHES = ["batch", "abatch", "batch_stream", "abatch_stream"]
FORMS: dict[str, Callable[..., Any]] = {
    **{f"Agent.{name}": partial(getattr(AGENT, name), "hi") for name in (*CALLS, "count_tokens", "acount_tokens")},
    **{f"Router.{name}": partial(getattr(ROUTER, name), "hi") for name in (*CALLS, "explain", "check", "count_tokens")},
    **{f"{type(client).__name__}.{name}": partial(getattr(client, name), ["hi"])
       for client in (AGENT, ROUTER) for name in BATCHES},
    **{f"session.{name}": partial(getattr(AGENT.session(), name), "hi") for name in CALLS if "stream_json" not in name
       and "json" not in name},
    "session.json": partial(AGENT.session().json, "hi", schema=int),
    "Agent.as_tool": partial(AGENT.as_tool, "name", "description"),
    "Agent.session": AGENT.session,
    "Agent.with_config": AGENT.with_config,
    "Router.with_config": ROUTER.with_config,
    "Agent": partial(Agent, "scripted:m"),
    "Router": partial(Router, [AGENT]),
    "Target": partial(Target, AGENT),
    "AgentSession": partial(AgentSession, AGENT),
    "AgentLoop": partial(AgentLoop, AGENT),
    "Hooks": Hooks,
    "tool": tool,
    "scripted_agent": scripted_agent,
    "simulate": partial(simulate, Simulation(Script("hi")), AGENT, "hi"),
    "SimulatedLoop": partial(SimulatedLoop, Simulation(Script("hi")), AGENT, "hi"),
    "run_file": partial(run_file, AGENT, "in.jsonl", "out.jsonl"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_method_refuses_unknown_options_before_it_sends(form: str) -> None:
    with pytest.raises(ConfigurationError, match="has no option 'nonsense'") as caught:
        result = FORMS[form](nonsense=1)
        if inspect.isawaitable(result):
            asyncio.run(result)  # type: ignore[arg-type]
    assert (caught.value.field, caught.value.attempts) == ("nonsense", ())
    assert caught.value.fix


@pytest.mark.parametrize(
    ("form", "option", "fix"),
    [
        ("Agent.complete", "instructions", "Use system=."),
        ("Agent.complete", "system_prompt", "Use system=."),
        ("Agent.complete", "api_base", "Its name is base_url. Set it on the agent: Agent(..., base_url=...), or with_"),
        ("Agent.complete", "retries", "Use max_retries=."),
        ("Agent.complete", "num_retries", "Use max_retries=."),
        ("Agent.complete", "output_type", "Use schema=."),
        ("Agent.complete", "time_out", "Did you mean timeout?"),
        ("Agent.complete", "extra_headers", "Use headers=."),
        ("Agent.complete", "route", "Only routers have it"),
        ("Agent.run", "before_toolcall", "Did you mean before_tool_call?"),
        ("Agent.batch", "concurency", "Did you mean concurrency?"),
        ("Agent.batch", "deps", "run(..., deps=...)"),
        ("Agent", "instructions", "Use default_system=."),
        ("Agent", "api_base", "Use base_url=."),
        ("Agent", "num_retries", "Use max_retries=."),
        ("Agent", "response_format", "Its name is schema. Pass it to a call: complete(..., schema=...)."),
        ("Agent", "reasoning_effort", "Use thinking=."),
        ("Agent", "max_completion_tokens", "Use max_tokens=."),
        ("Agent", "tool", "Did you mean tools?"),
        ("Agent.complete", "hooks", "Set it on the agent: Agent(..., hooks=...)."),
        ("Router", "num_retries", "Use retry=."),
        ("Router", "strategie", "Did you mean strategy?"),
        ("Router", "system_prompt", "Its name is system. Pass it to a call"),
        ("Router", "temperature", "Set it on the agent: Agent(..., temperature=...), or pass it to a call"),
        ("Agent.session", "instructions", "Use system=."),
        ("Agent.session", "temperature", "or pass it to a call"),
        ("session.run", "temprature", "Did you mean temperature?"),
        ("session.run", "concurrency", "Pass it to batch()"),
        ("Target", "wieght", "Did you mean weight?"),
        ("tool", "riks", "Did you mean risk?"),
    ],
)
def test_names_of_other_libraries_and_places_are_answered_with_ours(form: str, option: str, fix: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FORMS[form](**{option: 1})
    assert (caught.value.fix or "").startswith(fix) or fix in (caught.value.fix or "")


def test_no_name_of_another_library_is_one_of_ours() -> None:
    known = {*REQUEST_OPTIONS, *CALL_OPTIONS}
    for ours, *others in _SYNONYMS:
        assert ours in {*known, *AGENT_KEYS, *RouteOptions.__annotations__, *ToolLoopConfig.model_fields}
        assert known.isdisjoint(others)
