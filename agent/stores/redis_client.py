"""Connections to a Redis server with one deadline per request, for threads, event loops and forks.

redis-py encodes, decodes and connects (TLS, passwords, Unix sockets). Its own pools and retries are not used: their
timeouts would add up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha1
from time import monotonic
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from ..engine.locks import ForkSafe
from ..errors import ConfigurationError
from .base import StoreError, StoreFullError, StoreUnavailableError

try:
    from redis import ConnectionPool
    from redis.backoff import NoBackoff
    from redis.exceptions import AuthenticationError, NoScriptError, RedisError, ResponseError
    from redis.exceptions import TimeoutError as RedisTimeoutError
    from redis.retry import Retry
except ImportError as _missing:
    raise ConfigurationError(
        "Redis needs the package redis.",
        field="url",
        fix="Install the extra: pip install 'agent-llm-router[redis]'.",
    ) from _missing

FAILURES: tuple[type[Exception], ...] = (RedisError, OSError)
"""Errors of a server that cannot be used."""
TIMEOUTS: tuple[type[Exception], ...] = (RedisTimeoutError, TimeoutError)
"""Errors of a server that does not reply in time."""

_Connection: TypeAlias = Any  # Any: redis-py's connection classes share no typed base
_Request: TypeAlias = "tuple[asyncio.Future[Any], RedisScript, tuple[Any, ...]]"
_MOST_IDLE = 128
_TEMPORARY = ("CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PROBE_SECONDS = 1.0
"""Seconds between attempts to reach a server that is down."""
_FRESH_SECONDS = 1.0
"""Seconds without use after which a connection is checked before it is used."""


def check_namespace(name: str) -> None:
    """Raise a ConfigurationError unless the name can be part of keys."""
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"The name {name!r} is invalid.", field="name", fix="Use 1 to 64 letters, digits, and the characters _ . -"
        )


def convert_redis_error(error: Exception) -> StoreError:
    """Convert an error of `FAILURES` to a StoreError."""
    code = getattr(error, "status_code", None) or str(error).partition(" ")[0]
    if isinstance(error, ResponseError | AuthenticationError) and code not in _TEMPORARY:
        if code == "OOM":
            return StoreFullError("Redis is full (maxmemory). The stored data is unchanged.", code=code)
        return StoreError(f"Redis refused a request: {error}.", code=code if code.isupper() else None)
    return StoreUnavailableError(f"Redis cannot be reached: {type(error).__name__}: {error}.")


class RedisScript:
    """A Lua script with one key, from which it derives others, and arguments."""

    def __init__(self, text: str) -> None:
        self.text: str = text
        self.digest: str = sha1(text.encode(), usedforsecurity=False).hexdigest()


class RedisClient(ForkSafe):
    """Runs scripts on a Redis server. No request takes longer than `timeout`, connecting included.

    Connections are opened in threads, so that a caller can stop waiting for them.
    """

    def __init__(self, url: str, timeout: float, scripts: Sequence[RedisScript], *, field: str = "url") -> None:
        super().__init__()
        self._timeout = timeout
        self._scripts = tuple(scripts)
        retry = Retry(NoBackoff(), 0)
        try:
            pool = ConnectionPool.from_url(
                url,
                socket_timeout=timeout,
                socket_connect_timeout=10 * timeout,
                retry=retry,
                protocol=2,
                driver_info=None,  # saves two round trips
            )
        except ValueError as error:
            raise ConfigurationError(
                f"The URL of Redis is invalid: {error}.", field=field, fix="Use redis://host:port/db."
            ) from None
        self._make_connection: Callable[[], _Connection] = partial(pool.connection_class, **pool.connection_kwargs)
        self._idle: list[tuple[_Connection, float]] = []
        """Idle connections, with the time of their latest use."""
        self._flights: WeakKeyDictionary[asyncio.AbstractEventLoop, _Flight] = WeakKeyDictionary()
        """Requests that each event loop sends next."""
        self._process = os.getpid()

    def run(self, script: RedisScript, key: str, *arguments: str | bytes | float) -> Any:
        """Run a script and return its reply. Raises one of `FAILURES`."""
        end = monotonic() + self._timeout
        connection = self._take()
        if connection is None:
            connection = self._open(end)
        try:
            try:
                connection.send_command("EVALSHA", script.digest, 1, key, *arguments)
                reply = connection.read_response(timeout=max(0.001, end - monotonic()))
            except NoScriptError:
                connection.send_command("EVAL", script.text, 1, key, *arguments)
                reply = connection.read_response(timeout=max(0.001, end - monotonic()))
        except ResponseError:
            self._release(connection)
            raise
        except BaseException:
            connection.disconnect()
            raise
        self._release(connection)
        return reply

    async def arun(self, script: RedisScript, key: str, *arguments: str | bytes | float) -> Any:
        """Async version of `run`. Requests of one iteration of an event loop are sent together."""
        loop = asyncio.get_running_loop()
        self._check_process()
        flight = self._flights.get(loop)
        if flight is None:
            flight = self._flights[loop] = _Flight(self, self._timeout)
            loop.call_soon(flight.start)
        future: asyncio.Future[Any] = loop.create_future()
        flight.requests.append((future, script, (1, key, *arguments)))
        return await future

    def connect(self, finish: Callable[[Exception | None], object] = lambda _: None) -> None:
        """Open a connection in the background, then call `finish` with None or the error."""
        self._connect(finish)

    def close(self) -> None:
        """Close idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.disconnect()

    def _take(self) -> _Connection | None:
        """Return an idle connection. One that the server closed is replaced."""
        self._check_process()
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection, used_at = self._idle.pop()
            with suppress(*FAILURES):
                if monotonic() < used_at + _FRESH_SECONDS or not connection.can_read():
                    return connection
            connection.disconnect()

    def _release(self, connection: _Connection) -> None:
        with self._lock:
            if connection.is_connected and len(self._idle) < _MOST_IDLE:
                self._idle.append((connection, monotonic()))
                return
        connection.disconnect()

    def _open(self, end: float) -> _Connection:
        """Open a connection in a thread, and wait for it until `end`. A late one becomes idle."""
        done = threading.Event()
        outcome: list[Any] = []

        def finish(result: Any) -> None:
            outcome.append(result)
            done.set()

        self._connect(finish)
        if not done.wait(max(0.0, end - monotonic())):
            raise TimeoutError("connecting to Redis takes too long")
        result = outcome[0]
        if isinstance(result, BaseException):
            raise result
        return self._take() or self._open(end)

    def _connect(self, finish: Callable[[Any], object]) -> None:
        """Open an idle connection in a thread, then call `finish` with None or the error."""

        def main() -> None:
            try:
                connection = self._make_connection()
                connection.connect()
                commands = [("SCRIPT", "LOAD", script.text) for script in self._scripts]
                connection.send_packed_command(connection.pack_commands(commands))
                for _ in commands:
                    connection.read_response()
                self._release(connection)
            except FAILURES as error:
                finish(error)
            else:
                finish(None)

        threading.Thread(target=main, daemon=True, name="agent-redis-connect").start()

    def _check_process(self) -> None:
        if self._process != os.getpid():  # connections of the parent must not be used, nor shut down
            self._process, self._idle, self._flights = os.getpid(), [], WeakKeyDictionary()


