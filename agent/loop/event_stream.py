"""A queue of events with a result at its end, for whoever produces events in one place and reads them in another.

It belongs to no event loop until somebody waits, and may be filled from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

from ..looping.shapes import AgentMessage


class EventStream:
    """Push events in, iterate over them with `async for`, and `await result()`.

    Args:
        is_end_event: Whether an event is the last one.
        get_result: The result, from that event.
    """

    def __init__(
        self, is_end_event: Callable[[Any], bool], get_result: Callable[[Any], Sequence[AgentMessage]]
    ) -> None:
        self._is_end_event = is_end_event
        self._get_result = get_result
        self._events: deque[Any] = deque()
        self._result: Sequence[AgentMessage] | None = None
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._lock = threading.Lock()

    def push(self, event: Any) -> None:
        """Add an event. What comes after the end is dropped."""
        with self._lock:
            if self._result is not None:
                return
            self._events.append(event)
            if self._is_end_event(event):
                self._result = self._get_result(event)
        self._wake()

    def end(self, result: Sequence[AgentMessage]) -> None:
        """Say that no more will come. A second end changes nothing."""
        with self._lock:
            if self._result is None:
                self._result = result
        self._wake()

    async def result(self) -> Sequence[AgentMessage]:
        """What the end brought; waits for it. Events need not be read for that."""
        while self._result is None:
            await self._wait(lambda: self._result is not None)
        return self._result

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        while True:
            with suppress(IndexError):
                return self._events.popleft()
            if self._result is not None and not self._events:
                raise StopAsyncIteration
            await self._wait(lambda: bool(self._events) or self._result is not None)

    async def _wait(self, is_there: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        heard: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if is_there():
                return
            self._waiting.append((loop, heard))
        try:
            await heard
        finally:
            with self._lock, suppress(ValueError):
                self._waiting.remove((loop, heard))

    def _wake(self) -> None:
        with self._lock:
            waiting = list(self._waiting)
        for loop, heard in waiting:
            with suppress(RuntimeError):  # that loop has ended
                loop.call_soon_threadsafe(_settle, heard)


def _settle(heard: asyncio.Future[None]) -> None:
    if not heard.done():
        heard.set_result(None)
