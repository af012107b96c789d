"""Sync HTTP/1.1 connections: the pool shared by threads, Happy Eyeballs, deadlines and cancellation.

A socket's own timeout restarts with every byte, so a slow drip would never end. Here each system call gets the time
that the run has left.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from ..engine.wire import BlockingRun, Cancelled, Limits, Reply, RunTimeout, SyncBody, WireRequest
from .exchange import CONNECT, ConnectionPool, Exchange, Steps, T
from .parser import RequestHead

if TYPE_CHECKING:
    import ssl

RECEIVE_BYTES = 64 * 1024
ATTEMPT_DELAY = 0.25
"""Happy Eyeballs: seconds before the next address is tried while earlier attempts are pending (RFC 8305)."""
_MAX_TIMEOUT = 3600.0
_Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)
"""Needs no file descriptor of its own, unlike epoll and kqueue."""


class SocketAddress(NamedTuple):
    """Address family and the argument of `socket.connect`."""

    family: int
    address: tuple[Any, ...]


def resolve_addresses(host: str, port: int) -> list[SocketAddress]:
    """Look up the addresses of a host, alternating between families."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return interleave(list(dict.fromkeys(SocketAddress(info[0], info[4]) for info in infos)))


def interleave(addresses: list[SocketAddress]) -> list[SocketAddress]:
    """Alternate between address families, starting with that of the first address (RFC 8305, section 4)."""
    families = list(dict.fromkeys(address.family for address in addresses))
    queues = [[address for address in addresses if address.family == family] for family in families]
    longest = max(map(len, queues), default=0)
    return [queue[place] for place in range(longest) for queue in queues if place < len(queue)]


def connect_first(addresses: list[SocketAddress], seconds: float) -> socket.socket:
    """Happy Eyeballs: connect to the first address that answers. The returned socket does not block."""
    until = monotonic() + seconds
    untried = list(addresses)
    failure = OSError("the host has no address")
    with selectors.DefaultSelector() as selector:
        try:
            while untried or selector.get_map():
                if untried:
                    try:
                        pending = _start(untried.pop(0))
                        selector.register(pending, selectors.EVENT_WRITE)
                    except OSError as error:
                        failure = error
                        continue
                next_at = monotonic() + ATTEMPT_DELAY if untried else until
                while selector.get_map():
                    left = min(next_at, until) - monotonic()
                    ready = [key.fileobj for key, _ in selector.select(max(0.0, left))]
                    for connecting in ready:
                        assert isinstance(connecting, socket.socket)
                        selector.unregister(connecting)
                        if not (code := connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
                            connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                            return connecting
                        connecting.close()
                        failure = OSError(code, os.strerror(code))
                    if monotonic() >= until:
                        raise TimeoutError("no address of the host answered in time")
                    if ready or monotonic() >= next_at:
                        break  # a failed attempt lets the next address start at once
            raise failure
        finally:
            failure = OSError()  # an error kept in a frame that it references is a cycle
            for key in list(selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()


def _start(address: SocketAddress) -> socket.socket:
    connecting = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)
        with suppress(BlockingIOError):
            connecting.connect(address.address)
    except BaseException:
        connecting.close()
        raise
    return connecting


class Connection:
    """A connected socket for sync calls.

    It closes when it is garbage-collected, because an interrupt may come before the pool or a run owns it.
    """

    __slots__ = ("__weakref__", "_socket", "idle_since")

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.idle_since: float = 0.0

    def start_tls(self, context: ssl.SSLContext, host: str, timeout: RunTimeout) -> Connection:
        """Perform the TLS handshake within the timeout."""
        run = timeout.run
        run.wake = self._interrupt
        try:
            self._socket.settimeout(timeout.seconds())
            return Connection(context.wrap_socket(self._socket, server_hostname=host))
        except BaseException:
            self.close()
            raise
        finally:
            run.wake = None

    def receive(self, run: BlockingRun) -> bytes:
        """Receive bytes, b"" at the end. Raises OSError; TimeoutError when the run has no time left."""
        run.wake = self._interrupt
        try:
            while True:
                self._set_timeout(run)
                try:
                    return self._socket.recv(RECEIVE_BYTES)
                except TimeoutError:
                    continue
        finally:
            run.wake = None

    def send(self, run: BlockingRun, data: memoryview) -> None:
        """Send a view, not bytes: tracebacks that show local variables must not show the key in it."""
        run.wake = self._interrupt
        try:
            while data:
                self._set_timeout(run)
                try:
                    data = data[self._socket.send(data) :]
                except TimeoutError:
                    continue
        finally:
            run.wake = None

    def _set_timeout(self, run: BlockingRun) -> None:
        """Set the socket's timeout. A shorter one is kept to save a system call, and checked when it expires."""
        left = run.seconds_left()
        if left <= 0:
            raise TimeoutError("the time limit passed")
        current = self._socket.gettimeout()
        if current is None or current > left or current < left / 4:
            self._socket.settimeout(left if left < 0.25 else min(left / 2, _MAX_TIMEOUT))

    def _interrupt(self) -> None:
        """Shut the socket down, from another thread, to end a blocking read or write."""
        # socket.socket.shutdown, because SSLSocket.shutdown would drop the TLS state that the reader is using.
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def is_readable(self) -> bool:
        """Whether an idle connection has data or EOF, so that it cannot be reused."""
        if self._socket.fileno() < 0:
            return True
        with _Selector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            return bool(selector.select(0))

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):  # the constructor may have been interrupted
            self._socket.close()


