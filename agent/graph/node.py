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

from ..types import (
    FrozenDict,
    Message,
    NodeData,
    Part,
    Role,
    SystemPrompt,
    TextContent,
    ToolCall,
    ToolDefinitions,
    ToolResult,
    ToolSpec,
    freeze,
)

NO_RESULT = "There is no result: the call was interrupted before it was answered."
"""The words that a request's repair has for it, too, so that a prompt stays the same."""


def linearize(messages: Sequence[Message]) -> list[Message]:
    """The conversation in order. The calls of a last turn may be without results: they are still to come."""
    if _in_order(messages):
        return list(messages)
    return _arranged(messages)


def _in_order(messages: Sequence[Message]) -> bool:
    """Whether each turn's calls are answered once, directly behind it, before anybody else speaks."""
    waiting: set[str] = set()
    seen: set[str] = set()
    for message in messages:
        if isinstance(message.content, str) and message.role is not Role.TOOL:
            if waiting:
                return False
            continue
        results = [part.tool_call_id for part in message.parts if isinstance(part, ToolResult)]
        if results:
            if len(set(results)) != len(results) or not waiting.issuperset(results) or message.role is Role.ASSISTANT:
                return False
            waiting.difference_update(results)
            if len(results) != len(message.parts) and waiting:
                return False
        elif waiting:
            return False
        if message.role is Role.ASSISTANT:
            calls = [call.id for call in message.tool_calls or ()]
            if len(set(calls)) != len(calls) or not seen.isdisjoint(calls):
                return False
            seen.update(calls)
            waiting = set(calls)
    return True


@dataclass(slots=True, eq=False)
class _Turn:
    """A message, and the results that belong behind it."""

    message: Message
    calls: list[ToolCall] = field(default_factory=list)
    results: dict[int, ToolResult] = field(default_factory=dict)
    """By the call's place."""


def _arranged(messages: Sequence[Message]) -> list[Message]:
    turns: list[_Turn] = []
    open_calls: dict[str, list[tuple[_Turn, int]]] = {}
    answered: set[str] = set()
    for message in messages:
        said: list[Part] = []
        for part in message.parts:
            if not isinstance(part, ToolResult):
                said.append(part)
                continue
            waiting = open_calls.get(part.tool_call_id)
            if waiting:
                turn, place = waiting.pop()  # the latest: in causal order it is the nearest
                turn.results[place] = part
                answered.add(part.tool_call_id)
            elif part.tool_call_id not in answered:
                said.append(_told(part))
        if not said:
            continue
        turn = _Turn(message if len(said) == len(message.parts) and _unchanged(said, message) else _with(message, said))
        turns.append(turn)
        if message.role is Role.ASSISTANT:
            turn.calls = [part for part in said if isinstance(part, ToolCall)]
            for place, call in enumerate(turn.calls):
                open_calls.setdefault(call.id, []).append((turn, place))
    return _written(turns)


def _unchanged(said: Sequence[Part], message: Message) -> bool:
    return all(new is old for new, old in zip(said, message.parts, strict=True))


def _with(message: Message, parts: Sequence[Part]) -> Message:
    role = Role.USER if message.role is Role.TOOL else message.role
    return message.model_copy(update={"content": tuple(parts), "role": role, "tool_call_id": None})


def _told(result: ToolResult) -> TextContent:
    """A result whose call is not in this conversation, in words."""
    return TextContent(text=f"[{result.name or 'a tool'} returned: {result.text}]")


def _written(turns: Sequence[_Turn]) -> list[Message]:
    out: list[Message] = []
    used: set[str] = set()
    for number, turn in enumerate(turns):
        if not turn.calls:
            out.append(turn.message)
            continue
        names = {place: _free(call.id, used) for place, call in enumerate(turn.calls)}
        out.append(_renamed(turn, names))
        last = number == len(turns) - 1
        for place, call in enumerate(turn.calls):
            result = turn.results.get(place)
            if result is None:
                if last:
                    continue  # it is still to come
                result = ToolResult(tool_call_id=call.id, name=call.name, content=NO_RESULT, is_error=True)
            if result.tool_call_id != names[place]:
                result = result.model_copy(update={"tool_call_id": names[place]})
            out.append(Message(Role.TOOL, (result,)))
    return out


def _free(id: str, used: set[str]) -> str:
    """An id of its own for each call, also if branches used the same one."""
    name, number = id, 1
    while name in used:
        number += 1
        name = f"{id}_{number}"
    used.add(name)
    return name


def _renamed(turn: _Turn, names: dict[int, str]) -> Message:
    if all(call.id == names[place] for place, call in enumerate(turn.calls)):
        return turn.message
    place = -1
    parts: list[Part] = []
    for part in turn.message.parts:
        if isinstance(part, ToolCall):
            place += 1
            part = part if part.id == names[place] else part.model_copy(update={"id": names[place]})
        parts.append(part)
    return turn.message.model_copy(update={"content": tuple(parts)})


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
        return collect_messages(self.ancestors())

    def get_system_prompt(self) -> str:
        """The instructions on the way here, each once."""
        return collect_system_prompt(self.ancestors())

    def get_tools(self) -> list[dict[str, Any]]:
        """The tools that are offered here. A later definition replaces an earlier one of the same name."""
        return [tool.to_dict() for tool in collect_tools(self.ancestors())]


def collect_messages(nodes: Iterable[Node]) -> list[Message]:
    """The messages of nodes in causal order, as a vendor can take them."""
    return linearize([node.data for node in nodes if isinstance(node.data, Message)])


def collect_system_prompt(nodes: Iterable[Node]) -> str:
    """The instructions in nodes, each once."""
    prompts = (node.data.content for node in nodes if isinstance(node.data, SystemPrompt))
    return "\n\n".join(dict.fromkeys(prompts))


def collect_tools(nodes: Iterable[Node]) -> list[ToolSpec]:
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
