"""One call of a tool, as a flow: on a loop if it is async, else in a thread or process that can be left behind.

It knows how a tool is run and what can go wrong with user code: whatever a tool raises, be it an attempt to end the
program, is the failure of that call. Only a KeyboardInterrupt is not: it is the user's wish, and ends the run. Which
calls are made, in which order and within which time, is decided by whoever runs the flow.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from dataclasses import replace
from inspect import isawaitable, iscoroutine
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..engine.context import ambient_deadline
from ..engine.flow import Flow, Invoke, Now
from ..types import ToolResult
from .base import FlowTool, Signal, Suspended, Tool, ToolContext, ToolError
from .results import ToolFailed, error_text, rendered

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from .isolation import ChildProcess


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


MAX_ABANDONED = 64
"""How many threads may hang in tools that were given up before no more are started."""
MOST_REPORTS = 10_000
"""Reports that a call may make at once. Later ones are shown as far as there are no more of them than..."""
REPORTS_PER_SECOND = 1_000
"""...these; the others are left out. Nobody could look at them, and results of other calls would wait behind them."""

_alive: set[Running] = set()
_counting = threading.Lock()


class Running:
    """One call, as whoever makes it holds it: it can be given up at any time, from any thread."""

    __slots__ = ("_child", "given_up", "over", "signal")

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self.given_up = False
        self.over = False
        """Set when the call has come to an end: there will be news of it."""
        self._child: ChildProcess | None = None

    def give_up(self) -> None:
        """Nobody waits any more. A process is killed, a coroutine is cancelled by the driver, a thread is left."""
        self.given_up = True
        self.signal.set()
        if self._child is not None:
            self._child.kill()

    def in_process(self, child: ChildProcess) -> ChildProcess:
        self._child = child
        if self.given_up:
            child.kill()
        return child


def abandoned() -> int:
    """How many threads hang just now in calls that were given up."""
    with _counting:
        return sum(running.given_up for running in _alive)


def performed(
    running: Running, tool: Tool, arguments: Any, context: ToolContext[Any], timeout: float, limit: int
) -> Flow[ToolResult | Suspended]:
    """Run a tool; what it returns comes as a result, what it raises as an exception."""
    context = replace(context)  # what a tool does to its context is of no consequence to anybody else
    if isinstance(tool, FlowTool):
        call_id, name = context.call_id, context.tool_name
        value = yield from tool.steps(arguments, context)
        return value if isinstance(value, Suspended) else rendered(value, call_id, name, limit)
    result: ToolResult
    if tool.isolation == "process":
        from .isolation import ChildProcess  # lazy: import cycle

        child = running.in_process(ChildProcess(tool, context, timeout, limit))
        result = yield from Invoke(child.run, blocking=True, reports=True)
        return result
    call = _Call(running, tool, arguments, context, timeout, limit)
    if tool.is_async:
        result = yield from Invoke(call.run_async, blocking=True, reports=True)
        return result
    if abandoned() >= MAX_ABANDONED:
        raise ToolError(f"The tool was not started: {MAX_ABANDONED} others hang, and nothing can stop them.")
    result = yield from Invoke(call.run_blocking, blocking=True, reports=True)
    return result


def tried(
    running: Running, tool: Tool, arguments: Any, context: ToolContext[Any], timeout: float, limit: int, until: float
) -> Flow[ToolResult | Suspended]:
    """Run a tool, and again after it raised, as often as it says; not after `until`, on the driver's clock."""
    try:
        for _ in range(tool.retries):
            try:
                return (yield from performed(running, tool, arguments, context, timeout, limit))
            except ToolError:
                raise  # it has said what the model should know
            except Exception:
                if running.given_up or (yield from Now()) >= until:
                    raise
                arguments = tool.check(context.arguments)  # it may have changed those that it had
        return (yield from performed(running, tool, arguments, context, timeout, limit))
    finally:
        running.over = True


class _Call:
    """A tool about to be run in this process."""

    __slots__ = ("_arguments", "_context", "_id", "_limit", "_name", "_running", "_timeout", "_tool")

    def __init__(
        self, running: Running, tool: Tool, arguments: Any, context: ToolContext[Any], timeout: float, limit: int
    ) -> None:
        self._running = running
        self._tool = tool
        self._arguments = arguments
        self._context = context
        self._id, self._name = context.call_id, context.tool_name
        self._timeout = timeout
        self._limit = limit

    def run_blocking(self, *, report: Any) -> Any:
        with _counting:
            _alive.add(self._running)
        try:
            with _Contained():
                value = self._begun(report)
                if not isawaitable(value):
                    return rendered(value, self._id, self._name, self._limit)
        finally:
            with _counting:
                _alive.discard(self._running)
        if self._running.given_up:
            if iscoroutine(value):
                value.close()  # there may be no loop any more to await it on
            raise ToolError("The call was given up.")
        return self._awaited(value)  # a plain function that hands out a coroutine

    async def run_async(self, *, report: Any) -> ToolResult:
        with _Contained():
            value = self._begun(report)
        return await self._awaited(value)

    def _begun(self, report: Any) -> Any:
        context = self._context
        context.report = Reports(report, self._limit)
        context.deadline = min(ambient_deadline.get(), monotonic() + self._timeout)
        ambient_deadline.set(context.deadline)  # an agent that the tool asks must not go on when nobody waits for it
        return self._tool.run(self._arguments, context)

    async def _awaited(self, value: Awaitable[Any]) -> ToolResult:
        from asyncio import CancelledError, current_task

        task = current_task()
        awaited = Leavable(value, lambda: self._running.given_up)

        def is_from_outside(error: BaseException) -> bool:
            return awaited.closed or (isinstance(error, CancelledError) and task is not None and task.cancelling() > 0)

        try:
            with _Contained(is_from_outside):
                return rendered(await awaited, self._id, self._name, self._limit)
        except Exception:
            if self._running.given_up and task is not None and task.cancelling():
                raise CancelledError from None  # nobody would ever look at what it raised, and asyncio complains then
            raise


class Reports:
    """`context.report`: what a tool shows before its result, as far as somebody could look at it."""

    __slots__ = ("_left", "_limit", "_report", "_since")

    def __init__(self, report: Callable[[Any], None], limit: int) -> None:
        self._report = report
        self._limit = limit
        self._left = float(MOST_REPORTS)
        self._since = monotonic()

    def __call__(self, partial: Any) -> None:
        now = monotonic()
        self._left = min(MOST_REPORTS, self._left + (now - self._since) * REPORTS_PER_SECOND)
        self._since = now
        if self._left >= 1:
            self._left -= 1
            self._report(partial[: self._limit] if isinstance(partial, str) else partial)


class _Contained:
    """Whatever is raised in here is the failure of one call, told in words that are found here and now."""

    __slots__ = ("_is_from_outside",)

    def __init__(self, is_from_outside: Callable[[BaseException], bool] = lambda error: False) -> None:
        self._is_from_outside = is_from_outside

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, KeyboardInterrupt) or self._is_from_outside(error):
            return
        if isinstance(error, Exception):
            words = error_text(error)
            raise (ToolError(words) if isinstance(error, ToolError) else ToolFailed(words)) from error
        if isinstance(error, SystemExit):
            raise ToolError("The tool tried to end the program; that was prevented.") from error
        raise ToolError(f"The tool failed with {type(error).__name__}.") from error
