"""Strategies as objects: each states its needs, and the router supplies them."""

from __future__ import annotations

import random
import typing
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent import Router, RoutingStrategy, errors
from agent.routing.request_profile import NO_RANDOM, RequestProfile
from agent.routing.strategies import STRATEGIES, Memory, RankedTarget, Strategy, read_strategy
from agent.routing.targets import Target
from agent.testing import Simulation, scripted_agent, simulate
from agent.types.routing import StrategyName
from tests.routing.fleet import Fleet
from tests.routing.test_strategies import answer_slowly

CHI_SQUARE_FOR_3_DEGREES = 16.27
"""Exceeded by one uniform sample in a thousand."""


def shuffle(profile: RequestProfile, targets: Sequence[Target], memory: Memory) -> list[RankedTarget]:
    first = int(profile.random * len(targets)) % len(targets)
    return [RankedTarget(target, "at random") for target in (*targets[first:], *targets[:first])]


def four_targets(strategy: Strategy) -> tuple[Fleet, Router]:
    fleet = Fleet(a=answer_slowly(0), b=answer_slowly(0), c=answer_slowly(0), d=answer_slowly(0))
    return fleet, fleet.router(strategy=strategy)


def test_a_third_party_strategy_that_needs_randomness_is_one_object_and_is_random() -> None:
    fleet, router = four_targets(Strategy("shuffle", shuffle, needs_random=True))
    simulation = Simulation(fleet, seed=7)
    for _ in range(1000):
        simulate(simulation, router, "hi")
    counts = Counter(fleet.asked)
    assert sum((counts[name] - 250) ** 2 / 250 for name in "abcd") < CHI_SQUARE_FOR_3_DEGREES


def test_a_third_party_strategy_is_random_in_real_calls() -> None:
    router = Router(
        [scripted_agent(*["yes"] * 1000, model=model) for model in "abcd"],
        strategy=Strategy("shuffle", shuffle, needs_random=True),
    )
    random.seed(7)
    counts = Counter(router.complete("hi").route[0].target for _ in range(1000))
    # Real randomness: the bound is exceeded by one run in 10 million.
    assert sum((counts[f"scripted:{name}"] - 250) ** 2 / 250 for name in "abcd") < 35


def test_a_strategy_that_needs_no_randomness_gets_a_constant() -> None:
    seen: set[float] = set()

    def rank(profile: RequestProfile, targets: Sequence[Target], memory: Memory) -> list[RankedTarget]:
        seen.add(profile.random)
        return [RankedTarget(target, "in order") for target in targets]

    fleet, router = four_targets(Strategy("plain", rank))
    for _ in range(10):
        simulate(Simulation(fleet), router, "hi")
    assert seen == {NO_RANDOM}


def test_a_third_party_strategy_can_take_turns() -> None:
    def rank(profile: RequestProfile, targets: Sequence[Target], memory: Memory) -> list[RankedTarget]:
        ordered = sorted(targets, key=lambda target: max(target.turn, memory.turn))
        return [RankedTarget(target, "its turn") for target in ordered]

    fleet, router = four_targets(Strategy("turns", rank, needs_turns=True))
    simulation = Simulation(fleet)
    for _ in range(8):
        simulate(simulation, router, "hi")
    assert fleet.asked == [*"abcd"] * 2


def test_a_third_party_strategy_can_remember_conversations() -> None:
    def rank(profile: RequestProfile, targets: Sequence[Target], memory: Memory) -> list[RankedTarget]:
        pinned = memory.find_target(profile.key, profile.now)
        ranked = [RankedTarget(target, "anywhere") for target in reversed(targets)]
        return sorted(ranked, key=lambda one: one.target.name != pinned)

    fleet = Fleet(a=answer_slowly(0), b=answer_slowly(0))
    router = fleet.router(strategy=Strategy("pinned", rank, needs_memory=True))
    simulation = Simulation(fleet)
    simulate(simulation, router, "hi", route={"only": ["a"]})
    assert simulate(simulation, router, "hi").route[0].target == "a"
    assert simulate(simulation, router, "another conversation").route[0].target == "b"


def test_the_registry_the_enum_and_the_literal_have_the_same_names() -> None:
    assert tuple(STRATEGIES) == typing.get_args(StrategyName)
    assert {*STRATEGIES, "custom"} == set(RoutingStrategy)
    assert all(strategy.name == name for name, strategy in STRATEGIES.items())
    for name in RoutingStrategy:
        if name is not RoutingStrategy.CUSTOM:
            assert read_strategy(name) is STRATEGIES[name]


def test_the_documentation_describes_every_strategy() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/routing.md").read_text()
    for name in STRATEGIES:
        assert f"| `{name}` |" in guide, name


def test_an_unknown_strategy_is_refused_with_the_names_of_the_registry() -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        Router(["scripted:a"], strategy="cheepest")  # type: ignore[arg-type]
    assert all(name in str(caught.value.fix) for name in STRATEGIES)
