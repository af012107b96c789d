"""Batch streams: sync batches run on a worker thread, async batches on the event loop.

Sync batches send all requests from one event loop in a worker thread. The input is read and the items are yielded on
the caller's thread, so that database cursors stay in their thread.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
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

_POLL_SECONDS = 1.0
"""Longest blocking wait, so that signals are handled."""


class ThreadedBatch(Scheduler):
    """A batch whose requests are sent from a worker thread."""

    result: BatchResult | None = None

    def __init__(self, plan: BatchPlan) -> None:
        super().__init__(plan)
        self._worker: _Worker | None = None

    def open(self) -> None:
        self._open(iter(self._plan.source))
        self._worker = _Worker(self._plan.ask, self._plan.context())

    def advance(self) -> Sequence[BatchItem] | None:
        """Return the next item in a sequence, or None at the end."""
        while (worker := self._worker) is not None:
            worker.check()
            self._take_items(worker.outcomes)
            more = self._feed()
            if items := self._next():
                return items
            if items is None:
                break
            if not more:
                # With a timeout: Windows, and signals sent to other threads, do not interrupt an endless wait.
                with suppress(Empty):
                    self._add_item(worker.outcomes.get(timeout=_POLL_SECONDS))
        return None

    def close(self) -> None:
        """Cancel running requests and stop the thread."""
        worker, self._worker = self._worker, None
        self._closed = True
        if worker is not None:
            worker.stop()
            self._take_items(worker.outcomes)
        self._end()

    def cancel(self) -> None:
        self.close()

    @override
    def _start_request(self, index: int, request: Any) -> None:
        if self._worker is not None:
            self._worker.runner.start_soon(index, request)


class BatchStream(BatchView[OutputT], Stream[BatchItem[OutputT], BatchResult[OutputT]]):
    """Items of a batch in order of completion. Leaving the loop cancels running requests.

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
        """Cancel running requests and end the loop. Finished items stay in `rest`."""
        super().close()
        self._batch.close()

    @override
    def collect(self) -> BatchResult[OutputT]:
        """Return all items in input order."""
        if self._result is not None:
            return self._result
        items: list[BatchItem[OutputT]] = []
        try:
            for item in self:
                items.append(item)  # an interrupt must find the items so far
        except KeyboardInterrupt:
            self.close()
            items += self.rest()
            raise BatchInterrupted(self._create_result(items)) from None
        except BatchInputError as error:
            error.result = self._create_result(items)
            raise
        self._result = self._create_result(items)
        return self._result


class _Worker:
    """The worker thread and its outcomes. It has no reference to the stream, which may be collected."""

    def __init__(self, send: SendRequest, context: contextvars.Context) -> None:
        self.outcomes: SimpleQueue[BatchItem] = SimpleQueue()
        self._thread = LoopThread()
        runners: SimpleQueue[RequestRunner] = SimpleQueue()
        outcomes = self.outcomes

        async def create_runner() -> None:
            runners.put(RequestRunner(send, context, outcomes.put))

        self._thread.submit(create_runner(), context.copy())
        self.runner: RequestRunner = runners.get()
        self.check: Callable[[], None] = self._thread.check

    def stop(self) -> None:
        """Cancel running requests and stop the thread."""
        self.runner.abandon()
        self._thread.stop()


