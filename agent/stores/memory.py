"""Sessions in this process, for tests and for programs that need not remember. They are gone when it ends."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
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
class _Kept:
    """A session. Rows are kept as text: nobody can change them, and what no file could hold is found out here."""

    record: SessionRecord
    texts: dict[str, str] = field(default_factory=dict)
    """JSON by node id, in the order in which nodes came."""
    versions: list[int] = field(default_factory=list)
    """With which version each came."""
    numbers: list[int] = field(default_factory=list)
    """How many nodes had come before each, in all sessions."""


class MemoryStore:
    """Keeps sessions in this process.

    ```python
    from agent.stores import MemoryStore

    store = MemoryStore()
    store.create("first")
    assert [record.id for record in store.list()] == ["first"]
    ```
    """

    blocking = False

    def __init__(self) -> None:
        self._sessions: dict[str, _Kept] = {}
        self._number = 0
        self._lock = threading.Lock()
        _all.add(self)

    @override
    def __reduce__(self) -> NoReturn:
        raise TypeError("A MemoryStore lives in one process; use a SqliteStore to share sessions.")

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
            empty = _Kept(SessionRecord(session_id, version=0, created_at=now, updated_at=now))
            self._change(empty, read, heads, title, metadata or {})
            self._sessions[session_id] = empty
            return empty.record

    def load(self, session_id: str, *, since: int = 0) -> SessionRecord:
        check_session_id(session_id)
        with self._lock:
            kept = self._kept(session_id)
            record = kept.record
            texts = [text for text, came in zip(kept.texts.values(), kept.versions, strict=True) if came > since]
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
            kept = self._kept(session_id)
            if kept.record.version != expected_version:
                raise ConflictError(session_id=session_id, expected=expected_version, actual=kept.record.version)
            self._change(kept, read, heads, title, metadata)
            return kept.record.version

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
            kept = self._kept(session_id)
            if kept.record.version != expected_version:
                raise ConflictError(session_id=session_id, expected=expected_version, actual=kept.record.version)
            self._change(kept, (), kept.record.heads if heads is None else heads, title, metadata)
            return kept.record.version

    def list(self, *, limit: int = 50, before: SessionRecord | None = None) -> Sequence[SessionRecord]:
        check_limit(limit)
        with self._lock:
            records = [kept.record for kept in self._sessions.values()]
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
                (number, kept.record, id, row)
                for kept in self._sessions.values()
                for number, (id, row) in zip(kept.numbers, kept.texts.items(), strict=True)
            ]
        nodes.sort(key=lambda node: node[0], reverse=True)
        return _first(limit, words, nodes)

    def delete(self, session_id: str) -> None:
        check_session_id(session_id)
        with self._lock:
            self._kept(session_id)
            del self._sessions[session_id]

    def close(self) -> None:
        """There is nothing to let go of."""

    def _kept(self, session_id: str) -> _Kept:
        kept = self._sessions.get(session_id)
        if kept is None:
            raise SessionNotFoundError(session_id=session_id)
        return kept

    def _change(
        self,
        kept: _Kept,
        rows: Sequence[Row],
        heads: Sequence[str],
        title: str | None,
        metadata: Mapping[str, Any] | None,
    ) -> None:
        """Check everything first: from where things begin to change, nothing can fail."""
        check_encodable("heads", *heads)
        fresh = select_new_rows(rows, heads, known=kept.texts.__contains__, text=kept.texts.get)
        old = kept.record
        about = old.metadata if metadata is None else freeze(json.loads(encode_object("The metadata", metadata)))
        record = replace(
            old,
            version=old.version + 1,
            heads=tuple(heads),
            title=old.title if title is None else title,
            metadata=about,
            updated_at=max(_now(), old.updated_at),
            node_count=old.node_count + len(fresh),
        )
        kept.texts.update((row.id, row.text) for row in fresh)
        kept.versions += [record.version] * len(fresh)
        kept.numbers += range(self._number, self._number + len(fresh))
        self._number += len(fresh)
        kept.record = record


def _first(limit: int, words: SearchTerms, nodes: Iterable[tuple[int, SessionRecord, str, str]]) -> Sequence[SearchHit]:
    hits: list[SearchHit] = []
    for _, record, id, row in nodes:
        said = extract_text(json.loads(row))
        if words.are_in(said):
            hits.append(SearchHit(record.id, record.title, id, words.excerpt(said)))
            if len(hits) == limit:
                break
    return hits


def _recency(record: SessionRecord) -> tuple[float, str]:
    return record.updated_at, record.id


def _now() -> float:
    return datetime.now(UTC).timestamp()


_all: WeakSet[MemoryStore] = WeakSet()


def _renew_locks() -> None:
    """A child process, whose parent may have held a lock in another thread, gets a new one."""
    for store in _all:
        store._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
