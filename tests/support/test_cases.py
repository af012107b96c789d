"""The helpers that choose and run cases."""

from __future__ import annotations

import itertools

import pytest

from tests.support import cases
from tests.support.cases import every_pair, for_each, in_turn, sample, within_budget


@pytest.fixture(autouse=True)
def _usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "FULL", False)


def test_every_two_values_meet_and_few_combinations_are_needed() -> None:
    axes = (range(7), "abcd", (True, False), "xyz")
    chosen = every_pair(*axes)
    for a, b in itertools.combinations(range(4), 2):
        assert {(row[a], row[b]) for row in chosen} == set(itertools.product(axes[a], axes[b]))
    assert len(chosen) < 7 * 4 * 2


def test_a_sample_has_the_first_and_the_last_case() -> None:
    assert sample(range(10), 4) == [0, 3, 6, 9]
    assert sample(range(3), 4) == [0, 1, 2]


def test_each_case_meets_one_value_of_the_other_axes() -> None:
    assert in_turn("abc", (1, 2)) == [("a", 1), ("b", 2), ("c", 1)]


def test_with_full_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "FULL", True)
    assert len(every_pair(range(3), range(4), range(5))) == 60
    assert len(in_turn("abc", (1, 2))) == 6
    assert sample(range(10), 4) == list(range(10))


def test_all_cases_run_and_failures_name_theirs() -> None:
    seen: list[int] = []

    @for_each("number", range(4))
    def odd(number: int) -> None:
        seen.append(number)
        assert number % 2

    with pytest.raises(ExceptionGroup, match="2 of 4 cases failed") as failed:
        odd(group="all")
    assert seen == [0, 1, 2, 3]
    assert [error.__notes__ for error in failed.value.exceptions] == [["case: 0"], ["case: 2"]]


@for_each("letter, number", [("a", 1), ("b", 2), ("a", 3)], by=lambda letter, number: letter)
def test_cases_are_grouped_and_fixtures_are_passed(request: pytest.FixtureRequest, letter: str, number: int) -> None:
    assert f"[{letter}]" in request.node.name


def test_cases_end_with_their_budget(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(within_budget(range(3))) == [0, 1, 2]
    assert list(within_budget(range(3), seconds=0)) == [0]
    assert capsys.readouterr().out.splitlines()[1] == "1 cases, then 0 s were over"
