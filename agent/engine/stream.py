"""`Stream` and `AsyncStream`: base classes of all event streams.

Subclasses stream responses, typed JSON, runs, sessions and batches; they start the run and process its events. A stream
can be iterated once. Leaving the loop, by any path, closes the run:

- `Stream` iterates with a generator, which Python closes when the loop drops it.
- `AsyncStream` iterates with an object whose finalizer schedules `aclose` on the event loop. The connection is closed
  within one turn of the loop, without garbage collection. `async with` closes it before the block ends.
"""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from typing_extensions import override

from .. import errors
from .wire import Cancelled

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

E = TypeVar("E")
R = TypeVar("R")


class Run(Protocol):
    """Source of a `Stream`, such as a `SyncRun`. `result` is None until the run has ended."""

    @property
    def result(self) -> Any: ...

    @property
    def finished(self) -> bool: ...

    def advance(self) -> Sequence[Any] | None:
        """Return the next events; None at the end."""

    def cancel(self) -> None:
        """Interrupt `advance` from any thread."""

    def close(self) -> None:
        """Release everything. Closing again does nothing."""


class AsyncRun(Protocol):
    """Source of an `AsyncStream`, such as an `AioRun`."""

    loop: AbstractEventLoop

    @property
    def result(self) -> Any: ...

    @property
    def finished(self) -> bool: ...

    async def advance(self) -> Sequence[Any] | None:
        """Return the next events; None at the end, or if the run was closed meanwhile."""

    def abandon(self) -> None:
        """Close soon, from a finalizer or another thread."""

    async def aclose(self) -> None:
        """Release everything. Closing again does nothing."""


class StreamBase(ABC, Generic[E, R]):
    """State and hooks shared by sync and async streams.

    Args:
        scope: Creates a context manager from the stream; it is entered before the run and left after it is closed.
    """

    _noun: ClassVar[str] = "stream"
    _raises: ClassVar[bool] = True
    """Whether the iteration raises failures. Otherwise it ends, and only the result raises."""

    def __init__(self, scope: Callable[[Any], Any] | None = None) -> None:
        self._scope = scope
        self._entered: Any = None
        self._iterated = False
        self._over = False
        self._closed = False
        self._aborted = False
        self._result: R | None = None
        self._error: Exception | None = None

    @property
    def error(self) -> Exception | None:
        """Exception that the stream failed with."""
        return self._error

    @property
    def ended(self) -> bool:
        """Whether the stream was read to its end. False for failed and abandoned streams."""
        return self._result is not None

    # Hooks

    def _receive(self, events: Sequence[Any]) -> Iterable[E]:
        """Convert new events of the run to events of the stream."""
        return events

    def _finish(self, result: Any) -> R:
        """Convert the result of the run to the result of the stream."""
        converted: R = result
        return converted

    def _last_events(self) -> Iterable[E]:
        """Events to yield after the result is known."""
        return ()

    def _events_of_abort(self) -> Iterable[E]:
        """Events to yield after `abort`. May set or raise an error."""
        self._error = errors.Aborted(f"the {self._noun} was aborted")
        raise _without_traceback(self._error) from None

    # State changes

    def _claim(self) -> None:
        if self._iterated or self._closed:
            raise errors.ConfigurationError(
                f"The {self._noun} was iterated before and cannot be resumed.",
                field=self._noun,
                fix="Start a new one.",
            )
        self._iterated = True

    def _end(self, result: Any) -> Iterator[E]:
        """Handle the end of the run. The result is None if the run was closed."""
        self._over = True
        if result is not None:
            self._result = self._finish(result)
            return iter(self._last_events())
        return iter(self._events_of_abort()) if self._aborted else iter(())

    def _fail(self, error: Exception) -> Iterator[E]:
        """Record a failure, and re-raise it if failures are raised. Called from an exception handler."""
        self._over = True
        if self._raises:
            self._error = _without_traceback(error)
            raise
        self._error = error
        return iter(())

    def _outcome(self) -> R:
        """Return the result. Raises the failure, or ConfigurationError before the end."""
        if self._result is not None:
            return self._result
        if self._error is not None:
            raise _without_traceback(self._error) if self._raises else self._error
        raise self._not_ended()

    def _not_ended(self) -> errors.ConfigurationError:
        field = "response" if self._noun == "stream" else "result"
        return errors.ConfigurationError(
            f"The {self._noun} has not ended, so it has no {field} yet.",
            field=field,
            fix="Iterate to the end first, or call collect().",
        )


def _without_traceback(error: Exception) -> Exception:
    """Copy an error without its traceback, whose frames would form a reference cycle with the stream."""
    try:
        copied = copy.copy(error)
    except Exception:  # a user's exception class that cannot be copied
        return error
    copied.__cause__, copied.__suppress_context__ = error.__cause__, True
    return copied


