"""What calls have used and cost, by target and by a key of their metadata; and a budget that ends it.

What counts is every attempt, also one that failed and was paid for. Nothing is worked out here: attempts say what they
cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from .. import errors
from ..costs import to_dollars, to_units
from ..locks import Locked
from ..types import AgentRequest, AgentResponse, Attempt, Usage
from .base import CallInfo, Middleware


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


class CostTracker(Locked, Middleware):
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
        return _rebuild, (self._budget, self._per)

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

    def spent(self, value: Any = None) -> float:
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
        spent = self.spent(value)
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


def _rebuild(budget: float | None, per: str | None) -> CostTracker:
    return CostTracker(budget=budget, per=per)
