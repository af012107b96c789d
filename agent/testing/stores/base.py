"""What the cases of the suite share: stores to ask, rows to give them, and comparisons that say what differs."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from ...errors import AgentError
from ...stores.base import NodeRow, SearchHit, SessionRecord, Store

Make: TypeAlias = Callable[[], Store | Awaitable[Store]]
Reopen: TypeAlias = Callable[[Store], Store | Awaitable[Store]]
E = TypeVar("E", bound=AgentError)
Case: TypeAlias = "Callable[[Trial], Coroutine[Any, Any, None]]"

STORE_CASES: dict[str, Case] = {}
"""What is asked of a store, by name: for `check_store(..., only=[name])`, such as in a parametrised test."""


def case(function: Case) -> Case:
    """Add a case to the suite, under its own name."""
    STORE_CASES[function.__name__] = function
    return function


class Trial:
    """Stores for one case, and the ways to ask them."""

    def __init__(self, make: Make, reopen: Reopen | None) -> None:
        self._make, self._reopen = make, reopen
        self._stores: list[Store] = []

    @property
    def can_reopen(self) -> bool:
        return self._reopen is not None

    async def store(self) -> Asked:
        return await self._asked(self._make())

    async def again(self, asked: Asked) -> Asked:
        assert self._reopen is not None
        return await self._asked(self._reopen(asked.store))

    async def end(self) -> None:
        for store in self._stores:
            await _given(store.close())

    async def _asked(self, given: Store | Awaitable[Store]) -> Asked:
        store: Store = await _given(given)
        self._stores.append(store)
        return Asked(store)


async def _given(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


@dataclass
class Asked:
    """A store whose methods can all be awaited."""

    store: Store

    async def _ask(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if inspect.iscoroutinefunction(method):
            return await method(*args, **options)
        # In a thread, even if it would not block: so that calls meet each other.
        return await _given(await asyncio.to_thread(method, *args, **options))

    async def create(self, session_id: str, **options: Any) -> SessionRecord:
        record: SessionRecord = await self._ask(self.store.create, session_id, **options)
        return record

    async def load(self, session_id: str, **options: Any) -> SessionRecord:
        record: SessionRecord = await self._ask(self.store.load, session_id, **options)
        return record

    async def append(self, session_id: str, rows: Sequence[NodeRow], *, expected_version: int, **options: Any) -> int:
        """The heads are the last row, unless the options say otherwise."""
        given = {"heads": [rows[-1]["id"]] if rows else [], **options}
        version: int = await self._ask(self.store.append, session_id, rows, expected_version=expected_version, **given)
        return version

    async def update(self, session_id: str, **options: Any) -> int:
        version: int = await self._ask(self.store.update, session_id, **options)
        return version

    async def list(self, **options: Any) -> Sequence[SessionRecord]:
        records: Sequence[SessionRecord] = await self._ask(self.store.list, **options)
        return records

    async def search(self, text: str, **options: Any) -> Sequence[SearchHit]:
        hits: Sequence[SearchHit] = await self._ask(self.store.search, text, **options)
        return hits

    async def delete(self, session_id: str) -> None:
        await self._ask(self.store.delete, session_id)

    async def close(self) -> None:
        await self._ask(self.store.close)


def node(id: str, *parents: str, text: str = "", **more: Any) -> dict[str, Any]:
    """A row as a graph writes it."""
    data = {"role": "user", "content": text or f"This is {id}."}
    return {"id": id, "parents": list(parents), "timestamp": 1700000000.25, "metadata": {}, "data": data, **more}


async def refused(kind: type[E], awaited: Awaitable[Any], what: str) -> E:
    """The error that must come instead of a result."""
    try:
        got = await awaited
    except kind as error:
        return error
    except AgentError as error:
        raise AssertionError(f"{what} must be a {kind.__name__}, not a {type(error).__name__}: {error}") from error
    raise AssertionError(f"{what} must be a {kind.__name__}; it gave {got!r}")


def same(got: Any, expected: Any, what: str) -> None:
    assert got == expected, f"{what}: {got!r} instead of {expected!r}"


def same_rows(got: Sequence[NodeRow], expected: Sequence[NodeRow], what: str) -> None:
    """The same JSON: True is not 1 there."""
    same([row["id"] for row in got], [row["id"] for row in expected], f"{what}, ids of the nodes")
    for one, other in zip(got, expected, strict=True):
        written = [json.dumps(row, sort_keys=True) for row in (one, other)]
        assert written[0] == written[1], f"{what}, a node: {written[0]} instead of {written[1]}"


def same_record(got: SessionRecord, expected: SessionRecord, what: str) -> None:
    for name in ("id", "title", "version", "created_at", "updated_at", "metadata", "node_count"):
        same(getattr(got, name), getattr(expected, name), f"{what}, {name}")
    same(list(got.heads), list(expected.heads), f"{what}, heads")
    same_rows(got.nodes, expected.nodes, what)


@case
async def words_are_found(trial: Trial) -> None:
    store = await trial.store()
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

    async def found(text: str, **options: Any) -> list[tuple[str, str]]:
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
        same(await found(text), expected, f"the hits for {text!r}")
    same(await found("paris", limit=1), [("b", "n1")], "the newest hit")
    (hit,) = await store.search("tomorrow")
    same(hit.title, "A trip", "the title of a hit")
    assert "Paris tomorrow" in hit.excerpt, f"the excerpt does not show what was found: {hit.excerpt!r}"
    version = await store.append("a", [node("n4", "n3", text="And then to Lisbon")], expected_version=2)
    same((version, await found("lisbon")), (3, [("a", "n4")]), "a node that was added after a search")


_SIGNS = (
    "", " ", '"', "'", "''", '""', '"paris', "paris\"", "*", "paris*", "**", "(", ")", "((", "-", "-paris", "^paris",
    "+", "NOT", "AND", "OR", "NOT paris", "paris AND", "paris OR", "NEAR(", "NEAR(paris tomorrow, 2)", "text:paris",
    "{text}: x", "%", "_", "p%s", "\\", "\\%", ";", "; DROP TABLE nodes", "'; DROP TABLE nodes; --", "' OR '1'='1",
    "paris' --", "a\0b", "\0", "\x1a", "\ud800", "👩‍👩‍👧", "日", "?", "?1", ":a", "$a", "@a", "#", "~", "/", "|", "&",
    "<", ">", "=", "[", "]", "{", "}", "`", "a" * 10_000, "a " * 5_000, "\u202e", "\ufeff", "İ", "ß",
)  # fmt: skip


@case
async def no_text_to_search_for_is_an_error(trial: Trial) -> None:
    store = await trial.store()
    signs = 'C++ costs 100% of "nothing"; a_b (x) \\ it\'s'
    await store.create("a", rows=[node("n1", text="Paris"), node("n2", text=signs)], heads=["n1"])
    for text in _SIGNS:
        hits = await store.search(text)
        assert all(hit.session_id == "a" for hit in hits), f"the hits for {text!r}: {hits}"
    for text in ("", " ", "\0"):
        same(list(await store.search(text)), [], f"the hits for {text!r}, which has no words")
    for text in ("p%s", "p_ris", "' OR '1'='1", "zzz OR paris", "-paris zzz", "c++x"):
        same(list(await store.search(text)), [], f"the hits for {text!r}, in which no sign may have a meaning")
    for text in ("c++", "100%", '"nothing"', "a_b", "it's"):
        same([hit.node_id for hit in await store.search(text)], ["n2"], f"the hits for {text!r}")
    same((await store.load("a")).node_count, 2, "nodes after all that")
