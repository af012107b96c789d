"""Blocking code in a worker thread, one piece of its response at a time.

A user's function or another library's client cannot be interrupted. Run in a thread, waiting for it has exact timeouts
and cancellation under both drivers; the code is closed as soon as it returns.
"""

from __future__ import annotations

import contextvars
import math
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from typing_extensions import override

from .. import errors
from ..engine.drivers.threads import start_thread
from ..engine.wire import AsyncBody, Headers, Limits, Reply, RunTimeout, SyncBody
from ..http.parser import BodyBuffer

if TYPE_CHECKING:
    import asyncio

GRACE = 1.0
"""Seconds that cancelled code gets to clean up before it is abandoned."""


class Head(NamedTuple):
    """Status and headers of a response."""

    status: int
    headers: Mapping[str, str]


Steps: TypeAlias = Generator[Head | bytes, None, None]
"""A response: its head, then pieces of its body."""
Outcome: TypeAlias = Head | bytes | BaseException


class Stepper:
    """Performs the steps of one response in a daemon thread, one step per request.

    Args:
        create: Creates the steps, in the thread. They may set `interrupt` of the stepper.
        context: Context variables of the steps.
        connect_timeout: Seconds to connect, for steps that report it to `limit_connecting`.
    """

    def __init__(
        self, create: Callable[[Stepper], Steps], context: contextvars.Context, connect_timeout: float | None = None
    ) -> None:
        self._create = create
        self._context = context
        self.connect_timeout: float | None = connect_timeout
        self._connect_until: float | None = None
        self._requests: SimpleQueue[Callable[[Outcome], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._then: Callable[[], None] | None = None
        self._busy = False
        self.closed: bool = False
        self.ended: threading.Event = threading.Event()
        self.interrupt: Callable[[], object] | None = None
        """Interrupts the current step from any thread; None if that is impossible."""

    def request_step(self, settle: Callable[[Outcome], None]) -> None:
        """Perform a step and call `settle` in the thread with the piece, b"" at the end, or the exception."""
        if self.ended.is_set():
            settle(b"")
            return
        self._busy = True
        self._requests.put(settle)
        if self._thread is None:
            self._thread = start_thread(lambda: self._context.run(self._main), "agent-stepper")

    def limit_connecting(self, is_connecting: bool) -> None:
        """Start or end the time to connect. Called by the steps."""
        self._connect_until = monotonic() + (self.connect_timeout or math.inf) if is_connecting else math.inf

    def seconds_to_connect(self) -> float:
        """Seconds left to connect. Before the steps connect, and so start the time, it is all of it."""
        if self._connect_until is None or self.connect_timeout is None:
            return self.connect_timeout or math.inf
        return self._connect_until - monotonic()

    def close(self, then: Callable[[], None] | None = None) -> bool:
        """Close the steps when the current one returns, then call `then`. Returns whether that is imminent."""
        soon = not self._busy or self.interrupt is not None
        self.closed = True
        self._then = then
        if self._thread is None:
            self.ended.set()
        self._requests.put(None)
        interrupt = self.interrupt
        if self._busy and interrupt is not None:
            with suppress(Exception):  # the step has just ended
                interrupt()
        return soon and not self.ended.is_set()

    def _main(self) -> None:
        steps = self._create(self)
        try:
            while (settle := self._requests.get()) is not None:
                outcome: Outcome
                try:
                    outcome = next(steps, b"")
                except BaseException as error:
                    outcome = error
                self._busy = False
                is_last = not outcome or isinstance(outcome, BaseException)
                settle(outcome)
                outcome = b""  # the frame must not keep an error alive
                if is_last:
                    break
        finally:
            with suppress(Exception):  # exceptions while closing are discarded
                steps.close()
            self.ended.set()
            if self._then is not None:
                self._then()


class ThreadBody(SyncBody):
    """Body of a stepper for sync drivers."""

    headers: Mapping[str, str]
    status: int
    __slots__ = ("_stepper",)

    def __init__(self, stepper: Stepper, timeout: RunTimeout) -> None:
        super().__init__(0, Headers())
        self.timeout = timeout
        self._stepper = stepper

    def begin(self) -> None:
        """Wait for the head. The body must already be in the bodies of its run, which closes it."""
        self.status, self.headers = _head(self._step())

    @override
    def read(self) -> bytes:
        return _bytes(self._step())

    def _step(self) -> Head | bytes:
        run = self.timeout.run
        settled = threading.Event()
        outcomes: list[Outcome] = []

        def settle(outcome: Outcome) -> None:
            outcomes.append(outcome)
            settled.set()

        run.wake = settled.set
        try:
            run.seconds_left()  # checked after `wake` was set: an earlier cancel could not use it
            self._stepper.request_step(settle)
            while not settled.is_set():
                left, to_connect = run.seconds_left(), self._stepper.seconds_to_connect()
                if left <= 0:
                    raise errors.TimeoutError("the response took too long")
                if to_connect <= 0:
                    raise connect_timeout_error(self._stepper.connect_timeout)
                wait = min(left, to_connect)
                settled.wait(None if wait == math.inf else wait)
            run.seconds_left()
        finally:
            run.wake = None
        return _unwrap(outcomes)

    @override
    def close(self) -> None:
        if self._stepper.close():  # otherwise the current step may take any time
            self._stepper.ended.wait(GRACE)


class DeferredBody(AsyncBody):
    """An async body whose head arrives later."""

    __slots__ = ()

    async def begin(self) -> None:
        """Wait for the head."""
        raise NotImplementedError


class AsyncThreadBody(DeferredBody):
    """Body of a stepper for asyncio drivers."""

    headers: Mapping[str, str]
    status: int
    __slots__ = ("_stepper",)

    def __init__(self, stepper: Stepper) -> None:
        super().__init__(0, Headers())
        self._stepper = stepper

    @override
    async def begin(self) -> None:
        self.status, self.headers = _head(await self._step())

    @override
    async def read(self) -> bytes:
        return _bytes(await self._step())

    async def _step(self) -> Head | bytes:
        import asyncio

        loop = asyncio.get_running_loop()
        settled = loop.create_future()
        outcomes: list[Outcome] = []

        def deliver() -> None:
            if not settled.done():
                settled.set_result(None)

        def settle(outcome: Outcome) -> None:
            outcomes.append(outcome)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(deliver)

        self._stepper.request_step(settle)
        await settled
        return _unwrap(outcomes)

    @override
    async def aclose(self) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def then() -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.cancel)  # cancelling twice is harmless

        if self._stepper.close(then):
            await asyncio.wait({ended}, timeout=GRACE)


def _head(step: Head | bytes) -> Head:
    assert isinstance(step, Head)
    return step


def _bytes(step: Head | bytes) -> bytes:
    assert isinstance(step, bytes)
    return step


def _unwrap(outcomes: list[Outcome]) -> Head | bytes:
    """Return the only outcome, or raise it without keeping a reference."""
    if not isinstance(outcomes[0], BaseException):
        return outcomes[0]
    raise outcomes.pop()  # type: ignore[misc]


# Helpers for transports


def connect_timeout_error(seconds: float | None) -> errors.TimeoutError:
    return errors.TimeoutError(f"no connection within {seconds or 0:g} s, including proxy and TLS (connect_timeout)")


def open_body(stepper: Stepper, timeout: RunTimeout) -> ThreadBody:
    body = ThreadBody(stepper, timeout)
    timeout.run.bodies.append(body)
    try:
        body.begin()
    except BaseException:
        body.close()
        body.closed = True
        timeout.run.bodies.remove(body)
        raise
    return body


async def aopen_body(stepper: Stepper, bodies: list[AsyncBody]) -> AsyncThreadBody:
    return await begin_body(AsyncThreadBody(stepper), bodies)


B = TypeVar("B", bound=DeferredBody)


async def begin_body(body: B, bodies: list[AsyncBody]) -> B:
    """Add a body to the bodies of its run, and wait for its head."""
    bodies.append(body)
    try:
        await body.begin()
    except BaseException:
        bodies.remove(body)
        body.closed = True
        await body.aclose()
        raise
    return body


def collect(body: SyncBody, limits: Limits, timeout: RunTimeout) -> Reply:
    """Read the whole response and close its body."""
    try:
        buffer = BodyBuffer(body.headers, limits.max_bytes)
        while piece := body.read():
            buffer.add(piece)
        return Reply(body.status, body.headers, buffer.join())
    finally:
        body.close()
        body.closed = True
        timeout.run.bodies.remove(body)


async def acollect(body: AsyncBody, limits: Limits) -> Reply:
    """Async version of `collect`."""
    try:
        buffer = BodyBuffer(body.headers, limits.max_bytes)
        while piece := await body.read():
            buffer.add(piece)
        return Reply(body.status, body.headers, buffer.join())
    finally:
        await body.aclose()
