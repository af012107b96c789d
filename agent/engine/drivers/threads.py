"""Daemon threads, and the reusable worker threads of one sync run.

All threads are daemons: one that hangs in user code is abandoned and does not delay the interpreter's exit. Starting a
thread costs more than most tools do, so worker threads are reused until the run ends.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from importlib import import_module
from queue import Empty, SimpleQueue

from ... import errors

_IDLE_SECONDS = 2.0
"""Idle timeout, for runs that were dropped without being closed."""


def check_threads_run() -> None:
    """Raise Aborted at the interpreter's exit, where waiting for a daemon thread would hang."""
    if sys.is_finalizing():
        raise errors.Aborted("The interpreter is exiting, so this call cannot be made. Make it before the exit.")


def start_thread(main: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread."""
    check_threads_run()
    thread = threading.Thread(target=main, daemon=True, name=name)
    thread.start()
    return thread


def import_asyncio() -> None:
    """Import asyncio in a thread, because an import that Ctrl-C interrupts breaks every later one."""
    if "asyncio" not in sys.modules:
        start_thread(lambda: import_module("asyncio"), "agent-import").join()


class Job:
    __slots__ = ("_main", "_running", "_thread")

    def __init__(self, main: Callable[[], object]) -> None:
        self._main = main
        self._running = threading.Lock()
        self._running.acquire()  # released at the end, by another thread
        self._thread = 0

    def perform(self) -> None:
        self._thread = threading.get_ident()
        try:
            self._main()
        finally:
            self._running.release()

    @property
    def is_done(self) -> bool:
        return not self._running.locked()

    @property
    def is_current_thread(self) -> bool:
        """Whether the current thread performs this job."""
        return self._thread == threading.get_ident()

    def wait(self, seconds: float) -> None:
        if self._running.acquire(timeout=seconds):
            self._running.release()


class WorkerThreads:
    """Reusable worker threads, without a lock: list and queue operations are atomic."""

    __slots__ = ("_closed", "_idle")

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Job | None]] = []
        self._closed = False

    def start(self, main: Callable[[], object]) -> Job:
        check_threads_run()
        job = Job(main)
        try:
            self._idle.pop().put(job)
        except IndexError:
            queue: SimpleQueue[Job | None] = SimpleQueue()
            queue.put(job)
            start_thread(lambda: self._serve(queue), "agent-branch")
        return job

    def close(self) -> None:
        """End idle threads now and busy ones after their job."""
        self._closed = True
        while self._idle:
            try:
                self._idle.pop().put(None)
            except IndexError:
                break

    def _serve(self, queue: SimpleQueue[Job | None]) -> None:
        job = queue.get()
        while job is not None:
            job.perform()
            job = None  # an idle thread must not keep it alive
            if self._closed:
                return
            self._idle.append(queue)
            if self._closed:  # closed just before this thread became idle
                self.close()
            job = self._next(queue)

    def _next(self, queue: SimpleQueue[Job | None]) -> Job | None:
        try:
            return queue.get(timeout=_IDLE_SECONDS)
        except Empty:
            pass
        try:
            self._idle.remove(queue)
        except ValueError:
            return queue.get()  # `start` has just taken this thread and is about to queue a job
        return None
