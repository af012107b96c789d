"""Requests under way on one event loop, each in a task of its own. What comes of one is told when it is there.

It neither reads the input nor counts: how many may be under way is the business of whoever starts them.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import warnings
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import errors
from ..calls.requests import read_request
from ..engine.context import ambient_deadline
from ..engine.wire import GRACE
from ..types import AgentRequest, AgentResponse, Message
from .values import BatchItem, BatchProgress, usages_of

if TYPE_CHECKING:
    from ..client import Client


CONCURRENCY = 32
"""Requests under way at a time, unless said otherwise."""

Ask: TypeAlias = Callable[[Any], Awaitable[AgentResponse]]
OnProgress: TypeAlias = Callable[[BatchProgress], object]


@dataclass(frozen=True, slots=True)
class Options:
    """How a batch goes about its work; see `Client.batch`."""

    concurrency: int = CONCURRENCY
    on_progress: OnProgress | None = None
    progress: bool = False
    total: int | None = None
    max_failures: int | None = None
    max_cost: float | None = None
    max_seconds: float | None = None
    earlier: int = 0

    def __post_init__(self) -> None:
        _whole("concurrency", self.concurrency, least=1)
        if self.total is not None:
            _whole("total", self.total, least=0)
        if self.max_failures is not None:
            _whole("max_failures", self.max_failures, least=1)
        for name in ("max_cost", "max_seconds"):
            _above_zero(name, getattr(self, name))
        if self.on_progress is not None and not callable(self.on_progress):
            raise errors.ConfigurationError(
                "on_progress cannot be called.", field="on_progress", fix="Pass a function of a BatchProgress."
            )


_NAMES = frozenset(Options.__dataclass_fields__) - {"earlier"}


def read_options(caller: Client, given: Mapping[str, Any]) -> tuple[Ask, Options]:
    """How each request is asked, and how the batch goes about it. What is wrong with either is raised here, once."""
    options = Options(**{name: value for name, value in given.items() if name in _NAMES})
    chosen, overrides = caller._chosen({name: value for name, value in given.items() if name not in _NAMES})
    _check_ready(chosen)
    if not overrides:
        return chosen.acomplete, options
    read_request("", overrides)
    return partial(chosen.acomplete, **overrides), options


def _check_ready(caller: Client) -> None:
    """A key that is missing is missing for every request."""
    caller._call(streaming=False)
    problems = {target.name: target.problem for target in getattr(caller, "targets", ())}
    if problems and all(problems.values()):
        told = "; ".join(f"{name}: {str(problem).rstrip('.')}" for name, problem in problems.items())
        raise errors.AuthenticationError(f"None of the targets can be asked: {told}.")


def _whole(name: str, value: Any, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise errors.ConfigurationError(
            f"{name} is {value!r}.", field=name, fix=f"Use a whole number of at least {least}."
        )


def _above_zero(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise errors.ConfigurationError(f"{name} is {value!r}.", field=name, fix="Use a number above 0.")


def read_source(requests: Any, *, awaiting: bool) -> Any:
    """The requests as they were passed in. What can be iterated but can only be a mistake is refused."""
    if isinstance(requests, str | bytes | Mapping | Message | AgentRequest):
        raise errors.ConfigurationError(
            f"A batch is made from several requests, not from one {type(requests).__name__}.",
            field="requests",
            fix="Pass a list of requests; one request is for complete().",
        )
    if isinstance(requests, Iterable) or (awaiting and isinstance(requests, AsyncIterable)):
        return requests
    if isinstance(requests, AsyncIterable):
        fix = "Use abatch, which takes async iterables, too."
    else:
        fix = "Pass a list, a generator, or anything else that can be iterated."
    raise errors.ConfigurationError(
        f"A batch cannot be made from {type(requests).__name__}.", field="requests", fix=fix
    )


class BatchPlan:
    """One batch: what is asked, whom, and within which limits."""

    __slots__ = ("ask", "options", "sized", "source", "total")

    def __init__(self, ask: Ask, requests: Any, options: Options, *, awaiting: bool) -> None:
        self.ask = ask
        self.source = read_source(requests, awaiting=awaiting)
        self.options = options
        length = len(requests) if hasattr(requests, "__len__") else None
        self.total = length if options.total is None else options.total
        self.sized = length is not None and not (awaiting and isinstance(requests, AsyncIterable))
        """Whether what is left of the requests can be read when nothing more is asked."""

    def context(self) -> contextvars.Context:
        """In which the requests are asked: the caller's, with the deadline of the batch for each of them."""
        context = contextvars.copy_context()
        if self.options.max_seconds is not None:
            until = min(ambient_deadline.get(), monotonic() + self.options.max_seconds)
            context.run(ambient_deadline.set, until)
        return context


