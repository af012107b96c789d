"""Whether a target can be trusted just now: its circuit breaker, and how long it asked to be left alone.

Everything is given the time, on the driver's clock. A permit is taken when a target is asked, not before, and always
settled: with the outcome, or as unknown if the call was given up. So the one probe of an open breaker cannot get lost.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Literal

from ..locks import Locked
from ..types.policies import BreakerConfig

State = Literal["closed", "open", "half-open"]


class Permit:
    """On what grounds a target is asked: it is trusted, or this is the probe of an open breaker, or there is panic."""

    __slots__ = ("kind",)

    def __init__(self, kind: Literal["trusted", "probe", "panic"]) -> None:
        self.kind = kind


_TRUSTED = Permit("trusted")


class Breaker(Locked):
    """Opens when most of the latest outcomes were failures, and lets one probe through after a pause."""

    __slots__ = ("_config", "_failures", "_outcomes", "_probe", "opened_at")

    def __init__(self, config: BreakerConfig) -> None:
        super().__init__()
        self._config = config
        self._outcomes: deque[bool] = deque()
        """The latest outcomes; True is a failure."""
        self._failures = 0
        self.opened_at: float | None = None
        self._probe: Permit | None = None
        """The probe that is under way."""

    def state(self, now: float) -> State:
        opened_at = self.opened_at
        if opened_at is None or now < opened_at:
            return "closed"
        return "open" if now < opened_at + self._config.pause else "half-open"

    @property
    def closed(self) -> bool:
        return self.opened_at is None

    def admits(self, now: float) -> bool:
        """Whether `take` would give a permit that is not for panic."""
        opened_at = self.opened_at
        return opened_at is None or (now >= opened_at + self._config.pause and self._probe is None)

    def seconds_shut(self, now: float) -> float:
        """Until a probe may come; 0 if one may now."""
        return 0.0 if self.opened_at is None else max(0.0, self.opened_at + self._config.pause - now)

    def take(self, now: float, *, panic: bool = False) -> Permit | None:
        """A permit to ask; None if the breaker refuses."""
        if self.opened_at is None:
            return _TRUSTED
        with self._lock:
            if self.opened_at is None:
                return _TRUSTED
            if now >= self.opened_at + self._config.pause and self._probe is None:
                self._probe = Permit("probe")
                return self._probe
            return Permit("panic") if panic else None

    def settle(self, permit: Permit, now: float, *, failed: bool | None) -> None:
        """What became of it; None if nobody knows."""
        spotless = self.opened_at is None and not self._failures and len(self._outcomes) >= self._config.window
        if spotless and failed is False and self._probe is None:
            return  # one more success after nothing but successes
        with self._lock:
            if permit is self._probe:
                self._probe = None
            if failed is None:
                return
            if self.opened_at is None:
                self._count(failed, now)
            elif permit.kind != "trusted":
                # Of those that were under way when it opened nothing new is learnt.
                self.opened_at = now if failed else None

    def _count(self, failed: bool, now: float) -> None:
        outcomes, config = self._outcomes, self._config
        outcomes.append(failed)
        self._failures += failed
        if len(outcomes) > config.window:
            self._failures -= outcomes.popleft()
        if failed and len(outcomes) >= config.least and self._failures >= config.failing * len(outcomes):
            self.opened_at = now
            self._probe = None
            outcomes.clear()
            self._failures = 0

    @property
    def failure_rate(self) -> float:
        """Of the window; as failing as can be while it is open."""
        if self.opened_at is not None:
            return 1.0
        return self._failures / len(self._outcomes) if self._outcomes else 0.0

    def reset(self) -> None:
        with self._lock:
            self.opened_at = None
            self._probe = None
            self._outcomes.clear()
            self._failures = 0


class Parking:
    """Until when something is left alone, and why. It is only ever extended."""

    __slots__ = ("end", "why")

    def __init__(self) -> None:
        self.end = -math.inf
        self.why = ""

    def until(self, when: float, why: str) -> None:
        if when > self.end:
            self.end, self.why = when, why

    def seconds_left(self, now: float) -> float:
        return max(0.0, self.end - now)

    def reset(self) -> None:
        self.end, self.why = -math.inf, ""


class Health:
    """Of one model at one address with one key. The key's own troubles are shared by all models it opens."""

    __slots__ = ("breaker", "key", "parking")

    def __init__(self, config: BreakerConfig, key: Parking) -> None:
        self.breaker = Breaker(config)
        self.parking = Parking()
        self.key = key

    def parked(self, now: float) -> tuple[float, str]:
        """Seconds it is to be left alone, and why."""
        own, key = self.parking.seconds_left(now), self.key.seconds_left(now)
        return (key, self.key.why) if key > own else (own, self.parking.why if own else "")

    def reset(self) -> None:
        self.breaker.reset()
        self.parking.reset()
        self.key.reset()
