"""Simulated traffic over targets that fail at given rates, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from agent import Agent, Router, Target
from agent.engine.wire import Answer, WireRequest
from agent.testing import Script, Simulation, start
from tests.routing.world import error_answer

FAILURE_SECONDS = 0.1
SUCCESS_SECONDS = 0.3

FailureRates = Callable[[float], Sequence[float]]
"""Returns the failure rate of each target at a time."""


@dataclass(frozen=True)
class Traffic:
    """Totals of one simulation."""

    calls: int
    requests: int
    failed: int

    @property
    def failed_share(self) -> float:
        return self.failed / self.calls

    @property
    def requests_per_call(self) -> float:
        return self.requests / self.calls


def steady(*rates: float) -> FailureRates:
    return lambda now: rates


def alternate(seconds: float, *phases: Sequence[float]) -> FailureRates:
    """Each phase lasts so many seconds; the last is followed by the first."""
    return lambda now: phases[int(now / seconds) % len(phases)]


def simulate_traffic(
    rates: FailureRates, *, calls_per_second: float, calls: int, seed: int = 1, **options: Any
) -> Traffic:
    """Send calls at a steady rate through a router, and count their outcomes."""
    dice = random.Random(seed)

    def answer(request: WireRequest) -> Answer:
        target = int(urlsplit(request.url).path.split("/")[1])
        if dice.random() < rates(simulation.now)[target]:
            return Answer(unavailable.pieces, after=FAILURE_SECONDS, status=503)
        return Answer(good.pieces, after=SUCCESS_SECONDS, headers=good.headers)

    simulation = Simulation(answer, seed=seed)
    simulation.log = DiscardedLog()
    unavailable = error_answer(503)
    router = Router(
        [
            Target(Agent("openai-chat:m", api_key="k", base_url=f"http://127.0.0.1/{number}/v1"), name=str(number))
            for number in range(len(rates(0.0)))
        ],
        **options,
    )
    good = Script("fine")(_first_request(router))
    runs = []

    def begin(number: int) -> None:
        runs.append(start(simulation, router, "hi"))
        if number + 1 < calls:
            simulation.at((number + 1 + dice.random()) / calls_per_second, lambda: begin(number + 1))

    simulation.at(0.0, lambda: begin(0))
    simulation.finish()
    assert len(runs) == calls
    return Traffic(calls, len(simulation.requests), sum(run.result is None for run in runs))


def _first_request(router: Router) -> WireRequest:
    """A request as the router sends it, for a script to answer."""
    seen: list[WireRequest] = []

    def record(request: WireRequest) -> Answer:
        seen.append(request)
        return Script("fine")(request)

    simulation = Simulation(record)
    start(simulation, Router([target.agent for target in router.targets]), "hi")
    simulation.finish()
    return seen[0]


class DiscardedLog(list[str]):
    """A simulation log that keeps nothing."""

    def append(self, entry: str) -> None:  # type: ignore[explicit-override]
        pass