class Stream(StreamBase[E, R]):
    """A sync stream. Iterate over it, or use it in a `with` block."""

    _entered: AbstractContextManager[None] | None

    def __init__(self, scope: Callable[[Any], AbstractContextManager[None]] | None = None) -> None:
        super().__init__(scope)
        self._run: Run | None = None
        self._lock = threading.Lock()

    @abstractmethod
    def _start_run(self) -> Run:
        """Start the run."""

    def __iter__(self) -> Iterator[E]:
        self._begin()
        try:
            while not self._over:
                yield from self._advance()
        finally:
            self.close()

    def _begin(self) -> None:
        with self._lock:
            self._claim()
        if self._scope is not None:
            entered = self._scope(self)
            entered.__enter__()
            self._entered = entered

    def _advance(self) -> Iterator[E]:
        run = self._run or self._open()
        try:
            events = None if self._aborted else run.advance()
        except Cancelled:
            self._aborted = True
            events = None
        except Exception as error:
            return self._fail(error)
        if events is not None:
            return iter(self._receive(events))
        if self._aborted:
            run.close()
        return self._end(None if self._aborted else run.result)

    def _open(self) -> Run:
        try:
            run = self._start_run()
        except Exception as error:
            self._over = True
            self._error = _without_traceback(error)
            raise
        with self._lock:
            self._run = run
        return run

    def collect(self) -> R:
        """Read to the end and return the result. Raises the failure, if any."""
        if self._result is None and self._error is None:
            for _ in self:
                pass
        return self._outcome()

    def abort(self) -> None:
        """End the stream, from any thread. The iteration raises Aborted."""
        with self._lock:
            self._aborted = True
            run = self._run
        if run is not None:
            run.cancel()

    def close(self) -> None:
        """Close the run and its connection. Events received so far stay available."""
        self._closed = True
        run = self._run
        if run is not None:
            run.close()
        if run is None or run.finished:  # otherwise another thread is advancing it, and will close it
            entered, self._entered = self._entered, None
            if entered is not None:
                entered.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        run = getattr(self, "_run", None)  # the constructor may have been interrupted
        if run is not None:
            run.close()


class AsyncStream(StreamBase[E, R]):
    """An async stream. Use `async for` or an `async with` block; creating one needs no await."""

    _entered: AbstractAsyncContextManager[None] | None

    def __init__(self, scope: Callable[[Any], AbstractAsyncContextManager[None]] | None = None) -> None:
        super().__init__(scope)
        self._run: AsyncRun | None = None

    @abstractmethod
    def _start_run(self) -> AsyncRun:
        """Start the run on the running event loop."""

    def __aiter__(self) -> AsyncIterator[E]:
        self._claim()
        return _EventIterator(self)

    async def _advance(self) -> Iterator[E]:
        run = self._run or await self._open()
        try:
            if self._aborted:
                await run.aclose()
            events = None if run.finished else await run.advance()
        except Exception as error:
            return self._fail(error)
        return self._end(run.result) if events is None else iter(self._receive(events))

    async def _open(self) -> AsyncRun:
        if self._scope is not None:
            entered = self._scope(self)
            await entered.__aenter__()
            self._entered = entered
        try:
            self._run = self._start_run()
        except Exception as error:
            self._over = True
            self._error = _without_traceback(error)
            raise
        return self._run

    async def collect(self) -> R:
        """Read to the end and return the result. Raises the failure, if any."""
        if self._result is None and self._error is None:
            async for _ in self:
                pass
        return self._outcome()

    def abort(self) -> None:
        """End the stream, from any task or thread. The iteration raises Aborted."""
        self._aborted = True
        if self._run is not None:
            self._run.abandon()

    async def aclose(self) -> None:
        """Close the run and its connection. Events received so far stay available."""
        self._closed = True
        if self._run is not None:
            await self._run.aclose()
        entered, self._entered = self._entered, None
        if entered is not None:
            await entered.__aexit__(None, None, None)

    def _abandon(self) -> None:
        """Schedule closing. Called from a finalizer, which cannot await."""
        run, was_closed = self._run, self._closed
        self._closed = True
        if run is None or was_closed:
            return
        if self._entered is None:
            run.abandon()
        else:
            with suppress(RuntimeError):  # the loop has ended
                run.loop.call_soon_threadsafe(lambda: run.loop.create_task(self.aclose()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


class _EventIterator(AsyncIterator[E]):
    """Iterator of one `async for` loop. Its finalizer closes the stream when the loop is left."""

    __slots__ = ("_ready", "_stream")

    def __init__(self, stream: AsyncStream[E, Any]) -> None:
        self._stream = stream
        self._ready: Iterator[E] = iter(())

    @override
    async def __anext__(self) -> E:
        stream = self._stream
        while True:
            for event in self._ready:
                return event
            if stream._over or (stream._closed and stream._run is None):
                await stream.aclose()
                raise StopAsyncIteration
            try:
                self._ready = await stream._advance()
            except BaseException:
                await stream.aclose()
                raise

    def __del__(self) -> None:
        stream = getattr(self, "_stream", None)  # the constructor may have been interrupted
        if stream is not None:
            stream._abandon()
