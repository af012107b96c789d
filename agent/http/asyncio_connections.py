"""Asyncio HTTP/1.1 connection pool, one per event loop. A connection carries one request at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakSet

from typing_extensions import override

from .. import errors
from ..engine.wire import AsyncBody, Limits, Reply, WireRequest
from .asyncio_sockets import AioSocket, connect
from .connections import KEEPALIVE_SECONDS, Origin, most_idle
from .exchange import RECEIVE, Exchange, ResponseExchange, StaleConnection, T, cause_of, map_error
from .parser import Address
from .sockets import RECEIVE_BYTES

if TYPE_CHECKING:
    import ssl

_TURN_KILOBYTES = 64
"""Kilobytes of a response that is already here before other tasks of the loop get their turn."""


class AioConnections:
    """The connections of one event loop. Each is in use or idle, never both."""

    def __init__(self, context: Callable[[], ssl.SSLContext]) -> None:
        self._context = context
        self._most_idle = most_idle()
        self._loop = asyncio.get_running_loop()
        self._idle: dict[Origin, deque[AioSocket]] = {}
        self.open: WeakSet[AioSocket] = WeakSet()
        """All connections, in use or idle."""

    @property
    def idle(self) -> list[AioSocket]:
        return [connection for waiting in self._idle.values() for connection in waiting]

    def take_idle(self, origin: Origin) -> AioSocket | None:
        """The connection that was used last and is still open."""
        waiting = self._idle.get(origin)
        while waiting:
            connection = waiting.pop()
            if self._loop.time() - connection.idle_since < KEEPALIVE_SECONDS and not connection.has_news():
                return connection
            connection.close()
        return None

    async def connect(self, address: Address, limits: Limits) -> AioSocket:
        context = self._context() if address.secure else None
        connection = await connect(address.host, address.port, limits.connect, context)
        self.open.add(connection)
        return connection

    def give_back(self, origin: Origin, connection: AioSocket) -> None:
        connection.idle_since = now = self._loop.time()
        waiting = self._idle.setdefault(origin, deque())
        waiting.append(connection)
        while len(waiting) > self._most_idle or now - waiting[0].idle_since >= KEEPALIVE_SECONDS:
            waiting.popleft().close()

    def close(self) -> None:
        """Close all connections, because their loop ends."""
        self._idle.clear()
        for connection in list(self.open):
            connection.close()

    # Exchanges

    async def send(self, request: WireRequest, address: Address, limits: Limits) -> Reply:
        connection, exchange, reply = await self._perform(ResponseExchange.collect, request, address, limits)
        self._release(address.origin, connection, exchange)
        return reply

    async def open_body(
        self, request: WireRequest, address: Address, limits: Limits, bodies: list[AsyncBody]
    ) -> AsyncBody:
        connection, exchange, _ = await self._perform(ResponseExchange.start, request, address, limits)
        body = AioDirectBody(self, connection, exchange, request, address.origin)
        bodies.append(body)
        return body

    async def _perform(
        self,
        act: Callable[[ResponseExchange], Exchange[T]],
        request: WireRequest,
        address: Address,
        limits: Limits,
    ) -> tuple[AioSocket, ResponseExchange, T]:
        """Perform an exchange on an idle connection, or on a new one where there is none or it turns out closed."""
        connection: AioSocket | None = None
        try:
            connection = self.take_idle(address.origin)
            if connection is not None:
                exchange = ResponseExchange(request, address, limits, reused=True)
                try:
                    return connection, exchange, await perform(act(exchange), connection)
                except StaleConnection:
                    connection.close()
            connection = await self.connect(address, limits)
            exchange = ResponseExchange(request, address, limits, reused=False)
            return connection, exchange, await perform(act(exchange), connection)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, Exception) and not isinstance(error, errors.AgentError):
                raise map_error(error, request) from cause_of(error)
            raise

    def _release(self, origin: Origin, connection: AioSocket, exchange: ResponseExchange) -> None:
        if exchange.keeps_connection:
            self.give_back(origin, connection)
        else:
            connection.close()


async def perform(exchange: Exchange[T], connection: AioSocket) -> T:
    """Perform an exchange on the running loop."""
    received, failed = b"", None
    try:
        wanted = next(exchange)
        while True:
            try:
                if wanted is RECEIVE:
                    received = await connection.receive(RECEIVE_BYTES)
                    if len(received) == RECEIVE_BYTES:
                        await asyncio.sleep(0)  # more is here already, but other tasks get their turn
                else:
                    await connection.send(wanted)
            except OSError as error:
                failed = error
            wanted = exchange.send(received) if failed is None else exchange.throw(failed)
            failed = None
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        failed = None  # an error that stays in a frame it refers to is a reference cycle


class AioDirectBody(AsyncBody):
    """A streamed response body."""

    __slots__ = ("_connection", "_connections", "_exchange", "_origin", "_request", "_taken")

    def __init__(
        self,
        connections: AioConnections,
        connection: AioSocket,
        exchange: ResponseExchange,
        request: WireRequest,
        origin: Origin,
    ) -> None:
        super().__init__(exchange.status, exchange.headers)
        self._connections = connections
        self._connection: AioSocket | None = connection
        self._exchange = exchange
        self._request = request
        self._origin = origin
        self._taken = 0

    @override
    async def read(self) -> bytes:
        if self._connection is None:
            return b""
        if self._taken >= _TURN_KILOBYTES:
            self._taken = 0
            await asyncio.sleep(0)
        try:
            piece = await perform(self._exchange.read(), self._connection)
        except errors.AgentError:
            raise
        except Exception as error:
            raise map_error(error, self._request) from cause_of(error)
        self._taken += 1 + (len(piece) >> 10)
        return piece

    @override
    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._connections._release(self._origin, connection, self._exchange)