class RedisDownError(ConnectionError):
    """The server is down, so nothing was sent to it."""


REFUSALS: tuple[type[Exception], ...] = (RedisDownError, ResponseError)
"""Errors after which a script has certainly changed nothing."""


class FailFastClient:
    """Runs scripts. While the server cannot be reached, it fails at once, and probes it in the background.

    A server that refuses a script, because it is full or read-only, replies fast and stays in use.
    """

    def __init__(self, url: str, timeout: float, scripts: Sequence[RedisScript]) -> None:
        self._client = RedisClient(url, timeout, scripts)
        self._is_down = False
        self._probe_at = 0.0
        self._client.connect()  # connecting can take longer than a call may wait

    def run(self, script: RedisScript, key: str, *arguments: str | bytes | float) -> Any:
        """Run a script and return its reply. Raises one of `FAILURES`."""
        self._check()
        try:
            return self._client.run(script, key, *arguments)
        except FAILURES as error:
            self._note(error)
            raise

    async def arun(self, script: RedisScript, key: str, *arguments: str | bytes | float) -> Any:
        """Async version of `run`."""
        self._check()
        try:
            return await self._client.arun(script, key, *arguments)
        except FAILURES as error:
            self._note(error)
            raise

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    def _check(self) -> None:
        """Raise if the server is down. Once a second, a background thread tries to connect."""
        if self._is_down:
            if monotonic() >= self._probe_at:
                self._probe_at = monotonic() + _PROBE_SECONDS
                self._client.connect(self._finish_probe)
            raise RedisDownError("Redis could not be reached")

    def _finish_probe(self, error: Exception | None) -> None:
        if error is None:
            self._is_down = False

    def _note(self, error: Exception) -> None:
        if isinstance(error, ResponseError):
            return
        self._probe_at = monotonic() + _PROBE_SECONDS
        self._client.close()
        if not self._is_down:
            self._is_down = True
            logging.getLogger("agent").warning("Redis cannot be used: %s", type(error).__name__)


