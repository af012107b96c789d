"""The suite for stores: it passes the good ones, and finds out the bad ones."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from agent.errors import ConfigurationError
from agent.stores import MemoryStore, SearchHit, SessionRecord, SqliteStore, Store, StoreError
from agent.stores.base import NodeRow
from agent.testing.stores import STORE_CASES, check_store
from tests.stores.remote import RemoteStore, Server


@pytest.mark.parametrize("case", STORE_CASES)
def test_memory_keeps_its_promises(case: str) -> None:
    check_store(MemoryStore, only=[case])


@pytest.mark.parametrize("case", STORE_CASES)
def test_a_file_keeps_its_promises(case: str, ram: Path) -> None:
    def reopen(store: Store) -> Store:
        assert isinstance(store, SqliteStore)
        return SqliteStore(store.path)

    check_store(lambda: SqliteStore(ram / "s.db"), reopen=reopen, only=[case])


@pytest.mark.parametrize("case", STORE_CASES)
def test_an_async_store_of_somebody_else_keeps_its_promises(case: str) -> None:
    def reopen(store: Store) -> Store:
        assert isinstance(store, RemoteStore)
        return RemoteStore(store.server)

    check_store(lambda: RemoteStore(Server()), reopen=reopen, only=[case])


def test_stores_may_be_made_asynchronously() -> None:
    async def make() -> Store:
        return RemoteStore(Server())

    async def reopen(store: Store) -> Store:
        assert isinstance(store, RemoteStore)
        return RemoteStore(store.server)

    check_store(make, reopen=reopen, only=["data_survives_closing", "changes_are_visible_to_other_stores"])


def test_all_cases_run_without_being_named() -> None:
    made: list[Store] = []

    def make() -> Store:
        made.append(MemoryStore())
        return made[-1]

    check_store(make)
    # All cases but one, which needs a store to open again.
    assert len(made) == len(STORE_CASES) - 1 >= 20


# Sabotage. Each of these stores breaks one promise, and the suite says which.


class LosesUpdates(MemoryStore):
    """Writes whatever the version is."""

    @override
    def append(self, session_id: str, rows: Sequence[NodeRow], **options: Any) -> int:
        return super().append(session_id, rows, **{**options, "expected_version": self.load(session_id).version})


class LooksAndThenWrites(MemoryStore):
    """Compares versions outside of the lock: correct with a single writer only."""

    @override
    def append(self, session_id: str, rows: Sequence[NodeRow], *, expected_version: int, **options: Any) -> int:
        if self.load(session_id).version != expected_version:
            return super().append(session_id, rows, expected_version=expected_version, **options)
        time.sleep(random.uniform(0, 0.002))
        return super().append(session_id, rows, expected_version=self.load(session_id).version, **options)


class ReordersRows(MemoryStore):
    @override
    def load(self, session_id: str, *, since: int = 0) -> SessionRecord:
        record = super().load(session_id, since=since)
        return replace(record, nodes=tuple(sorted(record.nodes, key=lambda row: str(row["id"]))))


class TearsAppends(MemoryStore):
    """Adds rows one by one, and moves the heads when all are there."""

    @override
    def append(self, session_id: str, rows: Sequence[NodeRow], *, expected_version: int, **options: Any) -> int:
        kept = self._sessions.get(session_id)
        if kept is not None and kept.record.version == expected_version:
            for row in rows:
                super().append(session_id, [row], heads=kept.record.heads, expected_version=kept.record.version)
                kept.record = replace(kept.record, version=expected_version)
        return super().append(session_id, rows, expected_version=expected_version, **options)


class DoesNotCountUpdates(MemoryStore):
    @override
    def update(self, session_id: str, *, expected_version: int, **options: Any) -> int:
        version = super().update(session_id, expected_version=expected_version, **options)
        kept = self._sessions[session_id]
        kept.record = replace(kept.record, version=version - 1)
        return version - 1


class DoesNotCountAppends(MemoryStore):
    @override
    def append(self, session_id: str, rows: Sequence[NodeRow], *, expected_version: int, **options: Any) -> int:
        version = super().append(session_id, rows, expected_version=expected_version, **options)
        kept = self._sessions[session_id]
        kept.record = replace(kept.record, version=version - 1)
        return version - 1


class ForgetsHeads(MemoryStore):
    @override
    def append(self, session_id: str, rows: Sequence[NodeRow], **options: Any) -> int:
        kept = self._sessions.get(session_id)
        heads = kept.record.heads if kept is not None else ()
        version = super().append(session_id, rows, **options)
        self._sessions[session_id].record = replace(self._sessions[session_id].record, heads=heads)
        return version


class DropsWhatItDoesNotKnow(MemoryStore):
    @override
    def append(self, session_id: str, rows: Sequence[NodeRow], **options: Any) -> int:
        known = ("id", "parents", "timestamp", "metadata", "data")
        return super().append(session_id, [{key: row[key] for key in known if key in row} for row in rows], **options)


class TidiesTexts(MemoryStore):
    """Stores text as a database that ends it at the first NUL would."""

    @override
    def append(self, session_id: str, rows: Sequence[NodeRow], **options: Any) -> int:
        try:
            rows = json.loads(json.dumps(list(rows)).replace("\\u0000b", ""))
        except TypeError:
            raise ConfigurationError("not JSON") from None
        return super().append(session_id, rows, **options)


class LendsItsRows(MemoryStore):
    """Gives everybody the same objects."""

    def __init__(self) -> None:
        super().__init__()
        self.lent: dict[str, NodeRow] = {}

    @override
    def load(self, session_id: str, *, since: int = 0) -> SessionRecord:
        record = super().load(session_id, since=since)
        return replace(record, nodes=tuple(self.lent.setdefault(str(row["id"]), row) for row in record.nodes))


class ReplacesNodes(MemoryStore):
    @override
    def append(self, session_id: str, rows: Sequence[NodeRow], **options: Any) -> int:
        kept = self._sessions.get(session_id)
        new = [row for row in rows if kept is None or row.get("id") not in kept.texts]
        version = super().append(session_id, new, **options)
        self._sessions[session_id].texts.update({row["id"]: json.dumps(row) for row in rows if row not in new})
        return version


class IgnoresSince(MemoryStore):
    @override
    def load(self, session_id: str, *, since: int = 0) -> SessionRecord:
        return super().load(session_id)


class ForgetsTitles(MemoryStore):
    @override
    def append(self, session_id: str, rows: Sequence[NodeRow], *, title: str | None = None, **options: Any) -> int:
        return super().append(session_id, rows, title=title or "", **options)


class Overwrites(MemoryStore):
    """Creates what is there already."""

    @override
    def create(self, session_id: str, **options: Any) -> SessionRecord:
        self._sessions.pop(session_id, None)
        return super().create(session_id, **options)


class TakesAnyId(MemoryStore):
    @override
    def create(self, session_id: str, **options: Any) -> SessionRecord:
        return super().create(session_id.replace("/", "-") or "x", **options)


class TakesOrphans(MemoryStore):
    """Does not look whether parents are there."""

    @override
    def append(self, session_id: str, rows: Sequence[NodeRow], **options: Any) -> int:
        try:
            return super().append(session_id, rows, **options)
        except ConfigurationError as error:
            if error.field != "rows":
                raise
            kept = self._sessions[session_id]
            kept.record = replace(kept.record, version=kept.record.version + 1)
            return kept.record.version


class FailsWithItsOwnErrors(MemoryStore):
    @override
    def load(self, session_id: str, *, since: int = 0) -> SessionRecord:
        try:
            return super().load(session_id, since=since)
        except StoreError:
            raise KeyError(session_id) from None


class KeepsWhatWasDeleted(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.deleted: dict[str, Any] = {}

    @override
    def delete(self, session_id: str) -> None:
        self.deleted[session_id] = self._sessions.get(session_id)
        super().delete(session_id)

    @override
    def create(self, session_id: str, **options: Any) -> SessionRecord:
        record = super().create(session_id, **options)
        if session_id in self.deleted:
            self._sessions[session_id].texts.update(self.deleted[session_id].texts)
            self._sessions[session_id].versions += self.deleted[session_id].versions
        return record


class ListsTheOldestFirst(MemoryStore):
    @override
    def list(self, *, limit: int = 50, before: SessionRecord | None = None) -> Sequence[SessionRecord]:
        return list(reversed(super().list(limit=limit, before=before)))


class RepeatsPages(MemoryStore):
    @override
    def list(self, *, limit: int = 50, before: SessionRecord | None = None) -> Sequence[SessionRecord]:
        return super().list(limit=limit)


class SearchesWithOperators(MemoryStore):
    """Hands what was typed to a query language."""

    @override
    def search(self, text: str, *, limit: int = 20) -> Sequence[SearchHit]:
        if text.count('"') % 2:
            raise StoreError("syntax error")
        return super().search(text.split(" OR ")[-1], limit=limit)


class FindsAnyWord(MemoryStore):
    @override
    def search(self, text: str, *, limit: int = 20) -> Sequence[SearchHit]:
        hits = [hit for word in text.split() for hit in super(FindsAnyWord, self).search(word, limit=limit)]
        return list(dict.fromkeys(hits))[:limit]


class ChangesAndThenFails(MemoryStore):
    """Has renamed the session when it finds that the rows are wrong."""

    @override
    def append(self, session_id: str, rows: Sequence[NodeRow], *, title: str | None = None, **options: Any) -> int:
        kept = self._sessions.get(session_id)
        if title is not None and kept is not None:
            kept.record = replace(kept.record, title=title)
        return super().append(session_id, rows, title=title, **options)


SABOTAGE: Mapping[type[MemoryStore], str] = {
    LosesUpdates: "a_stale_version_is_a_conflict",
    LooksAndThenWrites: "concurrent_writers_lose_nothing",
    ReordersRows: "rows_keep_their_order",
    TearsAppends: "an_append_is_whole_or_nothing",
    DoesNotCountUpdates: "every_change_is_one_version",
    DoesNotCountAppends: "every_change_is_one_version",
    ForgetsHeads: "branches_and_merges_are_kept",
    DropsWhatItDoesNotKnow: "rows_come_back_as_they_were",
    TidiesTexts: "rows_come_back_as_they_were",
    LendsItsRows: "rows_are_copied",
    ReplacesNodes: "a_node_that_is_there_is_not_added_again",
    IgnoresSince: "only_the_new_nodes_can_be_loaded",
    ForgetsTitles: "fields_that_are_none_stay_unchanged",
    Overwrites: "an_id_is_taken_once",
    TakesAnyId: "ids_of_sessions_are_plain",
    TakesOrphans: "an_append_is_whole_or_nothing",
    FailsWithItsOwnErrors: "a_missing_session_is_not_found",
    KeepsWhatWasDeleted: "a_deleted_session_is_gone",
    ListsTheOldestFirst: "sessions_are_listed_newest_first",
    RepeatsPages: "sessions_are_listed_newest_first",
    SearchesWithOperators: "every_text_can_be_searched",
    FindsAnyWord: "text_is_searched",
    ChangesAndThenFails: "an_append_is_whole_or_nothing",
}


@pytest.mark.parametrize("broken", SABOTAGE, ids=lambda kind: kind.__name__)
def test_a_store_that_breaks_a_promise_is_found_out(broken: type[MemoryStore]) -> None:
    case = SABOTAGE[broken]
    with pytest.raises(AssertionError, match=f"^{case}: "):
        check_store(broken, only=[case])
    with pytest.raises(AssertionError):
        check_store(broken)


def copy_row(store: Store, *, leave_out: Callable[[SessionRecord], bool]) -> Store:
    assert isinstance(store, MemoryStore)
    copy = MemoryStore()
    copy._sessions = {id: kept for id, kept in store._sessions.items() if not leave_out(kept.record)}
    return copy


@pytest.mark.parametrize(
    "leave_out",
    [
        pytest.param(lambda record: True, id="everything"),
        pytest.param(lambda record: record.version == 3, id="the second append"),
    ],
)
def test_a_store_that_forgets_what_it_acknowledged_is_found_out(leave_out: Callable[[SessionRecord], bool]) -> None:
    case = "changes_are_visible_to_other_stores"
    check_store(MemoryStore, reopen=lambda store: store, only=[case])
    with pytest.raises(AssertionError, match=f"^{case}: "):
        check_store(MemoryStore, reopen=lambda store: copy_row(store, leave_out=leave_out), only=[case])


class TakesThreadsForTasks(RemoteStore):
    """Async, and forgets that others run while it waits."""

    @override
    async def append(self, session_id: str, rows: Sequence[NodeRow], *, expected_version: int, **options: Any) -> int:
        record = await self.load(session_id)
        if record.version != expected_version:
            return await super().append(session_id, rows, expected_version=expected_version, **options)
        text = json.dumps(
            {
                **json.loads(self.server.documents[session_id][1]),
                "nodes": [[0, json.dumps(row)] for row in [*record.nodes, *rows]],
                "heads": options["heads"],
            }
        )
        while not await self.server.swap(session_id, self.server.documents[session_id][0], text):
            pass
        return expected_version + 1


def test_an_async_store_that_loses_updates_is_found_out() -> None:
    case = "concurrent_writers_lose_nothing"
    with pytest.raises(AssertionError, match=f"^{case}: "):
        check_store(lambda: TakesThreadsForTasks(Server()), only=[case])


def test_a_failing_case_says_what_was_expected_and_what_came() -> None:
    with pytest.raises(AssertionError, match="the version after an append: 1 instead of 2"):
        check_store(DoesNotCountAppends, only=["every_change_is_one_version"])
