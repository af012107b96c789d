"""Rate limits of a target: those configured, and those that the vendor's headers report.

Windows slide: no period of 60 seconds has more requests than allowed. Tokens are estimated when a request is sent, and
corrected by the usage of its answer.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..engine.locks import Locked
from ..types.routing import RateLimit

if TYPE_CHECKING:
    from ..providers.rate_limit_hints import Left

WINDOW = 60.0
_PLENTY = 20
"""A limit is far away if this many times the request is left."""


@dataclass(slots=True, eq=False)
class Entry:
    """One request in the window."""

    at: float
    tokens: int


_UNCOUNTED = Entry(0.0, 0)
"""Entry of requests that no window counts."""


class RateLimiter(Locked):
    """Rate limiter of one target."""

    __slots__ = (
        "_entries", "_limit", "_own_unlimited", "_tokens", "_vendor_requests", "_vendor_tokens", "in_flight",
        "unlimited",
    )  # fmt: skip

    def __init__(self, limit: RateLimit) -> None:
        super().__init__()
        self._limit = limit
        self.unlimited = self._own_unlimited = limit == RateLimit()
        """Whether no limit is configured or reported."""
        self._entries: deque[Entry] = deque()
        self._tokens = 0
        self._vendor_requests: Left | None = None
        """Requests left according to the vendor, and until when that holds."""
        self._vendor_tokens: Left | None = None
        self.in_flight = 0

    def wait_seconds(self, tokens: int, now: float) -> float:
        """Seconds until another request may be sent; infinity if that depends on requests in flight."""
        limit = self._limit
        if limit.concurrency is not None and self.in_flight >= limit.concurrency:
            return math.inf
        wait = max(_left(self._vendor_requests, 1, now), _left(self._vendor_tokens, tokens, now))
        if limit.rpm is None and limit.tpm is None:
            return wait
        with self._lock:
            self._forget(now)
            return max(wait, self._own_wait(tokens, now))

    def acquire(self, tokens: int, now: float) -> Entry | None:
        """Count a request; None if it exceeds a limit."""
        if self.unlimited:
            with self._lock:
                self.in_flight += 1
            return _UNCOUNTED
        with self._lock:
            entry = _UNCOUNTED if self._own_unlimited else self._enter(tokens, now)
            if entry is not None:
                self.in_flight += 1
                _take(self._vendor_requests, 1)
                _take(self._vendor_tokens, tokens)
        return entry

    def _enter(self, tokens: int, now: float) -> Entry | None:
        """Count a request within the configured limits. Call with the lock held."""
        limit = self._limit
        if limit.concurrency is not None and self.in_flight >= limit.concurrency:
            return None
        if limit.rpm is None and limit.tpm is None:
            return _UNCOUNTED
        self._forget(now)
        if self._own_wait(tokens, now) > 0:
            return None
        entry = Entry(now, tokens)
        self._entries.append(entry)
        self._tokens += tokens
        return entry

    def release(self, entry: Entry, tokens: int | None) -> None:
        """End a request, with its actual tokens if they are known."""
        with self._lock:
            self.in_flight -= 1
            if tokens is not None and entry is not _UNCOUNTED:
                if entry in self._entries:
                    self._tokens += tokens - entry.tokens
                entry.tokens = tokens

    def learn(self, requests: Left | None, tokens: Left | None) -> None:
        """Update what the vendor says is left."""
        if requests is not None:
            self._vendor_requests = requests
            self.unlimited = False
        if tokens is not None:
            self._vendor_tokens = tokens
            self.unlimited = False

    def has_plenty(self, tokens: int) -> bool:
        """Whether a request of so many tokens is far from every limit."""
        requests, left = self._vendor_requests, self._vendor_tokens
        return (
            self._own_unlimited
            and (requests is None or requests.left >= _PLENTY)
            and (left is None or left.left >= _PLENTY * tokens)
        )

    @property
    def limits_tokens(self) -> bool:
        """Whether there is a limit on tokens."""
        return self._limit.tpm is not None or self._vendor_tokens is not None

    def _own_wait(self, tokens: int, now: float) -> float:
        limit, entries = self._limit, self._entries
        wait = 0.0
        if limit.rpm is not None and len(entries) >= limit.rpm:
            wait = entries[len(entries) - limit.rpm].at + WINDOW - now
        if limit.tpm is not None:
            # A request larger than the limit is sent alone.
            over = self._tokens + min(tokens, limit.tpm) - limit.tpm
            for entry in entries:
                if over <= 0:
                    break
                over -= entry.tokens
                wait = max(wait, entry.at + WINDOW - now)
        return wait

    def _forget(self, now: float) -> None:
        entries = self._entries
        while entries and entries[0].at <= now - WINDOW:
            self._tokens -= entries.popleft().tokens


def _left(allowance: Left | None, wanted: float, now: float) -> float:
    if allowance is None or allowance.left >= wanted or now >= allowance.until:
        return 0.0
    return allowance.until - now


def _take(allowance: Left | None, taken: float) -> None:
    if allowance is not None:
        allowance.left = max(0.0, allowance.left - taken)
