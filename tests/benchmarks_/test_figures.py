"""Ratios, quartiles, and how much noise is allowed for."""

from __future__ import annotations

import pytest

from benchmarks.contest import Cell, Table
from benchmarks.contestants import OURS
from benchmarks.figures import LEAST_ALLOWANCE, MOST_ALLOWANCE, Spread, allowance, controls, ratios
from benchmarks.growth import Growth
from benchmarks.quick import Verdict, of_table


def test_a_ratio_is_to_the_mean_of_the_floors_around_a_block() -> None:
    assert ratios([3.0, 1.0], [(1.0, 2.0), (2.0, 2.0)]) == [2.0, 0.5]
    assert controls([(1.0, 2.0), (2.0, 1.0)]) == [2.0, 0.5]


def test_a_spread_is_the_median_and_the_quartiles() -> None:
    assert Spread.of([5.0, 1.0, 4.0, 2.0, 3.0]) == Spread(3.0, 2.0, 4.0, 5)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 1)


def test_the_allowance_grows_with_what_the_floor_shows_of_itself_and_is_bounded() -> None:
    assert allowance(Spread(1.0, 1.0, 1.0, 10)) == LEAST_ALLOWANCE
    assert allowance(Spread(1.0, 0.95, 1.05, 9)) == pytest.approx(0.093)
    assert allowance(Spread(0.9, 0.85, 0.95, 9)) == pytest.approx(0.193)
    assert allowance(Spread(1.0, 0.5, 2.0, 4)) == MOST_ALLOWANCE
    assert allowance(Spread(1.0, 0.95, 1.05, 100)) < allowance(Spread(1.0, 0.95, 1.05, 9))


@pytest.mark.parametrize(("found", "exceeded"), [(0.79, False), (0.85, False), (0.89, True), (9.0, True)])
def test_a_limit_is_exceeded_beyond_the_allowance(found: float, exceeded: bool) -> None:
    verdict = Verdict("one call", "anthropic", found, 0.80, allowed=0.10)
    assert verdict.exceeded is exceeded
    assert ("EXCEEDED" in str(verdict)) is exceeded


def test_what_could_not_be_measured_has_failed_and_what_is_unavailable_has_not() -> None:
    assert Verdict("one call", "anthropic", None, 0.80, failed=True).exceeded
    assert not Verdict("one call", "anthropic", None, 0.80, note="unavailable").exceeded


def test_a_table_becomes_verdicts_with_limits() -> None:
    table = Table()
    table.floors["acall", "gemini"] = [(1.0, 1.0)] * 4
    table.cells["acall", "gemini", OURS.name] = Cell([0.4] * 4, [(1.0, 1.0)] * 4)
    table.floors["call", "gemini"] = [(1.0, 1.0)] * 4
    table.cells["call", "gemini", OURS.name] = Cell([2.0] * 4, [(1.0, 1.0)] * 4)
    verdicts = {verdict.title: verdict for verdict in of_table(table)}
    assert not verdicts["one call, async"].exceeded  # 0.45
    assert verdicts["one call"].exceeded  # 0.80
    table.cells["acall", "gemini", "other"] = Cell(absent="not there yet")
    lines = [str(verdict) for verdict in of_table(table) if verdict.found is None]
    assert len(lines) == 1
    assert "not there yet" in lines[0]
    table.cells["acall", "gemini", OURS.name] = Cell(problem="WrongAnswer")
    assert any(verdict.exceeded for verdict in of_table(table))


def test_growth_compares_late_chunks_with_early_ones() -> None:
    begin, each = 0.001, 0.00001
    flat = Growth({length: begin + each * length for length in (100, 1_000, 10_000)})
    assert flat.ratio == pytest.approx(1.0)
    quadratic = Growth({length: each * length**2 for length in (100, 1_000, 10_000)})
    assert quadratic.ratio > 5
