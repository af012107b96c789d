"""Router guarantees under thousands of random orders of faults, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent.routing import flow, state
from agent.routing.failure_policy import NextStep
from agent.routing.health import Breaker
from agent.routing.targets import Admission
from agent.types import StreamEvent
from tests.conftest import SEED
from tests.routing.world import FAULTS, STRATEGIES, Scenario, World, shrunk, violations
from tests.support.cases import FULL, examples, within_budget

pytestmark = pytest.mark.malformed

SEEDS = 2_000
SOAKED = 50_000
FIRST = SEED if FULL else 0
"""The same worlds in every run, so that a build does not fail by chance; `make soak` looks at others."""


def _try(seeds: range) -> None:
    for seed in within_budget(seeds):
        scenario = Scenario.draw(seed)
        if problems := violations(scenario):
            least = shrunk(scenario, lambda one: bool(violations(one)))
            raise AssertionError(f"seed {seed}: {problems}\nthe least that breaks it: {least}\n{violations(least)}")


@pytest.mark.parametrize("part", range(4))
def test_no_promise_is_broken(part: int) -> None:
    size = examples(150, SEEDS // 4)
    _try(range(FIRST + part * size, FIRST + (part + 1) * size))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_no_promise_is_broken_in_very_many_worlds() -> None:
    _try(range(SEED, SEED + SOAKED))


def test_the_worlds_are_as_various_as_they_should_be() -> None:
    drawn = [Scenario.draw(FIRST + number) for number in range(SEEDS)]
    assert {scenario.strategy for scenario in drawn} == set(STRATEGIES)
    assert {scenario.targets for scenario in drawn} == {1, 2, 3, 4, 5}
    assert {fault for scenario in drawn for _, _, _, fault in scenario.faults} == set(FAULTS)
    assert len(FAULTS) >= 30
    for trait in ("race", "hedge", "filtered_elsewhere", "nervous"):
        assert {getattr(scenario, trait) for scenario in drawn} == {False, True}
    assert {scenario.on_partial for scenario in drawn} == {"raise", "restart", "continue"}
    askings = [asking for scenario in drawn for asking in scenario.askings]
    assert {asking.deadline is None for asking in askings} == {False, True}
    assert {asking.leaves_after is None for asking in askings} == {False, True}


def test_breakers_open_are_probed_and_panic_in_these_worlds() -> None:
    """Or the promises about them would be kept by nothing happening."""
    reasons: set[str | None] = set()
    for seed in range(FIRST, FIRST + 300):
        for run in World(Scenario.draw(seed)).run().runs.values():
            route = run.result.route if run.result is not None else getattr(run.error, "attempts", ())
            reasons |= {attempt.reason for attempt in route}
    assert {
        "half-open probe",
        "no target is healthy",
        "retry",
        "hedge: the first target was slow",
        "in the race",
    } <= reasons


def test_the_same_seed_is_the_same_run_to_the_last_step() -> None:
    for seed in range(FIRST, FIRST + 50):
        scenario = Scenario.draw(seed)
        first, second = World(scenario).run(), World(scenario).run()
        assert first.log == second.log
        assert [vars(one) for one in first.asked] == [vars(one) for one in second.asked]


# The checks themselves: a router that is broken on purpose is found out, and by a small scenario


def _never_abandon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admission, "abandon", lambda self: None)


def _trust_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from agent.routing.health import Permit

    monkeypatch.setattr(state, "exclude_unavailable", lambda target, profile, now: None)
    monkeypatch.setattr(Breaker, "take_permit", lambda self, now, panic=False: Permit("normal"))


def _ask_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state.RoutingState, "stop_reason", lambda self: None)


def _splice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the event that voids what was emitted before."""
    monkeypatch.setattr(StreamEvent, "restart_event", lambda reason: StreamEvent.text_delta(""))


def _forget_losers(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(state: Any, runners: dict[Any, Any]) -> Any:
        runners.clear()
        return
        yield

    monkeypatch.setattr(flow, "_cancel_losers", end)


def _stop_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "next_step", lambda *args, **kwargs: NextStep.RETRY)


def _ignore_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Breaker.settle
    monkeypatch.setattr(
        Breaker,
        "settle",
        lambda self, permit, now, failed: None if permit.kind == "probe" else real(self, permit, now, failed=failed),
    )


@pytest.mark.parametrize(
    "sabotage",
    [
        _never_abandon,
        _trust_all,
        _ask_for_ever,
        _splice,
        _forget_losers,
        _stop_at_nothing,
        _ignore_probes,
    ],
)
def test_a_router_that_is_broken_is_found_out(
    sabotage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    for seed in range(SEEDS):
        scenario = Scenario.draw(seed)
        if _breaks(scenario):
            break
    else:
        raise AssertionError(f"{SEEDS} worlds without a violation")
    least = shrunk(scenario, _breaks)
    assert _breaks(least)
    assert len(least.askings) + len(least.faults) + least.targets <= (
        len(scenario.askings) + len(scenario.faults) + scenario.targets
    )


def _breaks(scenario: Scenario) -> bool:
    return bool(violations(scenario))
