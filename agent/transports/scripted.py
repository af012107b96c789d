"""Transport that plays scripted replies in process, without a socket, in real time."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from typing_extensions import override

from .. import errors
from ..engine.wire import Answer, AsyncBody, Limits, Network, Piece, Reply, RunTimeout, SyncBody, WireRequest
from .threaded import acollect, collect


class ScriptedTransport:
    """Sends requests to a function that returns scripted replies."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def send(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> Reply:
        return collect(self.open(request, limits, timeout), limits, timeout)

    def open(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> SyncBody:
        answer = self._network(request)
        _wait(answer.after, timeout)
        if answer.failure is not None:
            raise answer.failure
        body = _SyncBody(answer, timeout)
        timeout.run.bodies.append(body)
        return body

    async def asend(self, request: WireRequest, limits: Limits) -> Reply:
        return await acollect(await self.aopen(request, limits, []), limits)

    async def aopen(self, request: WireRequest, limits: Limits, bodies: list[AsyncBody]) -> AsyncBody:
        answer = self._network(request)
        await _await(answer.after)
        if answer.failure is not None:
            raise answer.failure
        body = _AsyncBody(answer)
        bodies.append(body)
        return body


class _SyncBody(SyncBody):
    __slots__ = ("_pieces",)

    def __init__(self, answer: Answer, timeout: RunTimeout) -> None:
        super().__init__(answer.status, answer.headers)
        self.timeout = timeout
        self._pieces: Iterator[Piece] = answer.iter_pieces()

    @override
    def read(self) -> bytes:
        for piece in self._pieces:
            _wait(piece.after, self.timeout)
            if isinstance(piece.outcome, Exception):
                raise piece.outcome
            if piece.outcome:
                return piece.outcome
        return b""

    @override
    def close(self) -> None:
        self._pieces = iter(())


class _AsyncBody(AsyncBody):
    __slots__ = ("_pieces",)

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status, answer.headers)
        self._pieces: Iterator[Piece] = answer.iter_pieces()

    @override
    async def read(self) -> bytes:
        for piece in self._pieces:
            await _await(piece.after)
            if isinstance(piece.outcome, Exception):
                raise piece.outcome
            if piece.outcome:
                return piece.outcome
        return b""

    @override
    async def aclose(self) -> None:
        self._pieces = iter(())


def _wait(seconds: float, timeout: RunTimeout) -> None:
    """Wait as a socket would: at most until the deadline, and not after cancellation."""
    if seconds <= 0:
        timeout.run.seconds_left()
        return
    woken = threading.Event()
    timeout.run.wake = woken.set
    try:
        left = timeout.run.seconds_left()
        woken.wait(min(seconds, left))
        if left < seconds:
            raise errors.TimeoutError("the time limit passed")
        timeout.run.seconds_left()
    finally:
        timeout.run.wake = None


async def _await(seconds: float) -> None:
    if seconds > 0:
        import asyncio

        await asyncio.sleep(seconds)
