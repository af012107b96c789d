"""A network backend for httpcore2 on a bare asyncio protocol.

It costs less than half of anyio's streams and needs no timeouts but the one for connecting: the driver cancels what
takes too long.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import socket
import ssl
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Self

import httpcore2
from typing_extensions import override

from .net_sync import SocketOption

_HIGH_WATER = 256 * 1024


class _Connection(asyncio.Protocol):
    """The receiving end: what has come, and who waits for it."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.chunks: list[bytes] = []
        self.size = 0
        self.ended = False
        self.paused = False
        self.error: Exception | None = None
        self.reader: asyncio.Future[None] | None = None
        self.writer: asyncio.Future[None] | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        self.chunks.append(data)
        self.size += len(data)
        if self.size > _HIGH_WATER and not self.paused:
            self.paused = True
            self.transport.pause_reading()
        _wake(self.reader)

    @override
    def eof_received(self) -> bool:
        self.ended = True
        _wake(self.reader)
        return False

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self.error = exc
        _wake(self.reader)
        _wake(self.writer)

    @override
    def pause_writing(self) -> None:
        self.writer = asyncio.get_running_loop().create_future()

    @override
    def resume_writing(self) -> None:
        _wake(self.writer)
        self.writer = None

    def take(self, most: int) -> bytes:
        """What has come, but no more than can be dealt with at a time: the loop has other tasks, too."""
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


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class AioStream(httpcore2.AsyncNetworkStream):
    """A connected socket."""

    def __init__(self, connection: _Connection, transport: Any) -> None:
        self._connection = connection
        self._transport = transport
        connection.transport = transport

    @override
    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        connection = self._connection
        if not connection.chunks and not connection.ended:
            connection.reader = asyncio.get_running_loop().create_future()
            try:
                await connection.reader
            finally:
                connection.reader = None
        if connection.chunks:
            return connection.take(max_bytes)
        if connection.error is not None:
            raise httpcore2.ReadError(str(connection.error))
        return b""

    @override
    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._connection.error is not None or self._transport.is_closing():
            raise httpcore2.WriteError("the connection is lost")
        self._transport.write(buffer)
        if self._connection.writer is not None:
            await self._connection.writer

    @override
    async def aclose(self) -> None:
        self._transport.abort()

    @override
    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_seconds(timeout)):
                transport = await loop.start_tls(
                    self._transport, self._connection, ssl_context, server_hostname=server_hostname
                )
        except TimeoutError as error:
            self._transport.abort()
            raise httpcore2.ConnectTimeout("the TLS handshake took too long") from error
        except OSError as error:
            self._transport.abort()
            raise httpcore2.ConnectError(str(error)) from error
        except BaseException:
            self._transport.abort()
            raise
        return AioStream(self._connection, transport)

    @override
    def get_extra_info(self, info: str) -> Any:
        match info:
            case "is_readable":
                return self._connection.ended or bool(self._connection.chunks)
            case "ssl_object" | "socket":
                return self._transport.get_extra_info(info)
            case "client_addr":
                return self._transport.get_extra_info("sockname")
            case "server_addr":
                return self._transport.get_extra_info("peername")
            case _:
                return None


async def _connect(host: str, port: int, source: tuple[str, int] | None) -> tuple[asyncio.Transport, _Connection]:
    """The first of the host's addresses that can be reached."""
    loop = asyncio.get_running_loop()
    addresses = await resolve(host, port)
    for last, address in enumerate(addresses, 1 - len(addresses)):
        try:
            return await loop.create_connection(_Connection, address, port, local_addr=source)
        except OSError:
            if last == 0:
                raise
    raise OSError("it has no address")


async def resolve(host: str, port: int) -> list[str]:
    """Addresses in the system's order, looked up in a daemon thread.

    A lookup can hang for minutes and cannot be interrupted. In the loop's own executor it would take one of few
    threads, and `asyncio.run` and the interpreter's exit would wait for it.
    """
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def settle(addresses: list[str], error: Exception | None) -> None:
        if found.done():
            return
        if error is not None:
            found.set_exception(error)
        else:
            found.set_result(addresses)

    def main() -> None:
        addresses: list[str] = []
        failure: Exception | None = None
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))
        except Exception as error:
            failure = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, addresses, failure)

    threading.Thread(target=main, daemon=True, name="agent-lookup").start()
    return await found


class ConnectLimit(float):
    """The connect timeout of one request, which remembers what it led to.

    httpcore2 forgets a connection whose proxy refuses it or hangs: somebody has to close it.
    """

    __slots__ = ("transport",)
    transport: asyncio.Transport | None

    def __new__(cls, seconds: float | None) -> Self:
        self = super().__new__(cls, math.inf if seconds is None else seconds)
        self.transport = None
        return self

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def _seconds(timeout: float | None) -> float | None:
    return None if timeout == math.inf else timeout


class AioBackend(httpcore2.AsyncNetworkBackend):
    """Connects with the running loop."""

    @override
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        source = None if local_address is None else (local_address, 0)
        try:
            async with asyncio.timeout(_seconds(timeout)):
                transport, connection = await _connect(host, port, source)
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(f"connecting to {host} took too long") from error
        except (OSError, UnicodeError) as error:
            raise httpcore2.ConnectError(f"{host} cannot be reached: {error}") from error
        if isinstance(timeout, ConnectLimit):
            timeout.transport = transport
        for option in socket_options or ():
            transport.get_extra_info("socket").setsockopt(*option)
        return AioStream(connection, transport)

    @override
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
