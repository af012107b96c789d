"""What a batch gives back: one item for each request, how far it has come, and all of it in the order of the input.

These are facts only. Who asks, and when, is decided elsewhere.
"""

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
from ..calls.requests import read_request
from ..engine.context import ambient_deadline
from ..errors import AgentError
from ..types import AgentRequest, AgentResponse, Message, Usage
from ..types.response import OutputT

if TYPE_CHECKING:
    from ..base_client import BaseClient
    from ..client import Client
    from ..types import Attempt


@dataclass(frozen=True, slots=True)
class BatchItem(Generic[OutputT]):
    """What became of one request: it has a response or an error, never both."""

    index: int
    """The place of the request in the input, from 0."""
    request: Any
    """As it was passed in."""
    response: AgentResponse[OutputT] | None = None
    error: Exception | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    def unwrap(self) -> AgentResponse[OutputT]:
        """The response; if there is none, the error is raised."""
        if self.response is None:
            assert self.error is not None
            raise self.error
        return self.response

    @property
    def attempts(self) -> Sequence[Attempt]:
        """What was tried for this request, and paid for."""
        return self.response.route if self.response is not None else getattr(self.error, "attempts", ())


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """How far a batch has come. Seconds and US dollars."""

    done: int = 0
    """Requests that have an outcome, the failed ones included."""
    failed: int = 0
    total: int | None = None
    """How many there are in all; None if the input does not say."""
    cost: float = 0.0
    """What all attempts came to, as far as prices are known; also those that failed and were paid for."""
    unpriced: int = 0
    """Requests that used tokens whose price nobody knows; `cost` is without them."""
    tokens: int = 0
    elapsed: float = 0.0
    earlier: int = 0
    """Of `total`: how many an earlier run had done already. They are not in `done`."""

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.done / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def left(self) -> int | None:
        """How many are still to come; None if the input does not say."""
        return None if self.total is None else max(0, self.total - self.earlier - self.done)

    @property
    def eta(self) -> float | None:
        """Seconds until the end, if it goes on like this; None if nothing is known about it."""
        left = self.left
        if left is None or not self.done:
            return None
        return left * self.elapsed / self.done

    @override
    def __str__(self) -> str:
        of_all = "" if self.total is None else f" of {self.total}"
        parts = [f"{self.earlier + self.done}{of_all} done"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        parts.append(f"${self.cost:.4f}" + (f" and {self.unpriced} without a price" if self.unpriced else ""))
        parts.append(f"{self.rate:.1f}/s")
        if self.eta is not None and self.left:
            parts.append(f"{clock(self.eta)} left")
        return ", ".join(parts)


def clock(seconds: float) -> str:
    """Seconds as people write them: 0:42, 12:07, 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class BatchResult(Sequence[BatchItem[OutputT]]):
    """The items of a batch in the order of the input.

    It is as long as the input, if that has a length: what was never asked because a limit was reached has an error
    that says so. Of an input without a length, what was not read is not here; see `stopped`.
    """

    __slots__ = ("_items", "_usage", "progress", "stopped")

    def __init__(
        self, items: Sequence[BatchItem[OutputT]], progress: BatchProgress, stopped: str | None = None
    ) -> None:
        self._items = tuple(items)
        self._usage: Usage | None = None
        self.progress = progress
        """How far it came."""
        self.stopped = stopped
        """Why it ended before the end of the input; None if it did not."""

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
        """Whether everything was asked, and everything answered."""
        return self.stopped is None and not self.progress.failed

    @property
    def responses(self) -> list[AgentResponse[OutputT] | None]:
        """The answers in the order of the input, with None in the place of one that failed."""
        return [item.response for item in self._items]

    @property
    def failed(self) -> list[BatchItem[OutputT]]:
        """The items that have an error."""
        return [item for item in self._items if item.error is not None]

    @property
    def cost(self) -> float:
        """US dollars, as far as prices are known."""
        return self.progress.cost

    @property
    def usage(self) -> Usage:
        """What all attempts used together."""
        if self._usage is None:
            total = Usage()
            for item in self._items:
                for usage in usages_of(item):
                    total = total + usage
            self._usage = total
        return self._usage

    def unwrap(self) -> list[AgentResponse[OutputT]]:
        """All responses; if a request failed, the first error is raised, with a note that says which one it was."""
        failed = self.failed
        if failed:
            first = failed[0]
            assert first.error is not None
            first.error.add_note(f"Request {first.index} of the batch; {len(failed)} of {len(self)} failed.")
            raise first.error
        return [item.unwrap() for item in self._items]

    @override
    def __repr__(self) -> str:
        stopped = f", stopped: {self.stopped}" if self.stopped else ""
        return f"BatchResult({self.progress}{stopped})"


def usages_of(item: BatchItem) -> list[Usage]:
    """What was used for a request, attempt by attempt."""
    return [attempt.usage for attempt in item.attempts if attempt.usage is not None]


class BatchInputError(AgentError):
    """The iterable of requests raised, which is the cause of this. `result` has what was done until then."""


class BatchInterrupted(KeyboardInterrupt):
    """Ctrl-C during a batch. What was under way is cancelled; `result` has what was done until then."""

    def __init__(self, result: Any = None) -> None:
        super().__init__("the batch was interrupted")
        self.result = result


CONCURRENCY = 32
"""Requests under way at a time, unless said otherwise."""

SendRequest: TypeAlias = Callable[[Any], Awaitable[AgentResponse]]
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


def read_options(caller: Client, given: Mapping[str, Any]) -> tuple[SendRequest, Options]:
    """How each request is asked, and how the batch goes about it. What is wrong with either is raised here, once."""
    options = Options(**{name: value for name, value in given.items() if name in _NAMES})
    chosen, overrides = caller._select({name: value for name, value in given.items() if name not in _NAMES})
    _check_ready(chosen)
    if not overrides:
        return chosen.acomplete, options
    read_request("", overrides)
    return partial(chosen.acomplete, **overrides), options


def _check_ready(caller: BaseClient) -> None:
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

    def __init__(self, ask: SendRequest, requests: Any, options: Options, *, awaiting: bool) -> None:
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
