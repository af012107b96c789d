"""CPU time and peak memory of a fresh process until its first response.

Each sample is a new interpreter that imports a library, makes a client, asks once and ends. Bytecode is compiled
beforehand, as an installer does it.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.contest import Cell
from benchmarks.contestants import AGAIN, FLOOR, ROOT, Entry, build_environment_variables, command
from benchmarks.environments import Environment
from benchmarks.figures import Spread, controls, ratios

CANNOT = 3


@dataclass
class Sample:
    cpu: float = 0.0
    kilobytes: int = 0
    absent: str = ""
    problem: str = ""


@dataclass
class Starts:
    """CPU seconds and memory by contestant, for one API."""

    api: str
    cpu: dict[str, Cell] = field(default_factory=dict)
    memory: dict[str, Cell] = field(default_factory=dict)
    cpu_floors: list[tuple[float, float]] = field(default_factory=list)
    memory_floors: list[tuple[float, float]] = field(default_factory=list)

    def controls(self) -> tuple[Spread, Spread]:
        return Spread.of(controls(self.cpu_floors)), Spread.of(controls(self.memory_floors))


def sample(entry: Entry, environment: Environment, server: str, api: str) -> Sample:
    if environment.python is None:
        return Sample(absent=environment.reason)
    process = subprocess.Popen(
        command(entry, environment, "benchmarks.workers.once", server, api),
        cwd=ROOT,
        env=build_environment_variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    said, complained = process.stdout.read(), process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    process.stderr.close()
    lines = said.strip().splitlines() or complained.strip().splitlines() or ["it said nothing"]
    if process.returncode == CANNOT:
        return Sample(absent=lines[-1])
    if process.returncode:
        return Sample(problem=(complained.strip().splitlines() or lines)[-1][:300])
    return Sample(used.ru_utime + used.ru_stime, int(lines[-1]))


def run(entries: Sequence[Entry], places: dict[str, Environment], server: str, api: str, rounds: int) -> Starts:
    compileall.compile_dir(ROOT / "agent", quiet=1)
    compileall.compile_dir(ROOT / "benchmarks", quiet=1)
    starts = Starts(api)
    for entry in entries:
        starts.cpu[entry.name], starts.memory[entry.name] = Cell(), Cell()
    left = list(entries)
    for number in range(-1, rounds):
        before = sample(FLOOR, places[FLOOR.environment], server, api)
        samples = {entry.name: sample(entry, places[entry.environment], server, api) for entry in left}
        after = sample(AGAIN, places[AGAIN.environment], server, api)
        if before.problem or after.problem:
            raise RuntimeError(f"the floor fails: {before.problem or after.problem}")
        if number < 0:  # the first of each reads its files from the disk, and says whether it can at all
            left = [entry for entry in left if not _out(starts, entry.name, samples[entry.name])]
            continue
        cpu, memory = (before.cpu, after.cpu), (before.kilobytes * 1.0, after.kilobytes * 1.0)
        starts.cpu_floors.append(cpu)
        starts.memory_floors.append(memory)
        for name, one in samples.items():
            if not _out(starts, name, one):
                _add(starts.cpu[name], one.cpu, cpu)
                _add(starts.memory[name], one.kilobytes * 1.0, memory)
    print(f"  starts: {api}", file=sys.stderr, flush=True)
    return starts


def _add(cell: Cell, cost: float, floors: tuple[float, float]) -> None:
    cell.costs.append(cost)
    cell.floors.append(floors)


def _out(starts: Starts, name: str, result: Sample) -> bool:
    for cell in (starts.cpu[name], starts.memory[name]):
        cell.absent, cell.problem = result.absent or cell.absent, result.problem or cell.problem
    return bool(result.absent or result.problem)


def ratio(cell: Cell) -> Spread:
    return Spread.of(ratios(cell.costs, cell.floors))
