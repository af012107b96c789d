"""Sessions and nodes as rows of tables, inside a transaction that somebody else began.

Nothing that was written before is written again: nodes are added, and the session's own row is replaced. Every row
carries a checksum, since SQLite sees damage to its pages, and not to what stands on them.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeAlias

from ..types import freeze
from .base import ConflictError, CorruptStoreError, NodeRow, SearchHit, SessionNotFoundError, SessionRecord, StoreError
from .rows import Row, as_json, check_encodable, new_rows
from .texts import Words, text_of

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

    fresh = new_rows(rows, heads, known=known, text=text)
    header = as_json(
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


def hits(rows: Iterable[Found], words: Words, limit: int) -> Sequence[SearchHit]:
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
        said = text_of(node)
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