def connect(host: str, port: int, timeout: RunTimeout) -> Connection:
    """Resolve the host and connect, in a worker thread, because a name lookup cannot be interrupted.

    Raises TimeoutError at the limit and Cancelled when the run is cancelled; the attempt then closes the connection
    that it may still get.
    """
    run, seconds = timeout.run, timeout.seconds()
    attempt = _ConnectAttempt(host, port, seconds)
    run.wake = attempt.done.set
    try:
        threading.Thread(target=attempt.main, daemon=True, name="agent-connect").start()
        # Checked again, because a cancellation before `wake` was set could not interrupt the wait.
        in_time = run.cancelled or attempt.done.wait(seconds)
        if run.cancelled:
            raise Cancelled
        if not in_time:
            raise TimeoutError(f"connecting to {host} took too long")
        return Connection(attempt.result())
    except BaseException:
        attempt.abandon()
        raise
    finally:
        run.wake = None


class _ConnectAttempt:
    def __init__(self, host: str, port: int, seconds: float) -> None:
        self._host, self._port, self._seconds = host, port, seconds
        self._lock = threading.Lock()
        self._abandoned = False
        self._connected: socket.socket | None = None
        self._error: Exception | None = None
        self.done = threading.Event()

    def main(self) -> None:
        try:
            connected = connect_first(resolve_addresses(self._host, self._port), self._seconds)
            connected.settimeout(self._seconds)
            with self._lock:
                if self._abandoned:
                    connected.close()
                else:
                    self._connected = connected
        except Exception as error:
            self._error = error
        finally:
            self.done.set()

    def result(self) -> socket.socket:
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None
        assert self._connected is not None
        return self._connected

    def abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            if self._connected is not None:
                self._connected.close()


class SyncConnectionPool(ConnectionPool[Connection]):
    """The sync connections of one process."""

    def send(self, request: WireRequest, head: RequestHead, limits: Limits, timeout: RunTimeout) -> Reply:
        exchange = Exchange(self, request, head, limits)
        return self.perform(exchange, exchange.collect(), timeout.run)

    def open_body(self, request: WireRequest, head: RequestHead, limits: Limits, timeout: RunTimeout) -> SyncBody:
        exchange = Exchange(self, request, head, limits)
        self.perform(exchange, exchange.start(), timeout.run)
        body = DirectBody(self, exchange)
        body.timeout = timeout
        timeout.run.bodies.append(body)  # from here on the run closes it after an interrupt
        return body

    def perform(self, exchange: Exchange[Connection], steps: Steps[T], run: BlockingRun) -> T:
        """Perform socket operations with blocking calls until the steps return."""
        guarded = exchange.guard(steps)
        reply: Any = None
        failure: Exception | None = None
        try:
            operation = next(guarded)
            while True:
                try:
                    if operation == CONNECT:
                        reply = self._connect(exchange.head, RunTimeout(run, exchange.limits.connect))
                    elif isinstance(operation, memoryview):
                        exchange.connection.send(run, operation)  # type: ignore[union-attr]
                    else:
                        reply = exchange.connection.receive(run)  # type: ignore[union-attr]
                except Exception as error:
                    failure = error
                operation = guarded.send(reply) if failure is None else guarded.throw(failure)
                failure = None
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            failure = None  # an error kept in a frame that it references is a cycle
            guarded.close()  # here and not in a finalizer, which would swallow an interrupt

    def _connect(self, head: RequestHead, timeout: RunTimeout) -> Connection:
        context = self._context() if head.secure else None
        connection = connect(head.host, head.port, timeout)
        if context is not None:
            connection = connection.start_tls(context, head.host, timeout)
        self.open.add(connection)
        return connection


class DirectBody(SyncBody):
    """A streamed response body."""

    __slots__ = ("_exchange", "_pool")

    def __init__(self, pool: SyncConnectionPool, exchange: Exchange[Connection]) -> None:
        super().__init__(exchange.status, exchange.headers)
        self._pool = pool
        self._exchange = exchange

    @override
    def read(self) -> bytes:
        exchange = self._exchange
        return b"" if exchange.connection is None else self._pool.perform(exchange, exchange.read(), self.timeout.run)

    @override
    def close(self) -> None:
        self._exchange.release()
