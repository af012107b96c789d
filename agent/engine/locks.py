"""State that is changed in a few steps, under a lock: short, never held across a yield, and free after a fork.

The lock is a plain `threading.Lock` in a `with` block, and nothing of ours around it: an interrupt that comes between
taking and guarding would leave a lock of our own making held for ever.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Protocol
from weakref import WeakSet

_all: WeakSet[ForkSafe] = WeakSet()


class ForkSafe:
    """Has a `_lock`. A child process, whose parent may have held it in another thread, gets a new one."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _all.add(self)


def _renew() -> None:
    for locked in _all:
        locked._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


_PATIENCE = 10.0
"""Seconds that a fork waits for other threads to finish what they are doing."""


class Holder(Protocol):
    """Has something open, under a lock."""

    _lock: Any

    def _close_for_fork(self) -> None:
        """Close it. It is opened again when it is needed."""


_holders: WeakSet[Any] = WeakSet()
_held: list[Any] = []


def close_before_fork(holder: Holder) -> None:
    """Have it closed before every fork, for as long as it lives."""
    _holders.add(holder)


def _before() -> None:
    for holder in list(_holders):
        if holder._lock.acquire(timeout=_PATIENCE):
            _held.append(holder)
            holder._close_for_fork()


def _after_in_parent() -> None:
    while _held:
        _held.pop()._lock.release()


def _after_in_child() -> None:
    _held.clear()
    for holder in _holders:
        holder._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
