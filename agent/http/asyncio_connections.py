"""Asyncio HTTP/1.1 connections: one pool per event loop, Happy Eyeballs and TLS.

Protocols cost less than half of asyncio streams. Only connecting has a timeout; the driver cancels everything else.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from typing_extensions import override

from ..engine.wire import AsyncBody, Limits, Reply, WireRequest
from . import connections
from .connections import RECEIVE_BYTES, SocketAddress, attempt_delay, choose_failure, is_address, start_lookup
from .exchange import CONNECT, ConnectionPool, Exchange, Steps, T
from .parser import RequestHead

_BUFFER_BYTES = 16 * 1024
"""Bytes received at a time: a loop serves all readable connections before any task runs."""
_HIGH_WATER = 64 * 1024
_TURN_KILOBYTES = 64
"""Kilobytes of buffered response data read before other tasks of the loop get a turn."""
_buffers: WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview] = WeakKeyDictionary()


def _buffer_of(loop: asyncio.AbstractEventLoop) -> memoryview:
    """The receive buffer shared by all connections of a loop.

    Each connection copies its bytes out before the next one receives. Without a shared buffer the loop would allocate
    256 kB for each receive.
    """
    buffer = _buffers.get(loop)
    if buffer is None:
        buffer = _buffers[loop] = memoryview(bytearray(_BUFFER_BYTES))
    return buffer


class AioSocket(asyncio.BufferedProtocol):
    """A connection, with its received chunks and the futures of its reader and writer."""

    __slots__ = (
        "__weakref__", "buffer", "chunks", "ended", "error", "idle_since", "loop", "paused", "reader", "size",
        "transport", "writer",
    )  # fmt: skip

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.buffer: memoryview[int] = _buffer_of(self.loop)
        self.transport: Any = None
        self.chunks: list[bytes] = []
        self.size: int = 0
        self.ended: bool = False
        self.paused: bool = False
        self.error: Exception | None = None
        self.reader: asyncio.Future[None] | None = None
        self.writer: asyncio.Future[None] | None = None
        self.idle_since: float = 0.0

    # Callbacks of the loop

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self._store(bytes(self.buffer[:nbytes]))
        wake(self.reader)

    def _store(self, data: bytes) -> None:
        self.chunks.append(data)
        self.size += len(data)
        if self.size > _HIGH_WATER and not self.paused:
            self.paused = True
            self.transport.pause_reading()

    @override
    def eof_received(self) -> bool:
        self.ended = True
        wake(self.reader)
        return False

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self.ended:
            self._receive_rest()
        self.ended = True
        if self.error is None:  # a TLS alert is more specific than the reset that follows it
            self.error = exc
        wake(self.reader)
        wake(self.writer)

    def _receive_rest(self) -> None:
        """Read the system's buffer, because after a failed write asyncio drops the server's reply."""
        with suppress(OSError, ValueError), _duplicate(self.transport.get_extra_info("socket")) as rest:
            while self.size < _HIGH_WATER and (received := rest.recv_into(self.buffer)):
                self.buffer_updated(received)

    @override
    def pause_writing(self) -> None:
        self.writer = self.loop.create_future()

    @override
    def resume_writing(self) -> None:
        wake(self.writer)
        self.writer = None

    # Methods for the pool

    async def receive(self, most: int) -> bytes:
        """Receive bytes, b"" at the end. Raises the OSError that broke the connection."""
        while not self.chunks and not self.ended:
            self.reader = self.loop.create_future()
            try:
                await self.reader
            finally:
                self.reader = None
        if self.chunks:
            return self._take(most)
        if self.error is not None:
            raise OSError(str(self.error) or type(self.error).__name__) from self.error
        return b""

    def _take(self, most: int) -> bytes:
        """Take received bytes, limited so that other tasks of the loop get a turn."""
        data = self.chunks[0] if len(self.chunks) == 1 else b"".join(self.chunks)
        self.chunks.clear()
        if len(data) > most:
            self.chunks.append(data[most:])
            data = data[:most]
        self.size -= len(data)
        if self.paused and self.size <= most:
            self.paused = False
            self.transport.resume_reading()
        return data

    async def send(self, data: memoryview) -> None:
        """Send, and wait while the write buffer is full. Raises OSError if the connection is lost."""
        if self.error is not None or self.transport.is_closing():
            raise OSError("the connection is lost")
        self.transport.write(data)
        if self.writer is not None:
            await self.writer

    def is_readable(self) -> bool:
        """Whether an idle connection has data or EOF, so that it cannot be reused."""
        return self.ended or bool(self.chunks) or self.transport.is_closing()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def _duplicate(connected: Any) -> socket.socket:
    """Duplicate a socket, because asyncio's own handle cannot receive."""
    return socket.socket(fileno=os.dup(connected.fileno()))


def wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


async def aconnect(host: str, port: int, seconds: float | None, context: ssl.SSLContext | None = None) -> AioSocket:
    """Connect within the timeout, including the lookup and the TLS handshake if there is a context."""
    try:
        async with asyncio.timeout(None if seconds == math.inf else seconds):
            addresses = await _look_up(host, port)
            delay = attempt_delay(len(addresses), math.inf if seconds is None else seconds)
            return await _connect_first(addresses, host, context, delay)
    except TimeoutError:
        raise TimeoutError(f"connecting to {host} took too long") from None


