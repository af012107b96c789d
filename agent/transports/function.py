"""Calls Python functions that are models. Plain code gets a thread, async code the running loop or one of its own."""

from __future__ import annotations

import contextvars
import inspect
import math
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Generator
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

from typing_extensions import override

from .. import errors
from ..context import ambient_deadline
from ..providers.function import ENDED, FunctionCall, failure_of, is_async, write_answer, write_piece
from ..wire import AsyncBody, Headers, Limits, Live, Reply, SyncBody, WireRequest
from .stepping import GRACE, Head, Stepper, Steps, acollect, aopen_body, collect, open_body

T = TypeVar("T")


class FunctionTransport:
    """Carries requests to functions."""

    def send(self, request: WireRequest, limits: Limits, live: Live) -> Reply:
        return collect(self.open(request, limits, live), limits, live)

    def open(self, request: WireRequest, limits: Limits, live: Live) -> SyncBody:
        return open_body(_in_thread(_the_call(request), limits), live)

    async def asend(self, request: WireRequest, limits: Limits) -> Reply:
        return await acollect(await self.aopen(request, limits, []), limits)

    async def aopen(self, request: WireRequest, limits: Limits, bodies: list[AsyncBody]) -> AsyncBody:
        call = _the_call(request)
        if not is_async(call.function):
            return await aopen_body(_in_thread(call, limits), bodies)
        body = _LoopBody(call, _context_for(call, limits))
        bodies.append(body)
        try:
            await body.begin()
        except BaseException:
            bodies.remove(body)
            body.closed = True
            await body.aclose()
            raise
        return body


def _the_call(request: WireRequest) -> FunctionCall:
    if not isinstance(request, FunctionCall):
        raise errors.ConfigurationError(
            "This transport carries requests to functions only.", field="transport", fix="Leave out transport=."
        )
    return request


def _context_for(call: FunctionCall, limits: Limits) -> contextvars.Context:
    """The caller's context variables; a model that the function asks itself must be done in time, too."""
    context = contextvars.copy_context()
    longest = min(limits.total or math.inf, call.request.deadline or math.inf)
    context.run(lambda: ambient_deadline.set(min(ambient_deadline.get(), monotonic() + longest)))
    return context


def _cancelled_itself(call: FunctionCall) -> errors.ProviderError:
    return errors.ProviderError(f"{call.target}: the function cancelled itself")


# In a thread


def _in_thread(call: FunctionCall, limits: Limits) -> Stepper:
    return Stepper(lambda stepper: _steps(call, stepper), _context_for(call, limits))


def _steps(call: FunctionCall, stepper: Stepper) -> Steps:
    """A function has no headers: its first piece says that it has begun."""
    pieces = _pieces(call, stepper)
    try:
        first = next(pieces)
        yield Head(200, Headers())
        yield first
        yield from pieces
    finally:
        pieces.close()


def _pieces(call: FunctionCall, stepper: Stepper) -> Generator[bytes, None, None]:
    """An async function, or a plain one that returns something to await, gets a loop of its own."""
    failed: errors.AgentError | None = None
    try:
        answer = call.function(call.request)
        if inspect.isawaitable(answer) or hasattr(answer, "__aiter__"):
            yield from _on_own_loop(call, _awaited(answer), stepper)
        elif hasattr(answer, "__next__"):
            try:
                for piece in answer:
                    yield write_piece(piece)
            finally:
                if hasattr(answer, "close"):
                    answer.close()
        else:
            yield write_answer(answer)
    except Exception as error:
        failed = failure_of(error, call.target)
    if failed is not None:  # raised out here: an error that is being handled would become its context
        raise failed
    yield ENDED


def _on_own_loop(
    call: FunctionCall, source: AsyncGenerator[bytes, None], stepper: Stepper
) -> Generator[bytes, None, None]:
    import asyncio

    with asyncio.Runner() as runner:
        loop = runner.get_loop()

        def perform(work: Coroutine[Any, Any, T]) -> T:
            async def cancellable() -> T:
                task = asyncio.current_task()
                stepper.interrupt = lambda: loop.call_soon_threadsafe(task.cancel) if task is not None else None
                return await work

            try:
                return runner.run(cancellable())
            except asyncio.CancelledError:
                if stepper.closed:
                    raise
            finally:
                stepper.interrupt = None
            raise _cancelled_itself(call)

        try:
            while piece := perform(_next(source)):
                yield piece
        finally:
            runner.run(source.aclose())


async def _next(source: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(source, b"")


async def _awaited(answer: Any) -> AsyncGenerator[bytes, None]:
    """Something to await, or to iterate with await, or first the one and then the other."""
    if inspect.isawaitable(answer):
        answer = await answer
    if hasattr(answer, "__aiter__"):
        try:
            async for piece in answer:
                yield write_piece(piece)
        finally:
            if hasattr(answer, "aclose"):
                await answer.aclose()
    elif hasattr(answer, "__next__"):
        for piece in answer:
            yield write_piece(piece)
    else:
        yield write_answer(answer)


# On the running loop


class _LoopBody(AsyncBody):
    __slots__ = ("_call", "_context", "_first", "_source")

    def __init__(self, call: FunctionCall, context: contextvars.Context) -> None:
        super().__init__(200, Headers())
        self._call = call
        self._context = context
        self._source = self._pieces()
        self._first: bytes | None = None

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
            source = _awaited(self._call.function(self._call.request))
            try:
                async for piece in source:
                    yield piece
            finally:
                await source.aclose()
        except Exception as error:
            failed = failure_of(error, self._call.target)
        if failed is not None:
            raise failed
        yield ENDED

    async def _step(self) -> bytes:
        import asyncio

        task = asyncio.current_task()
        cancelled_before = 0 if task is None else task.cancelling()
        try:
            return await self._perform(_next(self._source))
        except asyncio.CancelledError:
            if task is not None and task.cancelling() > cancelled_before:
                raise
        raise _cancelled_itself(self._call)

    async def _perform(self, work: Awaitable[T]) -> T:
        """In a task with the function's own context variables; one that swallows its cancellation is left behind."""
        import asyncio

        async def performed() -> T:
            return await work

        inner = asyncio.get_running_loop().create_task(performed(), context=self._context)
        try:
            return await asyncio.shield(inner)
        except asyncio.CancelledError:
            if not inner.done():
                inner.cancel()
                await asyncio.wait({inner}, timeout=GRACE)
            raise

    @override
    async def aclose(self) -> None:
        with suppress(Exception):  # RuntimeError, if it was left behind while running
            await self._perform(self._source.aclose())
