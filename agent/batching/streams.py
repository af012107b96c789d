"""`batch` and `batch_stream`: many requests at a time for a program that blocks.

The requests are asked on an event loop in a thread of the batch's own, so a thousand of them need one thread. The input
is read, and the outcomes are counted and handed out, on the caller's thread: a slow input holds nothing up that is
under way, and a cursor of a database stays where it was made.
"""

from __future__ import annotations

import contextvars
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from typing_extensions import override

from ..drivers.user_code import LoopThread
from ..engine.stream import Stream
from .asking import Asking
from .feeding import BatchView, Feeding
from .plan import Ask, Plan
from .values import BatchInputError, BatchInterrupted, BatchItem, BatchResult

_HEARING = 1.0
"""Seconds after which somebody who waits looks whether there was a signal."""


class ThreadedBatch(Feeding):
    """A batch whose requests are sent from a thread of its own."""

    result: BatchResult | None = None

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._worker: _Worker | None = None

    @property
    def finished(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def open(self) -> None:
        """Start the thread."""
        self._open(iter)
        self._worker = _Worker(self._plan.ask, self._plan.context())

    def advance(self) -> Sequence[BatchItem] | None:
        """The next item; None at the end. Only one: those that were not handed out are in `rest`."""
        while (worker := self._worker) is not None:
            self._take_what_came(worker)
            more = self._feed()
            if self._closed:
                break
            if self._ready:
                return (self._ready.popleft(),)
            if self.is_over():
                self._last_word()
                break
            if not more:
                self._wait(worker)
        return None

    def close(self) -> None:
        """Cancel what is under way, and end the thread."""
        worker, self._worker = self._worker, None
        self._closed = True
        if worker is not None:
            worker.stop()
            self._take_what_came(worker)
        self._end()

    def cancel(self) -> None:
        """The same as `close`."""
        self.close()

    def _wait(self, worker: _Worker) -> None:
        # Not for ever: a Ctrl-C that the system gives to another thread, or that Windows holds back, is heard between.
        with suppress(Empty):
            self._taken(worker.outcomes.get(timeout=_HEARING))

    def _take_what_came(self, worker: _Worker) -> None:
        with suppress(Empty):
            while True:
                self._taken(worker.outcomes.get_nowait())

    @override
    def _begin(self, index: int, request: Any) -> None:
        if self._worker is not None:
            self._worker.begin(index, request)


class BatchStream(BatchView, Stream[BatchItem, BatchResult]):
    """The items of a batch as they are done, in no order. Leaving the loop cancels what is under way.

    ```python
    from agent.testing import scripted_agent

    with scripted_agent().batch_stream(["one", "two"], concurrency=2) as stream:
        for item in stream:
            print(item.index, item.unwrap().text)
    assert stream.progress.done == 2
    ```
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._batch: ThreadedBatch = ThreadedBatch(plan)

    @override
    def _start_run(self) -> ThreadedBatch:
        self._batch.open()
        return self._batch

    @override
    def close(self) -> None:
        """Cancel what is under way, and end the loop. What had come stays: see `rest`."""
        super().close()
        self._batch.close()

    @override
    def collect(self) -> BatchResult:
        """All items, in the order of the input."""
        if self._result is not None:
            return self._result
        items: list[BatchItem] = []
        try:
            for item in self:
                items.append(item)  # one by one: an interrupt must find what has come so far
        except KeyboardInterrupt:
            self.close()
            items += self.rest()
            raise BatchInterrupted(self._gathered(items)) from None
        except BatchInputError as error:
            error.result = self._gathered(items)
            raise
        self._result = self._gathered(items)
        return self._result


class _Worker:
    """The loop's thread, and what comes from there. It does not know the stream, which may be left to the collector."""

    def __init__(self, ask: Ask, context: contextvars.Context) -> None:
        self.outcomes: SimpleQueue[BatchItem] = SimpleQueue()
        self._thread = LoopThread()
        made: SimpleQueue[Asking] = SimpleQueue()
        outcomes = self.outcomes

        async def make() -> None:
            made.put(Asking(ask, context, outcomes.put))

        self._thread.submit(make(), context.copy())
        self._asking = made.get()

    def begin(self, index: int, request: Any) -> None:
        self._asking.start_soon(index, request)

    def stop(self) -> None:
        """Cancel what is under way, and end the thread."""
        self._asking.abandon()
        self._thread.stop()
