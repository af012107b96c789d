"""Exit of programs whose tools hang: at the end or after Ctrl-C, without leftovers."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.loop.processes import is_gone, needs_proc, pids_in, soon

ROOT = Path(__file__).parents[2]
pytestmark = [needs_proc, pytest.mark.timing]


class Program:
    """`tests.loop.hung_program`, running."""

    def __init__(self, way: str, tool: str, seconds: float, place: Path) -> None:
        self.name = f"{way}-{tool}"
        self.tool = tool
        self.place = place
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.loop.hung_program", way, tool, str(seconds), str(place)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: dict[str, float] = {}
        """Output lines with times."""
        self.complaints = ""
        self.end = 0.0
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        for line in self.process.stdout:
            what, _, when = line.rpartition(" ")
            self.said[what] = float(when)
        self.complaints = self.process.stderr.read()
        self.process.wait()
        self.end = time.monotonic()

    def wait_until_it_hangs(self) -> None:
        if self.tool == "process":
            pids_in(self.place)
        else:
            assert soon(lambda: "begun" in self.said, 20.0), self.name

    def wait(self) -> None:
        self._listener.join(20.0)
        assert self.end, f"{self.name} does not end"

    def stop(self) -> None:
        self.process.kill()
        self._listener.join()
        self.process.__exit__(None, None, None)


@contextmanager
def programs(place: Path, seconds: float, *kinds: tuple[str, str]) -> Iterator[Sequence[Program]]:
    with ExitStack() as stack:
        started = [Program(*kind, seconds, place / f"{kind[0]}-{kind[1]}") for kind in kinds]
        for program in started:
            stack.callback(program.stop)
        yield started


def test_a_program_ends_although_a_tool_hangs(tmp_path: Path) -> None:
    kinds = (
        ("run", "sleeps"),
        ("arun", "waits"),
        ("run", "is_busy"),
        ("run", "swallows"),
        ("arun", "swallows"),
        ("run", "blocks"),
    )
    with programs(tmp_path, 0.2, *kinds) as started:
        for program in started:
            program.wait()
            said = program.said
            assert (program.process.returncode, program.complaints) == (0, ""), program.name
            returned = said.get("run returned", said["returned"])
            assert returned - said["begun"] < 10.0, f"{program.name}: its tool hangs for a minute"
            assert program.end - returned < 10.0, program.name


INTERRUPTED = (
    ("run", "sleeps"),
    ("arun", "sleeps"),
    ("run_stream", "waits"),
    ("arun_stream", "waits"),
    ("arun", "swallows"),
    ("run", "process"),
    ("arun", "process"),
)


def test_ctrl_c_ends_a_program_whose_tool_hangs(tmp_path: Path) -> None:
    with programs(tmp_path, 60.0, *INTERRUPTED) as started:
        for program in started:
            program.wait_until_it_hangs()
        began = time.monotonic()
        for program in started:
            program.process.send_signal(signal.SIGINT)
        for program in started:
            program.wait()
            assert program.end - began < 10.0, program.name
            assert "returned" not in program.said
            assert program.complaints.rstrip().endswith("KeyboardInterrupt"), f"{program.name}: {program.complaints}"
            assert program.process.returncode == -signal.SIGINT, program.name
            if program.tool == "process":
                assert soon(lambda place=program.place: is_gone(*pids_in(place))), program.name  # type: ignore[misc]


def test_the_process_of_a_tool_ends_with_a_program_that_is_killed(tmp_path: Path) -> None:
    with programs(tmp_path, 60.0, ("run", "process")) as (program,):
        program.wait_until_it_hangs()
        program.process.kill()
        program.wait()
        assert soon(lambda: is_gone(*pids_in(program.place)))
