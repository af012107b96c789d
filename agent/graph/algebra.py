"""Two graphs: what they share, where they part, and one put behind the other. All without recursion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .node import Node, causal_order


@dataclass(frozen=True, slots=True)
class Difference:
    """What two conversations have in common and what not, each in causal order."""

    only_first: Sequence[Node]
    only_second: Sequence[Node]
    common: Sequence[Node]


def difference(first: Sequence[Node], second: Sequence[Node]) -> Difference:
    """By id: nodes that were loaded twice, or made from the same content, are the same."""
    mine, theirs = causal_order(first), causal_order(second)
    known_to_me, known_to_them = {node.id for node in mine}, {node.id for node in theirs}
    return Difference(
        only_first=tuple(node for node in mine if node.id not in known_to_them),
        only_second=tuple(node for node in theirs if node.id not in known_to_me),
        common=tuple(node for node in mine if node.id in known_to_them),
    )


def common_ancestor(first: Sequence[Node], second: Sequence[Node]) -> Node | None:
    """The latest node that both have seen: the one with the longest way to a beginning.

    Where branches joined before, there may be several that are no ancestors of each other; the deepest is taken, and of
    those that are equally deep the one that the first conversation saw last.
    """
    theirs = {node.id for node in causal_order(second)}
    depth: dict[str, int] = {}
    best: Node | None = None
    for node in causal_order(first):
        depth[node.id] = 1 + max((depth[parent.id] for parent in node.parents), default=0)
        if node.id in theirs and (best is None or depth[node.id] >= depth[best.id]):
            best = node
    return best


def rebased(heads: Sequence[Node], onto: Sequence[Node], *, addressed: bool) -> tuple[Node, ...]:
    """Copies of what `onto` has not seen, behind it."""
    moved = difference(heads, onto).only_first
    if not moved:
        return tuple(onto)
    copies: dict[str, Node] = {}
    make = Node.addressed if addressed else Node.with_parents
    for node in moved:
        kept = [copies[parent.id] for parent in node.parents if parent.id in copies]
        foreign = len(kept) < len(node.parents) or not node.parents
        parents = tuple(dict.fromkeys((*(onto if foreign else ()), *kept)))
        copies[node.id] = make(parents, node.data, **dict(node.metadata))
    return tuple(dict.fromkeys(copies[head.id] for head in heads if head.id in copies))
