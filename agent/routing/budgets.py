"""Budgets: retries, hedges and money. They are checked before anything is sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from ..engine.locks import Locked
from ..models.prices import to_dollars, to_units
from ..types.routing import SpendLimit

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


class SpendLedger(Locked):
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
