"""Options at run time agree with the TypedDicts, with `help`, and with the reference documentation."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import get_args

import pytest

from agent import Agent, AgentConfig, AgentRequest, Hooks, Router
from agent.calls.requests import CALL_OPTIONS, REQUEST_OPTIONS
from agent.loop.flow import RUN_OPTIONS
from agent.routing.strategies import STRATEGIES
from agent.sessions import AgentSession
from agent.types import options
from agent.types.routing import StrategyName
from scripts.option_tables import PAGE, write_page


def keys(options: type) -> set[str]:
    return set(options.__annotations__)


def test_the_typed_dicts_have_all_options() -> None:
    request_options = keys(options.CompleteOptions) - CALL_OPTIONS - {"route"}
    assert request_options == REQUEST_OPTIONS - {"schema", "output_schema"}
    assert keys(options.RunOptions) - keys(options.RequestOptions) == RUN_OPTIONS - {"deps", "history", "prompts"}
    assert {field.name for field in fields(Hooks)} <= keys(options.RunOptions)
    assert keys(options.ConfigFields) == set(AgentConfig.model_fields)
    assert keys(options.RouteOptions) == set(inspect.signature(Router).parameters) - {"targets"}
    assert keys(options.SessionOptions) | {"agent", "session_id", "store"} == set(
        inspect.signature(AgentSession).parameters
    )
    assert set(AgentRequest.model_fields) <= keys(options.PreflightOptions) | {"output_schema"}


def test_every_option_has_a_docstring() -> None:
    docs = options.option_docs()
    for name, documented in docs.items():
        assert set(documented) == keys(getattr(options, name)), name


@pytest.mark.parametrize(
    ("method", "group"),
    [
        ("complete", options.CompleteOptions),
        ("stream", options.CompleteOptions),
        ("json", options.CompleteOptions),
        ("stream_json", options.CompleteOptions),
        ("run", options.RunOptions),
        ("run_stream", options.RunOptions),
        ("batch", options.BatchOptions),
        ("session", options.SessionOptions),
    ],
)
def test_help_lists_options_errors_and_an_example(method: str, group: type) -> None:
    text = inspect.getdoc(getattr(Agent, method)) or ""
    for option, meaning in options.option_docs()[group.__name__].items():
        assert re.search(rf"    {option} \(.+\): {re.escape(' '.join(meaning.split()))}", text)
    assert "Raises:" in text
    assert "```python" in text
    if (other := getattr(Agent, f"a{method}", None)) is not None:
        assert text.partition("Args:")[2] in (inspect.getdoc(other) or "")


def test_the_reference_lists_the_options() -> None:
    assert PAGE.read_text("utf-8") == write_page(), "run `python -m scripts.option_tables`"


def test_every_strategy_has_a_name_in_the_literal() -> None:
    assert set(STRATEGIES) == set(get_args(StrategyName))
