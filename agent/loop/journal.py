"""What a run has done, written down before anything else happens: so that no completed call is ever made again.

A run writes each message it adds, and each tool call twice: when it begins and when it has ended. A run that is started
again under the same id reads that, and goes on where it was. A call that began and did not end may or may not have
acted; it is reported as interrupted, and made again only if its tool says that this does no harm.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from ..engine.locks import close_before_fork
from ..errors import AgentError
from ..stores.files import create_private_file

if TYPE_CHECKING:
    import sqlite3

_VERSION = 1
Outcome: TypeAlias = Literal["completed", "failed", "rejected", "skipped", "interrupted", "running"]
"""What became of a call. A failed one ran and said so; a rejected or skipped one never ran; an interrupted one may have
acted or not."""


@dataclass(frozen=True)
class JournalEntry:
    """One thing that a run wrote down."""

    key: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class ToolCallRecord:
    """One tool call of a run, and what became of it."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    outcome: Outcome
    result: Mapping[str, Any] | None = None


class Journal(Protocol):
    """Where runs are written down. Both methods may be async."""

    def read(self, run_id: str) -> Any:
        """All entries of a run, in the order they were written."""

    def write(self, run_id: str, key: str, data: Mapping[str, Any]) -> Any:
        """Write an entry, to stay. False, and nothing changed, if there is one with that key already."""


class MemoryJournal:
    """For tests, and for runs that are resumed within one process."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, JournalEntry]] = {}
        self._lock = threading.Lock()

    def read(self, run_id: str) -> Sequence[JournalEntry]:
        with self._lock:
            return list(self._runs.get(run_id, {}).values())

    def write(self, run_id: str, key: str, data: Mapping[str, Any]) -> bool:
        kept = json.loads(json.dumps(data))  # as a file would: what cannot be written there is found out here
        with self._lock:
            run = self._runs.setdefault(run_id, {})
            if key in run:
                return False
            run[key] = JournalEntry(key, kept)
            return True


class SqliteJournal:
    """In a file, for any number of processes. What was written is there after a crash of the machine.

    ```python
    from agent.loop import SqliteJournal

    journal = SqliteJournal("runs.db")
    ```
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._lock: Any = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inherited: list[sqlite3.Connection] = []
        self._pid = os.getpid()
        close_before_fork(self)
        self._ask("SELECT place FROM entries LIMIT 1")  # what cannot be used is an error here, not during a run

    def read(self, run_id: str) -> Sequence[JournalEntry]:
        rows, _ = self._ask("SELECT key, data FROM entries WHERE run = ? ORDER BY place", run_id)
        try:
            return [JournalEntry(key, json.loads(data)) for key, data in rows]
        except (TypeError, ValueError) as error:
            raise JournalError(f"The journal {self._path.name} is damaged: {error}") from error

    def write(self, run_id: str, key: str, data: Mapping[str, Any]) -> bool:
        text = json.dumps(data, separators=(",", ":"))
        _, written = self._ask(
            "INSERT INTO entries (run, key, data) VALUES (?, ?, ?) ON CONFLICT (run, key) DO NOTHING", run_id, key, text
        )
        return written == 1

    def runs(self) -> list[str]:
        """The ids of all runs, the oldest first. Runs of sub-agents are part of the run that called them."""
        rows, _ = self._ask(
            "SELECT run FROM entries WHERE run NOT IN"
            " (SELECT run || '/' || substr(key, 7) FROM entries WHERE key LIKE 'begun:%')"
            " GROUP BY run ORDER BY min(place)"
        )
        return [run for (run,) in rows]

    def forget(self, run_id: str) -> None:
        """Delete a run, and the runs of its sub-agents."""
        self._ask(
            "WITH RECURSIVE family (id) AS (SELECT ? UNION SELECT run || '/' || substr(key, 7)"
            " FROM entries JOIN family ON run = family.id WHERE key LIKE 'begun:%')"
            " DELETE FROM entries WHERE run IN (SELECT id FROM family)",
            run_id,
        )

    def close(self) -> None:
        """It is opened again when it is needed."""
        with self._lock:
            self._close_for_fork()

    def _close_for_fork(self) -> None:
        if self._pid == os.getpid() and self._connection is not None:
            self._connection.close()
            self._connection = None

    def __del__(self) -> None:
        if hasattr(self, "_pid"):  # it may be half-made
            self.close()

    def _ask(self, statement: str, *values: Any) -> tuple[list[Any], int]:
        """The rows that were found, and how many were changed."""
        import sqlite3  # lazy: only runs with a journal need a database engine

        if self._pid != os.getpid():
            # After a fork, neither lock nor connection may be used, and the connection must not even be closed.
            if self._connection is not None:
                self._inherited.append(self._connection)
            self._connection, self._pid = None, os.getpid()
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = _opened(self._path)
                cursor = self._connection.execute(statement, values)
                return cursor.fetchall(), cursor.rowcount
            except (sqlite3.Error, OSError) as error:
                raise JournalError(f"The journal {self._path.name} cannot be used: {error}") from error


def _opened(path: Path) -> sqlite3.Connection:
    import sqlite3  # lazy: only runs with a journal need a database engine

    if str(path) != ":memory:":
        create_private_file(path)
    connection = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > _VERSION:
            raise sqlite3.DatabaseError("it was written by a newer version of this package")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS entries (place INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL,"
            " key TEXT NOT NULL, data TEXT NOT NULL, UNIQUE (run, key))"
        )
        if version < _VERSION:
            connection.execute("PRAGMA user_version = 1")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


class JournalError(AgentError):
    """A journal cannot be read or written, or another run is writing under the same id."""


def list_calls(entries: Sequence[JournalEntry]) -> list[ToolCallRecord]:
    """What became of each tool call of a run, in the order they began."""
    calls: dict[str, ToolCallRecord] = {}
    for entry in entries:
        kind, _, id = entry.key.partition(":")
        data = entry.data
        if kind == "begun":
            calls[id] = ToolCallRecord(id, data["name"], data["arguments"], "interrupted")
        elif kind == "ended":
            calls[id] = ToolCallRecord(id, data["name"], data["arguments"], data["outcome"], data["result"])
    return list(calls.values())
