"""`abatch` and `abatch_stream`: many requests at a time on the running event loop.

The input is read on that loop: a plain iterable should be quick, an async one may take its time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from typing import Any, Self

from typing_extensions import override

from ..drivers.limits import GRACE
from ..engine.stream import AsyncStream
from .asking import Asking
from .feeding import LATER, BatchView, Feeding
from .plan import Plan
from .values import BatchInputError, BatchItem, BatchResult


class LoopBatch(Feeding):
    """A batch whose requests are sent on the running event loop."""

    result: BatchResult | None = None

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.loop: asyncio.AbstractEventLoop
        self._asking: Asking | None = None
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
        self._asking = Asking(self._plan.ask, self._plan.context(), self._post.put)

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


class AsyncBatchStream(BatchView, AsyncStream[BatchItem, BatchResult]):
    """The items of a batch as they are done, in no order. There is nothing to await first; leaving the loop cancels."""

    def __init__(self, plan: Plan) -> None:
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
    async def collect(self) -> BatchResult:
        """All items, in the order of the input."""
        if self._result is not None:
            return self._result
        items: list[BatchItem] = []
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
