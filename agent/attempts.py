"""Records of the requests that a call sends, and their totals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from .costs import price, to_dollars, to_units
from .tokens import estimate_prompt
from .types import AgentRequest, Attempt, Usage


class OpenAttempt(NamedTuple):
    """A request that was sent, and whose outcome is not known yet."""

    target: str
    provider: str
    model: str
    request: AgentRequest
    started: float
    reason: str | None = None
    waited: float | None = None

    def estimate(self) -> tuple[Usage, float | None]:
        """Probable usage and cost of a request that was sent, and whose answer was not read."""
        usage = Usage(prompt_tokens=estimate_prompt(self.request).tokens, estimated=True)
        cost = price(usage, provider=self.provider, models=(self.model,))
        return usage, None if cost is None else cost.dollars

    def closed(self, error: str, message: str, **facts: Any) -> Attempt:
        """The record of an attempt that was given up."""
        return Attempt(
            target=self.target,
            provider=self.provider,
            model=self.model,
            reason=self.reason,
            started=self.started,
            waited=self.waited,
            error=error,
            message=message,
            **facts,
        )


class AttemptLog:
    """Attempts of one call: exactly one record per request.

    Attempts made side by side, as in a race, have a branch of the log each.
    """

    __slots__ = ("_branches", "_finished", "_open")

    def __init__(self) -> None:
        self._finished: list[Attempt] = []
        self._branches: list[AttemptLog] = []
        self._open: OpenAttempt | None = None

    def begin(self, attempt: OpenAttempt) -> None:
        """Record that a request is being sent."""
        self._open = attempt

    def add(self, attempt: Attempt) -> None:
        """Record the outcome of the open attempt."""
        self._open = None
        self._finished.append(attempt)

    def branch(self) -> AttemptLog:
        """Add a log for attempts that are made beside others."""
        log = AttemptLog()
        self._branches.append(log)
        return log

    @property
    def finished(self) -> Sequence[Attempt]:
        """Attempts whose outcome is known, in the order in which they were started."""
        if not self._branches:
            return self._finished
        found = [*self._finished]
        for branch in self._branches:
            found += branch.finished
        return sorted(found, key=lambda attempt: attempt.started or 0.0)

    @property
    def open_attempts(self) -> int:
        """How many requests have no outcome yet."""
        return (self._open is not None) + sum(branch.open_attempts for branch in self._branches)

    def close(self, close: Callable[[OpenAttempt], Attempt]) -> None:
        """Record an outcome for every open attempt."""
        for branch in self._branches:
            branch.close(close)
        if self._open is not None:
            self.add(close(self._open))

    def revise(self, change: Callable[[Attempt], Attempt]) -> None:
        """Change the records, such as those of an answer that came too late."""
        for branch in self._branches:
            branch.revise(change)
        self._finished[:] = map(change, self._finished)


def total(attempts: Iterable[Attempt]) -> tuple[Usage | None, float | None]:
    """Sum of the usage and the cost of attempts. The cost is unknown if that of any attempt with usage is."""
    usage: Usage | None = None
    units, known = 0, True
    for attempt in attempts:
        if attempt.usage is None:
            continue
        usage = attempt.usage if usage is None else usage + attempt.usage
        cost = attempt.cost
        if cost is None:
            known = False
        else:
            units += to_units(cost)
    return usage, to_dollars(units) if known and usage is not None else None
