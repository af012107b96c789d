"""Harness of conformance tests: stores, test rows, and assertions that report differences."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from ..errors import AgentError
from ..stores.base import NodeRow, SessionRecord, Store

Make: TypeAlias = Callable[[], Store | Awaitable[Store]]
Reopen: TypeAlias = Callable[[Store], Store | Awaitable[Store]]
E = TypeVar("E", bound=AgentError)
Case: TypeAlias = "Callable[[StoreHarness], Coroutine[Any, Any, None]]"


@contextmanager
def name_failures(case: str) -> Iterator[None]:
    """Add the name of a case to its failure."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{case}: {error}") from error
    except Exception as error:
        raise AssertionError(f"{case}: unexpected {type(error).__name__}: {error}") from error


class StoreHarness:
    """Creates, reopens and closes the stores of one case."""

    def __init__(self, make: Make, reopen: Reopen | None) -> None:
        self._make, self._reopen = make, reopen
        self._stores: list[Store] = []

    @property
    def can_reopen(self) -> bool:
        return self._reopen is not None

    async def store(self) -> AsyncStore:
        return await self._add(self._make())

    async def reopen(self, store: AsyncStore) -> AsyncStore:
        assert self._reopen is not None
        return await self._add(self._reopen(store.store))

    async def run(self, case: Case) -> None:
        try:
            with name_failures(case.__name__):
                await case(self)
        finally:
            for store in self._stores:
                await _resolve(store.close())

    async def _add(self, made: Store | Awaitable[Store]) -> AsyncStore:
        store: Store = await _resolve(made)
        self._stores.append(store)
        return AsyncStore(store)


async def _resolve(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class AsyncStore:
    """Store with async methods only. Sync methods run in threads, so that concurrent calls overlap."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self.store, name)

        async def call(*args: Any, **options: Any) -> Any:
            if inspect.iscoroutinefunction(method):
                return await method(*args, **options)
            return await _resolve(await asyncio.to_thread(method, *args, **options))

        return call

    async def append(self, session_id: str, rows: Sequence[NodeRow], *, expected_version: int, **options: Any) -> int:
        """Append rows. By default, the last one becomes the head."""
        options = {"heads": [rows[-1]["id"]] if rows else [], "expected_version": expected_version, **options}
        version: int = await self.__getattr__("append")(session_id, rows, **options)
        return version


def node(id: str, *parents: str, text: str = "", **more: Any) -> dict[str, Any]:
    """Return a row in the format of graphs."""
    data = {"role": "user", "content": text or f"This is {id}."}
    return {"id": id, "parents": list(parents), "timestamp": 1700000000.25, "metadata": {}, "data": data, **more}


async def expect_error(kind: type[E], operation: Awaitable[Any], label: str) -> E:
    try:
        result = await operation
    except kind as error:
        return error
    except AgentError as error:
        raise AssertionError(f"{label} must raise {kind.__name__}, not {type(error).__name__}: {error}") from error
    raise AssertionError(f"{label} must raise {kind.__name__}; it returned {result!r}")


def expect(actual: Any, expected: Any, label: str) -> None:
    assert actual == expected, f"{label}: {actual!r} instead of {expected!r}"


def expect_rows(actual: Sequence[NodeRow], expected: Sequence[NodeRow], label: str) -> None:
    """Compare rows as JSON, where True is not 1."""
    expect([row["id"] for row in actual], [row["id"] for row in expected], f"{label}, ids of the nodes")
    for actual_row, expected_row in zip(actual, expected, strict=True):
        rows = [json.dumps(row, sort_keys=True) for row in (actual_row, expected_row)]
        assert rows[0] == rows[1], f"{label}, a node: {rows[0]} instead of {rows[1]}"


def expect_record(actual: SessionRecord, expected: SessionRecord, label: str) -> None:
    for name in ("id", "title", "version", "created_at", "updated_at", "metadata", "node_count"):
        expect(getattr(actual, name), getattr(expected, name), f"{label}, {name}")
    expect(list(actual.heads), list(expected.heads), f"{label}, heads")
    expect_rows(actual.nodes, expected.nodes, label)
