"""The retry policy over a grid of failure rates, numbers of targets and call rates, in virtual time."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.conftest import SEED
from tests.routing.failure_grid import FailureRates, Traffic, alternate, simulate_traffic, steady
from tests.support.cases import SECONDS, within_budget

MOST_FAILED = 0.002
MOST_REQUESTS = 1.5
MOST_REQUESTS_IN_AN_OUTAGE = 1.2

RATES = (0.2, 0.35, 0.5, 0.65, 0.9, 1.0)


def assert_calls_survive(rates: FailureRates, *, calls_per_second: float, calls: int, seed: int = 1) -> None:
    traffic = simulate_traffic(rates, calls_per_second=calls_per_second, calls=calls, seed=seed)
    assert traffic.failed_share <= MOST_FAILED, traffic
    assert traffic.requests_per_call <= MOST_REQUESTS, traffic


def assert_outage_is_calm(traffic: Traffic) -> None:
    assert traffic.failed == traffic.calls
    assert traffic.requests_per_call <= MOST_REQUESTS_IN_AN_OUTAGE, traffic


@pytest.mark.parametrize("order", [(0.35, 0.65, 0.0), (0.65, 0.35, 0.0), (0.35, 0.0, 0.65)])
def test_a_brownout_of_two_targets_is_not_noticed_while_a_third_is_healthy(order: tuple[float, ...]) -> None:
    assert_calls_survive(steady(*order), calls_per_second=10, calls=2000)


@pytest.mark.parametrize("failing", [1, 2, 3, 4])
@pytest.mark.parametrize("rate", RATES)
def test_one_healthy_target_behind_failing_ones_is_enough(rate: float, failing: int) -> None:
    assert_calls_survive(steady(*[rate] * failing, 0.0), calls_per_second=10, calls=600)


@pytest.mark.parametrize("rate", [0.35, 0.65, 1.0])
def test_one_healthy_target_is_enough_from_the_first_moment_at_5000_calls_a_second(rate: float) -> None:
    assert_calls_survive(steady(rate, rate, rate, rate, 0.0), calls_per_second=5000, calls=4000)


@pytest.mark.parametrize("seconds", [20, 60])
def test_calls_follow_the_only_healthy_target_when_it_changes(seconds: float) -> None:
    phases = [[0.0 if number == healthy else 1.0 for number in range(5)] for healthy in (4, 2, 0, 3, 1)]
    assert_calls_survive(alternate(seconds, *phases), calls_per_second=10, calls=3000)


def test_a_sudden_change_at_a_high_rate_fails_hardly_any_call() -> None:
    changing = alternate(2.0, (1.0, 0.0, 1.0), (0.0, 1.0, 1.0))
    assert_calls_survive(changing, calls_per_second=1000, calls=4000)


@pytest.mark.parametrize("targets", [1, 2, 3, 5])
def test_a_total_outage_is_not_made_worse(targets: int) -> None:
    assert_outage_is_calm(simulate_traffic(steady(*[1.0] * targets), calls_per_second=10, calls=600))


def test_a_total_outage_is_not_made_worse_at_5000_calls_a_second() -> None:
    assert_outage_is_calm(simulate_traffic(steady(1.0, 1.0, 1.0), calls_per_second=5000, calls=8000))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("calls_per_second", "calls", "every"), [(10, 6000, 1), (100, 12_000, 2), (1000, 20_000, 6), (5000, 60_000, 20)]
)
@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_the_whole_grid(failing: int, calls_per_second: float, calls: int, every: int) -> None:
    """All combinations of failure rates at low call rates, and a sample at high ones."""
    numbered = list(enumerate(list(itertools.combinations_with_replacement((0.1, *RATES), failing))[::every]))
    for number, rates in within_budget(random.Random(SEED).sample(numbered, len(numbered)), SECONDS / 4):
        assert_calls_survive(steady(*rates, 0.0), calls_per_second=calls_per_second, calls=calls, seed=number)
        rotated = [(*rates, 0.0)[turn:] + (*rates, 0.0)[:turn] for turn in range(failing + 1)]
        changing = alternate(max(6.0, calls / calls_per_second / 4), *rotated)
        assert_calls_survive(changing, calls_per_second=calls_per_second, calls=calls, seed=number)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("calls_per_second", [10, 100, 1000, 5000])
@pytest.mark.parametrize("targets", [1, 2, 3, 4, 5])
def test_a_total_outage_over_the_whole_grid(targets: int, calls_per_second: float) -> None:
    calls = 6000 if calls_per_second < 1000 else 20_000
    assert_outage_is_calm(simulate_traffic(steady(*[1.0] * targets), calls_per_second=calls_per_second, calls=calls))
