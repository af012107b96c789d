"""Items, progress and results of batches, and the options and limits of a batch."""

from __future__ import annotations

import contextvars
import math
import warnings
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, overload

from typing_extensions import override

from .. import errors
from ..calls.requests import CALL_OPTIONS, REQUEST_OPTIONS, mask_call_options, read_request
from ..engine.context import ambient_deadline
from ..errors import AgentError, printable
from ..types import AgentRequest, AgentResponse, Message, Usage
from ..types.option_errors import check_options
from ..types.response import OutputT

if TYPE_CHECKING:
    from ..base_client import BaseClient
    from ..client import Client
    from ..types import Attempt


@dataclass(frozen=True, slots=True)
class BatchItem(Generic[OutputT]):
    """The outcome of one request: a response or an error."""

    index: int
    """Position of the request in the input, from 0."""
    request: Any
    """The request as passed in; of a batch job, with the agent's defaults."""
    response: AgentResponse[OutputT] | None = None
    error: Exception | None = None
    custom_id: str | None = None
    """The id that the caller gave the request of a batch job."""

    @property
    def ok(self) -> bool:
        return self.error is None

    def unwrap(self) -> AgentResponse[OutputT]:
        """Return the response, or raise the error."""
        if self.response is None:
            assert self.error is not None
            raise self.error
        return self.response

    @property
    def attempts(self) -> Sequence[Attempt]:
        """All attempts for this request."""
        return self.response.route if self.response is not None else getattr(self.error, "attempts", ())


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """Progress of a batch. Times are in seconds, costs in US dollars."""

    done: int = 0
    """Finished requests, including failed ones."""
    failed: int = 0
    total: int | None = None
    """Number of requests, or None if the input has no length."""
    known_cost: float = 0.0
    """Cost of all attempts whose price is known."""
    unpriced: int = 0
    """Requests whose price is unknown; `known_cost` excludes them."""
    tokens: int = 0
    elapsed: float = 0.0
    earlier: int = 0
    """Requests finished by an earlier run: part of `total`, not of `done`."""

    @property
    def cost(self) -> float | None:
        """Cost of all attempts; None if a price is unknown."""
        return None if self.unpriced else self.known_cost

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.done / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def left(self) -> int | None:
        """Remaining requests, or None if the input has no length."""
        return None if self.total is None else max(0, self.total - self.earlier - self.done)

    @property
    def eta(self) -> float | None:
        """Estimated seconds until the end, or None if unknown."""
        left = self.left
        if left is None or not self.done:
            return None
        return left * self.elapsed / self.done

    @override
    @printable
    def __str__(self) -> str:
        of_all = "" if self.total is None else f" of {self.total}"
        parts = [f"{self.earlier + self.done}{of_all} done"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        parts.append(f"${self.known_cost:.4f}" + (f" and {self.unpriced} without a price" if self.unpriced else ""))
        parts.append(f"{self.rate:.1f}/s")
        if self.eta is not None and self.left:
            parts.append(f"{format_duration(self.eta)} left")
        return ", ".join(parts)


def format_duration(seconds: float) -> str:
    """Format seconds as 0:42, 12:07 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class BatchResult(Sequence[BatchItem[OutputT]]):
    """The items of a batch in input order.

    It is as long as an input with a length: requests skipped because of a limit have an error. Without a length, unread
    requests are missing; see `stopped`.
    """

    __slots__ = ("_items", "_usage", "progress", "stopped")

    def __init__(
        self, items: Sequence[BatchItem[OutputT]], progress: BatchProgress, stopped: str | None = None
    ) -> None:
        self._items = tuple(items)
        self._usage: Usage | None = None
        self.progress: BatchProgress = progress
        """Final progress."""
        self.stopped: str | None = stopped
        """The limit that ended the batch early, or None."""

    @overload
    def __getitem__(self, index: int) -> BatchItem[OutputT]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[BatchItem[OutputT]]: ...

    @override
    def __getitem__(self, index: int | slice) -> BatchItem[OutputT] | Sequence[BatchItem[OutputT]]:
        return self._items[index]

    @override
    def __len__(self) -> int:
        return len(self._items)

    @property
    def ok(self) -> bool:
        """Whether every request was sent and succeeded."""
        return self.stopped is None and not self.progress.failed

    @property
    def responses(self) -> list[AgentResponse[OutputT] | None]:
        """The responses in input order, with None for failed requests."""
        return [item.response for item in self._items]

    @property
    def failed(self) -> list[BatchItem[OutputT]]:
        """The items with an error."""
        return [item for item in self._items if item.error is not None]

    @property
    def cost(self) -> float | None:
        """US dollars; None if a price is unknown."""
        return self.progress.cost

    @property
    def usage(self) -> Usage:
        """Total usage of all attempts."""
        if self._usage is None:
            total = Usage()
            for item in self._items:
                for usage in list_usages(item):
                    total = total + usage
            self._usage = total
        return self._usage

    def unwrap(self) -> list[AgentResponse[OutputT]]:
        """Return all responses, or raise the first error with a note that names its request."""
        failed = self.failed
        if failed:
            first = failed[0]
            assert first.error is not None
            first.error.add_note(f"Request {first.index} of the batch; {len(failed)} of {len(self)} failed.")
            raise first.error
        return [item.unwrap() for item in self._items]

    @override
    @printable
    def __repr__(self) -> str:
        stopped = f", stopped: {self.stopped}" if self.stopped else ""
        return f"BatchResult({self.progress}{stopped})"


def list_usages(item: BatchItem) -> list[Usage]:
    """Return the usage of each attempt."""
    return [attempt.usage for attempt in item.attempts if attempt.usage is not None]


class BatchInputError(AgentError):
    """The iterable of requests raised an exception, which is the cause. `result` has the finished items."""


class BatchInterrupted(KeyboardInterrupt):
    """Ctrl-C during a batch. Running requests are cancelled; `result` has the finished items."""

    def __init__(self, result: Any = None) -> None:  # Any: a BatchResult or a FileReport
        super().__init__("the batch was interrupted")
        self.result = result


CONCURRENCY = 32
"""Default number of concurrent requests."""

SendRequest: TypeAlias = Callable[[Any], Awaitable[AgentResponse]]
OnProgress: TypeAlias = Callable[[BatchProgress], object]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a batch; see `Client.batch`."""

    concurrency: int = CONCURRENCY
    on_progress: OnProgress | None = None
    progress: bool = False
    total: int | None = None
    max_failures: int | None = None
    max_cost: float | None = None
    max_seconds: float | None = None
    earlier: int = 0

    def __post_init__(self) -> None:
        _check_integer("concurrency", self.concurrency, least=1)
        if self.total is not None:
            _check_integer("total", self.total, least=0)
        if self.max_failures is not None:
            _check_integer("max_failures", self.max_failures, least=1)
        for name in ("max_cost", "max_seconds"):
            _check_positive(name, getattr(self, name))
        if self.on_progress is not None and not callable(self.on_progress):
            raise errors.ConfigurationError(
                "on_progress is not callable.", field="on_progress", fix="Pass a function that takes a BatchProgress."
            )


_NAMES = frozenset(Options.__dataclass_fields__) - {"earlier"}


def read_options(caller: Client, given: Mapping[str, Any]) -> tuple[SendRequest, Options]:
    """Return the function that sends a request, and the options. Raise configuration errors."""
    mask_call_options(given)
    options = Options(**{name: value for name, value in given.items() if name in _NAMES})
    client, overrides = caller._select({name: value for name, value in given.items() if name not in _NAMES})
    check_options(overrides, REQUEST_OPTIONS, "A batch", CALL_OPTIONS | _NAMES)
    check_configuration(client)
    if not overrides:
        return client.acomplete, options
    read_request("", overrides)
    return partial(client.acomplete, **overrides), options


def check_configuration(caller: BaseClient) -> None:
    """Raise errors that would affect every request, such as a missing API key."""
    caller._call(streaming=False)
    problems = {target.name: target.problem for target in getattr(caller, "targets", ())}
    if problems and all(problems.values()):
        reasons = "; ".join(f"{name}: {str(problem).rstrip('.')}" for name, problem in problems.items())
        raise errors.AuthenticationError(f"No target is usable: {reasons}.")


def _check_integer(name: str, value: Any, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise errors.ConfigurationError(
            f"{name} is {value!r}.", field=name, fix=f"Use a whole number of at least {least}."
        )


def _check_positive(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise errors.ConfigurationError(f"{name} is {value!r}.", field=name, fix="Use a number above 0.")


def check_source(requests: Any, *, awaiting: bool) -> Any:
    """Return the requests, or raise ConfigurationError for an input that is not a collection of requests."""
    if isinstance(requests, str | bytes | Mapping | Message | AgentRequest):
        raise errors.ConfigurationError(
            f"A batch takes several requests, not one {type(requests).__name__}.",
            field="requests",
            fix="Pass a list of requests, or use complete() for one.",
        )
    if isinstance(requests, Iterable) or (awaiting and isinstance(requests, AsyncIterable)):
        return requests
    if isinstance(requests, AsyncIterable):
        fix = "Use abatch, which also takes async iterables."
    else:
        fix = "Pass a list, a generator or another iterable."
    raise errors.ConfigurationError(
        f"{type(requests).__name__} is no collection of requests.", field="requests", fix=fix
    )


class BatchPlan:
    """The inputs of a batch: requests, options, and the function that sends a request."""

    __slots__ = ("ask", "options", "sized", "source", "total")

    def __init__(self, ask: SendRequest, requests: Any, options: Options, *, awaiting: bool) -> None:
        self.ask: SendRequest = ask
        self.source: Any = check_source(requests, awaiting=awaiting)
        self.options: Options = options
        length = len(requests) if hasattr(requests, "__len__") else None
        self.total: int | None = length if options.total is None else options.total
        self.sized: bool = length is not None and not (awaiting and isinstance(requests, AsyncIterable))
        """Whether the remaining requests can be listed when the batch stops early."""

    def context(self) -> contextvars.Context:
        """Return a copy of the current context with the deadline of the batch."""
        context = contextvars.copy_context()
        if self.options.max_seconds is not None:
            until = min(ambient_deadline.get(), monotonic() + self.options.max_seconds)
            context.run(ambient_deadline.set, until)
        return context


class ProgressTracker:
    """Counts outcomes, calls `on_progress`, and checks limits, in O(1) per item."""

    def __init__(self, plan: BatchPlan, *displays: OnProgress | None) -> None:
        options = plan.options
        self._options = options
        self._displays = [display for display in (*displays, options.on_progress) if display is not None]
        self._started_at = math.inf
        self._progress = BatchProgress(total=plan.total, earlier=options.earlier)
        self.stopped: str | None = None
        """The limit that was reached, or None."""

    def start(self) -> None:
        self._started_at = monotonic()

    @property
    def progress(self) -> BatchProgress:
        return replace(self._progress, elapsed=max(0.0, monotonic() - self._started_at))

    def add(self, item: BatchItem) -> None:
        self._progress = replace(count_item(self._progress, item), elapsed=monotonic() - self._started_at)
        if self.stopped is None:
            self.stopped = self._find_reached_limit()
        if item.error is not None:
            self.can_continue()  # records max_seconds if that is why the request failed
        for display in list(self._displays):
            self._update_display(display)

    @property
    def out_of_time(self) -> bool:
        limit = self._options.max_seconds
        return limit is not None and monotonic() >= self._started_at + limit

    def can_continue(self) -> bool:
        """Whether another request may be sent."""
        if self.stopped is None and self.out_of_time:
            self.stopped = f"max_seconds: {self._options.max_seconds:g} seconds have passed"
        return self.stopped is None

    def create_skip_error(self) -> errors.AgentError:
        """Return the error of a request that was not sent."""
        message = f"Not sent: the batch was stopped by {self.stopped}."
        if self.stopped is not None and self.stopped.startswith("max_seconds"):
            return errors.TimeoutError(message, deadline=True)
        return errors.Aborted(message)

    def _find_reached_limit(self) -> str | None:
        progress, options = self._progress, self._options
        if options.max_failures is not None and progress.failed >= options.max_failures:
            return f"max_failures: {progress.failed} of {progress.done} requests failed"
        if options.max_cost is None:
            return None
        if progress.known_cost >= options.max_cost:
            return f"max_cost: ${progress.known_cost:.6f} of ${options.max_cost:g} is spent"
        if progress.unpriced:
            return "max_cost: the price of this model is unknown, so the limit cannot be enforced"
        return None

    def _update_display(self, display: OnProgress) -> None:
        try:
            display(self._progress)
        except Exception as error:
            # An error in the display must not lose paid responses.
            self._displays.remove(display)
            warnings.warn(
                f"on_progress is disabled because it raised {type(error).__name__}: {error}",
                RuntimeWarning,
                stacklevel=2,
            )


def count_item(progress: BatchProgress, item: BatchItem) -> BatchProgress:
    """Return the progress after another item."""
    cost, tokens, unpriced = sum_costs(item)
    return replace(
        progress,
        done=progress.done + 1,
        failed=progress.failed + (item.error is not None),
        known_cost=progress.known_cost + cost,
        unpriced=progress.unpriced + unpriced,
        tokens=progress.tokens + tokens,
    )


def sum_costs(item: BatchItem) -> tuple[float, int, bool]:
    """Return the cost and tokens of all attempts for a request, and whether a price is unknown."""
    cost, unpriced = 0.0, False
    for attempt in item.attempts:
        if attempt.cost is not None:
            cost += attempt.cost
        elif attempt.usage is not None:
            unpriced = True
    return cost, sum(usage.total_tokens for usage in list_usages(item)), unpriced
