"""Health of a target: circuit breaker, cooldowns and response times.

All methods take the time of the driver's clock. Every request takes a permit and settles it, also when the call is
cancelled, so that the probe of an open breaker is never lost.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Literal, NamedTuple

from ..engine.locks import ForkSafe
from ..types.routing import BreakerConfig

State = Literal["closed", "degraded", "open", "half-open"]

ASSUMED_SUCCESSES = 4
"""Successes added to the observed outcomes in estimated failure rates."""


class Permit(NamedTuple):
    """Permission for one request. A trial tests a degraded target, a probe a half-open one."""

    kind: Literal["normal", "trial", "probe", "panic"]


class Breaker(ForkSafe):
    """Circuit breaker of a target: closed, degraded, open or half-open.

    It opens when most recent outcomes are failures, and is half-open after a pause: it admits one probe. When many
    outcomes are failures it is degraded: the target is ranked last, except for one trial per pause.
    """

    def __init__(self, config: BreakerConfig) -> None:
        super().__init__()
        self._config = config
        self._outcomes: deque[bool] = deque()
        """Recent outcomes; True is a failure."""
        self._failures = 0
        self._probe: Permit | None = None
        """The probe in flight."""
        self.opened_at: float | None = None
        self.degraded_at: float | None = None
        """Start of the degraded state, or of the latest trial."""
        self.failing_since: float | None = None
        """Start of the degraded or open state."""
        self.last_used: float = -math.inf
        """Time of the latest request while the breaker was open."""

    def state(self, now: float) -> State:
        opened_at = self.opened_at
        if opened_at is None or now < opened_at:
            return "closed" if self.degraded_at is None else "degraded"
        return "open" if now < opened_at + self._config.cooldown else "half-open"

    @property
    def is_healthy(self) -> bool:
        """Whether it is closed and not degraded."""
        return self.opened_at is None and self.degraded_at is None

    def is_due(self, now: float) -> bool:
        """Whether a probe or a trial may be sent now."""
        since = self.opened_at if self.opened_at is not None else self.degraded_at
        return since is not None and self._probe is None and now >= since + self._config.cooldown

    def admits(self, now: float) -> bool:
        """Whether a request without `panic` is permitted."""
        return self.opened_at is None or self.is_due(now)

    def seconds_until_probe(self, now: float) -> float:
        """Seconds until a probe is admitted; 0 if one is admitted now."""
        return 0.0 if self.opened_at is None else max(0.0, self.opened_at + self._config.cooldown - now)

    def take_permit(self, now: float, *, panic: bool = False, may_probe: bool = True) -> Permit | None:
        """Return a permit for one request; None if the breaker is open or it may not probe."""
        with self._lock:
            if self.opened_at is None:
                if not self.is_due(now):
                    return Permit("normal")
                self.degraded_at = now  # the next trial comes after another pause
                return Permit("trial")
            if may_probe and self.is_due(now):
                self._probe = Permit("probe")
                self.last_used = now
                return self._probe
            if not panic:
                return None
            self.last_used = now
            return Permit("panic")

    def settle(self, permit: Permit, now: float, *, failed: bool | None) -> None:
        """Record the outcome of a request; None if it is unknown."""
        with self._lock:
            if permit is self._probe:
                self._probe = None
            if failed is None:
                return
            if self.opened_at is None:
                if permit.kind == "trial" and not failed:
                    self._clear_outcomes()
                self._count(failed, now)
            elif permit.kind != "normal" and permit.kind != "trial":
                # Outcomes of requests that were in flight when the breaker opened are ignored.
                self.opened_at = now if failed else None
            self._note_failing(now)

    def count_other(self, failed: bool, now: float) -> None:
        """Count the outcome of a request of another process."""
        with self._lock:
            if self.opened_at is None:
                self._count(failed, now)
                self._note_failing(now)

    def apply(self, opened_at: float | None, now: float) -> None:
        """Open or close it as another process did."""
        with self._lock:
            self._clear_outcomes()
            self._probe = None
            self.opened_at = opened_at
            self._note_failing(now)

    def _note_failing(self, now: float) -> None:
        if self.is_healthy:
            self.failing_since = None
        elif self.failing_since is None:
            self.failing_since = now

    def _count(self, failed: bool, now: float) -> None:
        outcomes, config = self._outcomes, self._config
        outcomes.append(failed)
        self._failures += failed
        if len(outcomes) > config.window:
            self._failures -= outcomes.popleft()
        if (
            failed
            and len(outcomes) >= config.min_samples
            and self._failures >= config.failure_threshold * len(outcomes)
        ):
            self._clear_outcomes()
            self.opened_at = now
            self._probe = None
        elif self.estimated_failure_rate < config.degraded_threshold:
            self.degraded_at = None
        elif self.degraded_at is None:
            self.degraded_at = now

    def _clear_outcomes(self) -> None:
        self._outcomes.clear()
        self._failures = 0
        self.degraded_at = None

    @property
    def failure_rate(self) -> float:
        """Share of failures in the window; 1 while the breaker is open."""
        if self.opened_at is not None:
            return 1.0
        return self._failures / len(self._outcomes) if self._outcomes else 0.0

    @property
    def estimated_failure_rate(self) -> float:
        """Failure rate including assumed successes, which damp single failures; 1 while the breaker is open."""
        if self.opened_at is not None:
            return 1.0
        return self._failures / (len(self._outcomes) + ASSUMED_SUCCESSES)

    @property
    def is_unproven(self) -> bool:
        """Whether it is closed without any outcomes."""
        return self.opened_at is None and not self._outcomes

    def reset(self) -> None:
        """Close the breaker and forget all outcomes."""
        with self._lock:
            self.opened_at = None
            self._probe = None
            self.failing_since = None
            self._clear_outcomes()


class Cooldown:
    """Time until which a target or an API key is not used, and why. It can only be extended."""

    def __init__(self) -> None:
        self.end: float = -math.inf
        self.reason: str = ""

    def extend(self, end: float, reason: str) -> None:
        """Extend the cooldown to `end`, unless it already ends later."""
        if end > self.end:
            self.end, self.reason = end, reason

    def seconds_left(self, now: float) -> float:
        return max(0.0, self.end - now)

    def reset(self) -> None:
        self.end, self.reason = -math.inf, ""


class Health:
    """Health of one model behind one API key. All models behind a key share `key_cooldown`."""

    def __init__(self, config: BreakerConfig, key_cooldown: Cooldown) -> None:
        self.breaker: Breaker = Breaker(config)
        self.cooldown: Cooldown = Cooldown()
        self.key_cooldown: Cooldown = key_cooldown

    def longest_cooldown(self, now: float) -> tuple[float, str]:
        """Seconds left of the longest cooldown, and its reason."""
        own, key = self.cooldown.seconds_left(now), self.key_cooldown.seconds_left(now)
        return (key, self.key_cooldown.reason) if key > own else (own, self.cooldown.reason if own else "")

    def reset(self) -> None:
        self.breaker.reset()
        self.cooldown.reset()
        self.key_cooldown.reset()


MAX_OBSERVATIONS = 40
MAX_AGE = 600.0
"""Seconds after which an observation is ignored."""
_MARGIN = 1.1
"""Factor on the percentile, so that a target with a constant response time never counts as slow."""
_LENGTH_MARGIN = 1.5
"""Factor on the length of the longest recent response, for reservations."""
_LEAST_OBSERVATIONS = 5
"""Minimum number of observations for a percentile or an expected length."""


class Observation(NamedTuple):
    """Response time of one request."""

    at: float
    total: float
    first: float | None
    """Seconds until the first token of a stream."""
    tokens: int


class Timings:
    """Response times of one target."""

    def __init__(self) -> None:
        self._observations: tuple[Observation, ...] = ()  # immutable, because other threads read it

    def observe(self, now: float, total: float, first: float | None, tokens: int) -> None:
        self._observations = (*self._observations, Observation(now, total, first, tokens))[-MAX_OBSERVATIONS:]

    def has_recent(self, now: float) -> bool:
        return bool(self._observations) and self._observations[-1].at > now - MAX_AGE

    def last_observed(self) -> float:
        return self._observations[-1].at if self._observations else float("-inf")

    def estimate_seconds(self, now: float, *, streaming: bool) -> float | None:
        """Expected seconds for a response of usual length; None if unknown.

        For streams, the time to the first token and the time per token are estimated separately.
        """
        recent = [one for one in self._observations if one.at > now - MAX_AGE]
        if not recent:
            return None
        streams = [(one, one.first) for one in recent if one.first is not None]
        if not streams or (not streaming and len(streams) < len(recent)):
            return _mean([one.total for one in recent if one.first is None])
        first = _mean([first for _, first in streams])
        generation = sum(one.total - first for one, first in streams)
        return first + (generation / len(streams) if any(one.tokens for one, _ in streams) else 0.0)

    def slow_threshold(self, now: float, *, streaming: bool) -> float | None:
        """Seconds after which the target counts as slow: the 95th percentile with a margin; None if unknown."""
        waits = sorted(
            one.first if streaming and one.first is not None else one.total
            for one in self._observations
            if one.at > now - MAX_AGE and (one.first is not None) is streaming
        )
        if len(waits) < _LEAST_OBSERVATIONS:
            return None
        return _MARGIN * waits[min(len(waits) - 1, round(0.95 * len(waits)))]

    def usual_tokens(self) -> float | None:
        """Mean number of tokens of a response."""
        return _mean([one.tokens for one in self._observations]) if self._observations else None

    def estimate_tokens(self, default: int) -> int:
        """Number of tokens that a response is expected not to exceed: the longest recent one with a margin."""
        longest = math.ceil(_LENGTH_MARGIN * max((one.tokens for one in self._observations), default=0))
        return longest if len(self._observations) >= _LEAST_OBSERVATIONS else max(default, longest)


def _mean(values: list[float] | list[int]) -> float:
    """Exponentially weighted mean: each value weighs a tenth less than the one after it."""
    weight, total, weights = 1.0, 0.0, 0.0
    for value in reversed(values):
        total += weight * value
        weights += weight
        weight *= 0.9
    return total / weights if weights else 0.0
