"""Execution of one tool call as a flow: on the event loop, in a thread, or in a process.

Whatever a tool raises, including SystemExit, is the failure of its call; only KeyboardInterrupt ends the run. The
caller decides which calls run, in which order, and with which timeout.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import isawaitable, iscoroutine
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..engine.context import ambient_deadline, run_validation
from ..engine.flow import Flow, Invoke, Now
from ..types import ToolResult
from .base import FlowTool, Signal, Suspended, Tool, ToolContext, ToolError
from .results import ToolFailed, error_text, render_result

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from .isolation import ChildProcess


CANCELLATION_GRACE = 5.0
"""Seconds a cancelled coroutine has for cleanup before it is closed."""


class CancellableAwaitable:
    """Await a coroutine of user code that may ignore its cancellation.

    After `is_cancelled` returns true, the first cancellation is passed on, and the coroutine may clean up. At the
    second one it is closed: the program ends, or the grace period is over.
    """

    __slots__ = ("_coroutine", "_is_given_up", "closed")

    def __init__(self, awaitable: Awaitable[Any], is_cancelled: Callable[[], bool]) -> None:
        self._coroutine = _as_coroutine(awaitable)
        self._is_given_up = is_cancelled
        self.closed: bool = False
        """Whether the task was closed while it waited."""

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine = self._coroutine
        timer: TimerHandle | None = None
        resume: Callable[[], Any] = partial(coroutine.send, None)
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
                    _abandon(coroutine, closing=timer is None)
                    raise
                except BaseException as error:
                    if timer is not None:
                        _abandon(coroutine, closing=True)
                        raise
                    if self._is_given_up():
                        timer = _schedule_cancellation()
                    resume = partial(coroutine.throw, error)
                else:
                    resume = partial(coroutine.send, sent)
        finally:
            if timer is not None:
                timer.cancel()


def _schedule_cancellation() -> TimerHandle:
    from asyncio import current_task, get_running_loop  # lazy: sync programs need no event loop

    task = current_task()
    assert task is not None
    return get_running_loop().call_later(CANCELLATION_GRACE, task.cancel)


def _abandon(coroutine: Any, *, closing: bool) -> None:
    """Close a coroutine and everything it awaits, or make sure that it never resumes."""
    awaited = [coroutine]
    while (inner := getattr(awaited[-1], "cr_await", None)) is not None:
        awaited.append(inner)
    if closing:
        with suppress(Exception):
            coroutine.close()
    for each in awaited:
        if getattr(each, "cr_frame", None) is not None:
            _keep_alive_forever(each)


def _keep_alive_forever(stubborn: Any) -> None:
    """Leak a coroutine that ignores its closing.

    Python closes coroutines on finalization. One that catches even that could then loop forever at interpreter exit.
    """
    with suppress(ImportError):
        import ctypes  # lazy: only for coroutines that refuse to end

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(stubborn))


async def _as_coroutine(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


MAX_ABANDONED = 64
"""Number of abandoned threads above which no more tools are started in threads."""
MAX_REPORTS = 10_000
"""Burst limit of partial results per call."""
REPORTS_PER_SECOND = 1_000
"""Rate limit of partial results per call. Excess reports are dropped, so that they do not delay other results."""

_alive: set[RunningCall] = set()
_counting = threading.Lock()


class RunningCall:
    """Handle of an executing call. It can be cancelled at any time, from any thread."""

    __slots__ = ("_child", "cancelled", "finished", "signal")

    def __init__(self, signal: Signal) -> None:
        self.signal: Signal = signal
        self.cancelled: bool = False
        self.finished: bool = False
        """Whether the tool has returned, so that an event will follow."""
        self._child: ChildProcess | None = None

    def cancel(self) -> None:
        """Cancel the call: kill its process, let the driver cancel its coroutine, or abandon its thread."""
        self.cancelled = True
        self.signal.set()
        if self._child is not None:
            self._child.kill()

    def attach_process(self, child: ChildProcess) -> ChildProcess:
        self._child = child
        if self.cancelled:
            child.kill()
        return child


def count_abandoned_threads() -> int:
    """Return the number of threads that hang in cancelled calls."""
    with _counting:
        return sum(running.cancelled for running in _alive)


def run_tool(
    running: RunningCall, tool: Tool, arguments: Any, context: ToolContext[Any], timeout: float, limit: int
) -> Flow[ToolResult | Suspended]:
    """Run a tool once. Its return value becomes a result; its exception is raised."""
    context = replace(context)  # the tool may change its own copy
    if isinstance(tool, FlowTool):
        call_id, name = context.call_id, context.tool_name
        value = yield from tool.steps(arguments, context)
        if isinstance(value, Suspended):
            return value
        return render_result(value, call_id, name, limit, tool.truncation)
    result: ToolResult
    if tool.isolation == "process":
        from .isolation import ChildProcess  # lazy: import cycle

        child = running.attach_process(ChildProcess(tool, context, timeout, limit))
        result = yield from Invoke(child.run, blocking=True, reports=True)
        return result
    call = _Call(running, tool, arguments, context, timeout, limit)
    if tool.is_async:
        result = yield from Invoke(call.run_async, blocking=True, reports=True)
        return result
    if count_abandoned_threads() >= MAX_ABANDONED:
        raise ToolError(f"The tool was not started: {MAX_ABANDONED} earlier calls hang in threads.")
    result = yield from Invoke(call.run_blocking, blocking=True, reports=True)
    return result


def run_with_retries(
    running: RunningCall,
    tool: Tool,
    arguments: Any,
    context: ToolContext[Any],
    timeout: float,
    limit: int,
    until: float,
) -> Flow[ToolResult | Suspended]:
    """Run a tool with its retries. No retry starts after `until`, on the driver's clock."""
    try:
        for _ in range(tool.retries):
            try:
                return (yield from run_tool(running, tool, arguments, context, timeout, limit))
            except ToolError:
                raise  # its message is for the model
            except Exception:
                if running.cancelled or (yield from Now()) >= until:
                    raise
                # The tool may have changed its arguments.
                arguments = yield from run_validation(tool.check, context.arguments, seconds=timeout)
        return (yield from run_tool(running, tool, arguments, context, timeout, limit))
    finally:
        running.finished = True


