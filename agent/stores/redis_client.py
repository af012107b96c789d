"""Client of a Redis server or cluster with one timeout per request, for threads and event loops.

redis-py encodes, decodes and connects (TLS, passwords, Unix sockets, Sentinel). Its own pools and retries are not used:
their timeouts would add up.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any

from ..engine.locks import ForkSafe
from ..errors import ConfigurationError
from .base import StoreError, StoreFullError, StoreUnavailableError

try:
    from redis import ConnectionPool, Redis, RedisCluster
    from redis.backoff import NoBackoff
    from redis.exceptions import AuthenticationError, MovedError, ResponseError
    from redis.exceptions import TimeoutError as RedisTimeoutError
    from redis.maint_notifications import MaintNotificationsConfig
    from redis.retry import Retry
except ImportError as _missing:
    raise ConfigurationError(
        "Redis needs the package redis.",
        field="url",
        fix="Install the extra: pip install 'agent-llm-router[redis]'.",
    ) from _missing

from .redis_connections import FAILURES, Argument, Connection, RedisScript, RedisServer

TIMEOUTS: tuple[type[Exception], ...] = (RedisTimeoutError, TimeoutError)
"""Errors of a server that does not reply in time."""
_TEMPORARY = ("CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PROBE_SECONDS = 1.0
"""Seconds between attempts to reach a server that is down."""


def check_namespace(name: str) -> None:
    """Raise a ConfigurationError unless the name can be part of keys."""
    if type(name) is not str or _NAME.fullmatch(name) is None:
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


class RedisClient(ForkSafe):
    """Runs scripts on a Redis server. No request takes longer than `timeout`, connecting included.

    Args:
        server: A URL, or a client of redis-py: `Redis`, that of a Sentinel, or `RedisCluster`.
        timeout: Seconds after which the server counts as unreachable.
        scripts: Scripts to load when connecting.
        field: Name of the setting in error messages.
    """

    def __init__(
        self, server: Any, timeout: float, scripts: Sequence[RedisScript], *, field: str = "url"
    ) -> None:  # Any: one of redis-py's clients
        super().__init__()
        self._timeout = timeout
        self._scripts = tuple(scripts)
        self._field = field
        self._cluster: Any = server if isinstance(server, RedisCluster) else None  # Any: partly without types
        self._pool: Any = None if self._cluster is not None else _find_pool(server, field)
        self._servers: dict[str, RedisServer] = {}
        """Connections by name of the node; a single server has an empty name."""
        self._is_map_outdated = False
        """Whether slots of the cluster may have moved."""
        self._process = os.getpid()

    def run(self, script: RedisScript, key: str, *arguments: Argument, timeout: float | None = None) -> Any:
        """Run a script and return its reply. Raises one of `FAILURES`.

        Args:
            script: The script.
            key: Its key, which determines the node of a cluster.
            *arguments: Its arguments.
            timeout: Seconds, if not those of the client. Then the map of a cluster may be renewed first.
        """
        if self._is_map_outdated and timeout is not None:
            self._renew_map()
        try:
            return self._find_server(key).run(script, (1, key, *arguments), timeout or self._timeout)
        except FAILURES as error:
            self._note(error)
            raise

    async def arun(self, script: RedisScript, key: str, *arguments: Argument) -> Any:
        """Async version of `run`. Concurrent requests of an event loop share a connection."""
        try:
            return await self._find_server(key).send(script, (1, key, *arguments))
        except FAILURES as error:
            self._note(error)
            raise

    def connect(self, finish: Callable[[Exception | None], object] = lambda _: None) -> None:
        """Open a connection to each node in the background, then call `finish` with None or the error."""
        nodes: list[Any] = [None] if self._cluster is None else self._cluster.get_primaries()
        for node in nodes:
            self._get_server(node).connect(finish)

    @property
    def is_connected(self) -> bool:
        """Whether there is an idle connection."""
        return any(server.is_connected for server in list(self._servers.values()))

    def close(self) -> None:
        """Close idle connections."""
        for server in list(self._servers.values()):
            server.close()

    def _find_server(self, key: str) -> RedisServer:
        """Return the server that holds a key."""
        if self._cluster is None:
            return self._get_server(None)
        return self._get_server(self._cluster.nodes_manager.get_node_from_slot(self._cluster.keyslot(key)))

    def _get_server(self, node: Any) -> RedisServer:
        if self._process != os.getpid():  # connections of the parent must not be used, nor shut down
            self._process, self._servers = os.getpid(), {}
        name = "" if node is None else node.name
        server = self._servers.get(name)
        if server is None:
            pool = self._pool
            if self._cluster is not None:
                pool = self._cluster.get_redis_connection(node).connection_pool
            with self._lock:
                server = self._servers.setdefault(
                    name, RedisServer(_make_connector(pool, self._timeout), self._timeout, self._scripts)
                )
        return server

    def _note(self, error: Exception) -> None:
        """Note that slots of a cluster may have moved."""
        if self._cluster is not None and (isinstance(error, MovedError) or not isinstance(error, ResponseError)):
            self._is_map_outdated = True

    def _renew_map(self) -> None:
        """Ask the cluster which nodes hold which slots."""
        self._cluster.nodes_manager.initialize()
        self._is_map_outdated = False


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


def _find_pool(server: Any, field: str) -> Any:
    """Return the connection pool of redis-py for a URL or a client."""
    if isinstance(server, str):
        try:
            return ConnectionPool.from_url(server)
        except ValueError as error:
            raise ConfigurationError(
                f"The URL of Redis is invalid: {error}.", field=field, fix="Use redis://host:port/db."
            ) from None
    if isinstance(server, Redis):
        return server.connection_pool
    raise ConfigurationError(
        f"A {type(server).__name__} is not a synchronous client of redis-py.",
        field=field,
        fix="Pass a URL, redis.Redis, sentinel.master_for(...), or redis.RedisCluster.",
    )


def _make_connector(pool: Any, timeout: float) -> Callable[[], Connection]:
    """Return a function that makes connections as a pool does, with timeouts and without retries."""
    settings = {
        **{name: value for name, value in pool.connection_kwargs.items() if "maint_notifications" not in name},
        "socket_timeout": timeout,
        "socket_connect_timeout": 10 * timeout,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "protocol": 2,
        "driver_info": None,  # saves two round trips
        "decode_responses": False,
        "health_check_interval": 0,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    return partial(pool.connection_class, **settings)
