"""`batch` and `batch_stream`: many requests at a time for a program that blocks.

The requests are asked on an event loop in a thread of the batch's own, so a thousand of them need one thread. The input
is read, and the outcomes are counted and handed out, on the caller's thread: a slow input holds nothing up that is
under way, and a cursor of a database stays where it was made.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Self

from typing_extensions import override

from ..drivers.user_code import LoopThread
from .asking import Asking
from .feeding import Feeding, gathered
from .plan import Ask, Options, Plan
from .values import BatchInputError, BatchInterrupted, BatchItem, BatchResult

_HEARING = 1.0
"""Seconds after which somebody who waits looks whether there was a signal."""


class BatchStream(Feeding):
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
        super().__init__(plan)
        self._worker: _Worker | None = None

    def __iter__(self) -> Iterator[BatchItem]:
        self._open(iter)
        try:
            worker = self._worker = _Worker(self._plan.ask, self._plan.context())
            while True:
                self._take_what_came(worker)
                more = self._feed()
                if self._closed:
                    break
                if self._ready:
                    yield self._ready.popleft()
                elif self._is_over():
                    self._last_word()
                    break
                elif not more:
                    self._wait(worker)
        finally:
            self.close()

    def close(self) -> None:
        """Cancel what is under way, and end the loop. What had come stays: see `rest`."""
        worker, self._worker = self._worker, None
        self._closed = True
        if worker is not None:
            worker.stop()
            self._take_what_came(worker)
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        worker = getattr(self, "_worker", None)  # it may be half-made
        if worker is not None:
            worker.stop()

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


def run_batch(ask: Ask, requests: Any, options: Options) -> BatchResult:
    """All of a batch, in the order of the input."""
    stream = BatchStream(Plan(ask, requests, options, awaiting=False))
    items: list[BatchItem] = []
    try:
        for item in stream:
            items.append(item)  # one by one: an interrupt must find what has come so far
    except KeyboardInterrupt:
        stream.close()
        items += stream.rest()
        raise BatchInterrupted(gathered(items, stream)) from None
    except BatchInputError as error:
        error.result = gathered(items, stream)
        raise
    return gathered(items, stream)
