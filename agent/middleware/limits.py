"""How fast may be asked: requests and tokens in any minute, waited for in the flow and so in virtual time, too.

A place in the queue is a time at which to send. It is taken at once and slept towards, so that whoever came first goes
first, and those who wait do not all come back at the same moment.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
class _Place:
    """When a request is sent, and with how many tokens it counts."""

    at: float
    tokens: int


class Throttle(ForkSafe, Middleware):
    """Holds calls back so that in no 60 seconds there are more than allowed, whoever shares it.

    A wait that does not fit before the deadline, or is longer than `max_wait`, is not begun: `RateLimitError` says at
    once how long it would have been, and nothing is sent.

    Args:
        rpm: Requests in any 60 seconds.
        tpm: Tokens in any 60 seconds, prompts and answers. A prompt counts as estimated, and its answer as
            `max_tokens`, until the answer says what it was. A request that alone exceeds it waits until it is alone.
        max_wait: Seconds that a call may be held back.
    """

    def __init__(self, *, rpm: int | None = None, tpm: int | None = None, max_wait: float = math.inf) -> None:
        super().__init__()
        for name, limit in (("rpm", rpm), ("tpm", tpm)):
            if limit is not None and limit < 1:
                raise errors.ConfigurationError(
                    f"{name} is {limit}.", field=name, fix="Use 1 or more, or leave it out."
                )
        if rpm is None and tpm is None:
            raise errors.ConfigurationError("Nothing is limited.", field="rpm", fix="Pass rpm= or tpm=.")
        self._rpm, self._tpm, self._max_wait = rpm, tpm, max_wait
        self._places: deque[_Place] = deque()
        """Of the last minute and of those who wait, in order of time."""

    @override
    def __reduce__(self) -> Any:
        return _rebuild_throttle, (self._rpm, self._tpm, self._max_wait)

    @override
    def before(self, request: AgentRequest, call: CallInfo) -> Flow[None]:
        if call.counting:
            return
        tokens = 0 if self._tpm is None else estimate_prompt(request).tokens + (request.max_tokens or 0)
        now = yield from Now()
        latest = min(now + self._max_wait, call.deadline)
        place = self._take(tokens, now, latest)
        if place.at <= now:
            call.state["place"] = place
            return
        try:
            yield from Sleep(place.at - now)
        except BaseException:  # who leaves the queue leaves no gap; closing counts, too
            self._give_back(place)
            raise
        call.state["place"] = place

    @override
    def after(self, response: AgentResponse, call: CallInfo) -> None:
        self._settle(call)

    @override
    def on_error(self, error: Exception, call: CallInfo) -> None:
        self._settle(call)

    def _settle(self, call: CallInfo) -> None:
        """What the call came to: nothing if nothing was sent, and more than one request if it was repeated."""
        place: _Place = call.state["place"]
        attempts = call.attempts
        if not attempts:
            self._give_back(place)
            return
        used = [attempt.usage.total_tokens for attempt in attempts if attempt.usage is not None]
        with self._lock:
            if used:
                place.tokens = sum(used)
            if len(attempts) > 1 and place in self._places:
                again = [_Place(place.at, 0)] * (len(attempts) - 1)
                self._places = deque(sorted((*self._places, *again), key=lambda one: one.at))

    def _take(self, tokens: int, now: float, latest: float) -> _Place:
        with self._lock:
            while self._places and self._places[0].at <= now - WINDOW:
                self._places.popleft()
            at = self._earliest(tokens, now)
            if at > now and at >= latest:
                raise self._refusal(at - now)
            place = _Place(at, tokens)
            self._places.append(place)
            return place

    def _earliest(self, tokens: int, now: float) -> float:
        """When a request of so many tokens may be sent, after everybody who came before."""
        places = self._places
        at = max(now, places[-1].at) if places else now
        if self._rpm is not None and len(places) >= self._rpm:
            at = max(at, places[-self._rpm].at + WINDOW)
        if self._tpm is not None:
            over = tokens - self._tpm + sum(place.tokens for place in places)
            for place in places:  # a request that is too large by itself waits for all of them
                if over <= 0:
                    break
                over -= place.tokens
                at = max(at, place.at + WINDOW)
        return at

    def _give_back(self, place: _Place) -> None:
        with self._lock:
            if place in self._places:
                self._places.remove(place)

    def _refusal(self, seconds: float) -> errors.RateLimitError:
        limits = " and ".join(
            f"{limit} {what} a minute"
            for limit, what in ((self._rpm, "requests"), (self._tpm, "tokens"))
            if limit is not None
        )
        return errors.RateLimitError(
            f"Nothing was sent: with {limits}, the next request could be sent in {seconds:.1f} s.", retry_after=seconds
        )


def _rebuild_throttle(rpm: int | None, tpm: int | None, max_wait: float) -> Throttle:
    return Throttle(rpm=rpm, tpm=tpm, max_wait=max_wait)


@dataclass(frozen=True, slots=True)
class Spending:
    """What some calls have come to."""

    calls: int = 0
    """Calls for which something was sent."""
    usage: Usage = field(default_factory=Usage)
    cost: float = 0.0
    """US dollars, as far as prices are known."""
    unpriced: int = 0
    """Attempts that used tokens whose price nobody knows; `cost` is without them."""


class CostTracker(ForkSafe, Middleware):
    """Adds up usage and cost. With a budget, calls fail once it is used up, and nothing is sent.

    The budget is compared with what has been spent, so calls that are under way at the same time can exceed it by what
    they cost together. A router's `spend=` sets money aside beforehand.

    Args:
        budget: US dollars that may be spent; with `per`, for each value of that key.
        per: A key of the requests' metadata to add up by.
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
        return _rebuild_tracker, (self._budget, self._per)

    @property
    def total(self) -> Spending:
        """Of all calls."""
        return self._total

    def by_target(self) -> dict[str, Spending]:
        """Of the attempts at each target; with a router, of each of its targets. `calls` counts those attempts."""
        with self._lock:
            return dict(self._targets)

    def by_value(self) -> dict[Any, Spending]:
        """Of the calls with each value of the key `per`; None stands for those without one."""
        with self._lock:
            return dict(self._values)

    def get_spend(self, value: Any = None) -> float:
        """Dollars against the budget; of one per key, for a value of that key."""
        found = self._total if self._per is None else self._values.get(_hashable(value))
        return 0.0 if found is None else found.cost

    def reset(self) -> None:
        """Begin at zero, as with a new month."""
        with self._lock:
            self._total = Spending()
            self._targets.clear()
            self._values.clear()

    @override
    def before(self, request: AgentRequest, call: CallInfo) -> None:
        if self._budget is None or call.counting:
            return
        value = self._value(call.request.metadata)
        spent = self.get_spend(value)
        if spent >= self._budget:
            whose = "" if self._per is None else f" of {self._per}={value!r}"
            raise errors.BudgetExceededError(
                f"Nothing was sent: ${spent:.6f} of the budget of ${self._budget:g}{whose} is spent."
            )

    @override
    def after(self, response: AgentResponse, call: CallInfo) -> None:
        self._add(call)

    @override
    def on_error(self, error: Exception, call: CallInfo) -> None:
        self._add(call)

    def _add(self, call: CallInfo) -> None:
        attempts = call.attempts
        if not attempts:
            return
        value = self._value(call.request.metadata)
        with self._lock:
            self._total = _plus(self._total, attempts)
            if self._per is not None:
                self._values[value] = _plus(self._values.get(value, Spending()), attempts)
            for attempt in attempts:
                self._targets[attempt.target] = _plus(self._targets.get(attempt.target, Spending()), [attempt])

    def _value(self, metadata: Mapping[str, Any]) -> Any:
        return None if self._per is None else _hashable(metadata.get(self._per))


def _plus(so_far: Spending, attempts: Sequence[Attempt]) -> Spending:
    usage, units, unpriced = so_far.usage, to_units(so_far.cost), so_far.unpriced
    for attempt in attempts:
        if attempt.usage is not None:
            usage = usage + attempt.usage
        if attempt.cost is not None:
            units += to_units(attempt.cost)
        elif attempt.usage is not None:
            unpriced += 1
    return Spending(so_far.calls + 1, usage, to_dollars(units), unpriced)


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


def _rebuild_tracker(budget: float | None, per: str | None) -> CostTracker:
    return CostTracker(budget=budget, per=per)
