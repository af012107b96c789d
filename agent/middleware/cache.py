"""Response cache: `Cache`, with stores in memory and in a SQLite file; `redis_cache` has one in Redis.

Only complete responses are cached that survive a round trip through JSON. A cached response costs nothing; its usage
still counts the tokens of the original request.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any, Protocol, TypeVar

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json
from typing_extensions import override

from ..engine.flow import Flow, Invoke, Query
from ..engine.locks import ForkSafe, close_before_fork
from ..errors import AgentError, ConfigurationError
from ..stores.files import create_private_file
from ..types import AgentRequest, AgentResponse
from .base import CallInfo, Middleware

T = TypeVar("T")
_BUSY_TIMEOUT = 5.0
"""Seconds to wait for another process that is writing."""
_RETRY_INTERVAL = 0.02
_WRITES_PER_CLEANUP = 256
"""Number of writes after which expired and excess entries are deleted."""


class ResponseStore(Protocol):
    """Interface of a store for cached responses.

    Methods may be async. A store for both kinds of callers has plain methods, and async methods `aget` and `aput`.
    """

    @property
    def blocking(self) -> bool:
        """Whether plain methods may block, so that an event loop must call them in a thread."""
        ...

    def get(self, key: str, now: float) -> str | Awaitable[str | None] | None:
        """Return the text of a key; None if there is none, or if it has expired."""
        ...

    def put(self, key: str, text: str, now: float, expires: float | None) -> Awaitable[None] | None:
        """Store a text until `expires`; None if it does not expire."""
        ...


class MemoryResponseStore(ForkSafe):
    """Keeps the most recently used responses in memory.

    Args:
        max_entries: Maximum number of responses.
    """

    blocking = False

    def __init__(self, max_entries: int = 1_000) -> None:
        super().__init__()
        _check_max_entries(max_entries)
        self._max_entries = max_entries
        self._entries: OrderedDict[str, tuple[str, float | None]] = OrderedDict()

    @override
    def __reduce__(self) -> Any:
        return MemoryResponseStore, (self._max_entries,)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str, now: float) -> str | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            text, expires = entry
            if expires is not None and now >= expires:
                del self._entries[key]
                return None
            self._entries.move_to_end(key)
            return text

    def put(self, key: str, text: str, now: float, expires: float | None) -> None:
        with self._lock:
            self._entries[key] = (text, expires)
            self._entries.move_to_end(key)
            while len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()


class SqliteResponseStore:
    """Keeps responses in a SQLite file, which threads and processes may share. Only its owner can read it.

    A damaged file is renamed and replaced by an empty one.

    Args:
        path: Path of the file; its directory must exist.
        max_entries: Approximate maximum number of responses. The oldest are deleted first.
    """

    blocking = True

    def __init__(self, path: str | os.PathLike[str], *, max_entries: int = 100_000) -> None:
        _check_max_entries(max_entries)
        self._path, self._max_entries = Path(os.fsdecode(path)), max_entries
        self._lock: Any = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inherited: sqlite3.Connection | None = None
        self._process = os.getpid()
        close_before_fork(self)
        self._writes = 0
        self.damaged_files: list[Path] = []
        """New names of damaged files that this store has replaced."""
        try:
            self._with_connection(lambda connection: None)
        except (sqlite3.Error, OSError) as error:
            raise ConfigurationError(
                f"The cache file cannot be opened: {error}.",
                field="path",
                fix="Use a file in an existing, writable directory.",
            ) from error

    @override
    def __reduce__(self) -> Any:
        return partial(SqliteResponseStore, max_entries=self._max_entries), (self._path,)

    def get(self, key: str, now: float) -> str | None:
        def read(connection: sqlite3.Connection) -> str | None:
            row = connection.execute(
                "SELECT answer FROM answers WHERE key = ? AND (expires IS NULL OR expires > ?)", (key, now)
            ).fetchone()
            return row[0] if row is not None and isinstance(row[0], str) else None

        return self._with_connection(read)

    def put(self, key: str, text: str, now: float, expires: float | None) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT OR REPLACE INTO answers (key, answer, kept, expires) VALUES (?, ?, ?, ?)",
                (key, text, now, expires),
            )
            self._writes += 1
            if self._writes % min(_WRITES_PER_CLEANUP, self._max_entries) == 0:
                connection.execute("DELETE FROM answers WHERE expires <= ?", (now,))
                connection.execute(
                    "DELETE FROM answers WHERE key IN (SELECT key FROM answers ORDER BY kept DESC LIMIT -1 OFFSET ?)",
                    (self._max_entries,),
                )

        self._with_connection(write)

    def clear(self) -> None:
        self._with_connection(lambda connection: connection.execute("DELETE FROM answers"))

    def close(self) -> None:
        """Close the file. The next use opens it again."""
        with self._lock:
            self._close_for_fork()

    def _with_connection(self, action: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            try:
                return action(self._connect())
            except sqlite3.DatabaseError as error:
                _raise_unless_damaged(error)
                self._close_for_fork()
            try:
                return action(self._connect())  # another process may have replaced the file
            except sqlite3.DatabaseError as error:
                _raise_unless_damaged(error)
                self._replace_damaged_file()
            return action(self._connect())

    def _connect(self) -> sqlite3.Connection:
        if self._connection is not None:
            if self._process == os.getpid():
                return self._connection
            self._inherited = self._connection  # from before a fork; closing it would release the parent's locks
        create_private_file(self._path)
        connection = sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
        try:
            _enable_wal(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS answers "
                "(key TEXT PRIMARY KEY, answer TEXT NOT NULL, kept REAL NOT NULL, expires REAL) WITHOUT ROWID"
            )
            connection.execute("SELECT key, answer, kept, expires FROM answers LIMIT 0")
        except BaseException:
            connection.close()
            raise
        self._connection, self._process = connection, os.getpid()
        return connection

    def _replace_damaged_file(self) -> None:
        self._close_for_fork()
        number = 1
        while (new_path := self._path.with_name(f"{self._path.name}.damaged-{number}")).exists():
            number += 1
        os.replace(self._path, new_path)
        for suffix in ("-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self.damaged_files.append(new_path)

    def _close_for_fork(self) -> None:
        if self._connection is not None and self._process == os.getpid():
            self._connection.close()
            self._connection = None


def _enable_wal(connection: sqlite3.Connection) -> None:
    """Enable the write-ahead log. SQLite's busy timeout does not apply to this statement."""
    for remaining in reversed(range(int(_BUSY_TIMEOUT / _RETRY_INTERVAL))):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if remaining == 0:
                raise
            sleep(_RETRY_INTERVAL)


