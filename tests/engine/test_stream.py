"""`Stream` and `AsyncStream`: iteration, results, failures, abort and closing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from typing_extensions import override

from agent import errors, tool
from agent.engine.stream import AsyncStream, Stream
from agent.engine.wire import Cancelled
from agent.testing import Answer, scripted_agent
from agent.types import ToolCall
from tests.support.drivers import run_and_leave_nothing


class Script:
    """A run that gives batches of events, and then its result or an error."""

    def __init__(self, *batches: Sequence[int], result: Any = "done", error: Exception | None = None) -> None:
        self.batches = list(batches)
        self.error = error
        self.outcome = result
        self.result: Any = None
        self.finished = False
        self.cancelled = False
        self.closed = 0

    def advance(self) -> Sequence[int] | None:
        if self.cancelled:
            raise Cancelled
        if self.finished:
            return None
        if self.batches:
            return self.batches.pop(0)
        if self.error is not None:
            raise self.error
        self.result = self.outcome
        self.close()
        return None

    def cancel(self) -> None:
        self.cancelled = True

    def close(self) -> None:
        self.closed += 1
        self.finished = True


class AsyncScript(Script):
    loop: asyncio.AbstractEventLoop

    @override
    async def advance(self) -> Sequence[int] | None:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().advance()

    def abandon(self) -> None:
        self.loop.call_soon_threadsafe(self.close)

    async def aclose(self) -> None:
        self.close()


class Numbers(Stream[int, str]):
    def __init__(self, script: Script, scope: Any = None) -> None:
        super().__init__(scope)
        self.script = script

    @override
    def _start_run(self) -> Script:
        return self.script


class AsyncNumbers(AsyncStream[int, str]):
    def __init__(self, script: AsyncScript, scope: Any = None) -> None:
        super().__init__(scope)
        self.script = script

    @override
    def _start_run(self) -> AsyncScript:
        self.script.loop = asyncio.get_running_loop()
        return self.script


class Sync:
    """Both kinds behind one face."""

    def make(self, script: Script, log: list[str] | None = None) -> Any:
        @contextmanager
        def scope(stream: Any) -> Iterator[None]:
            assert log is not None
            log.append("enter")
            yield
            log.append(f"leave closed={script.finished} ended={stream.ended}")

        return Numbers(script, None if log is None else scope)

    def read(self, stream: Any, at_most: int = 100) -> list[int]:
        seen = []
        for number in stream:
            seen.append(number)
            if len(seen) == at_most:
                break
        return seen

    def collect(self, stream: Any) -> Any:
        return stream.collect()


class Async(Sync):
    @override
    def make(self, script: Script, log: list[str] | None = None) -> Any:
        @asynccontextmanager
        async def scope(stream: Any) -> AsyncIterator[None]:
            assert log is not None
            log.append("enter")
            yield
            await asyncio.sleep(0)
            log.append(f"leave closed={script.finished} ended={stream.ended}")

        script.__class__ = AsyncScript
        assert isinstance(script, AsyncScript)
        return AsyncNumbers(script, None if log is None else scope)

    @override
    def read(self, stream: Any, at_most: int = 100) -> list[int]:
        async def main() -> list[int]:
            seen = []
            async for number in stream:
                seen.append(number)
                if len(seen) == at_most:
                    break
            assert stream._closed, "the stream knows at once that it was left"
            await asyncio.sleep(0.01)
            return seen

        return run_and_leave_nothing(main())

    @override
    def collect(self, stream: Any) -> Any:
        return run_and_leave_nothing(stream.collect())


@pytest.fixture(params=[Sync(), Async()], ids=["sync", "async"])
def face(request: pytest.FixtureRequest) -> Sync:
    assert isinstance(request.param, Sync)
    return request.param


def test_events_come_in_order_and_the_result_at_the_end(face: Sync) -> None:
    stream = face.make(Script([1, 2], [], [3]))
    assert face.read(stream) == [1, 2, 3]
    assert stream.ended
    assert stream.error is None
    assert face.collect(stream) == "done"


def test_leaving_the_loop_closes_the_run_without_a_result(face: Sync) -> None:
    script = Script([1, 2], [3])
    stream = face.make(script)
    assert face.read(stream, at_most=1) == [1]
    assert script.closed
    assert not stream.ended
    with pytest.raises(errors.ConfigurationError, match="cannot be resumed"):
        face.collect(stream)


def test_a_failure_is_raised_by_the_iteration_and_by_every_later_collect(face: Sync) -> None:
    stream = face.make(Script([1], error=errors.RateLimitError("slow down", retry_after=3.0)))
    with pytest.raises(errors.RateLimitError):
        face.read(stream)
    assert not stream.ended
    for _ in range(2):
        with pytest.raises(errors.RateLimitError, match="slow down") as caught:
            face.collect(stream)
        assert caught.value.retry_after == 3.0


def test_a_failure_that_cannot_be_copied_is_raised_again_all_the_same(face: Sync) -> None:
    class Odd(Exception):
        @override
        def __reduce__(self) -> Any:
            raise TypeError("not this one")

    stream = face.make(Script(error=Odd("odd")))
    for _ in range(2):
        with pytest.raises(Odd, match="odd"):
            face.collect(stream)


def test_an_aborted_stream_says_so(face: Sync) -> None:
    script = Script([1], [2])
    stream = face.make(script)
    stream.abort()
    with pytest.raises(errors.Aborted):
        face.read(stream)
    assert script.closed
    assert script.batches == [[1], [2]]
    with pytest.raises(errors.Aborted):
        face.collect(stream)


@pytest.mark.parametrize("how", ["end", "break", "failure", "abort"])
def test_a_scope_surrounds_the_iteration_and_is_left_when_the_run_is_closed(face: Sync, how: str) -> None:
    log: list[str] = []
    script = Script([1], [2], error=ValueError("no") if how == "failure" else None)
    stream = face.make(script, log)
    assert log == []
    match how:
        case "break":
            face.read(stream, at_most=1)
        case "failure":
            with pytest.raises(ValueError, match="no"):
                face.read(stream)
        case "abort":
            stream.abort()
            with pytest.raises(errors.Aborted):
                face.read(stream)
        case _:
            face.read(stream)
    assert log == ["enter", f"leave closed=True ended={how == 'end'}"]


def test_closing_a_stream_leaves_its_scope_although_its_iterator_is_kept() -> None:
    log: list[str] = []
    stream = Sync().make(Script([1], [2]), log)
    with stream:
        iterator = iter(stream)
        assert next(iterator) == 1
    assert log == ["enter", "leave closed=True ended=False"]
    assert list(iterator) == []

    async def main() -> None:
        stream = Async().make(Script([1], [2]), log)
        async with stream:
            iterator = aiter(stream)
            assert await anext(iterator) == 1
        assert log[2:] == ["enter", "leave closed=True ended=False"]
        assert [number async for number in iterator] == []

    run_and_leave_nothing(main())


def test_a_stream_that_was_closed_before_it_was_read_starts_nothing() -> None:
    async def main() -> None:
        script = Script([1])
        stream = Async().make(script)
        iterator = aiter(stream)
        await stream.aclose()
        assert [number async for number in iterator] == []
        assert script.batches == [[1]]

    run_and_leave_nothing(main())


# The streams of the package


def broken() -> Answer:
    half = b'data: {"id":"1","choices":[{"index":0,"delta":{"role":"assistant","content":"Once upon"}}]}\n\n'
    return Answer([half], headers={"content-type": "text/event-stream"})


def test_a_response_that_broke_off_raises_that_and_keeps_what_had_arrived(face: Sync) -> None:
    agent = scripted_agent(broken(), max_retries=0)
    stream = agent.stream("x") if type(face) is Sync else agent.astream("x")
    with pytest.raises(errors.StreamInterrupted):
        face.read(stream)
    with pytest.raises(errors.StreamInterrupted):
        _ = stream.response
    assert stream.text == stream.partial.text == "Once upon"
    assert stream.usage is not None
    assert stream.usage.estimated
    assert isinstance(stream.error, errors.StreamInterrupted)


def test_a_batch_is_collected_in_the_order_of_its_input(face: Sync) -> None:
    agent = scripted_agent()
    stream = agent.batch_stream(["a", "b", "c"]) if type(face) is Sync else agent.abatch_stream(["a", "b", "c"])
    result = face.collect(stream)
    assert [item.index for item in result] == [0, 1, 2]
    assert stream.ended
    assert face.collect(stream) is result


def test_a_batch_that_was_aborted_says_so(face: Sync) -> None:
    agent = scripted_agent()
    stream = agent.batch_stream(["a", "b"]) if type(face) is Sync else agent.abatch_stream(["a", "b"])
    stream.abort()
    with pytest.raises(errors.Aborted):
        face.read(stream)
    assert not stream.ended


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def test_a_turn_that_was_left_frees_its_session_within_a_turn_of_the_loop(face: Sync) -> None:
    session = scripted_agent("one two three", "Better.").session()
    stream = session.stream("Hi") if type(face) is Sync else session.astream("Hi")
    face.read(stream, at_most=1)
    assert not session.messages
    assert session.run("Again").text == "Better."


def test_a_sessions_stream_is_one_turn_however_often_it_is_iterated() -> None:
    session = scripted_agent("One.", "Two.").session()
    stream = session.stream("Hi")
    assert stream.collect() is stream.collect()
    with pytest.raises(errors.ConfigurationError, match="cannot be resumed"):
        list(stream)
    assert [message.text for message in session.messages] == ["Hi", "One."]


def test_a_sessions_run_can_be_steered_once_it_has_started() -> None:
    call = ToolCall(id="c1", name="add", arguments={"a": 1, "b": 2})
    session = scripted_agent(call, "Three.").session(tools=[add])
    run = session.run_stream("Go")
    assert run.messages == []
    assert not run.is_streaming
    with pytest.raises(errors.ConfigurationError, match="has not started"):
        run.steer("Hurry.")
    for event in run:
        if event.type == "tool_execution_start":
            run.steer("Hurry.")
    assert [message.text for message in session.messages if message.role == "user"] == ["Go", "Hurry."]


def test_a_sessions_run_that_was_aborted_before_it_began_asks_nobody(face: Sync) -> None:
    session = scripted_agent("One.").session()
    run = session.run_stream("Go") if type(face) is Sync else session.arun_stream("Go")
    run.abort()
    face.read(run)
    with pytest.raises(errors.Aborted):
        _ = run.result
    assert not session.messages
    assert session.run("Again").text == "One.", "the script's line was still there"
