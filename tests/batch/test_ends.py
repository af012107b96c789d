"""Batches that end early: left, closed, interrupted, cancelled or limited. No outcome is lost."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from typing_extensions import override

from agent import errors
from agent.batch import BatchCancelled, BatchInputError, BatchInterrupted, BatchItem, BatchProgress, BatchStream
from agent.engine.wire import WireRequest
from agent.testing import Answer, Script, scripted_agent
from tests.batch.ways import (
    Blocking,
    Way,
    create_observed_agent,
    create_priced_script,
    delay_responses,
    echo_texts,
    echoes,
    last_text,
)


def test_leaving_a_stream_cancels_what_is_under_way(way: Way) -> None:
    agent, transport = create_observed_agent(script=delay_responses(lambda text: 0.1 if text == "0" else 30.0))
    began = time.monotonic()
    items = way.stream(agent, [str(number) for number in range(8)], until=1, concurrency=8)
    assert [item.index for item in items] == [0]
    assert time.monotonic() - began < 3
    assert transport.cancelled == 7
    assert transport.under_way == 0


def test_closing_a_stream_inside_its_loop_ends_the_loop(way: Way) -> None:
    agent, transport = create_observed_agent(script=delay_responses(lambda text: 0.0 if text == "0" else 30.0))
    items, rest = way.close_early(agent, [str(number) for number in range(8)], concurrency=4)
    assert [item.index for item in items] == [0]
    assert rest == []
    assert transport.begun == transport.cancelled + 1 < 8
    assert transport.under_way == 0


def test_what_had_come_of_a_closed_stream_is_not_lost(way: Way) -> None:
    agent, _ = create_observed_agent()
    stopped: list[int] = []

    def stop(progress: BatchProgress) -> None:
        if progress.done == 3 and not stopped:
            stopped.append(3)
            raise KeyboardInterrupt  # a Ctrl-C is often heard where something is printed

    stream = agent.batch_stream("abcdef".replace("", " ").split(), concurrency=1, on_progress=stop)
    items: list[BatchItem] = []
    with pytest.raises(KeyboardInterrupt):
        items.extend(stream)
    assert [item.index for item in (*items, *stream.rest())] == [0, 1, 2]
    assert stream.rest() == []


def test_closing_a_stream_from_elsewhere_ends_its_loop() -> None:
    agent, transport = create_observed_agent(after=30.0)
    stream = agent.batch_stream(["a", "b"])
    threading.Timer(0.2, stream.close).start()
    began = time.monotonic()
    assert list(stream) == []
    assert time.monotonic() - began < 5
    assert transport.cancelled == 2

    async def main() -> list[BatchItem]:
        stream = agent.abatch_stream(["a", "b"])

        async def later() -> None:
            await asyncio.sleep(0.1)
            await stream.aclose()

        closing = asyncio.create_task(later())
        items = [item async for item in stream]
        await closing
        return items

    assert asyncio.run(main()) == []
    assert transport.cancelled == 4


def test_a_display_may_close_the_stream() -> None:
    agent, _ = create_observed_agent(script=delay_responses(lambda text: 0.0 if text == "0" else 30.0))
    stream: BatchStream
    stream = agent.batch_stream([str(number) for number in range(8)], on_progress=lambda _: stream.close())
    assert [item.index for item in (*stream, *stream.rest())] == [0]


def test_a_stream_cannot_be_iterated_twice(way: Way) -> None:
    agent = scripted_agent()
    if isinstance(way, Blocking):
        stream = agent.batch_stream(["a"])
        assert len(list(stream)) == 1
        with pytest.raises(errors.ConfigurationError, match="cannot be resumed"):
            list(stream)
        return

    async def main() -> None:
        stream = agent.abatch_stream(["a"])
        assert len([item async for item in stream]) == 1
        with pytest.raises(errors.ConfigurationError, match="cannot be resumed"):
            async for _ in stream:
                pass

    asyncio.run(main())


def test_ctrl_c_ends_a_batch_and_keeps_what_is_done() -> None:
    agent, transport = create_observed_agent(script=delay_responses(lambda text: 0.0 if int(text) < 5 else 30.0))

    def interrupt(progress: BatchProgress) -> None:
        if progress.done == 5:
            threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()

    began = time.monotonic()
    with pytest.raises(BatchInterrupted) as caught:
        agent.batch([str(number) for number in range(10)], concurrency=10, on_progress=interrupt)
    assert isinstance(caught.value, KeyboardInterrupt)
    assert time.monotonic() - began < 5
    assert echoes(caught.value.result) == echo_texts(*range(5))
    assert transport.cancelled == 5


def test_ctrl_c_is_heard_while_the_input_takes_its_time() -> None:
    def slow() -> Iterator[str]:
        yield from "ab"
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        time.sleep(30)

    began = time.monotonic()
    with pytest.raises(BatchInterrupted) as caught:
        create_observed_agent()[0].batch(slow())
    assert time.monotonic() - began < 5
    assert echoes(caught.value.result) == echo_texts("a", "b")


def test_cancelling_abatch_keeps_what_is_done() -> None:
    agent, transport = create_observed_agent(script=delay_responses(lambda text: 0.0 if int(text) < 5 else 30.0))

    async def main() -> Any:
        task = asyncio.create_task(agent.abatch([str(number) for number in range(10)]))
        while transport.under_way != 5 or transport.begun != 10:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert len(asyncio.all_tasks()) == 1
        assert isinstance(caught.value.__cause__, BatchCancelled)
        return caught.value.__cause__.result

    assert echoes(asyncio.run(main())) == echo_texts(*range(5))
    assert transport.cancelled == 5


def test_a_timeout_around_abatch_is_a_timeout_and_nothing_is_lost() -> None:
    agent, transport = create_observed_agent(script=delay_responses(lambda text: 0.0 if text == "0" else 30.0))

    async def main() -> Any:
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(0.5):
                await agent.abatch([str(number) for number in range(4)])
        cancelled = caught.value.__cause__
        assert cancelled is not None
        assert isinstance(cancelled.__cause__, BatchCancelled)
        return cancelled.__cause__.result

    assert echoes(asyncio.run(main())) == echo_texts("0")
    assert transport.cancelled == 3


def test_the_limit_in_time_ends_everything_and_says_so(way: Way) -> None:
    agent, _ = create_observed_agent(script=delay_responses(lambda text: 0.0 if int(text) < 2 else 30.0))
    began = time.monotonic()
    result = way.batch(agent, [str(number) for number in range(6)], concurrency=3, max_seconds=0.3)
    assert time.monotonic() - began < 3
    assert [item.ok for item in result] == [True, True, False, False, False, False]
    for item in result.failed:
        assert isinstance(item.error, errors.TimeoutError)
        assert item.error.deadline
    assert "Not sent" in str(result[5].error)
    assert result.stopped == "max_seconds: 0.3 seconds have passed"


def test_after_so_many_failures_nothing_more_is_asked(way: Way) -> None:
    agent, transport = create_observed_agent(script=Script(*[errors.BadRequestError("no")] * 9))
    result = way.batch(agent, list("abcdef"), concurrency=1, max_failures=2)
    assert transport.begun == 2
    assert len(result) == 6
    assert [type(item.error).__name__ for item in result] == ["BadRequestError"] * 2 + ["Aborted"] * 4
    assert result.stopped == "max_failures: 2 of 2 requests failed"


def test_an_input_may_also_raise_when_nothing_more_is_asked_of_it(way: Way) -> None:
    class Broken(list[str]):
        @override
        def __iter__(self) -> Iterator[str]:
            yield from super().__iter__()
            raise OSError("gone")

    agent, _ = create_observed_agent(script=Script(*[errors.BadRequestError("no")] * 9))
    with pytest.raises(BatchInputError, match="OSError after 4 requests: gone") as caught:
        way.batch(agent, Broken("abcd"), concurrency=1, max_failures=1)
    assert len(caught.value.result) == 4


def test_what_is_under_way_when_a_limit_is_reached_is_not_lost(way: Way) -> None:
    def network(request: WireRequest) -> Answer:
        if last_text(request) == "0":
            return Script(errors.BadRequestError("no"))(request)
        answer = Script()(request)
        answer.after = 0.1
        return answer

    agent, transport = create_observed_agent(script=network)
    result = way.batch(agent, (str(number) for number in itertools.count()), concurrency=4, max_failures=1)
    assert [item.ok for item in result] == [False, True, True, True]
    assert transport.begun == 4


def test_the_money_is_counted_and_ends_the_batch(way: Way) -> None:
    agent, transport = create_observed_agent(script=create_priced_script(0.25))
    told: list[BatchProgress] = []
    result = way.batch(agent, list("abcdefgh"), concurrency=1, max_cost=1.0, on_progress=told.append)
    assert transport.begun == 4
    assert result.cost == pytest.approx(1.0)
    assert [round(progress.known_cost, 2) for progress in told[:4]] == [0.25, 0.5, 0.75, 1.0]
    assert result.usage.total_tokens == 60 == result.progress.tokens
    assert result.stopped == "max_cost: $1.000000 of $1 is spent"
    assert [item.ok for item in result] == [True] * 4 + [False] * 4


def test_a_limit_on_money_that_cannot_be_kept_stops_the_batch(way: Way) -> None:
    agent, transport = create_observed_agent()
    result = way.batch(agent, list("abcdefgh"), concurrency=1, max_cost=1.0)
    assert transport.begun == 1
    assert "the price of this model is unknown" in str(result.stopped)
    assert result.progress.unpriced == 1
