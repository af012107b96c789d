"""Outages of ten minutes in virtual time: no retry storms, and no avoidable failures."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from agent import Agent, Router, Target
from agent.engine.wire import Answer, WireRequest
from agent.testing import Script, Simulation, start
from tests.routing.world import error_answer
from tests.support.cases import FULL

pytestmark = pytest.mark.malformed

MINUTES = 10
RPS = (1, 10) if FULL else (4,)
"""Requests per second."""


@dataclass
class Weather:
    """How ten minutes went."""

    requests: int
    attempts: int
    succeeded: int
    after_healing: tuple[int, int] = (0, 0)
    """Requests, and how many of them succeeded, once breakers had had time to close."""

    @property
    def per_request(self) -> float:
        return self.attempts / self.requests

    @property
    def success(self) -> float:
        return self.succeeded / self.requests


def weather(fails: Callable[[int, float, random.Random], bool], *, rps: float, healed: float = float("inf")) -> Weather:
    """Requests at a steady rate to three targets. `fails` decides by target number and time."""
    dice = random.Random(1)

    def answer(request: WireRequest) -> Answer:
        number = int(urlsplit(request.url).path.split("/")[1])
        if simulation.now < healed and fails(number, simulation.now, dice):
            return Answer(error_answer(503).pieces, after=0.1, status=503)
        good = Script("fine")(request)
        return Answer(good.pieces, after=0.3, headers=good.headers)

    simulation = Simulation(answer, seed=1)
    simulation.log = _Nothing()
    router = Router(
        [
            Target(Agent("openai-chat:m", api_key="k", base_url=f"http://127.0.0.1/{number}/v1"), name=str(number))
            for number in range(3)
        ]
    )
    outcomes: list[tuple[float, bool]] = []
    runs = []
    total = round(MINUTES * 60 * rps)

    def begin() -> None:
        runs.append((simulation.now, start(simulation, router, "hi")))

    for index in range(total):
        simulation.at(index / rps + dice.random() / rps, begin)
    simulation.finish()
    outcomes = [(at, run.result is not None) for at, run in runs]
    late = [good for at, good in outcomes if at > healed + 20]
    return Weather(
        total, len(simulation.requests), sum(good for _, good in outcomes), after_healing=(len(late), sum(late))
    )


class _Nothing(list[str]):
    """A log that is not kept: ten minutes are long."""

    def append(self, entry: str) -> None:  # type: ignore[explicit-override]
        pass


@pytest.mark.parametrize("rps", RPS)
def test_in_a_full_outage_hardly_anything_is_asked_twice(rps: float) -> None:
    storm = weather(lambda target, now, dice: True, rps=rps)
    assert storm.succeeded == 0
    assert storm.per_request <= 1.05


@pytest.mark.parametrize("rps", RPS)
@pytest.mark.parametrize("healthy", [0, 1, 2])
def test_one_healthy_target_of_three_is_enough(healthy: int, rps: float) -> None:
    storm = weather(lambda target, now, dice: target != healthy, rps=rps)
    assert storm.success == 1.0
    assert storm.per_request <= 1.2


@pytest.mark.parametrize("rps", RPS)
def test_faults_here_and_there_are_overcome(rps: float) -> None:
    storm = weather(lambda target, now, dice: dice.random() < 0.1, rps=rps)
    assert storm.success >= 0.998
    assert storm.per_request <= 1.2


@pytest.mark.parametrize("rps", RPS)
def test_a_brownout_does_not_become_an_outage(rps: float) -> None:
    """Half of all requests fail at all targets: opening all breakers would fail every call."""
    storm = weather(lambda target, now, dice: dice.random() < 0.5, rps=rps)
    assert storm.success >= 0.5


@pytest.mark.parametrize("rps", RPS)
def test_after_an_outage_everything_works_again(rps: float) -> None:
    storm = weather(lambda target, now, dice: True, rps=rps, healed=300.0)
    asked, succeeded = storm.after_healing
    assert asked > 200
    assert succeeded / asked >= 0.999
