"""Worker threads of one sync run.

Starting a thread costs more than most tools do, so threads are reused until the run ends. They are daemons: one that
hangs in user code is abandoned and does not delay the interpreter's exit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

_IDLE_SECONDS = 2.0
"""Idle timeout, for runs that were dropped without being closed."""


class Job:
    __slots__ = ("_done", "_main", "_thread")

    def __init__(self, main: Callable[[], object]) -> None:
        self._main = main
        self._done = threading.Event()
        self._thread = 0

    def perform(self) -> None:
        self._thread = threading.get_ident()
        try:
            self._main()
        finally:
            self._done.set()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    @property
    def is_current_thread(self) -> bool:
        """Whether the current thread performs this job."""
        return self._thread == threading.get_ident()

    def wait(self, seconds: float) -> None:
        self._done.wait(seconds)


class WorkerThreads:
    """Reusable worker threads, without a lock: list and queue operations are atomic."""

    __slots__ = ("_closed", "_idle")

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Job | None]] = []
        self._closed = False

    def start(self, main: Callable[[], object]) -> Job:
        job = Job(main)
        try:
            self._idle.pop().put(job)
        except IndexError:
            queue: SimpleQueue[Job | None] = SimpleQueue()
            queue.put(job)
            threading.Thread(target=self._serve, args=(queue,), daemon=True, name="agent-branch").start()
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
