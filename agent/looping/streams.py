"""What `run_stream` and `arun_stream` return: the events of a run as they happen, and the means to steer it.

A run that fails or is aborted tells so in its last events, and the iteration ends like any other; whoever asks for the
result gets the error. Leaving the loop ends the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from .. import errors
from ..drivers.sync import SyncRun
from ..tools.signal import Signal
from ..types import Message
from ..wire import Cancelled
from .events import AgentEvent
from .record import Record
from .results import RunResult
from .shapes import AgentMessage, MessageLike, read_message

if TYPE_CHECKING:
    from ..drivers.aio import AioRun


Finish: TypeAlias = Callable[[RunResult], RunResult]
"""Has the last word about a result."""


class _Watched:
    """A run, as somebody who is not in it sees it."""

    def __init__(self, record: Record, signal: Signal, finish: Finish | None = None) -> None:
        self._finish = finish
        self._record = record
        self._signal = signal
        self._result: RunResult | None = None
        self._error: BaseException | None = None
        self._begun = False
        self._aborted = False
        self._rest = Signal()
        """Set when the run is over."""

    @property
    def run_id(self) -> str:
        return self._record.run_id

    @property
    def messages(self) -> list[AgentMessage]:
        """What the run has added to the conversation so far."""
        return self._record.added

    @property
    def stream_message(self) -> Message | None:
        """What the model is saying just now."""
        speaking = self._record.speaking
        return None if speaking is None else speaking.so_far()

    @property
    def pending_tool_calls(self) -> set[str]:
        """Ids of the calls that have no result yet."""
        return {slot.call.id for slot in self._record.slots if slot.result is None}

    @property
    def error(self) -> BaseException | None:
        """Why the run failed, if it did."""
        return self._error

    @property
    def result(self) -> RunResult:
        """What the run came to. Raises what it failed with, and an error while it goes on."""
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise errors.ConfigurationError(
                "The run has not ended, so there is no result yet.",
                field="result",
                fix="Iterate to the end first, or call collect().",
            )
        return self._result

    @property
    def is_streaming(self) -> bool:
        """Whether the run goes on."""
        return self._begun and not self._rest.is_set()

    def steer(self, message: MessageLike) -> None:
        """Say something now. It is heard after the tool that runs; calls that have not begun are skipped."""
        self._record.steering.put(read_message(message))

    def follow_up(self, message: MessageLike) -> None:
        """Say something when the run would otherwise end."""
        self._record.follow_ups.put(read_message(message))

    def _finished(self, result: RunResult | None) -> RunResult | None:
        return result if result is None or self._finish is None else self._finish(result)

    def _begin(self) -> None:
        if self._begun:
            raise errors.ConfigurationError(
                "The run was iterated before, and cannot be resumed.", field="run", fix="Start a new one."
            )
        self._begun = True

    def _cut_short(self) -> list[AgentEvent]:
        """The last events of a run that was aborted, unless it came to its end before anybody could stop it."""
        if self._record.over:
            return []
        events = self._record.closing("aborted", None)
        aborted = errors.Aborted("the run was aborted")
        aborted.result = self._record.result(now=self._record.began, stop_reason="error")
        self._error = self._record.error = aborted
        return events


class RunStream(_Watched):
    """Iterate over it, or use it in a `with` block.

    ```python
    from agent import Agent

    with Agent("scripted:echo").run_stream("Hello!") as run:
        for event in run:
            if event.type == "message_end":
                print(event.message.role, event.message.text)
    print(run.result.text)
    ```
    """

    def __init__(
        self, start: Callable[[], SyncRun], record: Record, signal: Signal, finish: Finish | None = None
    ) -> None:
        super().__init__(record, signal, finish)
        self._start = start
        self._run: SyncRun | None = None
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[AgentEvent]:
        with self._lock:
            self._begin()
            self._run = run = self._start()
            run.cancelled = self._aborted
        try:
            while (events := self._advance(run)) is not None:
                yield from events  # all that has happened is told, also if the run is aborted meanwhile
        finally:
            run.close()
            self._rest.set()

    def _advance(self, run: SyncRun) -> Sequence[AgentEvent] | None:
        if self._error is not None:
            return None
        if self._aborted:
            run.close()
            return self._cut_short() or None
        try:
            events: Sequence[AgentEvent] | None = run.advance()
        except Cancelled:
            return self._cut_short()
        except Exception as error:
            self._error = error
            return None
        if events is None:
            self._result = self._finished(run.result)
        return events

    def collect(self) -> RunResult:
        """Run to the end, and return the result. Raises what it failed with."""
        if not self._begun:
            for _ in self:
                pass
        return self.result

    def abort(self) -> None:
        """End the run from any thread: calls that run are given up, and the last events say so."""
        with self._lock:
            self._aborted = True
            run = self._run
        self._signal.set()
        if run is not None:
            run.cancel()

    def wait_for_idle(self, timeout: float | None = None) -> bool:
        """Wait, in another thread than the one that iterates, until the run is over. False when the time is up."""
        return self._rest.block(timeout)

    def close(self) -> None:
        self._rest.set()
        if self._run is not None:
            self._run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        run = getattr(self, "_run", None)  # an object that was interrupted while being made is finalized, too
        if run is not None:
            run.close()


class AsyncRunStream(_Watched):
    """Iterate over it with `async for`, or use it in an `async with` block. There is nothing to await first."""

    def __init__(
        self, start: Callable[[], AioRun], record: Record, signal: Signal, finish: Finish | None = None
    ) -> None:
        super().__init__(record, signal, finish)
        self._start = start
        self._run: AioRun | None = None

    def __aiter__(self) -> _Iteration:
        self._begin()
        self._run = self._start()
        return _Iteration(self, self._run)

    async def collect(self) -> RunResult:
        """Run to the end, and return the result. Raises what it failed with."""
        if not self._begun:
            async for _ in self:
                pass
        return self.result

    def abort(self) -> None:
        """End the run from any task or thread: calls that run are given up, and the last events say so."""
        self._aborted = True
        self._signal.set()
        if self._run is not None:
            self._run.abandon()

    async def wait_for_idle(self) -> None:
        """Wait, in another task than the one that iterates, until the run is over."""
        await self._rest.wait()

    async def aclose(self) -> None:
        self._rest.set()
        if self._run is not None:
            await self._run.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


class _Iteration:
    """What `async for` holds: when the loop is left nothing refers to it any more, and its finalizer closes the run."""

    __slots__ = ("_over", "_ready", "_run", "_stream")

    def __init__(self, stream: AsyncRunStream, run: AioRun) -> None:
        self._stream = stream
        self._run = run
        self._ready: Iterator[Any] = iter(())
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AgentEvent:
        stream = self._stream
        while True:
            for event in self._ready:
                found: AgentEvent = event
                return found
            if self._over:
                stream._rest.set()
                raise StopAsyncIteration
            self._ready = iter(await self._more())

    async def _more(self) -> Sequence[Any]:
        stream, run = self._stream, self._run
        try:
            if stream._aborted:
                await run.aclose()
            events = None if run.finished else await run.advance()
        except Exception as error:
            stream._error = error
            self._over = True
            return ()
        except BaseException:
            stream._rest.set()
            raise
        if events is not None:
            return events
        self._over = True
        stream._result = stream._finished(run.result)
        return stream._cut_short() if run.result is None and stream._aborted else ()

    def __del__(self) -> None:
        run = getattr(self, "_run", None)  # it may be half-made
        if run is not None:
            self._stream._rest.set()
            if not run.finished:
                run.abandon()
