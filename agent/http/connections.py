"""Sync HTTP/1.1 connections: the pool shared by threads, Happy Eyeballs, deadlines and cancellation.

A socket's own timeout restarts with every byte, so a slow drip would never end. Here each system call gets the time
that the run has left.
"""

from __future__ import annotations

import math
import os
import selectors
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from ..engine.drivers.threads import start_thread
from ..engine.wire import BlockingRun, Limits, Reply, RunTimeout, SyncBody, WireRequest
from .exchange import CONNECT, ConnectionPool, Exchange, Steps, T, is_certificate_error
from .parser import RequestHead

if TYPE_CHECKING:
    import ssl

RECEIVE_BYTES = 64 * 1024
ATTEMPT_DELAY = 0.25
"""Happy Eyeballs: seconds without progress before the next address is tried (RFC 8305)."""
_CANCELLATION_DELAY = 0.05
"""Seconds after which a cancelled run stops connecting."""
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


def start_lookup(host: str, port: int, settle: Callable[[list[SocketAddress] | Exception], object]) -> None:
    """Look up the addresses of a host in a daemon thread, and pass the outcome to `settle`.

    A lookup can hang for minutes and cannot be interrupted; so it must delay neither calls nor the interpreter's exit.
    """

    def main() -> None:
        try:
            outcome: list[SocketAddress] | Exception = resolve_addresses(host, port)
        except Exception as error:
            outcome = error
        settle(outcome)

    start_thread(main, "agent-lookup")


def is_address(host: str) -> bool:
    """Whether the host is an IP address, which needs no lookup."""
    return ":" in host or host.replace(".", "").isdigit()


def connect(host: str, port: int, timeout: RunTimeout, context: ssl.SSLContext | None = None) -> Connection:
    """Connect within the timeout, including the lookup and the TLS handshake if there is a context.

    Raises TimeoutError at the limit and Cancelled when the run is cancelled.
    """
    until = monotonic() + timeout.seconds()
    try:
        addresses = resolve_addresses(host, port) if is_address(host) else _look_up(host, port, timeout)
        return Connection(_connect_first(addresses, host, context, until, timeout.run))
    except TimeoutError:
        raise TimeoutError(f"connecting to {host} took too long") from None


def _look_up(host: str, port: int, timeout: RunTimeout) -> list[SocketAddress]:
    run, outcomes, done = timeout.run, list[list[SocketAddress] | Exception](), threading.Event()

    def settle(outcome: list[SocketAddress] | Exception) -> None:
        outcomes.append(outcome)
        done.set()

    run.wake = done.set
    try:
        start_lookup(host, port, settle)
        # Checked after `wake` was set, because an earlier cancellation could not interrupt the wait.
        done.wait(timeout.seconds())
        run.seconds_left()
    finally:
        run.wake = None
    if not outcomes:
        raise TimeoutError
    if isinstance(outcomes[0], Exception):
        raise outcomes.pop()  # type: ignore[misc]  # the frame must not keep the error
    return outcomes[0]


def attempt_delay(addresses: int, seconds: float) -> float:
    """Seconds before the next address is tried: all start within a quarter of the timeout."""
    return min(ATTEMPT_DELAY, seconds / (4 * max(addresses, 1)))


def _connect_first(
    addresses: list[SocketAddress], host: str, context: ssl.SSLContext | None, until: float, run: BlockingRun
) -> socket.socket:
    """Happy Eyeballs: connect to the first address that answers. The returned socket does not block."""
    untried = list(addresses)
    next_at, delay = 0.0, attempt_delay(len(addresses), until - monotonic())
    failure = OSError("the host has no address")
    with _Selector() as selector:
        try:
            while untried or selector.get_map():
                run.seconds_left()  # raises Cancelled
                if (now := monotonic()) >= until:
                    raise TimeoutError
                wait = min(until, next_at if untried else math.inf, now + _CANCELLATION_DELAY) - now
                ready = selector.select(max(0.0, wait)) if selector.get_map() else []  # Windows refuses an empty set
                attempts = [selector.unregister(key.fileobj).data for key, _ in ready]
                if untried and not attempts and monotonic() >= next_at:
                    attempts.append(_establish(untried.pop(0), host, context))
                for attempt in attempts:
                    try:
                        connecting, events = next(attempt)
                    except StopIteration as stop:
                        connected: socket.socket = stop.value
                        return connected
                    except OSError as error:
                        failure = choose_failure(failure, error)
                        next_at = 0.0  # a failed attempt lets the next address start at once
                    else:
                        selector.register(connecting, events, attempt)
                        next_at = monotonic() + delay
            raise failure
        finally:
            failure = OSError()  # an error kept in a frame that it references is a cycle
            for key in list(selector.get_map().values()):
                key.data.close()


def _establish(
    address: SocketAddress, host: str, context: ssl.SSLContext | None
) -> Generator[tuple[socket.socket, int], None, socket.socket]:
    """Connect to an address, with TLS if there is a context. Yields the socket and the event to wait for."""
    connecting = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)
        with suppress(BlockingIOError):
            connecting.connect(address.address)
        yield connecting, selectors.EVENT_WRITE
        if code := connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(code, os.strerror(code))
        connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            secured = context.wrap_socket(connecting, server_hostname=host, do_handshake_on_connect=False)
            connecting = secured
            while (event := _continue_handshake(secured)) is not None:
                yield secured, event
        return connecting
    except BaseException:
        connecting.close()
        raise


def _continue_handshake(secured: ssl.SSLSocket) -> int | None:
    """Continue a TLS handshake. Returns the event to wait for; None at the end."""
    import ssl  # lazy: plain HTTP needs no TLS

    try:
        secured.do_handshake()
    except ssl.SSLWantReadError:
        return selectors.EVENT_READ
    except ssl.SSLWantWriteError:
        return selectors.EVENT_WRITE
    return None


def choose_failure(first: OSError, second: OSError) -> OSError:
    """The failure to raise when all addresses fail: a rejected certificate rather than a dead address."""
    return first if is_certificate_error(first) else second


class Connection:
    """A connected socket for sync calls.

    It closes when it is garbage-collected, because an interrupt may come before the pool or a run owns it.
    """

    __slots__ = ("__weakref__", "_input", "_socket", "idle_since")

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._input = _Selector()
        self._input.register(connected, selectors.EVENT_READ)
        self.idle_since: float = 0.0

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
        return self._socket.fileno() < 0 or bool(self._input.select(0))

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):  # the constructor may have been interrupted
            self._socket.close()


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
        connection = connect(head.host, head.port, timeout, self._context() if head.secure else None)
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
