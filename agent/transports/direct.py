"""Blocking calls over connections of our own: one request at a time on each, kept while they are idle.

Finding a connection costs the same however many are in flight, and nothing here takes a lock: one that an interrupt
leaves locked would hang every later call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakSet

from typing_extensions import override

from .. import errors
from ..wire import Limits, Live, Reply, SyncBody, WireRequest
from .http1 import Address, BadResponse, ResponseReader
from .inflate import inflater_for
from .replies import Collector, cause_of, check_status, ours
from .sockets import Connection, connect

if TYPE_CHECKING:
    import ssl

KEEPALIVE_SECONDS = 30.0
_MOST_IDLE = 1024
SEPARATELY = 64 * 1024
"""A body larger than this is not copied to stand behind its head."""

Origin = tuple[bool, str, int]


def most_idle() -> int:
    """Idle connections that are kept to one origin: so many that a crowd that comes back finds its own, and no more
    than a quarter of the files that this process may open."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return _MOST_IDLE
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_IDLE if allowed == resource.RLIM_INFINITY else min(_MOST_IDLE, allowed // 4)


class Connections:
    """Those of one process. Threads share them; a connection is in use or idle, never both."""

    def __init__(self, context: Callable[[], ssl.SSLContext]) -> None:
        self._context = context
        self._most_idle = most_idle()
        self._idle: dict[Origin, deque[Connection]] = {}
        self.open: WeakSet[Connection] = WeakSet()
        """All that there are, in use or not."""

    @property
    def idle(self) -> list[Connection]:
        return [connection for waiting in list(self._idle.values()) for connection in list(waiting)]

    def take(self, address: Address, limits: Limits, live: Live) -> Connection:
        """The connection that was used last, as long as the other side keeps it open; else a new one."""
        waiting = self._idle.get(address.origin)
        while waiting:
            try:
                connection = waiting.pop()
            except IndexError:  # another thread was faster
                break
            if monotonic() - connection.idle_since < KEEPALIVE_SECONDS and not connection.has_news():
                return connection
            connection.close()
        return self._connected(address, Live(live.run, limits.connect))

    def _connected(self, address: Address, limit: Live) -> Connection:
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

    def send(self, request: WireRequest, address: Address, limits: Limits, live: Live) -> Reply:
        connection: Connection | None = None
        run = live.run
        try:
            connection = self.take(address, limits, live)
            reader = ResponseReader()
            _ask(connection, request, address, live, reader)
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
                data = connection.receive(run)
                if not data:
                    reader.end()
                    break
                piece = reader.take(data)
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

    def open_body(self, request: WireRequest, address: Address, limits: Limits, live: Live) -> SyncBody:
        connection: Connection | None = None
        body: DirectBody | None = None
        try:
            connection = self.take(address, limits, live)
            reader = ResponseReader()
            _ask(connection, request, address, live, reader)
            body = DirectBody(self, connection, reader, request, address.origin)
            body.live = live
            live.run.bodies.append(body)  # before anything else can happen: an interrupt must find its owner
            return body
        except BaseException as error:
            if body is not None:
                body.closed = True
            if connection is not None:
                connection.close()
            if isinstance(error, Exception) and not isinstance(error, errors.AgentError):
                raise ours(error, request) from cause_of(error)
            raise


def _ask(connection: Connection, request: WireRequest, address: Address, live: Live, reader: ResponseReader) -> None:
    """Send the request, and wait for the head of the response."""
    body = request.body
    run = live.run
    try:
        if len(body) <= SEPARATELY:
            connection.send(run, memoryview(address.request(body) + body))
        else:
            connection.send(run, memoryview(address.request(body)))
            connection.send(run, memoryview(body))
    except TimeoutError:
        raise
    except OSError:
        pass  # a server may answer, and close, before it has read everything: the answer says why
    while True:
        data = connection.receive(run)
        if not data:
            reader.end()
            raise BadResponse("the server closed the connection")
        if reader.take_head(data):
            check_status(reader.status)
            return


class DirectBody(SyncBody):
    """The rest of an answer, while its connection brings it."""

    __slots__ = ("_begun", "_connection", "_connections", "_inflater", "_origin", "_reader", "_request")

    def __init__(
        self,
        connections: Connections,
        connection: Connection,
        reader: ResponseReader,
        request: WireRequest,
        origin: Origin,
    ) -> None:
        super().__init__(reader.status, reader.headers)
        self._inflater = inflater_for(reader.headers.get("content-encoding"))
        self._connections = connections
        self._connection: Connection | None = connection
        self._reader = reader
        self._request = request
        self._origin = origin
        self._begun = False

    @override
    def read(self) -> bytes:
        reader = self._reader
        inflater = self._inflater
        try:
            if not self._begun:
                self._begun = True
                piece = reader.rest()
                if piece and inflater is not None:
                    piece = inflater.feed(piece)
                if piece:
                    return piece
            run, connection = self.live.run, self._connection
            while not reader.complete and connection is not None:
                if reader.failure is not None:
                    raise reader.failure
                data = connection.receive(run)
                if not data:
                    reader.end()
                    break
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
    def close(self) -> None:
        connection, self._connection = self._connection, None  # given back twice, it would serve two at once
        if connection is None:
            return
        if self._reader.complete and self._reader.reusable:
            self._connections.give_back(self._origin, connection)
        else:
            connection.close()
