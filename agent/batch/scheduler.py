"""Scheduling of batches: concurrency, back-pressure on the input, and the progress bar.

At most `concurrency` requests run at a time, and at most as many outcomes wait to be consumed; the input is not read
further ahead.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from typing_extensions import override

from .. import errors
from ..engine.stream import StreamBase
from ..engine.wire import GRACE
from ..errors import ConfigurationError
from ..types.response import OutputT
from .values import (
    BatchInputError,
    BatchItem,
    BatchPlan,
    BatchProgress,
    BatchResult,
    ProgressTracker,
    SendRequest,
    format_duration,
)

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar:
    """Progress bar on standard error."""

    def __init__(self) -> None:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        except ImportError:
            raise ConfigurationError(
                "A progress bar needs the package rich.",
                field="progress",
                fix='Run pip install "agent-llm-router[cli]", or pass on_progress=.',
            ) from None

        class Quiet(Console):
            @override
            def on_broken_pipe(self) -> None:
                """Do not exit, as rich does: paid responses would be lost."""
                self.quiet = True

        self._bar: Progress = Progress(
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[about]}"),
            console=Quiet(stderr=True),
            refresh_per_second=5,
            expand=True,
        )
        self._task: TaskID | None = None

    def open(self, progress: BatchProgress) -> None:
        self._task = self._bar.add_task("", total=progress.total, completed=progress.earlier, about="")
        self._bar.start()

    def __call__(self, progress: BatchProgress) -> None:
        if self._task is not None:
            self._bar.update(
                self._task,
                completed=progress.earlier + progress.done,
                total=progress.total,
                about=describe_progress(progress),
            )

    def close(self) -> None:
        self._bar.stop()


def describe_progress(progress: BatchProgress) -> str:
    """Return the text beside the bar."""
    parts = [f"${progress.known_cost:.4f}" + ("+?" if progress.unpriced else "")]
    if progress.failed:
        parts.insert(0, f"{progress.failed} failed")
    if progress.eta is not None:
        parts.append(
            f"{format_duration(progress.eta)} left" if progress.left else f"{format_duration(progress.elapsed)}"
        )
    return " · ".join(parts)


class RequestRunner:
    """Runs requests on an event loop, one task each. Use it on that loop's thread.

    Args:
        send: Sends one request.
        context: The context variables of every request; each gets a copy.
        on_item: Called with each item on the loop's thread, until `cancel`.
    """

    def __init__(self, send: SendRequest, context: contextvars.Context, on_item: Callable[[BatchItem], object]) -> None:
        self._send = send
        self._context = context
        self._on_item = on_item
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancelled = False

    def start(self, index: int, request: Any) -> None:
        """Start a request. An invalid request becomes an item with an error."""
        if not self._cancelled:
            # One task each: requests must not share changes of context variables.
            task = self._loop.create_task(self._run_request(index, request), context=self._context.copy())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def start_soon(self, index: int, request: Any) -> None:
        """Thread-safe version of `start`."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.start, index, request)

    def cancel(self) -> None:
        """Cancel all requests. No more items are reported."""
        self._cancelled = True
        for task in self._tasks:
            task.cancel()

    def abandon(self) -> None:
        """Cancel from a finalizer or another thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.cancel)

    async def wait_closed(self) -> None:
        """Wait for the tasks to end. Tasks that ignore their cancellation are left behind."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=GRACE + 0.25)

    async def _run_request(self, index: int, request: Any) -> None:
        # No variable holds the item: error, traceback, frame and item would form a reference cycle.
        try:
            response = await self._send(request)
        except BaseException as error:
            # Any exception: raised from a task, some would stop the loop, and others would be lost.
            if not self._cancelled:
                self._on_item(BatchItem(index, request, error=_as_error(error)))
        else:
            if not self._cancelled:
                self._on_item(BatchItem(index, request, response))


def _as_error(raised: BaseException) -> Exception:
    if isinstance(raised, Exception):
        return raised
    if isinstance(raised, asyncio.CancelledError):
        return errors.Aborted("The request cancelled itself.")
    return errors.Aborted(f"User code raised {type(raised).__name__}.")


class Outcomes(Protocol):
    """A queue of finished items, sync or async."""

    def empty(self) -> bool: ...

    def get_nowait(self) -> BatchItem | None: ...


LATER: Any = object()
"""Returned by an input that has no request ready."""

_MAX_FEED_SECONDS = 0.005
"""Seconds of reading a slow input before the outcomes get a turn."""


