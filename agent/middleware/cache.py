"""Answers that were given before: the same request, to the same address, is asked once.

Kept is what is complete and can be written down as JSON and read back as it was. An answer from the cache cost nothing
this time, and says so; its usage still tells how long the prompt and the answer are.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import sleep
from typing import Any, Protocol, TypeVar

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json
from typing_extensions import override

from ..engine.flow import Flow, Invoke
from ..engine.locks import ForkSafe, close_before_fork
from ..errors import AgentError, ConfigurationError
from ..stores.files import create_private_file
from ..types import AgentRequest, AgentResponse
from .base import CallInfo, Middleware

T = TypeVar("T")
_BUSY = 5.0
"""Seconds to wait for another process that is writing."""
_PAUSE = 0.02
_ROUNDS = 256
"""Writes after which a file is looked through for what is no longer wanted."""


class ResponseStore(Protocol):
    """What a cache needs. Methods may be async; plain ones that wait for something set `blocking`."""

    @property
    def blocking(self) -> bool:
        """Whether the methods may take longer than an event loop should wait."""
        ...

    def get(self, key: str, now: float) -> str | Awaitable[str | None] | None:
        """The text under a key, unless it has expired."""
        ...

    def put(self, key: str, text: str, now: float, expires: float | None) -> Awaitable[None] | None:
        """Keep a text until then; None: for as long as there is room."""
        ...


class MemoryResponseStore(ForkSafe):
    """Keeps answers in this process, those that were used last.

    Args:
        max_entries: How many at most.
    """

    blocking = False

    def __init__(self, max_entries: int = 1_000) -> None:
        super().__init__()
        _check_entries(max_entries)
        self._most = max_entries
        self._entries: OrderedDict[str, tuple[str, float | None]] = OrderedDict()

    @override
    def __reduce__(self) -> Any:
        return MemoryResponseStore, (self._most,)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str, now: float) -> str | None:
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            text, expires = found
            if expires is not None and now >= expires:
                del self._entries[key]
                return None
            self._entries.move_to_end(key)
            return text

    def put(self, key: str, text: str, now: float, expires: float | None) -> None:
        with self._lock:
            self._entries[key] = (text, expires)
            self._entries.move_to_end(key)
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()


class SqliteResponseStore:
    """Keeps answers in a file. Any number of threads and processes may share it; only its owner can read it.

    A file that is damaged is set aside under another name, and a new one begun: what was in it can be asked again.

    Args:
        path: Of the file; its directory must exist.
        max_entries: How many at most, about: the oldest go first.
    """

    blocking = True

    def __init__(self, path: str | os.PathLike[str], *, max_entries: int = 100_000) -> None:
        _check_entries(max_entries)
        self._path, self._most = Path(path), max_entries
        self._lock: Any = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inherited: sqlite3.Connection | None = None
        self._process = os.getpid()
        close_before_fork(self)
        self._writes = 0
        self.set_aside: list[Path] = []
        """Damaged files that this store has found."""
        try:
            self._with_file(lambda connection: None)
        except (sqlite3.Error, OSError) as error:
            raise ConfigurationError(
                f"The cache file cannot be opened: {error}.",
                field="path",
                fix="Name a file in a directory that exists and can be written to.",
            ) from error

    @override
    def __reduce__(self) -> Any:
        return _rebuild_store, (self._path, self._most)

    def get(self, key: str, now: float) -> str | None:
        def read(connection: sqlite3.Connection) -> str | None:
            row = connection.execute(
                "SELECT answer FROM answers WHERE key = ? AND (expires IS NULL OR expires > ?)", (key, now)
            ).fetchone()
            return row[0] if row is not None and isinstance(row[0], str) else None

        return self._with_file(read)

    def put(self, key: str, text: str, now: float, expires: float | None) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT OR REPLACE INTO answers (key, answer, kept, expires) VALUES (?, ?, ?, ?)",
                (key, text, now, expires),
            )
            self._writes += 1
            if self._writes % min(_ROUNDS, self._most) == 0:
                connection.execute("DELETE FROM answers WHERE expires <= ?", (now,))
                connection.execute(
                    "DELETE FROM answers WHERE key IN (SELECT key FROM answers ORDER BY kept DESC LIMIT -1 OFFSET ?)",
                    (self._most,),
                )

        self._with_file(write)

    def clear(self) -> None:
        self._with_file(lambda connection: connection.execute("DELETE FROM answers"))

    def close(self) -> None:
        """Let go of the file. The next use opens it again."""
        with self._lock:
            self._close_for_fork()

    def _with_file(self, act: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            try:
                return act(self._opened())
            except sqlite3.DatabaseError as error:
                _raise_unless_damaged(error)
                self._close_for_fork()
            try:
                return act(self._opened())  # another process may have begun a new file
            except sqlite3.DatabaseError as error:
                _raise_unless_damaged(error)
                self._set_aside()
            return act(self._opened())

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None:
            if self._process == os.getpid():
                return self._connection
            self._inherited = self._connection  # from before a fork: the parent's, and not ours to close
        create_private_file(self._path)
        connection = sqlite3.connect(self._path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
        try:
            _begin_log(connection)
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

    def _set_aside(self) -> None:
        """Rename a damaged file. What SQLite keeps beside it is of no use without it."""
        self._close_for_fork()
        number = 1
        while (aside := self._path.with_name(f"{self._path.name}.damaged-{number}")).exists():
            number += 1
        os.replace(self._path, aside)
        for suffix in ("-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self.set_aside.append(aside)

    def _close_for_fork(self) -> None:
        if self._connection is not None and self._process == os.getpid():
            self._connection.close()
            self._connection = None


def _begin_log(connection: sqlite3.Connection) -> None:
    """Of processes that open a new file at the same time, only one can turn its log on; SQLite lets none wait."""
    for left in reversed(range(int(_BUSY / _PAUSE))):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if left == 0:
                raise
            sleep(_PAUSE)


def _raise_unless_damaged(error: sqlite3.DatabaseError) -> None:
    """A file that is locked, full or not ours to write is not damaged."""
    if isinstance(error, sqlite3.OperationalError | sqlite3.ProgrammingError | sqlite3.IntegrityError):
        raise error


def _rebuild_store(path: Path, most: int) -> SqliteResponseStore:
    return SqliteResponseStore(path, max_entries=most)


def _check_entries(most: int) -> None:
    if most < 1:
        raise ConfigurationError(f"max_entries is {most}.", field="max_entries", fix="Use 1 or more.")


SOURCE = "cache"
"""The `cost_source` of an answer that was kept."""
_COMPLETE = ("stop", "tool_calls")
_VIEWS = {"text", "tool_calls", "output", "route", "latency_ms"}
"""What is read from the content, restored by the schema, or about the call."""
_VERSION = 1


@dataclass(frozen=True, slots=True)
class CacheStats:
    """How often a cache was of use."""

    hits: int = 0
    misses: int = 0
    kept: int = 0
    failures: int = 0
    """Uses of the store that failed. The calls went on without it."""


class Cache(ForkSafe, Middleware):
    """Answers from a store what was asked before, whole or as a stream.

    Two calls that ask the same at the same time are both sent.

    Args:
        store: Where responses are kept; by default a `MemoryResponseStore`.
        ttl: Seconds after which an answer is asked again; None: never.
        when: Which requests to look up and to keep; by default all of them.
        clock: Tells the time, in seconds since any moment that all who share the store agree on.
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
        self._ttl, self._when, self._clock = ttl, when, clock or _seconds
        self._made_from = (store, ttl, when, clock)
        self._stats = CacheStats()

    @override
    def __reduce__(self) -> Any:
        return _rebuild_cache, self._made_from

    @property
    def stats(self) -> CacheStats:
        return self._stats

    @override
    def before(self, request: AgentRequest, call: CallInfo) -> Flow[AgentResponse | None]:
        if call.counting or (self._when is not None and not self._when(request)):
            return None
        try:
            key = f"{_VERSION}:{call.fingerprint(request)}"
        except (AgentError, ValueError, TypeError):
            return None  # it cannot be sent or written down; whoever is asked will say so
        text = yield from self._use(self._store.get, key, self._clock())
        answer = None if text is None else _read(text, request)
        if answer is None:
            call.state["key"], call.state["schema"] = key, request.output_schema
            self._count(misses=1)
            return None
        self._count(hits=1)
        return answer

    @override
    def after(self, response: AgentResponse, call: CallInfo) -> Flow[None]:
        key = call.state.get("key")
        if key is None or response.stop_reason not in _COMPLETE:
            return
        text = _written(response, call.state["schema"])
        if text is not None:
            now = self._clock()
            expires = None if self._ttl is None else now + self._ttl
            if (yield from self._use(self._store.put, key, text, now, expires, done=True)):
                self._count(kept=1)

    def _use(self, method: Callable[..., Any], *args: Any, done: Any = None) -> Flow[Any]:
        """Ask the store. One that fails is no reason for a call to fail."""
        try:
            value = yield from Invoke(method, args, blocking=self._store.blocking)
        except Exception as error:
            if getattr(error, "deadline", False):
                raise
            self._count(failures=1)
            logging.getLogger("agent").warning("the store of a cache failed: %s", type(error).__name__)
            return None
        return value if done is None else done

    def _count(self, *, hits: int = 0, misses: int = 0, kept: int = 0, failures: int = 0) -> None:
        with self._lock:
            old = self._stats
            self._stats = CacheStats(old.hits + hits, old.misses + misses, old.kept + kept, old.failures + failures)