class _Call:
    """A call of a tool in this process."""

    __slots__ = ("_arguments", "_context", "_id", "_limit", "_name", "_running", "_timeout", "_tool")

    def __init__(
        self, running: RunningCall, tool: Tool, arguments: Any, context: ToolContext[Any], timeout: float, limit: int
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
            with _ErrorBoundary():
                value = self._start(report)
                if not isawaitable(value):
                    return self._render(value)
        finally:
            with _counting:
                _alive.discard(self._running)
        if self._running.cancelled:
            if iscoroutine(value):
                value.close()  # the event loop may have ended
            raise ToolError("The call was cancelled.")
        return self._await(value)  # a sync function that returned a coroutine

    async def run_async(self, *, report: Any) -> ToolResult:
        with _ErrorBoundary():
            value = self._start(report)
        return await self._await(value)

    def _start(self, report: Any) -> Any:
        context = self._context
        context.report = ProgressReporter(report, self._limit)
        context.deadline = min(ambient_deadline.get(), monotonic() + self._timeout)
        ambient_deadline.set(context.deadline)  # also limits agents that the tool calls
        return self._tool.run(self._arguments, context)

    def _render(self, value: Any) -> ToolResult:
        return render_result(value, self._id, self._name, self._limit, self._tool.truncation)

    async def _await(self, value: Awaitable[Any]) -> ToolResult:
        from asyncio import CancelledError, current_task  # lazy: sync programs need no event loop

        task = current_task()
        awaited = CancellableAwaitable(value, lambda: self._running.cancelled)

        def is_external(error: BaseException) -> bool:
            return awaited.closed or (isinstance(error, CancelledError) and task is not None and task.cancelling() > 0)

        try:
            with _ErrorBoundary(is_external):
                return self._render(await awaited)
        except Exception:
            if self._running.cancelled and task is not None and task.cancelling():
                raise CancelledError from None  # asyncio would log an exception that is never retrieved
            raise


class ProgressReporter:
    """Rate-limited `context.report`."""

    __slots__ = ("_left", "_limit", "_report", "_since")

    def __init__(self, report: Callable[[Any], None], limit: int) -> None:
        self._report = report
        self._limit = limit
        self._left = float(MAX_REPORTS)
        self._since = monotonic()

    def __call__(self, partial: Any) -> None:
        now = monotonic()
        self._left = min(MAX_REPORTS, self._left + (now - self._since) * REPORTS_PER_SECOND)
        self._since = now
        if self._left >= 1:
            self._left -= 1
            self._report(partial[: self._limit] if isinstance(partial, str) else partial)


class _ErrorBoundary:
    """Convert any exception of a tool to a ToolError or ToolFailed, with its message computed here."""

    __slots__ = ("_is_external",)

    def __init__(self, is_external: Callable[[BaseException], bool] = lambda error: False) -> None:
        self._is_external = is_external

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, KeyboardInterrupt) or self._is_external(error):
            return
        if isinstance(error, Exception):
            message = error_text(error)
            raise (ToolError(message) if isinstance(error, ToolError) else ToolFailed(message)) from error
        if isinstance(error, SystemExit):
            raise ToolError("The tool tried to exit the program.") from error
        raise ToolError(f"The tool failed with {type(error).__name__}.") from error
