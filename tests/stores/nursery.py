"""Processes that start in a few milliseconds: forks of one that has imported everything already.

They share one pipe, and a line is written in one piece. So when the end of a process is on record, all that it has said
stands before it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Nursery:
    """Starts processes and hears what they say."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.stores.nursery"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._said: dict[int, list[str]] = {}

    def start(self, task: str, *args: Any) -> int:
        """The number of the process, which has begun by now."""
        self._send({"task": task, "args": args})
        return int(self._hear("begun")[0])

    def wait(self, child: int) -> tuple[int, list[str]]:
        """How a process ended (0, or minus the signal that killed it), and what it had said."""
        self._send({"wait": child})
        _, status = self._hear("ended")
        return os.waitstatus_to_exitcode(int(status)), self._said.pop(child, [])

    def hear(self, child: int, lines: int) -> None:
        """Wait until a process has said so many lines."""
        while len(self._said.get(child, ())) < lines:
            self._read()

    def kill(self, child: int) -> list[str]:
        """Return the output of a process that was killed."""
        os.kill(child, signal.SIGKILL)
        status, said = self.wait(child)
        assert status == -signal.SIGKILL, said
        return said

    def run(self, task: str, *args: Any) -> list[str]:
        status, said = self.wait(self.start(task, *args))
        assert status == 0, said
        return said

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def _send(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def _hear(self, word: str) -> list[str]:
        """Read until the nursery itself says that word."""
        while (said := self._read()) is None:
            pass
        assert said[0] == word, said
        return said[1:]

    def _read(self) -> list[str] | None:
        """Return the next line of the nursery; lines of other processes are kept."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the nursery has died"
        speaker, _, said = line.rstrip("\n").partition(" ")
        if speaker == "nursery":
            return said.split()
        self._said.setdefault(int(speaker), []).append(said)
        return None


@contextlib.contextmanager
def nursery() -> Iterator[Nursery]:
    running = Nursery()
    try:
        yield running
    finally:
        running.close()


def main() -> None:
    from tests.stores import tasks

    def say(*words: object) -> None:
        os.write(1, ("nursery " + " ".join(map(str, words)) + "\n").encode())

    def say_in_child(*words: object) -> None:
        os.write(1, (f"{os.getpid()} " + " ".join(map(str, words)) + "\n").encode())

    tasks.say = say_in_child
    for line in sys.stdin:
        command = json.loads(line)
        if "wait" in command:
            say("ended", *os.waitpid(command["wait"], 0))
        elif child := os.fork():
            say("begun", child)
        else:
            try:
                tasks.TASKS[command["task"]](*command["args"])
            except BaseException:
                say_in_child("failed", traceback.format_exc().replace("\n", " | ")[-3000:])
                os._exit(1)
            os._exit(0)


if __name__ == "__main__":
    main()
