"""Files that must not be open across a fork, closed before it and opened again by whoever needs them.

A child that inherits a connection to an SQLite file takes no locks of its own in it, also after it has opened another:
what it commits can be lost. So the process that forks lets go first, when nobody is in the middle of something.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Protocol
from weakref import WeakSet

_PATIENCE = 10.0
"""Seconds that a fork waits for other threads to finish what they are doing."""


class Holder(Protocol):
    """Has something open, under a lock."""

    _lock: Any

    def _let_go(self) -> None:
        """Close it. It is opened again when it is needed."""


_holders: WeakSet[Any] = WeakSet()
_held: list[Any] = []


def let_go_before_forks(holder: Holder) -> None:
    """Have it closed before every fork, for as long as it lives."""
    _holders.add(holder)


def _before() -> None:
    for holder in list(_holders):
        if holder._lock.acquire(timeout=_PATIENCE):
            _held.append(holder)
            holder._let_go()


def _after_in_parent() -> None:
    while _held:
        _held.pop()._lock.release()


def _after_in_child() -> None:
    _held.clear()
    for holder in _holders:
        holder._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
