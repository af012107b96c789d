"""Sync driver: performs flows with blocking calls.

Each run and each branch has a `SyncRun`, which owns its deadline, open bodies, branch threads, and an event-loop thread
if its user code is async. Nothing outlives the run, so it works in threads, inside a running loop and after a fork.
"""

from __future__ import annotations

import contextvars
import inspect
import math
import random
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
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
from ..locks import PROCESS, ForkSafe, foreign_call_error
from ..wire import (
    GRACE,
    SLACK,
    Cancelled,
    Limits,
    RunTimeout,
    SyncBody,
    SyncTransport,
    WireRequest,
    deadline_error,
    exchange_deadline,
    read_timeout,
    reply_deadline,
    reply_timeout,
)
from .threads import Job, WorkerThreads, import_asyncio, start_thread

T = TypeVar("T")
_RUNNING = inspect.GEN_RUNNING
_creating = ForkSafe()


class SyncRun:
    """Performs one flow. `advance` runs it to its next events; `close` may be called at any time."""

    __slots__ = (
        "__weakref__",
        "_branch",
        "_children",
        "_error",
        "_events",
        "_forks",
        "_in_user_code",
        "_inbox",
        "_inside",
        "_job",
        "_loop",
        "_parent",
        "_pause",
        "_quit",
        "_reply",
        "_workers",
        "bodies",
        "cancelled",
        "deadline",
        "effect_deadline",
        "finished",
        "flow",
        "result",
        "transport",
        "wake",
    )

    def __init__(
        self,
        transport: SyncTransport,
        flow: Flow[Any],
        deadline: float = math.inf,
        parent: SyncRun | None = None,
        *,
        pause: bool = False,
    ) -> None:
        self.transport: SyncTransport = transport
        self.flow: Flow[Any] = flow
        self.deadline: float = deadline
        self.effect_deadline: float = deadline
        self.result: Any = None
        self.cancelled: bool = False
        self.finished: bool = False
        self.bodies: list[SyncBody] = []
        self.wake: Callable[[], object] | None = None
        self._parent = parent
        self._pause = pause
        # Only branches are looked up. A reference back to the root run would be a cycle.
        self._branch = Branch() if parent is None else Branch(self)
        self._children: list[SyncRun] = []
        self._inbox: SimpleQueue[BranchEvent | None] = SimpleQueue()
        """Events that branches have posted; None wakes a waiting run."""
        self._events: deque[BranchEvent] = deque()
        """Events from the inbox that the flow has not received."""
        self._job: Job | None = None
        """The job of the worker thread that performs this branch."""
        self._workers: WorkerThreads | None = None
        self._in_user_code = False
        self._inside: int | None = None
        """The thread that is advancing this run."""
        self._quit: threading.Event | None = None
        self._forks = PROCESS.forks
        self._loop: Any = None
        self._reply: Any = None
        self._error: Exception | None = None

    # Stepping

    def advance(self) -> Sequence[Any] | None:
        """Run to the next Emit and return its events; None at the end. Closes at the end and on errors."""
        if self._forks != PROCESS.forks:
            raise foreign_call_error()
        flow, reply, error = self.flow, self._reply, self._error
        self._reply = self._error = None
        self._inside = threading.get_ident()
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
                    reply = self._perform(effect)
                except Exception as raised:
                    error = raised
        except BaseException:
            self.close()
            raise
        finally:
            self._inside = None
        self.close()
        return None

    def close(self) -> None:
        """Close the flow, then its branches, bodies and threads. Closing again does nothing."""
        if self.finished:
            return
        if self._forks != PROCESS.forks:  # its connections, threads and loop are the parent's
            self.finished = True
            return
        if self._inside not in (None, threading.get_ident()) or inspect.getgeneratorstate(self.flow) == _RUNNING:
            # Another thread is advancing it, or the flow itself called this.
            self.cancel()
            return
        try:
            self.flow.close()
        finally:
            self._release()
            self.finished = True  # set last, so that an interrupted close is repeated

    def _release(self) -> None:
        if self._children:
            self._stop(self._children)
        for body in list(self.bodies):
            self._close_body(body)
        if self._loop is not None:
            self._loop.stop()
        if self._workers is not None:
            self._workers.close()

    def cancel(self) -> None:
        """Cancel the run from any thread: interrupt its blocking call, which ends with Cancelled."""
        self.cancelled = True
        if self._quit is not None:
            self._quit.set()
        wake = self.wake
        if wake is not None:
            wake()
        for child in list(self._children):
            child.cancel()
        self._inbox.put(None)

    def seconds_left(self) -> float:
        if self.cancelled:
            raise Cancelled
        return self.effect_deadline - monotonic()

    # Effects

    def _perform(self, effect: AnyEffect) -> Any:
        if self.cancelled:
            raise Cancelled
        for body in self.bodies:
            if body.released:
                self._close_body(body)
                break
        match effect:
            case Read():
                return self._read(effect)
            case Now():
                return monotonic()
            case Send(request, limits, via):
                return self._exchange((via or self.transport).send, request, limits, whole=True)
            case Open(request, limits, via):
                until = exchange_deadline(limits, monotonic())
                body = self._exchange((via or self.transport).open, request, limits, whole=False)
                body.deadline = until
                return body
            case Sleep(seconds):
                return self._sleep(seconds)
            case Random():
                return random.random()
            case Invoke():
                return self._invoke(effect)
            case Query(function, _, args):
                return function(*args)
            case Spawn(flow, pause):
                return self._spawn(flow, pause)
            case Wait(branches, timeout):
                return self._wait(branches, timeout)
            case Cancel(branches):
                return self._stop([branch.run for branch in branches if branch.run in self._children])
            case Detach(flow, seconds):
                return self._detach(flow, seconds)
            case Emit():
                raise AssertionError("Emit is handled where the run advances")
            case _:
                assert_never(effect)

    def _exchange(
        self, send: Callable[[WireRequest, Limits, RunTimeout], T], request: WireRequest, limits: Limits, *, whole: bool
    ) -> T:
        self.effect_deadline = reply_deadline(limits, monotonic(), self.deadline, whole=whole)
        if self.seconds_left() <= 0:
            raise reply_timeout(limits, self.deadline, monotonic(), whole=whole)
        try:
            result = send(request, limits, RunTimeout(self))
        except Exception:
            if self.cancelled:
                raise Cancelled from None
            now = monotonic()
            if now >= self.effect_deadline - SLACK:
                raise reply_timeout(limits, self.deadline, now, whole=whole) from None
            raise
        if self.cancelled:
            raise Cancelled
        return result

    def _read(self, effect: Read) -> bytes:
        body, idle = effect.body, effect.idle
        assert isinstance(body, SyncBody)
        if body.closed:
            raise errors.ConnectionError("the response was read after its end")
        if effect.fresh:
            body.idle_used = 0.0
        body.timeout.run = self  # the winner of a race is read by the parent run
        started = monotonic()
        until = min(self.deadline, body.deadline)
        if idle is not None:
            until = min(until, started + idle - body.idle_used)
        self.effect_deadline = until
        try:
            if started >= until:
                raise read_timeout(body, idle, self.deadline, started)
            chunk = body.read()
        except Exception:
            self._close_body(body)
            if self.cancelled:
                raise Cancelled from None
            now = monotonic()
            if now >= until - SLACK:
                raise read_timeout(body, idle, self.deadline, now) from None
            raise
        if self.cancelled:
            raise Cancelled
        if not chunk:
            self._close_body(body)
        elif idle is not None:
            body.idle_used += monotonic() - started
        return chunk

    def _close_body(self, body: SyncBody) -> None:
        if not body.closed:
            body.close()
            body.closed = True
        for run in (self, *self._children):
            if body in run.bodies:
                run.bodies.remove(body)

    def _sleep(self, seconds: float) -> None:
        if self._quit is None:
            self._quit = threading.Event()
        left = self.deadline - monotonic()
        if not self.cancelled:  # checked after `_quit` was set: an earlier cancel could not set it
            self._quit.wait(max(0.0, min(seconds, left)))
        if self.cancelled:
            raise Cancelled
        if left < seconds:
            raise deadline_error("waiting for the next attempt")

    # User code

    def _invoke(self, effect: Invoke) -> Any:
        kwargs = {**effect.kwargs, "report": self._report} if effect.reports else effect.kwargs
        context = contextvars.copy_context() if effect.context is None else effect.context.copy()
        context.run(ambient_deadline.set, self.deadline)
        self._in_user_code = True
        try:
            value = context.run(effect.function, *effect.args, **kwargs)
            return self._await(value, context) if inspect.isawaitable(value) else value
        except (StopIteration, StopAsyncIteration) as error:
            # Thrown into a generator, these would end the flow.
            raise RuntimeError(f"user code raised {type(error).__name__}") from error
        except BaseException as error:
            if not _is_async_cancellation(error):
                raise
            if self.cancelled:
                raise Cancelled from None
            raise RuntimeError("user code was cancelled") from error
        finally:
            self._in_user_code = False

    def _await(self, awaitable: Awaitable[Any], context: contextvars.Context) -> Any:
        pending = self._root()._loop_thread().submit(awaitable, context)
        self.wake = pending.cancel
        try:
            timeout = None if self.deadline == math.inf else max(0.0, self.deadline - monotonic())
            if not self.cancelled and not pending.done.wait(timeout):
                raise deadline_error("running user code")
            if self.cancelled:
                raise Cancelled
            return pending.result()
        except BaseException:
            pending.cancel()
            raise
        finally:
            self.wake = None

    def _root(self) -> SyncRun:
        run = self
        while run._parent is not None:
            run = run._parent
        return run

    def _loop_thread(self) -> Any:
        with _creating._lock:
            if self._loop is None:
                import_asyncio()
                from .user_code import LoopThread  # lazy: a blocking call needs no event loop

                self._loop = LoopThread()
            return self._loop

    def _threads(self) -> WorkerThreads:
        with _creating._lock:
            if self._workers is None:
                self._workers = WorkerThreads()
            return self._workers

    def _report(self, event: Any) -> None:
        """Forward a report of user code, from any thread, until the branch ends."""
        if self._parent is not None and not self._branch.done and not self.cancelled:
            self._parent._inbox.put(Emitted(self._branch, [event]))

    # Branches

    def _spawn(self, flow: Flow[Any], pause: bool) -> Branch:
        child = SyncRun(self.transport, flow, self.deadline, self, pause=pause)
        self._children.append(child)
        context = contextvars.copy_context()
        child._job = self._root()._threads().start(lambda: context.run(child._main))
        return child._branch

    def _detach(self, flow: Flow[Any], seconds: float) -> None:
        run = SyncRun(self.transport, flow, monotonic() + seconds)

        def main() -> None:
            with suppress(Exception):  # failures of background flows are discarded
                drain(run)

        start_thread(main, "agent-detached")

    def _main(self) -> None:
        """Perform a branch in a worker thread, to its end or its pause."""
        assert self._parent is not None
        try:
            event = self._last_event(self._parent)
        except Cancelled:
            return
        except BaseException as error:
            event = Failed(self._branch, error)
        if self.cancelled:
            self.close()
        else:
            self._parent._inbox.put(event)

    def _last_event(self, parent: SyncRun) -> BranchEvent:
        while True:
            events = self.advance()
            if events is None:
                return Finished(self._branch, self.result)
            if self._pause:
                return Paused(self._branch, rest_of(self.flow, Emit(events)))
            parent._inbox.put(Emitted(self._branch, events))

    def _wait(self, branches: Sequence[Branch], timeout: float | None) -> BranchEvent | None:
        until = self.deadline if timeout is None else min(self.deadline, monotonic() + timeout)
        while True:
            event = take_event(self._events, branches, self._children)
            if (death := fatal_error(event)) is not None:
                raise death
            if event is not None:
                return event
            if self.cancelled:
                raise Cancelled
            try:
                self._take(self._inbox.get(timeout=None if until == math.inf else max(0.0, until - monotonic())))
            except Empty:
                if (now := monotonic()) >= self.deadline:
                    raise deadline_error("waiting for branches") from None
                if now >= until:
                    return None

    def _take(self, arrived: BranchEvent | None) -> None:
        if arrived is not None:
            self._events.append(arrived)

    def _stop(self, runs: Sequence[SyncRun]) -> None:
        """Cancel branches and wait for them. A thread that hangs in user code is abandoned."""
        stopping = list(runs)
        for run in stopping:
            run.cancel()
        end = monotonic() + GRACE
        for run in stopping:
            work = run._job
            if work is not None and not work.is_current_thread:
                work.wait(0.01 if run._in_user_code else max(0.0, end - monotonic()))
            if work is None or work.is_done:
                run.close()
            run._branch.done = True
            if run in self._children:
                self._children.remove(run)
        with suppress(Empty):
            while True:
                self._take(self._inbox.get_nowait())
        self._events = deque(event for event in self._events if event.branch.run not in stopping)


def _is_async_cancellation(error: BaseException) -> bool:
    """Whether this is asyncio's CancelledError. Importing asyncio would cost a sync program 40 ms."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


def drain(run: SyncRun) -> Any:
    """Run to the end, discard the events and return the result."""
    try:
        while run.advance() is not None:
            pass
        return run.result
    finally:
        run.close()
