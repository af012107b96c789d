"""Calls leave no reference cycles behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable

import pytest

from agent import Agent, Router, errors
from agent.testing import scripted_agent
from agent.types import AgentRequest, AgentResponse, Message
from tests.engine.play import without_gc


def _agent() -> Agent:
    return scripted_agent("hello")


def _router() -> Router:
    return Router([scripted_agent("hello", model="a"), scripted_agent("hello", model="b")])


def _make_fallback_router() -> Router:
    return Router([scripted_agent(errors.OverloadedError("busy"), model="a"), scripted_agent("hello", model="b")])


def _answer(asker: Agent | Router, question: AgentRequest, *, awaits: bool, streaming: bool) -> AgentResponse:
    async def later() -> AgentResponse:
        return await (asker.astream(question).collect() if streaming else asker.acomplete(question))

    if awaits:
        return asyncio.run(later())
    return asker.stream(question).collect() if streaming else asker.complete(question)


@pytest.mark.parametrize("make", [_agent, _router, _make_fallback_router])
@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_call_leaves_no_reference_cycle(make: Callable[[], Agent | Router], awaits: bool, streaming: bool) -> None:
    """A cycle would keep request, response and errors until garbage collection."""
    question = AgentRequest(messages=(Message.user("a long story"),))
    with without_gc():
        response = _answer(make(), question, awaits=awaits, streaming=streaming)
        assert response.text == "hello"
        asked, answered = weakref.ref(question), weakref.ref(response)
        del question, response
        assert asked() is None, gc.get_referrers(asked())
        assert answered() is None, gc.get_referrers(answered())


@pytest.mark.parametrize("make", [_router, _make_fallback_router])
def test_the_answer_of_a_router_does_not_keep_the_conversation(make: Callable[[], Router]) -> None:
    question = AgentRequest(messages=(Message.user("a long story"),))
    asked = weakref.ref(question)
    with without_gc():
        response = make().complete(question)
        del question
        assert asked() is None, gc.get_referrers(asked())
    assert [candidate.target for candidate in response.route.candidates] == ["scripted:a", "scripted:b"]


def _make_refused_agent() -> Agent:
    return scripted_agent(errors.BadRequestError("no"))


def _make_stopping_router() -> Router:
    return Router([scripted_agent(errors.BadRequestError("no"), model="a"), scripted_agent("hello", model="b")])


def _make_late_stopping_router() -> Router:
    busy, wrong = errors.OverloadedError("busy"), errors.BadRequestError("no")
    return Router([scripted_agent(busy, model="a"), scripted_agent(wrong, model="b"), scripted_agent("c", model="c")])


def _make_exhausted_router() -> Router:
    return Router([scripted_agent(errors.ModelNotFoundError("no"), model=name) for name in "ab"])


def _attempts_of_failure(asker: Agent | Router, question: AgentRequest, *, awaits: bool, streaming: bool) -> int:
    async def later() -> int:
        try:  # in here: asyncio keeps what a task raises in a cycle of its own
            await (asker.astream(question).collect() if streaming else asker.acomplete(question))
        except errors.AgentError as error:
            return len(error.attempts)
        return 0

    if awaits:
        return asyncio.run(later())
    try:
        _answer(asker, question, awaits=False, streaming=streaming)
    except errors.AgentError as error:
        return len(error.attempts)
    return 0


@pytest.mark.parametrize(
    ("make", "attempts"),
    [
        (_make_refused_agent, 1),
        (_make_stopping_router, 1),
        (_make_late_stopping_router, 2),
        (_make_exhausted_router, 2),
    ],
)
@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_failure_leaves_no_reference_cycle(
    make: Callable[[], Agent | Router], attempts: int, awaits: bool, streaming: bool
) -> None:
    question = AgentRequest(messages=(Message.user("a long story"),))
    with without_gc():
        assert _attempts_of_failure(make(), question, awaits=awaits, streaming=streaming) == attempts
        asked = weakref.ref(question)
        del question
        assert asked() is None, gc.get_referrers(asked())
