"""Contest: contestants take turns in blocks, so that noise affects all of them alike.

A round consists of the floor, all contestants in changing order, and the floor again in another process. The result is
the median ratio of a block's CPU time to the mean of the two floors. All processes are restarted several times, because
memory layout affects the speed of a process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.contestants import AGAIN, FLOOR, ROOT, Entry, Process
from benchmarks.environments import Environment
from benchmarks.figures import Spread, controls, ratios
from benchmarks.rows import Row

LOGS = ROOT / "build" / "bench" / "logs"


@dataclass
class Cell:
    """Measurements of one contestant in one row and API."""

    costs: list[float] = field(default_factory=list)
    """CPU seconds of a unit, one for each round."""
    floors: list[tuple[float, float]] = field(default_factory=list)
    usage: bool = False
    problem: str = ""
    absent: str = ""

    def as_json(self) -> dict[str, Any]:
        if self.absent or self.problem:
            return {"absent": self.absent} if self.absent else {"error": self.problem}
        found = ratios(self.costs, self.floors)
        return {
            "ratio": Spread.of(found).as_json(),
            "microseconds": round(Spread.of(self.costs).median * 1e6, 3),
            "usage": self.usage,
            "blocks": [round(cost * 1e6, 3) for cost in self.costs],
            "floors": [[round(first * 1e6, 3), round(second * 1e6, 3)] for first, second in self.floors],
        }


@dataclass
class Table:
    """Cells by row, API and contestant; and the floor against itself by row and API."""

    cells: dict[tuple[str, str, str], Cell] = field(default_factory=dict)
    floors: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)

    def cell(self, row: str, api: str, name: str) -> Cell:
        return self.cells.setdefault((row, api, name), Cell())

    def control(self, row: str, api: str) -> Spread | None:
        floors = self.floors.get((row, api))
        return Spread.of(controls(floors)) if floors else None

    def as_json(self) -> list[dict[str, Any]]:
        """Return the measured cells."""
        return [
            {"row": row, "api": api, "contestant": name, **cell.as_json(), "control": self._control_json(row, api)}
            for (row, api, name), cell in self.cells.items()
            if cell.costs or cell.absent or cell.problem
        ]

    def _control_json(self, row: str, api: str) -> dict[str, Any] | None:
        control = self.control(row, api)
        return control.as_json() if control else None


@dataclass(frozen=True)
class Plan:
    rows: Sequence[Row]
    apis: Sequence[str]
    sessions: int
    rounds: int
    """In each session."""
    block: float
    """Seconds of CPU that a block should take, about."""
    quick: bool = False
    """Whether to measure expensive rows in few APIs, and only cells with limits."""

    def takes(self, row: Row, entry: Entry) -> bool:
        return not self.quick or entry.variant in row.limits


@contextmanager
def processes(entries: Iterable[Entry], places: dict[str, Environment], server: str) -> Iterator[dict[str, Process]]:
    made = {entry.name: Process(entry, places[entry.environment], server, _log(entry)) for entry in entries}
    try:
        for process in made.values():
            process.wait_until_ready()
        yield made
    finally:
        for process in made.values():
            process.close()


def _log(entry: Entry) -> Path:
    return LOGS / f"{entry.name.replace(' ', '-').replace(',', '')}.log"


def run(
    plan: Plan,
    entries: Sequence[Entry],
    places: dict[str, Environment],
    server: str,
    after_row: Callable[[Table], None] = lambda _: None,
) -> Table:
    """Run all sessions, and yield the results after each row."""
    table = Table()
    began = time.monotonic()
    for session in range(plan.sessions):
        with processes((FLOOR, AGAIN, *entries), places, server) as alive:
            for name, process in alive.items():
                table.versions[name] = process.versions
            for row in plan.rows:
                for api in plan.apis if not (plan.quick and row.quick_apis) else _common(row, plan.apis):
                    _play(table, plan, row, api, alive, entries, session)
                after_row(table)
                spent = time.monotonic() - began
                print(f"  session {session + 1}: {row.title} ({spent:.0f} s)", file=sys.stderr, flush=True)
    return table


def _common(row: Row, apis: Sequence[str]) -> Sequence[str]:
    """APIs in which the quick run measures an expensive row."""
    return [api for api in apis if api in row.quick_apis] or apis[:1]


def _play(
    table: Table, plan: Plan, row: Row, api: str, alive: dict[str, Process], entries: Sequence[Entry], session: int
) -> None:
    """Run all rounds of one row and API."""
    entries = [entry for entry in entries if plan.takes(row, entry)]
    if row.own_floor:
        # The floor is the same library, in the same process, doing the parts one by one.
        for entry in entries:
            player = _Player(row, api, alive[entry.name], table.cell(row.key, api, entry.name))
            floor = _Player(row, api, alive[entry.name], Cell(), row.floor_task)
            if player.warm_up(plan.block):
                _rounds(table, plan, (floor, floor), [player], session)
        return
    players = [_Player(row, api, alive[entry.name], table.cell(row.key, api, entry.name)) for entry in entries]
    floors = tuple(_Player(row, api, alive[entry.name], Cell()) for entry in (FLOOR, AGAIN))
    _rounds(table, plan, (floors[0], floors[1]), [player for player in players if player.warm_up(plan.block)], session)


def _rounds(table: Table, plan: Plan, floors: tuple[_Player, _Player], players: list[_Player], session: int) -> None:
    for floor in dict.fromkeys(floors):
        if not floor.warm_up(plan.block):
            raise RuntimeError(f"the floor fails: {floor.cell.problem or floor.cell.absent}")
    rounds = min(plan.rounds, floors[0].row.quick_rounds) if plan.quick else plan.rounds
    for number in range(rounds):
        turn = (number + session) % max(1, len(players))
        before = floors[0].block()
        costs = [(player, player.block()) for player in (*players[turn:], *players[:turn])]
        after = floors[1].block()
        if before is None or after is None:
            raise RuntimeError(f"the floor fails: {floors[0].cell.problem or floors[1].cell.problem}")
        around = (before, after)
        table.floors.setdefault((floors[0].row.key, floors[0].order["api"]), []).append(around)
        for player, cost in costs:
            if cost is not None:
                player.cell.costs.append(cost)
                player.cell.floors.append(around)


class _Player:
    """A process in one row and API, with the number of repetitions per block."""

    def __init__(self, row: Row, api: str, process: Process, cell: Cell, task: str = "") -> None:
        self.row = row
        self.process = process
        self.cell = cell
        self.order: dict[str, Any] = {
            "task": task or row.task,
            "api": api,
            "scenario": row.scenario,
            "in_flight": row.in_flight,
        }
        self.times = row.in_flight

    def warm_up(self, block: float) -> bool:
        """Warm up the process and set its block size. False if it cannot take part."""
        if self.cell.problem or self.cell.absent:
            return False
        if self.block() is None:  # cold: it imports and connects
            return False
        if self.row.in_flight > 1:
            return True
        cost = self.block()
        if cost is None:
            return False
        if cost * self.row.per > block:
            return True
        self.times = min(3, self.row.longest)
        cost = self.block()
        if cost is None:
            return False
        self.times = max(1, min(self.row.longest, round(block / (cost * self.row.per))))
        return self.block() is not None

    def block(self) -> float | None:
        """CPU seconds of one unit."""
        if self.cell.problem or self.cell.absent:
            return None
        answer = self.process.ask(**self.order, times=self.times)
        if "absent" in answer:
            self.cell.absent = answer["absent"]
            return None
        if "error" in answer:
            self.cell.problem = answer["error"]
            return None
        self.cell.usage = answer["usage"]
        cost: float = answer["cpu"] / answer["done"] / self.row.per
        return cost
