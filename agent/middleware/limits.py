"""Rate limits and budgets of calls: `Throttle` and `CostTracker`.

`Throttle` reserves a send time for each call, and the flow sleeps until then. Calls are sent in the order of their
arrival, and waiting calls do not all wake up at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from typing_extensions import override

from .. import errors
from ..engine.flow import Flow, Now, Sleep
from ..engine.locks import ForkSafe
from ..models.prices import to_dollars, to_units
from ..models.token_estimates import estimate_prompt
from ..types import AgentRequest, AgentResponse, Attempt, Usage
from .base import CallInfo, Middleware

WINDOW = 60.0


@dataclass(slots=True, eq=False)
class _Slot:
    """Send time and tokens of one request."""

    at: float
    tokens: int


class Throttle(ForkSafe, Middleware):
    """Delays calls to keep rate limits. One object may be shared by agents and threads.

    A call that would wait past its deadline, or longer than `max_wait`, raises `RateLimitError` immediately.

    Args:
        rpm: Requests in any 60 seconds.
        tpm: Tokens of prompts and responses in any 60 seconds. Until a response reports its usage, a request counts
            with its token estimate and `max_tokens`. A request above the limit is sent alone.
        max_wait: Maximum number of seconds to delay a call.
    """

    def __init__(self, *, rpm: int | None = None, tpm: int | None = None, max_wait: float = math.inf) -> None:
        super().__init__()
        for name, limit in (("rpm", rpm), ("tpm", tpm)):
            if limit is not None and limit < 1:
                raise errors.ConfigurationError(
                    f"{name} is {limit}.", field=name, fix="Use 1 or more, or leave it out."
                )
        if rpm is None and tpm is None:
            raise errors.ConfigurationError("Throttle has no limit.", field="rpm", fix="Pass rpm= or tpm=.")
        self._rpm, self._tpm, self._max_wait = rpm, tpm, max_wait
        self._slots: deque[_Slot] = deque()
        """Slots of the last minute and of waiting calls, in order of time."""

    @override
    def __reduce__(self) -> Any:
        return partial(Throttle, rpm=self._rpm, tpm=self._tpm, max_wait=self._max_wait), ()

    @override
    def before(self, request: AgentRequest, call: CallInfo) -> Flow[None]:
        if call.counting:
            return
        tokens = 0 if self._tpm is None else estimate_prompt(request).tokens + (request.max_tokens or 0)
        now = yield from Now()
        slot = self._reserve(tokens, now, min(now + self._max_wait, call.deadline))
        if slot.at > now:
            try:
                yield from Sleep(slot.at - now)
            except BaseException:  # also when the flow is closed
                self._release(slot)
                raise
        call.state["slot"] = slot

    @override
    def after(self, response: AgentResponse, call: CallInfo) -> Flow[None] | None:
        self._settle(call)
        return None

    @override
    def on_error(self, error: Exception, call: CallInfo) -> Flow[None] | None:
        self._settle(call)
        return None

    def _settle(self, call: CallInfo) -> None:
        """Count the actual requests and tokens of a call: none if nothing was sent, several if it was retried."""
        slot: _Slot = call.state["slot"]
        attempts = call.attempts
        if not attempts:
            self._release(slot)
            return
        tokens = [attempt.usage.total_tokens for attempt in attempts if attempt.usage is not None]
        with self._lock:
            if tokens:
                slot.tokens = sum(tokens)
            if len(attempts) > 1 and slot in self._slots:
                retries = [_Slot(slot.at, 0)] * (len(attempts) - 1)
                self._slots = deque(sorted((*self._slots, *retries), key=lambda one: one.at))

    def _reserve(self, tokens: int, now: float, latest: float) -> _Slot:
        with self._lock:
            self._forget_old(now)
            at = self._earliest(tokens, now)
            if at > now and at >= latest:
                raise self._rate_limit_error(at - now)
            slot = _Slot(at, tokens)
            self._slots.append(slot)
            return slot

    def _record(self, at: float, tokens: int, now: float) -> _Slot:
        """Note a request whose send time was decided elsewhere."""
        with self._lock:
            self._forget_old(now)
            slot = _Slot(at, tokens)
            self._slots.append(slot)
            return slot

    def _forget_old(self, now: float) -> None:
        while self._slots and self._slots[0].at <= now - WINDOW:
            self._slots.popleft()

    def _earliest(self, tokens: int, now: float) -> float:
        """Earliest send time of a request, after all earlier requests."""
        slots = self._slots
        at = max(now, slots[-1].at) if slots else now
        if self._rpm is not None and len(slots) >= self._rpm:
            at = max(at, slots[-self._rpm].at + WINDOW)
        if self._tpm is not None:
            excess = tokens - self._tpm + sum(slot.tokens for slot in slots)
            for slot in slots:  # a request above the limit waits for all of them
                if excess <= 0:
                    break
                excess -= slot.tokens
                at = max(at, slot.at + WINDOW)
        return at

    def _release(self, slot: _Slot) -> None:
        with self._lock:
            if slot in self._slots:
                self._slots.remove(slot)

    def _rate_limit_error(self, seconds: float) -> errors.RateLimitError:
        limits = " and ".join(
            f"{limit} {unit} per minute"
            for limit, unit in ((self._rpm, "requests"), (self._tpm, "tokens"))
            if limit is not None
        )
        return errors.RateLimitError(
            f"Rate limit of {limits} exceeded; the next request can be sent in {seconds:.1f} s. Nothing was sent.",
            retry_after=seconds,
        )


@dataclass(frozen=True, slots=True)
class Spending:
    """Usage and cost of several calls."""

    calls: int = 0
    """Calls that sent a request."""
    usage: Usage = field(default_factory=Usage)
    known_cost: float = 0.0
    """US dollars, without attempts of unknown price."""
    unpriced: int = 0
    """Attempts that used tokens of unknown price."""

    @property
    def cost(self) -> float | None:
        """US dollars; None if the price of an attempt is unknown."""
        return None if self.unpriced else self.known_cost


class CostTracker(ForkSafe, Middleware):
    """Adds up usage and cost. With a budget, calls raise `BudgetExceededError` once it is spent.

    The budget is compared with the spending so far, so concurrent calls can exceed it by their own cost. The `spend=`
    limits of a router reserve the cost of each request instead.

    Args:
        budget: US dollars that may be spent; with `per`, for each value of that key.
        per: Key of the requests' metadata to add up by.
    """

    def __init__(self, *, budget: float | None = None, per: str | None = None) -> None:
        super().__init__()
        if budget is not None and not budget > 0:
            raise errors.ConfigurationError(f"The budget is {budget}.", field="budget", fix="Use a number above 0.")
        self._budget, self._per = budget, per
        self._total = Spending()
        self._targets: dict[str, Spending] = {}
        self._values: dict[Any, Spending] = {}

    @override
    def __reduce__(self) -> Any:
        return partial(CostTracker, budget=self._budget, per=self._per), ()

    @property
    def total(self) -> Spending:
        """Spending of all calls."""
        return self._total

    def by_target(self) -> dict[str, Spending]:
        """Spending per target, including each target of a router. `calls` counts attempts."""
        with self._lock:
            return dict(self._targets)

    def by_value(self) -> dict[Any, Spending]:  # Any: values of metadata
        """Spending per value of the key `per`; None stands for calls without the key."""
        with self._lock:
            return dict(self._values)

    def get_spend(self, value: Any = None) -> float:  # Any: a value of metadata
        """Known dollars spent of the budget; with `per`, of the budget for one value of the key."""
        spending = self._total if self._per is None else self._values.get(_hashable(value))
        return 0.0 if spending is None else spending.known_cost

    def reset(self) -> None:
        """Start at zero again, for example each month."""
        with self._lock:
            self._total = Spending()
            self._targets.clear()
            self._values.clear()

    @override
    def before(self, request: AgentRequest, call: CallInfo) -> Flow[None] | None:
        if self._budget is None or call.counting:
            return None
        value = self._metadata_value(call.request.metadata)
        self._check_budget(value, self._budget, self.get_spend(value))
        return None

    @override
    def after(self, response: AgentResponse, call: CallInfo) -> Flow[None] | None:
        self._add(call)
        return None

    @override
    def on_error(self, error: Exception, call: CallInfo) -> Flow[None] | None:
        self._add(call)
        return None

    def _check_budget(self, value: Any, budget: float, spent: float) -> None:
        if spent >= budget:
            owner = "" if self._per is None else f" of {self._per}={value!r}"
            raise errors.BudgetExceededError(
                f"The budget{owner} is spent: ${spent:.6f} of ${budget:g}. Nothing was sent."
            )

    def _add(self, call: CallInfo) -> None:
        attempts = call.attempts
        if not attempts:
            return
        value = self._metadata_value(call.request.metadata)
        with self._lock:
            self._total = _add_attempts(self._total, attempts)
            if self._per is not None:
                self._values[value] = _add_attempts(self._values.get(value, Spending()), attempts)
            for attempt in attempts:
                self._targets[attempt.target] = _add_attempts(self._targets.get(attempt.target, Spending()), [attempt])

    def _metadata_value(self, metadata: Mapping[str, Any]) -> Any:
        return None if self._per is None else _hashable(metadata.get(self._per))


def _add_attempts(spending: Spending, attempts: Sequence[Attempt]) -> Spending:
    usage, units, unpriced = spending.usage, to_units(spending.known_cost), spending.unpriced
    for attempt in attempts:
        if attempt.usage is not None:
            usage = usage + attempt.usage
        if attempt.cost is not None:
            units += to_units(attempt.cost)
        elif attempt.usage is not None:
            unpriced += 1
    return Spending(spending.calls + 1, usage, to_dollars(units), unpriced)


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value