class ProgressTracker:
    """Adds up what was done, tells whoever wants to know, and says when a limit is reached. O(1) for each item."""

    def __init__(self, plan: BatchPlan, on_progress: OnProgress | None) -> None:
        options = plan.options
        self._options = options
        self._on_progress = on_progress
        self._began = monotonic()
        self._until = math.inf if options.max_seconds is None else self._began + options.max_seconds
        self._progress = BatchProgress(total=plan.total, earlier=options.earlier)
        self.stopped: str | None = None
        """Why nothing more is asked, once that is so."""

    @property
    def progress(self) -> BatchProgress:
        return replace(self._progress, elapsed=monotonic() - self._began)

    def add(self, item: BatchItem) -> None:
        cost, tokens, unpriced = _bill(item)
        so_far = self._progress
        self._progress = BatchProgress(
            done=so_far.done + 1,
            failed=so_far.failed + (item.error is not None),
            total=so_far.total,
            cost=so_far.cost + cost,
            unpriced=so_far.unpriced + unpriced,
            tokens=so_far.tokens + tokens,
            elapsed=monotonic() - self._began,
            earlier=so_far.earlier,
        )
        if self.stopped is None:
            self.stopped = self._limit_reached()
        if item.error is not None:
            self.may_go_on()  # if it failed because the time is over, that is so also when nothing more is to be asked
        if self._on_progress is not None:
            self._tell()

    @property
    def out_of_time(self) -> bool:
        return monotonic() >= self._until

    def may_go_on(self) -> bool:
        """Whether another request may be asked."""
        if self.stopped is None and self.out_of_time:
            self.stopped = f"max_seconds: {self._options.max_seconds:g} seconds have passed"
        return self.stopped is None

    def never_asked(self) -> errors.AgentError:
        """The outcome of a request that was not asked any more."""
        message = f"Not asked: the batch was stopped by {self.stopped}."
        if self.stopped is not None and self.stopped.startswith("max_seconds"):
            return errors.TimeoutError(message, deadline=True)
        return errors.Aborted(message)

    def _limit_reached(self) -> str | None:
        progress, options = self._progress, self._options
        if options.max_failures is not None and progress.failed >= options.max_failures:
            return f"max_failures: {progress.failed} of {progress.done} requests failed"
        if options.max_cost is None:
            return None
        if progress.cost >= options.max_cost:
            return f"max_cost: ${progress.cost:.6f} of ${options.max_cost:g} is spent"
        if progress.unpriced:
            return "max_cost: nobody knows the price of this model, so the limit cannot be kept"
        return None

    def _tell(self) -> None:
        assert self._on_progress is not None
        try:
            self._on_progress(self._progress)
        except Exception as error:
            # A mistake in the display must not cost the answers, which are paid for.
            self._on_progress = None
            warnings.warn(
                f"on_progress is not called any more, because it raised {type(error).__name__}: {error}",
                RuntimeWarning,
                stacklevel=2,
            )


def _bill(item: BatchItem) -> tuple[float, int, bool]:
    """Dollars and tokens of all attempts for one request, and whether some of it has no known price."""
    cost, unpriced = 0.0, False
    for attempt in item.attempts:
        if attempt.cost is not None:
            cost += attempt.cost
        elif attempt.usage is not None:
            unpriced = True
    return cost, sum(usage.total_tokens for usage in usages_of(item)), unpriced


class RequestRunner:
    """Asks, on a loop; use it on that loop's thread.

    Args:
        ask: Asks one request.
        context: The context variables of every request; each gets a copy of its own.
        tell: Called with each item, on the loop's thread. After `cancel`, it is not.
    """

    __slots__ = ("_arrived", "_ask", "_cancelled", "_context", "_loop", "_tasks", "_tell")

    def __init__(self, ask: Ask, context: contextvars.Context, tell: Callable[[BatchItem], object]) -> None:
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
