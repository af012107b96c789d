"""Killed processes, concurrent processes and full disks: completed work is not repeated."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.loop import SqliteJournal, list_calls
from agent.loop.run_state import INTERRUPTED
from agent.types import Message
from tests.loop.nursery import CALLS, TURNS, Nursery
from tests.loop.stories import check_history
from tests.support.cases import examples


def outcomes(directory: Path, run_id: str) -> dict[str, str]:
    """The outcome of each call, from the journal."""
    journal = SqliteJournal(directory / "runs.db")
    became = {record.id: record.outcome for record in list_calls(journal.read(run_id))}
    journal.close()
    return dict(became)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as forking:
        yield forking


def check_traces(directory: Path, run_id: str, outcome: dict[str, Any]) -> dict[str, str]:
    """Each call that is said to be completed has left one trace, and none has left two."""
    became = outcomes(directory, run_id)
    traces = (directory / run_id).read_text().split()
    assert sorted(became) == [f"t{turn}c{place}" for turn in range(TURNS) for place in range(CALLS)]
    assert set(became.values()) <= {"completed", "interrupted"}
    for id, what in became.items():
        assert traces.count(id) == 1 if what == "completed" else traces.count(id) <= 1
    messages = [Message.from_dict(message) for message in outcome["messages"]]
    check_history(messages)
    told = {message.tool_call_id: message.text for message in messages if message.role == "tool"}
    assert {id for id, text in told.items() if text == INTERRUPTED} == {
        id for id, what in became.items() if what == "interrupted"
    }
    assert outcome["text"] == f"turn {TURNS}"
    return became


class Killer:
    """Kills processes at any time, and starts them again until their run has come to its end."""

    def __init__(self, nursery: Nursery, directory: Path, rng: random.Random) -> None:
        self._nursery = nursery
        self._directory = directory
        self._rng = rng
        self._runs = 0
        self.killed = self.paused = 0
        self.became: list[str] = []

    def run(self, **options: Any) -> None:
        """One run, and what must be true of it at the end."""
        run_id = f"run-{self._runs}"
        self._runs += 1
        longest = 0.12  # grows, so that a slow machine makes progress
        while True:
            pid = self._nursery.start(self._directory, run_id, **options)
            time.sleep(self._rng.uniform(0.0, longest))
            os.kill(pid, signal.SIGKILL)
            outcome = self._nursery.outcome(self._directory, pid)
            if outcome is None:
                self.killed += 1
                longest *= 1.1
            elif "paused" in outcome:
                self.paused += 1
                options["paused"] = outcome["paused"]
            else:
                self.became += check_traces(self._directory, run_id, outcome).values()
                return


@pytest.mark.parametrize("way", ["run", "arun"])
def test_a_process_that_is_killed_at_any_time_does_nothing_twice(
    nursery: Nursery, tmp_path: Path, rng: random.Random, way: str
) -> None:
    killer = Killer(nursery, tmp_path, rng)
    while killer.killed < examples(6, 15):
        killer.run(way=way)
    assert "completed" in killer.became


@pytest.mark.parametrize("way", ["run", "arun"])
def test_a_process_that_is_killed_after_a_pause_makes_no_approved_call_twice(
    nursery: Nursery, tmp_path: Path, rng: random.Random, way: str
) -> None:
    killer = Killer(nursery, tmp_path, rng)
    while killer.killed < examples(3, 5):
        killer.run(way=way, asks=True)
    assert killer.paused >= 2


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ["run", "arun"])
@pytest.mark.parametrize("asks", [False, True])
def test_a_process_that_is_killed_very_often_does_nothing_twice(
    nursery: Nursery, tmp_path: Path, rng: random.Random, way: str, asks: bool
) -> None:
    killer = Killer(nursery, tmp_path, rng)
    while killer.killed < 100:
        killer.run(way=way, asks=asks)
    assert killer.became.count("completed") > killer.became.count("interrupted") > 0


def test_two_processes_with_the_same_run_do_nothing_twice(nursery: Nursery, tmp_path: Path, rng: random.Random) -> None:
    ends: list[str] = []
    for number in range(examples(4, 6)):
        run_id = f"run-{number}"
        first = nursery.start(tmp_path, run_id, way=("run", "arun")[number % 2], seconds=0.02)
        time.sleep(0.0 if number < 2 else rng.uniform(0.0, 0.1))
        second = nursery.start(tmp_path, run_id, seconds=0.02)
        outcomes_ = [nursery.outcome(tmp_path, pid) for pid in (first, second)]
        ends += [one.get("error", "done") if one is not None else "killed" for one in outcomes_]
        last = next((one for one in outcomes_ if one is not None and "error" not in one), None)
        if last is None:  # each had the other's way barred
            pid = nursery.start(tmp_path, run_id)
            last = nursery.outcome(tmp_path, pid)
        assert last is not None
        check_traces(tmp_path, run_id, last)
    assert set(ends) == {"JournalError", "done"}


def test_many_processes_begin_at_once(nursery: Nursery, tmp_path: Path) -> None:
    children = [nursery.start(tmp_path, f"run-{number}", seconds=0.0) for number in range(8)]
    ends = [nursery.outcome(tmp_path, pid) for pid in children]
    assert [end and end.get("text") for end in ends] == [f"turn {TURNS}"] * 8, ends


@pytest.mark.parametrize("most", [8_192, 40_000, 60_000, 80_000])
def test_a_full_disk_is_an_error_and_nothing_is_run_that_is_not_on_record(
    nursery: Nursery, tmp_path: Path, most: int
) -> None:
    file = tmp_path / "run"
    outcome = nursery.outcome(tmp_path, nursery.start(tmp_path, "run", most_bytes=most, seconds=0.0))
    assert outcome is not None
    assert outcome.get("error") == "JournalError", outcome
    traces = file.read_text().split() if file.exists() else []
    if most > 8_192:
        assert set(traces) <= set(outcomes(tmp_path, "run"))
    whole = nursery.outcome(tmp_path, nursery.start(tmp_path, "run", seconds=0.0))
    assert whole is not None
    check_traces(tmp_path, "run", whole)


def test_a_journal_works_after_a_fork(tmp_path: Path) -> None:
    program = """
import os, sys
from agent.loop import SqliteJournal

journal = SqliteJournal(sys.argv[1])
assert journal.write("r", "a", {})
journal._lock.acquire()  # as another thread might hold it
if (child := os.fork()) == 0:
    assert journal.write("r", "b", {}) and not journal.write("r", "a", {})
    sys.exit()
journal._lock.release()
assert os.waitpid(child, 0)[1] == 0
assert [entry.key for entry in journal.read("r")] == ["a", "b"]
journal.close()
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program, str(tmp_path / "runs.db")], check=True, timeout=30)
