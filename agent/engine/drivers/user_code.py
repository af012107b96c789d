"""Threads for user code: async tools and hooks of sync runs, and blocking ones of async runs.

Each sync run has its own event loop for async code: with one loop per process, an async tool that calls the sync API
would deadlock.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from ..locks import PROCESS, foreign_call_error
from ..wire import GRACE
from .threads import check_threads_run, start_thread

_BLOCKED = 0.25
"""Seconds without a response after which an event loop counts as blocked by user code."""


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def call_in_thread(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], context: contextvars.Context
) -> Any:
    """Call blocking code in a new daemon thread, which does not delay the interpreter's exit."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def settle(outcome: tuple[Any, BaseException | None]) -> None:
        if not done.done():
            done.set_result(outcome)

    def main() -> None:
        outcome: tuple[Any, BaseException | None]
        try:
            outcome = context.run(function, *args, **kwargs), None
        except BaseException as error:
            outcome = None, error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, outcome)

    start_thread(main, "agent-tool")
    value, error = await done
    if isinstance(error, StopIteration | StopAsyncIteration):
        raise RuntimeError(f"user code raised {type(error).__name__}") from error
    if error is not None:
        raise error
    return value


async def import_in_thread(*names: str) -> None:
    """Import modules of this package that take long, without blocking the event loop."""
    if any(name not in sys.modules for name in names):
        await call_in_thread(lambda: [import_module(name) for name in names], (), {}, contextvars.copy_context())


class ReportBatcher:
    """Collects reports from any thread and delivers them to the event loop in batches.

    While a thread is busy, each wake-up of the loop costs milliseconds; a thousand single reports would take seconds.
    """

    __slots__ = ("_deliver", "_is_scheduled", "_on_loop", "_reports")

    def __init__(
        self, deliver: Callable[[list[Any]], object], on_loop: Callable[[Callable[[], object]], object]
    ) -> None:
        self._deliver = deliver
        self._on_loop = on_loop
        self._reports: deque[Any] = deque()
        self._is_scheduled = False

    def __call__(self, report: Any) -> None:
        self._reports.append(report)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._on_loop(self._flush)

    def _flush(self) -> None:
        self._is_scheduled = False  # cleared first, so that later reports schedule another flush
        queue = self._reports
        if reports := [queue.popleft() for _ in range(len(queue))]:
            self._deliver(reports)


class Pending:
    """Result of an awaitable on the loop's thread."""

    __slots__ = ("_error", "_task", "_value", "done", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.done: threading.Event = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self._value: Any = None
        self._error: BaseException | None = None

    def start(self, awaitable: Awaitable[Any], context: contextvars.Context) -> None:
        """Start the task. Called on the loop's thread."""
        self._task = self.loop.create_task(self._settle(awaitable), context=context)

    async def _settle(self, awaitable: Awaitable[Any]) -> None:
        try:
            self._value = await awaitable
        except BaseException as error:
            self._error = error
        finally:
            self.done.set()

    def cancel(self) -> None:
        """Cancel the task, from any thread."""
        with suppress(RuntimeError):  # the loop has ended, and the task with it
            self.loop.call_soon_threadsafe(lambda: self._task.cancel() if self._task is not None else None)

    def result(self) -> Any:
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # or error and traceback keep each other alive
        return self._value


class _ThreadLoop:
    """Event loop of a thread, which creates, runs and closes it, out of reach of a Ctrl-C."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.failure: Exception | None = None
        self.ready = threading.Event()
        self.stopping = threading.Event()
        self.stopped = threading.Event()

    def main(self) -> None:
        try:
            loop = self.loop = asyncio.new_event_loop()
        except Exception as error:  # no file descriptor is left
            self.failure = error
            return
        finally:
            self.ready.set()
        asyncio.set_event_loop(loop)
        try:
            if not self.stopping.is_set():
                loop.run_forever()
            self.stopped.set()
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.wait(tasks, timeout=GRACE))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    def stop(self) -> None:
        """Stop the loop, from any thread; before the loop exists, too."""
        self.stopping.set()
        if self.loop is not None:
            with suppress(RuntimeError):  # stopped before
                self.loop.call_soon_threadsafe(self.loop.stop)


class LoopThread:
    """Event loop in a daemon thread, until `stop`.

    An interrupt at any line of its owner may prevent the call of `stop`: then the finalizer stops the loop.
    """

    def __init__(self) -> None:
        self._forks = PROCESS.forks
        self._shared = _ThreadLoop()
        self._thread = start_thread(self._shared.main, "agent-loop")

    def check(self) -> None:
        """Raise if the thread does not run any more: in a forked child, and at the interpreter's exit."""
        if self._forks != PROCESS.forks:
            raise foreign_call_error()
        check_threads_run()

    def submit(self, awaitable: Awaitable[Any], context: contextvars.Context) -> Pending:
        self.check()
        self._shared.ready.wait()
        if self._shared.loop is None:
            raise self._shared.failure or RuntimeError("the event loop could not be created")
        pending = Pending(self._shared.loop)
        pending.loop.call_soon_threadsafe(pending.start, awaitable, context)
        return pending

    def stop(self) -> None:
        if self._forks != PROCESS.forks:
            return
        self._shared.stop()
        if threading.current_thread() is self._thread:
            return
        # A loop that does not respond is blocked by user code; its thread is abandoned.
        if self._shared.stopped.wait(_BLOCKED):
            self._thread.join(GRACE + 0.25)

    def __del__(self) -> None:
        with suppress(AttributeError):  # the constructor may have been interrupted
            if self._forks == PROCESS.forks:
                self._shared.stop()
