"""CPU time of one chunk in streams of 100, 1,000 and 10,000 chunks.

A stream costs something to begin and to end, so the chunks between two lengths are compared: those from 1,000 to 10,000
must cost no more each than those from 100 to 1,000.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from benchmarks.contestants import Process

LENGTHS = (100, 1_000, 10_000)
_TIMES = {100: 20, 1_000: 4, 10_000: 1}


@dataclass(frozen=True)
class Growth:
    seconds: dict[int, float]
    """Of a whole stream of this length, by the median."""

    def per_chunk(self, short: int, long: int) -> float:
        return (self.seconds[long] - self.seconds[short]) / (long - short)

    @property
    def ratio(self) -> float:
        return self.per_chunk(1_000, 10_000) / self.per_chunk(100, 1_000)


def measure(process: Process, api: str, rounds: int, task: str = "stream") -> Growth | str:
    """Measure the lengths in turn. Returns a reason if that is impossible."""
    samples: dict[int, list[float]] = {length: [] for length in LENGTHS}
    for number in range(-1, rounds):
        for length, times in _TIMES.items():
            order = {"task": task, "api": api, "scenario": f"stream-{length}", "in_flight": 1}
            answer = process.ask(**order, times=times)
            if "cpu" not in answer:
                return str(answer.get("absent") or answer["error"])
            if number >= 0:
                samples[length].append(answer["cpu"] / answer["done"])
    return Growth({length: statistics.median(costs) for length, costs in samples.items()})
