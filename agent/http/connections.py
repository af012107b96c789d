"""Sync HTTP/1.1 connection pool. Threads share it; a connection carries one request at a time.

It takes no lock: an interrupt that left one locked would hang every later call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakSet

from typing_extensions import override

from .. import errors
from ..engine.wire import BlockingRun, Limits, Reply, RunTimeout, SyncBody, WireRequest
from .exchange import RECEIVE, Exchange, ResponseExchange, StaleConnection, T, cause_of, map_error
from .parser import Address
from .sockets import Connection, connect

if TYPE_CHECKING:
    import ssl

KEEPALIVE_SECONDS = 30.0
_MOST_IDLE = 1024

Origin = tuple[bool, str, int]


def most_idle() -> int:
    """The most idle connections kept per origin: at most a quarter of the files that this process may open."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return _MOST_IDLE
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_IDLE if allowed == resource.RLIM_INFINITY else min(_MOST_IDLE, allowed // 4)


class Connections:
    """The connections of one process. Each is in use or idle, never both."""

    def __init__(self, context: Callable[[], ssl.SSLContext]) -> None:
        self._context = context
        self._most_idle = most_idle()
        self._idle: dict[Origin, deque[Connection]] = {}
        self.open: WeakSet[Connection] = WeakSet()
        """All connections, in use or idle."""

    @property
    def idle(self) -> list[Connection]:
        return [connection for waiting in list(self._idle.values()) for connection in list(waiting)]

    def take_idle(self, origin: Origin) -> Connection | None:
        """The connection that was used last and is still open."""
        waiting = self._idle.get(origin)
        while waiting:
            try:
                connection = waiting.pop()
            except IndexError:  # another thread was faster
                return None
            if monotonic() - connection.idle_since < KEEPALIVE_SECONDS and not connection.has_news():
                return connection
            connection.close()
        return None

    def connect(self, address: Address, limit: RunTimeout) -> Connection:
        context = self._context() if address.secure else None
        connection = connect(address.host, address.port, limit)
        if context is not None:
            connection = connection.secured(context, address.host, limit)
        self.open.add(connection)
        return connection

    def give_back(self, origin: Origin, connection: Connection) -> None:
        connection.idle_since = now = monotonic()
        waiting = self._idle.get(origin)
        if waiting is None:
            waiting = self._idle.setdefault(origin, deque())
        waiting.append(connection)
        while waiting and (len(waiting) > self._most_idle or now - waiting[0].idle_since >= KEEPALIVE_SECONDS):
            try:
                waiting.popleft().close()
            except IndexError:
                break

    def close(self) -> None:
        """Close those that are idle."""
        for waiting in list(self._idle.values()):
            while waiting:
                try:
                    waiting.pop().close()
                except IndexError:
                    break

    # Exchanges

    def send(self, request: WireRequest, address: Address, limits: Limits, timeout: RunTimeout) -> Reply:
        connection, exchange, reply = self._perform(ResponseExchange.collect, request, address, limits, timeout)
        self._release(address.origin, connection, exchange)
        return reply

    def open_body(self, request: WireRequest, address: Address, limits: Limits, timeout: RunTimeout) -> SyncBody:
        connection, exchange, _ = self._perform(ResponseExchange.start, request, address, limits, timeout)
        body = DirectBody(self, connection, exchange, request, address.origin)
        body.timeout = timeout
        timeout.run.bodies.append(body)  # now an interrupt finds its owner
        return body

    def _perform(
        self,
        act: Callable[[ResponseExchange], Exchange[T]],
        request: WireRequest,
        address: Address,
        limits: Limits,
        timeout: RunTimeout,
    ) -> tuple[Connection, ResponseExchange, T]:
        """Perform an exchange on an idle connection, or on a new one where there is none or it turns out closed."""
        connection: Connection | None = None
        try:
            connection = self.take_idle(address.origin)
            if connection is not None:
                exchange = ResponseExchange(request, address, limits, reused=True)
                try:
                    return connection, exchange, perform(act(exchange), connection, timeout.run)
                except StaleConnection:
                    connection.close()
                    timeout.run.seconds_left()  # raises if the run was cancelled: that closes connections, too
            connection = self.connect(address, RunTimeout(timeout.run, limits.connect))
            exchange = ResponseExchange(request, address, limits, reused=False)
            return connection, exchange, perform(act(exchange), connection, timeout.run)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, Exception) and not isinstance(error, errors.AgentError):
                raise map_error(error, request) from cause_of(error)
            raise

    def _release(self, origin: Origin, connection: Connection, exchange: ResponseExchange) -> None:
        if exchange.keeps_connection:
            self.give_back(origin, connection)
        else:
            connection.close()


def perform(exchange: Exchange[T], connection: Connection, run: BlockingRun) -> T:
    """Perform an exchange with blocking calls."""
    received, failed = b"", None
    try:
        wanted = next(exchange)
        while True:
            try:
                if wanted is RECEIVE:
                    received = connection.receive(run)
                else:
                    connection.send(run, wanted)
            except OSError as error:
                failed = error
            wanted = exchange.send(received) if failed is None else exchange.throw(failed)
            failed = None
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        failed = None  # an error that stays in a frame it refers to is a reference cycle


class DirectBody(SyncBody):
    """A streamed response body."""

    __slots__ = ("_connection", "_connections", "_exchange", "_origin", "_request")

    def __init__(
        self,
        connections: Connections,
        connection: Connection,
        exchange: ResponseExchange,
        request: WireRequest,
        origin: Origin,
    ) -> None:
        super().__init__(exchange.status, exchange.headers)
        self._connections = connections
        self._connection: Connection | None = connection
        self._exchange = exchange
        self._request = request
        self._origin = origin

    @override
    def read(self) -> bytes:
        if self._connection is None:
            return b""
        try:
            return perform(self._exchange.read(), self._connection, self.timeout.run)
        except errors.AgentError:
            raise
        except Exception as error:
            raise map_error(error, self._request) from cause_of(error)

    @override
    def close(self) -> None:
        connection, self._connection = self._connection, None  # released twice, it would carry two requests at once
        if connection is not None:
            self._connections._release(self._origin, connection, self._exchange)
