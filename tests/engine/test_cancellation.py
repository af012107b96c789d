"""A cancelled call ends at once, everywhere, and takes its connection with it. Nothing is retried."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from typing_extensions import override

from agent import Agent, errors
from agent.engine.drivers.asyncio import AioRun
from agent.engine.flow import Flow, Open, Read, Send, Sleep
from agent.engine.wire import AsyncBody, Limits, Reply, WireRequest
from agent.testing import Answer, LoopbackServer
from agent.transports.http import HttpTransport
from agent.types import RetryConfig
from tests.engine.play import agent_at, error_reply, hung_up, never, pools_are_idle, stall, stream_or_whole
from tests.support.drivers import make_transport

QUICK = RetryConfig(max_retries=2, initial_delay=0.004, throttle_delay=0.004, jitter=False, budget=None)


class FailsOnce:
    """Fails each request once, so that each call needs a retry."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def __call__(self, request: WireRequest) -> Answer:
        if request.body in self._seen:
            return stream_or_whole(request)
        self._seen.add(request.body)
        return error_reply(503)


async def complete(agent: Agent, text: str = "hi") -> None:
    await agent.acomplete(text)


async def stream(agent: Agent, text: str = "hi") -> None:
    async for _ in agent.astream(text):
        await asyncio.sleep(0)


async def cancel_at(step: int, work: Coroutine[Any, Any, None]) -> bool:
    """Let the loop turn `step` times, then cancel; whether there was still something to cancel."""
    task = asyncio.create_task(work)
    for _ in range(step):
        await asyncio.sleep(0)
        if task.done():
            await task
            return False
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return True


@pytest.mark.parametrize("carrier", ["http", "httpx"])
@pytest.mark.parametrize("work", [complete, stream])
def test_cancelling_at_every_await_leaves_nothing(
    work: Callable[[Agent, str], Coroutine[Any, Any, None]], carrier: str
) -> None:
    with LoopbackServer(FailsOnce()) as server:
        transport = make_transport(carrier, proxy=False)
        agent = agent_at(server, retry=QUICK, transport=transport)

        def record_request(step: int) -> int:
            return sum(f'"call {step}"'.encode() in request.body for request in list(server.requests))

        async def main() -> int:
            hits, finished, step = 0, 0, 0
            seen: dict[int, int] = {}
            while finished < 5:  # how often the loop turns while the server thinks is chance: go well beyond the end
                step += 1 if step < 60 else 9
                if not await cancel_at(step, work(agent, f"call {step}")):
                    finished += 1
                    continue
                hits += 1
                for _ in range(4):
                    await asyncio.sleep(0)
                if carrier == "httpx":  # httpx closes its connections in more turns of the loop
                    await asyncio.sleep(0.01)
                assert asyncio.all_tasks() == {asyncio.current_task()}, f"a task was left after step {step}"
                assert await pools_are_idle(transport), f"a connection was left busy after step {step}"
                seen[step] = record_request(step)
            await asyncio.sleep(0.05)  # long enough for retries that should not come
            for step, before in seen.items():
                assert record_request(step) <= before + 1, "besides what was under way, nothing is sent"
            return hits

        assert asyncio.run(main()) > 20
        assert server.wait_until(lambda: server.open_connections == 0)


@pytest.mark.timing
def test_a_cancelled_call_does_not_try_again() -> None:
    with LoopbackServer(lambda request: never()) as server:

        async def main() -> None:
            agent = agent_at(server, retry=QUICK, timeout=0.5)
            task = asyncio.create_task(agent.acomplete("hi"))
            await asyncio.sleep(0.1)
            task.cancel()
            started = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.monotonic() - started < 0.1
            assert await asyncio.to_thread(hung_up, server)
            await asyncio.sleep(0.05)
            assert len(server.requests) == 1

        asyncio.run(main())


@pytest.fixture
def stalling() -> Iterator[LoopbackServer]:
    with LoopbackServer(lambda request: stall() if b'"stream":true' in request.body else never()) as server:
        yield server


def test_a_timeout_around_a_call_is_the_callers_and_not_ours(stalling: LoopbackServer) -> None:
    async def main() -> None:
        agent = agent_at(stalling, retry=QUICK)
        for work in (complete, stream):
            with pytest.raises(TimeoutError) as caught:
                async with asyncio.timeout(0.15):
                    await work(agent)
            assert not isinstance(caught.value, errors.AgentError)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
        assert await asyncio.to_thread(stalling.wait_until, lambda: len(stalling.disconnects) == 2)
        assert len(stalling.requests) == 2

    asyncio.run(main())


@pytest.mark.parametrize("early", [0.0, 0.0005, -0.0005])
def test_our_deadline_and_the_callers_timeout_may_fall_together(stalling: LoopbackServer, early: float) -> None:
    """The first one wins, and the cancellation count of the task is correct."""

    async def main() -> None:
        agent = agent_at(stalling, deadline=0.15 + early)
        with pytest.raises((TimeoutError, errors.TimeoutError)):
            async with asyncio.timeout(0.15):
                await agent.acomplete("hi")
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0.01)  # a cancellation that is still under way would hit here

    asyncio.run(main())


