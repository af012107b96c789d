"""The floor and this package do all tasks; wrong responses are errors."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import workload
from benchmarks.contest import processes
from benchmarks.contestants import FLOOR, OURS, Process
from benchmarks.environments import Environment
from benchmarks.rows import ROWS
from benchmarks.workers.measurement import WrongAnswer, measure
from benchmarks.workers.tasks import Absent

HERE = {name: Environment(name, Path(sys.executable)) for name in (FLOOR.environment, OURS.environment)}


def answers(process: Process, api: str) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = {}
    for row in ROWS:
        scenario = "stream-100" if row.scenario.startswith("stream") else row.scenario
        order = {"task": row.task, "api": api, "scenario": scenario, "in_flight": min(row.in_flight, 8)}
        results[row.key] = process.ask(**order, times=1)
    return results


def test_the_floor_does_every_task_but_failing_over(server: str) -> None:
    with processes((FLOOR,), HERE, server) as alive:
        assert alive[FLOOR.name].versions["httpx"].startswith("0.28")
        for api in workload.APIS:
            results = answers(alive[FLOOR.name], api)
            assert results.pop("failover") == {"absent": "has no failover"}
            assert all("cpu" in answer for answer in results.values()), results


def test_ours_does_every_task(server: str) -> None:
    with processes((OURS,), HERE, server) as alive:
        for api in workload.APIS:
            results = answers(alive[OURS.name], api)
            results["pair"] = alive[OURS.name].ask(task="pair", api=api, scenario="whole", in_flight=1, times=1)
            assert all("cpu" in answer for answer in results.values()), results
            assert all(answer["usage"] for key, answer in results.items() if key != "loop")


def test_a_contestant_whose_process_dies_is_an_error_and_the_contest_goes_on(server: str) -> None:
    with processes((FLOOR,), HERE, server) as alive:
        process = alive[FLOOR.name]
        order = {"task": "call", "api": "anthropic", "scenario": "whole", "in_flight": 1, "times": 1}
        assert process._process is not None
        process._process.kill()
        assert "failed at call" in process.ask(**order)["error"]
        assert "failed at call" in process.ask(**order)["absent"]


class WrongContestant:
    """Returns another text or usage than the server sent."""

    def __init__(self, text: str, usage: tuple[int, int] | None) -> None:
        self.output = text, usage

    def call(self) -> workload.Output:
        return self.output


def test_a_wrong_text_or_usage_is_an_error() -> None:
    order = {"task": "call", "api": "anthropic", "scenario": "whole", "times": 1, "in_flight": 1}
    with asyncio.Runner() as runner:
        assert measure(runner, WrongContestant(workload.ANSWER, None), order)["usage"] is False
        for contestant in (WrongContestant("Paris.", None), WrongContestant(workload.ANSWER, (1, 2))):
            with pytest.raises(WrongAnswer):
                measure(runner, contestant, order)
        with pytest.raises(Absent):
            measure(runner, WrongContestant("", None), {**order, "task": "loop"})
