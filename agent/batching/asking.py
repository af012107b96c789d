"""Requests under way on one event loop, each in a task of its own. What comes of one is told when it is there.

It neither reads the input nor counts: how many may be under way is the business of whoever starts them.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .. import errors
from ..drivers.limits import GRACE
from .plan import Ask
from .values import BatchItem


class Asking:
    """Asks, on a loop; use it on that loop's thread.

    Args:
        ask: Asks one request.
        context: The context variables of every request; each gets a copy of its own.
        tell: Called with each item, on the loop's thread. After `cancel`, it is not.
    """

    __slots__ = ("_arrived", "_ask", "_cancelled", "_context", "_loop", "_tasks", "_tell")

    def __init__(self, ask: Ask, context: contextvars.Context, tell: Callable[[BatchItem], object]) -> None:
        self._ask = ask
        self._context = context
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrived: deque[tuple[int, Any]] = deque()
        self._cancelled = False

    def start(self, index: int, request: Any) -> None:
        """Begin to ask. A request that cannot be asked is an item with an error, too."""
        if not self._cancelled:
            # A task for each: what one leaves in its context variables, the next one must not see.
            task = self._loop.create_task(self._one(index, request), context=self._context.copy())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def start_soon(self, index: int, request: Any) -> None:
        """As `start`, from another thread."""
        self._arrived.append((index, request))
        if len(self._arrived) == 1:  # else the loop is on its way; to wake it costs more than to ask
            with suppress(RuntimeError):  # it has ended: somebody has closed the batch meanwhile
                self._loop.call_soon_threadsafe(self._start_arrived)

    def _start_arrived(self) -> None:
        while self._arrived:
            self.start(*self._arrived[0])
            self._arrived.popleft()

    def cancel(self) -> None:
        """End what is under way; nothing is told of it."""
        self._cancelled = True
        for task in self._tasks:
            task.cancel()

    def abandon(self) -> None:
        """As `cancel`, from a finalizer or another thread."""
        with suppress(RuntimeError):  # the loop has ended, and all of this with it
            self._loop.call_soon_threadsafe(self.cancel)

    async def ended(self) -> None:
        """Wait until all is over; what swallows its cancellation is left behind."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=GRACE + 0.25)

    async def _one(self, index: int, request: Any) -> None:
        # There is no variable for the item: error, traceback, this frame and the item would keep each other alive.
        try:
            response = await self._ask(request)
        except BaseException as error:
            # Whatever it is. Raised out of a task, some would end the loop, and of others nobody would ever hear.
            if not self._cancelled:
                self._tell(BatchItem(index, request, error=_as_error(error)))
        else:
            if not self._cancelled:
                self._tell(BatchItem(index, request, response))


def _as_error(raised: BaseException) -> Exception:
    if isinstance(raised, Exception):
        return raised
    if isinstance(raised, asyncio.CancelledError):
        return errors.Aborted("The request was cancelled from within.")
    return errors.Aborted(f"Code of yours raised {type(raised).__name__}.")
