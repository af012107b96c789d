"""What a batch gives back: one item for each request, how far it has come, and all of it in the order of the input.

These are facts only. Who asks, and when, is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from typing_extensions import override

from ..errors import AgentError
from ..types import AgentResponse, Usage

if TYPE_CHECKING:
    from ..types import Attempt


@dataclass(frozen=True, slots=True)
class BatchItem:
    """What became of one request: it has a response or an error, never both."""

    index: int
    """The place of the request in the input, from 0."""
    request: Any
    """As it was passed in."""
    response: AgentResponse | None = None
    error: Exception | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    def unwrap(self) -> AgentResponse:
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


class BatchResult(Sequence[BatchItem]):
    """The items of a batch in the order of the input.

    It is as long as the input, if that has a length: what was never asked because a limit was reached has an error
    that says so. Of an input without a length, what was not read is not here; see `stopped`.
    """

    __slots__ = ("_items", "_usage", "progress", "stopped")

    def __init__(self, items: Sequence[BatchItem], progress: BatchProgress, stopped: str | None = None) -> None:
        self._items = tuple(items)
        self._usage: Usage | None = None
        self.progress = progress
        """How far it came."""
        self.stopped = stopped
        """Why it ended before the end of the input; None if it did not."""

    @overload
    def __getitem__(self, index: int) -> BatchItem: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[BatchItem]: ...

    @override
    def __getitem__(self, index: int | slice) -> BatchItem | Sequence[BatchItem]:
        return self._items[index]

    @override
    def __len__(self) -> int:
        return len(self._items)

    @property
    def ok(self) -> bool:
        """Whether everything was asked, and everything answered."""
        return self.stopped is None and not self.progress.failed

    @property
    def responses(self) -> list[AgentResponse | None]:
        """The answers in the order of the input, with None in the place of one that failed."""
        return [item.response for item in self._items]

    @property
    def failed(self) -> list[BatchItem]:
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

    def unwrap(self) -> list[AgentResponse]:
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
