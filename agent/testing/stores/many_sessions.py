"""Several sessions: they do not mix, they are listed, and they can be deleted."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from ...errors import ConfigurationError
from ...stores.base import SessionNotFoundError, SessionRecord
from .trial import Trial, case, node, refused, same, same_rows


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
