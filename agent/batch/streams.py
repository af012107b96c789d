"""Batch streams: sync batches run on a worker thread, async batches on the event loop.

Sync batches send all requests from one event loop in a worker thread. The input is read and the items are yielded on
the caller's thread, so that database cursors stay in their thread.
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

_POLL_SECONDS = 1.0
"""Longest blocking wait, so that signals are handled."""


class ThreadedBatch(Scheduler):
    """A batch whose requests are sent from a worker thread."""

    result: BatchResult | None = None

    def __init__(self, plan: BatchPlan) -> None:
        super().__init__(plan)
        self._worker: _Worker | None = None

    @property
    def finished(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def open(self) -> None:
        self._open(iter)
        self._worker = _Worker(self._plan.ask, self._plan.context())

    def advance(self) -> Sequence[BatchItem] | None:
        """Return the next item in a sequence, or None at the end."""
        while (worker := self._worker) is not None:
            self._collect_outcomes(worker)
            more = self._feed()
            if self._closed:
                break
            if self._ready:
                return (self._ready.popleft(),)
            if self.is_over():
                self._raise_input_error()
                break
            if not more:
                self._wait(worker)
        return None

    def close(self) -> None:
        """Cancel running requests and stop the thread."""
        worker, self._worker = self._worker, None
        self._closed = True
        if worker is not None:
            worker.stop()
            self._collect_outcomes(worker)
        self._end()

    def cancel(self) -> None:
        self.close()

    def _wait(self, worker: _Worker) -> None:
        # With a timeout: Windows, and signals sent to other threads, do not interrupt an endless wait.
        with suppress(Empty):
            self._add_item(worker.outcomes.get(timeout=_POLL_SECONDS))

    def _collect_outcomes(self, worker: _Worker) -> None:
        with suppress(Empty):
            while True:
                self._add_item(worker.outcomes.get_nowait())

    @override
    def _start_request(self, index: int, request: Any) -> None:
        if self._worker is not None:
            self._worker.begin(index, request)


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
        self._runner = runners.get()

    def begin(self, index: int, request: Any) -> None:
        self._runner.start_soon(index, request)

    def stop(self) -> None:
        """Cancel running requests and stop the thread."""
        self._runner.abandon()
        self._thread.stop()


class LoopBatch(Scheduler):
    """A batch whose requests are sent on the running event loop."""

    result: BatchResult | None = None

    def __init__(self, plan: BatchPlan) -> None:
        super().__init__(plan)
        self.loop: asyncio.AbstractEventLoop
        self._runner: RequestRunner | None = None
        self._mailbox = _Mailbox()
        self._async_input: _AsyncInput | None = None

    @property
    def finished(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def open(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._open(self._iterate)
        self._runner = RequestRunner(self._plan.ask, self._plan.context(), self._mailbox.put)

    async def advance(self) -> Sequence[BatchItem] | None:
        """Return the next item in a sequence, or None at the end."""
        while True:
            self._collect_outcomes()
            more = self._feed()
            if more:
                await asyncio.sleep(0)  # lets running requests progress
            if self._closed:
                return None
            if self._ready:
                return (self._ready.popleft(),)
            if self.is_over():
                self._raise_input_error()
                return None
            if not more:
                await self._mailbox.wait()

    async def aclose(self) -> None:
        """Cancel running requests."""
        self._end()
        if self._runner is not None:
            self._collect_outcomes()
            self._mailbox.wake()
            self._runner.cancel()
            if self._async_input is not None:
                self._async_input.cancel()
                await self._async_input.wait_closed()
            await self._runner.wait_closed()

    def abandon(self) -> None:
        """Cancel running requests from a finalizer or another thread."""
        if self._runner is not None and not self._closed:
            self._runner.abandon()
            if self._async_input is not None:
                self._async_input.abandon()
            self._end()
            with suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(self._mailbox.wake)

    def _iterate(self, source: Any) -> Iterator[Any]:
        if not hasattr(source, "__aiter__"):
            return iter(source)
        self._async_input = _AsyncInput(aiter(source), self._mailbox)
        return self._async_input

    def _collect_outcomes(self) -> None:
        while self._mailbox.items:
            self._add_item(self._mailbox.items.popleft())

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


class _Mailbox:
    """Items from request tasks, and a wake-up for the consumer."""

    __slots__ = ("_waiter", "items")

    def __init__(self) -> None:
        self.items: deque[BatchItem] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: BatchItem) -> None:
        self.items.append(item)
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class _AsyncInput:
    """Iterator over an async iterable that returns LATER while the next request is fetched.

    A single task reads the input: timeouts and cancel scopes of a generator belong to one task.
    """

    __slots__ = ("_buffer", "_error", "_is_requested", "_loop", "_mailbox", "_task")

    def __init__(self, source: AsyncIterator[Any], post: _Mailbox) -> None:
        self._mailbox = post
        self._buffer: deque[Any] = deque()
        self._is_requested = asyncio.Event()
        self._error: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._read(source))
        self._task.add_done_callback(lambda _: post.wake())

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
                    self._mailbox.wake()
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

    def abandon(self) -> None:
        """Cancel from a finalizer."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.cancel)

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
