"""Fork-safe locks, and the check that a resource belongs to this process.

Locks are plain `threading.Lock` objects in `with` blocks: with any wrapper, an interrupt between acquiring and guarding
would leave the lock held forever.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Protocol
from weakref import WeakSet

from .. import errors

_fork_safe: WeakSet[ForkSafe] = WeakSet()


class ForkSafe:
    """Owns a `_lock`. A forked child replaces it, because a thread of the parent may have held it."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _fork_safe.add(self)


class _Process:
    """This process. `forks` differs between a parent and its forked children."""

    forks: int = 0


PROCESS = _Process()


def foreign_call_error() -> errors.ConfigurationError:
    """The error for a call of the parent in a forked child, which would take data of the parent."""
    return errors.ConfigurationError(
        "This call was started before the process forked, and belongs to the parent process.",
        field="fork",
        fix="Start calls and streams in the process that uses them.",
    )


_FORK_TIMEOUT = 10.0
"""Seconds that a fork waits for the lock of a resource."""


class ForkClosable(Protocol):
    """A resource that is opened on demand under a lock, such as a database."""

    _lock: Any

    def _close_for_fork(self) -> None: ...


_closable: WeakSet[Any] = WeakSet()
_locked: list[Any] = []


def close_before_fork(resource: ForkClosable) -> None:
    """Close a resource before every fork."""
    _closable.add(resource)


def _before() -> None:
    for resource in list(_closable):
        if resource._lock.acquire(timeout=_FORK_TIMEOUT):
            _locked.append(resource)
            resource._close_for_fork()


def _after_in_parent() -> None:
    while _locked:
        _locked.pop()._lock.release()


def _after_in_child() -> None:
    PROCESS.forks += 1
    _locked.clear()
    for resource in _closable:
        resource._lock = threading.RLock()
    for owner in _fork_safe:
        owner._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
