"""One session: what is put in comes out again, in order, and each change is counted."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

from ...errors import ConfigurationError
from ...stores.base import ConflictError, SessionNotFoundError, SessionRecord
from .base import Trial, case, node, refused, same, same_rows


@case
async def a_new_session_is_empty(trial: Trial) -> None:
    store = await trial.store()
    record = await store.create("a", title="T", metadata={"k": [1, {"n": None}]})
    for got in (record, await store.load("a")):
        same((got.id, got.title, got.version, got.node_count), ("a", "T", 1, 0), "a new session")
        same((list(got.heads), list(got.nodes)), ([], []), "heads and nodes of a new session")
        same(json.loads(json.dumps(got.metadata)), {"k": [1, {"n": None}]}, "metadata of a new session")
        assert 0 < got.created_at <= got.updated_at, "created_at and updated_at must be seconds since 1970"
    plain = await store.create("b")
    same((plain.title, dict(plain.metadata)), ("", {}), "defaults of a new session")


@case
async def a_session_can_begin_with_nodes(trial: Trial) -> None:
    store = await trial.store()
    rows = [node("n1"), node("n2", "n1")]
    record = await store.create("a", rows=rows, heads=["n2", "n1"])
    same((record.version, record.node_count, list(record.heads)), (1, 2, ["n2", "n1"]), "what create returns")
    same_rows((await store.load("a")).nodes, rows, "after create")
    await refused(ConfigurationError, store.create("b", rows=rows, heads=["n9"]), "create with an unknown head")
    await refused(SessionNotFoundError, store.load("b"), "a session whose creation failed")


@case
async def an_id_is_taken_once(trial: Trial) -> None:
    store = await trial.store()
    await store.create("a", title="first")
    version = await store.append("a", [node("n1")], expected_version=1)
    error = await refused(ConflictError, store.create("a", title="second"), "an id that is taken")
    same((error.expected, error.actual), (0, version), "expected and actual of the conflict")
    got = await store.load("a")
    same((got.title, got.version, got.node_count), ("first", 2, 1), "the session that was there")


@case
async def ids_of_sessions_are_plain(trial: Trial) -> None:
    store = await trial.store()
    for good in ("a", "Z-9_", "x" * 64, "-", "0"):
        await store.create(good)
        same((await store.load(good)).id, good, "the id of a session")
    for bad in ("", "x" * 65, "a b", "../a", "a/b", "a.b", "é", "a\n", "a\0", "'; DROP TABLE sessions; --", "%", "１"):
        what = f"the id {bad!r}"
        await refused(ConfigurationError, store.create(bad), f"create with {what}")
        await refused(ConfigurationError, store.load(bad), f"load with {what}")
        await refused(ConfigurationError, store.append(bad, [], expected_version=1), f"append with {what}")
        await refused(ConfigurationError, store.update(bad, expected_version=1), f"update with {what}")
        await refused(ConfigurationError, store.delete(bad), f"delete with {what}")
    same(len(await store.list()), 5, "the number of sessions")


@case
async def what_is_not_there_is_not_found(trial: Trial) -> None:
    store = await trial.store()
    await store.create("a")
    error = await refused(SessionNotFoundError, store.load("b"), "load of what is not there")
    same(error.session_id, "b", "session_id of the error")
    appended = store.append("b", [node("n1")], expected_version=1)
    await refused(SessionNotFoundError, appended, "append to what is not there")
    updated = store.update("b", expected_version=1, title="x")
    await refused(SessionNotFoundError, updated, "update of what is not there")
    await refused(SessionNotFoundError, store.delete("b"), "delete of what is not there")
    same([record.id for record in await store.list()], ["a"], "sessions")


@case
async def rows_come_back_as_they_were(trial: Trial) -> None:
    store = await trial.store()
    await store.create("a")
    odd = {
        "texts": [
            "",
            " ",
            "\n",
            "é",
            "e\u0301",
            "日本語",
            "👩‍👩‍👧",
            "\u202e",
            '"\\/',
            "a\0b",
            "half \ud800 a character",
            "</script>",
        ],
        "numbers": [0, -1, 2**53 + 1, 10**30, 0.1, 1e300, -0.5, 1.0],
        "others": [True, False, None, [], {}, [[[]]], {"": {"": ""}}],
    }
    rows = [
        node("n1", unknown_field=odd),
        {**node("n2", "n1"), "data": {"type": "something new", "content": odd}, "metadata": odd},
        node("an id with spaces, é and 日本", "n2"),
        {"id": "n4", "parents": [], "timestamp": 0, "metadata": {}, "data": {"role": "assistant", "content": [odd]}},
        node("n5", text="long " * 100_000),
    ]
    await store.append("a", rows, expected_version=1)
    same_rows((await store.load("a")).nodes, rows, "odd content")


@case
async def rows_keep_their_order(trial: Trial) -> None:
    store = await trial.store()
    await store.create("a")
    # Names whose order is neither that of time nor of the alphabet, in batches of several sizes.
    rows = [node(f"{(number * 37) % 101:x}-{number}") for number in range(100)]
    version, start = 1, 0
    for size in (1, 7, 1, 30, 2, 59):
        version = await store.append("a", rows[start : start + size], expected_version=version)
        start += size
    same_rows((await store.load("a")).nodes, rows, "the order of nodes")


@case
async def branches_and_merges_are_kept(trial: Trial) -> None:
    store = await trial.store()
    await store.create("a")
    rows = [node("root"), node("left", "root"), node("right", "root"), node("both", "left", "right", "root")]
    await store.append("a", rows[:3], heads=["right", "left"], expected_version=1)
    same(list((await store.load("a")).heads), ["right", "left"], "two heads")
    await store.append("a", rows[3:], heads=["both"], expected_version=2)
    got = await store.load("a")
    same_rows(got.nodes, rows, "a merge")
    same(list(got.heads), ["both"], "the head of a merge")
    await store.append("a", [], heads=["left"], expected_version=3)
    same(list((await store.load("a")).heads), ["left"], "heads that went back")
    await store.update("a", heads=[], expected_version=4)
    got = await store.load("a")
    same((list(got.heads), got.node_count), ([], 4), "heads that were taken away")


@case
async def each_change_is_one_version(trial: Trial) -> None:
    store = await trial.store()
    await store.create("a")
    for number in range(1, 6):
        got = await store.append("a", [node(f"n{number}"), node(f"m{number}")], expected_version=number * 2 - 1)
        same(got, number * 2, "the version after an append")
        got = await store.update("a", title=f"T{number}", expected_version=got)
        same(got, number * 2 + 1, "the version after an update")
        record = await store.load("a")
        same((record.version, record.node_count), (got, number * 2), "the version and node_count that were loaded")
    same(await store.append("a", [], heads=["n1"], expected_version=11), 12, "the version after an append of nothing")


@case
async def only_the_new_nodes_can_be_loaded(trial: Trial) -> None:
    store = await trial.store()
    rows = [node("n1"), node("n2", "n1"), node("n3", "n2"), node("n4", "n3")]
    await store.create("a", rows=rows[:1], heads=["n1"])
    await store.append("a", rows[1:3], expected_version=1)
    await store.update("a", title="T", expected_version=2)
    await store.append("a", rows[3:], expected_version=3)
    for since, expected in ((0, rows), (1, rows[1:]), (2, rows[3:]), (3, rows[3:]), (4, []), (99, [])):
        got = await store.load("a", since=since)
        same_rows(got.nodes, expected, f"load since {since}")
        same((got.version, got.node_count, got.title), (4, 4, "T"), f"the rest of the record since {since}")


@case
async def what_is_none_stays_as_it_is(trial: Trial) -> None:
    store = await trial.store()
    first = await store.create("a", title="T", metadata={"k": 1}, rows=[node("n1")], heads=["n1"])
    await store.append("a", [node("n2", "n1")], expected_version=1)
    got = await store.load("a")
    same((got.title, dict(got.metadata)), ("T", {"k": 1}), "title and metadata after an append")
    assert got.updated_at >= first.updated_at, "updated_at went back"
    same(got.created_at, first.created_at, "created_at")
    await store.append("a", [node("n3")], expected_version=2, title="U", metadata={"l": 2})
    got = await store.load("a")
    same((got.title, dict(got.metadata)), ("U", {"l": 2}), "title and metadata that an append brought")
    await store.update("a", expected_version=3, title="")
    got = await store.load("a")
    same((got.title, dict(got.metadata), list(got.heads)), ("", {"l": 2}, ["n3"]), "after an update of the title")
    await store.update("a", expected_version=4, metadata={})
    await store.update("a", expected_version=5, heads=["n1", "n3"])
    got = await store.load("a")
    same((got.title, dict(got.metadata), list(got.heads)), ("", {}, ["n1", "n3"]), "after more updates")


@case
async def what_was_handed_over_is_a_copy(trial: Trial) -> None:
    store = await trial.store()
    row, about = node("n1"), {"k": {"deep": [1]}}
    await store.create("a", metadata=about)
    await store.append("a", [row], expected_version=1)
    row["data"]["content"] = "changed"
    about["k"]["deep"].append(2)
    for _ in range(2):
        got = await store.load("a")
        same_rows(got.nodes, [node("n1")], "a row that its owner changed after the append, or that was loaded before")
        same(json.loads(json.dumps(got.metadata)), {"k": {"deep": [1]}}, "metadata")
        mine: Any = got.nodes[0]
        mine["data"]["content"] = "changed"


@case
async def sessions_do_not_mix(trial: Trial) -> None:
    store = await trial.store()
    for name in ("a", "A", "b"):
        await store.create(name, title=name, rows=[node("n1", text=name)], heads=["n1"])
    await store.append("b", [node("n2", "n1")], expected_version=1)
    await store.delete("a")
    got = await store.load("A")
    same_rows(got.nodes, [node("n1", text="A")], "a session beside others")
    same((got.title, got.version), ("A", 1), "title and version of a session beside others")
    same((await store.load("b")).node_count, 2, "nodes of a session beside others")


@case
async def what_was_deleted_is_gone(trial: Trial) -> None:
    store = await trial.store()
    await store.create("a", rows=[node("n1", text="unmistakable")], heads=["n1"])
    await store.search("unmistakable")
    await store.delete("a")
    await refused(SessionNotFoundError, store.load("a"), "load of a deleted session")
    await refused(SessionNotFoundError, store.delete("a"), "a second delete")
    same((list(await store.list()), list(await store.search("unmistakable"))), ([], []), "list and search")
    await store.create("a")
    got = await store.load("a")
    same((got.version, got.node_count, list(got.nodes)), (1, 0, []), "a new session of the same id")
    await store.append("a", [node("n1", text="something else")], expected_version=1)


async def _tick(record: SessionRecord) -> None:
    """Wait until the clock has moved on: times that are equal say nothing about order."""
    while datetime.now(UTC).timestamp() <= record.updated_at:  # noqa: ASYNC110  # nobody tells when a clock moves
        await asyncio.sleep(0.001)


@case
async def sessions_are_listed_newest_first(trial: Trial) -> None:
    store = await trial.store()
    same(list(await store.list()), [], "an empty list")
    for number in range(7):
        await _tick(await store.create(f"s{number}", title=f"T{number}", metadata={"n": number}))
    await store.append("s2", [node("n1")], expected_version=1)
    got = await store.list()
    order = ["s2", "s6", "s5", "s4", "s3", "s1", "s0"]
    same([record.id for record in got], order, "the order of sessions")
    for record in got:
        same(list(record.nodes), [], "nodes in a list")
        whole = await store.load(record.id)
        for name in ("title", "version", "created_at", "updated_at", "metadata", "node_count"):
            same(getattr(record, name), getattr(whole, name), f"{name} in a list")
    paged: list[str] = []
    last: SessionRecord | None = None
    while page := await store.list(limit=3, before=last):
        assert len(page) <= 3, f"limit=3 gave {len(page)} sessions"
        paged += [record.id for record in page]
        last = page[-1]
        assert len(paged) <= 7, f"pages repeat sessions: {paged}"
    same(paged, order, "the sessions of all pages")
    await refused(ConfigurationError, store.list(limit=0), "limit=0")
