"""A child process of any of our files sees, and keeps, what it should: nothing is open across a fork."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.loop import SqliteJournal
from agent.middleware import SqliteResponseStore
from agent.stores import SqliteStore

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def in_a_child(act: Callable[[], None]) -> int:
    """Do something in a forked process; its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def journal(path: Path) -> tuple[Any, Callable[[Any, int], None], Callable[[Any], int]]:
    made = SqliteJournal(path)
    return made, lambda one, n: assert_(one.write("run", f"key{n}", {})), lambda one: len(one.read("run"))


def cache(path: Path) -> tuple[Any, Callable[[Any, int], None], Callable[[Any], int]]:
    made = SqliteResponseStore(path)
    return (
        made,
        lambda one, n: one.put(f"key{n}", "text", 0.0, None),
        lambda one: sum(one.get(f"key{n}", 0.0) is not None for n in range(20)),
    )


def sessions(path: Path) -> tuple[Any, Callable[[Any, int], None], Callable[[Any], int]]:
    made = SqliteStore(path)
    return made, lambda one, n: assert_(one.create(f"s{n}").version == 1), lambda one: len(one.list(limit=50))


def assert_(true: bool) -> None:
    assert true


@pytest.mark.parametrize("kind", [journal, cache, sessions])
def test_parent_and_child_write_in_turns_and_nothing_is_lost(kind: Any, tmp_path: Path) -> None:
    held, write, count = kind(tmp_path / "file.db")
    write(held, 0)
    assert held._connection is not None
    for number in range(1, 6):
        assert in_a_child(lambda number=number: write(held, number)) == 0  # type: ignore[misc]
        write(held, 10 + number)
    assert count(held) == 11
    assert in_a_child(lambda: assert_(held._connection is None)) == 0
    held.close()
