"""Health of a target: its circuit breaker, and the cooldowns of the target and its key.

All methods take the time of the driver's clock. A permit is taken for each request and always settled, as unknown
if the call was given up, so that the probe of an open breaker cannot get lost.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Literal, NamedTuple

from ..engine.locks import ForkSafe
from ..types.routing import BreakerConfig

State = Literal["closed", "degraded", "open", "half-open"]

ASSUMED_SUCCESSES = 4
"""Successes added to the observed outcomes when a failure rate is estimated."""


class Permit:
    """Grounds for a request: a closed breaker, a trial if it is degraded, a probe if it is open, or panic."""

    __slots__ = ("kind",)

    def __init__(self, kind: Literal["trusted", "trial", "probe", "panic"]) -> None:
        self.kind = kind


_TRUSTED = Permit("trusted")


class Breaker(ForkSafe):
    """Circuit breaker of a target: closed, degraded, open or half-open.

    It opens when most of the recent outcomes are failures, and admits one probe after a pause. A closed breaker is
    degraded when many of them are: its target is ranked after healthy ones, and one trial per pause may restore it.
    """

    __slots__ = ("_config", "_failures", "_outcomes", "_probe", "asked_at", "degraded_at", "failing_since", "opened_at")

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
        """When it became degraded, or when the latest trial began."""
        self.failing_since: float | None = None
        """Since when it has been degraded or open."""
        self.asked_at = -math.inf
        """When the target was last asked while the breaker was open."""

    def state(self, now: float) -> State:
        opened_at = self.opened_at
        if opened_at is None or now < opened_at:
            return "closed" if self.degraded_at is None else "degraded"
        return "open" if now < opened_at + self._config.pause else "half-open"

    @property
    def closed(self) -> bool:
        return self.opened_at is None

    @property
    def healthy(self) -> bool:
        """Whether it is closed and not degraded."""
        return self.opened_at is None and self.degraded_at is None

    def is_due(self, now: float) -> bool:
        """Whether a probe or a trial may find out now if an unhealthy target has recovered."""
        since = self.opened_at if self.opened_at is not None else self.degraded_at
        return since is not None and self._probe is None and now >= since + self._config.pause

    def admits(self, now: float) -> bool:
        """Whether `take` returns a permit without `panic`."""
        return self.opened_at is None or self.is_due(now)

    def seconds_shut(self, now: float) -> float:
        """Seconds until a probe is admitted; 0 if one is admitted now."""
        return 0.0 if self.opened_at is None else max(0.0, self.opened_at + self._config.pause - now)

    def take(self, now: float, *, panic: bool = False) -> Permit | None:
        """Return a permit for one request; None if the breaker refuses it."""
        if self.opened_at is None and self.degraded_at is None:
            return _TRUSTED
        with self._lock:
            if self.opened_at is None:
                if not self.is_due(now):
                    return _TRUSTED
                self.degraded_at = now  # the next trial comes after another pause
                return Permit("trial")
            if self.is_due(now):
                self._probe = Permit("probe")
                self.asked_at = now
                return self._probe
            if not panic:
                return None
            self.asked_at = now
            return Permit("panic")

    def settle(self, permit: Permit, now: float, *, failed: bool | None) -> None:
        """Record the outcome of a request; None if it is unknown."""
        spotless = self.opened_at is None and not self._failures and len(self._outcomes) >= self._config.window
        if spotless and failed is False and self._probe is None:
            return  # one more success after nothing but successes
        with self._lock:
            if permit is self._probe:
                self._probe = None
            if failed is None:
                return
            if self.opened_at is None:
                if permit.kind == "trial" and not failed:
                    self._forget()
                self._count(failed, now)
            elif permit.kind != "trusted" and permit.kind != "trial":
                # Requests that were in flight when the breaker opened tell nothing new.
                self.opened_at = now if failed else None
            self._note_since(now)

    def _note_since(self, now: float) -> None:
        if self.healthy:
            self.failing_since = None
        elif self.failing_since is None:
            self.failing_since = now

    def _count(self, failed: bool, now: float) -> None:
        outcomes, config = self._outcomes, self._config
        outcomes.append(failed)
        self._failures += failed
        if len(outcomes) > config.window:
            self._failures -= outcomes.popleft()
        if failed and len(outcomes) >= config.least and self._failures >= config.failing * len(outcomes):
            self._forget()
            self.opened_at = now
            self._probe = None
        elif self.estimated_failure_rate < config.degraded:
            self.degraded_at = None
        elif self.degraded_at is None:
            self.degraded_at = now

    def _forget(self) -> None:
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
        """Failure rate with a few assumed successes, so that a single failure says little; 1 while it is open."""
        if self.opened_at is not None:
            return 1.0
        return self._failures / (len(self._outcomes) + ASSUMED_SUCCESSES)

    @property
    def unproven(self) -> bool:
        """Whether nothing is known about the target."""
        return self.opened_at is None and not self._outcomes

    def reset(self) -> None:
        """Close the breaker and forget all outcomes."""
        with self._lock:
            self.opened_at = None
            self._probe = None
            self.failing_since = None
            self._forget()


class Cooldown:
    """Time until which a target or a key is not asked, and why. It is only ever extended."""

    __slots__ = ("end", "reason")

    def __init__(self) -> None:
        self.end = -math.inf
        self.reason = ""

    def extend(self, end: float, reason: str) -> None:
        """Rest until `end`, unless the rest is longer already."""
        if end > self.end:
            self.end, self.reason = end, reason

    def seconds_left(self, now: float) -> float:
        """Seconds until it ends; 0 if it has."""
        return max(0.0, self.end - now)

    def reset(self) -> None:
        """End it now."""
        self.end, self.reason = -math.inf, ""


class Health:
    """Health of one model at one address with one key. Models behind one key share `key_cooldown`."""

    __slots__ = ("breaker", "cooldown", "key_cooldown")

    def __init__(self, config: BreakerConfig, key_cooldown: Cooldown) -> None:
        self.breaker = Breaker(config)
        self.cooldown = Cooldown()
        self.key_cooldown = key_cooldown

    def rest(self, now: float) -> tuple[float, str]:
        """Seconds for which the target must not be asked, and why."""
        own, key = self.cooldown.seconds_left(now), self.key_cooldown.seconds_left(now)
        return (key, self.key_cooldown.reason) if key > own else (own, self.cooldown.reason if own else "")

    def reset(self) -> None:
        """Trust the target and its key again."""
        self.breaker.reset()
        self.cooldown.reset()
        self.key_cooldown.reset()


KEPT = 40
STALE = 600.0
"""Seconds after which an observation is ignored."""
_REUSE_SECONDS = 1.0
"""Seconds for which a computed expectation is reused."""
_MARGIN = 1.1
"""Factor on the percentile, so that a target with a constant response time is never late."""
_LEAST_OBSERVATIONS = 5
"""Observations that a percentile needs."""


class Observation(NamedTuple):
    """One answer."""

    at: float
    total: float
    first: float | None
    """Seconds until the first token, of a stream."""
    tokens: int


class Timings:
    """Response times of one target."""

    __slots__ = ("_expected", "_seen")

    def __init__(self) -> None:
        self._seen: deque[Observation] = deque(maxlen=KEPT)
        self._expected: dict[bool, tuple[float, float | None]] = {}
        """Latest expectation by kind of call, with its time."""

    def observe(self, now: float, total: float, first: float | None, tokens: int) -> None:
        self._seen.append(Observation(now, total, first, tokens))

    def known(self, now: float) -> bool:
        return bool(self._seen) and self._seen[-1].at > now - STALE

    def last_seen(self) -> float:
        return self._seen[-1].at if self._seen else float("-inf")

    def expected(self, now: float, *, streaming: bool) -> float | None:
        """Seconds that an answer of usual length takes; None if unknown.

        A stream is judged by its first token and by its pace, so that long answers do not make a target look slow, nor
        its pace make a slow start look quick.
        """
        known = self._expected.get(streaming)
        if known is not None and now < known[0] + _REUSE_SECONDS and (known[1] is not None or not self._seen):
            return known[1]
        seconds = self._compute_expected(now, streaming=streaming)
        self._expected[streaming] = (now, seconds)
        return seconds

    def _compute_expected(self, now: float, *, streaming: bool) -> float | None:
        seen = [one for one in self._seen if one.at > now - STALE]
        if not seen:
            return None
        streams = [(one, one.first) for one in seen if one.first is not None]
        if not streams or (not streaming and len(streams) < len(seen)):
            return _mean([one.total for one in seen if one.first is None])
        first = _mean([first for _, first in streams])
        spent = sum(one.total - first for one, first in streams)
        paced = sum(one.tokens for one, _ in streams)
        usual = paced / len(streams)
        return first + (spent / paced if paced else 0.0) * usual

    def patience(self, now: float, *, streaming: bool) -> float | None:
        """A little more than the 95th percentile of the time to the first response; None while too little is known."""
        waits = sorted(
            one.first if streaming and one.first is not None else one.total
            for one in self._seen
            if one.at > now - STALE and (one.first is not None) is streaming
        )
        if len(waits) < _LEAST_OBSERVATIONS:
            return None
        return _MARGIN * waits[min(len(waits) - 1, round(0.95 * len(waits)))]

    def usual_tokens(self) -> float | None:
        """Mean number of tokens of an answer."""
        return _mean([one.tokens for one in self._seen]) if self._seen else None


def _mean(values: list[float] | list[int]) -> float:
    """Weighted mean: each value weighs a tenth less than the one after it."""
    weight, total, weights = 1.0, 0.0, 0.0
    for value in reversed(values):
        total += weight * value
        weights += weight
        weight *= 0.9
    return total / weights if weights else 0.0
