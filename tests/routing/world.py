"""Simulated world for a router: failing vendors, concurrent callers and virtual time.

A scenario is plain data, made from a seed. Running it runs the real router code in virtual time, and looks for what
must never happen. A scenario that breaks a promise is made smaller while it still breaks it.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from agent import Agent, Router, Target, errors
from agent.engine.drivers.simulated import SimulatedRun
from agent.engine.wire import Answer, Piece, WireRequest
from agent.routing import strategies
from agent.testing import Script, Simulation, start
from agent.types import AgentResponse, BreakerConfig, HedgeConfig, StreamEvent

JSON = {"content-type": "application/json"}
SSE = {"content-type": "text/event-stream"}
STRATEGIES = (*strategies.STRATEGIES, "custom")


def error_answer(status: int, **error: Any) -> Answer:
    return Answer([json.dumps({"error": {"message": "no", **error}}).encode()], status=status, headers=JSON)


def chunk(text: str) -> bytes:
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': text}}]})}\n\n".encode()


FAULTS: dict[str, Callable[[Answer], Answer]] = {
    "refused": lambda good: Answer(failure=errors.ConnectionError("refused")),
    "reset before headers": lambda good: Answer(after=0.05, failure=errors.ConnectionError("reset")),
    "no headers": lambda good: Answer(good.pieces, after=1e6),
    "late headers": lambda good: Answer(good.pieces, after=8.0, headers=good.headers),
    "bad request": lambda good: error_answer(400, code="invalid_value"),
    "key refused": lambda good: error_answer(401),
    "out of credit": lambda good: error_answer(402),
    "forbidden": lambda good: error_answer(403),
    "no such model": lambda good: error_answer(404, code="model_not_found"),
    "request timeout": lambda good: error_answer(408),
    "conflict": lambda good: error_answer(409),
    "too long": lambda good: error_answer(400, code="context_length_exceeded"),
    "unprocessable": lambda good: error_answer(422),
    "too early": lambda good: error_answer(425),
    "too fast": lambda good: error_answer(429),
    "too fast, wait": lambda good: replace(error_answer(429), headers={**JSON, "retry-after": "3"}),
    "too fast, wait long": lambda good: replace(error_answer(429), headers={**JSON, "retry-after": "90"}),
    "quota": lambda good: error_answer(429, code="insufficient_quota"),
    "server error": lambda good: error_answer(500),
    "bad gateway": lambda good: error_answer(502),
    "unavailable": lambda good: error_answer(503),
    "unavailable, wait": lambda good: replace(error_answer(503), headers={**JSON, "retry-after": "2"}),
    "gateway timeout": lambda good: error_answer(504),
    "overloaded": lambda good: error_answer(529),
    "filtered": lambda good: error_answer(400, code="content_filter"),
    "a page": lambda good: Answer([b"<html>portal</html>"], headers={"content-type": "text/html"}),
    "failure with status 200": lambda good: error_answer(200, code="server_error"),
    "nothing": lambda good: Answer([], headers=good.headers),
    "null": lambda good: Answer([b"null"], headers=JSON),
    "half": lambda good: Answer(_half(good), headers=good.headers),
    "half and reset": lambda good: Answer([*_half(good), errors.ConnectionError("reset")], headers=good.headers),
    "stall": lambda good: Answer([*_half(good), Piece(b": ping\n\n", 4.0)] + [Piece(b": ping\n\n", 4.0)] * 300,
                                 headers=good.headers),
    "slow": lambda good: Answer([Piece(_bytes(one), 0.7) for one in good.pieces], headers=good.headers),
    "error event": lambda good: Answer(
        [*_half(good), b'data: {"error": {"message": "gone", "code": "server_error"}}\n\n'], headers=good.headers
    ),
}  # fmt: skip
"""Ways to fail. `late headers` and `slow` are only slow."""
_NAMES = list(FAULTS)
_MARK = re.compile(r"<\d+\.\d+>")
"""Each word of an answer says whose it is, and which of all answers."""


def _bytes(piece: Any) -> bytes:
    outcome = piece.outcome if isinstance(piece, Piece) else piece
    assert isinstance(outcome, bytes)
    return outcome


def _half(good: Answer) -> list[Any]:
    """The first half of an answer: of its events, or of its bytes."""
    whole = b"".join(_bytes(piece) for piece in good.pieces)
    if whole.startswith(b"data:"):
        events = whole.split(b"\n\n")
        return [event + b"\n\n" for event in events[: max(1, len(events) // 2)]]
    return [whole[: len(whole) // 2]]


NERVOUS = BreakerConfig(window=4, min_samples=2, failure_threshold=0.5, cooldown=1.5)


@dataclass(frozen=True)
class Asking:
    """One caller."""

    number: int
    at: float
    streaming: bool
    deadline: float | None = None
    leaves_after: float | None = None
    """Seconds after which the caller walks away."""


@dataclass(frozen=True)
class Scenario:
    """All that happens, but for what the router makes of it."""

    seed: int
    strategy: str
    targets: int
    askings: tuple[Asking, ...]
    faults: tuple[tuple[float, float, int, str], ...]
    """Seconds from and until which a target, by number, has a fault."""
    share: float
    """The part of its answers that a fault spoils."""
    on_partial: str = "raise"
    race: bool = False
    hedge: bool = False
    filtered_elsewhere: bool = False
    nervous: bool = False
    """Breakers that open soon and close soon, so that they do so within a scenario."""

    @classmethod
    def draw(cls, seed: int) -> Scenario:
        rng = random.Random(seed)
        targets = rng.randint(1, 5)
        race = rng.random() < 0.15
        nervous = rng.random() < 0.5
        callers, span = (rng.randint(4, 14), 6.0) if nervous else (rng.randint(1, 7), 3.0)
        askings = tuple(
            Asking(
                number,
                at=round(rng.expovariate(1.0) * span, 3),
                streaming=rng.random() < 0.6,
                deadline=round(rng.uniform(0.5, 20), 2) if rng.random() < 0.4 else None,
                leaves_after=round(rng.uniform(0.0, 5), 2) if rng.random() < 0.15 else None,
            )
            for number in range(callers)
        )
        faults = tuple(
            (begin := round(rng.uniform(0, 5), 2), begin + rng.choice((2.0, 20.0, 1e9)), target, rng.choice(_NAMES))
            for target in range(targets)
            for _ in range(rng.choice((0, 1, 1, 2)))
        )
        return cls(
            seed, rng.choice(STRATEGIES), targets, askings, faults, rng.choice((1.0, 1.0, 0.5, 0.2)),
            on_partial=rng.choice(("raise", "restart", "continue")), race=race,
            hedge=not race and rng.random() < 0.2, filtered_elsewhere=rng.random() < 0.3,
            nervous=nervous,
        )  # fmt: skip


@dataclass
class Asked:
    """One request as a vendor saw it."""

    at: float
    target: int
    number: int
    state: str
    probes: int


@dataclass
class World:
    """A scenario while it runs."""

    scenario: Scenario
    asked: list[Asked] = field(default_factory=list)
    runs: dict[int, SimulatedRun] = field(default_factory=dict)
    left: dict[int, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        scenario = self.scenario
        self.simulation = Simulation(self.answer, seed=scenario.seed)
        self.dice = random.Random(scenario.seed + 1)
        agents = [
            Agent(
                "openai-chat:m", api_key="k", base_url=f"http://127.0.0.1/{number}/v1",
                timeout=30.0, first_byte_timeout=6.0, idle_timeout=5.0,
            )
            for number in range(scenario.targets)
        ]  # fmt: skip
        targets = [
            Target(agent, name=str(number), weight=1 + number % 3, rpm=200 if number == 1 else None)
            for number, agent in enumerate(agents)
        ]
        strategy: Any = scenario.strategy
        if strategy == "custom":
            strategy = lambda request, targets: list(reversed(targets))  # noqa: E731
        self.router = Router(
            targets, strategy=strategy, race=scenario.race, on_partial=scenario.on_partial,  # type: ignore[arg-type]
            hedge=HedgeConfig(initial_delay=1.0, max_share=1.0) if scenario.hedge else None,
            on_content_filter="fallback" if scenario.filtered_elsewhere else "raise",
            breaker=NERVOUS if scenario.nervous else None,
        )  # fmt: skip

    # The vendors

    def answer(self, request: WireRequest) -> Answer:
        target = int(urlsplit(request.url).path.split("/")[1])
        body = json.loads(request.body)
        number = int(next(one["content"] for one in body["messages"] if one["role"] == "user").split()[1])
        breaker = self.router.targets[target].health.breaker
        now = self.simulation.now
        probes = int(breaker._probe is not None)
        self.asked.append(Asked(now, target, number, breaker.state(now), probes))
        mark = f"<{target}.{len(self.asked)}>"
        good = Script(" ".join([mark] * 6), delay=0.05)(request)
        good = Answer(good.pieces, after=0.2 + 0.3 * self.dice.random(), headers=good.headers)
        for begin, end, failing, fault in self.scenario.faults:
            if failing == target and begin <= now < end and self.dice.random() < self.scenario.share:
                return FAULTS[fault](good)
        return good

    # The run

    def run(self) -> World:
        for asking in self.scenario.askings:
            self.simulation.at(asking.at, lambda asking=asking: self._begin(asking))  # type: ignore[misc]
        self.simulation.finish()
        for asking in self.scenario.askings:
            self._judge(asking)
        self._judge_leftovers()
        return self

    def _begin(self, asking: Asking) -> None:
        simulation = self.simulation
        run = start(
            simulation, self.router, f"request {asking.number}", streaming=asking.streaming, deadline=asking.deadline
        )
        self.runs[asking.number] = run
        if asking.leaves_after is not None:

            def leave() -> None:
                if not run.finished:
                    self.left[asking.number] = simulation.now
                    simulation.cancel(run)

            simulation.at(simulation.now + asking.leaves_after, leave)

    # Guarantees

    def _judge(self, asking: Asking) -> None:
        run = self.runs[asking.number]
        mine = [one for one in self.asked if one.number == asking.number]

        def broken(promise: str) -> None:
            self.problems.append(f"request {asking.number}: {promise}")

        if not run.finished:
            broken("it never ended")
            return
        if len(mine) > 4:
            broken(f"{len(mine)} attempts")
        end = min(run.ended_at, run.started_at + (asking.deadline or math.inf))
        if late := [one.at for one in mine if one.at > end]:
            broken(f"asked at {late} though it was over at {run.ended_at}")
        if asking.deadline is not None and run.ended_at > run.started_at + asking.deadline + 1e-9:
            broken(f"it ended {run.ended_at - run.started_at - asking.deadline:.3f} s after its deadline")
        if any(not child.finished for child in run.children) or run.bodies:
            broken("something was left running")
        if asking.number in self.left:
            return
        if (run.result is None) == (run.error is None):
            broken(f"outcome {run.result!r} and {run.error!r}")
            return
        if run.error is not None and not isinstance(run.error, errors.AgentError):
            broken(f"a foreign error: {run.error!r}")
            return
        attempts = run.result.route if run.error is None else run.error.attempts
        if len(attempts) != len(mine):
            broken(f"{len(mine)} requests were sent, and {len(attempts)} are in the route")
        self._judge_trust(asking, mine, [attempt.reason for attempt in attempts], broken)
        if run.error is None:
            self._judge_answer(run.result, attempts, broken)
        if asking.streaming:
            self._judge_words(run, broken)

    def _judge_trust(
        self, asking: Asking, mine: Sequence[Asked], reasons: Sequence[str | None], broken: Callable[[str], None]
    ) -> None:
        """Check that targets with open breakers get probes and panic requests only."""
        for one in mine:
            if one.state == "open" and "no target is healthy" not in reasons:
                broken(f"{one.target} got a request at {one.at:.2f} although its breaker was open")
            if one.state == "half-open" and one.probes == 0:
                broken(f"{one.target} got a request at {one.at:.2f} without a probe's permit")

    def _judge_answer(self, response: AgentResponse, attempts: Any, broken: Callable[[str], None]) -> None:
        spent = [attempt.usage for attempt in attempts if attempt.usage is not None]
        total = sum(usage.total_tokens for usage in spent)
        if response.usage is None or response.usage.total_tokens != total:
            broken(f"usage is {response.usage}, and the attempts used {total}")
        costs = [attempt.cost for attempt in attempts if attempt.usage is not None]
        cost = None if None in costs else sum(costs)
        if response.cost_estimate != pytest.approx(cost, abs=1e-12):
            broken(f"the cost is {response.cost_estimate}, and the attempts cost {cost}")
        if sum(attempt.error is None for attempt in attempts) != 1 and not self.scenario.filtered_elsewhere:
            broken(f"not exactly one attempt succeeded: {[attempt.error for attempt in attempts]}")
        if response.stop_reason is None:
            broken("a response without an end")
        marks = set(_MARK.findall(response.text or ""))
        if len(marks) > 1 and not any("broke off" in warning for warning in response.warnings):
            broken(f"words of several answers: {marks}")

    def _judge_words(self, run: SimulatedRun, broken: Callable[[str], None]) -> None:
        """Between two restarts, all words are one answer's, or were said before."""
        segments: list[list[StreamEvent]] = [[]]
        for event in run.events:
            if event.type == "restart":
                segments.append([])
            else:
                segments[-1].append(event)
        known: set[str] = set()
        for segment in segments:
            said = "".join(event.text or "" for event in segment if event.type == "text_delta")
            words = set(_MARK.findall(said))
            if len(words - known) > 1:
                broken(f"words of several answers without a word about it: {words - known}")
            known |= words
        if run.error is None:
            text = "".join(event.text or "" for event in segments[-1] if event.type == "text_delta")
            if text != (run.result.text or ""):
                broken("the response is not what was streamed")
        elif run.events and run.events[-1].type != "error":
            broken("it failed without an event that says so")

    def _judge_leftovers(self) -> None:
        if self.simulation.open_bodies:
            self.problems.append(f"{self.simulation.open_bodies} answers were left open")
        for target in self.router.targets:
            if target.in_flight:
                self.problems.append(f"{target.name} still counts {target.in_flight} under way")
            if target.health.breaker._probe is not None:
                self.problems.append(f"{target.name} still waits for its probe")

    @property
    def log(self) -> str:
        """The same for the same seed, to the last step."""
        return hashlib.sha256("\n".join(self.simulation.log).encode()).hexdigest()


