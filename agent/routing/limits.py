"""Limits: rate limits and concurrency of a target, retry and hedge budgets, and spend limits.

Rate limits are configured or reported by the vendor's headers. They use sliding windows of 60 seconds. Tokens and
dollars are reserved with estimates before a request is sent, and corrected by the usage of its response.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from ..engine.locks import ForkSafe
from ..models.prices import to_dollars, to_units
from ..types.routing import RateLimit, SpendLimit

if TYPE_CHECKING:
    from ..providers.rate_limit_hints import RemainingLimit


WINDOW = 60.0
_PLENTY = 20
"""Remaining requests of this size for which no exact token count is needed."""


class WindowEntry:
    """One request in the sliding window."""

    __slots__ = ("at", "tokens")

    def __init__(self, at: float, tokens: int) -> None:
        self.at: float = at
        self.tokens: int = tokens


_UNCOUNTED = WindowEntry(0.0, 0)
"""Entry of requests without a configured limit."""


class RateLimiter(ForkSafe):
    """Rate and concurrency limits of one target."""

    __slots__ = (
        "_entries",
        "_has_no_configured_limit",
        "_limit",
        "_tokens",
        "_vendor_requests",
        "_vendor_tokens",
        "in_flight",
        "unlimited",
    )  # fmt: skip

    def __init__(self, limit: RateLimit) -> None:
        super().__init__()
        self._limit = limit
        self._has_no_configured_limit = limit == RateLimit()
        self.unlimited: bool = self._has_no_configured_limit
        """Whether no limit is configured or reported."""
        self._entries: deque[WindowEntry] = deque()
        self._tokens = 0
        self._vendor_requests: RemainingLimit | None = None
        """Remaining requests according to the vendor."""
        self._vendor_tokens: RemainingLimit | None = None
        self.in_flight: int = 0

    def wait_seconds(self, tokens: int, now: float) -> float:
        """Seconds until another request may be sent; infinity at the concurrency limit."""
        limit = self._limit
        if limit.concurrency is not None and self.in_flight >= limit.concurrency:
            return math.inf
        wait = max(_vendor_wait(self._vendor_requests, 1, now), _vendor_wait(self._vendor_tokens, tokens, now))
        if limit.rpm is None and limit.tpm is None:
            return wait
        with self._lock:
            self._drop_old_entries(now)
            return max(wait, self._wait_for_window(tokens, now))

    def acquire(self, tokens: int, now: float) -> WindowEntry | None:
        """Reserve capacity for a request; None if it would exceed a limit."""
        if self.unlimited:
            with self._lock:
                self.in_flight += 1
            return _UNCOUNTED
        with self._lock:
            entry = _UNCOUNTED if self._has_no_configured_limit else self._add_entry(tokens, now)
            if entry is not None:
                self.in_flight += 1
                _subtract(self._vendor_requests, 1)
                _subtract(self._vendor_tokens, tokens)
        return entry

    def _add_entry(self, tokens: int, now: float) -> WindowEntry | None:
        """Add a request to the window; None if it would exceed a configured limit. The caller holds the lock."""
        limit = self._limit
        if limit.concurrency is not None and self.in_flight >= limit.concurrency:
            return None
        if limit.rpm is None and limit.tpm is None:
            return _UNCOUNTED
        self._drop_old_entries(now)
        if self._wait_for_window(tokens, now) > 0:
            return None
        entry = WindowEntry(now, tokens)
        self._entries.append(entry)
        self._tokens += tokens
        return entry

    def release(self, entry: WindowEntry, tokens: int | None) -> None:
        """Release the capacity of a finished request, and correct its tokens if they are known."""
        with self._lock:
            self.in_flight -= 1
            if tokens is not None and entry is not _UNCOUNTED:
                if entry in self._entries:
                    self._tokens += tokens - entry.tokens
                entry.tokens = tokens

    def update_from_vendor(self, requests: RemainingLimit | None, tokens: RemainingLimit | None) -> None:
        """Set the remaining limits that the vendor reported."""
        if requests is not None:
            self._vendor_requests = requests
            self.unlimited = False
        if tokens is not None:
            self._vendor_tokens = tokens
            self.unlimited = False

    def has_plenty(self, tokens: int) -> bool:
        """Whether many requests of so many tokens would fit all limits."""
        requests, left = self._vendor_requests, self._vendor_tokens
        return (
            self._has_no_configured_limit
            and (requests is None or requests.left >= _PLENTY)
            and (left is None or left.left >= _PLENTY * tokens)
        )

    @property
    def limits_tokens(self) -> bool:
        return self._limit.tpm is not None or self._vendor_tokens is not None

    def _wait_for_window(self, tokens: int, now: float) -> float:
        limit, entries = self._limit, self._entries
        wait = 0.0
        if limit.rpm is not None and len(entries) >= limit.rpm:
            wait = entries[len(entries) - limit.rpm].at + WINDOW - now
        if limit.tpm is not None:
            excess = self._tokens + min(tokens, limit.tpm) - limit.tpm
            for entry in entries:
                if excess <= 0:
                    break
                excess -= entry.tokens
                wait = max(wait, entry.at + WINDOW - now)
        return wait

    def _drop_old_entries(self, now: float) -> None:
        entries = self._entries
        while entries and entries[0].at <= now - WINDOW:
            self._tokens -= entries.popleft().tokens


def _vendor_wait(remaining: RemainingLimit | None, amount: float, now: float) -> float:
    if remaining is None or remaining.left >= amount or now >= remaining.until:
        return 0.0
    return remaining.until - now


def _subtract(remaining: RemainingLimit | None, amount: float) -> None:
    if remaining is not None:
        remaining.left = max(0.0, remaining.left - amount)


_ROUNDING = 1e-9
"""Tolerance for sums of floats: twenty times 0.05 counts as one."""


class RequestBudget:
    """Retry budget or hedge budget: a token bucket for extra requests.

    Args:
        share: Extra requests per call.
        per_second: Extra requests per second.
        most: Capacity of the bucket.
        initial: Initial number of extra requests; None means `most`.
    """

    # There is no lock, because an interrupt could leave it locked. Popping a token is atomic; concurrent deposits may
    # add slightly more or less than they should.

    __slots__ = ("_at", "_most", "_part", "_per_second", "_share", "_tokens")

    def __init__(self, share: float = 0.2, per_second: float = 1.0, most: int = 20, initial: int | None = None) -> None:
        self._share = share
        self._per_second = per_second
        self._most = most
        self._tokens: deque[None] = deque([None] * (most if initial is None else initial), maxlen=most)
        self._part = 0.0
        """Fraction of the next token."""
        self._at: float | None = None

    def deposit(self) -> None:
        """Add the share of one call."""
        self._add(self._share)

    def withdraw(self, now: float) -> bool:
        """Take a token for an extra request; False if the budget is used up."""
        at, self._at = self._at, now
        if at is not None and now > at:
            self._add((now - at) * self._per_second)
        try:
            self._tokens.pop()
        except IndexError:
            return False
        return True

    def _add(self, tokens: float) -> None:
        self._part += tokens
        count = int(self._part + _ROUNDING)
        if count:
            self._part = max(0.0, self._part - count)
            self._tokens.extend([None] * min(count, self._most))
        if len(self._tokens) == self._most:
            self._part = 0.0


class UnlimitedBudget(RequestBudget):
    """Request budget without a limit."""

    __slots__ = ()

    @override
    def withdraw(self, now: float) -> bool:
        return True


def make_hedge_budget(share: float) -> RequestBudget:
    """Return a hedge budget: never more than `share` of the calls so far, with at most five saved up."""
    return RequestBudget(share=share, per_second=0.0, most=5, initial=0)


def make_retry_budget(share: float | None) -> RequestBudget:
    """Return the retry budget for the `budget` of a RetryConfig."""
    return UnlimitedBudget() if share is None else RequestBudget(share=share)


@dataclass(slots=True)
class _Account:
    """Picodollars spent and reserved under one spend limit, for one value of its key."""

    spent: int = 0
    reserved: int = 0
    since: float = 0.0


@dataclass(slots=True)
class Reservation:
    """Picodollars reserved for one request."""

    amount: int = 0
    accounts: list[_Account] = field(default_factory=list)


class SpendLimitExceeded(NamedTuple):
    """A spend limit that a request would exceed."""

    limit: SpendLimit
    left: float
    value: Any = None
    seconds: float | None = None
    """Seconds until the limit is reset."""

    @override
    def __str__(self) -> str:
        owner = "" if self.limit.per is None else f" of {self.limit.per}={self.value!r}"
        return f"${self.left:.6f} is left of the limit of ${self.limit.dollars:g}{owner}"


class SpendLedger(ForkSafe):
    """Enforces spend limits by reservations, so that concurrent requests cannot overspend."""

    def __init__(self, limits: Sequence[SpendLimit]) -> None:
        super().__init__()
        self.limits: tuple[SpendLimit, ...] = tuple(limits)
        self._accounts: dict[tuple[int, Any], _Account] = {}

    @property
    def refuses_unpriced(self) -> bool:
        return any(limit.unpriced == "refuse" for limit in self.limits)

    def find_exceeded(self, dollars: float, metadata: Mapping[str, Any], now: float) -> SpendLimitExceeded | None:
        """Return the limit that an amount would exceed; None if there is none."""
        with self._lock:
            return self._find_exceeded(dollars, metadata, now)

    def reserve(self, dollars: float, metadata: Mapping[str, Any], now: float) -> Reservation | SpendLimitExceeded:
        """Reserve an amount, or return the limit that it would exceed."""
        with self._lock:
            exceeded = self._find_exceeded(dollars, metadata, now)
            if exceeded is not None:
                return exceeded
            accounts = [self._account(index, limit, metadata, now) for index, limit in enumerate(self.limits)]
            amount = to_units(dollars)
            for account in accounts:
                account.reserved += amount
            return Reservation(amount, accounts)

    def settle(self, reservation: Reservation, dollars: float) -> None:
        """Replace a reservation by the actual cost. A second call does nothing."""
        amount = to_units(dollars)
        with self._lock:
            for account in reservation.accounts:
                account.reserved -= reservation.amount
                account.spent += amount
            reservation.accounts = []

    def get_spend(self, limit: int = 0, value: Any = None) -> float:
        """Dollars spent under a limit, for one value of its key."""
        account = self._accounts.get((limit, _hashable(value)))
        return 0.0 if account is None else to_dollars(account.spent)

    def _find_exceeded(self, dollars: float, metadata: Mapping[str, Any], now: float) -> SpendLimitExceeded | None:
        for index, limit in enumerate(self.limits):
            account = self._account(index, limit, metadata, now)
            left = to_units(limit.dollars) - account.spent - account.reserved
            if to_units(dollars) > left:
                value = None if limit.per is None else metadata.get(limit.per)
                seconds = None if limit.window is None else max(0.0, account.since + limit.window - now)
                return SpendLimitExceeded(limit, to_dollars(max(0, left)), value, seconds)
        return None

    def _account(self, index: int, limit: SpendLimit, metadata: Mapping[str, Any], now: float) -> _Account:
        value = None if limit.per is None else metadata.get(limit.per)
        key = (index, _hashable(value))
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = _Account(since=now)
        elif limit.window is not None and now >= account.since + limit.window:
            account.spent, account.since = 0, now
        return account


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value
