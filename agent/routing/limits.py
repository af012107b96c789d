"""Rate limits of a target: those configured, and those that the vendor's headers report.

Windows slide: no period of 60 seconds has more requests than allowed. Tokens are estimated when a request is sent, and
corrected by the usage of its answer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ..engine.locks import ForkSafe
from ..models.prices import to_dollars, to_units
from ..types.routing import RateLimit, SpendLimit

if TYPE_CHECKING:
    from ..providers.rate_limit_hints import RemainingLimit


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


class RateLimiter(ForkSafe):
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
        self._vendor_requests: RemainingLimit | None = None
        """Requests left according to the vendor, and until when that holds."""
        self._vendor_tokens: RemainingLimit | None = None
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

    def learn(self, requests: RemainingLimit | None, tokens: RemainingLimit | None) -> None:
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


def _left(allowance: RemainingLimit | None, wanted: float, now: float) -> float:
    if allowance is None or allowance.left >= wanted or now >= allowance.until:
        return 0.0
    return allowance.until - now


def _take(allowance: RemainingLimit | None, taken: float) -> None:
    if allowance is not None:
        allowance.left = max(0.0, allowance.left - taken)


_ROUNDING = 1e-9
"""Shares are added up as floats: twenty times 0.05 counts as one."""


class RequestBudget:
    """Token bucket for extra requests: a share of the plain requests, and some per second.

    The retry budget keeps an outage from becoming a storm of repeated requests. The hedge budget keeps hedged requests
    within their share.

    Args:
        share: Extra requests per plain request.
        per_second: Extra requests that time alone adds.
        most: Largest number of extra requests that can be saved up.
        initial: Extra requests available at first; None means `most`.
    """

    # There is no lock: an interrupt could leave one held, and every later call would hang. Tokens are taken one by one,
    # which threads cannot do twice; concurrent deposits may add slightly more or less than they should.

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
        """Record a plain request."""
        self._add(self._share)

    def withdraw(self, now: float) -> bool:
        """Take a token for an extra request; False if there is none."""
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
        whole = int(self._part + _ROUNDING)
        if whole:
            self._part = max(0.0, self._part - whole)
            self._tokens.extend([None] * min(whole, self._most))
        if len(self._tokens) == self._most:
            self._part = 0.0


class Unlimited(RequestBudget):
    """A budget without a limit."""

    __slots__ = ()

    @override
    def withdraw(self, now: float) -> bool:
        return True


def hedge_budget(share: float) -> RequestBudget:
    """Budget of hedged requests: at no time more than `share` of the requests so far, and five in a row at most."""
    return RequestBudget(share=share, per_second=0.0, most=5, initial=0)


def retry_budget(share: float | None) -> RequestBudget:
    """The retry budget of a RetryConfig."""
    return Unlimited() if share is None else RequestBudget(share=share)


@dataclass(slots=True)
class _Account:
    """Picodollars spent and reserved under one limit, for one value of its key."""

    spent: int = 0
    reserved: int = 0
    since: float = 0.0


@dataclass(slots=True)
class Reservation:
    """Picodollars set aside for one request."""

    amount: int = 0
    accounts: list[_Account] = field(default_factory=list)


@dataclass(slots=True)
class Refusal:
    """Spend limit that a request would exceed."""

    limit: SpendLimit
    left: float
    value: Any = None
    seconds: float | None = None
    """Seconds until the limit is reset."""

    @override
    def __str__(self) -> str:
        whose = "" if self.limit.per is None else f" of {self.limit.per}={self.value!r}"
        return f"only ${self.left:.6f} is left of the limit of ${self.limit.dollars:g}{whose}"


class SpendLedger(ForkSafe):
    """Keeps spending within limits: reserve, then settle, so that concurrent requests cannot overspend."""

    def __init__(self, limits: Sequence[SpendLimit]) -> None:
        super().__init__()
        self.limits = tuple(limits)
        self._accounts: dict[tuple[int, Any], _Account] = {}

    @property
    def refuses_unpriced(self) -> bool:
        return any(limit.unpriced == "refuse" for limit in self.limits)

    def refusal(self, dollars: float, metadata: Mapping[str, Any], now: float) -> Refusal | None:
        """Return the limit that an amount would exceed; None if it can be spent."""
        with self._lock:
            return self._refusal(dollars, metadata, now)

    def reserve(self, dollars: float, metadata: Mapping[str, Any], now: float) -> Reservation | Refusal:
        """Set an amount aside, or return the limit that it would exceed."""
        with self._lock:
            refusal = self._refusal(dollars, metadata, now)
            if refusal is not None:
                return refusal
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

    def _refusal(self, dollars: float, metadata: Mapping[str, Any], now: float) -> Refusal | None:
        for index, limit in enumerate(self.limits):
            account = self._account(index, limit, metadata, now)
            left = to_units(limit.dollars) - account.spent - account.reserved
            if to_units(dollars) > left:
                value = None if limit.per is None else metadata.get(limit.per)
                seconds = None if limit.window is None else max(0.0, account.since + limit.window - now)
                return Refusal(limit, to_dollars(max(0, left)), value, seconds)
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