class Scheduler:
    """State of one batch. Subclasses start requests and wait for outcomes."""

    def __init__(self, plan: BatchPlan) -> None:
        self._plan = plan
        self._bar: Bar | None = Bar() if plan.options.progress else None  # raises before anything is sent
        self.tracker: ProgressTracker = ProgressTracker(plan, self._bar)
        self._source: Iterator[Any] = iter(())
        self._ready: deque[BatchItem] = deque()
        self._running = 0
        self._read = 0
        self._exhausted = False
        self._failed_input: Exception | None = None
        self._closed = False

    @property
    def finished(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def rest(self) -> list[BatchItem]:
        """Return the finished items that were not yielded."""
        items = list(self._ready)
        self._ready.clear()
        return items

    def _start_request(self, index: int, request: Any) -> None:
        """Start a request immediately, unless the batch is closed."""
        raise NotImplementedError

    def _open(self, source: Iterator[Any]) -> None:
        self._source = source
        self.tracker.start()
        if self._bar is not None:
            self._bar.open(self.tracker.progress)

    def _next(self) -> Sequence[BatchItem] | None:
        """Return the next item in a sequence, which is empty while there is none, or None at the end."""
        if self._closed:
            return None
        if self._ready:
            return (self._ready.popleft(),)
        if self.is_over():
            self._raise_input_error()
            return None
        return ()

    def _take_items(self, outcomes: Outcomes) -> None:
        """Add the items that have arrived. None is a wake-up."""
        while not outcomes.empty():
            if (item := outcomes.get_nowait()) is not None:
                self._add_item(item)

    def _room(self) -> int:
        """Return how many more requests may start now."""
        if self._exhausted or self._closed:
            return 0
        limit = self._plan.options.concurrency
        return min(limit - self._running, 2 * limit - self._running - len(self._ready))

    def _feed(self) -> bool:
        """Start requests while there is room. Return whether a slow input interrupted the reading."""
        started = monotonic()
        try:
            while self._room() > 0 and self.tracker.can_continue():
                request = next(self._source)
                if request is LATER:
                    break
                self._running += 1
                self._start_request(self._read, request)
                self._read += 1
                if monotonic() - started > _MAX_FEED_SECONDS:
                    return True
            if self.tracker.stopped is not None and not self._exhausted:
                self._exhausted = True
                self._skip_rest()
        except StopIteration:
            self._exhausted = True
        except Exception as error:
            self._failed_input = error  # raised after the running requests
            self._exhausted = True
        return False

    def _add_item(self, item: BatchItem) -> None:
        self._running -= 1
        self._ready.append(item)  # first, since a Ctrl-C may interrupt the display
        self.tracker.add(item)

    def is_over(self) -> bool:
        """Whether all items have been yielded."""
        return self._exhausted and not self._running and not self._ready

    def _raise_input_error(self) -> None:
        error, self._failed_input = self._failed_input, None
        if error is not None:
            raise BatchInputError(
                f"The input of the batch raised {type(error).__name__} after {self._read} requests: {error}"
            ) from error

    def _skip_rest(self) -> None:
        """Add the remaining requests of a sized input as skipped."""
        if not self._plan.sized:
            return
        error = self.tracker.create_skip_error()
        for request in self._source:
            item = BatchItem(self._read, request, error=error)
            self._read += 1
            self._ready.append(item)
            self.tracker.add(item)

    def _end(self) -> None:
        self._closed = True
        if self._bar is not None:
            with suppress(Exception):  # a closed terminal must not lose responses
                self._bar.close()


class BatchView(StreamBase[BatchItem[OutputT], BatchResult[OutputT]]):
    """Progress and control of a batch."""

    _batch: Scheduler

    @property
    @override
    def ended(self) -> bool:
        """Whether all items have been yielded."""
        return self._batch.is_over()

    @property
    def progress(self) -> BatchProgress:
        """Current progress."""
        return self._batch.tracker.progress

    @property
    def stopped(self) -> str | None:
        """Why no more requests are sent before the end of the input, or None."""
        return self._batch.tracker.stopped

    @property
    def out_of_time(self) -> bool:
        """Whether `max_seconds` have passed."""
        return self._batch.tracker.out_of_time

    def stop(self, reason: str) -> None:
        """Send no more requests. Running requests finish and are yielded."""
        tracker = self._batch.tracker
        tracker.stopped = tracker.stopped or reason

    def rest(self) -> list[BatchItem[OutputT]]:
        """Return the finished items that were not yielded."""
        return self._batch.rest()

    def _create_result(self, items: list[BatchItem[OutputT]]) -> BatchResult[OutputT]:
        """Return the items in input order."""
        return BatchResult(sorted(items, key=attrgetter("index")), self.progress, self.stopped)
