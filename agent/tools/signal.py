"""A flag that says "stop", raised once, seen from any thread and awaited from any event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress


class Signal:
    """As much of an event as tools need: `is_set`, `set`, and `await wait()`."""

    __slots__ = ("_event", "_listeners")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._listeners: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()
        while self._listeners:
            with suppress(IndexError, RuntimeError):  # another thread took it, or its loop has ended
                self._listeners.pop()()

    def block(self, timeout: float | None = None) -> bool:
        """Wait in a thread. False when the time is up."""
        return self._event.wait(timeout)

    async def wait(self) -> bool:
        import asyncio

        loop = asyncio.get_running_loop()
        heard: asyncio.Future[bool] = loop.create_future()

        def hear() -> None:
            if not heard.done():
                heard.set_result(True)

        def listener() -> None:
            loop.call_soon_threadsafe(hear)

        self._listeners.append(listener)
        try:
            if self._event.is_set():  # asked after listening, or it could be set in between
                return True
            return await heard
        finally:
            with suppress(ValueError):
                self._listeners.remove(listener)
