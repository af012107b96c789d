"""What both kinds of batch streams have in common: how the input is read, what is under way, what is ready.

The input is never read far ahead. At most `concurrency` requests are under way, and at most as many more have an
outcome that nobody has taken yet.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

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
    OnProgress,
    ProgressTracker,
    SendRequest,
    clock,
)

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar:
    """Shows a batch on standard error; call it with each progress."""

    def __init__(self) -> None:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        except ImportError:
            raise ConfigurationError(
                "A progress bar needs rich, which this Python does not have.",
                field="progress",
                fix='Install it with pip install "agent-llm-router[cli]", or pass on_progress=.',
            ) from None

        class Quiet(Console):
            @override
            def on_broken_pipe(self) -> None:
                """Rich would end the program, and with it answers that are paid for."""
                self.quiet = True

        self._shown: Progress = Progress(
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[about]}"),
            console=Quiet(stderr=True),
            refresh_per_second=5,
            expand=True,
        )
        self._task: TaskID | None = None

    def open(self, progress: BatchProgress) -> None:
        self._task = self._shown.add_task("", total=progress.total, completed=progress.earlier, about="")
        self._shown.start()

    def __call__(self, progress: BatchProgress) -> None:
        if self._task is not None:
            self._shown.update(
                self._task, completed=progress.earlier + progress.done, total=progress.total, about=about(progress)
            )

    def close(self) -> None:
        self._shown.stop()


def about(progress: BatchProgress) -> str:
    """What there is to say beside a bar."""
    said = [f"${progress.cost:.4f}" + ("+?" if progress.unpriced else "")]
    if progress.failed:
        said.insert(0, f"{progress.failed} failed")
    if progress.eta is not None:
        said.append(f"{clock(progress.eta)} left" if progress.left else f"{clock(progress.elapsed)}")
    return " · ".join(said)


class RequestRunner:
    """Asks, on a loop; use it on that loop's thread.

    Args:
        ask: Asks one request.
        context: The context variables of every request; each gets a copy of its own.
        tell: Called with each item, on the loop's thread. After `cancel`, it is not.
    """

    __slots__ = ("_arrived", "_ask", "_cancelled", "_context", "_loop", "_tasks", "_tell")

    def __init__(self, ask: SendRequest, context: contextvars.Context, tell: Callable[[BatchItem], object]) -> None:
        self._ask = ask
        self._context = context
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrived: deque[tuple[int, Any]] = deque()
        self._cancelled = False

    def start(self, index: int, request: Any) -> None:
        """Begin to ask. A request that cannot be asked is an item with an error, too."""
        if not self._cancelled:
            # A task for each: what one leaves in its context variables, the next one must not see.
            task = self._loop.create_task(self._one(index, request), context=self._context.copy())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def start_soon(self, index: int, request: Any) -> None:
        """As `start`, from another thread."""
        self._arrived.append((index, request))
        if len(self._arrived) == 1:  # else the loop is on its way; to wake it costs more than to ask
            with suppress(RuntimeError):  # it has ended: somebody has closed the batch meanwhile
                self._loop.call_soon_threadsafe(self._start_arrived)

    def _start_arrived(self) -> None:
        while self._arrived:
            self.start(*self._arrived[0])
            self._arrived.popleft()

    def cancel(self) -> None:
        """End what is under way; nothing is told of it."""
        self._cancelled = True
        for task in self._tasks:
            task.cancel()

    def abandon(self) -> None:
        """As `cancel`, from a finalizer or another thread."""
        with suppress(RuntimeError):  # the loop has ended, and all of this with it
            self._loop.call_soon_threadsafe(self.cancel)

    async def ended(self) -> None:
        """Wait until all is over; what swallows its cancellation is left behind."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=GRACE + 0.25)

    async def _one(self, index: int, request: Any) -> None:
        # There is no variable for the item: error, traceback, this frame and the item would keep each other alive.
        try:
            response = await self._ask(request)
        except BaseException as error:
            # Whatever it is. Raised out of a task, some would end the loop, and of others nobody would ever hear.
            if not self._cancelled:
                self._tell(BatchItem(index, request, error=_as_error(error)))
        else:
            if not self._cancelled:
                self._tell(BatchItem(index, request, response))


def _as_error(raised: BaseException) -> Exception:
    if isinstance(raised, Exception):
        return raised
    if isinstance(raised, asyncio.CancelledError):
        return errors.Aborted("The request was cancelled from within.")
    return errors.Aborted(f"Code of yours raised {type(raised).__name__}.")


LATER: Any = object()
"""In the place of a request: the input has not come up with it yet."""

_PATIENCE = 0.005
"""Seconds of reading a slow input after which others have their turn, although there is room for more."""


