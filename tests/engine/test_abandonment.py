"""Abandoned streams, sync and async, close their connection in every way of leaving the loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Iterator

import pytest

from agent import Agent, errors
from agent.calls.streams import AsyncResponseStream
from agent.testing import LoopbackServer
from tests.engine.play import agent_at, endless, hung_up, stall, tokens, without_gc
from tests.support.drivers import run_and_leave_nothing


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer(lambda request: stall() if "stall" in request.url else endless()) as made, without_gc():
        yield made


def broken_off(agent: Agent) -> None:
    for _ in agent.stream("hi"):
        break


def broken_off_and_kept(agent: Agent) -> None:
    stream = agent.stream("hi")
    for _ in stream:
        break
    agent.__dict__["kept"] = stream


def with_block(agent: Agent) -> None:
    with agent.stream("hi") as stream:
        agent.__dict__["kept"] = iterator = iter(stream)
        next(iterator)


def delete(agent: Agent) -> None:
    stream = agent.stream("hi")
    iterator = iter(stream)
    next(iterator)
    del iterator, stream


def leave_by_error(agent: Agent) -> None:
    with pytest.raises(ValueError, match="mine") as caught:
        for _ in agent.stream("hi"):
            raise ValueError("mine")
    assert len(traceback.extract_tb(caught.value.__traceback__)) == 1, "our frames are none of the caller's business"


def text_broken_off(agent: Agent) -> None:
    for _ in agent.stream("hi").text_stream():
        break


def close_early(agent: Agent) -> None:
    agent.__dict__["kept"] = stream = agent.stream("hi")
    next(iter(stream))
    stream.close()
    stream.close()


WAYS = [broken_off, broken_off_and_kept, with_block, delete, leave_by_error, text_broken_off, close_early]


@pytest.mark.parametrize("leave", WAYS, ids=lambda way: way.__name__)
def test_an_abandoned_stream_closes_its_socket(server: LoopbackServer, leave: Callable[[Agent], None]) -> None:
    agent = agent_at(server)
    leave(agent)
    assert hung_up(server)
    assert len(server.requests) == 1


async def abroken_off(agent: Agent) -> None:
    async for _ in agent.astream("hi"):
        break


async def abroken_off_and_kept(agent: Agent) -> None:
    stream = agent.astream("hi")
    async for _ in stream:
        break
    agent.__dict__["kept"] = stream


async def awith_block(agent: Agent) -> None:
    async with agent.astream("hi") as stream:
        async for _ in stream:
            break


async def awith_block_and_kept(agent: Agent) -> None:
    async with agent.astream("hi") as stream:
        agent.__dict__["kept"] = iterator = aiter(stream)
        await anext(iterator)


async def adelete(agent: Agent) -> None:
    stream = agent.astream("hi")
    iterator = aiter(stream)
    await anext(iterator)
    del iterator, stream


async def aleave_by_error(agent: Agent) -> None:
    with contextlib.suppress(ValueError):
        async for _ in agent.astream("hi"):
            raise ValueError("mine")


async def atext_broken_off(agent: Agent) -> None:
    async for _ in agent.astream("hi").text_stream():
        break


async def aclose_early(agent: Agent) -> None:
    agent.__dict__["kept"] = stream = agent.astream("hi")
    await anext(aiter(stream))
    await stream.aclose()
    await stream.aclose()


AWAYS = [
    abroken_off,
    abroken_off_and_kept,
    awith_block,
    awith_block_and_kept,
    adelete,
    aleave_by_error,
    atext_broken_off,
    aclose_early,
]


@pytest.mark.parametrize("leave", AWAYS, ids=lambda way: way.__name__)
def test_an_abandoned_async_stream_closes_its_socket(
    server: LoopbackServer, leave: Callable[[Agent], contextlib.AbstractAsyncContextManager[None]]
) -> None:
    async def main() -> None:
        agent = agent_at(server)
        await leave(agent)  # type: ignore[misc]
        assert await asyncio.to_thread(hung_up, server)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


@pytest.mark.parametrize("leave", AWAYS, ids=lambda way: way.__name__)
def test_a_loop_that_ends_right_after_an_abandoned_stream_closes_its_socket(
    server: LoopbackServer, leave: Callable[[Agent], contextlib.AbstractAsyncContextManager[None]]
) -> None:
    asyncio.run(leave(agent_at(server)))  # type: ignore[arg-type]
    assert server.wait_until(lambda: server.open_connections == 0)


def test_a_stream_closed_by_another_task_ends_for_its_reader(server: LoopbackServer) -> None:
    async def main() -> int:
        stream = agent_at(server).astream("hi")
        seen = 0

        async def read() -> None:
            nonlocal seen
            async for _ in stream:
                seen += 1

        reader = asyncio.create_task(read())
        while not seen:
            await asyncio.sleep(0.01)
        await stream.aclose()
        await asyncio.wait_for(reader, 10)
        assert reader.cancelling() == 0
        return seen

    assert run_and_leave_nothing(main()) > 0
    assert hung_up(server)


@pytest.mark.timing
def test_a_stream_closed_by_another_thread_ends_for_its_reader(server: LoopbackServer) -> None:
    stream = agent_at(server, "stall").stream("hi")
    threading.Timer(0.1, stream.close).start()
    started = time.monotonic()
    with pytest.raises(errors.Aborted):
        list(stream)
    assert time.monotonic() - started < 0.6
    assert hung_up(server, "stall")


def test_a_stream_that_nobody_iterates_sends_nothing(server: LoopbackServer) -> None:
    agent = agent_at(server)
    with agent.stream("hi"):
        pass
    agent.astream("hi")
    agent.stream("hi").close()
    assert server.connections_made == 0


def test_iterating_twice_is_a_typed_error(server: LoopbackServer) -> None:
    stream = agent_at(server).stream("hi")
    for _ in stream:
        break
    with pytest.raises(errors.ConfigurationError, match="iterated before"):
        next(iter(stream))
    assert len(server.requests) == 1


def test_iterating_a_closed_stream_is_a_typed_error(server: LoopbackServer) -> None:
    stream = agent_at(server).stream("hi")
    stream.close()
    with pytest.raises(errors.ConfigurationError):
        list(stream)

    async def main() -> None:
        unused = agent_at(server).astream("hi")
        await unused.aclose()
        with pytest.raises(errors.ConfigurationError):
            aiter(unused)

    asyncio.run(main())
    assert server.connections_made == 0


def test_iterating_an_async_stream_twice_is_a_typed_error(server: LoopbackServer) -> None:
    async def main() -> None:
        stream = agent_at(server).astream("hi")
        async for _ in stream:
            break
        with pytest.raises(errors.ConfigurationError, match="iterated before"):
            aiter(stream)

    asyncio.run(main())


def test_there_is_no_response_before_the_end(server: LoopbackServer) -> None:
    stream = agent_at(server).stream("hi")
    for event in stream:
        if event.type == "text_delta":
            with pytest.raises(errors.ConfigurationError, match="has not ended"):
                stream.response
            break
    assert stream.text.startswith("t0")
    assert stream.response.stop_reason is None, "a partial response has no stop reason"


def test_a_half_made_stream_can_be_finalized() -> None:
    """An interrupt may come while the object is being made."""
    from agent.calls.streams import ResponseStream
    from agent.engine.stream import _EventIterator

    for kind in (ResponseStream, AsyncResponseStream, _EventIterator):
        half = kind.__new__(kind)
        del half


def test_a_collected_stream_keeps_its_response() -> None:
    with LoopbackServer(lambda request: tokens(2)) as server:
        stream = agent_at(server).stream("hi")
        assert stream.collect() is stream.collect()
        assert stream.text == stream.response.text == "t0 t1 "

        async def main() -> None:
            astream = agent_at(server).astream("hi")
            assert await astream.collect() is await astream.result()

        run_and_leave_nothing(main())
