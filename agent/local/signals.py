"""The engine installs signal handlers of its own when it starts, and with them Ctrl-C would end the engine instead of
raising KeyboardInterrupt. Here they are put back.

Python lets only its main thread set handlers, and models are loaded by whoever asks first. So this asks the C library.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_ROOM = 512
"""More bytes than any system's `struct sigaction` has."""


@contextmanager
def kept_signals() -> Iterator[None]:
    """Afterwards SIGINT and SIGTERM are handled as before. Where there is no such call, nothing is done."""
    try:
        import ctypes

        sigaction = ctypes.CDLL(None).sigaction
    except (ImportError, AttributeError, OSError, TypeError):
        yield
        return
    kept = {number: ctypes.create_string_buffer(_ROOM) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, action in kept.items():
        sigaction(int(number), None, action)
    try:
        yield
    finally:
        for number, action in kept.items():
            sigaction(int(number), action, None)
