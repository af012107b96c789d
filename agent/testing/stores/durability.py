"""Nothing is lost: conflicts, failures in the middle, writers that meet, and other stores that look on."""

from __future__ import annotations

import asyncio

from ...errors import ConfigurationError
from ...stores.base import ConflictError, NodeExistsError, SessionNotFoundError, SessionRecord
from .base import Trial, case, node, refused, same, same_record, same_rows


@case
async def a_stale_version_is_a_conflict(trial: Trial) -> None:
    store = await trial.store()
    await store.create("a", title="T", rows=[node("n1")], heads=["n1"])
    await store.append("a", [node("n2", "n1")], expected_version=1)
    before = await store.load("a")
    for wrong in (1, 0, 3, -1):
        appended = store.append("a", [node("n3", "n1")], expected_version=wrong, title="X")
        error = await refused(ConflictError, appended, f"append to version {wrong} of a session at 2")
        same((error.session_id, error.expected, error.actual), ("a", wrong, 2), "the facts of the conflict")
        updated = store.update("a", expected_version=wrong, title="X", heads=["n1"])
        error = await refused(ConflictError, updated, f"update of version {wrong} of a session at 2")
        same((error.session_id, error.expected, error.actual), ("a", wrong, 2), "the facts of the conflict")
    same_record(await store.load("a"), before, "after conflicts")


@case
async def an_append_is_whole_or_nothing(trial: Trial) -> None:
    store = await trial.store()
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
        await refused(
            kind, store.append("a", rows, heads=heads, expected_version=1, title="X", metadata={"x": 1}), what
        )
        same_record(await store.load("a"), before, f"after {what}")
    await refused(
        ConfigurationError, store.update("a", heads=["n9"], title="X", expected_version=1), "a head that is no node"
    )
    await refused(
        ConfigurationError, store.update("a", metadata={"x": object()}, expected_version=1), "metadata that is not JSON"
    )
    same_record(await store.load("a"), before, "after a refused update")
    same(await store.append("a", good, expected_version=1), 2, "the version after an append that is good")


@case
async def a_node_that_is_there_is_not_added_again(trial: Trial) -> None:
    store = await trial.store()
    rows = [node("n1"), node("n2", "n1")]
    await store.create("a", rows=rows, heads=["n2"])
    turned = dict(reversed(rows[1].items()))
    await store.append("a", [turned, node("n3", "n2"), node("n3", "n2")], expected_version=1)
    got = await store.load("a")
    same_rows(got.nodes, [*rows, node("n3", "n2")], "after an append of a known node")
    same((got.version, got.node_count), (2, 3), "version and node_count")
    for other in ({**rows[0], "metadata": {"a": 1}}, {**rows[0], "more": 0}, {**rows[1], "parents": []}):
        await refused(NodeExistsError, store.append("a", [other], expected_version=2), f"another row {other['id']!r}")


@case
async def writers_that_meet_lose_nothing(trial: Trial) -> None:
    store = await trial.store()
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
    same((got.version, got.node_count), (1 + writers * turns, 2 * writers * turns), "version and nodes in the end")
    ids = [row["id"] for row in got.nodes]
    for id in (id for mine in done for id in mine):
        assert f"{id}-question" in ids, f"the turn {id} was acknowledged, and is lost"
    for question, answer in zip(got.nodes[::2], got.nodes[1::2], strict=True):
        same(answer["parents"], [question["id"]], "the two nodes of one append, side by side")
    for earlier, later in zip(got.nodes[1::2], got.nodes[2::2], strict=False):
        same(later["parents"], [earlier["id"]], "a turn and the one before it")


@case
async def of_many_who_create_one_succeeds(trial: Trial) -> None:
    store = await trial.store()
    made = await asyncio.gather(*(store.create("a", title=f"T{n}") for n in range(6)), return_exceptions=True)
    for failure in (one for one in made if isinstance(one, BaseException)):
        assert isinstance(failure, ConflictError), f"a {type(failure).__name__} instead of a ConflictError: {failure}"
    winners = [one for one in made if isinstance(one, SessionRecord)]
    same(len(winners), 1, "how many created one session")
    same((await store.load("a")).title, winners[0].title, "the title of the session")


@case
async def closing_loses_nothing(trial: Trial) -> None:
    store = await trial.store()
    await store.create("a", rows=[node("n1")], heads=["n1"])
    await store.close()
    await store.close()
    if trial.can_reopen:
        same((await (await trial.again(store)).load("a")).node_count, 1, "nodes after close and reopen")


@case
async def what_was_acknowledged_is_seen_by_others(trial: Trial) -> None:
    if not trial.can_reopen:
        return
    store = await trial.store()
    other = await trial.again(store)
    await store.create("a", title="T", metadata={"k": 1})
    for number in range(1, 4):
        rows = [node(f"n{number}"), node(f"m{number}", f"n{number}")]
        await store.append("a", rows, heads=[f"m{number}"], expected_version=number)
        expected = await store.load("a")
        same_record(await other.load("a"), expected, "a session in a store that was open all the time")
        same_record(await (await trial.again(store)).load("a"), expected, "a session in a store that was opened later")
    await refused(ConflictError, other.append("a", [node("x")], expected_version=3), "a stale version from elsewhere")
    await other.append("a", [node("x")], expected_version=4)
    await refused(ConflictError, store.update("a", title="X", expected_version=4), "a stale version at home")
    same([hit.node_id for hit in await store.search("this x")], ["x"], "what a search finds of another's changes")
    await other.delete("a")
    await refused(SessionNotFoundError, store.load("a"), "a session that was deleted elsewhere")
