"""The floor and ours do all tasks right; what is wrong becomes an error, never a number."""

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
from benchmarks.workers.measuring import WrongAnswer, measure
from benchmarks.workers.tasks import Absent

HERE = {name: Environment(name, Path(sys.executable)) for name in (FLOOR.environment, OURS.environment)}


def answers(process: Process, api: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in ROWS:
        scenario = "stream-100" if row.scenario.startswith("stream") else row.scenario
        order = {"task": row.task, "api": api, "scenario": scenario, "in_flight": min(row.in_flight, 8)}
        found[row.key] = process.ask(**order, times=1)
    return found


def test_the_floor_does_every_task_but_failing_over(server: str) -> None:
    with processes((FLOOR,), HERE, server) as alive:
        assert alive[FLOOR.name].versions["httpx"].startswith("0.28")
        for api in workload.APIS:
            found = answers(alive[FLOOR.name], api)
            assert found.pop("failover") == {"absent": "has no failover"}
            assert all("cpu" in answer for answer in found.values()), found


def test_ours_does_every_task(server: str) -> None:
    with processes((OURS,), HERE, server) as alive:
        for api in workload.APIS:
            found = answers(alive[OURS.name], api)
            found["pair"] = alive[OURS.name].ask(task="pair", api=api, scenario="whole", in_flight=1, times=1)
            assert all("cpu" in answer for answer in found.values()), found
            assert all(answer["usage"] for key, answer in found.items() if key != "loop")


def test_a_contestant_whose_process_dies_is_an_error_and_the_contest_goes_on(server: str) -> None:
    with processes((FLOOR,), HERE, server) as alive:
        process = alive[FLOOR.name]
        order = {"task": "call", "api": "anthropic", "scenario": "whole", "in_flight": 1, "times": 1}
        assert process._process is not None
        process._process.kill()
        assert "failed at call" in process.ask(**order)["error"]
        assert "failed at call" in process.ask(**order)["absent"]


class Liar:
    """Finds another text, or other usage, than was sent."""

    def __init__(self, text: str, usage: tuple[int, int] | None) -> None:
        self.found = text, usage

    def call(self) -> workload.Found:
        return self.found


def test_a_wrong_text_or_usage_is_an_error() -> None:
    order = {"task": "call", "api": "anthropic", "scenario": "whole", "times": 1, "in_flight": 1}
    with asyncio.Runner() as runner:
        assert measure(runner, Liar(workload.ANSWER, None), order)["usage"] is False
        for liar in (Liar("Paris.", None), Liar(workload.ANSWER, (1, 2))):
            with pytest.raises(WrongAnswer):
                measure(runner, liar, order)
        with pytest.raises(Absent):
            measure(runner, Liar("", None), {**order, "task": "loop"})
