"""Asyncio driver: performs flows on an event loop.

Each run and each branch has an `AioRun`, which owns its deadline, open bodies, branch tasks and one timer. Timeouts
cancel the waiting task; `uncancel` tells such a cancellation from an external one, which is never swallowed.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar, assert_never

from ... import errors
from ..context import ambient_deadline
from ..flow import (
    AnyEffect,
    Branch,
    BranchEvent,
    Cancel,
    Detach,
    Emit,
    Emitted,
    Failed,
    Finished,
    Flow,
    Invoke,
    Now,
    Open,
    Paused,
    Query,
    Random,
    Read,
    Send,
    Sleep,
    Spawn,
    Wait,
    fatal_error,
    rest_of,
    take_event,
)
from ..locks import PROCESS, foreign_call_error
from ..wire import (
    GRACE,
    SLACK,
    AsyncBody,
    AsyncTransport,
    Limits,
    deadline_error,
    exchange_deadline,
    read_timeout,
    reply_deadline,
    reply_timeout,
)
from .user_code import ReportBatcher, call_in_thread, is_async

T = TypeVar("T")
_detached: set[asyncio.Task[None]] = set()


class _Closed(BaseException):
    """Another task closed this run while one was reading from it."""


class _Expired(Exception):
    """The timer of the run ended a wait."""


class AioRun:
    """Performs one flow. `advance` runs it to its next events; `aclose` may be called at any time."""

    __slots__ = (
        "__weakref__",
        "_branch",
        "_children",
        "_error",
        "_events",
        "_expired",
        "_forks",
        "_parent",
        "_pause",
        "_reply",
        "_task",
        "_timer",
        "_until",
        "_waiter",
        "_waker",
        "bodies",
        "cancelled",
        "deadline",
        "finished",
        "flow",
        "loop",
        "result",
        "transport",
    )

    def __init__(
        self,
        transport: AsyncTransport,
        flow: Flow[Any],
        deadline: float = math.inf,
        parent: AioRun | None = None,
        *,
        pause: bool = False,
    ) -> None:
        self.transport: AsyncTransport = transport
        self.flow: Flow[Any] = flow
        self.deadline: float = deadline
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.result: Any = None
        self.cancelled: bool = False
        self.finished: bool = False
        self.bodies: list[AsyncBody] = []
        self._parent = parent
        self._pause = pause
        # Only branches are looked up. A reference back to the root run would be a cycle.
        self._branch = Branch() if parent is None else Branch(self)
        self._children: list[AioRun] = []
        self._events: deque[BranchEvent] = deque()
        self._task: asyncio.Task[None] | None = None
        self._reply: Any = None
        self._error: Exception | None = None
        self._forks = PROCESS.forks
        self._until = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Task[Any] | None = None
        """The task that is waiting in this run."""
        self._expired = False
        """Whether the timer has cancelled the waiter."""
        self._waker: asyncio.Future[None] | None = None

    # Stepping

    async def advance(self) -> Sequence[Any] | None:
        """Run to the next Emit and return its events; None at the end. Closes at the end and on errors."""
        if self._forks != PROCESS.forks:
            raise foreign_call_error()
        flow, reply, error = self.flow, self._reply, self._error
        self._reply = self._error = None
        try:
            while True:
                # Separate try blocks, because a StopIteration from user code would end the flow.
                try:
                    effect = flow.send(reply) if error is None else flow.throw(error)
                except StopIteration as stop:
                    self.result = stop.value
                    break
                finally:
                    # An exception kept in a frame that it references is a cycle, and a reply may quote a key.
                    error = reply = None
                if type(effect) is Emit:
                    return effect.events
                try:
                    reply = await self._perform(effect)
                except Exception as raised:
                    error = raised
        except _Closed:
            return None
        except BaseException:
            await self.aclose()
            raise
        await self.aclose()
        return None

    async def aclose(self) -> None:
        """Close the flow, then its branches and bodies. Closing again does nothing; a reader sees the end."""
        was_finished, self.finished = self.finished, True
        if was_finished or self._forks != PROCESS.forks:  # in a forked child, everything belongs to the parent
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiter is not None and self._waiter is not asyncio.current_task():
            self._waiter.cancel()
        try:
            self.flow.close()
        finally:
            if self._children or self.bodies:
                # In a separate task, so that a second cancellation leaves no socket open.
                await asyncio.shield(self.loop.create_task(self._release()))

    async def _release(self) -> None:
        if self._children:
            await self._stop(self._children)
        for body in self.bodies:
            if not body.closed:
                body.closed = True
                await body.aclose()
        self.bodies.clear()

    def abandon(self) -> None:
        """Schedule closing, from a finalizer or another thread."""
        if not self.finished and self._forks == PROCESS.forks:
            self._on_loop(lambda: self.loop.create_task(self.aclose()))

    def _on_loop(self, function: Callable[[], object]) -> None:
        """Call a function on the loop, from any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(function)

    # Time

    def _watch(self, until: float) -> None:
        """Set the timer of the run, moved only if it would fire too late, to save work."""
        if until == math.inf:
            return
        if self._timer is None:
            self._timer = self.loop.call_at(until, self._tick)
        elif self._timer.when() > until:
            self._timer.cancel()
            self._timer = self.loop.call_at(until, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._waiter is None or self._until == math.inf:
            return
        if self.loop.time() >= self._until - 1e-4:
            self._expired = True
            self._waiter.cancel()
        else:
            self._timer = self.loop.call_at(self._until, self._tick)

    async def _within(self, until: float, work: Awaitable[T]) -> T:
        """Await `work`; raises _Expired at `until`."""
        if self.loop.time() >= until:
            if inspect.iscoroutine(work):
                work.close()
            raise _Expired
        task = asyncio.current_task()
        assert task is not None
        self._watch(until)
        self._until, self._waiter, cancelled_before = until, task, task.cancelling()
        try:
            return await work
        except asyncio.CancelledError:
            raise self._reason(task, cancelled_before) from None
        finally:
            self._waiter = None
            if self._expired:  # the work swallowed the timer's cancellation
                self._expired = False
                task.uncancel()

    def _reason(self, task: asyncio.Task[Any], cancelled_before: int) -> BaseException:
        """Return the exception for a cancelled wait: timer, closing of the run, or external cancellation."""
        if self._expired:
            self._expired = False
            if task.uncancel() <= cancelled_before:
                return _Expired()
        elif self.finished and task.uncancel() <= cancelled_before:
            return _Closed()
        return asyncio.CancelledError()

    # Effects

    async def _perform(self, effect: AnyEffect) -> Any:
        for body in self.bodies:
            if body.released:
                await self._close_body(body)
                break
        match effect:
            case Read():
                return await self._read(effect)
            case Now():
                return self.loop.time()
            case Send(request, limits, via):
                return await self._exchange(limits, (via or self.transport).asend(request, limits), whole=True)
            case Open(request, limits, via):
                until = exchange_deadline(limits, self.loop.time())
                opening = (via or self.transport).aopen(request, limits, self.bodies)
                body = await self._exchange(limits, opening, whole=False)
                body.deadline = until
                return body
            case Sleep(seconds):
                return await self._sleep(seconds)
            case Random():
                return random.random()
            case Invoke():
                return await self._invoke(effect)
            case Query(_, on_loop, args):
                return await on_loop(*args)
            case Spawn(flow, pause):
                return self._spawn(flow, pause)
            case Wait(branches, timeout):
                return await self._wait(branches, timeout)
            case Cancel(branches):
                return await self._stop([branch.run for branch in branches if branch.run in self._children])
            case Detach(flow, seconds):
                return self._detach(flow, seconds)
            case Emit():
                raise AssertionError("Emit is handled where the run advances")
            case _:
                assert_never(effect)

    async def _exchange(self, limits: Limits, work: Awaitable[T], *, whole: bool) -> T:
        until = reply_deadline(limits, self.loop.time(), self.deadline, whole=whole)
        try:
            return await self._within(until, work)
        except _Expired:
            raise reply_timeout(limits, self.deadline, self.loop.time(), whole=whole) from None

    async def _read(self, effect: Read) -> bytes:
        """Read a chunk. Inlines `_within`, because this effect happens for every chunk."""
        body, idle = effect.body, effect.idle
        assert isinstance(body, AsyncBody)
        if body.closed:
            raise errors.ConnectionError("the response was read after its end")
        if effect.fresh:
            body.idle_used = 0.0
        started = self.loop.time()
        until = min(self.deadline, body.deadline)
        if idle is not None:
            until = min(until, started + idle - body.idle_used)
        if started >= until:
            await self._close_body(body)
            raise read_timeout(body, idle, self.deadline, started)
        if self._timer is None or self._timer.when() > until:
            self._watch(until)
        task = asyncio.current_task()
        assert task is not None
        self._until, self._waiter, cancelled_before = until, task, task.cancelling()
        try:
            chunk = await body.read()
        except asyncio.CancelledError:
            self._waiter = None
            reason = self._reason(task, cancelled_before)
            if isinstance(reason, _Expired):
                await self._close_body(body)
                raise read_timeout(body, idle, self.deadline, self.loop.time()) from None
            raise reason from None
        except Exception:
            self._waiter = None
            await self._close_body(body)
            raise
        self._waiter = None
        if not chunk:
            await self._close_body(body)
        elif idle is not None:
            body.idle_used += self.loop.time() - started
        return chunk

    async def _close_body(self, body: AsyncBody) -> None:
        if not body.closed:
            body.closed = True
            await body.aclose()
        for run in (self, *self._children):
            if body in run.bodies:
                run.bodies.remove(body)

    async def _sleep(self, seconds: float) -> None:
        if self.loop.time() + seconds > self.deadline:
            seconds = math.inf  # the deadline ends the wait
        forever = self.loop.create_future() if seconds == math.inf else None
        try:
            await self._within(self.deadline, asyncio.sleep(seconds) if forever is None else forever)
        except _Expired:
            raise deadline_error("waiting for the next attempt") from None

    # User code

    async def _invoke(self, effect: Invoke) -> Any:
        kwargs = (
            {**effect.kwargs, "report": ReportBatcher(self._report, self._on_loop)} if effect.reports else effect.kwargs
        )
        context = contextvars.copy_context() if effect.context is None else effect.context.copy()
        # Loops such as uvloop have their own clock; the ambient deadline is on time.monotonic().
        context.run(ambient_deadline.set, monotonic() + self.deadline - self.loop.time())
        task = asyncio.current_task()
        assert task is not None
        cancelled_before = task.cancelling()
        try:
            if effect.blocking and not is_async(effect.function):
                value = await self._within(self.deadline, call_in_thread(effect.function, effect.args, kwargs, context))
            else:
                value = context.run(effect.function, *effect.args, **kwargs)
            return await self._await(value, context) if inspect.isawaitable(value) else value
        except _Expired:
            raise deadline_error("running user code") from None
        except (StopIteration, StopAsyncIteration) as error:
            # Thrown into a generator, these would end the flow.
            raise RuntimeError(f"user code raised {type(error).__name__}") from error
        except asyncio.CancelledError as error:
            if task.cancelling() > cancelled_before or self.cancelled:
                raise
            raise RuntimeError("user code was cancelled") from error

    async def _await(self, awaitable: Awaitable[Any], context: contextvars.Context) -> Any:
        inner = self.loop.create_task(_as_coroutine(awaitable), context=context)
        try:
            # Shielded: a coroutine that swallows its cancellation must not outlast the deadline.
            return await self._within(self.deadline, asyncio.shield(inner))
        except BaseException:
            if not inner.done():
                inner.cancel()
                await asyncio.wait({inner}, timeout=GRACE)
            raise

    def _report(self, reports: list[Any]) -> None:
        """Forward reports of user code until the branch ends."""
        if self._parent is not None and not self._branch.done and not self.cancelled:
            self._parent._post(Emitted(self._branch, reports))

    # Branches

    def _spawn(self, flow: Flow[Any], pause: bool) -> Branch:
        child = AioRun(self.transport, flow, self.deadline, self, pause=pause)
        self._children.append(child)
        child._task = self.loop.create_task(child._main())
        return child._branch

    def _detach(self, flow: Flow[Any], seconds: float) -> None:
        task = self.loop.create_task(_drain_silently(AioRun(self.transport, flow, self.loop.time() + seconds)))
        _detached.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(_detached.discard)

    async def _main(self) -> None:
        """Perform a branch in a task, to its end or its pause."""
        assert self._parent is not None
        try:
            event = await self._last_event(self._parent)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            event = Failed(self._branch, error)
        if self.cancelled:
            await self.aclose()
        else:
            self._parent._post(event)

    async def _last_event(self, parent: AioRun) -> BranchEvent:
        while True:
            events = await self.advance()
            if events is None:
                return Finished(self._branch, self.result)
            if self._pause:
                return Paused(self._branch, rest_of(self.flow, Emit(events)))
            parent._post(Emitted(self._branch, events))

    def _post(self, event: BranchEvent) -> None:
        self._events.append(event)
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)

    async def _wait(self, branches: Sequence[Branch], timeout: float | None) -> BranchEvent | None:
        until = self.deadline if timeout is None else min(self.deadline, self.loop.time() + timeout)
        while True:
            event = take_event(self._events, branches, self._children)
            if (death := fatal_error(event)) is not None:
                raise death
            if event is not None:
                return event
            self._waker = self.loop.create_future()
            try:
                await self._within(until, self._waker)
            except _Expired:
                if self.loop.time() >= self.deadline - SLACK:
                    raise deadline_error("waiting for branches") from None
                return None
            finally:
                self._waker = None

    async def _stop(self, runs: Sequence[AioRun]) -> None:
        """Cancel branches and wait for them. A branch that swallows its cancellation is abandoned."""
        stopping = list(runs)
        for run in stopping:
            run.cancelled = True
            run._branch.done = True
            if run._task is not None:
                run._task.cancel()
        tasks = [run._task for run in stopping if run._task is not None and not run._task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE + 0.25)  # longer than the grace of their user code
        for run in stopping:
            if run._task is None or run._task.done():
                await run.aclose()  # a paused branch has no task, but may hold a connection
            if run in self._children:
                self._children.remove(run)
        self._events = deque(event for event in self._events if event.branch.run not in stopping)


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _drain_silently(run: AioRun) -> None:
    with suppress(Exception):  # failures of background flows are discarded
        await adrain(run)


async def adrain(run: AioRun) -> Any:
    """Run to the end, discard the events and return the result."""
    while await run.advance() is not None:
        pass
    return run.result
