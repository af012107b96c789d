"""What belongs to one run and travels beside the request: made per run, passed by hand, never global.

The one exception is the deadline of the run whose user code is executing: a tool that calls another agent must not
outlive the call it serves, and only a context variable reaches through user code.
"""

from __future__ import annotations

import contextvars
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from ..models.prices import price, to_dollars, to_units
from ..models.token_estimates import estimate_prompt
from ..types import AgentRequest, AgentResponse, Attempt, Candidate, Usage
from .flow import Flow


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

    def close(self, error: str, message: str, **facts: Any) -> Attempt:
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


def sum_attempts(attempts: Iterable[Attempt]) -> tuple[Usage | None, float | None]:
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


ambient_deadline: contextvars.ContextVar[float] = contextvars.ContextVar("agent_deadline", default=math.inf)
"""time.monotonic() by which the run around this code must end. Set only while user code runs."""


class Inbox:
    """Messages for a run, put in by any thread and taken out by the flow."""

    __slots__ = ("_messages",)

    def __init__(self) -> None:
        self._messages: deque[Any] = deque()

    def put(self, message: Any) -> None:
        self._messages.append(message)

    def take(self) -> list[Any]:
        taken: list[Any] = []
        while self._messages:
            taken.append(self._messages.popleft())
        return taken


@dataclass(slots=True)
class AttemptCount:
    """Attempts made for one call, shared with routers inside a router."""

    value: int = 0


class RunTurn(NamedTuple):
    """A place in a run: its id, and which of its turns."""

    id: str
    turn: int


@dataclass(slots=True)
class Context:
    """One run: its absolute deadline on the driver's clock, what was tried so far, its inbox and its spans."""

    deadline: float = math.inf
    started: float = 0.0
    log: AttemptLog = field(default_factory=AttemptLog)
    attempt_count: AttemptCount = field(default_factory=AttemptCount)
    waited: float | None = None
    """Seconds waited before the attempt that comes next."""
    reason: str | None = None
    """Why the attempt that comes next is made where it is made."""
    first_event: float | None = None
    """When the stream of the attempt that is being made, or was made last, brought its first events."""
    ended: float = 0.0
    """When the last attempt ended."""
    headers: Mapping[str, str] | None = None
    """Of the last reply."""
    on_target: Callable[[Any], None] | None = None
    """Told which agent is asked, whenever one is, where several could be."""
    candidates: Callable[[], Sequence[Candidate]] | None = None
    """Who was considered, for whoever asks."""
    inbox: Inbox = field(default_factory=Inbox)
    spans: list[Any] = field(default_factory=list)
    run: RunTurn | None = None
    """Which run of a tool loop this call is a part of."""
    user_context: contextvars.Context | None = None
    """The contextvars in which user code of this run executes; None for a copy of the caller's."""

    def branch(self) -> Context:
        """For an attempt that is made beside others: the same run, but its own notes about one attempt."""
        return replace(self, waited=None, reason=None, first_event=None, headers=None, log=self.log.branch())

    @property
    def attempts(self) -> Sequence[Attempt]:
        """Attempts whose outcome is known."""
        return self.log.finished


Call: TypeAlias = Callable[[AgentRequest, Context], Flow[AgentResponse]]
"""What middleware, routing, retry and the tool loop wrap, each a function from Call to Call."""
