"""Limits: rate limits and concurrency of a target, retry and hedge budgets, and spend limits.

Rate limits are configured or reported by the vendor's headers. They use sliding windows of 60 seconds. Tokens and
dollars are reserved with estimates before a request is sent, and corrected by the usage of its response.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from ..engine.locks import ForkSafe
from ..errors import printable
from ..models.prices import to_dollars, to_units
from ..types.routing import RateLimit, SpendLimit

if TYPE_CHECKING:
    from ..providers.rate_limit_hints import RemainingLimit


WINDOW = 60.0


@dataclass(slots=True, eq=False)
class WindowEntry:
    """One request in the sliding window."""

    at: float
    tokens: int


class RateLimiter(ForkSafe):
    """Rate and concurrency limits of one target."""

    def __init__(self, limit: RateLimit) -> None:
        super().__init__()
        self._limit = limit
        self._entries: deque[WindowEntry] = deque()
        self._tokens = 0
        self._vendor_requests: RemainingLimit | None = None
        """Remaining requests according to the vendor."""
        self._vendor_tokens: RemainingLimit | None = None
        self.in_flight: int = 0

    def wait_seconds(self, tokens: int, now: float) -> float:
        """Seconds until another request may be sent; infinity at the concurrency limit."""
        vendor = max(_vendor_wait(self._vendor_requests, 1, now), _vendor_wait(self._vendor_tokens, tokens, now))
        with self._lock:
            return max(vendor, self._wait_for_configured_limit(tokens, now))

    def acquire(self, tokens: int, now: float, *, is_admitted: bool = False) -> WindowEntry | None:
        """Reserve capacity for a request; None if it would exceed a configured limit.

        A request that a shared state has admitted is only counted.
        """
        with self._lock:
            if self._wait_for_configured_limit(tokens, now) > 0 and not is_admitted:
                return None
            entry = WindowEntry(now, tokens)
            if self._limit.rpm is not None or self._limit.tpm is not None:
                self._entries.append(entry)
                self._tokens += tokens
            self.in_flight += 1
            _subtract(self._vendor_requests, 1)
            _subtract(self._vendor_tokens, tokens)
            return entry

    def release(self, entry: WindowEntry, tokens: int | None) -> None:
        """Release the capacity of a finished request, and correct its tokens if they are known."""
        with self._lock:
            self.in_flight -= 1
            if tokens is not None and entry in self._entries:
                self._tokens += tokens - entry.tokens
                entry.tokens = tokens

    def update_from_vendor(self, requests: RemainingLimit | None, tokens: RemainingLimit | None) -> None:
        """Set the remaining limits that the vendor reported."""
        self._vendor_requests = requests or self._vendor_requests
        self._vendor_tokens = tokens or self._vendor_tokens

    def lower_vendor_limits(self, requests: RemainingLimit | None, tokens: RemainingLimit | None, now: float) -> None:
        """Apply remaining limits that another process received. The lower one wins until it is reset."""
        self._vendor_requests = _find_lower(self._vendor_requests, requests, now)
        self._vendor_tokens = _find_lower(self._vendor_tokens, tokens, now)

    def list_vendor_limits(self, now: float) -> list[tuple[float, float] | None]:
        """Remaining requests and tokens according to the vendor, each with the seconds until it is reset."""
        limits = (self._vendor_requests, self._vendor_tokens)
        return [None if limit is None or now >= limit.until else (limit.left, limit.until - now) for limit in limits]

    def is_used_up(self) -> bool:
        """Whether the vendor admits no further request."""
        limits = (self._vendor_requests, self._vendor_tokens)
        return any(limit is not None and limit.left < 1 for limit in limits)

    @property
    def limits_tokens(self) -> bool:
        return self._limit.tpm is not None or self._vendor_tokens is not None

    def _wait_for_configured_limit(self, tokens: int, now: float) -> float:
        limit, entries = self._limit, self._entries
        if limit.concurrency is not None and self.in_flight >= limit.concurrency:
            return math.inf
        while entries and entries[0].at <= now - WINDOW:
            self._tokens -= entries.popleft().tokens
        wait = 0.0
        if limit.rpm is not None and len(entries) >= limit.rpm:
            wait = entries[-limit.rpm].at + WINDOW - now
        if limit.tpm is not None:
            excess = self._tokens + min(tokens, limit.tpm) - limit.tpm
            for entry in entries:
                if excess <= 0:
                    break
                excess -= entry.tokens
                wait = max(wait, entry.at + WINDOW - now)
        return wait


def _vendor_wait(remaining: RemainingLimit | None, amount: float, now: float) -> float:
    if remaining is None or remaining.left >= amount or now >= remaining.until:
        return 0.0
    return remaining.until - now


def _find_lower(own: RemainingLimit | None, other: RemainingLimit | None, now: float) -> RemainingLimit | None:
    if other is None or (own is not None and now < own.until and own.left <= other.left):
        return own
    return other


def _subtract(remaining: RemainingLimit | None, amount: float) -> None:
    if remaining is not None:
        remaining.left = max(0.0, remaining.left - amount)


_ROUNDING = 1e-9
"""Tolerance for sums of floats: twenty times 0.05 counts as one."""


class RequestBudget(ForkSafe):
    """Retry budget or hedge budget: a token bucket for extra requests.

    Args:
        share: Extra requests per call.
        per_second: Extra requests per second.
        most: Capacity of the bucket; infinity for no limit.
        initial: Initial number of extra requests; None means `most`.
    """

    def __init__(
        self, share: float = 0.2, per_second: float = 1.0, most: float = 20, initial: float | None = None
    ) -> None:
        super().__init__()
        self._share, self._per_second, self._most = share, per_second, most
        self._tokens = most if initial is None else initial
        self._at: float | None = None

    def deposit(self) -> None:
        """Add the share of one call."""
        with self._lock:
            self._tokens = min(self._most, self._tokens + self._share)

    def withdraw(self, now: float) -> bool:
        """Take a token for an extra request; False if the budget is used up."""
        with self._lock:
            elapsed = 0.0 if self._at is None else max(0.0, now - self._at)
            self._at = now
            self._tokens = min(self._most, self._tokens + elapsed * self._per_second)
            if self._tokens < 1 - _ROUNDING:
                return False
            self._tokens -= 1
            return True


def make_hedge_budget(share: float) -> RequestBudget:
    """Return a hedge budget: never more than `share` of the calls so far, with at most five saved up."""
    return RequestBudget(share=share, per_second=0.0, most=5, initial=0)


def make_retry_budget(share: float | None) -> RequestBudget:
    """Return the retry budget for the `budget` of a RetryConfig."""
    return RequestBudget(most=math.inf) if share is None else RequestBudget(share=share)


_MOST_ON_ESTIMATES = 128
"""Requests that may be in flight on the strength of their expected costs alone."""


@dataclass(slots=True, eq=False)
class _Account:
    """Picodollars spent and reserved under one spend limit, for one value of its key."""

    index: int
    value: Any
    since: float
    spent: int = 0
    expected: int = 0
    """Sum of the expected costs of the requests in flight."""
    maximum: int = 0
    """Sum of the largest possible costs of the requests in flight."""
    excesses: list[int] = field(default_factory=list)
    """By how much each request in flight can exceed its expected cost, sorted."""
    confirmed: int = 0
    """Responses since the last one that cost more than expected."""

    @property
    def in_flight(self) -> int:
        return len(self.excesses)

    def get_reserved(self, expected: int, maximum: int, *, strict: bool) -> int:
        """The amount reserved for the requests in flight, for another one with these costs.

        All but one are assumed to cost the maximum, so that the excess of one response is the most that is overspent.
        If responses have confirmed the estimates, as many requests may rely on expected costs.
        """
        if not strict and self.in_flight < min(self.confirmed, _MOST_ON_ESTIMATES):
            return self.expected
        excess = maximum - expected
        largest = max(excess, self.excesses[-1]) if self.excesses else excess
        return self.maximum + excess - largest

    def add(self, expected: int, maximum: int) -> None:
        self.expected += expected
        self.maximum += maximum
        insort(self.excesses, maximum - expected)

    def remove(self, expected: int, maximum: int) -> None:
        self.expected -= expected
        self.maximum -= maximum
        del self.excesses[bisect_left(self.excesses, maximum - expected)]


@dataclass(slots=True)
class Reservation:
    """Picodollars reserved for one request: its expected and its largest possible cost."""

    expected: int = 0
    maximum: int = 0
    accounts: list[_Account] = field(default_factory=list)


class SpendRefusal(NamedTuple):
    """A spend limit that a request would exceed, with its amounts in dollars."""

    limit: SpendLimit
    value: Any
    spent: float
    reserved: float
    seconds: float | None
    """Seconds until the limit is reset; infinity while the money is only reserved, None if it is spent for good."""

    @override
    @printable
    def __str__(self) -> str:
        owner = "" if self.limit.per is None else f" of {self.limit.per}={self.value!r}"
        available = max(0.0, self.limit.dollars - self.spent - self.reserved)
        return (
            f"of the limit of ${self.limit.dollars:g}{owner}, ${self.spent:.6f} is spent, ${self.reserved:.6f} is "
            f"reserved for requests in flight, and ${available:.6f} is available"
        )


class SpendLedger(ForkSafe):
    """Enforces spend limits by reservations, which are replaced by the actual costs."""

    def __init__(self, limits: Sequence[SpendLimit]) -> None:
        super().__init__()
        self.limits: tuple[SpendLimit, ...] = tuple(limits)
        self._accounts: tuple[dict[Any, _Account], ...] = tuple({} for _ in self.limits)
        """Accounts of each limit by the value of its key, in the order in which their windows began."""

    @property
    def refuses_unpriced(self) -> bool:
        return any(limit.unpriced == "refuse" for limit in self.limits)

    def find_refusal(
        self, expected: float, maximum: float, metadata: Mapping[str, Any], now: float
    ) -> SpendRefusal | None:
        """Return the limit that a request with these costs would exceed; None if there is none."""
        with self._lock:
            accounts = self._find_accounts(metadata, now)
            return self._find_refusal(to_units(expected), to_units(maximum), accounts, now)

    def reserve(
        self, expected: float, maximum: float, metadata: Mapping[str, Any], now: float
    ) -> Reservation | SpendRefusal:
        """Reserve the expected and the largest possible cost, or return the limit that would be exceeded."""
        with self._lock:
            reservation = Reservation(to_units(expected), to_units(maximum))
            accounts = self._find_accounts(metadata, now)
            refusal = self._find_refusal(reservation.expected, reservation.maximum, accounts, now)
            if refusal is not None:
                return refusal
            reservation.accounts = accounts
            for account in accounts:
                self._keep(account, now)
                account.add(reservation.expected, reservation.maximum)
            return reservation

    def settle(self, reservation: Reservation, dollars: float, *, is_response: bool = False) -> None:
        """Replace a reservation by the actual cost of a response or a failure. A second call does nothing."""
        amount = to_units(dollars)
        with self._lock:
            for account in reservation.accounts:
                account.remove(reservation.expected, reservation.maximum)
                account.spent += amount
                if amount > reservation.expected:
                    account.confirmed = 0
                elif is_response:
                    account.confirmed += 1
                if not account.spent and not account.in_flight:
                    self._accounts[account.index].pop(account.value, None)
            reservation.accounts = []

    def set_spend(self, index: int, value: Any, units: int, since: float) -> None:
        """Set the picodollars spent under a limit, as known to a shared state."""
        with self._lock:
            account = self._accounts[index].get(_hashable(value))
            if account is None:
                if not units:
                    return
                account = _Account(index, _hashable(value), since)
                self._keep(account, since)
            account.spent, account.since = units, since

    def get_spend(self, limit: int = 0, value: Any = None) -> float:
        """Dollars spent under a limit, for one value of its key."""
        account = self._accounts[limit].get(_hashable(value)) if limit < len(self.limits) else None
        return 0.0 if account is None else to_dollars(account.spent)

    def count_accounts(self) -> int:
        """Number of values that are remembered: those with money spent in their window, or requests in flight."""
        return sum(map(len, self._accounts))

    def _find_refusal(
        self, expected: int, maximum: int, accounts: Sequence[_Account], now: float
    ) -> SpendRefusal | None:
        held: SpendRefusal | None = None
        for limit, account in zip(self.limits, accounts, strict=True):
            unspent = to_units(limit.dollars) - account.spent
            reserved = account.get_reserved(expected, maximum, strict=limit.strict)
            if expected + reserved <= unspent:
                continue
            value = None if limit.per is None else account.value
            amounts = to_dollars(account.spent), to_dollars(reserved)
            if expected > unspent:
                seconds = None if limit.window is None else max(0.0, account.since + limit.window - now)
                return SpendRefusal(limit, value, *amounts, seconds)
            held = SpendRefusal(limit, value, *amounts, math.inf)
        return held

    def _find_accounts(self, metadata: Mapping[str, Any], now: float) -> list[_Account]:
        """Return the account of each limit. New ones are not kept until something is reserved."""
        accounts: list[_Account] = []
        for index, limit in enumerate(self.limits):
            value = None if limit.per is None else _hashable(metadata.get(limit.per))
            account = self._accounts[index].get(value)
            if account is None:
                account = _Account(index, value, now)
            elif limit.window is not None and now >= account.since + limit.window:
                account.spent, account.since = 0, now
                del self._accounts[index][value]
                self._keep(account, now)
            accounts.append(account)
        return accounts

    def _keep(self, account: _Account, now: float) -> None:
        """Keep an account, and forget others whose window has ended: two for each new one, oldest first."""
        accounts, window = self._accounts[account.index], self.limits[account.index].window
        if account.value in accounts:
            return
        accounts[account.value] = account
        if window is None:
            return
        for value in list(islice(accounts, 2)):
            oldest = accounts[value]
            if now < oldest.since + window or oldest is account:
                return
            del accounts[value]
            if oldest.in_flight:
                accounts[value] = oldest


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value