def _raise_unless_damaged(error: sqlite3.DatabaseError) -> None:
    """Raise errors of locked, full, read-only and foreign files."""
    if isinstance(error, sqlite3.OperationalError | sqlite3.ProgrammingError | sqlite3.IntegrityError):
        raise error


def _check_max_entries(max_entries: int) -> None:
    if max_entries < 1:
        raise ConfigurationError(f"max_entries is {max_entries}.", field="max_entries", fix="Use 1 or more.")


COST_SOURCE = "cache"
"""The `cost_source` of cached responses."""
_CACHED_STOP_REASONS = ("stop", "tool_calls")
_DERIVED_FIELDS = {"text", "tool_calls", "output", "route", "latency_ms"}
"""Fields that are computed from the content, encoded with the schema, or describe the call."""
_KEY_VERSION = 1


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Statistics of a cache."""

    hits: int = 0
    misses: int = 0
    stored: int = 0
    """Responses written to the store."""
    failures: int = 0
    """Failed operations of the store. The calls continued without it."""


class Cache(ForkSafe, Middleware):
    """Answers repeated requests from a store, as a whole or as a stream.

    Concurrent calls with the same request are all sent.

    Args:
        store: Store of the responses; by default a `MemoryResponseStore`.
        ttl: Seconds until a response expires; None if it does not.
        when: Returns whether a request uses the cache; by default every request does.
        clock: Returns the time in seconds, on a clock shared by all users of the store.
    """

    def __init__(
        self,
        store: ResponseStore | None = None,
        *,
        ttl: float | None = None,
        when: Callable[[AgentRequest], bool] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__()
        if ttl is not None and not ttl > 0:
            raise ConfigurationError(f"ttl is {ttl}.", field="ttl", fix="Use seconds above 0, or leave it out.")
        self._store: ResponseStore = MemoryResponseStore() if store is None else store
        self._ttl, self._when, self._clock = ttl, when, clock or (lambda: datetime.now(UTC).timestamp())
        self._arguments: dict[str, Any] = {"store": store, "ttl": ttl, "when": when, "clock": clock}
        self._stats = CacheStats()

    @override
    def __reduce__(self) -> Any:
        return partial(Cache, **self._arguments), ()

    @property
    def stats(self) -> CacheStats:
        return self._stats

    @override
    def before(self, request: AgentRequest, call: CallInfo) -> Flow[AgentResponse | None]:
        if call.counting or (self._when is not None and not self._when(request)):
            return None
        try:
            key = f"{_KEY_VERSION}:{call.fingerprint(request)}"
        except (AgentError, ValueError, TypeError):
            return None  # the request cannot be encoded; sending it reports the error
        text = yield from self._call_store("get", key, self._clock())
        response = None if text is None else _load_response(text, request)
        if text is not None and response is None:
            logging.getLogger("agent").warning("a cached response is damaged")
        if response is None:
            call.state["key"], call.state["schema"] = key, request.output_schema
            self._count("misses")
            return None
        self._count("hits")
        return response

    @override
    def after(self, response: AgentResponse, call: CallInfo) -> Flow[None]:
        key = call.state.get("key")
        if key is None or response.stop_reason not in _CACHED_STOP_REASONS:
            return
        text = _dump_response(response, call.state["schema"])
        if text is not None:
            now = self._clock()
            expires = None if self._ttl is None else now + self._ttl
            if (yield from self._call_store("put", key, text, now, expires, result=True)):
                self._count("stored")

    def _call_store(self, name: str, *args: Any, result: Any = None) -> Flow[Any]:
        """Call a method of the store, and return its value or `result`; None if it failed."""
        method, on_loop = getattr(self._store, name), getattr(self._store, f"a{name}", None)
        try:
            if on_loop is None:
                value = yield from Invoke(method, args, blocking=self._store.blocking)
            else:
                value = yield from Query(method, on_loop, args)
        except Exception as error:
            if getattr(error, "deadline", False):
                raise
            self._count("failures")
            logging.getLogger("agent").warning("cache store failed: %s", type(error).__name__)
            return None
        return value if result is None else result

    def _count(self, field: str) -> None:
        with self._lock:
            self._stats = replace(self._stats, **{field: getattr(self._stats, field) + 1})


def _dump_response(response: AgentResponse, schema: Any) -> str | None:
    """Encode a response as JSON; None if decoding it would not give an equal response."""
    try:
        data = from_json(response.model_dump_json(exclude=_DERIVED_FIELDS))
        output = response.output
        if output is not None and not _is_json_schema(schema):
            output = _get_adapter(schema).dump_python(output, mode="json", by_alias=True)
        text = to_json({"response": data, "output": output}).decode()
        decoded = _parse_response(text, schema)
    except (ValueError, TypeError):
        return None
    expected = response.model_copy(update={"route": (), "latency_ms": None})
    return text if decoded == expected and type(decoded.output) is type(expected.output) else None


def _load_response(text: str, request: AgentRequest) -> AgentResponse | None:
    """Decode a cached response, and set its cost to 0; None if the text is invalid."""
    try:
        response = _parse_response(text, request.output_schema)
    except (ValueError, TypeError, KeyError):
        return None
    changes: dict[str, Any] = {"cost_estimate": 0.0, "cost_source": COST_SOURCE}
    if response.usage is not None and response.usage.billed is not None:
        changes["usage"] = response.usage.model_copy(update={"billed": 0.0})
    return response.model_copy(update=changes)


def _parse_response(text: str, schema: Any) -> AgentResponse:
    data = from_json(text)
    if not isinstance(data, dict):
        raise ValueError("not a cached response")
    response = AgentResponse.from_dict(data["response"])
    output = data["output"]
    if output is None:
        return response
    if not _is_json_schema(schema):
        output = _get_adapter(schema).validate_json(to_json(output))
    return response.model_copy(update={"output": output})


def _is_json_schema(schema: Any) -> bool:
    """Whether the output is plain JSON, not a value of a Python type."""
    return schema is None or isinstance(schema, Mapping)


def _get_adapter(schema: Any) -> TypeAdapter[Any]:
    return schema if isinstance(schema, TypeAdapter) else TypeAdapter(schema)