@pytest.mark.parametrize("work", [complete, stream])
def test_a_second_cancellation_does_not_stop_the_closing(
    stalling: LoopbackServer, work: Callable[[Agent], Coroutine[Any, Any, None]]
) -> None:
    async def main() -> None:
        for turns in range(4):
            task = asyncio.create_task(work(agent_at(stalling)))
            await asyncio.sleep(0.05)
            task.cancel()
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await asyncio.to_thread(stalling.wait_until, lambda: len(stalling.disconnects) == 4)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_task_that_once_survived_a_cancellation_still_gets_its_timeouts(stalling: LoopbackServer) -> None:
    """Its count of cancellations never returns to zero, and must not be taken for a new one."""

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(1)
        with pytest.raises(errors.TimeoutError) as caught:
            await agent_at(stalling, deadline=0.1).acomplete("hi")
        assert caught.value.deadline
        with pytest.raises(errors.StreamInterrupted):
            await stream(agent_at(stalling, idle_timeout=0.1))

    asyncio.run(main())


class Difficult:
    """A transport that closes slowly and swallows cancellation."""

    def __init__(self) -> None:
        self.closed = False

    async def asend(self, request: WireRequest, limits: Limits) -> Reply:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(30)
        return Reply(200, {}, b"late")

    async def aopen(self, request: WireRequest, limits: Limits, bodies: list[AsyncBody]) -> AsyncBody:
        transport = self

        class SlowToClose(AsyncBody):
            @override
            async def read(self) -> bytes:
                await asyncio.sleep(30)
                return b""

            @override
            async def aclose(self) -> None:
                await asyncio.sleep(0.05)
                transport.closed = True

        bodies.append(SlowToClose(200, {}))
        return bodies[-1]


def test_a_slow_closing_is_finished_whatever_comes() -> None:
    def flow() -> Flow[None]:
        with (yield from Open(WireRequest("http://x/", (), b""), Limits())) as body:
            yield from Read(body)

    async def main() -> None:
        transport = Difficult()
        task = asyncio.create_task(AioRun(transport, flow()).advance())
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.1)
        assert transport.closed

    asyncio.run(main())


def test_a_timeout_that_was_swallowed_is_not_taken_for_the_next_one() -> None:
    def flow() -> Flow[None]:
        reply = yield from Send(WireRequest("http://x/", (), b""), Limits(total=0.05))
        assert reply.body == b"late"
        yield from Sleep(30)

    async def main() -> None:
        task = asyncio.create_task(AioRun(Difficult(), flow()).advance())
        await asyncio.sleep(0.15)
        assert task.cancelling() == 0
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


# Blocking calls, ended from another thread


def abort_within(stream: Any, after: float = 0.25) -> float:
    """Abort a stream from another thread; how long its reader took to notice."""
    stamps: list[float] = []

    def abort() -> None:
        stamps.append(time.monotonic())
        stream.abort()

    timer = threading.Timer(after, abort)
    timer.start()
    with pytest.raises(errors.Aborted):
        for _ in stream:
            pass
    took = time.monotonic() - stamps[0]
    timer.join()
    return took


@pytest.mark.parametrize("mode", ["headers", "body"])
def test_abort_wakes_a_blocked_reader(mode: str) -> None:
    with LoopbackServer(lambda request: never() if "headers" in request.url else stall()) as server:
        assert abort_within(agent_at(server, mode, retry=QUICK).stream("hi")) < 0.2
        assert hung_up(server, mode)
        assert len(server.requests) == 1


def test_abort_wakes_a_reader_that_waits_to_try_again() -> None:
    with LoopbackServer(lambda request: error_reply(503)) as server:
        patient = RetryConfig(max_retries=3, initial_delay=20, jitter=False)
        assert abort_within(agent_at(server, retry=patient).stream("hi")) < 0.2
        assert len(server.requests) == 1


def test_abort_wakes_a_reader_that_is_still_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def hang(*args: Any, **kwargs: Any) -> Any:
        released.wait(5)
        raise socket.gaierror("given up")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    agent = Agent("openai-chat:m", api_key="sk-test", base_url="https://nowhere.invalid/v1", max_retries=0)
    try:
        assert abort_within(agent.stream("hi")) < 0.2
    finally:
        released.set()


def test_a_stream_that_was_aborted_before_it_began_sends_nothing(stalling: LoopbackServer) -> None:
    stream = agent_at(stalling).stream("hi")
    stream.abort()
    with pytest.raises(errors.Aborted):
        list(stream)

    async def main() -> None:
        astream = agent_at(stalling).astream("hi")
        astream.abort()
        with pytest.raises(errors.Aborted):
            await astream.collect()

    asyncio.run(main())
    assert stalling.connections_made == 0


@pytest.mark.timing
def test_an_async_stream_can_be_aborted_from_any_thread(stalling: LoopbackServer) -> None:
    async def main() -> None:
        astream = agent_at(stalling).astream("hi")
        threading.Timer(0.1, astream.abort).start()
        started = time.monotonic()
        with pytest.raises(errors.Aborted):
            async for _ in astream:
                pass
        assert time.monotonic() - started < 0.4
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    asyncio.run(main())
    assert hung_up(stalling)


def test_aborting_a_finished_stream_is_harmless() -> None:
    with LoopbackServer(stream_or_whole) as server:
        stream = agent_at(server).stream("hi")
        assert stream.collect().text == "t0 t1 t2 "
        stream.abort()
        assert stream.response.text == "t0 t1 t2 "


def test_cancelling_at_the_worst_moment_is_never_missed() -> None:
    """The wish to stop may come between looking for it and beginning to wait."""
    from agent.engine.drivers.sync import SyncRun
    from agent.engine.wire import Cancelled

    def flow() -> Flow[None]:
        while True:
            yield from Sleep(0.00001)

    for number in range(150):
        run = SyncRun(HttpTransport(proxy=False), flow())
        timer = threading.Timer(number * 0.00001, run.cancel)
        timer.start()
        with pytest.raises(Cancelled):
            run.advance()
        timer.join()
