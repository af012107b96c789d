"""The threads of one blocking run. Starting one costs more than most tools do, so a thread that is done waits for more.

It waits as long as its run goes on. It is a daemon: one that hangs in user code is left behind, and delays no exit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

_IDLE_SECONDS = 2.0
"""A thread whose run was dropped without being closed must not wait for ever."""


class Job:
    """Something that a thread does, and then another thing."""

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
    def is_ours(self) -> bool:
        """Whether it is this thread that does it."""
        return self._thread == threading.get_ident()

    def wait(self, seconds: float) -> None:
        self._done.wait(seconds)


class WorkerThreads:
    """Threads that take up work. There is no lock: lists and queues of Python's own are enough."""

    __slots__ = ("_closed", "_idle")

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Job | None]] = []
        self._closed = False

    def start(self, main: Callable[[], object]) -> Job:
        work = Job(main)
        try:
            self._idle.pop().put(work)
        except IndexError:
            orders: SimpleQueue[Job | None] = SimpleQueue()
            orders.put(work)
            threading.Thread(target=self._serve, args=(orders,), daemon=True, name="agent-branch").start()
        return work

    def close(self) -> None:
        """Those who wait go; those who are at work go when they are done."""
        self._closed = True
        while self._idle:
            try:
                self._idle.pop().put(None)
            except IndexError:
                break

    def _serve(self, orders: SimpleQueue[Job | None]) -> None:
        work = orders.get()
        while work is not None:
            work.perform()
            work = None  # or it would be kept for as long as this thread waits
            if self._closed:
                return
            self._idle.append(orders)
            if self._closed:  # it may have been closed just before we said that we wait
                self.close()
            work = self._next(orders)

    def _next(self, orders: SimpleQueue[Job | None]) -> Job | None:
        try:
            return orders.get(timeout=_IDLE_SECONDS)
        except Empty:
            pass
        try:
            self._idle.remove(orders)
        except ValueError:
            return orders.get()  # somebody has just taken us, and is about to say what for
        return None
