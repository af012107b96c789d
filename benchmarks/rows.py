"""Rows of the benchmarks, with the limits for this package."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """A task, and what it is compared with."""

    key: str
    title: str
    task: str
    scenario: str = "whole"
    limits: dict[str, float] = field(default_factory=dict)
    """Limits by variant of this package, as ratios to the floor."""
    unit: str = "call"
    per: int = 1
    """Units in one task."""
    in_flight: int = 1
    floor_task: str = ""
    """Task of the floor, if the package is compared with itself."""
    quick_apis: tuple[str, ...] = ()
    """Where the quick run measures it; empty for everywhere."""
    quick_rounds: int = 1_000
    """Rounds in a session of the quick run, at most."""
    longest: int = 10_000
    """Times in one block, at most."""

    @property
    def own_floor(self) -> bool:
        return bool(self.floor_task)


ROWS = (
    Row("call", "one call", "call", limits={"http": 0.65}),
    Row("acall", "one call, async", "acall", limits={"http": 0.45}),
    Row("stream", "stream of 1,000 chunks", "stream", "stream-1000", {"http": 0.65}, "chunk", 1000),
    Row("astream", "stream of 1,000 chunks, async", "astream", "stream-1000", {"http": 0.65}, "chunk", 1000),
    Row("first", "200 messages and 20 tools, first request", "first", limits={"http": 1.35}),
    Row("next", "200 messages and 20 tools, next turn", "next", limits={"http": 1.2}, longest=2),
    Row("loop", "tool loop of five turns", "loop", "loop", {"http": 1.4}, "loop"),
    Row(
        "flight",
        "256 in flight, async",
        "flight",
        "slow",
        {"http": 0.06},
        in_flight=256,
        quick_apis=("openai-chat",),
        quick_rounds=2,
    ),
    Row("failover", "503, then the next target", "failover", limits={"http": 1.30}, floor_task="pair"),
)
BY_KEY = {row.key: row for row in ROWS}

START, MEMORY, IMPORT, ROUTER, GROWTH = "start", "memory", "import", "router", "growth"
TURNS, APPEND = "turns", "append"
OTHER_LIMITS = {START: 1.9, MEMORY: 1.4, IMPORT: 1.6, ROUTER: 40.0, GROWTH: 1.1, TURNS: 10.0, APPEND: 1.1}
"""Rows that are measured in ways of their own; a router's limit is in microseconds."""
OTHER_TITLES = {
    START: "from a fresh process to the first answer",
    MEMORY: "memory after the first answer",
    IMPORT: "import, to pydantic with one model",
    ROUTER: "a router of three targets adds, µs",
    GROWTH: "a late chunk of a stream to an early one",
    TURNS: "turn 1,000 of a session to turn 100",
    APPEND: "a late append to a graph to an early one",
}
EVERY_KEY = (*BY_KEY, *OTHER_LIMITS)
CROWD, SESSIONS, SHARED = "crowd", "sessions", "shared"
"""Measured only by the full run: a thousand streams at once, very long conversations, and shared limits."""