def _seconds() -> float:
    return datetime.now(UTC).timestamp()


def _written(response: AgentResponse, schema: Any) -> str | None:
    """An answer as text; None if it would not be the same when it is read again."""
    try:
        plain = from_json(response.model_dump_json(exclude=_VIEWS))
        output = None if response.output is None else _output_written(response.output, schema)
        text = to_json({"response": plain, "output": output}).decode()
        again = _parsed(text, schema)
    except (ValueError, TypeError):
        return None
    bare = response.model_copy(update={"route": (), "latency_ms": None})
    return text if again == bare and type(again.output) is type(bare.output) else None


def _read(text: str, request: AgentRequest) -> AgentResponse | None:
    """A kept answer, as it is given now; None if the store holds something else under that key."""
    try:
        response = _parsed(text, request.output_schema)
    except (ValueError, TypeError, KeyError):
        return None
    changes: dict[str, Any] = {"cost_estimate": 0.0, "cost_source": SOURCE}
    if response.usage is not None and response.usage.billed is not None:
        changes["usage"] = response.usage.model_copy(update={"billed": 0.0})
    return response.model_copy(update=changes)


def _parsed(text: str, schema: Any) -> AgentResponse:
    kept = from_json(text)
    if not isinstance(kept, dict):
        raise ValueError("not an answer")
    response = AgentResponse.from_dict(kept["response"])
    output = kept["output"]
    if output is None:
        return response
    if not (schema is None or isinstance(schema, Mapping)):
        output = _adapter(schema).validate_json(to_json(output))
    return response.model_copy(update={"output": output})


def _output_written(output: Any, schema: Any) -> Any:
    if schema is None or isinstance(schema, Mapping):
        return output
    return _adapter(schema).dump_python(output, mode="json", by_alias=True)


def _adapter(schema: Any) -> TypeAdapter[Any]:
    return schema if isinstance(schema, TypeAdapter) else TypeAdapter(schema)


def _rebuild_cache(
    store: ResponseStore | None,
    ttl: float | None,
    when: Callable[[AgentRequest], bool] | None,
    clock: Callable[[], float] | None,
) -> Cache:
    return Cache(store, ttl=ttl, when=when, clock=clock)
