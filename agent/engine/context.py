"""Run context: deadline, attempt log and settings of one run, passed explicitly beside the request.

The only context variable is the ambient deadline: a tool that calls another agent must not outlive the call around it,
and nothing else reaches through user code.
"""

from __future__ import annotations

import contextvars
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ..models.prices import price, to_dollars, to_units
from ..models.token_estimates import estimate_prompt
from ..schemas.validation import Deferred, run_inline, run_until
from ..types import AgentRequest, AgentResponse, Attempt, Candidate, Usage
from .flow import Flow, Invoke

T = TypeVar("T")


def run_validation(function: Callable[..., T], *args: Any, seconds: float = math.inf) -> Flow[T]:
    """Call a function that validates values, off the event loop if expensive, until the deadline."""
    try:
        return run_inline(function, *args)
    except Deferred:
        pass
    result: T = yield from Invoke(_run_until_deadline, (function, args, seconds), blocking=True)
    return result


def _run_until_deadline(function: Callable[..., T], args: tuple[Any, ...], seconds: float) -> T:
    return run_until(min(ambient_deadline.get(), monotonic() + seconds), function, *args)


class OpenAttempt(NamedTuple):
    """A request that was sent and has no outcome yet."""

    target: str
    provider: str
    model: str
    request: AgentRequest
    started: float
    reason: str | None = None
    waited: float | None = None

    def estimate(self) -> tuple[Usage, float | None]:
        """Estimate usage and cost of a request whose response was not read."""
        usage = Usage(prompt_tokens=estimate_prompt(self.request).tokens, estimated=True)
        cost = price(usage, provider=self.provider, models=(self.model,))
        return usage, None if cost is None else cost.dollars

    def close(self, error: str, message: str, **fields: Any) -> Attempt:
        """Create the record of an abandoned attempt."""
        return Attempt(
            target=self.target,
            provider=self.provider,
            model=self.model,
            reason=self.reason,
            started=self.started,
            waited=self.waited,
            error=error,
            message=message,
            **fields,
        )


class AttemptLog:
    """Attempts of one call, with exactly one record per request. Concurrent attempts have one branch each."""

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
        """Add a log for concurrent attempts."""
        log = AttemptLog()
        self._branches.append(log)
        return log

    @property
    def finished(self) -> Sequence[Attempt]:
        """Attempts with an outcome, in the order of their start."""
        if not self._branches:
            return self._finished
        attempts = [*self._finished]
        for branch in self._branches:
            attempts += branch.finished
        return sorted(attempts, key=lambda attempt: attempt.started or 0.0)

    @property
    def open_attempts(self) -> int:
        """Number of requests without an outcome."""
        return (self._open is not None) + sum(branch.open_attempts for branch in self._branches)

    def close(self, close: Callable[[OpenAttempt], Attempt]) -> None:
        """Record an outcome for every open attempt."""
        for branch in self._branches:
            branch.close(close)
        if self._open is not None:
            self.add(close(self._open))

    def revise(self, change: Callable[[Attempt], Attempt]) -> None:
        """Change all records, such as those of a response that lost a race."""
        for branch in self._branches:
            branch.revise(change)
        self._finished[:] = map(change, self._finished)


def sum_attempts(attempts: Iterable[Attempt]) -> tuple[Usage | None, float | None]:
    """Sum usage and cost. The cost is None if that of any attempt with usage is unknown."""
    used = [attempt for attempt in attempts if attempt.usage is not None]
    return sum_attempt_usage(used), sum_attempt_costs(used)


def sum_attempt_usage(attempts: Iterable[Attempt]) -> Usage | None:
    usage: Usage | None = None
    for attempt in attempts:
        if attempt.usage is not None:
            usage = attempt.usage if usage is None else usage + attempt.usage
    return usage


def sum_attempt_costs(attempts: Iterable[Attempt]) -> float | None:
    """Sum the costs of attempts with usage; None if any is unknown. This looks prices up, which is slow."""
    costs = [attempt.cost for attempt in attempts if attempt.usage is not None]
    known = [to_units(cost) for cost in costs if cost is not None]
    return to_dollars(sum(known)) if known and len(known) == len(costs) else None


ambient_deadline: contextvars.ContextVar[float] = contextvars.ContextVar("agent_deadline", default=math.inf)
"""Deadline of the run around this code, on time.monotonic(). Set only while user code runs."""


class Inbox:
    """Messages that any thread sends to a run."""

    __slots__ = ("_messages",)

    def __init__(self) -> None:
        self._messages: deque[Any] = deque()

    def put(self, message: Any) -> None:
        self._messages.append(message)

    def take(self) -> list[Any]:
        """Remove and return all messages."""
        return [self._messages.popleft() for _ in range(len(self._messages))]


@dataclass(slots=True)
class AttemptCount:
    """Attempts made for one call, shared with routers inside a router."""

    value: int = 0


class TurnRef(NamedTuple):
    """Run id and turn number."""

    id: str
    turn: int


@dataclass(slots=True)
class Context:
    """State of one run. `deadline` and other times are on the driver's clock."""

    deadline: float = math.inf
    started: float = 0.0
    origin: float = 0.0
    """Time to which the start times of attempts are relative: the start of the call, or of the run around it."""
    log: AttemptLog = field(default_factory=AttemptLog)
    attempt_count: AttemptCount = field(default_factory=AttemptCount)
    waited: float | None = None
    """Seconds waited before the next attempt."""
    reason: str | None = None
    """Why the next attempt goes to its target."""
    first_event: float | None = None
    """Time of the first stream event of the current or last attempt."""
    ended: float = 0.0
    """Time at which the last attempt ended."""
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    """Headers of the last reply, which may quote a key."""
    on_target: Callable[[Any], None] | None = None
    """Called with the agent of each target that a router sends to."""
    candidates: Callable[[], Sequence[Candidate]] | None = None
    """Candidates of the first routing decision."""
    waits: bool = True
    """Whether the call waits for a response that the vendor processes in the background."""
    run: TurnRef | None = None
    """The tool-loop run and turn of this call."""
    idempotency_keys: dict[int, str] = field(default_factory=dict)
    """Idempotency keys of this call by the hash of the request, so that its retries have the same key."""
    user_context: contextvars.Context | None = None
    """Context variables of user code; None for a copy of the caller's."""

    def branch(self) -> Context:
        """Create the context of a concurrent attempt: the same run with its own attempt state."""
        return replace(self, waited=None, reason=None, first_event=None, headers=None, log=self.log.branch())

    @property
    def attempts(self) -> Sequence[Attempt]:
        return self.log.finished


Call: TypeAlias = Callable[[AgentRequest, Context], Flow[AgentResponse]]
"""Middleware, routing, retry and the tool loop are functions from Call to Call."""
