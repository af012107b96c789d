"""Asyncio HTTP/1.1 connection pool, one per event loop. A connection carries one request at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from typing_extensions import override

from ..engine.wire import AsyncBody, Limits, Reply, WireRequest
from .asyncio_sockets import AioSocket, aconnect
from .exchange import CONNECT, ConnectionPool, Exchange, Steps, T
from .parser import RequestHead
from .sockets import RECEIVE_BYTES

_TURN_KILOBYTES = 64
"""Kilobytes of buffered response data read before other tasks of the loop get a turn."""


class AioConnectionPool(ConnectionPool[AioSocket]):
    """The connections of one event loop."""

    def close(self) -> None:
        """Close all connections, because their loop ends."""
        self._idle.clear()
        for connection in list(self.open):
            connection.close()

    def send(self, request: WireRequest, head: RequestHead, limits: Limits) -> Coroutine[Any, Any, Reply]:
        exchange = Exchange(self, request, head, limits)
        return self.perform(exchange, exchange.collect())

    async def open_body(
        self, request: WireRequest, head: RequestHead, limits: Limits, bodies: list[AsyncBody]
    ) -> AsyncBody:
        exchange = Exchange(self, request, head, limits)
        await self.perform(exchange, exchange.start())
        body = AioDirectBody(self, exchange)
        bodies.append(body)
        return body

    async def perform(self, exchange: Exchange[AioSocket], steps: Steps[T]) -> T:
        """Perform socket operations on the running loop until the steps return."""
        guarded = exchange.guard(steps)
        reply: Any = None
        failure: Exception | None = None
        try:
            operation = next(guarded)
            while True:
                try:
                    if operation == CONNECT:
                        reply = await self._connect(exchange.head, exchange.limits)
                    elif isinstance(operation, memoryview):
                        await exchange.connection.send(operation)  # type: ignore[union-attr]
                    else:
                        reply = await exchange.connection.receive(RECEIVE_BYTES)  # type: ignore[union-attr]
                        if len(reply) == RECEIVE_BYTES:
                            await asyncio.sleep(0)  # more is buffered, but other tasks get a turn
                except Exception as error:
                    failure = error
                operation = guarded.send(reply) if failure is None else guarded.throw(failure)
                failure = None
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            failure = None  # an error kept in a frame that it references is a cycle
            guarded.close()

    async def _connect(self, head: RequestHead, limits: Limits) -> AioSocket:
        context = self._context() if head.secure else None
        connection = await aconnect(head.host, head.port, limits.connect, context)
        self.open.add(connection)
        return connection


class AioDirectBody(AsyncBody):
    """A streamed response body."""

    __slots__ = ("_exchange", "_kilobytes", "_pool")

    def __init__(self, pool: AioConnectionPool, exchange: Exchange[AioSocket]) -> None:
        super().__init__(exchange.status, exchange.headers)
        self._pool = pool
        self._exchange = exchange
        self._kilobytes = 0

    @override
    async def read(self) -> bytes:
        if self._exchange.connection is None:
            return b""
        if self._kilobytes >= _TURN_KILOBYTES:
            self._kilobytes = 0
            await asyncio.sleep(0)
        piece = await self._pool.perform(self._exchange, self._exchange.read())
        self._kilobytes += 1 + (len(piece) >> 10)
        return piece

    @override
    async def aclose(self) -> None:
        self._exchange.release()
