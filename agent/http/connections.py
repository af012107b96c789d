"""Sync HTTP/1.1 connection pool, shared by threads. A connection carries one request at a time."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from ..engine.wire import BlockingRun, Limits, Reply, RunTimeout, SyncBody, WireRequest
from .exchange import CONNECT, ConnectionPool, Exchange, Steps, T
from .parser import RequestHead
from .sockets import Connection, connect


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
