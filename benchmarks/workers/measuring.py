"""CPU time of tasks, with every single answer checked: a wrong one is an error, not a number."""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks import workload
from benchmarks.workers.tasks import Absent
from benchmarks.workload import Found

TURNS = 4
"""Turns that are measured of each long conversation."""
Report = dict[str, Any]


class WrongAnswer(Exception):
    """What was found is not what was sent."""


def _checked(found: Found, wanted: Found) -> None:
    text, usage = found
    if text != wanted[0]:
        raise WrongAnswer(f"{len(text)} characters instead of {len(wanted[0])}: {text[:60]!r}…")
    if usage is not None and wanted[1] is not None and usage != wanted[1]:
        raise WrongAnswer(f"usage {usage} instead of {wanted[1]}")


def _method(target: Any, name: str) -> Callable[[], Any]:
    method: Callable[[], Any] | None = getattr(target, name, None)
    if method is None:
        raise Absent(f"has no {name}")
    return method


def repeated(target: Any, name: str, wanted: Found, times: int) -> Report:
    method = _method(target, name)
    found: Found = ("", None)
    gc.collect()
    started = time.process_time()
    for _ in range(times):
        found = method()
        _checked(found, wanted)
    return {"cpu": time.process_time() - started, "done": times, "usage": found[1] is not None}


async def _block(method: Callable[[], Awaitable[Found]], wanted: Found, times: int) -> bool:
    found: Found = ("", None)
    for _ in range(times):
        found = await method()
        _checked(found, wanted)
    return found[1] is not None


def awaited(runner: asyncio.Runner, target: Any, name: str, wanted: Found, times: int, in_flight: int = 1) -> Report:
    """So many in flight at any time; `times` is the sum of all."""
    method = _method(target, name)
    each = max(1, times // in_flight)

    async def main() -> Report:
        gc.collect()
        started = time.process_time()
        told = await asyncio.gather(*(_block(method, wanted, each) for _ in range(in_flight)))
        return {"cpu": time.process_time() - started, "done": each * in_flight, "usage": told[0]}

    if in_flight == 1:
        return runner.run(_alone(method, wanted, times))
    return runner.run(main())


async def _alone(method: Callable[[], Awaitable[Found]], wanted: Found, times: int) -> Report:
    gc.collect()
    started = time.process_time()
    told = await _block(method, wanted, times)
    return {"cpu": time.process_time() - started, "done": times, "usage": told}


def next_turns(target: Any, wanted: Found, times: int) -> Report:
    """Only the turns count, not the making of the conversation and its first turn."""
    begin = _method(target, "conversation")
    spent = 0.0
    found: Found = ("", None)
    for _ in range(times):
        turn: Callable[[], Found] = begin()
        _checked(turn(), wanted)
        gc.collect()
        started = time.process_time()
        for _ in range(TURNS):
            found = turn()
            _checked(found, wanted)
        spent += time.process_time() - started
    return {"cpu": spent, "done": times * TURNS, "usage": found[1] is not None}


def resident() -> int:
    """Bytes of this process that are in memory now, or the most there ever were, where only that is told."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return peak()


def peak() -> int:
    """The most that ever was."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def crowd(runner: asyncio.Runner, target: Any, wanted: Found, times: int, in_flight: int) -> Report:
    """Streams at once, again and again: what the first round took of memory must be enough for the others."""
    started = time.process_time()
    awaited(runner, target, "astream", wanted, in_flight, in_flight)
    gc.collect()
    warm, warm_peak = resident(), peak()
    rounds = max(1, times // in_flight)
    for _ in range(rounds):
        awaited(runner, target, "astream", wanted, in_flight, in_flight)
    gc.collect()
    return {
        "cpu": time.process_time() - started,
        "done": (rounds + 1) * in_flight,
        "usage": True,
        "memory": {"warm": warm, "after": resident(), "warm_peak": warm_peak, "peak": peak()},
    }


def measure(runner: asyncio.Runner, target: Any, command: dict[str, Any]) -> Report:
    task, times = command["task"], command["times"]
    wanted = workload.expected(command["scenario"])
    if task == "next":
        return next_turns(target, wanted, times)
    if task == "flight":
        return awaited(runner, target, "acall", wanted, times, command["in_flight"])
    if task == "crowd":
        return crowd(runner, target, wanted, times, command["in_flight"])
    if task in ("acall", "astream"):
        return awaited(runner, target, task, wanted, times)
    return repeated(target, task, wanted, times)
