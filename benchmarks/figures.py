"""Numbers from measurements: ratios with their spread, and how much of it is noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Spread:
    """The median, and the quartiles around it."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return cls(values[0], values[0], values[0], len(values))
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high, len(values))

    def as_json(self) -> dict[str, Any]:
        return {name: round(value, 6) for name, value in asdict(self).items()}


def ratios(costs: Sequence[float], floors: Sequence[tuple[float, float]]) -> list[float]:
    """Of each block to the mean of the floor's two blocks around it, in the same round."""
    return [cost / ((first + second) / 2) for cost, (first, second) in zip(costs, floors, strict=True)]


def controls(floors: Sequence[tuple[float, float]]) -> list[float]:
    """The floor's second block to its first: one, but for noise."""
    return [second / first for first, second in floors]


LEAST_ALLOWANCE = 0.03
MOST_ALLOWANCE = 0.25


def allowance(control: Spread) -> float:
    """By how much a ratio may miss a limit before it is a regression, as a share of the limit.

    The control is the same program against itself in the same rounds, so whatever it shows is noise: how far its
    median is from one, and how uncertain a median of so many rounds is. Of values with the control's quartiles, the
    median has a standard error of 0.93 × (high - low) / √n; three of these are exceeded once in 700 runs. A ratio to
    the mean of two blocks is no noisier than one to a single block. Below 3 % nothing is a regression, and beyond 25 %
    a run says nothing and must not be passed off as a success: the allowance ends there.
    """
    error = 0.93 * (control.high - control.low) / math.sqrt(max(control.count, 1))
    return min(MOST_ALLOWANCE, max(LEAST_ALLOWANCE, abs(control.median - 1) + 3 * error))
