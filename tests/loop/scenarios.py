"""Random scenarios for the tool loop as plain data: model calls, decisions and faults.

A scenario that breaks a promise is made smaller while it still breaks it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from tests.routing.world import FAULTS

VENDORS = ("openai-chat", "anthropic", "openai-responses", "gemini")
TOOLS = ("quick", "slow", "safe", "broken", "flaky", "stuck", "lone", "wild", "outside", "sub", "missing", "choosy")
SAID = ("nothing", "allow", "deny", "change", "ask: yes", "ask: no", "ask: changed", "ask: answered")
"""Decisions about a call; `ask` is decided after the run paused."""
BREAKS = ("connection", "timeout", "journal", "journal, but written", "hook")


@dataclass(frozen=True)
class Wish:
    """A call that the model wants, and what is said about it."""

    tool: str
    said: str = "nothing"
    number: int = 0
    """Its argument."""


@dataclass(frozen=True)
class Scenario:
    """All that happens, but for what the loop makes of it."""

    seed: int
    vendors: tuple[str, ...]
    turns: tuple[tuple[Wish, ...], ...]
    """The calls of each answer; behind them comes an answer without any."""
    answers: tuple[tuple[int, str], ...] = ()
    """Which of the model's answers, counted over all lives, has which of the router's faults."""
    breaks: tuple[tuple[int, str], ...] = ()
    """From which effect on, counted over all lives, the next that can breaks in which way."""
    crashes: tuple[tuple[int, str], ...] = ()
    """After how many steps the first lives end, and how: `crash` or `abort`."""
    spoken: tuple[tuple[float, str], ...] = ()
    """Messages sent during the run: `steer` or `follow_up`."""
    parallel: bool = True
    stop_on_error: bool = False
    streaming: bool = True
    cap: int = 20
    max_iterations: int = 10
    token_budget: int | None = None
    deadline: float | None = None
    """Seconds of each of the first lives."""
    rival: float | None = None
    """Seconds after which another process starts the same run."""

    @classmethod
    def draw(cls, seed: int) -> Scenario:
        rng = random.Random(seed)
        calm = rng.random() < 0.5  # so that in half of the worlds nothing but a crash keeps the run from its end
        return cls(
            seed,
            tuple(rng.choice(VENDORS) for _ in range(rng.choice((1, 1, 2, 3)))),
            tuple(_wishes(rng) for _ in range(rng.choice((1, 1, 1, 2, 2, 3)))),
            answers=() if calm else _some(rng, rng.choice((0, 1, 2, 4)), 8, list(FAULTS)),
            breaks=() if calm else _some(rng, rng.choice((0, 1, 2, 3)), 120, BREAKS),
            crashes=tuple(
                (rng.randint(1, rng.choice((12, 60, 160))), "abort" if rng.random() < 0.2 else "crash")
                for _ in range(rng.choice((0, 1, 1, 1, 2, 3)))
            ),
            spoken=() if rng.random() < 0.75 else _create_lines(rng),
            parallel=rng.random() < 0.7,
            stop_on_error=rng.random() < 0.15,
            streaming=rng.random() < 0.5,
            cap=rng.choice((20, 20, 20, 2)),
            max_iterations=rng.choice((10, 10, 10, 2, 3)),
            token_budget=150 if rng.random() < 0.1 else None,
            deadline=round(rng.uniform(0.3, 8.0), 2) if rng.random() < 0.25 else None,
            rival=round(rng.uniform(0.0, 6.0), 2) if rng.random() < 0.08 else None,
        )

    @property
    def calm(self) -> Scenario:
        """The same, where nothing goes wrong."""
        return replace(self, answers=(), breaks=(), crashes=(), deadline=None, rival=None, vendors=self.vendors[:1])

    @property
    def asks(self) -> bool:
        """Whether a person has to decide anything."""
        return any(wish.said.startswith("ask") or wish.tool == "outside" for turn in self.turns for wish in turn)

    @property
    def size(self) -> int:
        wishes = sum(1 + len(turn) for turn in self.turns)
        return wishes + sum(map(len, (self.answers, self.breaks, self.crashes, self.spoken, self.vendors)))


def _wishes(rng: random.Random) -> tuple[Wish, ...]:
    """The calls of one turn, mostly of ordinary tools without special decisions."""
    tools = TOOLS if rng.random() < 0.5 else ("quick", "slow", "safe")
    return tuple(
        Wish(rng.choice(tools), rng.choice(SAID) if rng.random() < 0.2 else "nothing", rng.choice((number, number, 7)))
        for number in range(rng.choice((1, 1, 2, 2, 3, 5)))
    )


def _some(rng: random.Random, count: int, last: int, kinds: Sequence[str]) -> tuple[tuple[int, str], ...]:
    return tuple(sorted((place, rng.choice(kinds)) for place in rng.sample(range(last), count)))


def _create_lines(rng: random.Random) -> tuple[tuple[float, str], ...]:
    return tuple(
        (round(rng.uniform(0.0, 6.0), 2), rng.choice(("steer", "follow_up"))) for _ in range(rng.choice((1, 2)))
    )


# Smaller


def shrunk(scenario: Scenario, breaks: Callable[[Scenario], bool]) -> Scenario:
    """A smaller scenario that still breaks a promise: fewer calls, faults and settings."""
    while (smaller := next((one for one in _smaller(scenario) if breaks(one)), None)) is not None:
        scenario = smaller
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    change: Any = replace
    for name in ("turns", "answers", "breaks", "crashes", "spoken"):
        many = getattr(scenario, name)
        for index in range(len(many)):
            yield change(scenario, **{name: _without(many, index)})
    if len(scenario.vendors) > 1:
        yield replace(scenario, vendors=scenario.vendors[:1])
    for setting in fields(Scenario):
        if setting.name not in ("seed", "vendors", "turns") and getattr(scenario, setting.name) != setting.default:
            yield change(scenario, **{setting.name: setting.default})
    for index, turn in enumerate(scenario.turns):
        for place, wish in enumerate(turn):
            plainer = [Wish("quick"), replace(wish, said="nothing")]
            for less in [_without(turn, place), *((*turn[:place], one, *turn[place + 1 :]) for one in plainer)]:
                if less and less != turn:
                    yield replace(scenario, turns=(*scenario.turns[:index], less, *scenario.turns[index + 1 :]))


def _without(many: tuple[Any, ...], index: int) -> tuple[Any, ...]:
    return many[:index] + many[index + 1 :]
