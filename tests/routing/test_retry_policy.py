"""Which attempts the retry budget pays for, and where a call goes after a failure."""

from __future__ import annotations

import pytest

from agent import RetryConfig, Router, errors
from agent.routing.health import Breaker
from agent.routing.limits import make_hedge_budget
from agent.testing import Simulation, simulate
from agent.types import BreakerConfig, HedgeConfig
from tests.routing.fleet import Fleet, busy
from tests.routing.test_strategies import answer_slowly

NO_BUDGET = RetryConfig(max_retries=3, budget=0.0)


def exhaust_budget(router: Router) -> Router:
    """The router with an empty retry budget."""
    while router._settings.retry_budget.withdraw(0.0):
        pass
    return router


def test_a_switch_to_a_healthy_target_is_free() -> None:
    fleet = Fleet(a=busy(), b=busy(), c="fine")
    router = exhaust_budget(fleet.router(retry=NO_BUDGET))
    assert simulate(Simulation(fleet), router, "hi").text == "fine"
    assert fleet.asked == ["a", "b", "c"]


def test_a_repeated_request_to_the_same_target_is_charged() -> None:
    fleet = Fleet(a=[busy(), "fine"])
    router = exhaust_budget(fleet.router(retry=NO_BUDGET))
    with pytest.raises(errors.RoutingError, match="retry budget is used up"):
        simulate(Simulation(fleet), router, "hi")
    assert fleet.asked == ["a"]


def test_a_switch_to_a_failing_target_is_charged() -> None:
    fleet = Fleet(a=busy(), b=busy())
    router = exhaust_budget(fleet.router(retry=NO_BUDGET))
    breaker = router.targets[1].health.breaker
    for _ in range(4):
        permit = breaker.take_permit(0.0)
        assert permit is not None
        breaker.settle(permit, 0.0, failed=True)
    assert breaker.state(0.0) == "degraded"
    with pytest.raises(errors.RoutingError, match="retry budget is used up"):
        simulate(Simulation(fleet), router, "hi")
    assert fleet.asked == ["a"]


def test_a_degraded_target_comes_last_and_gets_one_trial_per_pause() -> None:
    fleet = Fleet(a=[busy()] * 4 + ["back"] * 9, b=["spare"] * 20)
    router = fleet.router()
    simulation = Simulation(fleet)
    for _ in range(4):
        assert simulate(simulation, router, "hi").text == "spare"
    assert router.targets[0].health.breaker.state(simulation.now) == "degraded"
    assert simulate(simulation, router, "hi").text == "spare"
    assert fleet.asked.count("a") == 4
    simulation.now += 15.0
    response = simulate(simulation, router, "hi")
    assert (response.text, response.route[0].reason) == ("back", "trial of a degraded target")
    assert router.targets[0].health.breaker.is_healthy


def test_a_failed_probe_does_not_fail_the_call_while_another_target_is_healthy() -> None:
    fleet = Fleet(a=[busy()] * 2, b=["fine"] * 2)
    router = fleet.router(breaker=BreakerConfig(window=1, min_samples=1, cooldown=1.0))
    simulation = Simulation(fleet)
    simulate(simulation, router, "hi")
    simulation.now += 2.0
    response = simulate(simulation, exhaust_budget(router), "hi")
    assert [attempt.reason for attempt in response.route] == ["half-open probe", "in order"]
    assert response.text == "fine"


def test_without_a_healthy_target_calls_take_turns_among_the_failing_ones() -> None:
    fleet = Fleet(a=[busy()] * 3, b=[busy()] * 3, c=[busy()] * 3)
    router = fleet.router(
        breaker=BreakerConfig(window=1, min_samples=1, cooldown=1000.0), retry=RetryConfig(max_retries=0)
    )
    simulation = Simulation(fleet)
    for _ in range(9):
        simulation.now += 0.1
        with pytest.raises(errors.RoutingError):
            simulate(simulation, router, "hi")
    assert fleet.asked == ["a", "b", "c"] * 3


def test_a_call_waits_for_another_target_to_recover_before_its_last_attempt() -> None:
    fleet = Fleet(a=busy(), b=busy(), c=answer_slowly(0.0, "recovered"))
    router = fleet.router(
        breaker=BreakerConfig(window=1, min_samples=1, cooldown=0.4), retry=RetryConfig(max_retries=1)
    )
    simulation = Simulation(fleet)
    breaker = router.targets[2].health.breaker
    for target in router.targets[1:]:
        permit = target.health.breaker.take_permit(0.0)
        assert permit is not None
        target.health.breaker.settle(permit, 0.0, failed=True)

    def recover() -> None:
        permit = breaker.take_permit(simulation.now, panic=True)
        assert permit is not None
        breaker.settle(permit, simulation.now, failed=False)

    simulation.at(0.3, recover)
    response = simulate(simulation, router, "hi")
    assert fleet.asked == ["a", "c"]
    assert response.text == "recovered"
    assert response.route[1].waited is not None


def test_after_a_failure_the_most_reliable_target_is_next() -> None:
    fleet = Fleet(a=[busy(), busy()], b=[busy(), "b"], c=["c", "c", "c"])
    router = fleet.router()
    simulation = Simulation(fleet)
    assert simulate(simulation, router, "hi").text == "c"
    assert simulate(simulation, router, "hi").text == "c"
    assert fleet.asked == ["a", "b", "c", "a", "c"]


@pytest.mark.parametrize("share", [0.01, 0.05, 0.1, 0.3, 0.35, 0.5, 1.0])
def test_hedges_never_exceed_their_share_of_the_requests_so_far(share: float) -> None:
    budget = make_hedge_budget(share)
    hedged = 0
    for requests in range(1, 1001):
        budget.deposit()
        hedged += budget.withdraw(0.0)
        assert hedged <= share * requests + 1e-6
    assert hedged >= share * 1000 - 1


def test_the_first_five_calls_are_not_hedged() -> None:
    fleet = Fleet(a=answer_slowly(1.0), b=answer_slowly(1.0))
    router = fleet.router(hedge=HedgeConfig(delay=0.1))
    simulation = Simulation(fleet)
    for _ in range(5):
        simulate(simulation, router, "hi")
    assert fleet.asked == ["a"] * 5


def test_a_breaker_without_a_degraded_state_only_opens() -> None:
    breaker = Breaker(BreakerConfig(degraded_threshold=1.0))
    for _ in range(9):
        permit = breaker.take_permit(0.0)
        assert permit is not None
        breaker.settle(permit, 0.0, failed=True)
    assert breaker.state(0.0) == "closed"