def violations(scenario: Scenario) -> list[str]:
    return World(scenario).run().problems


def shrunk(scenario: Scenario, breaks: Callable[[Scenario], bool]) -> Scenario:
    """A smaller scenario that still breaks a promise: fewer callers, faults and settings."""
    while (smaller := next((one for one in _smaller(scenario) if breaks(one)), None)) is not None:
        scenario = smaller
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    for index in range(len(scenario.askings)):
        yield replace(scenario, askings=scenario.askings[:index] + scenario.askings[index + 1 :])
    for index in range(len(scenario.faults)):
        yield replace(scenario, faults=scenario.faults[:index] + scenario.faults[index + 1 :])
    if scenario.targets > 1:
        last = scenario.targets - 1
        yield replace(scenario, targets=last, faults=tuple(one for one in scenario.faults if one[2] < last))
    for index, asking in enumerate(scenario.askings):
        for calmer in ({"deadline": None}, {"leaves_after": None}, {"streaming": False}, {"at": 0.0}):
            changed = replace(asking, **calmer)
            if changed != asking:
                yield replace(scenario, askings=(*scenario.askings[:index], changed, *scenario.askings[index + 1 :]))
    for plainer in (
        {"strategy": "fallback"}, {"race": False}, {"hedge": False}, {"on_partial": "raise"},
        {"filtered_elsewhere": False}, {"share": 1.0}, {"nervous": False},
    ):  # fmt: skip
        changed_scenario = replace(scenario, **plainer)
        if changed_scenario != scenario:
            yield changed_scenario
