"""Journals: durable records of runs, so that a completed tool call is never executed again.

A run writes each message it adds, and each tool call twice: when it starts and when it ends. A run that is started
again under the same id reads its journal and continues. A call that started and did not end may have taken effect: it
is reported as interrupted, and executed again only if its tool is idempotent.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from ..engine.locks import close_before_fork
from ..errors import AgentError
from ..stores.files import create_private_file

if TYPE_CHECKING:
    import sqlite3

_VERSION = 2
Outcome: TypeAlias = Literal["completed", "failed", "rejected", "skipped", "interrupted", "running"]
"""Outcome of a tool call. A rejected or skipped call never ran; an interrupted one may have taken effect."""


@dataclass(frozen=True)
class JournalEntry:
    """One entry of a run's journal."""

    key: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class ToolCallRecord:
    """A tool call of a run, with its outcome."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    outcome: Outcome
    result: Mapping[str, Any] | None = None


class Journal(Protocol):
    """Storage for runs. Both methods may be async."""

    def read(self, run_id: str) -> Any:  # Any: plain or async
        """Return all entries of a run in the order they were written."""

    def write(self, run_id: str, key: str, data: Mapping[str, Any]) -> Any:  # Any: plain or async
        """Store an entry durably. Return False, without a change, if the key exists."""


class MemoryJournal:
    """Journal in memory, for tests and for runs that are resumed in the same process."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, JournalEntry]] = {}
        self._lock = threading.Lock()

    def read(self, run_id: str) -> Sequence[JournalEntry]:
        with self._lock:
            return list(self._runs.get(run_id, {}).values())

    def write(self, run_id: str, key: str, data: Mapping[str, Any]) -> bool:
        copy = json.loads(json.dumps(data))  # fails here for data that a file journal could not store
        with self._lock:
            run = self._runs.setdefault(run_id, {})
            if key in run:
                return False
            run[key] = JournalEntry(key, copy)
            return True


class SqliteJournal:
    """Journal in a SQLite file, shared by any number of processes. Writes survive a crash of the machine.

    ```python
    from agent.loop import SqliteJournal

    journal = SqliteJournal("runs.db")
    ```
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(os.fsdecode(path))
        self._lock: Any = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inherited: list[sqlite3.Connection] = []
        self._pid = os.getpid()
        close_before_fork(self)
        self._execute("SELECT place FROM entries LIMIT 1")  # report an unusable file here, not during a run

    def read(self, run_id: str) -> Sequence[JournalEntry]:
        rows, _ = self._execute("SELECT key, data, checksum FROM entries WHERE run = ? ORDER BY place", run_id)
        try:
            for key, data, checksum in rows:
                if checksum != _checksum(run_id, key, data):
                    raise ValueError(f"the entry {key!r} has a wrong checksum")
            return [JournalEntry(key, json.loads(data)) for key, data, _ in rows]
        except (TypeError, ValueError, RecursionError) as error:
            raise JournalError(f"The journal {self._path.name} is damaged: {error}") from error

    def write(self, run_id: str, key: str, data: Mapping[str, Any]) -> bool:
        text = json.dumps(data, separators=(",", ":"))
        _, written = self._execute(
            "INSERT INTO entries (run, key, data, checksum) VALUES (?, ?, ?, ?) ON CONFLICT (run, key) DO NOTHING",
            *(run_id, key, text, _checksum(run_id, key, text)),
        )
        return written == 1

    def runs(self) -> list[str]:
        """Return the ids of all runs, oldest first, without those of sub-agents."""
        rows, _ = self._execute(
            "SELECT run FROM entries WHERE run NOT IN"
            " (SELECT run || '/' || substr(key, 7) FROM entries WHERE key LIKE 'begun:%')"
            " GROUP BY run ORDER BY min(place)"
        )
        return [run for (run,) in rows]

    def forget(self, run_id: str) -> None:
        """Delete a run and the runs of its sub-agents."""
        self._execute(
            "WITH RECURSIVE family (id) AS (SELECT ? UNION SELECT run || '/' || substr(key, 7)"
            " FROM entries JOIN family ON run = family.id WHERE key LIKE 'begun:%')"
            " DELETE FROM entries WHERE run IN (SELECT id FROM family)",
            run_id,
        )

    def close(self) -> None:
        """Close the connection. The next access reopens it."""
        with self._lock:
            self._close_for_fork()

    def _close_for_fork(self) -> None:
        if self._pid == os.getpid() and self._connection is not None:
            self._connection.close()
            self._connection = None

    def __del__(self) -> None:
        if hasattr(self, "_pid"):  # __init__ may have failed
            self.close()

    def _execute(self, statement: str, *values: Any) -> tuple[list[Any], int]:
        """Return the rows found and the number of rows changed."""
        import sqlite3  # lazy: only runs with a journal need a database engine

        if self._pid != os.getpid():
            # A forked process may not use the parent's connection, nor even close it.
            if self._connection is not None:
                self._inherited.append(self._connection)
            self._connection, self._pid = None, os.getpid()
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = _open_database(self._path)
                cursor = self._connection.execute(statement, values)
                return cursor.fetchall(), cursor.rowcount
            except (sqlite3.Error, OSError) as error:
                raise JournalError(f"The journal {self._path.name} cannot be used: {error}") from error


def _open_database(path: Path) -> sqlite3.Connection:
    import sqlite3  # lazy: only runs with a journal need a database engine

    if str(path) != ":memory:":
        create_private_file(path)
    connection = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > _VERSION:
            raise sqlite3.DatabaseError("the file was written by a newer version of this package")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if version < _VERSION:
            _migrate(connection)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection) -> None:
    connection.create_function("entry_checksum", 3, _checksum, deterministic=True)
    connection.execute("BEGIN IMMEDIATE")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS entries (place INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL,"
                " key TEXT NOT NULL, data TEXT NOT NULL, UNIQUE (run, key))"
            )
        if version < _VERSION:  # another process may have migrated the file
            connection.execute("ALTER TABLE entries ADD COLUMN checksum INTEGER")
            connection.execute("UPDATE entries SET checksum = entry_checksum(run, key, data)")
            connection.execute("PRAGMA user_version = 2")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _checksum(run: Any, key: Any, data: Any) -> int:
    return zlib.crc32(json.dumps([run, key, str(data)]).encode())


class JournalError(AgentError):
    """A journal cannot be read or written, or another process continues the run."""


def list_calls(entries: Sequence[JournalEntry]) -> list[ToolCallRecord]:
    """Return the tool calls of a run with their outcomes, in the order they started."""
    calls: dict[str, ToolCallRecord] = {}
    for entry in entries:
        kind, _, id = entry.key.partition(":")
        data = entry.data
        if kind == "begun":
            calls[id] = ToolCallRecord(id, data["name"], data["arguments"], "interrupted")
        elif kind == "ended":
            calls[id] = ToolCallRecord(id, data["name"], data["arguments"], data["outcome"], data["result"])
    return list(calls.values())
