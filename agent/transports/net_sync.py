"""A network backend for httpcore2 whose timeouts shrink and whose blocking calls another thread can interrupt.

httpcore2 hands the timeout it was given to every system call, so its read timeout starts anew with each byte. Ours is
a `Live`: each call asks the run what is left. Given any other timeout, this behaves as httpcore2's own backend does.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any, Self

import httpcore2
from typing_extensions import override

from ..wire import BlockingRun, Live
from .sockets import LiveSocket, attempt

SocketOption = tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]


class LiveStream(httpcore2.NetworkStream):
    """A connected socket."""

    def __init__(self, stream: httpcore2.NetworkStream, *, nested: bool = False) -> None:
        self._stream = stream
        self._socket = LiveSocket(stream.get_extra_info("socket"))
        self._nested = nested
        """TLS inside TLS: the socket carries the outer layer, so only the wrapped stream can read it."""

    @override
    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if not isinstance(timeout, Live):
            return self._stream.read(max_bytes, timeout)
        try:
            if not self._nested:
                return self._socket.receive(timeout.run, max_bytes)
            with self._socket.interruptible(timeout.run):
                return self._stream.read(max_bytes, timeout.run.seconds_left())
        except TimeoutError as error:
            raise httpcore2.ReadTimeout(str(error)) from None
        except OSError as error:
            raise httpcore2.ReadError(str(error)) from None

    @override
    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not isinstance(timeout, Live):
            self._stream.write(buffer, timeout)
            return
        try:
            if not self._nested:
                self._socket.send(timeout.run, memoryview(buffer))
                return
            with self._socket.interruptible(timeout.run):
                self._stream.write(buffer, timeout.run.seconds_left())
        except TimeoutError as error:
            raise httpcore2.WriteTimeout(str(error)) from None
        except OSError as error:
            raise httpcore2.WriteError(str(error)) from None

    @override
    def close(self) -> None:
        self._stream.close()

    @override
    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        if not isinstance(timeout, Live):
            return self._upgraded(self._stream.start_tls(ssl_context, server_hostname, timeout))
        with self._socket.interruptible(timeout.run):
            return self._upgraded(self._stream.start_tls(ssl_context, server_hostname, timeout.seconds()))

    def _upgraded(self, stream: httpcore2.NetworkStream) -> LiveStream:
        return LiveStream(stream, nested=self._socket.secure)

    @override
    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class ConnectLimit(Live):
    """The connect timeout of one request, which remembers what it led to.

    httpcore2 forgets a connection whose proxy refuses it or hangs: somebody has to close it.
    """

    __slots__ = ("stream",)
    stream: LiveStream | None

    def __new__(cls, run: BlockingRun, limit: float | None = None) -> Self:
        self = super().__new__(cls, run, limit)
        self.stream = None
        return self

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()


class LiveBackend(httpcore2.SyncBackend):
    """Connects within what the run has left, name resolution included."""

    @override
    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> httpcore2.NetworkStream:
        connect = super().connect_tcp
        if not isinstance(timeout, Live):
            return LiveStream(connect(host, port, timeout, local_address, socket_options))
        limit = timeout.seconds()
        dialled = attempt(lambda: connect(host, port, limit, local_address, socket_options), host, timeout.run, limit)
        stream = LiveStream(dialled)
        if isinstance(timeout, ConnectLimit):
            timeout.stream = stream
        return stream