class Scheduler:
    """One batch stream, without its waiting: a subclass says how requests are begun, and waits for the outcomes."""

    def __init__(self, plan: BatchPlan) -> None:
        self._plan = plan
        self._bar: Bar | None = None
        if plan.options.progress:
            self._bar = Bar()  # before anything is sent, if it cannot be shown
        self._tally: ProgressTracker | None = None
        self._source: Iterator[Any] = iter(())
        self._ready: deque[BatchItem] = deque()
        self._under_way = 0
        self._read = 0
        self._exhausted = False
        self._failed_input: Exception | None = None
        self._closed = False

    @property
    def progress(self) -> BatchProgress:
        """How far it has come."""
        if self._tally is None:
            return BatchProgress(total=self._plan.total, earlier=self._plan.options.earlier)
        return self._tally.progress

    @property
    def stopped(self) -> str | None:
        """Why nothing more is asked although the input goes on; None if that is not so."""
        return None if self._tally is None else self._tally.stopped

    @property
    def out_of_time(self) -> bool:
        """Whether `max_seconds` have passed."""
        return self._tally is not None and self._tally.out_of_time

    def stop(self, reason: str) -> None:
        """SendRequest nothing more. What is under way goes on to its end, and is handed out."""
        if self._tally is not None and self._tally.stopped is None:
            self._tally.stopped = reason

    def rest(self) -> list[BatchItem]:
        """After the loop was left: the outcomes that had come and were not handed out."""
        found = list(self._ready)
        self._ready.clear()
        return found

    def _begin(self, index: int, request: Any) -> None:
        """Have it asked, at once: the input may take hours to come up with the next. Once closed, nothing is asked."""
        raise NotImplementedError

    def _open(self, read: Callable[[Any], Iterator[Any]]) -> None:
        self._source = read(self._plan.source)
        self._tally = ProgressTracker(self._plan, self._told())

    def _told(self) -> OnProgress | None:
        bar, told = self._bar, self._plan.options.on_progress
        if bar is None:
            return told
        bar.open(self.progress)
        if told is None:
            return bar

        def both(progress: BatchProgress) -> None:
            bar(progress)
            told(progress)

        return both

    def _room(self) -> int:
        """How many more requests may be begun now."""
        if self._exhausted or self._closed:
            return 0
        most = self._plan.options.concurrency
        return min(most - self._under_way, 2 * most - self._under_way - len(self._ready))

    def _feed(self) -> bool:
        """Begin as many requests as there is room for. Whether there may be room left: reading took too long."""
        assert self._tally is not None
        began = monotonic()
        try:
            while self._room() > 0 and self._tally.may_go_on():
                request = next(self._source)
                if request is LATER:
                    break
                self._under_way += 1
                self._begin(self._read, request)
                self._read += 1
                if monotonic() - began > _PATIENCE:
                    return True
            if self._tally.stopped is not None and not self._exhausted:
                self._exhausted = True
                self._never_asked()
        except StopIteration:
            self._exhausted = True
        except Exception as error:
            self._failed_input = error  # to be told when what is under way has come to its end
            self._exhausted = True
        return False

    def _taken(self, item: BatchItem) -> None:
        """An outcome has come."""
        assert self._tally is not None
        self._under_way -= 1
        self._ready.append(item)  # first: the display may be where a Ctrl-C is heard
        self._tally.add(item)

    def is_over(self) -> bool:
        """Whether all outcomes have been handed out."""
        return self._exhausted and not self._under_way and not self._ready

    def _last_word(self) -> None:
        failed, self._failed_input = self._failed_input, None
        if failed is not None:
            raise BatchInputError(
                f"The input of the batch raised {type(failed).__name__} after {self._read} requests: {failed}"
            ) from failed

    def _never_asked(self) -> None:
        """The rest of an input that has a length, which was not asked because of a limit."""
        assert self._tally is not None
        if not self._plan.sized:
            return
        error = self._tally.never_asked()
        for request in self._source:
            item = BatchItem(self._read, request, error=error)
            self._read += 1
            self._ready.append(item)
            self._tally.add(item)

    def _end(self) -> None:
        self._closed = True
        if self._bar is not None:
            with suppress(Exception):  # a terminal that has gone away must not cost the answers
                self._bar.close()


class BatchView(StreamBase[BatchItem[OutputT], BatchResult[OutputT]]):
    """The state of a batch."""

    _batch: Scheduler

    @property
    @override
    def ended(self) -> bool:
        """Whether all items have been handed out."""
        return self._batch.is_over()

    @property
    def progress(self) -> BatchProgress:
        """How far the batch has come."""
        return self._batch.progress

    @property
    def stopped(self) -> str | None:
        """Why no more requests are sent although the input goes on; None if that is not so."""
        return self._batch.stopped

    @property
    def out_of_time(self) -> bool:
        """Whether `max_seconds` have passed."""
        return self._batch.out_of_time

    def stop(self, reason: str) -> None:
        """Send no more requests. What is under way goes on to its end, and is handed out."""
        self._batch.stop(reason)

    def rest(self) -> list[BatchItem[OutputT]]:
        """After the loop was left: the outcomes that had come and were not handed out."""
        return self._batch.rest()

    def _gathered(self, items: list[BatchItem[OutputT]]) -> BatchResult[OutputT]:
        """The items in the order of the input."""
        items.sort(key=_index)
        return BatchResult(items, self.progress, self.stopped)


def _index(item: BatchItem) -> int:
    return item.index
