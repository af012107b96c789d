"""A call that is cancelled at any await closes its socket immediately and sends nothing more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from agent import Agent
from agent.engine.wire import WireRequest
from agent.testing import Answer, LoopbackServer, Piece
from agent.types import RetryConfig
from tests.engine.play import NO_TLS
from tests.support.drivers import AnyHttp, make_transport
from tests.testing.faults.fault_server import CODECS, MODELS, good

pytestmark = pytest.mark.malformed

AT_ONCE = 0.1
QUICK = RetryConfig(max_retries=2, initial_delay=0.001, throttle_delay=0.001, jitter=False)
WAYS = [
    *((codec, "http") for codec in CODECS),
    ("openai-chat", "httpx"),
]
"""Each API over the usual transport, and one over the other: it does not know the difference."""
Work = Callable[[Agent], Coroutine[Any, Any, object]]


def in_small_pieces(request: WireRequest) -> Answer:
    """A good answer with a breath before every piece, so that a call has many awaits."""
    answer = good(request)
    body = [piece.outcome for piece in answer.iter_pieces() if isinstance(piece.outcome, bytes)]
    if len(body) == 1:
        body = [body[0][at : at + 40] for at in range(0, len(body[0]), 40)]
    return Answer([Piece(part, 0.0005) for part in body], headers=answer.headers)


async def complete(agent: Agent) -> object:
    return await agent.acomplete("Hi")


async def stream(agent: Agent) -> object:
    return await agent.astream("Hi").collect()


class Stepper:
    """Drives a coroutine by hand, await by await, and throws the cancellation into one of them.

    A task cannot be stopped at a certain await from outside: how often the loop turns in between is chance. Here the
    coroutine itself is counted: each value that it yields to the loop is one await.
    """

    def __init__(self, work: Coroutine[Any, Any, object], stop_at: int | None) -> None:
        self._work = work
        self._stop_at = stop_at
        self.awaits = 0
        self.stopped_at: float | None = None

    def __await__(self) -> Any:
        inner = self._work.__await__()
        pending: Any = None
        failure: BaseException | None = None
        while True:
            try:
                pending = next(inner) if failure is None else inner.throw(failure)
            except StopIteration as done:
                return done.value
            failure = None
            self.awaits += 1
            if self.awaits == self._stop_at:
                task = asyncio.current_task()
                assert task is not None
                self.stopped_at = time.monotonic()
                task.cancel()  # the coroutine receives the cancellation here
            try:
                yield pending
            except BaseException as error:
                failure = error


async def run_to_step(work: Coroutine[Any, Any, object], stop_at: int | None = None) -> Stepper:
    stepper = Stepper(work, stop_at)

    async def main() -> object:
        return await stepper

    task = asyncio.create_task(main())
    await asyncio.wait({task})
    assert task.cancelled() == (stepper.stopped_at is not None), f"await {stop_at}: {task!r}"
    if not task.cancelled():
        task.result()
    return stepper


@pytest.mark.timing
@pytest.mark.parametrize("work", [complete, stream])
@pytest.mark.parametrize(("codec", "carrier"), WAYS)
def test_cancelled_at_every_await_a_call_closes_its_socket_and_sends_nothing_more(
    codec: str, carrier: str, work: Work
) -> None:
    def new_transport() -> AnyHttp:
        """Each call connects anew: that is awaited, too."""
        return make_transport(carrier, proxy=False, ssl_context=NO_TLS)

    async def count(url: str) -> int:
        return (await run_to_step(work(agent_at(url, new_transport())))).awaits

    def agent_at(url: str, transport: AnyHttp) -> Agent:
        return Agent(MODELS[codec], api_key="sk-test", base_url=f"{url}/v1", transport=transport, retry=QUICK)

    async def stop(server: LoopbackServer, at: int) -> bool:
        before, open_before = len(server.requests), server.open_connections
        assert open_before == 0
        transport = new_transport()
        stepper = await run_to_step(work(agent_at(server.url, transport)), at)
        if stepper.stopped_at is None:
            return False
        while server.open_connections and time.monotonic() - stepper.stopped_at < 1:
            await asyncio.sleep(0.001)
        took = time.monotonic() - stepper.stopped_at
        assert server.open_connections == 0, f"await {at}: the socket is still open"
        assert took <= AT_ONCE, f"await {at}: {took:.3f} s"
        await asyncio.sleep(0.005)  # longer than a retry would wait
        assert len(server.requests) - before <= 1, f"await {at}: something was sent again"
        assert asyncio.all_tasks() == {asyncio.current_task()}, f"await {at}: a task is left"
        return True

    with LoopbackServer(in_small_pieces) as server:
        awaits = asyncio.run(count(server.url))
        assert awaits >= 5
        assert server.wait_until(lambda: server.open_connections == 0)
        stopped = 0
        for at in range(1, awaits + 10):  # how the bytes fall into reads is chance: go a little beyond the end
            stopped += asyncio.run(stop(server, at))
            assert server.wait_until(lambda: server.open_connections == 0)
        assert stopped >= 5


@pytest.mark.timing
@pytest.mark.parametrize("work", [complete, stream])
@pytest.mark.parametrize(("codec", "carrier"), WAYS)
@pytest.mark.parametrize("when", ["before-headers", "in-the-middle"])
def test_cancelled_while_it_waits_a_call_closes_its_socket_within_a_tenth_of_a_second(
    codec: str, carrier: str, work: Work, when: str
) -> None:
    def stalls(request: WireRequest) -> Answer:
        if when == "before-headers":
            return Answer(after=30)
        parts = list(good(request).iter_pieces())
        return Answer([*parts[: len(parts) // 2], Piece(b"", 30)], headers={"content-type": "text/event-stream"})

    with LoopbackServer(stalls) as server:

        async def main() -> None:
            url = f"{server.url}/v1"
            agent = Agent(MODELS[codec], api_key="sk-test", base_url=url, transport=carrier, retry=QUICK)
            task = asyncio.create_task(work(agent))
            await asyncio.to_thread(server.wait_until, lambda: len(server.requests) == 1)
            await asyncio.sleep(0.02)
            task.cancel()
            started = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(server.wait_until, lambda: server.open_connections == 0, AT_ONCE)
            assert server.disconnects[0][1] - started <= AT_ONCE
            await asyncio.sleep(0.02)
            assert len(server.requests) == 1

        asyncio.run(main())
