"""A network backend for httpcore2 whose timeouts shrink and whose blocking calls another thread can interrupt.

httpcore2 hands the timeout it was given to every system call, so its read timeout starts anew with each byte. Ours is
a `Live`: each call asks the run what is left. Given any other timeout, this behaves as httpcore2's own backend does.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Self

import httpcore2
from typing_extensions import override

from ..wire import BlockingRun, Cancelled, Live

SocketOption = tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]
_LONG = 3600.0


class LiveStream(httpcore2.NetworkStream):
    """A connected socket."""

    def __init__(self, stream: httpcore2.NetworkStream, *, nested: bool = False) -> None:
        self._stream = stream
        self._socket: socket.socket = stream.get_extra_info("socket")
        self._nested = nested
        """TLS inside TLS: the socket carries the outer layer, so only the wrapped stream can read it."""

    @override
    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if not isinstance(timeout, Live):
            return self._stream.read(max_bytes, timeout)
        run = timeout.run
        run.wake = self._interrupt
        try:
            while True:
                self._arm(run, httpcore2.ReadTimeout)
                try:
                    if self._nested:
                        return self._stream.read(max_bytes, run.seconds_left())
                    return self._socket.recv(max_bytes)
                except TimeoutError:
                    continue
        except OSError as error:
            raise httpcore2.ReadError(str(error)) from None
        finally:
            run.wake = None

    @override
    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not isinstance(timeout, Live):
            self._stream.write(buffer, timeout)
            return
        run = timeout.run
        run.wake = self._interrupt
        try:
            if self._nested:
                self._stream.write(buffer, run.seconds_left())
                return
            view = memoryview(buffer)
            while view:
                self._arm(run, httpcore2.WriteTimeout)
                try:
                    view = view[self._socket.send(view) :]
                except TimeoutError:
                    continue
        except OSError as error:
            raise httpcore2.WriteError(str(error)) from None
        finally:
            run.wake = None

    def _arm(self, run: BlockingRun, expired: type[Exception]) -> None:
        """Setting a socket's timeout is a system call: one that is too short stays, and is looked at when it fires."""
        left = run.seconds_left()
        if left <= 0:
            raise expired("the time limit passed")
        current = self._socket.gettimeout()
        if current is None or current > left or current < left / 4:
            self._socket.settimeout(left if left < 0.25 else min(left / 2, _LONG))

    def _interrupt(self) -> None:
        # On the class: an SSLSocket's own shutdown would forget its TLS state under the reader's feet.
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    @override
    def close(self) -> None:
        self._stream.close()

    @override
    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        if not isinstance(timeout, Live):
            return self._upgraded(self._stream.start_tls(ssl_context, server_hostname, timeout))
        run = timeout.run
        run.wake = self._interrupt
        try:
            return self._upgraded(self._stream.start_tls(ssl_context, server_hostname, timeout.seconds()))
        finally:
            run.wake = None

    def _upgraded(self, stream: httpcore2.NetworkStream) -> LiveStream:
        return LiveStream(stream, nested=isinstance(self._socket, ssl.SSLSocket))

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
        attempt = _Attempt(lambda: connect(host, port, limit, local_address, socket_options))
        run = timeout.run
        run.wake = attempt.done.set
        try:
            attempt.start()
            # Asked once more, now that there is something to wake us with.
            in_time = run.cancelled or attempt.done.wait(limit)
            if run.cancelled:
                raise Cancelled
            if not in_time:
                raise httpcore2.ConnectTimeout(f"connecting to {host} took too long")
            stream = LiveStream(attempt.stream())
            if isinstance(timeout, ConnectLimit):
                timeout.stream = stream
            return stream
        except BaseException:
            attempt.abandon()
            raise
        finally:
            run.wake = None


class _Attempt:
    """One try to connect. Neither getaddrinfo nor connect can be interrupted, so it waits in a thread of its own.

    An attempt that nobody waits for any more closes what it still gets.
    """

    def __init__(self, connect: Callable[[], httpcore2.NetworkStream]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._abandoned = False
        self._stream: httpcore2.NetworkStream | None = None
        self._error: Exception | None = None
        self.done = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._main, daemon=True, name="agent-connect").start()

    def _main(self) -> None:
        try:
            stream = self._connect()
            with self._lock:
                if self._abandoned:
                    stream.close()
                else:
                    self._stream = stream
        except Exception as error:
            self._error = error
        finally:
            self.done.set()

    def stream(self) -> httpcore2.NetworkStream:
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None
        assert self._stream is not None
        return self._stream

    def abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            if self._stream is not None:
                self._stream.close()
