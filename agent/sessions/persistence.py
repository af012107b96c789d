"""A session and its store: what is written when, and what happens if somebody else wrote first.

A turn is written when it is complete: all of its nodes and the new head, or nothing. Stores may be blocking or async;
both kinds of sessions take both kinds of stores.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from typing import Any

from ..graph import DAG, Node
from ..graph.files import decode_node, encode_node
from ..stores.base import SessionRecord, Store


class Keeper:
    """What a session knows of its place in a store: the version it has seen, and what is not written yet."""

    __slots__ = ("known", "session_id", "store", "version")

    def __init__(self, store: Store, session_id: str) -> None:
        self.store = store
        self.session_id = session_id
        self.version: int | None = None
        self.known: set[str] = set()
        """Ids of nodes that are written."""

    def read(self, record: SessionRecord) -> DAG:
        """The conversation of a record."""
        nodes: dict[str, Node] = {}
        for row in record.nodes:
            nodes[row["id"]] = decode_node(row, nodes)
        self.known = set(nodes)
        self.version = record.version
        return DAG(tuple(nodes[id] for id in record.heads))

    def unwritten(self, dag: DAG) -> list[dict[str, Any]]:
        """The rows that the store does not have. Walks back only as far as that."""
        fresh: list[Node] = []
        stack, seen = list(dag.heads), set[str]()
        while stack:
            node = stack.pop()
            if node.id in self.known or node.id in seen:
                continue
            seen.add(node.id)
            fresh.append(node)
            stack.extend(node.parents)
        return [encode_node(node) for node in _ordered(fresh)]

    def wrote(self, rows: Sequence[dict[str, Any]], version: int) -> None:
        self.known.update(row["id"] for row in rows)
        self.version = version


def _ordered(nodes: Sequence[Node]) -> list[Node]:
    """Parents before children."""
    fresh = {id(node) for node in nodes}
    placed: set[int] = set()
    order: list[Node] = []
    for start in reversed(nodes):
        stack = [start]
        while stack:
            node = stack[-1]
            missing = [parent for parent in node.parents if id(parent) in fresh and id(parent) not in placed]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if id(node) not in placed:
                placed.add(id(node))
                order.append(node)
    return order


def waited(value: Any) -> Any:
    """What a store's method returned, waited for if it is async, from blocking code."""
    if not inspect.isawaitable(value):
        return value
    import asyncio

    outcome: list[Any] = []

    async def settle() -> None:
        outcome.append(await value)

    failure: list[BaseException] = []

    def main() -> None:
        try:
            asyncio.run(settle())
        except BaseException as error:
            failure.append(error)

    # In a thread, since there may be a running loop in this one.
    thread = threading.Thread(target=main, daemon=True, name="agent-store")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


async def awaited(store: Store, function: Any, *args: Any, **kwargs: Any) -> Any:
    """A store's method from async code: in a thread if it may take long, and awaited if it is async."""
    import asyncio

    if store.blocking and not inspect.iscoroutinefunction(function):
        value = await asyncio.to_thread(function, *args, **kwargs)
    else:
        value = function(*args, **kwargs)
    return await value if inspect.isawaitable(value) else value
