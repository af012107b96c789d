"""`batch` and `batch_stream`: many requests at a time for a program that blocks.

The requests are asked on an event loop in a thread of the batch's own, so a thousand of them need one thread. The input
is read, and the outcomes are counted and handed out, on the caller's thread: a slow input holds nothing up that is
under way, and a cursor of a database stays where it was made.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Self

from typing_extensions import override

from ..engine.drivers.user_code import LoopThread
from ..engine.stream import AsyncStream, Stream
from ..engine.wire import GRACE
from ..types.response import OutputT
from .scheduler import LATER, BatchView, RequestRunner, Scheduler
from .values import BatchInputError, BatchInterrupted, BatchItem, BatchPlan, BatchResult, SendRequest

_HEARING = 1.0
"""Seconds after which somebody who waits looks whether there was a signal."""


class ThreadedBatch(Scheduler):
    """A batch whose requests are sent from a thread of its own."""

    result: BatchResult | None = None

    def __init__(self, plan: BatchPlan) -> None:
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


class BatchStream(BatchView[OutputT], Stream[BatchItem[OutputT], BatchResult[OutputT]]):
    """The items of a batch as they are done, in no order. Leaving the loop cancels what is under way.

    ```python
    from agent.testing import scripted_agent

    with scripted_agent().batch_stream(["one", "two"], concurrency=2) as stream:
        for item in stream:
            print(item.index, item.unwrap().text)
    assert stream.progress.done == 2
    ```
    """

    def __init__(self, plan: BatchPlan) -> None:
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
    def collect(self) -> BatchResult[OutputT]:
        """All items, in the order of the input."""
        if self._result is not None:
            return self._result
        items: list[BatchItem[OutputT]] = []
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

    def __init__(self, ask: SendRequest, context: contextvars.Context) -> None:
        self.outcomes: SimpleQueue[BatchItem] = SimpleQueue()
        self._thread = LoopThread()
        made: SimpleQueue[RequestRunner] = SimpleQueue()
        outcomes = self.outcomes

        async def make() -> None:
            made.put(RequestRunner(ask, context, outcomes.put))

        self._thread.submit(make(), context.copy())
        self._asking = made.get()

    def begin(self, index: int, request: Any) -> None:
        self._asking.start_soon(index, request)

    def stop(self) -> None:
        """Cancel what is under way, and end the thread."""
        self._asking.abandon()
        self._thread.stop()


class LoopBatch(Scheduler):
    """A batch whose requests are sent on the running event loop."""

    result: BatchResult | None = None

    def __init__(self, plan: BatchPlan) -> None:
        super().__init__(plan)
        self.loop: asyncio.AbstractEventLoop
        self._asking: RequestRunner | None = None
        self._post = _Post()
        self._pulled: _Pulled | None = None

    @property
    def finished(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def open(self) -> None:
        """Begin to read the input."""
        self.loop = asyncio.get_running_loop()
        self._open(self._pulling)
        self._asking = RequestRunner(self._plan.ask, self._plan.context(), self._post.put)

    async def advance(self) -> Sequence[BatchItem] | None:
        """The next item; None at the end. Only one: those that were not handed out are in `rest`."""
        while True:
            self._take_what_came()
            more = self._feed()
            if more:
                await asyncio.sleep(0)  # for the sake of what is under way
            if self._closed:
                return None
            if self._ready:
                return (self._ready.popleft(),)
            if self.is_over():
                self._last_word()
                return None
            if not more:
                await self._post.wait()

    async def aclose(self) -> None:
        """Cancel what is under way."""
        self._end()
        if self._asking is not None:
            self._take_what_came()
            self._post.wake()
            self._asking.cancel()
            if self._pulled is not None:
                self._pulled.cancel()
                await self._pulled.ended()
            await self._asking.ended()

    def abandon(self) -> None:
        """Cancel what is under way, from a finalizer or another thread."""
        if self._asking is not None and not self._closed:
            self._asking.abandon()
            if self._pulled is not None:
                self._pulled.abandon()
            self._end()
            with suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(self._post.wake)

    def _pulling(self, source: Any) -> Iterator[Any]:
        if not hasattr(source, "__aiter__"):
            return iter(source)
        self._pulled = _Pulled(aiter(source), self._post)
        return self._pulled

    def _take_what_came(self) -> None:
        while self._post.items:
            self._taken(self._post.items.popleft())

    @override
    def _begin(self, index: int, request: Any) -> None:
        if self._asking is not None:
            self._asking.start(index, request)


class AsyncBatchStream(BatchView[OutputT], AsyncStream[BatchItem[OutputT], BatchResult[OutputT]]):
    """The items of a batch as they are done, in no order. There is nothing to await first; leaving the loop cancels."""

    def __init__(self, plan: BatchPlan) -> None:
        super().__init__()
        self._batch: LoopBatch = LoopBatch(plan)

    @override
    def _start_run(self) -> LoopBatch:
        self._batch.open()
        return self._batch

    @override
    async def aclose(self) -> None:
        """Cancel what is under way, and end the loop. What had come stays: see `rest`."""
        await super().aclose()
        await self._batch.aclose()

    @override
    async def collect(self) -> BatchResult[OutputT]:
        """All items, in the order of the input."""
        if self._result is not None:
            return self._result
        items: list[BatchItem[OutputT]] = []
        try:
            async for item in self:
                items.append(item)
        except BatchInputError as error:
            error.result = self._gathered(items)
            raise
        except asyncio.CancelledError as error:
            items += self.rest()
            raise error from BatchCancelled(self._gathered(items))
        self._result = self._gathered(items)
        return self._result


class _Post:
    """Where outcomes arrive, and whoever waits for them is woken."""

    __slots__ = ("_waiting", "items")

    def __init__(self) -> None:
        self.items: deque[BatchItem] = deque()
        self._waiting: asyncio.Future[None] | None = None

    def put(self, item: BatchItem) -> None:
        self.items.append(item)
        self.wake()

    def wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self) -> None:
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None


class _Pulled:
    """An async input as a plain iterator: it gives what has come, and has the next one fetched meanwhile.

    One task reads all of it: what a generator holds open while it yields, such as a timeout, belongs to one task.
    """

    __slots__ = ("_error", "_held", "_loop", "_post", "_task", "_wanted")

    def __init__(self, source: AsyncIterator[Any], post: _Post) -> None:
        self._post = post
        self._held: deque[Any] = deque()
        self._wanted = asyncio.Event()
        self._error: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._read(source))
        self._task.add_done_callback(lambda _: post.wake())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._held:
            self._wanted.set()
            return self._held.popleft()
        if not self._task.done():
            return LATER
        failed, self._error = self._error, None
        if failed is not None:
            raise failed
        if self._task.cancelled():
            raise RuntimeError("the input was cancelled")
        raise StopIteration

    async def _read(self, source: AsyncIterator[Any]) -> None:
        try:
            try:
                async for request in source:
                    self._held.append(request)
                    self._post.wake()
                    self._wanted.clear()
                    await self._wanted.wait()
            finally:
                # Here, in its own task, and now: left to the collector, it would be closed some time in another one.
                if (close := getattr(source, "aclose", None)) is not None:
                    await close()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._error = error

    def cancel(self) -> None:
        self._task.cancel()

    def abandon(self) -> None:
        """As `cancel`, from a finalizer."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.cancel)

    async def ended(self) -> None:
        if not self._task.done():
            await asyncio.wait((self._task,), timeout=GRACE)


class BatchCancelled(Exception):
    """The cause of the `CancelledError` of an `abatch` that was cancelled. `result` has what was done until then.

    It is no `CancelledError` itself: `asyncio.timeout` makes its own error only of exactly that class.
    """

    def __init__(self, result: BatchResult) -> None:
        super().__init__("the batch was cancelled")
        self.result = result
