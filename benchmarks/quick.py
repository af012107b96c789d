"""Quick benchmarks: this package against the floor, with limits; exits 1 if one is exceeded.

    python -m benchmarks.quick                                      # everything
    python -m benchmarks.quick --rows call,stream --apis anthropic  # while working on one thing
    python -m benchmarks.quick --rows call --rounds 20 --sessions 4 # when it must be exact

A limit is a ratio of CPU time to raw httpx in the same run. It may be missed by what the floor misses itself by, since
that is noise: see `figures.allowance`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from typing_extensions import override

from benchmarks import contest, conversations, growth, imports, routing, starts
from benchmarks.contest import Cell, Plan, Table
from benchmarks.contestants import FLOOR, OURS
from benchmarks.environments import Environment, prepare_all
from benchmarks.figures import LEAST_ALLOWANCE, Spread, allowance, ratios
from benchmarks.rows import (
    APPEND,
    BY_KEY,
    EVERY_KEY,
    GROWTH,
    IMPORT,
    MEMORY,
    OTHER_LIMITS,
    OTHER_TITLES,
    ROUTER,
    ROWS,
    START,
    TURNS,
)
from benchmarks.server import run_server
from benchmarks.workload import APIS


@dataclass(frozen=True)
class Verdict:
    """One line of the table."""

    title: str
    where: str
    found: float | None
    limit: float | None
    allowed: float = LEAST_ALLOWANCE
    """Share of the limit that noise may add."""
    note: str = ""
    failed: bool = False
    """It could not be measured though it should."""

    @property
    def judged(self) -> bool:
        return self.limit is not None and (self.found is not None or self.failed)

    @property
    def exceeded(self) -> bool:
        if self.failed:
            return True
        return self.found is not None and self.limit is not None and self.found > self.limit * (1 + self.allowed)

    @override
    def __str__(self) -> str:
        value = "      –" if self.found is None else f"{self.found:7.2f}"
        limit = "" if self.limit is None else f"limit {self.limit:5.2f} +{self.allowed * 100:.0f} %"
        mark = "EXCEEDED" if self.exceeded else "" if self.found is None or self.limit is None else "ok"
        return f"{self.title:44} {self.where:30} {value}  {limit:18} {mark:8} {self.note}".rstrip()


def of_cell(title: str, where: str, cell: Cell, control: Spread | None, limit: float | None) -> Verdict:
    if cell.absent:
        return Verdict(title, where, None, limit, note=f"unavailable: {cell.absent}")
    if cell.problem or not cell.costs:
        return Verdict(
            title, where, None, limit, note=(cell.problem or "nothing was measured").splitlines()[0], failed=True
        )
    found = Spread.of(ratios(cell.costs, cell.floors))
    noise = "" if control is None else f", control {control.median:.2f} [{control.low:.2f} {control.high:.2f}]"
    note = f"[{found.low:.2f} {found.high:.2f}]{noise}"
    share = LEAST_ALLOWANCE if control is None else allowance(control)
    return Verdict(title, where, found.median, limit, share, note)


def of_table(table: Table) -> Iterator[Verdict]:
    """A line for each cell; but a contestant that takes no part anywhere has one line in all."""
    missing: dict[str, str] = {}
    for name in {name for _, _, name in table.cells}:
        reasons = {cell.absent for (_, _, other), cell in table.cells.items() if other == name}
        if len(reasons) == 1 and (reason := reasons.pop()):
            missing[name] = reason
            yield Verdict("everything", name, None, None, note=f"unavailable: {reason}")
    for (key, api, name), cell in sorted(table.cells.items(), key=lambda item: list(BY_KEY).index(item[0][0])):
        if name in missing:
            continue
        row = BY_KEY[key]
        yield of_cell(row.title, f"{api}, {name}", cell, table.control(key, api), row.limits.get(OURS.variant))


def of_starts(found: starts.Starts, wanted: set[str]) -> Iterator[Verdict]:
    for key, cells, control in zip((START, MEMORY), (found.cpu, found.memory), found.controls(), strict=True):
        if key in wanted:
            for name, cell in cells.items():
                limit = OTHER_LIMITS[key] if name == OURS.name else None
                if cell.absent:
                    continue
                yield of_cell(OTHER_TITLES[key], f"{found.api}, {name}", cell, control, limit)


def of_growth(server: str, places: dict[str, Environment], api: str, rounds: int) -> Iterator[Verdict]:
    with contest.processes([OURS], places, server) as alive:
        for name, process in alive.items():
            found = growth.measure(process, api, rounds, "stream")
            where = f"{api}, {name}"
            limit = OTHER_LIMITS[GROWTH]
            if isinstance(found, str):
                yield Verdict(OTHER_TITLES[GROWTH], where, None, limit, note=found, failed=True)
            else:
                costs = ", ".join(f"{cost * 1e6 / length:.1f}" for length, cost in found.seconds.items())
                note = f"µs a chunk: {costs}"
                yield Verdict(OTHER_TITLES[GROWTH], where, found.ratio, limit, 0.10, note)


def of_import() -> Verdict:
    ratio, floor, ours = imports.import_ratio(9)
    return Verdict(OTHER_TITLES[IMPORT], "", ratio, OTHER_LIMITS[IMPORT], 0.05, f"{ours:.0f} ms to {floor:.0f} ms")


def of_router() -> Verdict:
    added, plain = routing.overhead(blocks=100)
    return Verdict(OTHER_TITLES[ROUTER], "", added, OTHER_LIMITS[ROUTER], 0.10, f"on top of {plain:.0f} µs")


def of_turns() -> Verdict:
    costs = conversations.session_costs(1_000, (100, 1_000))
    (young, _), (old, size) = costs[100], costs[1_000]
    return Verdict(
        OTHER_TITLES[TURNS], "", old / young, OTHER_LIMITS[TURNS], 0.15, f"{old:.0f} µs for {size / 1024:.0f} KB"
    )


def of_append() -> Verdict:
    return Verdict(OTHER_TITLES[APPEND], "", conversations.append_ratio(200_000), OTHER_LIMITS[APPEND], 0.15)


def verdicts(options: argparse.Namespace) -> Iterator[Verdict]:
    places = prepare_all(sorted({entry.environment for entry in (FLOOR, OURS)}))
    for place in places.values():
        if place.python is None:
            raise SystemExit(f"the environment {place.name} cannot be made: {place.reason}")
    rows = [row for row in ROWS if row.key in options.rows]
    plan = Plan(rows, options.apis, options.sessions, options.rounds, options.block, quick=not options.everywhere)
    with run_server() as server:
        if rows:
            yield from of_table(contest.run(plan, [OURS], places, server))
        if options.rows & {START, MEMORY}:
            for api in options.apis if options.everywhere else options.apis[:1]:
                yield from of_starts(starts.run([OURS], places, server, api, options.rounds + 2), options.rows)
        if GROWTH in options.rows:
            yield from of_growth(server, places, options.apis[0], max(1, options.rounds - 1))
    if IMPORT in options.rows:
        yield of_import()
    if ROUTER in options.rows:
        yield of_router()
    if TURNS in options.rows:
        yield of_turns()
    if APPEND in options.rows:
        yield of_append()


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="This package against raw httpx, as ratios of CPU time, with limits.")
    parser.add_argument("--rows", default=",".join(EVERY_KEY), help="some of: " + ", ".join(EVERY_KEY))
    parser.add_argument("--apis", default=",".join(APIS), help="some of: " + ", ".join(APIS))
    parser.add_argument("--sessions", type=int, default=2, help="how often all processes are started anew")
    parser.add_argument("--rounds", type=int, default=4, help="rounds in each session")
    parser.add_argument("--block", type=float, default=0.02, help="seconds of CPU in a block, about")
    parser.add_argument("--everywhere", action="store_true", help="measure costly rows with all APIs, too")
    options = parser.parse_args(arguments)
    options.rows = set(options.rows.split(","))
    options.apis = options.apis.split(",")
    for selected, known in ((options.rows, EVERY_KEY), (options.apis, APIS)):
        if unknown := set(selected) - set(known):
            parser.error(f"{', '.join(sorted(unknown))}: known are {', '.join(known)}")
    return options


def main(arguments: list[str]) -> int:
    began = time.monotonic()
    found: list[Verdict] = []
    for verdict in verdicts(_options(arguments)):
        print(verdict, flush=True)
        found.append(verdict)
    exceeded = sum(verdict.exceeded for verdict in found)
    judged = sum(verdict.judged for verdict in found)
    took = time.monotonic() - began
    print(f"{exceeded} of {judged} limits exceeded; {took:.0f} s")
    return int(exceeded > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
