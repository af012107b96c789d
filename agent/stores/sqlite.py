"""Sessions in a SQLite file. What was acknowledged is there after a crash of the program and of the machine.

Here is when a transaction begins and ends, whose connection it is, and what becomes of it when something fails or the
process forks. What stands in the file is in `tables`, `index` and `opening`.
"""

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
from . import sqlite_search
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
from .search import SearchTerms, extract_text
from .sqlite_schema import FAILURES, Identity, breaks_connection, explained, identity, opened, says_damaged

_MOST = 2**62
"""SQLite's integers end not far from here."""
Found: TypeAlias = tuple[Any, ...]
"""A row of a table, as SQLite gives it: text is bytes, and anything may be damaged."""


@dataclass(frozen=True)
class StoredSession:
    """A session and its number, by which nodes know it."""

    number: int
    record: SessionRecord


# Writing


def begin(connection: sqlite3.Connection, session_id: str) -> StoredSession:
    """A session at version 0. The change that follows makes it one that can be read."""
    there = _find(connection, session_id)
    if there is not None:
        raise ConflictError(session_id=session_id, expected=0, actual=there.record.version)
    now = datetime.now(UTC).timestamp()
    number = connection.execute(
        "INSERT INTO sessions (id, version, nodes, created_at, updated_at, header, checksum)"
        " VALUES (?, 0, 0, ?, ?, '', 0)",
        (session_id, now, now),
    ).lastrowid
    assert number is not None
    return StoredSession(number, SessionRecord(session_id, version=0, created_at=now, updated_at=now))


def change(
    connection: sqlite3.Connection,
    session: StoredSession,
    rows: Sequence[Row],
    heads: Sequence[str],
    title: str | None,
    metadata: Mapping[str, Any] | None,
) -> SessionRecord:
    """Add nodes and replace what is known of their session. None leaves things as they are."""
    check_encodable("heads", *heads)
    number, old = session.number, session.record

    def known(id: str) -> bool:
        found = connection.execute("SELECT 1 FROM nodes WHERE session = ? AND id = ?", (number, id)).fetchone()
        return found is not None

    def text(id: str) -> bytes | None:
        found = connection.execute("SELECT row FROM nodes WHERE session = ? AND id = ?", (number, id)).fetchone()
        return None if found is None else found[0]

    fresh = select_new_rows(rows, heads, known=known, text=text)
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
            (number, row.id, new.version, place, row.text, _sum(old.id, new.version, place, row.text.encode()))
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
            _sum(new.id, new.version, new.node_count, new.created_at, new.updated_at, header.encode()),
            number,
        ),
    )
    return new


def remove(connection: sqlite3.Connection, number: int) -> None:
    connection.execute("DELETE FROM nodes WHERE session = ?", (number,))
    connection.execute("DELETE FROM sessions WHERE number = ?", (number,))


# Reading


def get(connection: sqlite3.Connection, session_id: str, expected_version: int | None = None) -> StoredSession:
    """A session, at the version that the caller knows."""
    found = _find(connection, session_id)
    if found is None:
        raise SessionNotFoundError(session_id=session_id)
    if expected_version is not None and found.record.version != expected_version:
        raise ConflictError(session_id=session_id, expected=expected_version, actual=found.record.version)
    return found


def whole(connection: sqlite3.Connection, session_id: str, since: int) -> tuple[SessionRecord, list[Found]]:
    """A session and its nodes, for `read_nodes`."""
    session = get(connection, session_id)
    # Versions only grow, and numbers with them: so this is the order in which nodes came.
    rows = connection.execute(
        "SELECT version, place, row, checksum FROM nodes INDEXED BY nodes_by_version"
        " WHERE session = ? AND version > ? ORDER BY version, number",
        (session.number, max(-1, min(since, _MOST))),
    ).fetchall()
    return session.record, rows


