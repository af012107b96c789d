"""Regular expressions, matched in a process that can be killed.

It is an interpreter that loads nothing but the standard library, runs the source of `matching`, and is handed text
through a pipe. The source is the one this program started with: what happens to files meanwhile does not matter.
"""

from __future__ import annotations

import json
import struct
import subprocess
import threading
from contextlib import suppress
from typing import Any, Self

from ..tools.base import ToolError
from ..tools.signal import Signal
from .interpreter import bare_command

LONGEST_PATTERN = 10_000
MEMORY = 512 << 20
"""Bytes that matching may take."""


class Matcher:
    """One pattern, for many texts, within a time."""

    def __init__(self, pattern: str, ignore_case: bool, seconds: float, signal: Signal) -> None:
        if len(pattern) > LONGEST_PATTERN:
            raise ToolError(f"The pattern is too long: no more than {LONGEST_PATTERN:,} characters.")
        self._pattern, self._ignore_case, self._seconds, self._signal = pattern, ignore_case, seconds, signal
        self._expired = False
        self._done = threading.Event()

    def __enter__(self) -> Self:
        limits = {"seconds": self._seconds, "memory": MEMORY}
        order = json.dumps({"pattern": self._pattern, "ignore_case": self._ignore_case, **limits})
        self._process = subprocess.Popen(  # noqa: S603 -- this interpreter, this package's source
            bare_command("matching.py", order),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
        )
        threading.Thread(target=self._end_in_time, name="agent-grep", daemon=True).start()
        try:
            self._answer()  # the pattern is one
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._process.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _end_in_time(self) -> None:
        waited = 0.0
        while waited < self._seconds and not self._signal.is_set():
            step = min(0.1, self._seconds - waited)
            if self._done.wait(step):
                return
            waited += step
        self._expired = True
        self._process.kill()

    def search(self, data: bytes, most: int) -> list[tuple[int, str]]:
        """Numbers and excerpts of the lines that match, no more than `most`."""
        assert self._process.stdin is not None
        with suppress(OSError):  # the answer says why
            self._process.stdin.write(struct.pack(">QQ", len(data), most) + data)
            self._process.stdin.flush()
        return [(line, words) for line, words in self._answer()]

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            if self._expired:
                raise ToolError(
                    f"The search took longer than {self._seconds:g} s and was stopped. "
                    "Use a simpler pattern, without nested repetitions, or search less."
                )
            raise ToolError("The pattern needs more memory or time than a search may take. Use a simpler one.")
        read = json.loads(answer)
        if "error" in read:
            raise ToolError(f"The pattern is not a regular expression: {read['error']}")
        return read["lines"]
