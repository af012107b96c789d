"""SQLite session store: durable, and shared between threads and processes."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar

from typing_extensions import override

from ..engine.locks import close_before_fork
from ..errors import ConfigurationError
from ..types import freeze
from .base import (
    ConflictError,
    CorruptStoreError,
    NodeRow,
    Row,
    SearchHit,
    SessionNotFoundError,
    SessionRecord,
    StoreError,
    check_encodable,
    check_limit,
    check_session_id,
    encode_object,
    read_rows,
    select_new_rows,
)
from .search import (
    SearchTerms,
    drop_index,
    extract_text,
    format_match_query,
    is_index_behind,
    is_indexable,
    remove_from_index,
    update_index,
)
from .sqlite_schema import (
    FAILURES,
    Identity,
    breaks_connection,
    convert_error,
    file_identity,
    is_corruption,
    open_database,
)

_MOST = 2**62
"""Close to the maximum of SQLite integers."""
DatabaseRow: TypeAlias = tuple[Any, ...]
"""A database row. Text is bytes, because damaged text may not decode."""


@dataclass(frozen=True)
class StoredSession:
    """A session record with its row number."""

    number: int
    record: SessionRecord


# Writing


def insert_session(connection: sqlite3.Connection, session_id: str) -> StoredSession:
    """Insert a session at version 0; `write_changes` completes it."""
    existing = _select_session(connection, session_id)
    if existing is not None:
        raise ConflictError(session_id=session_id, expected=0, actual=existing.record.version)
    now = datetime.now(UTC).timestamp()
    number = connection.execute(
        "INSERT INTO sessions (id, version, nodes, created_at, updated_at, header, checksum)"
        " VALUES (?, 0, 0, ?, ?, '', 0)",
        (session_id, now, now),
    ).lastrowid
    assert number is not None
    return StoredSession(number, SessionRecord(session_id, version=0, created_at=now, updated_at=now))


def write_changes(
    connection: sqlite3.Connection,
    session: StoredSession,
    rows: Sequence[Row],
    heads: Sequence[str],
    title: str | None,
    metadata: Mapping[str, Any] | None,
) -> SessionRecord:
    """Add nodes and update the session. None keeps a value."""
    check_encodable("heads", *heads)
    number, old = session.number, session.record

    def has_node(id: str) -> bool:
        existing = connection.execute("SELECT 1 FROM nodes WHERE session = ? AND id = ?", (number, id)).fetchone()
        return existing is not None

    def text(id: str) -> bytes | None:
        existing = connection.execute("SELECT row FROM nodes WHERE session = ? AND id = ?", (number, id)).fetchone()
        return None if existing is None else existing[0]

    fresh = select_new_rows(rows, heads, known=has_node, text=text)
    header = encode_object(
        "The metadata",
        {
            "title": old.title if title is None else title,
            "heads": list(heads),
            "metadata": old.metadata if metadata is None else dict(metadata),
        },
    )
    new = replace(
        _with_header(old, header),
        version=old.version + 1,
        updated_at=max(datetime.now(UTC).timestamp(), old.updated_at),
        node_count=old.node_count + len(fresh),
    )
    connection.executemany(
        "INSERT INTO nodes (session, id, version, place, row, checksum) VALUES (?, ?, ?, ?, ?, ?)",
        (
            (number, row.id, new.version, place, row.text, _checksum(old.id, new.version, place, row.text.encode()))
            for place, row in enumerate(fresh, old.node_count)
        ),
    )
    connection.execute(
        "UPDATE sessions SET version = ?, nodes = ?, updated_at = ?, header = ?, checksum = ? WHERE number = ?",
        (
            new.version,
            new.node_count,
            new.updated_at,
            header,
            _checksum(new.id, new.version, new.node_count, new.created_at, new.updated_at, header.encode()),
            number,
        ),
    )
    return new


def delete_rows(connection: sqlite3.Connection, number: int) -> None:
    connection.execute("DELETE FROM nodes WHERE session = ?", (number,))
    connection.execute("DELETE FROM sessions WHERE number = ?", (number,))


# Reading

_SESSIONS = "SELECT number, id, version, nodes, created_at, updated_at, header, checksum FROM sessions"
_NODES = (
    "SELECT s.number, s.id, s.version, s.nodes, s.created_at, s.updated_at, s.header, s.checksum,"
    " n.version, n.place, n.row, n.checksum FROM nodes AS n JOIN sessions AS s ON s.number = n.session"
)


def find_session(connection: sqlite3.Connection, session_id: str, expected_version: int | None = None) -> StoredSession:
    """Return a session; `ConflictError` unless it has the expected version."""
    session = _select_session(connection, session_id)
    if session is None:
        raise SessionNotFoundError(session_id=session_id)
    if expected_version is not None and session.record.version != expected_version:
        raise ConflictError(session_id=session_id, expected=expected_version, actual=session.record.version)
    return session


def select_session(
    connection: sqlite3.Connection, session_id: str, since: int
) -> tuple[SessionRecord, list[DatabaseRow]]:
    """Select a session and its raw node rows."""
    session = find_session(connection, session_id)
    # Versions and numbers only grow, so this is insertion order.
    rows = connection.execute(
        "SELECT version, place, row, checksum FROM nodes INDEXED BY nodes_by_version"
        " WHERE session = ? AND version > ? ORDER BY version, number",
        (session.number, max(-1, min(since, _MOST))),
    ).fetchall()
    return session.record, rows


def select_page(connection: sqlite3.Connection, limit: int, before: SessionRecord | None) -> list[DatabaseRow]:
    """Select raw session rows, most recently changed first."""
    later, id = (float("inf"), "") if before is None else (before.updated_at, before.id)
    return connection.execute(
        _SESSIONS + " WHERE (updated_at, id) < (?, ?) ORDER BY updated_at DESC, id DESC LIMIT ?",
        (later, id, min(limit, _MOST)),
    ).fetchall()


def select_nodes(connection: sqlite3.Connection) -> Iterable[DatabaseRow]:
    """Select all nodes with their sessions, newest first."""
    return connection.execute(_NODES + " ORDER BY n.number DESC")


def select_matches(connection: sqlite3.Connection, query: str) -> Iterable[DatabaseRow]:
    """Select the nodes that match in the index, newest first."""
    matches = _NODES + " JOIN search ON search.rowid = n.number WHERE search MATCH ? ORDER BY search.rowid DESC"
    return connection.execute(matches, (query,))


def collect_hits(rows: Iterable[DatabaseRow], words: SearchTerms, limit: int) -> Sequence[SearchHit]:
    """Return the first nodes that contain all terms."""
    hits: list[SearchHit] = []
    sessions: dict[Any, SessionRecord] = {}
    for *session, version, place, row, checksum in rows:
        try:
            number = session[0]
            if number not in sessions:
                sessions[number] = read_session(session).record
            record = sessions[number]
            node = _read_node(record.id, version, place, row, checksum)
        except StoreError:
            continue  # damaged sessions are reported when they are loaded
        text = extract_text(node)
        if words.are_in(text):
            hits.append(SearchHit(record.id, record.title, node["id"], words.excerpt(text)))
            if len(hits) == limit:
                break
    return hits


def read_session(row: Sequence[Any]) -> StoredSession:
    number, id, version, nodes, created_at, updated_at, header, checksum = row
    name = id.decode("utf-8", "replace") if isinstance(id, bytes) else str(id)
    if not isinstance(header, bytes) or _checksum(name, version, nodes, created_at, updated_at, header) != checksum:
        raise CorruptStoreError(f"Session {name!r} is damaged.")
    record = SessionRecord(name, version=version, created_at=created_at, updated_at=updated_at, node_count=nodes)
    return StoredSession(number, _with_header(record, header))


def read_nodes(record: SessionRecord, rows: Sequence[DatabaseRow], since: int) -> Sequence[NodeRow]:
    """Decode the nodes added after version `since`."""
    first = 0 if since < 1 else record.node_count - len(rows)
    if [place for _, place, _, _ in rows] != list(range(first, record.node_count)):
        raise CorruptStoreError(f"Session {record.id!r} is damaged: nodes are missing.")
    return tuple(_read_node(record.id, *row) for row in rows)


def _select_session(connection: sqlite3.Connection, session_id: str) -> StoredSession | None:
    row = connection.execute(_SESSIONS + " WHERE id = ?", (session_id,)).fetchone()
    return None if row is None else read_session(row)


def _with_header(record: SessionRecord, header: str | bytes) -> SessionRecord:
    fields = json.loads(header)
    return replace(record, title=fields["title"], heads=tuple(fields["heads"]), metadata=freeze(fields["metadata"]))


def _read_node(session_id: str, version: Any, place: Any, row: Any, checksum: Any) -> NodeRow:
    if not isinstance(row, bytes) or _checksum(session_id, version, place, row) != checksum:
        raise CorruptStoreError(f"Session {session_id!r} is damaged: a node has a wrong checksum.")
    try:
        node: NodeRow = json.loads(row)
    except RecursionError:
        raise StoreError(f"A node of session {session_id!r} is nested too deeply to read.") from None
    return node


def _checksum(*facts: Any) -> int:
    """Return the checksum of values, of which the last is bytes."""
    *short, content = facts
    return zlib.crc32(content, zlib.crc32(repr(short).encode()))


T = TypeVar("T")


class SqliteStore:
    """Store that keeps sessions in a SQLite file, which threads and processes can share.

    The file is readable by its owner only. Acknowledged changes survive a crash of the program and of the machine.

    Args:
        path: Path of the file; its folder must exist.
        busy_timeout: Seconds to wait for other writers before a `StoreBusyError`.
        check: Run an integrity check when the file is opened (about 3 ms per MB). A damaged file is moved aside, and a
            `CorruptStoreError` raised.

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
            raise ConfigurationError("path is not a file.", field="path", fix="Name a file, or use a MemoryStore.")
        # Resolve links: SQLite's -wal and -shm files lie beside the target.
        self._path = Path(os.path.realpath(path))
        self._busy_timeout, self._check = busy_timeout, check
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inherited: list[sqlite3.Connection] = []
        self._file: Identity = None
        """Identity of the open file."""
        self._checked: Identity = None
        """Identity of the file that passed the integrity check."""
        self._process = os.getpid()
        close_before_fork(self)
        with self._lock:
            self._ensure_open()  # report problems here, not during a conversation

    @property
    def path(self) -> Path:
        """Absolute path of the file."""
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
            return write_changes(connection, insert_session(connection, session_id), read, heads, title, metadata or {})

        return self._transact("BEGIN IMMEDIATE", act)

    def load(self, session_id: str, *, since: int = 0) -> SessionRecord:
        check_session_id(session_id)
        record, rows = self._transact("BEGIN", lambda connection: select_session(connection, session_id, since))
        return replace(record, nodes=read_nodes(record, rows, since))

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
            session = find_session(connection, session_id, expected_version)
            return write_changes(connection, session, read, heads, title, metadata).version

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
            session = find_session(connection, session_id, expected_version)
            moved = session.record.heads if heads is None else heads
            return write_changes(connection, session, (), moved, title, metadata).version

        return self._transact("BEGIN IMMEDIATE", act)

    def list(self, *, limit: int = 50, before: SessionRecord | None = None) -> Sequence[SessionRecord]:
        check_limit(limit)
        rows = self._transact("BEGIN", lambda connection: select_page(connection, limit, before))
        return [read_session(row).record for row in rows]

    def search(self, text: str, *, limit: int = 20) -> Sequence[SearchHit]:
        check_limit(limit)
        words = SearchTerms(text)
        if not words:
            return []
        if is_indexable(words):
            try:
                return self._search_index(words, limit)
            except StoreError as error:
                if isinstance(error, CorruptStoreError) and error.set_aside is not None:
                    raise
                # No FTS5, a read-only file or a damaged index: fall back to a scan.
        return self._transact("BEGIN", lambda connection: collect_hits(select_nodes(connection), words, limit))

    def delete(self, session_id: str) -> None:
        check_session_id(session_id)

        def act(connection: sqlite3.Connection) -> None:
            number = find_session(connection, session_id).number
            try:
                remove_from_index(connection, number)
            except sqlite3.DatabaseError:  # a damaged index, or an SQLite without FTS5
                drop_index(connection)
            delete_rows(connection, number)

        self._transact("BEGIN IMMEDIATE", act)

    def close(self) -> None:
        """Close the file. The next use opens it again."""
        with self._lock:
            self._close_for_fork()

    def __del__(self) -> None:
        if hasattr(self, "_process"):  # False if __init__ failed
            self._close_for_fork()

    # Index

    def _search_index(self, words: SearchTerms, limit: int) -> Sequence[SearchHit]:
        try:
            while self._transact("BEGIN", is_index_behind):
                self._transact("BEGIN IMMEDIATE", update_index)
            return self._transact(
                "BEGIN",
                lambda connection: collect_hits(select_matches(connection, format_match_query(words)), words, limit),
            )
        except CorruptStoreError:
            with contextlib.suppress(StoreError):
                self._transact("BEGIN IMMEDIATE", drop_index)
            raise

    # Connection

    def _transact(self, begin: str, act: Callable[[sqlite3.Connection], T]) -> T:
        """Run `act` in a transaction."""
        with self._lock:
            connection = self._ensure_open()
            try:
                connection.execute(begin)
                result = act(connection)
                connection.execute("COMMIT")
            except BaseException as error:
                self._undo(connection, error)
                if isinstance(error, FAILURES):
                    raise convert_error(error, self._path) from error
                raise
            return result

    def _undo(self, connection: sqlite3.Connection, error: BaseException) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._close_for_fork()  # also ends the transaction
        if breaks_connection(error):
            self._close_for_fork()
        if is_corruption(error):
            self._checked = None

    def _ensure_open(self) -> sqlite3.Connection:
        if self._process != os.getpid():
            # After a fork, the connection belongs to the parent and must not even be closed here.
            if self._connection is not None:
                self._inherited.append(self._connection)
            self._connection, self._process = None, os.getpid()
        if self._connection is not None:
            if file_identity(self._path) == self._file and not self._connection.in_transaction:
                return self._connection
            # The file was moved or deleted, or an interrupt left a transaction open.
            self._close_for_fork()
        # Check a file once per process.
        check = self._check and (self._checked is None or file_identity(self._path) != self._checked)
        self._connection, self._file = open_database(self._path, busy_timeout=self._busy_timeout, check=check)
        self._checked = self._file
        return self._connection

    def _close_for_fork(self) -> None:
        if self._process == os.getpid() and self._connection is not None:
            connection, self._connection = self._connection, None
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def _rebuild(path: Path, busy_timeout: float, check: bool) -> SqliteStore:
    return SqliteStore(path, busy_timeout=busy_timeout, check=check)


# A connection must not be open across a fork: SQLite in the child would treat the parent's locks as its own.