def page(connection: sqlite3.Connection, limit: int, before: SessionRecord | None) -> list[Found]:
    """Sessions by the time of their last change, for `read_session`."""
    later, id = (float("inf"), "") if before is None else (before.updated_at, before.id)
    return connection.execute(
        "SELECT number, id, version, nodes, created_at, updated_at, header, checksum FROM sessions"
        " WHERE (updated_at, id) < (?, ?) ORDER BY updated_at DESC, id DESC LIMIT ?",
        (later, id, min(limit, _MOST)),
    ).fetchall()


def all_nodes(connection: sqlite3.Connection) -> Iterable[Found]:
    """Nodes with their sessions, the last first, for `hits`."""
    return connection.execute(
        "SELECT s.number, s.id, s.version, s.nodes, s.created_at, s.updated_at, s.header, s.checksum,"
        " n.version, n.place, n.row, n.checksum FROM nodes AS n JOIN sessions AS s ON s.number = n.session"
        " ORDER BY n.number DESC"
    )


def nodes_with(connection: sqlite3.Connection, query: str) -> Iterable[Found]:
    """Those nodes of which the index says that they are meant."""
    return connection.execute(
        "SELECT s.number, s.id, s.version, s.nodes, s.created_at, s.updated_at, s.header, s.checksum,"
        " n.version, n.place, n.row, n.checksum FROM search JOIN nodes AS n ON n.number = search.rowid"
        " JOIN sessions AS s ON s.number = n.session WHERE search MATCH ? ORDER BY search.rowid DESC",
        (query,),
    )


def hits(rows: Iterable[Found], words: SearchTerms, limit: int) -> Sequence[SearchHit]:
    """The first nodes that really have all the words."""
    found: list[SearchHit] = []
    sessions: dict[Any, SessionRecord] = {}
    for *session, version, place, row, checksum in rows:
        try:
            number = session[0]
            if number not in sessions:
                sessions[number] = read_session(session).record
            record = sessions[number]
            node = _read_node(record.id, version, place, row, checksum)
        except StoreError:
            continue  # it is damaged, and whoever loads it is told; the rest can be found
        said = extract_text(node)
        if words.are_in(said):
            found.append(SearchHit(record.id, record.title, node["id"], words.excerpt(said)))
            if len(found) == limit:
                break
    return found


def read_session(row: Sequence[Any]) -> StoredSession:
    number, id, version, nodes, created_at, updated_at, header, checksum = row
    name = id.decode("utf-8", "replace") if isinstance(id, bytes) else str(id)
    if not isinstance(header, bytes) or _sum(name, version, nodes, created_at, updated_at, header) != checksum:
        raise CorruptStoreError(f"The session {name!r} is damaged.")
    record = SessionRecord(name, version=version, created_at=created_at, updated_at=updated_at, node_count=nodes)
    return StoredSession(number, _with_header(record, header))


def read_nodes(record: SessionRecord, rows: Sequence[Found], since: int) -> Sequence[NodeRow]:
    """The nodes of a session since that version, all of them."""
    first = 0 if since < 1 else record.node_count - len(rows)
    if [place for _, place, _, _ in rows] != list(range(first, record.node_count)):
        raise CorruptStoreError(f"The session {record.id!r} is damaged: nodes are missing.")
    return tuple(_read_node(record.id, *row) for row in rows)


def _find(connection: sqlite3.Connection, session_id: str) -> StoredSession | None:
    row = connection.execute(
        "SELECT number, id, version, nodes, created_at, updated_at, header, checksum FROM sessions WHERE id = ?",
        (session_id,),
    ).fetchone()
    return None if row is None else read_session(row)


def _with_header(record: SessionRecord, header: str | bytes) -> SessionRecord:
    about = json.loads(header)
    return replace(record, title=about["title"], heads=tuple(about["heads"]), metadata=freeze(about["metadata"]))


