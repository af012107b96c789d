"""The cost of a turn in a long session."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from agent import Agent, Router, tool
from agent.client import Client
from agent.sessions import AgentSession
from agent.stores import SqliteStore
from agent.testing import Answer, ScriptedTransport
from agent.types.routing import StrategyName
from benchmarks.conversations import session_costs
from tests.support.steps import steps_of

MODELS = {
    "chat": "openai-chat:gpt-4o",
    "responses": "openai-responses:gpt-5",
    "anthropic": "anthropic:claude-sonnet-4-5",
    "gemini": "gemini:gemini-2.5-pro",
}
_number = count()


def _reply(api: str) -> dict[str, Any]:
    match api:
        case "chat":
            said: dict[str, Any] = {"role": "assistant", "content": "Yes."}
            choice = {"index": 0, "finish_reason": "stop", "message": said}
            return {"id": "r", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        case "responses":
            text = {"type": "output_text", "text": "Yes.", "annotations": []}
            id = f"msg_{next(_number)}"
            item = {"type": "message", "id": id, "role": "assistant", "status": "completed", "content": [text]}
            return {"id": "r", "object": "response", "model": "m", "status": "completed", "output": [item]}
        case "anthropic":
            said = {"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
            usage = {"input_tokens": 3, "output_tokens": 2}
            return {**said, "content": [{"type": "text", "text": "Yes."}], "usage": usage}
        case _:
            turn = {"role": "model", "parts": [{"text": "Yes."}]}
            return {"candidates": [{"content": turn, "finishReason": "STOP", "index": 0}], "modelVersion": "m"}


def _agent(api: str, **options: Any) -> Agent:
    def network(request: Any) -> Answer:
        return Answer([json.dumps(_reply(api)).encode()], headers={"content-type": "application/json"})

    return Agent(MODELS[api], api_key="sk-0123456789", transport=ScriptedTransport(network), **options)


@tool
def look(place: str) -> str:
    """Look somewhere."""
    return place


def _router(strategy: StrategyName) -> Router:
    return Router([_agent("chat"), _agent("anthropic"), _agent("gemini")], strategy=strategy)


WAYS: dict[str, tuple[Callable[[], Client], str]] = {
    **{api: (partial(_agent, api), "complete") for api in MODELS},
    "settings": (lambda: _agent("chat", default_system="Be kind.", extra={"user": "me"}), "complete"),
    "cached": (lambda: _agent("anthropic", cache="short"), "complete"),
    "run": (lambda: _agent("chat"), "run"),
    "run with tools": (lambda: _agent("anthropic", tools=[look]), "run"),
    **{
        strategy: (partial(_router, strategy), "complete")
        for strategy in ("fallback", "cheapest", "fastest", "sticky", "capability", "least_busy")
    },
    "run of a router": (lambda: Router([_agent("chat", tools=[look]), _agent("anthropic", tools=[look])]), "run"),
}


def _grow(session: AgentSession, ask: str, turns: int) -> None:
    for number in range(turns):
        getattr(session, ask)(f"This is question {number} of a long conversation.")


STEPS_PER_MESSAGE = 150
"""More than any way takes for a message: estimating tokens for three vendors takes 113 steps, encoding 20 to 31."""


@pytest.mark.parametrize("way", WAYS)
def test_the_steps_of_a_turn_grow_with_the_messages_it_sends_and_no_faster(way: str) -> None:
    make, ask = WAYS[way]
    session = make().session()
    act = getattr(session, ask)
    _grow(session, ask, 40)
    young, messages = min(steps_of(lambda: act("Are you sure?")) for _ in range(3)), len(session.messages)
    _grow(session, ask, 400)
    old, added = min(steps_of(lambda: act("Are you sure?")) for _ in range(3)), len(session.messages) - messages
    assert added > 800
    assert old - young < STEPS_PER_MESSAGE * added


@pytest.mark.timing
def test_the_time_of_a_turn_grows_no_faster_than_its_session() -> None:
    """Check that 16 times as many messages take at most 16 times as long, with some slack."""
    costs = session_costs(1_600, (100, 1_600))
    assert costs[1_600][0] <= 24 * costs[100][0]


@pytest.mark.timing
def test_what_is_written_of_a_turn_does_not_grow_with_its_session(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "sessions.db")
    written: list[int] = []
    append = store.append

    def count_append(session_id: str, rows: list[dict[str, object]], **options: object) -> int:
        written.append(len(rows))
        return append(session_id, rows, **options)  # type: ignore[arg-type]

    store.append = count_append  # type: ignore[assignment, method-assign]
    session_costs(120, (), store)
    assert set(written) == {2}  # the question and the answer
    store.close()


@pytest.mark.soak
@pytest.mark.timing
def test_a_session_of_ten_thousand_turns_goes_on_and_is_read_again(tmp_path: Path) -> None:
    """Its last turn sends a hundred times as much as the hundredth, and takes the time of sending it."""
    store = SqliteStore(tmp_path / "sessions.db")
    costs = session_costs(10_000, (100, 10_000), store)
    assert costs[10_000][1] > 80 * costs[100][1]
    assert costs[10_000][0] <= 150 * costs[100][0]
    (listed,) = store.list()
    again = _agent("chat").session(session_id=listed.id, store=store)
    assert len(again.messages) == 20_000
    assert again.complete("Are you still there?").text == "Yes."
    assert len(again.messages) == 20_002
    store.close()
