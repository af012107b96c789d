"""Connections to one Redis server: idle ones for threads, and one for each event loop.

The timeout measures the server and not this process: it is divided into ticks, and a tick that ends late, because the
machine or the event loop is busy, counts as one.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha1
from time import monotonic
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from redis.exceptions import NoScriptError, RedisError, ResponseError

from ..engine.drivers.threads import start_thread
from ..engine.locks import ForkSafe

FAILURES: tuple[type[Exception], ...] = (RedisError, OSError)
"""Errors of a server that cannot be used."""
TICKS = 10
"""Parts of a timeout."""

Connection: TypeAlias = Any  # Any: redis-py's connection classes share no typed base
Argument: TypeAlias = str | bytes | float
_MOST_IDLE = 128
_FRESH_SECONDS = 1.0
"""Seconds without use after which a connection is checked before it is used."""


class RedisScript:
    """A Lua script with one key, from which it derives others, and arguments."""

    def __init__(self, text: str) -> None:
        self.text: str = text
        self.digest: str = sha1(text.encode(), usedforsecurity=False).hexdigest()


class Patience:
    """Time that one request may take. It begins with the first wait."""

    __slots__ = ("_ticks", "seconds")

    def __init__(self, timeout: float) -> None:
        self.seconds: float = timeout / TICKS
        """Seconds of one wait."""
        self._ticks = TICKS

    def tick(self) -> None:
        """Count a wait without a result. Raises if it was the last one."""
        self._ticks -= 1
        if self._ticks <= 0:
            raise TimeoutError("Redis takes too long")


class RedisServer(ForkSafe):
    """Connections to one server, which are opened in threads, so that a caller can stop waiting for them."""

    def __init__(
        self, make_connection: Callable[[], Connection], timeout: float, scripts: Sequence[RedisScript]
    ) -> None:
        super().__init__()
        self._make_connection = make_connection
        self._timeout = timeout
        self._scripts = tuple(scripts)
        self._idle: list[tuple[Connection, float]] = []
        """Idle connections, with the time of their latest use."""
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopConnection] = WeakKeyDictionary()

    def run(self, script: RedisScript, arguments: Sequence[Argument], timeout: float) -> Any:
        """Run a script and return its reply. Raises one of `FAILURES`."""
        patience = Patience(timeout)
        connection = self.take() or self._open(patience)
        try:
            try:
                connection.send_command("EVALSHA", script.digest, *arguments)
                reply = _read_reply(connection, patience)
            except NoScriptError:
                connection.send_command("EVAL", script.text, *arguments)
                reply = _read_reply(connection, patience)
        except ResponseError:
            self.release(connection)
            raise
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, FAILURES):
                self.close()
            raise
        self.release(connection)
        return reply

    def send(self, script: RedisScript, arguments: tuple[Argument, ...]) -> asyncio.Future[Any]:
        """Run a script on the connection of the running event loop."""
        loop = asyncio.get_running_loop()
        own = self._loops.get(loop)
        if own is None:
            self._collect_loops()
            own = self._loops[loop] = LoopConnection(self, self._timeout)
        future: asyncio.Future[Any] = loop.create_future()
        own.send(loop, future, script, arguments)
        return future

    def take(self) -> Connection | None:
        """Return an idle connection. One that the server closed is replaced."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection, used_at = self._idle.pop()
            with suppress(*FAILURES):
                if connection.is_connected and (monotonic() < used_at + _FRESH_SECONDS or not connection.can_read()):
                    return connection
            connection.disconnect()

    def release(self, connection: Connection) -> None:
        """Make a connection idle."""
        with self._lock:
            if connection.is_connected and len(self._idle) < _MOST_IDLE:
                self._idle.append((connection, monotonic()))
                return
        connection.disconnect()

    @property
    def is_connected(self) -> bool:
        """Whether there is an idle connection."""
        return bool(self._idle)

    def close(self) -> None:
        """Close idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.disconnect()

    def connect(self, finish: Callable[[Exception | None], object]) -> None:
        """Open an idle connection in a thread, then call `finish` with None or the error."""

        def main() -> None:
            try:
                connection = self._make_connection()
                connection.connect()
                commands = [("SCRIPT", "LOAD", script.text) for script in self._scripts]
                connection.send_packed_command(connection.pack_commands(commands))
                for _ in commands:
                    connection.read_response()
                self.release(connection)
            except FAILURES as error:
                finish(error)
            else:
                finish(None)

        start_thread(main, "agent-redis-connect")

    def _open(self, patience: Patience) -> Connection:
        """Open a connection in a thread, and wait for it. A late one becomes idle."""
        done = threading.Event()
        outcome: list[Exception | None] = []

        def finish(error: Exception | None) -> None:
            outcome.append(error)
            done.set()

        self.connect(finish)
        while not done.wait(patience.seconds):
            patience.tick()
        if outcome[0] is not None:
            raise outcome[0]
        return self.take() or self._open(patience)

    def _collect_loops(self) -> None:
        """Take the connections of event loops that were closed."""
        for loop, own in list(self._loops.items()):
            if loop.is_closed():
                del self._loops[loop]
                own.give_up_connection()


def _read_reply(connection: Connection, patience: Patience) -> Any:
    while not connection.can_read(patience.seconds):
        patience.tick()
    return connection.read_response()


class _Request(NamedTuple):
    future: asyncio.Future[Any]
    script: RedisScript
    arguments: tuple[Argument, ...]
    last_tick: int


class LoopConnection:
    """Connection of one event loop. Requests are pipelined, and replies arrive in the same order.

    Replies are read when the socket is readable, so that no second client for asyncio is needed. It holds no reference
    to its loop, which would keep both alive.
    """

    def __init__(self, server: RedisServer, timeout: float) -> None:
        self._server = server
        self._tick = timeout / TICKS
        self._ticks = 0
        self._is_ticking = False
        self._connection: Connection | None = None
        self._descriptor = -1
        self._is_connecting = False
        self._waiting: list[_Request] = []
        """Requests that are not sent yet."""
        self._sent: deque[_Request] = deque()

    def send(
        self,
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[Any],
        script: RedisScript,
        arguments: tuple[Argument, ...],
    ) -> None:
        """Send a request at once if it is the only one; else with the others of this iteration of the loop."""
        if not self._is_ticking:
            self._is_ticking = True
            loop.call_later(self._tick, self._count_tick)
        if not self._waiting and (self._sent or self._connection is None):
            loop.call_soon(self._flush)
        self._waiting.append(_Request(future, script, arguments, self._ticks + TICKS))
        if len(self._waiting) == 1 and not self._sent and self._connection is not None:
            self._flush()

    def give_up_connection(self) -> None:
        """Make the connection of a closed loop idle, unless replies are due."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect() if self._sent else self._server.release(connection)

    def _count_tick(self) -> None:
        """Fail if the oldest request takes too long. Replies that have arrived were read before."""
        self._ticks += 1
        oldest = self._sent[0] if self._sent else self._waiting[0] if self._waiting else None
        if oldest is not None and self._ticks >= oldest.last_tick:
            self._fail(TimeoutError("Redis takes too long"))
        self._is_ticking = bool(self._sent or self._waiting)
        if self._is_ticking:
            asyncio.get_running_loop().call_later(self._tick, self._count_tick)

    def _flush(self) -> None:
        if not self._waiting or self._is_connecting:
            return
        if self._connection is None and not self._take_connection():
            return
        connection, requests = self._connection, self._waiting
        self._waiting = []
        self._sent.extend(requests)
        try:
            _send_requests(connection, requests)
        except FAILURES as error:
            self._fail(error)
            return
        if self._descriptor < 0:  # the default event loop of Windows cannot report readable sockets
            while self._sent and self._connection is not None:
                self._receive()

    def _take_connection(self) -> bool:
        """Take an idle connection, or open one."""
        loop = asyncio.get_running_loop()
        self._connection = self._server.take()
        if self._connection is None:
            self._is_connecting = True

            def finish(error: Exception | None) -> None:
                with suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._finish_connecting, error)

            self._server.connect(finish)
            return False
        self._descriptor = self._connection._sock.fileno()
        try:
            loop.add_reader(self._descriptor, self._receive)
        except NotImplementedError:
            self._descriptor = -1
        return True

    def _finish_connecting(self, error: Exception | None) -> None:
        self._is_connecting = False
        if error is None:
            self._flush()
        else:
            self._fail(error)

    def _receive(self) -> None:
        """Read the replies that have arrived."""
        connection: Connection = self._connection
        sent = self._sent
        try:
            while True:
                try:
                    reply = connection.read_response(disconnect_on_error=False)
                except NoScriptError:
                    request = sent.popleft()
                    connection.send_command("EVAL", request.script.text, *request.arguments)
                    sent.append(request)
                except ResponseError as error:
                    _set_error(sent.popleft(), error)
                else:
                    future = sent.popleft().future
                    if not future.done():
                        future.set_result(reply)
                if not sent or not connection.can_read():
                    return
        except FAILURES as error:
            self._fail(error)
        except IndexError:
            self._fail(ConnectionError("Redis sent an unexpected reply"))

    def _fail(self, error: Exception) -> None:
        """Fail all requests, and close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if self._descriptor >= 0:
                asyncio.get_running_loop().remove_reader(self._descriptor)
            connection.disconnect()
            self._server.close()
        requests = [*self._sent, *self._waiting]
        self._sent.clear()
        self._waiting.clear()
        for request in requests:
            _set_error(request, error)


def _send_requests(connection: Connection, requests: Sequence[_Request]) -> None:
    if not connection.is_connected:  # redis-py would connect, and block
        raise ConnectionError("the connection to Redis is closed")
    commands = [("EVALSHA", request.script.digest, *request.arguments) for request in requests]
    connection.send_packed_command(connection.pack_commands(commands), check_health=False)


def _set_error(request: _Request, error: Exception) -> None:
    if not request.future.done():
        request.future.set_exception(error)
