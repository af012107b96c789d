"""Coroutines of tools, which a task can be rid of.

A task cannot be ended from outside if its coroutine swallows every cancellation: it would keep `asyncio.run` from
returning, and the program from ending. Here the coroutine is driven by hand, so that one can stop to do so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import TimerHandle

PATIENCE = 5.0
"""Seconds after which a coroutine that does not heed its cancellation is closed."""


class Leavable:
    """Awaits something as `await` does, until nobody wants it any more.

    After `is_given_up` says so, a cancellation is passed on once, and the coroutine may clean up. Cancelled once more,
    it is closed and not asked again: by then the program wants to end, or it has had its time.
    """

    __slots__ = ("_coroutine", "_is_given_up", "closed")

    def __init__(self, awaitable: Awaitable[Any], is_given_up: Callable[[], bool]) -> None:
        self._coroutine = _as_coroutine(awaitable)
        self._is_given_up = is_given_up
        self.closed = False
        """Whether the task was thrown away in the middle of it."""

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine = self._coroutine
        again: TimerHandle | None = None
        resume = _send(coroutine, None)
        try:
            while True:
                try:
                    awaited = resume()
                except StopIteration as end:
                    return end.value
                try:
                    sent = yield awaited
                except GeneratorExit:
                    self.closed = True
                    _leave(coroutine, closing=again is None)
                    raise
                except BaseException as error:
                    if again is not None:
                        _leave(coroutine, closing=True)
                        raise
                    if self._is_given_up():
                        again = _cancel_later()
                    resume = _throw(coroutine, error)
                else:
                    resume = _send(coroutine, sent)
        finally:
            if again is not None:
                again.cancel()


def _send(coroutine: Coroutine[Any, Any, Any], value: Any) -> Callable[[], Any]:
    return lambda: coroutine.send(value)


def _throw(coroutine: Coroutine[Any, Any, Any], error: BaseException) -> Callable[[], Any]:
    return lambda: coroutine.throw(error)


def _cancel_later() -> TimerHandle:
    from asyncio import current_task, get_running_loop

    task = current_task()
    assert task is not None
    return get_running_loop().call_later(PATIENCE, task.cancel)


def _leave(coroutine: Any, *, closing: bool) -> None:
    """Close a coroutine and all that it awaits, or at least never come back to it."""
    awaited = [coroutine]
    while (inner := getattr(awaited[-1], "cr_await", None)) is not None:
        awaited.append(inner)
    if closing:
        with suppress(Exception):
            coroutine.close()
    for each in awaited:
        if getattr(each, "cr_frame", None) is not None:
            _keep_for_ever(each)


def _keep_for_ever(stubborn: Any) -> None:
    """Python closes what it finalizes. What swallows that, too, would then run on, at the end of the program without a
    loop to wait in: for ever, if it tries again and again.
    """
    with suppress(ImportError):
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(stubborn))


async def _as_coroutine(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