class _Flight:
    """Requests of one iteration of an event loop, which are sent together.

    Replies are read when the socket is readable, so that no second client for asyncio is needed.
    """

    def __init__(self, client: RedisClient, timeout: float) -> None:
        self._client = client
        self._timeout = timeout
        self.requests: list[_Request] = []
        self._connection: _Connection = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Send the requests. The timeout begins here, so that it does not count the work of other tasks."""
        loop = asyncio.get_running_loop()
        del self._client._flights[loop]
        self.requests = [request for request in self.requests if not request[0].done()]
        if self.requests:
            self._timer = loop.call_later(self._timeout, self._fail, TimeoutError("Redis takes too long"))
            self._take_connection()

    def _take_connection(self) -> None:
        if self._timer is None:
            return  # it took too long to connect
        connection = self._client._take()
        if connection is not None:
            self._connection = connection
            self._send()
            return
        loop = asyncio.get_running_loop()

        def finish(error: Any) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._take_connection if error is None else partial(self._fail, error))

        self._client._connect(finish)

    def _send(self) -> None:
        connection = self._connection
        try:
            commands = [("EVALSHA", script.digest, *arguments) for _, script, arguments in self.requests]
            connection.send_packed_command(connection.pack_commands(commands))
            asyncio.get_running_loop().add_reader(connection._sock.fileno(), self._receive)
        except NotImplementedError:  # the default event loop of Windows
            self._read_replies()
        except FAILURES as error:
            self._fail(error)

    def _receive(self) -> None:
        asyncio.get_running_loop().remove_reader(self._connection._sock.fileno())
        self._read_replies()

    def _read_replies(self) -> None:
        """Read the replies, which the server sends one after the other."""
        connection, unknown = self._connection, []
        try:
            for request in self.requests:
                future, script, _ = request
                try:
                    reply = connection.read_response()
                except NoScriptError:
                    unknown.append(request)
                except ResponseError as error:
                    if not future.done():
                        future.set_exception(error)
                else:
                    if not future.done():
                        future.set_result(reply)
            for _, script, _ in unknown:
                connection.send_command("SCRIPT", "LOAD", script.text)
                connection.read_response()
        except FAILURES as error:
            self._fail(error)
            return
        if unknown:
            self.requests = unknown
            self._send()
        else:
            self._stop()
            self._client._release(connection)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fail(self, error: Exception) -> None:
        """Fail all requests that have no reply yet."""
        self._stop()
        connection = self._connection
        if connection is not None:
            if connection._sock is not None:
                asyncio.get_running_loop().remove_reader(connection._sock.fileno())
            connection.disconnect()
        for future, _, _ in self.requests:
            if not future.done():
                future.set_exception(error)