async def _look_up(host: str, port: int) -> list[SocketAddress]:
    """Look up a host in a thread: the executor of the loop has few, and delays the exit."""
    if is_address(host):
        return connections.resolve_addresses(host, port)
    loop = asyncio.get_running_loop()
    lookup: asyncio.Future[list[SocketAddress]] = loop.create_future()

    def deliver(outcome: list[SocketAddress] | Exception) -> None:
        if lookup.done():
            return
        if isinstance(outcome, Exception):
            lookup.set_exception(outcome)
        else:
            lookup.set_result(outcome)

    def settle(outcome: list[SocketAddress] | Exception) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(deliver, outcome)

    start_lookup(host, port, settle)
    return await lookup


async def _connect_first(
    addresses: list[SocketAddress], host: str, context: ssl.SSLContext | None, seconds_each: float
) -> AioSocket:
    """Happy Eyeballs: connect to the first address that answers. The caller limits the time."""
    loop = asyncio.get_running_loop()
    untried = list(addresses)
    next_at = 0.0
    pending: set[asyncio.Task[AioSocket]] = set()
    failure = OSError("the host has no address")

    def report_progress() -> None:
        nonlocal next_at
        next_at = loop.time() + seconds_each

    try:
        while untried or pending:
            if untried and loop.time() >= next_at:
                report_progress()
                pending.add(loop.create_task(_establish(untried.pop(0), host, context, report_progress)))
            delay = max(0.0, next_at - loop.time()) if untried else None
            done, pending = await asyncio.wait(pending, timeout=delay, return_when=asyncio.FIRST_COMPLETED)
            connected = [task.result() for task in done if task.exception() is None]
            for extra in connected[1:]:
                extra.close()
            if connected:
                return connected[0]
            for task in done:
                error = task.exception()
                if not isinstance(error, OSError):
                    await task  # raises it
                else:
                    failure = choose_failure(failure, error)
                    next_at = 0.0  # a failed attempt lets the next address start at once
        raise failure
    finally:
        failure = OSError()  # an error kept in a frame that it references is a cycle
        error = None
        for task in pending:
            task.add_done_callback(_discard)
            task.cancel()


def _discard(task: asyncio.Task[AioSocket]) -> None:
    """Close the connection of an attempt that lost the race."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()


async def _establish(
    address: SocketAddress, host: str, context: ssl.SSLContext | None, report_progress: Callable[[], object]
) -> AioSocket:
    """Connect to an address, with TLS if there is a context."""
    loop = asyncio.get_running_loop()
    connecting = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)
        await loop.sock_connect(connecting, address.address)
        with suppress(OSError):
            connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            return (await loop.create_connection(AioSocket, sock=connecting))[1]
        report_progress()
        _, connection = await loop.create_connection(lambda: TlsSocket(context, host), sock=connecting)
    except BaseException:
        connecting.close()
        raise
    try:
        await connection.handshake()
    except BaseException:
        connection.close()
        raise
    return connection


_ENCRYPTED_BYTES = 64 * 1024
"""Bytes encrypted at a time, so that a long request is not in memory twice."""


class TlsSocket(AioSocket):
    """A TLS connection. `handshake` comes before anything is sent or received."""

    __slots__ = ("_incoming", "_is_established", "_outgoing", "_tls")

    def __init__(self, context: ssl.SSLContext, name: str) -> None:
        super().__init__()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._is_established = False

    async def handshake(self) -> None:
        """Perform the TLS handshake. Raises the SSLError or OSError that it fails with."""
        self._continue_handshake()
        while not self._is_established:
            if self.error is not None:
                try:
                    raise self.error
                finally:
                    self.error: ssl.SSLError | None = (
                        None  # the error's frames and this connection would keep each other alive
                    )
            if self.ended:
                raise OSError("the server closed the connection during the TLS handshake")
            await self._wait_for_data()

    def _continue_handshake(self) -> None:
        try:
            self._tls.do_handshake()
            self._is_established = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._fail(error)
        self._flush()

    async def _wait_for_data(self) -> None:
        self.reader = self.loop.create_future()
        try:
            await self.reader
        finally:
            self.reader = None

    # Callbacks of the loop

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self._incoming.write(self.buffer[:nbytes])
        if not self._is_established:
            self._continue_handshake()
        if self._is_established:  # data may arrive together with the end of the handshake
            self._decrypt()
        wake(self.reader)

    def _decrypt(self) -> None:
        try:
            while data := self._tls.read(len(self.buffer)):
                self._store(data)
            self.ended: bool = True  # close_notify
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            self._fail(error)
        if self._outgoing.pending:
            self._flush()

    def _fail(self, error: ssl.SSLError) -> None:
        self.error = error.with_traceback(None)  # its frames would hold this connection, in a cycle
        self.ended = True

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and not self.transport.is_closing():
            self.transport.write(data)

    # Methods for the pool

    @override
    async def send(self, data: memoryview) -> None:
        for start in range(0, len(data), _ENCRYPTED_BYTES):
            await self._send_piece(data[start : start + _ENCRYPTED_BYTES])

    async def _send_piece(self, data: memoryview) -> None:
        while data:
            if self.error is not None or self.transport.is_closing():
                raise OSError("the connection is lost")
            try:
                data = data[self._tls.write(data) :]
            except ssl.SSLWantReadError:  # the server renegotiates keys before it reads more
                self._flush()
                if self.ended:
                    raise OSError("the connection is lost") from None
                await self._wait_for_data()
            except ssl.SSLError as error:
                raise OSError(str(error)) from None
        self._flush()
        if self.writer is not None:
            await self.writer


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
