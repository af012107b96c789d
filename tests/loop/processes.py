"""Looking at processes: whether they are there, and whether they will soon be gone."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")


def is_gone(*pids: int) -> bool:
    """Whether these processes have ended, including zombies."""
    return not any(_is_alive(pid) for pid in pids)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def no_zombies() -> bool:
    """Whether this process has waited for all its children that have ended."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return True


def soon(condition: Callable[[], bool], seconds: float = 2.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def pids_in(place: Path) -> list[int]:
    """The processes that a tool wrote down, as soon as it has."""
    assert soon(place.exists, 20.0), "it has not begun"
    found: list[int] = json.loads(place.read_text())
    return found
