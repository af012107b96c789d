"""Where a cache keeps its answers: in memory, or in a SQLite file that several processes share.

A store knows texts under keys and when they expire. It does not know what they mean, and it never asks for the time.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import sleep
from typing import Any, Protocol, TypeVar

from typing_extensions import override

from ..errors import ConfigurationError
from ..forks import let_go_before_forks
from ..locks import Locked
from ..stores.files import create_private_file

T = TypeVar("T")
_BUSY = 5.0
"""Seconds to wait for another process that is writing."""
_PAUSE = 0.02
_ROUNDS = 256
"""Writes after which a file is looked through for what is no longer wanted."""


class Store(Protocol):
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


class MemoryStore(Locked):
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
        return MemoryStore, (self._most,)

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


class SqliteStore:
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
        let_go_before_forks(self)
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
        return _rebuild, (self._path, self._most)

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
            self._let_go()

    def _with_file(self, act: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            try:
                return act(self._opened())
            except sqlite3.DatabaseError as error:
                _raise_unless_damaged(error)
                self._let_go()
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
        self._let_go()
        number = 1
        while (aside := self._path.with_name(f"{self._path.name}.damaged-{number}")).exists():
            number += 1
        os.replace(self._path, aside)
        for suffix in ("-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self.set_aside.append(aside)

    def _let_go(self) -> None:
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


def _rebuild(path: Path, most: int) -> SqliteStore:
    return SqliteStore(path, max_entries=most)


def _check_entries(most: int) -> None:
    if most < 1:
        raise ConfigurationError(f"max_entries is {most}.", field="max_entries", fix="Use 1 or more.")
