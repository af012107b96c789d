"""CPU time of tasks. Every response is checked; a wrong one is an error."""

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
from benchmarks.workload import Output

TURNS = 4
"""Measured turns of each long conversation."""
Report = dict[str, Any]


class WrongAnswer(Exception):
    """The library returned another response than the server sent."""


def _check(output: Output, expected: Output) -> None:
    text, usage = output
    if text != expected[0]:
        raise WrongAnswer(f"{len(text)} characters instead of {len(expected[0])}: {text[:60]!r}…")
    if usage is not None and expected[1] is not None and usage != expected[1]:
        raise WrongAnswer(f"usage {usage} instead of {expected[1]}")


def _method(target: Any, name: str) -> Callable[[], Any]:
    method: Callable[[], Any] | None = getattr(target, name, None)
    if method is None:
        raise Absent(f"has no {name}")
    return method


def measure_sync(target: Any, name: str, expected: Output, times: int) -> Report:
    method = _method(target, name)
    output: Output = ("", None)
    gc.collect()
    started = time.process_time()
    for _ in range(times):
        output = method()
        _check(output, expected)
    return {"cpu": time.process_time() - started, "done": times, "usage": output[1] is not None}


async def _block(method: Callable[[], Awaitable[Output]], expected: Output, times: int) -> bool:
    output: Output = ("", None)
    for _ in range(times):
        output = await method()
        _check(output, expected)
    return output[1] is not None


def measure_async(
    runner: asyncio.Runner, target: Any, name: str, expected: Output, times: int, in_flight: int = 1
) -> Report:
    """Measure `times` calls with so many in flight."""
    method = _method(target, name)
    each = max(1, times // in_flight)

    async def main() -> Report:
        gc.collect()
        started = time.process_time()
        has_usage = await asyncio.gather(*(_block(method, expected, each) for _ in range(in_flight)))
        return {"cpu": time.process_time() - started, "done": each * in_flight, "usage": has_usage[0]}

    if in_flight == 1:
        return runner.run(_alone(method, expected, times))
    return runner.run(main())


async def _alone(method: Callable[[], Awaitable[Output]], expected: Output, times: int) -> Report:
    gc.collect()
    started = time.process_time()
    has_usage = await _block(method, expected, times)
    return {"cpu": time.process_time() - started, "done": times, "usage": has_usage}


def next_turns(target: Any, expected: Output, times: int) -> Report:
    """Measure the turns of conversations, without their construction and first turn."""
    begin = _method(target, "conversation")
    spent = 0.0
    output: Output = ("", None)
    for _ in range(times):
        turn: Callable[[], Output] = begin()
        _check(turn(), expected)
        gc.collect()
        started = time.process_time()
        for _ in range(TURNS):
            output = turn()
            _check(output, expected)
        spent += time.process_time() - started
    return {"cpu": spent, "done": times * TURNS, "usage": output[1] is not None}


def resident() -> int:
    """Resident memory of this process in bytes; its peak where the system reports only that."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return peak()


def peak() -> int:
    """Peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def crowd(runner: asyncio.Runner, target: Any, expected: Output, times: int, in_flight: int) -> Report:
    """Measure the memory of repeated rounds of concurrent streams."""
    started = time.process_time()
    measure_async(runner, target, "astream", expected, in_flight, in_flight)
    gc.collect()
    warm, warm_peak = resident(), peak()
    rounds = max(1, times // in_flight)
    for _ in range(rounds):
        measure_async(runner, target, "astream", expected, in_flight, in_flight)
    gc.collect()
    return {
        "cpu": time.process_time() - started,
        "done": (rounds + 1) * in_flight,
        "usage": True,
        "memory": {"warm": warm, "after": resident(), "warm_peak": warm_peak, "peak": peak()},
    }


def measure(runner: asyncio.Runner, target: Any, command: dict[str, Any]) -> Report:
    task, times = command["task"], command["times"]
    expected = workload.get_output(command["scenario"])
    if task == "next":
        return next_turns(target, expected, times)
    if task == "flight":
        return measure_async(runner, target, "acall", expected, times, command["in_flight"])
    if task == "crowd":
        return crowd(runner, target, expected, times, command["in_flight"])
    if task in ("acall", "astream"):
        return measure_async(runner, target, task, expected, times)
    return measure_sync(target, task, expected, times)
