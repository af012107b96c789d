"""A third-party store: async, with one JSON document per session on a compare-and-swap server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from agent.stores import (
    ConflictError,
    SearchHit,
    SearchTerms,
    SessionNotFoundError,
    SessionRecord,
    check_session_id,
    extract_text,
    read_rows,
    select_new_rows,
)
from agent.stores.base import NodeRow, check_limit, encode_object


class Server:
    """Documents by name, each with a revision. Everything takes a while."""

    def __init__(self) -> None:
        self.documents: dict[str, tuple[int, str]] = {}

    async def get(self, name: str) -> tuple[int, str] | None:
        await asyncio.sleep(0)
        return self.documents.get(name)

    async def swap(self, name: str, revision: int, text: str | None) -> bool:
        """Put a document in the place of that revision (0: of none). False if it is no longer there."""
        await asyncio.sleep(0)
        if self.documents.get(name, (0, ""))[0] != revision:
            return False
        if text is None:
            del self.documents[name]
        else:
            self.documents[name] = (revision + 1, text)
        return True


class RemoteStore:
    blocking = False

    def __init__(self, server: Server) -> None:
        self.server = server

    async def create(
        self,
        session_id: str,
        *,
        title: str = "",
        metadata: Mapping[str, Any] | None = None,
        rows: Sequence[NodeRow] = (),
        heads: Sequence[str] = (),
    ) -> SessionRecord:
        check_session_id(session_id)
        now = datetime.now(UTC).timestamp()
        document = {"title": title, "metadata": {}, "heads": [], "nodes": [], "created_at": now, "updated_at": now}
        text = _write_change(document, 1, rows, heads, None, metadata)
        if not await self.server.swap(session_id, 0, text):
            there = await self.server.get(session_id)
            raise ConflictError(session_id=session_id, expected=0, actual=there[0] if there else None)
        return await self.load(session_id, since=1)

    async def load(self, session_id: str, *, since: int = 0) -> SessionRecord:
        version, document = await self._get(session_id)
        nodes = [json.loads(text) for came, text in document["nodes"] if came > since]
        return _record(session_id, version, document, nodes)

    async def append(
        self,
        session_id: str,
        rows: Sequence[NodeRow],
        *,
        heads: Sequence[str],
        expected_version: int,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> int:
        version, document = await self._get(session_id)
        if version == expected_version:
            text = _write_change(document, version + 1, rows, heads, title, metadata)
            if await self.server.swap(session_id, version, text):
                return version + 1
            version, _ = await self._get(session_id)
        raise ConflictError(session_id=session_id, expected=expected_version, actual=version)

    async def update(
        self,
        session_id: str,
        *,
        expected_version: int,
        heads: Sequence[str] | None = None,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> int:
        if heads is None:
            heads = (await self.load(session_id)).heads
        return await self.append(
            session_id, [], heads=heads, expected_version=expected_version, title=title, metadata=metadata
        )

    async def list(self, *, limit: int = 50, before: SessionRecord | None = None) -> Sequence[SessionRecord]:
        check_limit(limit)
        records = [_record(name, version, json.loads(text), ()) for name, (version, text) in self._documents()]
        records.sort(key=lambda record: (record.updated_at, record.id), reverse=True)
        if before is not None:
            records = [one for one in records if (one.updated_at, one.id) < (before.updated_at, before.id)]
        return records[:limit]

    async def search(self, text: str, *, limit: int = 20) -> Sequence[SearchHit]:
        words = SearchTerms(text)
        hits: list[SearchHit] = []
        for name, (_, written) in reversed(self._documents()):
            document = json.loads(written)
            for _, row in reversed(document["nodes"]):
                node = json.loads(row)
                if words and words.are_in(extract_text(node)):
                    hits.append(SearchHit(name, document["title"], node["id"], words.excerpt(extract_text(node))))
        return hits[:limit]

    async def delete(self, session_id: str) -> None:
        version, _ = await self._get(session_id)
        await self.server.swap(session_id, version, None)

    async def close(self) -> None:
        pass

    def _documents(self) -> Any:
        return list(self.server.documents.items())

    async def _get(self, session_id: str) -> tuple[int, Any]:
        check_session_id(session_id)
        found = await self.server.get(session_id)
        if found is None:
            raise SessionNotFoundError(session_id=session_id)
        return found[0], json.loads(found[1])


def _record(name: str, version: int, document: Any, nodes: Sequence[NodeRow]) -> SessionRecord:
    return SessionRecord(
        name,
        document["title"],
        version,
        tuple(document["heads"]),
        document["created_at"],
        document["updated_at"],
        document["metadata"],
        len(document["nodes"]),
        tuple(nodes),
    )


def _write_change(
    document: dict[str, Any],
    version: int,
    rows: Sequence[NodeRow],
    heads: Sequence[str],
    title: str | None,
    metadata: Mapping[str, Any] | None,
) -> str:
    there = {json.loads(text)["id"]: text for _, text in document["nodes"]}
    fresh = select_new_rows(read_rows(rows), heads, known=there.__contains__, text=there.get)
    document["nodes"] += [[version, row.text] for row in fresh]
    document["heads"] = list(heads)
    document["updated_at"] = datetime.now(UTC).timestamp()
    document["title"] = document["title"] if title is None else title
    document["metadata"] = document["metadata"] if metadata is None else dict(metadata)
    return encode_object("The session", document)