class LoopBatch(Scheduler):
    """A batch whose requests are sent on the running event loop."""

    result: BatchResult | None = None

    def __init__(self, plan: BatchPlan) -> None:
        super().__init__(plan)
        self.loop: asyncio.AbstractEventLoop
        self._runner: RequestRunner | None = None
        self._outcomes: asyncio.Queue[BatchItem | None] = asyncio.Queue()
        """Items from the request tasks; None wakes the consumer."""
        self._async_input: _AsyncInput | None = None

    def open(self) -> None:
        self.loop = asyncio.get_running_loop()
        if hasattr(source := self._plan.source, "__aiter__"):
            source = self._async_input = _AsyncInput(aiter(source), self._wake)
        self._open(iter(source))
        self._runner = RequestRunner(self._plan.ask, self._plan.context(), self._outcomes.put_nowait)

    async def advance(self) -> Sequence[BatchItem] | None:
        """Return the next item in a sequence, or None at the end."""
        while True:
            self._take_items(self._outcomes)
            more = self._feed()
            if more:
                await asyncio.sleep(0)  # lets running requests progress
            if (items := self._next()) or items is None:
                return items
            if not more and (item := await self._outcomes.get()) is not None:
                self._add_item(item)

    async def aclose(self) -> None:
        """Cancel running requests."""
        self._end()
        if self._runner is not None:
            self._take_items(self._outcomes)
            self._wake()
            self._runner.cancel()
            if self._async_input is not None:
                self._async_input.cancel()
                await self._async_input.wait_closed()
            await self._runner.wait_closed()

    def abandon(self) -> None:
        """Cancel running requests from a finalizer or another thread."""
        if self._runner is not None and not self._closed:
            self._runner.abandon()
            self._end()
            with suppress(RuntimeError):  # the loop has ended
                if self._async_input is not None:
                    self.loop.call_soon_threadsafe(self._async_input.cancel)
                self.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._outcomes.put_nowait(None)

    @override
    def _start_request(self, index: int, request: Any) -> None:
        if self._runner is not None:
            self._runner.start(index, request)


class AsyncBatchStream(BatchView[OutputT], AsyncStream[BatchItem[OutputT], BatchResult[OutputT]]):
    """Items of a batch in order of completion, for `async for`. Do not await it; leaving the loop cancels."""

    def __init__(self, plan: BatchPlan) -> None:
        super().__init__()
        self._batch: LoopBatch = LoopBatch(plan)

    @override
    def _start_run(self) -> LoopBatch:
        self._batch.open()
        return self._batch

    @override
    async def aclose(self) -> None:
        """Cancel running requests and end the loop. Finished items stay in `rest`."""
        await super().aclose()
        await self._batch.aclose()

    @override
    async def collect(self) -> BatchResult[OutputT]:
        """Return all items in input order."""
        if self._result is not None:
            return self._result
        items: list[BatchItem[OutputT]] = []
        try:
            async for item in self:
                items.append(item)
        except BatchInputError as error:
            error.result = self._create_result(items)
            raise
        except asyncio.CancelledError as error:
            items += self.rest()
            raise error from BatchCancelled(self._create_result(items))
        self._result = self._create_result(items)
        return self._result


class _AsyncInput:
    """Iterator over an async iterable that returns LATER while the next request is fetched.

    A single task reads the input: timeouts and cancel scopes of a generator belong to one task.
    """

    def __init__(self, source: AsyncIterator[Any], wake: Callable[[], None]) -> None:
        self._wake = wake
        self._buffer: deque[Any] = deque()
        self._is_requested = asyncio.Event()
        self._error: BaseException | None = None
        self._task = asyncio.get_running_loop().create_task(self._read(source))
        self._task.add_done_callback(lambda _: wake())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._buffer:
            self._is_requested.set()
            return self._buffer.popleft()
        if not self._task.done():
            return LATER
        error, self._error = self._error, None
        if error is not None:
            raise error
        if self._task.cancelled():
            raise RuntimeError("the input was cancelled")
        raise StopIteration

    async def _read(self, source: AsyncIterator[Any]) -> None:
        try:
            try:
                async for request in source:
                    self._buffer.append(request)
                    self._wake()
                    self._is_requested.clear()
                    await self._is_requested.wait()
            finally:
                # Close it in the same task and immediately: the garbage collector would use another task.
                if (close := getattr(source, "aclose", None)) is not None:
                    await close()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._error = error

    def cancel(self) -> None:
        self._task.cancel()

    async def wait_closed(self) -> None:
        if not self._task.done():
            await asyncio.wait((self._task,), timeout=GRACE)


class BatchCancelled(Exception):
    """The cause of the CancelledError of a cancelled `abatch`. `result` has the finished items.

    It is not a CancelledError itself, since `asyncio.timeout` only converts that exact class.
    """

    def __init__(self, result: BatchResult) -> None:
        super().__init__("the batch was cancelled")
        self.result = result
