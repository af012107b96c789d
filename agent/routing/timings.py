"""Response times of a target: time to first token, and pace after it. Recent observations weigh more."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

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
