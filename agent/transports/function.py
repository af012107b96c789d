"""Transport for Python functions as models.

Sync functions run in a thread; async functions run on the running loop, or in sync calls on a loop in a thread.
"""

from __future__ import annotations

import contextvars
import inspect
import math
from collections.abc import AsyncGenerator, Generator
from time import monotonic
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from .. import errors
from ..engine.context import ambient_deadline
from ..engine.wire import AsyncBody, Headers, Limits, Reply, RunTimeout, SyncBody, WireRequest
from ..providers.function import (
    END_EVENT,
    FunctionCall,
    encode_item,
    encode_result,
    error_from_exception,
    is_async_function,
)
from .threaded import GRACE, DeferredBody, Head, Stepper, Steps, acollect, aopen_body, begin_body, collect, open_body

if TYPE_CHECKING:
    import asyncio


class FunctionTransport:
    """Sends requests to functions."""

    def send(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> Reply:
        return collect(self.open(request, limits, timeout), limits, timeout)

    def open(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> SyncBody:
        return open_body(_create_stepper(_check_call(request), limits), timeout)

    async def asend(self, request: WireRequest, limits: Limits) -> Reply:
        return await acollect(await self.aopen(request, limits, []), limits)

    async def aopen(self, request: WireRequest, limits: Limits, bodies: list[AsyncBody]) -> AsyncBody:
        call = _check_call(request)
        if not is_async_function(call.function):
            return await aopen_body(_create_stepper(call, limits), bodies)
        return await begin_body(_LoopBody(call, _context_for(call, limits)), bodies)


def _check_call(request: WireRequest) -> FunctionCall:
    if not isinstance(request, FunctionCall):
        raise errors.ConfigurationError(
            "The function transport works only with a function as the model.", field="transport", fix="Omit transport=."
        )
    return request


def _context_for(call: FunctionCall, limits: Limits) -> contextvars.Context:
    """Copy the caller's context variables, with the ambient deadline for agents that the function calls."""
    context = contextvars.copy_context()
    longest = min(limits.total or math.inf, call.request.deadline or math.inf)
    context.run(lambda: ambient_deadline.set(min(ambient_deadline.get(), monotonic() + longest)))
    return context


def _cancellation_error(call: FunctionCall) -> errors.ProviderError:
    return errors.ProviderError(f"{call.target}: the function raised CancelledError")


# In a thread


def _create_stepper(call: FunctionCall, limits: Limits) -> Stepper:
    return Stepper(lambda stepper: _steps(call, stepper), _context_for(call, limits))


def _steps(call: FunctionCall, stepper: Stepper) -> Steps:
    """Functions have no headers, so the head comes with the first piece."""
    pieces = _pieces(call, stepper)
    try:
        first = next(pieces)
        yield Head(200, Headers())
        yield first
        yield from pieces
    finally:
        pieces.close()


def _pieces(call: FunctionCall, stepper: Stepper) -> Generator[bytes, None, None]:
    """Yield the encoded pieces of a response. Awaitables run on a new event loop."""
    failed: errors.AgentError | None = None
    try:
        answer = call.function(call.request)
        if inspect.isawaitable(answer) or hasattr(answer, "__aiter__"):
            yield from _run_on_new_loop(call, _iterate(answer), stepper)
        elif hasattr(answer, "__next__"):
            try:
                for piece in answer:
                    yield encode_item(piece)
            finally:
                if hasattr(answer, "close"):
                    answer.close()
        else:
            yield encode_result(answer)
    except Exception as error:
        failed = error_from_exception(error, call.target)
    except BaseException as error:  # from a loop inside sync code, not the cancellation of the caller
        if type(error).__name__ != "CancelledError" or stepper.closed:
            raise
        failed = _cancellation_error(call)
    if failed is not None:  # raised outside the handler, so that it has no context
        raise failed
    yield END_EVENT


def _run_on_new_loop(
    call: FunctionCall, source: AsyncGenerator[bytes, None], stepper: Stepper
) -> Generator[bytes, None, None]:
    import asyncio

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        pump = _Pump(source)

        async def cancellable() -> bytes:
            task = asyncio.current_task()
            stepper.interrupt = lambda: loop.call_soon_threadsafe(task.cancel) if task is not None else None
            return await pump.next()

        def perform() -> bytes:
            try:
                return runner.run(cancellable())
            except asyncio.CancelledError:
                if stepper.closed:
                    raise
            finally:
                stepper.interrupt = None
            raise _cancellation_error(call)

        try:
            while piece := perform():
                yield piece
        finally:
            runner.run(pump.stop(grace=None))  # without a limit, because no caller waits for this thread


async def _iterate(answer: Any) -> AsyncGenerator[bytes, None]:
    """Iterate over an awaitable, an async iterator, or an awaitable that returns either iterator."""
    if inspect.isawaitable(answer):
        answer = await answer
    if hasattr(answer, "__aiter__"):
        try:
            async for piece in answer:
                yield encode_item(piece)
        finally:
            if hasattr(answer, "aclose"):
                await answer.aclose()
    elif hasattr(answer, "__next__"):
        for piece in answer:
            yield encode_item(piece)
    else:
        yield encode_result(answer)


class _Pump:
    """Runs an async generator step by step, always in the same task.

    Timeouts and task groups that a generator holds open across a yield belong to the task that opened them.
    """

    __slots__ = ("_context", "_go", "_source", "_stopped", "_task", "_waiting")

    def __init__(self, source: AsyncGenerator[bytes, None], context: contextvars.Context | None = None) -> None:
        import asyncio

        self._source = source
        self._context = context
        self._go = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._waiting: asyncio.Future[bytes] | None = None
        self._stopped = False

    async def next(self) -> bytes:
        """Get the next piece, b"" at the end. Cancelling this cancels the generator."""
        import asyncio

        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[bytes] = loop.create_future()
        self._waiting = waiting
        if self._task is None:
            self._task = loop.create_task(self._run(), context=self._context)
            self._task.add_done_callback(self._end)
        elif self._task.done():
            return b""
        self._go.set()
        try:
            return await waiting
        except asyncio.CancelledError:
            await self.stop()
            raise

    async def stop(self, grace: float | None = GRACE) -> None:
        """Cancel the generator and wait at most `grace` seconds for its cleanup."""
        import asyncio

        self._stopped = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=grace)

    async def _run(self) -> None:
        try:
            await self._wait_for_request()
            async for piece in self._source:
                if self._stopped:
                    break
                if self._waiting is not None and not self._waiting.done():
                    self._waiting.set_result(piece)
                await self._wait_for_request()
        finally:
            await self._source.aclose()

    async def _wait_for_request(self) -> None:
        await self._go.wait()
        self._go.clear()

    def _end(self, task: asyncio.Task[None]) -> None:
        failed = None if task.cancelled() else task.exception()
        waiting, self._waiting = self._waiting, None
        if waiting is None or waiting.done():
            return
        if task.cancelled():
            waiting.cancel()
        elif failed is not None:
            waiting.set_exception(failed)
        else:
            waiting.set_result(b"")


# On the running loop


class _LoopBody(DeferredBody):
    __slots__ = ("_call", "_first", "_pump")

    def __init__(self, call: FunctionCall, context: contextvars.Context) -> None:
        super().__init__(200, Headers())
        self._call = call
        self._pump = _Pump(self._pieces(), context)
        self._first: bytes | None = None

    @override
    async def begin(self) -> None:
        self._first = await self._step()

    @override
    async def read(self) -> bytes:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        return await self._step()

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        failed: errors.AgentError | None = None
        try:
            source = _iterate(self._call.function(self._call.request))
            try:
                async for piece in source:
                    yield piece
            finally:
                await source.aclose()
        except Exception as error:
            failed = error_from_exception(error, self._call.target)
        if failed is not None:
            raise failed
        yield END_EVENT

    async def _step(self) -> bytes:
        import asyncio

        task = asyncio.current_task()
        cancelled_before = 0 if task is None else task.cancelling()
        try:
            return await self._pump.next()
        except asyncio.CancelledError:
            if task is not None and task.cancelling() > cancelled_before:
                raise
        raise _cancellation_error(self._call)

    @override
    async def aclose(self) -> None:
        await self._pump.stop()
