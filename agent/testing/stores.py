"""Conformance tests for stores of conversations: the promises of `agent.stores.Store`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ..errors import ConfigurationError
from ..stores.base import ConflictError, NodeExistsError, SessionNotFoundError, SessionRecord
from .conformance import Make, Reopen, StoreCase, StoreHarness, expect, expect_error, expect_record, expect_rows, node

STORE_CASES: dict[str, StoreCase] = {}
"""Cases of the suite by name, for `check_store(..., only=[name])` in a parametrized test."""


def check_store(make: Make, *, reopen: Reopen | None = None, only: Sequence[str] = ()) -> None:
    """Run the conformance tests of a store. The first failure raises AssertionError.

    ```python
    from agent.stores import MemoryStore
    from agent.testing.stores import check_store

    check_store(MemoryStore)
    ```

    Args:
        make: Returns a new, empty store. It and the methods of the store may be async.
        reopen: Returns a second store with the same content, as another process would open it. It may be async.
            Without it, cases that need a second store are skipped.
        only: Names of cases; by default, all of `STORE_CASES`.
    """
    for name in only or STORE_CASES:
        asyncio.run(StoreHarness(make, reopen).run(STORE_CASES[name]))


def _case(case: StoreCase) -> StoreCase:
    STORE_CASES[case.__name__] = case
    return case


@_case
async def a_new_session_is_empty(harness: StoreHarness) -> None:
    store = await harness.store()
    record = await store.create("a", title="T", metadata={"k": [1, {"n": None}]})
    for got in (record, await store.load("a")):
        expect((got.id, got.title, got.version, got.node_count), ("a", "T", 1, 0), "a new session")
        expect((list(got.heads), list(got.nodes)), ([], []), "heads and nodes of a new session")
        expect(json.loads(json.dumps(got.metadata)), {"k": [1, {"n": None}]}, "metadata of a new session")
        assert 0 < got.created_at <= got.updated_at, "created_at and updated_at must be seconds since 1970"
    plain = await store.create("b")
    expect((plain.title, dict(plain.metadata)), ("", {}), "defaults of a new session")


@_case
async def a_session_can_begin_with_nodes(harness: StoreHarness) -> None:
    store = await harness.store()
    rows = [node("n1"), node("n2", "n1")]
    record = await store.create("a", rows=rows, heads=["n2", "n1"])
    expect((record.version, record.node_count, list(record.heads)), (1, 2, ["n2", "n1"]), "the result of create")
    expect_rows((await store.load("a")).nodes, rows, "after create")
    await expect_error(ConfigurationError, store.create("b", rows=rows, heads=["n9"]), "create with an unknown head")
    await expect_error(SessionNotFoundError, store.load("b"), "a session whose creation failed")


@_case
async def an_id_is_taken_once(harness: StoreHarness) -> None:
    store = await harness.store()
    await store.create("a", title="first")
    version = await store.append("a", [node("n1")], expected_version=1)
    error = await expect_error(ConflictError, store.create("a", title="second"), "an id that is taken")
    expect((error.expected, error.actual), (0, version), "expected and actual of the conflict")
    got = await store.load("a")
    expect((got.title, got.version, got.node_count), ("first", 2, 1), "the session that was there")


@_case
async def ids_of_sessions_are_plain(harness: StoreHarness) -> None:
    store = await harness.store()
    for good in ("a", "Z-9_", "x" * 64, "-", "0"):
        await store.create(good)
        expect((await store.load(good)).id, good, "the id of a session")
    for bad in ("", "x" * 65, "a b", "../a", "a/b", "a.b", "é", "a\n", "a\0", "'; DROP TABLE sessions; --", "%", "１"):
        what = f"the id {bad!r}"
        await expect_error(ConfigurationError, store.create(bad), f"create with {what}")
        await expect_error(ConfigurationError, store.load(bad), f"load with {what}")
        await expect_error(ConfigurationError, store.append(bad, [], expected_version=1), f"append with {what}")
        await expect_error(ConfigurationError, store.update(bad, expected_version=1), f"update with {what}")
        await expect_error(ConfigurationError, store.delete(bad), f"delete with {what}")
    expect(len(await store.list()), 5, "the number of sessions")


@_case
async def a_missing_session_is_not_found(harness: StoreHarness) -> None:
    store = await harness.store()
    await store.create("a")
    error = await expect_error(SessionNotFoundError, store.load("b"), "load of what is not there")
    expect(error.session_id, "b", "session_id of the error")
    appended = store.append("b", [node("n1")], expected_version=1)
    await expect_error(SessionNotFoundError, appended, "append to what is not there")
    updated = store.update("b", expected_version=1, title="x")
    await expect_error(SessionNotFoundError, updated, "update of what is not there")
    await expect_error(SessionNotFoundError, store.delete("b"), "delete of what is not there")
    expect([record.id for record in await store.list()], ["a"], "sessions")


_TEXTS = [
    "", " ", "\n", "é", "e\u0301", "日本語", "👩‍👩‍👧", "\u202e", '"\\/', "a\0b", "half \ud800 a character", "</script>",
]  # fmt: skip


@_case
async def rows_come_back_as_they_were(harness: StoreHarness) -> None:
    store = await harness.store()
    await store.create("a")
    odd = {
        "texts": _TEXTS,
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
    expect_rows((await store.load("a")).nodes, rows, "odd content")


@_case
async def rows_keep_their_order(harness: StoreHarness) -> None:
    store = await harness.store()
    await store.create("a")
    # Names whose order is neither that of time nor of the alphabet, in batches of several sizes.
    rows = [node(f"{(number * 37) % 101:x}-{number}") for number in range(100)]
    version, start = 1, 0
    for size in (1, 7, 1, 30, 2, 59):
        version = await store.append("a", rows[start : start + size], expected_version=version)
        start += size
    expect_rows((await store.load("a")).nodes, rows, "the order of nodes")


@_case
async def branches_and_merges_are_kept(harness: StoreHarness) -> None:
    store = await harness.store()
    await store.create("a")
    rows = [node("root"), node("left", "root"), node("right", "root"), node("both", "left", "right", "root")]
    await store.append("a", rows[:3], heads=["right", "left"], expected_version=1)
    expect(list((await store.load("a")).heads), ["right", "left"], "two heads")
    await store.append("a", rows[3:], heads=["both"], expected_version=2)
    got = await store.load("a")
    expect_rows(got.nodes, rows, "a merge")
    expect(list(got.heads), ["both"], "the head of a merge")
    await store.append("a", [], heads=["left"], expected_version=3)
    expect(list((await store.load("a")).heads), ["left"], "heads that went back")
    await store.update("a", heads=[], expected_version=4)
    got = await store.load("a")
    expect((list(got.heads), got.node_count), ([], 4), "heads that were taken away")


@_case
async def every_change_is_one_version(harness: StoreHarness) -> None:
    store = await harness.store()
    await store.create("a")
    for number in range(1, 6):
        got = await store.append("a", [node(f"n{number}"), node(f"m{number}")], expected_version=number * 2 - 1)
        expect(got, number * 2, "the version after an append")
        got = await store.update("a", title=f"T{number}", expected_version=got)
        expect(got, number * 2 + 1, "the version after an update")
        record = await store.load("a")
        expect((record.version, record.node_count), (got, number * 2), "the version and node_count that were loaded")
    expect(await store.append("a", [], heads=["n1"], expected_version=11), 12, "the version after an append of nothing")


@_case
async def only_the_new_nodes_can_be_loaded(harness: StoreHarness) -> None:
    store = await harness.store()
    rows = [node("n1"), node("n2", "n1"), node("n3", "n2"), node("n4", "n3")]
    await store.create("a", rows=rows[:1], heads=["n1"])
    await store.append("a", rows[1:3], expected_version=1)
    await store.update("a", title="T", expected_version=2)
    await store.append("a", rows[3:], expected_version=3)
    for since, expected in ((0, rows), (1, rows[1:]), (2, rows[3:]), (3, rows[3:]), (4, []), (99, [])):
        got = await store.load("a", since=since)
        expect_rows(got.nodes, expected, f"load since {since}")
        expect((got.version, got.node_count, got.title), (4, 4, "T"), f"the rest of the record since {since}")


@_case
async def fields_that_are_none_stay_unchanged(harness: StoreHarness) -> None:
    store = await harness.store()
    first = await store.create("a", title="T", metadata={"k": 1}, rows=[node("n1")], heads=["n1"])
    await store.append("a", [node("n2", "n1")], expected_version=1)
    got = await store.load("a")
    expect((got.title, dict(got.metadata)), ("T", {"k": 1}), "title and metadata after an append")
    assert got.updated_at >= first.updated_at, "updated_at went back"
    expect(got.created_at, first.created_at, "created_at")
    await store.append("a", [node("n3")], expected_version=2, title="U", metadata={"l": 2})
    got = await store.load("a")
    expect((got.title, dict(got.metadata)), ("U", {"l": 2}), "title and metadata that an append brought")
    await store.update("a", expected_version=3, title="")
    got = await store.load("a")
    expect((got.title, dict(got.metadata), list(got.heads)), ("", {"l": 2}, ["n3"]), "after an update of the title")
    await store.update("a", expected_version=4, metadata={})
    await store.update("a", expected_version=5, heads=["n1", "n3"])
    got = await store.load("a")
    expect((got.title, dict(got.metadata), list(got.heads)), ("", {}, ["n1", "n3"]), "after more updates")


@_case
async def rows_are_copied(harness: StoreHarness) -> None:
    store = await harness.store()
    row, about = node("n1"), {"k": {"deep": [1]}}
    await store.create("a", metadata=about)
    await store.append("a", [row], expected_version=1)
    row["data"]["content"] = "changed"
    about["k"]["deep"].append(2)
    for _ in range(2):
        got = await store.load("a")
        expect_rows(got.nodes, [node("n1")], "a row that its owner changed after the append, or that was loaded before")
        expect(json.loads(json.dumps(got.metadata)), {"k": {"deep": [1]}}, "metadata")
        mine: Any = got.nodes[0]
        mine["data"]["content"] = "changed"


@_case
async def sessions_do_not_mix(harness: StoreHarness) -> None:
    store = await harness.store()
    for name in ("a", "A", "b"):
        await store.create(name, title=name, rows=[node("n1", text=name)], heads=["n1"])
    await store.append("b", [node("n2", "n1")], expected_version=1)
    await store.delete("a")
    got = await store.load("A")
    expect_rows(got.nodes, [node("n1", text="A")], "a session beside others")
    expect((got.title, got.version), ("A", 1), "title and version of a session beside others")
    expect((await store.load("b")).node_count, 2, "nodes of a session beside others")


@_case
async def a_deleted_session_is_gone(harness: StoreHarness) -> None:
    store = await harness.store()
    await store.create("a", rows=[node("n1", text="unmistakable")], heads=["n1"])
    await store.search("unmistakable")
    await store.delete("a")
    await expect_error(SessionNotFoundError, store.load("a"), "load of a deleted session")
    await expect_error(SessionNotFoundError, store.delete("a"), "a second delete")
    expect((list(await store.list()), list(await store.search("unmistakable"))), ([], []), "list and search")
    await store.create("a")
    got = await store.load("a")
    expect((got.version, got.node_count, list(got.nodes)), (1, 0, []), "a new session of the same id")
    await store.append("a", [node("n1", text="something else")], expected_version=1)


async def _tick(record: SessionRecord) -> None:
    """Wait until the clock advances, because equal times have no order."""
    while datetime.now(UTC).timestamp() <= record.updated_at:  # noqa: ASYNC110  # a clock has no event
        await asyncio.sleep(0.001)


@_case
async def sessions_are_listed_newest_first(harness: StoreHarness) -> None:
    store = await harness.store()
    expect(list(await store.list()), [], "an empty list")
    for number in range(7):
        await _tick(await store.create(f"s{number}", title=f"T{number}", metadata={"n": number}))
    await store.append("s2", [node("n1")], expected_version=1)
    got = await store.list()
    order = ["s2", "s6", "s5", "s4", "s3", "s1", "s0"]
    expect([record.id for record in got], order, "the order of sessions")
    for record in got:
        listed = replace(await store.load(record.id), heads=record.heads, nodes=())
        expect_record(record, listed, "a session in a list")
    paged: list[str] = []
    last: SessionRecord | None = None
    while page := await store.list(limit=3, before=last):
        assert len(page) <= 3, f"limit=3 gave {len(page)} sessions"
        paged += [record.id for record in page]
        last = page[-1]
        assert len(paged) <= 7, f"pages repeat sessions: {paged}"
    expect(paged, order, "the sessions of all pages")
    await expect_error(ConfigurationError, store.list(limit=0), "limit=0")


# Conflicts and durability.


@_case
async def a_stale_version_is_a_conflict(harness: StoreHarness) -> None:
    store = await harness.store()
    await store.create("a", title="T", rows=[node("n1")], heads=["n1"])
    await store.append("a", [node("n2", "n1")], expected_version=1)
    before = await store.load("a")
    for wrong in (1, 0, 3, -1):
        appended = store.append("a", [node("n3", "n1")], expected_version=wrong, title="X")
        error = await expect_error(ConflictError, appended, f"append to version {wrong} of a session at 2")
        expect((error.session_id, error.expected, error.actual), ("a", wrong, 2), "the facts of the conflict")
        updated = store.update("a", expected_version=wrong, title="X", heads=["n1"])
        error = await expect_error(ConflictError, updated, f"update of version {wrong} of a session at 2")
        expect((error.session_id, error.expected, error.actual), ("a", wrong, 2), "the facts of the conflict")
    expect_record(await store.load("a"), before, "after conflicts")


@_case
async def an_append_is_whole_or_nothing(harness: StoreHarness) -> None:
    store = await harness.store()
    await store.create("a", title="T", rows=[node("n1"), node("n2", "n1")], heads=["n2"])
    before = await store.load("a")
    good = [node("n3", "n2"), node("n4", "n3")]
    changed = node("n1", text="something else")
    for rows, heads, kind, what in (
        ([*good, changed], ["n4"], NodeExistsError, "a node with other content under a known id"),
        ([*good, node("n5", "nowhere")], ["n4"], ConfigurationError, "a node whose parent is not there"),
        ([*good, node("n5", "n6"), node("n6")], ["n4"], ConfigurationError, "a child before its parent"),
        (good, ["n9"], ConfigurationError, "a head that is no node"),
        ([*good, node("")], ["n4"], ConfigurationError, "a node without an id"),
        ([*good, {**node("n5"), "parents": None}], ["n4"], ConfigurationError, "a node without parents"),
        ([*good, {**node("n5"), "data": object()}], ["n4"], ConfigurationError, "a node that is not JSON"),
        ([*good, node("n4", text="other")], ["n4"], NodeExistsError, "two nodes of one id in one append"),
    ):
        await expect_error(
            kind, store.append("a", rows, heads=heads, expected_version=1, title="X", metadata={"x": 1}), what
        )
        expect_record(await store.load("a"), before, f"after {what}")
    refused: tuple[dict[str, Any], ...] = ({"heads": ["n9"], "title": "X"}, {"metadata": {"x": object()}})
    for changes in refused:
        updated = store.update("a", expected_version=1, **changes)
        await expect_error(ConfigurationError, updated, f"an update with invalid {', '.join(changes)}")
    expect_record(await store.load("a"), before, "after a refused update")
    expect(await store.append("a", good, expected_version=1), 2, "the version after an append that is good")


@_case
async def a_node_that_is_there_is_not_added_again(harness: StoreHarness) -> None:
    store = await harness.store()
    rows = [node("n1"), node("n2", "n1")]
    await store.create("a", rows=rows, heads=["n2"])
    turned = dict(reversed(rows[1].items()))
    await store.append("a", [turned, node("n3", "n2"), node("n3", "n2")], expected_version=1)
    got = await store.load("a")
    expect_rows(got.nodes, [*rows, node("n3", "n2")], "after an append of a known node")
    expect((got.version, got.node_count), (2, 3), "version and node_count")
    for other in ({**rows[0], "metadata": {"a": 1}}, {**rows[0], "more": 0}, {**rows[1], "parents": []}):
        await expect_error(
            NodeExistsError, store.append("a", [other], expected_version=2), f"another row {other['id']!r}"
        )


@_case
async def concurrent_writers_lose_nothing(harness: StoreHarness) -> None:
    store = await harness.store()
    await store.create("a")
    writers, turns = 4, 8

    async def write(name: str) -> list[str]:
        mine: list[str] = []
        record = await store.load("a")
        while len(mine) < turns:
            id = f"{name}{len(mine)}"
            rows = [node(f"{id}-question", *record.heads), node(f"{id}-answer", f"{id}-question")]
            try:
                await store.append("a", rows, expected_version=record.version)
            except ConflictError:
                await asyncio.sleep(0)
            else:
                mine += [id]
            record = await store.load("a")
        return mine

    done = await asyncio.gather(*(write(name) for name in "wxyz"[:writers]))
    got = await store.load("a")
    expect((got.version, got.node_count), (1 + writers * turns, 2 * writers * turns), "version and nodes in the end")
    ids = [row["id"] for row in got.nodes]
    for id in (id for mine in done for id in mine):
        assert f"{id}-question" in ids, f"the turn {id} was acknowledged, and is lost"
    for question, answer in zip(got.nodes[::2], got.nodes[1::2], strict=True):
        expect(answer["parents"], [question["id"]], "the two nodes of one append, side by side")
    for earlier, later in zip(got.nodes[1::2], got.nodes[2::2], strict=False):
        expect(later["parents"], [earlier["id"]], "a turn and the one before it")


@_case
async def concurrent_creation_succeeds_once(harness: StoreHarness) -> None:
    store = await harness.store()
    made = await asyncio.gather(*(store.create("a", title=f"T{n}") for n in range(6)), return_exceptions=True)
    for failure in (one for one in made if isinstance(one, BaseException)):
        assert isinstance(failure, ConflictError), f"a {type(failure).__name__} instead of a ConflictError: {failure}"
    winners = [one for one in made if isinstance(one, SessionRecord)]
    expect(len(winners), 1, "how many created one session")
    expect((await store.load("a")).title, winners[0].title, "the title of the session")


@_case
async def data_survives_closing(harness: StoreHarness) -> None:
    store = await harness.store()
    await store.create("a", rows=[node("n1")], heads=["n1"])
    await store.close()
    await store.close()
    if harness.can_reopen:
        expect((await (await harness.reopen(store)).load("a")).node_count, 1, "nodes after close and reopen")


@_case
async def changes_are_visible_to_other_stores(harness: StoreHarness) -> None:
    if not harness.can_reopen:
        return
    store = await harness.store()
    other = await harness.reopen(store)
    await store.create("a", title="T", metadata={"k": 1})
    for number in range(1, 4):
        rows = [node(f"n{number}"), node(f"m{number}", f"n{number}")]
        await store.append("a", rows, heads=[f"m{number}"], expected_version=number)
        expected = await store.load("a")
        expect_record(await other.load("a"), expected, "a session in a store that was open all the time")
        expect_record(
            await (await harness.reopen(store)).load("a"), expected, "a session in a store that was opened later"
        )
    await expect_error(
        ConflictError, other.append("a", [node("x")], expected_version=3), "a stale version from elsewhere"
    )
    await other.append("a", [node("x")], expected_version=4)
    await expect_error(ConflictError, store.update("a", title="X", expected_version=4), "a stale version at home")
    expect([hit.node_id for hit in await store.search("this x")], ["x"], "hits in another store's changes")
    await other.delete("a")
    await expect_error(SessionNotFoundError, store.load("a"), "a session that was deleted elsewhere")


# Search.


@_case
async def text_is_searched(harness: StoreHarness) -> None:
    store = await harness.store()
    parts = [
        {"type": "text", "text": "The weather is fine."},
        {"type": "tool_call", "id": "c", "name": "get_weather", "arguments": {"city": "Reykjavik"}},
    ]
    result = [{"type": "tool_result", "tool_call_id": "c", "content": "Wind from the Faroe Islands"}]
    await store.create("a", title="A trip")
    rows = [
        node("n1", text="Shall we go to Paris tomorrow?"),
        {**node("n2", "n1"), "data": {"role": "assistant", "content": parts}},
        {**node("n3", "n2"), "data": {"role": "tool", "content": result}},
    ]
    await store.append("a", rows, expected_version=1)
    await store.create(
        "b", title="Another", rows=[node("n1", text="PARIS in spring, 東京 in autumn. naïve")], heads=["n1"]
    )

    async def search(text: str, **options: Any) -> list[tuple[str, str]]:
        return [(hit.session_id, hit.node_id) for hit in await store.search(text, **options)]

    for text, expected in (
        ("paris", [("b", "n1"), ("a", "n1")]),
        ("Paris tomorrow", [("a", "n1")]),
        ("tomorrow PARIS", [("a", "n1")]),
        ("tomor", [("a", "n1")]),
        ("weather fine", [("a", "n2")]),
        ("faroe", [("a", "n3")]),
        ("東京", [("b", "n1")]),
        ("paris xylophone", []),
        ("xylophone", []),
    ):
        expect(await search(text), expected, f"the hits for {text!r}")
    expect(await search("paris", limit=1), [("b", "n1")], "the newest hit")
    (hit,) = await store.search("tomorrow")
    expect(hit.title, "A trip", "the title of a hit")
    assert "Paris tomorrow" in hit.excerpt, f"the excerpt does not show what was found: {hit.excerpt!r}"
    version = await store.append("a", [node("n4", "n3", text="And then to Lisbon")], expected_version=2)
    expect((version, await search("lisbon")), (3, [("a", "n4")]), "a node that was added after a search")


_SIGNS = (
    "", " ", '"', "'", "''", '""', '"paris', "paris\"", "*", "paris*", "**", "(", ")", "((", "-", "-paris", "^paris",
    "+", "NOT", "AND", "OR", "NOT paris", "paris AND", "paris OR", "NEAR(", "NEAR(paris tomorrow, 2)", "text:paris",
    "{text}: x", "%", "_", "p%s", "\\", "\\%", ";", "; DROP TABLE nodes", "'; DROP TABLE nodes; --", "' OR '1'='1",
    "paris' --", "a\0b", "\0", "\x1a", "\ud800", "👩‍👩‍👧", "日", "?", "?1", ":a", "$a", "@a", "#", "~", "/", "|", "&",
    "<", ">", "=", "[", "]", "{", "}", "`", "a" * 10_000, "a " * 5_000, "\u202e", "\ufeff", "İ", "ß",
)  # fmt: skip


@_case
async def every_text_can_be_searched(harness: StoreHarness) -> None:
    store = await harness.store()
    signs = 'C++ costs 100% of "nothing"; a_b (x) \\ it\'s'
    await store.create("a", rows=[node("n1", text="Paris"), node("n2", text=signs)], heads=["n1"])
    for text in _SIGNS:
        hits = await store.search(text)
        assert all(hit.session_id == "a" for hit in hits), f"the hits for {text!r}: {hits}"
    for text in ("", " ", "\0"):
        expect(list(await store.search(text)), [], f"the hits for {text!r}, which has no words")
    for text in ("p%s", "p_ris", "' OR '1'='1", "zzz OR paris", "-paris zzz", "c++x"):
        expect(list(await store.search(text)), [], f"the hits for {text!r}, in which no sign may have a meaning")
    for text in ("c++", "100%", '"nothing"', "a_b", "it's"):
        expect([hit.node_id for hit in await store.search(text)], ["n2"], f"the hits for {text!r}")
    expect((await store.load("a")).node_count, 2, "nodes after all that")
