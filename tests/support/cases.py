"""Number of cases per test: a sample by default, all with AGENT_TEST_FULL (set by `make soak`)."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from time import monotonic
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
TestFunction = Callable[..., None]

FULL = bool(os.environ.get("AGENT_TEST_FULL"))
SECONDS = float(os.environ.get("AGENT_TEST_SECONDS") or 780)
"""Time limit of each exhaustive test; see `within_budget`."""


def examples(usual: int, full: int) -> int:
    """The number of generated examples."""
    return full if FULL else usual


def within_budget(cases: Iterable[T], seconds: float = SECONDS) -> Iterator[T]:
    """Yield cases until the time is over, and print their number. Put the cases into random order."""
    began, done = monotonic(), 0
    for case in cases:
        if done and monotonic() - began > seconds:
            print(f"{done} cases, then {seconds:g} s were over")
            return
        yield case
        done += 1
    print(f"all {done} cases in {monotonic() - began:.0f} s")


def sample(cases: Iterable[T], count: int) -> list[T]:
    """Return `count` cases at equal distances, the first and the last among them; all of them with FULL."""
    found = list(cases)
    if FULL or len(found) <= count:
        return found
    step = (len(found) - 1) / max(count - 1, 1)
    return [found[round(n * step)] for n in range(count)]


def every_pair(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return combinations in which every two values of different axes meet at least once; all with FULL."""
    product = list(itertools.product(*axes))
    if FULL:
        return product
    places = list(itertools.combinations(range(len(axes)), 2))
    indexes = [tuple(range(len(axis))) for axis in axes]
    chosen: list[tuple[Any, ...]] = []
    met: set[tuple[int, int, int, int]] = set()
    for wanted in (1.0, 0.5, 0.0):  # first rows in which every pair is new
        for row in itertools.product(*indexes):
            pairs = {(a, row[a], b, row[b]) for a, b in places}
            new = len(pairs - met)
            if new and new >= wanted * len(places):
                met |= pairs
                chosen.append(tuple(axis[n] for axis, n in zip(axes, row, strict=True)))
    return chosen


def in_turn(cases: Sequence[T], *axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return each case with one value of each axis, by turns; with all values and FULL."""
    if FULL:
        return list(itertools.product(cases, *axes))
    combined = list(itertools.product(*axes))
    return [(case, *combined[n % len(combined)]) for n, case in enumerate(cases)]


def for_each(
    names: str, cases: Iterable[Any], *, by: Callable[..., Hashable] | None = None
) -> Callable[[TestFunction], TestFunction]:
    """Run a test for many cases: like `parametrize`, but as one test, or as one for each value of `by`.

    All cases run, and the failures are raised together, each with its case. Fixtures are shared by the cases of a test.
    """
    parameters = [name.strip() for name in names.split(",")]
    groups: dict[str, list[tuple[Any, ...]]] = {}
    for case in cases:
        values = tuple(case) if len(parameters) > 1 else (case,)
        groups.setdefault(str(by(*values)) if by is not None else "all", []).append(values)

    def decorate(function: TestFunction) -> TestFunction:
        @functools.wraps(function)
        def run(*, group: str, **fixtures: Any) -> None:
            skipped, failures = 0, list[Exception]()
            for values in groups[group]:
                try:
                    function(**dict(zip(parameters, values, strict=True)), **fixtures)
                except pytest.skip.Exception:
                    skipped += 1
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"case: {', '.join(map(_name, values))}")
                    failures.append(error if isinstance(error, Exception) else AssertionError(str(error)))
            if skipped == len(groups[group]):
                pytest.skip("nothing to do in any case")
            if len(failures) == 1:
                raise failures[0]
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(groups[group])} cases failed", failures)

        kept = [one for one in inspect.signature(function).parameters.values() if one.name not in parameters]
        group = inspect.Parameter("group", inspect.Parameter.KEYWORD_ONLY)
        as_keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in kept]
        setattr(run, "__signature__", inspect.Signature([*as_keywords, group]))  # noqa: B010
        parametrized: TestFunction = pytest.mark.parametrize("group", list(groups))(run)
        return parametrized

    return decorate


def _name(value: object) -> str:
    return str(getattr(value, "name", value))
