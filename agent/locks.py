"""State that is changed in a few steps, under a lock: short, never held across a yield, and free after a fork.

The lock is a plain `threading.Lock` in a `with` block, and nothing of ours around it: an interrupt that comes between
taking and guarding would leave a lock of our own making held for ever.
"""

from __future__ import annotations

import os
import threading
from weakref import WeakSet

_all: WeakSet[Locked] = WeakSet()


class Locked:
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
