"""A network backend for httpcore2 on our own asyncio sockets, for what goes through a proxy."""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Iterable
from typing import Any, Self

import httpcore2
from typing_extensions import override

from .net_sync import SocketOption
from .sockets_aio import AioSocket, dial, finite


class AioStream(httpcore2.AsyncNetworkStream):
    """A connected socket."""

    def __init__(self, connection: AioSocket, transport: Any) -> None:
        self._connection = connection
        self._transport = transport
        connection.transport = transport

    @override
    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            return await self._connection.receive(max_bytes)
        except OSError as error:
            raise httpcore2.ReadError(str(error)) from None

    @override
    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            await self._connection.send(memoryview(buffer))
        except OSError as error:
            raise httpcore2.WriteError(str(error)) from None

    @override
    async def aclose(self) -> None:
        self._transport.abort()

    @override
    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(finite(timeout)):
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
            async with asyncio.timeout(finite(timeout)):
                connection = await dial(host, port, source=source)
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(f"connecting to {host} took too long") from error
        except (OSError, UnicodeError) as error:
            raise httpcore2.ConnectError(f"{host} cannot be reached: {error}") from error
        if isinstance(timeout, ConnectLimit):
            timeout.transport = connection.transport
        for option in socket_options or ():
            connection.transport.get_extra_info("socket").setsockopt(*option)
        return AioStream(connection, connection.transport)

    @override
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