def _read_node(session_id: str, version: Any, place: Any, row: Any, checksum: Any) -> NodeRow:
    if not isinstance(row, bytes) or _sum(session_id, version, place, row) != checksum:
        raise CorruptStoreError(f"The session {session_id!r} is damaged: a node is not what it was.")
    try:
        node: NodeRow = json.loads(row)
    except RecursionError:
        raise StoreError(f"A node of the session {session_id!r} is nested too deeply to be read here.") from None
    return node


def _sum(*facts: Any) -> int:
    """A checksum over facts, of which the last is bytes."""
    *short, content = facts
    return zlib.crc32(content, zlib.crc32(repr(short).encode()))


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
        close_before_fork(self)
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
            return change(connection, begin(connection, session_id), read, heads, title, metadata or {})

        return self._transact("BEGIN IMMEDIATE", act)

    def load(self, session_id: str, *, since: int = 0) -> SessionRecord:
        check_session_id(session_id)
        record, rows = self._transact("BEGIN", lambda connection: whole(connection, session_id, since))
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
            session = get(connection, session_id, expected_version)
            return change(connection, session, read, heads, title, metadata).version

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
            session = get(connection, session_id, expected_version)
            moved = session.record.heads if heads is None else heads
            return change(connection, session, (), moved, title, metadata).version

        return self._transact("BEGIN IMMEDIATE", act)

    def list(self, *, limit: int = 50, before: SessionRecord | None = None) -> Sequence[SessionRecord]:
        check_limit(limit)
        rows = self._transact("BEGIN", lambda connection: page(connection, limit, before))
        return [read_session(row).record for row in rows]

    def search(self, text: str, *, limit: int = 20) -> Sequence[SearchHit]:
        check_limit(limit)
        words = SearchTerms(text)
        if not words:
            return []
        if sqlite_search.serves(words):
            try:
                return self._search_index(words, limit)
            except StoreError as error:
                if isinstance(error, CorruptStoreError) and error.set_aside is not None:
                    raise
                # This SQLite has no index, or nobody may write, or it is damaged. Then it takes longer.
        return self._transact("BEGIN", lambda connection: hits(all_nodes(connection), words, limit))

    def delete(self, session_id: str) -> None:
        check_session_id(session_id)

        def act(connection: sqlite3.Connection) -> None:
            number = get(connection, session_id).number
            sqlite_search.remove(connection, number)
            remove(connection, number)

        self._transact("BEGIN IMMEDIATE", act)

    def close(self) -> None:
        """Let go of the file. The next use opens it again."""
        with self._lock:
            self._close_for_fork()

    def __del__(self) -> None:
        if hasattr(self, "_process"):  # it may be half-made
            self._close_for_fork()

    # The index

    def _search_index(self, words: SearchTerms, limit: int) -> Sequence[SearchHit]:
        try:
            while self._transact("BEGIN", sqlite_search.is_behind):
                self._transact("BEGIN IMMEDIATE", sqlite_search.catch_up)
            return self._transact(
                "BEGIN",
                lambda connection: hits(nodes_with(connection, sqlite_search.query(words)), words, limit),
            )
        except CorruptStoreError:
            with contextlib.suppress(StoreError):
                self._transact("BEGIN IMMEDIATE", sqlite_search.forget)
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
            self._close_for_fork()  # which ends it, too
        if breaks_connection(error):
            self._close_for_fork()
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
            self._close_for_fork()
        # A file that was whole when this process looked through it is not looked through again.
        check = self._check and (self._checked is None or identity(self._path) != self._checked)
        self._connection, self._file = opened(self._path, busy_timeout=self._busy_timeout, check=check)
        self._checked = self._file
        return self._connection

    def _close_for_fork(self) -> None:
        if self._process == os.getpid() and self._connection is not None:
            connection, self._connection = self._connection, None
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def _rebuild(path: Path, busy_timeout: float, check: bool) -> SqliteStore:
    return SqliteStore(path, busy_timeout=busy_timeout, check=check)


# Forks. A connection must not be open across one. Not even to be left alone in the child: SQLite there would take the
# parent's locks, of which it remembers to have them, for its own, and its changes could be lost.
