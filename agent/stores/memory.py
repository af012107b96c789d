"""Store that keeps sessions in memory, for tests and short-lived programs."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NoReturn
from weakref import WeakSet

from typing_extensions import override

from ..types import freeze
from .base import (
    ConflictError,
    NodeRow,
    Row,
    SearchHit,
    SessionNotFoundError,
    SessionRecord,
    check_encodable,
    check_limit,
    check_session_id,
    encode_object,
    read_rows,
    select_new_rows,
)
from .search import SearchTerms, extract_text


@dataclass
class _StoredSession:
    """A session. Rows are stored as JSON text, which is immutable and validates them."""

    record: SessionRecord
    texts: dict[str, str] = field(default_factory=dict)
    """JSON by node id, in insertion order."""
    versions: list[int] = field(default_factory=list)
    """Version that added each node."""
    numbers: list[int] = field(default_factory=list)
    """Sequence number of each node across all sessions."""


class MemoryStore:
    """Store that keeps sessions in memory.

    ```python
    from agent.stores import MemoryStore

    store = MemoryStore()
    store.create("first")
    assert [record.id for record in store.list()] == ["first"]
    ```
    """

    blocking = False

    def __init__(self) -> None:
        self._sessions: dict[str, _StoredSession] = {}
        self._number = 0
        self._lock = threading.Lock()
        _all.add(self)

    @override
    def __reduce__(self) -> NoReturn:
        raise TypeError("A MemoryStore cannot be pickled; use a SqliteStore to share sessions between processes.")

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
        now = _now()
        with self._lock:
            if session_id in self._sessions:
                actual = self._sessions[session_id].record.version
                raise ConflictError(session_id=session_id, expected=0, actual=actual)
            empty = _StoredSession(SessionRecord(session_id, version=0, created_at=now, updated_at=now))
            self._change(empty, read, heads, title, metadata or {})
            self._sessions[session_id] = empty
            return empty.record

    def load(self, session_id: str, *, since: int = 0) -> SessionRecord:
        check_session_id(session_id)
        with self._lock:
            session = self._require_session(session_id)
            record = session.record
            texts = [text for text, came in zip(session.texts.values(), session.versions, strict=True) if came > since]
        return replace(record, nodes=tuple(json.loads(text) for text in texts))

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
        with self._lock:
            session = self._require_session(session_id, expected_version)
            self._change(session, read, heads, title, metadata)
            return session.record.version

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
        with self._lock:
            session = self._require_session(session_id, expected_version)
            self._change(session, (), session.record.heads if heads is None else heads, title, metadata)
            return session.record.version

    def list(self, *, limit: int = 50, before: SessionRecord | None = None) -> Sequence[SessionRecord]:
        check_limit(limit)
        with self._lock:
            records = [session.record for session in self._sessions.values()]
        records.sort(key=_recency, reverse=True)
        if before is not None:
            records = [record for record in records if _recency(record) < _recency(before)]
        return records[:limit]

    def search(self, text: str, *, limit: int = 20) -> Sequence[SearchHit]:
        check_limit(limit)
        words = SearchTerms(text)
        if not words:
            return []
        with self._lock:
            nodes = [
                (number, session.record, id, row)
                for session in self._sessions.values()
                for number, (id, row) in zip(session.numbers, session.texts.items(), strict=True)
            ]
        nodes.sort(key=lambda node: node[0], reverse=True)
        hits: list[SearchHit] = []
        for _, record, id, row in nodes:
            node_text = extract_text(json.loads(row))
            if words.are_in(node_text):
                hits.append(SearchHit(record.id, record.title, id, words.excerpt(node_text)))
                if len(hits) == limit:
                    break
        return hits

    def delete(self, session_id: str) -> None:
        check_session_id(session_id)
        with self._lock:
            self._require_session(session_id)
            del self._sessions[session_id]

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def _require_session(self, session_id: str, expected_version: int | None = None) -> _StoredSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionNotFoundError(session_id=session_id)
        if expected_version is not None and session.record.version != expected_version:
            raise ConflictError(session_id=session_id, expected=expected_version, actual=session.record.version)
        return session

    def _change(
        self,
        session: _StoredSession,
        rows: Sequence[Row],
        heads: Sequence[str],
        title: str | None,
        metadata: Mapping[str, Any] | None,
    ) -> None:
        """Validate everything before the first change, so that changes are atomic."""
        check_encodable("heads", *heads)
        fresh = select_new_rows(rows, heads, known=session.texts.__contains__, text=session.texts.get)
        old = session.record
        new_metadata = old.metadata if metadata is None else freeze(json.loads(encode_object("The metadata", metadata)))
        record = replace(
            old,
            version=old.version + 1,
            heads=tuple(heads),
            title=old.title if title is None else title,
            metadata=new_metadata,
            updated_at=max(_now(), old.updated_at),
            node_count=old.node_count + len(fresh),
        )
        session.texts.update((row.id, row.text) for row in fresh)
        session.versions += [record.version] * len(fresh)
        session.numbers += range(self._number, self._number + len(fresh))
        self._number += len(fresh)
        session.record = record


def _recency(record: SessionRecord) -> tuple[float, str]:
    return record.updated_at, record.id


def _now() -> float:
    return datetime.now(UTC).timestamp()


_all: WeakSet[MemoryStore] = WeakSet()


def _renew_locks() -> None:
    """Replace the locks in a forked child; a thread of the parent may have held them."""
    for store in _all:
        store._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
