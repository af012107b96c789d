"""Calls with await over connections of our own: those of one event loop, one request at a time on each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

from typing_extensions import override

from .. import errors
from ..wire import AsyncBody, Limits, Reply, WireRequest
from .direct import KEEPALIVE_SECONDS, SEPARATELY, Origin, most_idle
from .http1 import Address, BadResponse, ResponseReader
from .inflate import inflater_for
from .replies import AT_A_TIME, Collector, cause_of, check_status, ours
from .sockets import RECEIVE_BYTES
from .sockets_aio import AioSocket, connect

if TYPE_CHECKING:
    import ssl


class AioConnections:
    """Those of one event loop. A connection is in use or idle, never both."""

    def __init__(self, context: Callable[[], ssl.SSLContext]) -> None:
        self._context = context
        self._most_idle = most_idle()
        self._loop = asyncio.get_running_loop()
        self._idle: dict[Origin, deque[AioSocket]] = {}
        self.open: WeakSet[AioSocket] = WeakSet()
        """All that there are, in use or not."""

    @property
    def idle(self) -> list[AioSocket]:
        return [connection for waiting in self._idle.values() for connection in waiting]

    def _waiting(self, origin: Origin) -> AioSocket | None:
        """The connection that was used last, as long as the other side keeps it open."""
        waiting = self._idle.get(origin)
        while waiting:
            connection = waiting.pop()
            if self._loop.time() - connection.idle_since < KEEPALIVE_SECONDS and not connection.has_news():
                return connection
            connection.close()
        return None

    async def _connected(self, address: Address, limits: Limits) -> AioSocket:
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
        """Close all of them: the loop ends, and who was left in the middle of an answer cannot read on."""
        self._idle.clear()
        for connection in list(self.open):
            connection.close()

    # Exchanges

    async def send(self, request: WireRequest, address: Address, limits: Limits) -> Reply:
        connection = self._waiting(address.origin)
        try:
            if connection is None:
                connection = await self._connected(address, limits)
            reader = ResponseReader()
            await _ask(connection, request, address, reader)
            collector = Collector(reader.headers, limits.max_bytes)
            inflater = inflater_for(reader.headers.get("content-encoding"))
            piece = reader.rest()
            while True:
                if piece:
                    collector.add(piece if inflater is None else inflater.feed(piece))
                if reader.complete:
                    break
                if reader.failure is not None:
                    raise reader.failure
                data = await connection.receive(RECEIVE_BYTES)
                if not data:
                    reader.end()
                    break
                piece = reader.take(data)
                if len(data) == RECEIVE_BYTES:
                    await asyncio.sleep(0)  # there is more, but others have their turn
            if inflater is not None:
                collector.add(inflater.finish())
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, Exception) and not isinstance(error, errors.AgentError):
                raise ours(error, request) from cause_of(error)
            raise
        if reader.reusable:
            self.give_back(address.origin, connection)
        else:
            connection.close()
        return Reply(reader.status, reader.headers, collector.finish())

    async def open_body(
        self, request: WireRequest, address: Address, limits: Limits, bodies: list[AsyncBody]
    ) -> AsyncBody:
        connection = self._waiting(address.origin)
        try:
            if connection is None:
                connection = await self._connected(address, limits)
            reader = ResponseReader()
            await _ask(connection, request, address, reader)
            body = AioDirectBody(self, connection, reader, request, address.origin)
            bodies.append(body)
            return body
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, Exception) and not isinstance(error, errors.AgentError):
                raise ours(error, request) from cause_of(error)
            raise


async def _ask(connection: AioSocket, request: WireRequest, address: Address, reader: ResponseReader) -> None:
    """Send the request, and wait for the head of the response."""
    body = request.body
    with suppress(OSError):  # a server may answer, and close, before it has read everything: the answer says why
        if len(body) <= SEPARATELY:  # in one piece: written in two, the system would be asked twice
            await connection.send(memoryview(address.request(body) + body))
        else:
            await connection.send(memoryview(address.request(body)))
            await connection.send(memoryview(body))
    while True:
        data = await connection.receive(RECEIVE_BYTES)
        if not data:
            reader.end()
            raise BadResponse("the server closed the connection")
        if reader.take_head(data):
            check_status(reader.status)
            return


class AioDirectBody(AsyncBody):
    """The rest of an answer, while its connection brings it."""

    __slots__ = ("_begun", "_connection", "_connections", "_inflater", "_origin", "_reader", "_request", "_taken")

    def __init__(
        self,
        connections: AioConnections,
        connection: AioSocket,
        reader: ResponseReader,
        request: WireRequest,
        origin: Origin,
    ) -> None:
        super().__init__(reader.status, reader.headers)
        self._inflater = inflater_for(reader.headers.get("content-encoding"))
        self._connections = connections
        self._connection: AioSocket | None = connection
        self._reader = reader
        self._request = request
        self._origin = origin
        self._begun = False
        self._taken = 0

    @override
    async def read(self) -> bytes:
        if self._taken >= AT_A_TIME:
            self._taken = 0
            await asyncio.sleep(0)
        reader, connection, inflater = self._reader, self._connection, self._inflater
        try:
            if not self._begun:
                self._begun = True
                piece = reader.rest()
                if piece and inflater is not None:
                    piece = inflater.feed(piece)
                if piece:
                    return piece
            while not reader.complete and connection is not None:
                if reader.failure is not None:
                    raise reader.failure
                data = await connection.receive(RECEIVE_BYTES)
                if not data:
                    reader.end()
                    break
                self._taken += 1 + (len(data) >> 10)
                piece = reader.take(data)
                if piece and inflater is not None:
                    piece = inflater.feed(piece)
                if piece:
                    return piece
            return inflater.finish() if inflater is not None else b""
        except errors.AgentError:
            raise
        except Exception as error:
            raise ours(error, self._request) from cause_of(error)

    @override
    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._reader.complete and self._reader.reusable:
            self._connections.give_back(self._origin, connection)
        else:
            connection.close()
