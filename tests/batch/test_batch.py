"""Batches: order, limits, isolation of failures, and cleanup."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import random
import resource
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from pydantic import BaseModel
from typing_extensions import override

from agent import Agent, Router, errors
from agent.batch import BatchInputError, BatchProgress
from agent.engine.wire import WireRequest
from agent.middleware import Middleware
from agent.testing import Answer, LoopbackServer, Script, scripted_agent
from agent.types import AgentRequest, Message
from tests.batch.ways import (
    Awaiting,
    Way,
    create_observed_agent,
    delay_responses,
    echo_texts,
    echoes,
    last_text,
    slowly,
)

# Order, and what a request may be


def test_results_come_in_the_order_of_the_input(way: Way, rng: random.Random) -> None:
    waits = {str(number): rng.random() * 0.02 for number in range(60)}
    agent, transport = create_observed_agent(script=delay_responses(waits.__getitem__))
    result = way.batch(agent, list(waits), concurrency=16)
    assert echoes(result) == echo_texts(*waits)
    assert [item.index for item in result] == list(range(60))
    assert [item.request for item in result] == list(waits)
    assert result.ok
    assert len(result) == 60
    assert transport.most <= 16


def test_a_stream_gives_what_is_done_first(way: Way) -> None:
    agent, _ = create_observed_agent(script=delay_responses(float))
    items = way.stream(agent, ["0.2", "0.1", "0.001"], concurrency=3)
    assert [item.index for item in items] == [2, 1, 0]
    assert [item.unwrap().text for item in items] == echo_texts("0.001", "0.1", "0.2")


def test_requests_may_be_anything_that_complete_takes(way: Way) -> None:
    requests = ["text", Message.user("message"), [Message.user("list")], AgentRequest(input="request")]
    assert echoes(way.batch(scripted_agent(), requests)) == echo_texts("text", "message", "list", "request")


def test_fields_of_the_requests_are_given_once_for_all(way: Way) -> None:
    class City(BaseModel):
        name: str

    agent = scripted_agent({"name": "Paris"}, {"name": "Rome"})
    result = way.batch(agent, ["a", "b"], schema=City, concurrency=1, temperature=0.5)
    assert [item.unwrap().output for item in result] == [City(name="Paris"), City(name="Rome")]


def test_a_router_has_batches_too(way: Way) -> None:
    router = Router([scripted_agent(*[errors.BadRequestError("no")] * 9, model="a"), scripted_agent(model="b")])
    result = way.batch(router, ["one", "two"], route={"strategy": "round_robin"})
    assert len(result) == 2
    first = way.batch(Router([scripted_agent(errors.OverloadedError("busy"), model="a"), scripted_agent()]), ["hi"])
    assert first[0].unwrap().text == "You said: hi"


def test_an_empty_input_is_an_empty_result(way: Way) -> None:
    result = way.batch(scripted_agent(), [])
    assert list(result) == []
    assert result.ok
    assert result.progress == BatchProgress(total=0, elapsed=result.progress.elapsed)


# Errors


def test_an_error_of_one_request_leaves_the_others_alone(way: Way) -> None:
    def network(request: WireRequest) -> Answer:
        if last_text(request) == "bad":
            return Script(errors.BadRequestError("not like this"))(request)
        return Script()(request)

    agent, _ = create_observed_agent(script=network)
    requests = ["a", "bad", 5, AgentRequest(), "b"]
    result = way.batch(agent, requests, concurrency=2)
    assert [item.ok for item in result] == [True, False, False, False, True]
    assert isinstance(result[1].error, errors.BadRequestError)
    assert isinstance(result[2].error, errors.ConfigurationError)
    assert result[2].error.field == "request"
    assert [item.index for item in result.failed] == [1, 2, 3]
    assert [response and response.text for response in result.responses] == [
        *echo_texts("a"),
        None,
        None,
        None,
        *echo_texts("b"),
    ]
    assert not result.ok
    assert result.progress.failed == 3
    with pytest.raises(errors.BadRequestError) as caught:
        result.unwrap()
    assert caught.value.__notes__ == ["Request 1 of the batch; 3 of 5 failed."]


def test_what_code_of_the_user_raises_is_the_error_of_that_request(way: Way) -> None:
    class Panic(BaseException):
        """As extensions in other languages raise."""

    class Breaks(Middleware):
        @override
        def before(self, request: AgentRequest, call: Any) -> None:
            if request.input == "exit":
                raise SystemExit(3)
            if request.input == "panic":
                raise Panic
            if request.input == "cancel":
                raise asyncio.CancelledError
            if request.input == "odd":
                raise ZeroDivisionError("odd")

    result = way.batch(scripted_agent(middleware=[Breaks()]), ["a", "exit", "odd", "panic", "cancel", "b"])
    assert [item.ok for item in result] == [True, False, False, False, False, True]
    assert str(result[1].error) == "User code raised SystemExit."
    assert isinstance(result[2].error, ZeroDivisionError)
    assert str(result[3].error) == "User code raised Panic."
    assert str(result[4].error) == "The request cancelled itself."


@pytest.mark.parametrize(
    ("requests", "options", "field"),
    [
        ("one question", {}, "requests"),
        (AgentRequest(input="one"), {}, "requests"),
        (Message.user("one"), {}, "requests"),
        ({"input": "one"}, {}, "requests"),
        (7, {}, "requests"),
        (["a"], {"concurrency": 0}, "concurrency"),
        (["a"], {"concurrency": True}, "concurrency"),
        (["a"], {"max_failures": 0}, "max_failures"),
        (["a"], {"max_cost": 0}, "max_cost"),
        (["a"], {"max_seconds": -1}, "max_seconds"),
        (["a"], {"total": -1}, "total"),
        (["a"], {"on_progress": 7}, "on_progress"),
        (["a"], {"temperature": 7}, "temperature"),
        (["a"], {"concurency": 7}, "concurency"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_before_anything_is_sent(
    way: Way, requests: Any, options: dict[str, Any], field: str
) -> None:
    agent, transport = create_observed_agent()
    with pytest.raises(errors.ConfigurationError) as caught:
        way.batch(agent, requests, **options)
    assert caught.value.field == field
    assert caught.value.fix or field == "temperature"
    assert transport.begun == 0


def test_a_missing_key_is_one_error_and_not_one_for_each_request(way: Way) -> None:
    with pytest.raises(errors.AuthenticationError):
        way.batch(Agent("openai-chat:gpt-4o"), ["a", "b"])
    with pytest.raises(errors.AuthenticationError, match=r"No target is usable: openai-chat:a: There is no"):
        way.batch(Router(["openai-chat:a", "anthropic:b"]), ["a", "b"])
    assert way.batch(Router(["openai-chat:a", scripted_agent()]), ["a", "b"]).ok


def test_a_blocking_batch_does_not_take_async_iterables() -> None:
    with pytest.raises(errors.ConfigurationError, match="abatch"):
        scripted_agent().batch(slowly(["a"]))  # type: ignore[call-overload]


def test_an_input_that_raises_loses_nothing_that_was_asked(way: Way) -> None:
    def broken() -> Iterator[str]:
        yield from "abcde"
        raise OSError("the cursor is gone")

    agent, _ = create_observed_agent(after=0.02)
    with pytest.raises(BatchInputError, match="OSError after 5 requests: the cursor is gone") as caught:
        way.batch(agent, broken(), concurrency=8)
    assert echoes(caught.value.result) == echo_texts(*"abcde")
    assert isinstance(caught.value.__cause__, OSError)


def test_an_async_input_that_raises_loses_nothing_either() -> None:
    async def broken() -> Any:
        yield "a"
        await asyncio.sleep(0.001)
        raise OSError("gone")

    with pytest.raises(BatchInputError) as caught:
        Awaiting().batch(scripted_agent(), broken())
    assert echoes(caught.value.result) == echo_texts("a")


def test_an_async_input_that_is_cancelled_from_within_is_one_that_raises() -> None:
    async def broken() -> Any:
        yield "a"
        raise asyncio.CancelledError

    with pytest.raises(BatchInputError, match="the input was cancelled") as caught:
        Awaiting().batch(scripted_agent(), broken())
    assert echoes(caught.value.result) == echo_texts("a")


def test_an_async_input_that_ends_in_a_panic_is_no_input_that_ends() -> None:
    class Panic(BaseException):
        pass

    async def broken() -> Any:
        yield "a"
        raise Panic

    with pytest.raises(Panic):
        Awaiting().batch(scripted_agent(), broken())


# Reading the input


@pytest.mark.parametrize("concurrency", [1, 3, 8])
def test_an_input_without_an_end_is_read_only_as_far_as_needed(way: Way, concurrency: int) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        for number in itertools.count():
            read = number + 1
            yield str(number)

    agent, transport = create_observed_agent()
    items = way.stream(agent, endless(), until=20, concurrency=concurrency)
    assert len({item.index for item in items}) == 20
    assert read <= 20 + 2 * concurrency
    assert transport.most <= concurrency
    assert transport.under_way == 0


def test_whoever_does_not_take_items_is_not_overrun() -> None:
    read = 0

    def count() -> Iterator[str]:
        nonlocal read
        for number in range(1000):
            read = number + 1
            yield str(number)

    agent, _ = create_observed_agent()
    with agent.batch_stream(count(), concurrency=4) as stream:
        for _ in stream:
            time.sleep(0.01)
            assert read <= stream.progress.done + 8
            if read > 60:
                break
    assert stream.progress.done <= read


def test_an_async_input_is_read_as_answers_come() -> None:
    read = 0

    async def count() -> Any:
        nonlocal read
        for number in itertools.count():
            read = number + 1
            yield str(number)

    agent, transport = create_observed_agent(after=0.02)
    items = Awaiting().stream(agent, count(), until=20, concurrency=4)
    assert len(items) == 20
    assert read <= 20 + 2 * 4 + 1
    assert transport.most == 4


def test_a_slow_async_input_holds_up_nothing_that_is_under_way() -> None:
    async def main() -> list[float]:
        began = time.monotonic()
        agent, _ = create_observed_agent(after=0.01)
        return [time.monotonic() - began async for _ in agent.abatch_stream(slowly("abc", 0.1), concurrency=8)]

    came = asyncio.run(main())
    assert came[0] < came[-1] - 0.1  # and not when the input has ended


def test_a_slow_plain_input_leaves_the_loop_to_others() -> None:
    def slow() -> Iterator[str]:
        for number in range(60):
            time.sleep(0.005)
            yield str(number)

    async def main() -> tuple[int, list[Any]]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticking = asyncio.create_task(tick())
        items = [item async for item in create_observed_agent()[0].abatch_stream(slow(), concurrency=100)]
        ticking.cancel()
        return ticks, items

    ticks, items = asyncio.run(main())
    assert len(items) == 60
    assert ticks >= 6  # reading takes 300 ms, and there is room for all


def test_what_was_read_is_asked_before_the_input_comes_up_with_more() -> None:
    agent, transport = create_observed_agent()
    asked_in_time: list[bool] = []

    def waits() -> Iterator[str]:
        yield "a"
        end = time.monotonic() + 10
        while not transport.begun and time.monotonic() < end:
            time.sleep(0.001)
        asked_in_time.append(transport.begun == 1)
        yield "b"

    assert echoes(agent.batch(waits(), concurrency=8)) == echo_texts("a", "b")

    async def awaits() -> AsyncIterator[str]:
        yield "a"
        while transport.begun < 3:
            await asyncio.sleep(0.001)
        asked_in_time.append(transport.begun == 3)
        yield "b"

    assert echoes(asyncio.run(agent.abatch(awaits(), concurrency=8))) == echo_texts("a", "b")
    assert asked_in_time == [True, True]


def test_an_async_input_is_closed_at_once_and_in_the_task_that_read_it() -> None:
    closed: list[bool] = []

    async def open_file() -> AsyncIterator[str]:
        task = asyncio.current_task()
        try:
            for number in itertools.count():
                yield str(number)
        finally:
            closed.append(asyncio.current_task() is task)

    async def main() -> None:
        async with create_observed_agent()[0].abatch_stream(open_file(), concurrency=2) as stream:
            async for _ in stream:
                break
        assert closed == [True]

    asyncio.run(main())


def test_a_slow_input_of_a_blocking_batch_holds_up_nothing_either() -> None:
    def slow() -> Iterator[str]:
        for word in "abcdefgh":
            time.sleep(0.05)
            yield word

    agent, _ = create_observed_agent(after=0.01)
    agent.complete("load lazy modules")
    began = time.monotonic()
    came = [time.monotonic() - began for _ in agent.batch_stream(slow(), concurrency=8)]
    assert came[0] < came[-1] - 0.1


def test_a_blocking_batch_reads_its_input_on_the_callers_thread() -> None:
    connection = sqlite3.connect(":memory:")  # which refuses every other thread
    connection.execute("create table prompts (text)")
    connection.executemany("insert into prompts values (?)", [("a",), ("b",)])
    rows = connection.execute("select text from prompts order by text")
    assert echoes(scripted_agent().batch(row[0] for row in rows)) == echo_texts("a", "b")
    connection.close()


def test_progress_is_told_on_the_callers_thread(way: Way) -> None:
    threads: set[int] = set()
    way.batch(scripted_agent(), ["a", "b"], on_progress=lambda _: threads.add(threading.get_ident()))
    assert threads == {threading.get_ident()}


def test_context_variables_reach_each_request_and_do_not_leak(way: Way) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="unset")
    seen: list[str] = []

    class Notes(Middleware):
        @override
        def before(self, request: AgentRequest, call: Any) -> None:
            seen.append(tenant.get())
            tenant.set("spoilt")

    tenant.set("us")
    way.batch(scripted_agent(middleware=[Notes()]), ["a", "b", "c"], concurrency=1)
    assert seen == ["us", "us", "us"]


# Where it runs


def test_a_blocking_batch_works_inside_a_running_loop() -> None:
    async def main() -> Any:
        return scripted_agent().batch(["a", "b"])

    assert echoes(asyncio.run(main())) == echo_texts("a", "b")


def test_a_blocking_batch_works_in_threads_side_by_side() -> None:
    agent = scripted_agent()
    found: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: echoes(agent.batch([f"{n}/{i}" for i in range(20)]))}))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == {n: echo_texts(*(f"{n}/{i}" for i in range(20))) for n in range(4)}


def in_the_child(agent: Agent, found: Any) -> None:
    found.put(echoes(agent.batch(["c", "d"])))


def test_a_batch_works_after_a_fork() -> None:
    with LoopbackServer(Script()) as server:
        agent = Agent("openai-chat:m", api_key="k", base_url=f"{server.url}/v1")
        assert echoes(agent.batch(["a", "b"])) == echo_texts("a", "b")
        fork = multiprocessing.get_context("fork")
        found = fork.SimpleQueue()
        child = fork.Process(target=in_the_child, args=(agent, found))
        child.start()
        child.join(30)
        assert child.exitcode == 0
        assert found.get() == echo_texts("c", "d")
        assert echoes(agent.batch(["a", "b"])) == echo_texts("a", "b")


def test_a_thousand_at_a_time_need_one_thread_and_as_many_connections(way: Way) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("this system does not allow so many connections")
    if soft != resource.RLIM_INFINITY and soft < 4096:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
    threads: list[int] = []
    with LoopbackServer(delay_responses(lambda _: 0.5)) as server:
        agent = Agent("openai-chat:m", api_key="k", base_url=f"{server.url}/v1", max_retries=0)
        before = threading.active_count()
        result = way.batch(
            agent,
            [str(number) for number in range(1500)],
            concurrency=1000,
            on_progress=lambda _: threads.append(threading.active_count()),
        )
        assert server.connections_made <= 1500
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert echoes(result) == echo_texts(*range(1500))
    assert max(threads) <= before + 1


def test_a_plain_function_as_the_model_is_asked_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    import agent.providers
    from agent import register_provider

    monkeypatch.setattr(agent.providers, "_registered", {})
    gate = threading.Barrier(4, timeout=10)

    def model(request: AgentRequest) -> str:
        gate.wait()  # only if four are here at once
        return f"heard {request.input}"

    register_provider("plain", function=model)
    assert echoes(Agent("plain:x").batch("abcd".replace("", " ").split(), concurrency=4)) == [
        f"heard {word}" for word in "abcd"
    ]
