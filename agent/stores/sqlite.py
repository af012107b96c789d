"""Sessions in a SQLite file. What was acknowledged is there after a crash of the program and of the machine.

Here is when a transaction begins and ends, whose connection it is, and what becomes of it when something fails or the
process forks. What stands in the file is in `tables`, `index` and `opening`.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

from typing_extensions import override

from ..errors import ConfigurationError
from ..forks import let_go_before_forks
from . import index, tables
from .base import CorruptStoreError, NodeRow, SearchHit, SessionRecord, StoreError
from .failures import FAILURES, breaks_connection, explained, says_damaged
from .opening import Identity, identity, opened
from .rows import check_limit, check_session_id, read_rows
from .texts import Words

T = TypeVar("T")


class SqliteStore:
    """Keeps sessions in a file. Any number of threads and processes may share it, and only its owner can read it.

    Args:
        path: Of the file; its folder must exist.
        busy_timeout: Seconds to wait for others that are writing, before it is a `StoreBusyError`.
        check: Whether to look through the whole file when it is opened. A damaged one is set aside, and that is a
            `CorruptStoreError`. It takes some 3 ms per MB.

    ```python
    from agent.stores import SqliteStore

    with SqliteStore("sessions.db") as store:
        store.create("first", title="The first one")
    with SqliteStore("sessions.db") as store:
        assert store.load("first").title == "The first one"
    ```
    """

    blocking = True

    def __init__(self, path: str | os.PathLike[str], *, busy_timeout: float = 5.0, check: bool = True) -> None:
        if os.fspath(path) in ("", ":memory:") or "\0" in os.fspath(path):
            raise ConfigurationError("This is no file.", field="path", fix="Name a file, or use a MemoryStore.")
        # Relative to where the program is now, and past links: what is beside a link is not beside the file.
        self._path = Path(os.path.realpath(path))
        self._busy_timeout, self._check = busy_timeout, check
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inherited: list[sqlite3.Connection] = []
        self._file: Identity = None
        """Which file was opened."""
        self._checked: Identity = None
        """Which file was looked through."""
        self._process = os.getpid()
        let_go_before_forks(self)
        with self._lock:
            self._opened()  # what cannot be used is an error here, not in the middle of a conversation

    @property
    def path(self) -> Path:
        """Of the file, absolute."""
        return self._path

    @override
    def __reduce__(self) -> Any:
        return _rebuild, (self._path, self._busy_timeout, self._check)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def create(
        self,
        session_id: str,
        *,
        title: str = "",
        metadata: Mapping[str, Any] | None = None,
        rows: Sequence[NodeRow] = (),
        heads: Sequence[str] = (),
    ) -> SessionRecord:
        check_session_id(session_id)
        read = read_rows(rows)

        def act(connection: sqlite3.Connection) -> SessionRecord:
            return tables.change(connection, tables.begin(connection, session_id), read, heads, title, metadata or {})

        return self._transact("BEGIN IMMEDIATE", act)

    def load(self, session_id: str, *, since: int = 0) -> SessionRecord:
        check_session_id(session_id)
        record, rows = self._transact("BEGIN", lambda connection: tables.whole(connection, session_id, since))
        return replace(record, nodes=tables.read_nodes(record, rows, since))

    def append(
        self,
        session_id: str,
        rows: Sequence[NodeRow],
        *,
        heads: Sequence[str],
        expected_version: int,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> int:
        check_session_id(session_id)
        read = read_rows(rows)

        def act(connection: sqlite3.Connection) -> int:
            session = tables.get(connection, session_id, expected_version)
            return tables.change(connection, session, read, heads, title, metadata).version

        return self._transact("BEGIN IMMEDIATE", act)

    def update(
        self,
        session_id: str,
        *,
        expected_version: int,
        heads: Sequence[str] | None = None,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> int:
        check_session_id(session_id)

        def act(connection: sqlite3.Connection) -> int:
            session = tables.get(connection, session_id, expected_version)
            moved = session.record.heads if heads is None else heads
            return tables.change(connection, session, (), moved, title, metadata).version

        return self._transact("BEGIN IMMEDIATE", act)

    def list(self, *, limit: int = 50, before: SessionRecord | None = None) -> Sequence[SessionRecord]:
        check_limit(limit)
        rows = self._transact("BEGIN", lambda connection: tables.page(connection, limit, before))
        return [tables.read_session(row).record for row in rows]

    def search(self, text: str, *, limit: int = 20) -> Sequence[SearchHit]:
        check_limit(limit)
        words = Words(text)
        if not words:
            return []
        if index.serves(words):
            try:
                return self._search_index(words, limit)
            except StoreError as error:
                if isinstance(error, CorruptStoreError) and error.set_aside is not None:
                    raise
                # This SQLite has no index, or nobody may write, or it is damaged. Then it takes longer.
        return self._transact("BEGIN", lambda connection: tables.hits(tables.all_nodes(connection), words, limit))

    def delete(self, session_id: str) -> None:
        check_session_id(session_id)

        def act(connection: sqlite3.Connection) -> None:
            number = tables.get(connection, session_id).number
            index.remove(connection, number)
            tables.remove(connection, number)

        self._transact("BEGIN IMMEDIATE", act)

    def close(self) -> None:
        """Let go of the file. The next use opens it again."""
        with self._lock:
            self._let_go()

    def __del__(self) -> None:
        if hasattr(self, "_process"):  # it may be half-made
            self._let_go()

    # The index

    def _search_index(self, words: Words, limit: int) -> Sequence[SearchHit]:
        try:
            while self._transact("BEGIN", index.is_behind):
                self._transact("BEGIN IMMEDIATE", index.catch_up)
            return self._transact(
                "BEGIN",
                lambda connection: tables.hits(tables.nodes_with(connection, index.query(words)), words, limit),
            )
        except CorruptStoreError:
            with contextlib.suppress(StoreError):
                self._transact("BEGIN IMMEDIATE", index.forget)
            raise

    # The connection

    def _transact(self, begin: str, act: Callable[[sqlite3.Connection], T]) -> T:
        """Do something in one transaction: all of it or nothing."""
        with self._lock:
            connection = self._opened()
            try:
                connection.execute(begin)
                result = act(connection)
                connection.execute("COMMIT")
            except BaseException as error:
                self._undo(connection, error)
                if isinstance(error, FAILURES):
                    raise explained(error, self._path) from error
                raise
            return result

    def _undo(self, connection: sqlite3.Connection, error: BaseException) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._let_go()  # which ends it, too
        if breaks_connection(error):
            self._let_go()
        if says_damaged(error):
            self._checked = None

    def _opened(self) -> sqlite3.Connection:
        if self._process != os.getpid():
            # A fork that could not wait for this store. The connection is the parent's: not even to be closed here.
            if self._connection is not None:
                self._inherited.append(self._connection)
            self._connection, self._process = None, os.getpid()
        if self._connection is not None:
            if identity(self._path) == self._file and not self._connection.in_transaction:
                return self._connection
            # The file was set aside by somebody, or deleted: what is written to it now would be lost. Or an interrupt
            # came between the beginning of a transaction and the care for its end.
            self._let_go()
        # A file that was whole when this process looked through it is not looked through again.
        check = self._check and (self._checked is None or identity(self._path) != self._checked)
        self._connection, self._file = opened(self._path, busy_timeout=self._busy_timeout, check=check)
        self._checked = self._file
        return self._connection

    def _let_go(self) -> None:
        if self._process == os.getpid() and self._connection is not None:
            connection, self._connection = self._connection, None
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def _rebuild(path: Path, busy_timeout: float, check: bool) -> SqliteStore:
    return SqliteStore(path, busy_timeout=busy_timeout, check=check)


# Forks. A connection must not be open across one. Not even to be left alone in the child: SQLite there would take the
# parent's locks, of which it remembers to have them, for its own, and its changes could be lost.
