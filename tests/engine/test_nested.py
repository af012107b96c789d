"""Nested calls: user code that calls another agent, in every combination of sync and async."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent import Agent, errors
from agent.engine.drivers.sync import SyncRun, drain
from agent.engine.flow import Failed, Finished, Flow, Invoke, Spawn, Wait
from agent.testing import LoopbackServer
from agent.transports.http import HttpTransport
from tests.engine.play import Stage, agent_at, never, stream_or_whole


@pytest.fixture
def inner() -> Iterator[Agent]:
    with LoopbackServer(stream_or_whole) as server:
        transport = HttpTransport(proxy=False)
        yield agent_at(server, transport=transport)
        transport.close()


@pytest.fixture
def silent() -> Iterator[Agent]:
    with LoopbackServer(lambda request: never()) as server:
        transport = HttpTransport(proxy=False)
        yield agent_at(server, transport=transport)
        transport.close()


def tool(function: Callable[..., Any]) -> Flow[Any]:
    """As the tool loop runs one: in a branch, off the loop."""

    def invoke() -> Flow[Any]:
        return (yield from Invoke(function, blocking=True))

    branch = yield from Spawn(invoke())
    match (yield from Wait([branch])):
        case Finished(_, value):
            return value
        case Failed(_, error):
            raise error
        case other:
            raise AssertionError(other)


def run_sync(function: Callable[..., Any]) -> Any:
    """A blocking run with one tool, as a tool would start it."""
    return drain(SyncRun(HttpTransport(proxy=False), tool(function)))


def test_a_tool_may_call_agents_in_any_manner(real_stage: Stage, inner: Agent) -> None:
    def call_sync() -> str | None:
        return inner.complete("hi").text

    def call_stream() -> str | None:
        return inner.stream("hi").collect().text

    async def call_async() -> str | None:
        return (await inner.acomplete("hi")).text

    async def call_sync_on_loop() -> str | None:
        return inner.complete("hi").text  # wrong, but it must not deadlock

    def call_in_new_loop() -> str | None:
        return asyncio.run(inner.acomplete("hi")).text

    def flow() -> Flow[list[Any]]:
        texts = []
        for function in (call_sync, call_stream, call_async, call_sync_on_loop, call_in_new_loop):
            texts.append((yield from tool(function)))
        return texts

    played = real_stage.play(flow(), deadline=10)
    assert played.value == ["hello", "t0 t1 t2 ", "hello", "hello", "hello"]


@pytest.mark.timing
def test_sync_in_async_in_sync_three_deep_does_not_deadlock(real_stage: Stage, inner: Agent) -> None:
    async def innermost() -> str | None:
        return (await inner.acomplete("hi")).text

    def in_the_middle() -> Any:
        return run_sync(innermost)

    async def outermost() -> Any:
        return run_sync(in_the_middle)  # a blocking run on a loop's thread, whose own tools are async

    played = real_stage.play(tool(outermost), deadline=10)
    assert played.value == "hello"
    assert played.seconds < 5


@pytest.mark.timing
@pytest.mark.parametrize("manner", ["blocking", "async", "streaming"])
def test_a_sub_agent_inherits_the_deadline(real_stage: Stage, silent: Agent, manner: str) -> None:
    seen: list[tuple[float, errors.AgentError]] = []

    def note(started: float, error: errors.AgentError) -> None:
        seen.append((time.monotonic() - started, error))

    def call_sync() -> None:
        started = time.monotonic()
        try:
            silent.complete("hi")
        except errors.AgentError as error:
            note(started, error)
            raise

    def call_stream() -> None:
        started = time.monotonic()
        try:
            silent.stream("hi", deadline=20).collect()
        except errors.AgentError as error:
            note(started, error)
            raise

    async def call_async() -> None:
        await silent.acomplete("hi")

    function = {"blocking": call_sync, "streaming": call_stream, "async": call_async}[manner]
    played = real_stage.play(tool(function), deadline=0.3)
    assert isinstance(played.error, errors.TimeoutError)
    assert played.error.deadline
    assert played.seconds < 0.5
    if manner != "async":
        end = time.monotonic() + 1
        while not seen and time.monotonic() < end:
            time.sleep(0.005)
        took, error = seen[0]
        assert took < 0.5
        assert isinstance(error, errors.TimeoutError)
        assert error.deadline


@pytest.mark.timing
def test_a_sub_agent_may_have_less_time_but_not_more(real_stage: Stage, silent: Agent) -> None:
    def impatient() -> str:
        with pytest.raises(errors.TimeoutError):
            silent.complete("hi", deadline=0.1)
        return "went on"

    played = real_stage.play(tool(impatient), deadline=5)
    assert played.value == "went on"
    assert played.seconds < 0.6


def test_the_deadline_of_a_tool_is_forgotten_after_it(real_stage: Stage, inner: Agent) -> None:
    real_stage.play(tool(lambda: inner.complete("hi")), deadline=0.3)
    time.sleep(0.31)
    assert inner.complete("hi").text == "hello"


def test_blocking_calls_work_inside_a_running_loop(inner: Agent) -> None:
    async def main() -> None:
        assert inner.complete("hi").text == "hello"
        assert inner.stream("hi").collect().text == "t0 t1 t2 "

        async def call_async() -> str | None:
            return (await inner.acomplete("hi")).text

        assert run_sync(call_async) == "hello"

    asyncio.run(main())
