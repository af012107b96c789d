"""Nodes: frozen, with any number of parents, sharing all history.

A node knows what came before it and nothing of what came after, so adding to a conversation never touches it. All of it
is iterative: a conversation of a hundred thousand turns is one long chain, and Python's stack is short.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from typing_extensions import override

from ..types import FrozenDict, Message, NodeData, SystemPrompt, ToolDefinitions, ToolSpec, freeze
from .linear import linearised

_NOTHING: Mapping[str, Any] = FrozenDict()


def _new_id() -> str:
    return os.urandom(12).hex()


def _now() -> float:
    return datetime.now(UTC).timestamp()


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class Node:
    """One element of a conversation: a message, a prompt, a tool's run.

    Nodes are compared by identity: equality, hash, repr, copies and pickles that walk the parents one inside the other
    would end at Python's recursion limit.
    """

    parents: tuple[Node, ...]
    data: NodeData
    id: str = field(default_factory=_new_id)
    timestamp: float = field(default_factory=_now)
    """Seconds since 1970, for whoever looks at it."""
    metadata: Mapping[str, Any] = _NOTHING
    """Such as `usage`, `cost`, `model`, `latency_ms`."""

    @override
    def __repr__(self) -> str:
        return f"Node({self.id!r}, {type(self.data).__name__}, {len(self.parents)} parents)"

    @override
    def __reduce__(self) -> Any:
        return _unflatten, (_flattened(self.ancestors()),)

    def __copy__(self) -> Node:
        return self  # it is immutable

    def __deepcopy__(self, memo: dict[int, Any]) -> Node:
        return self

    def child(self, data: NodeData, **metadata: Any) -> Node:
        """A node that follows this one. This one does not change."""
        return Node((self,), data, metadata=freeze(metadata) if metadata else _NOTHING)

    @classmethod
    def with_parents(cls, parents: Iterable[Node], data: NodeData, **metadata: Any) -> Node:
        """A node that follows several."""
        return cls(tuple(parents), data, metadata=freeze(metadata) if metadata else _NOTHING)

    @classmethod
    def addressed(cls, parents: Iterable[Node], data: NodeData, **metadata: Any) -> Node:
        """A node whose id follows from its content and its parents' ids: the same again gets the same id."""
        following = tuple(parents)
        id = content_id([parent.id for parent in following], data)
        return cls(following, data, id, metadata=freeze(metadata) if metadata else _NOTHING)

    def ancestors(self) -> list[Node]:
        """Everything that led here, this node last: parents before children, each once."""
        return causal_order((self,))

    def to_messages(self) -> list[Message]:
        """The conversation up to here, as a vendor can take it."""
        return messages_of(self.ancestors())

    def get_system_prompt(self) -> str:
        """The instructions on the way here, each once."""
        return prompt_of(self.ancestors())

    def get_tools(self) -> list[dict[str, Any]]:
        """The tools that are offered here. A later definition replaces an earlier one of the same name."""
        return [tool.to_dict() for tool in tools_of(self.ancestors())]


def messages_of(nodes: Iterable[Node]) -> list[Message]:
    """The messages of nodes in causal order, as a vendor can take them."""
    return linearised([node.data for node in nodes if isinstance(node.data, Message)])


def prompt_of(nodes: Iterable[Node]) -> str:
    """The instructions in nodes, each once."""
    prompts = (node.data.content for node in nodes if isinstance(node.data, SystemPrompt))
    return "\n\n".join(dict.fromkeys(prompts))


def tools_of(nodes: Iterable[Node]) -> list[ToolSpec]:
    """The tools that nodes offer, with their functions, as far as they have any: a file keeps only descriptions."""
    offered = (tool for node in nodes if isinstance(node.data, ToolDefinitions) for tool in node.data.tools)
    return list({tool.name: tool for tool in offered}.values())


def content_id(parents: Sequence[str], data: NodeData) -> str:
    """A digest of what a node holds and follows. Times and metadata are no part of it."""
    written = json.dumps([list(parents), data.to_dict()], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def causal_order(heads: Iterable[Node]) -> list[Node]:
    """These nodes and all their ancestors: parents before children, each once, what the first head saw first."""
    order: list[Node] = []
    placed: set[int] = set()
    for head in heads:
        _place(head, placed, order)
    return order


def _place(head: Node, placed: set[int], order: list[Node]) -> None:
    """Depth first, without recursion. Runs of single parents, which is most of any graph, need no stack."""
    waiting: list[Node] = []
    """Nodes with one parent, which come when that has come."""
    merges: list[tuple[Node, Iterator[Node], int]] = []
    """Nodes with several: the parents that are left, and how many waited when it was reached."""
    node = head
    while True:
        while id(node) not in placed:
            placed.add(id(node))
            parents = node.parents
            if len(parents) == 1:
                waiting.append(node)
                node = parents[0]
            elif parents:
                merges.append((node, iter(parents[1:]), len(waiting)))
                node = parents[0]
            else:
                order.append(node)
        while True:
            floor = merges[-1][2] if merges else 0
            order.extend(reversed(waiting[floor:]))
            del waiting[floor:]
            if not merges:
                return
            merge, others, _ = merges[-1]
            parent = next(others, None)
            if parent is not None:
                node = parent
                break
            merges.pop()
            order.append(merge)


def _flattened(nodes: Sequence[Node]) -> list[tuple[Any, ...]]:
    at = {id(node): place for place, node in enumerate(nodes)}
    return [
        (tuple(at[id(parent)] for parent in node.parents), node.data, node.id, node.timestamp, dict(node.metadata))
        for node in nodes
    ]


def _unflatten(rows: Sequence[tuple[Any, ...]]) -> Node:
    nodes: list[Node] = []
    for parents, data, id, timestamp, metadata in rows:
        nodes.append(Node(tuple(nodes[place] for place in parents), data, id, timestamp, freeze(metadata)))
    return nodes[-1]
