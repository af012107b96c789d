"""Runs blocking code in a worker thread, one piece of its response at a time.

A user's function or another library's client cannot be interrupted, but waiting for it can end exactly in time, under
either driver. The code is closed as soon as it returns.
"""

from __future__ import annotations

import contextvars
import math
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from typing_extensions import override

from .. import errors
from ..engine.wire import AsyncBody, Headers, Limits, Reply, RunTimeout, SyncBody
from ..http.parser import BodyBuffer

if TYPE_CHECKING:
    import asyncio

GRACE = 1.0
"""Seconds that cancelled code gets to clean up before it is left alone."""


class Head(NamedTuple):
    """How an answer begins."""

    status: int
    headers: Mapping[str, str]


Steps: TypeAlias = Generator[Head | bytes, None, None]
"""An answer: first its head, then its bytes."""
Outcome: TypeAlias = Head | bytes | BaseException


class Stepper:
    """Runs one answer's steps in a daemon thread, one whenever it is asked to and none before.

    Args:
        make: Makes the steps, in the thread. They may set `interrupt` of the stepper they are given.
        context: The context variables they see.
    """

    def __init__(self, make: Callable[[Stepper], Steps], context: contextvars.Context) -> None:
        self._make = make
        self._context = context
        self._asked: SimpleQueue[Callable[[Outcome], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._then: Callable[[], None] | None = None
        self._busy = False
        self.closed = False
        self.ended = threading.Event()
        self.interrupt: Callable[[], object] | None = None
        """Ends, from any thread, what the steps wait for just now; None if that cannot be done."""

    def ask(self, settle: Callable[[Outcome], None]) -> None:
        """Have `settle` called, in the stepper's thread, with the next piece, b"" at the end, or what was raised."""
        if self.ended.is_set():
            settle(b"")
            return
        self._busy = True
        self._asked.put(settle)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._context.run, args=(self._main,), daemon=True, name="agent-stepper"
            )
            self._thread.start()

    def close(self, then: Callable[[], None] | None = None) -> bool:
        """Close the steps as soon as they let go, and then call `then`. Whether that is going to be soon."""
        soon = not self._busy or self.interrupt is not None
        self.closed = True
        self._then = then
        if self._thread is None:
            self.ended.set()
        self._asked.put(None)
        interrupt = self.interrupt
        if self._busy and interrupt is not None:
            with suppress(Exception):  # it has ended just now
                interrupt()
        return soon and not self.ended.is_set()

    def _main(self) -> None:
        steps = self._make(self)
        try:
            while (settle := self._asked.get()) is not None:
                outcome: Outcome
                try:
                    outcome = next(steps, b"")
                except BaseException as error:
                    outcome = error
                self._busy = False
                is_last = not outcome or isinstance(outcome, BaseException)
                settle(outcome)
                outcome = b""  # this frame must not keep an error alive
                if is_last:
                    break
        finally:
            with suppress(Exception):  # what is raised while closing, nobody asked for
                steps.close()
            self.ended.set()
            if self._then is not None:
                self._then()


class ThreadBody(SyncBody):
    """A stepper's answer, read with blocking calls."""

    __slots__ = ("_stepper",)

    def __init__(self, stepper: Stepper, timeout: RunTimeout) -> None:
        super().__init__(0, Headers())
        self.timeout = timeout
        self._stepper = stepper

    def begin(self) -> None:
        """Wait for the head. The body must have joined its run before: from here on there is something to close."""
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
            left = run.seconds_left()  # asked now that there is something to wake us with
            self._stepper.ask(settle)
            if not settled.wait(None if left == math.inf else max(0.0, left)):
                raise errors.TimeoutError("the answer took too long")
            run.seconds_left()
        finally:
            run.wake = None
        return _unpacked(outcomes)

    @override
    def close(self) -> None:
        if self._stepper.close():  # else it is in the middle of something, and nobody knows for how long
            self._stepper.ended.wait(GRACE)


class AsyncThreadBody(AsyncBody):
    """A stepper's answer, awaited."""

    __slots__ = ("_stepper",)

    def __init__(self, stepper: Stepper) -> None:
        super().__init__(0, Headers())
        self._stepper = stepper

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
            with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
                loop.call_soon_threadsafe(deliver)

        self._stepper.ask(settle)
        await settled
        return _unpacked(outcomes)

    @override
    async def aclose(self) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def then() -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.cancel)  # an end like any other, and harmless when it comes twice

        if self._stepper.close(then):
            await asyncio.wait({ended}, timeout=GRACE)


def _head(step: Head | bytes) -> Head:
    assert isinstance(step, Head)
    return step


def _bytes(step: Head | bytes) -> bytes:
    assert isinstance(step, bytes)
    return step


def _unpacked(outcomes: list[Outcome]) -> Head | bytes:
    """The one outcome; nothing keeps an error that was raised."""
    if not isinstance(outcomes[0], BaseException):
        return outcomes[0]
    raise outcomes.pop()  # type: ignore[misc]


# Opening and collecting, for the transports that are made of these


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
    body = AsyncThreadBody(stepper)
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
    """The whole answer, and the end of its body."""
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
