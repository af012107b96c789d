"""Graph nodes, and the conversion of their messages to a linear conversation.

A node knows its ancestors only, so adding nodes never changes existing ones. All traversals are iterative, because long
conversations would exceed Python's recursion limit.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from typing_extensions import override

from ..errors import printable
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
"""Identical to the text in `agent.providers.repair`, so that the prompt prefix stays the same."""


def linearize(messages: Sequence[Message]) -> list[Message]:
    """Order messages and pair tool calls with results. Calls of the last message may lack results."""
    return list(messages) if _is_in_order(messages) else _reorder(messages)


def _is_in_order(messages: Sequence[Message]) -> bool:
    """Whether every tool call has exactly one result, directly after its message."""
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
    """A message, its tool calls and their results."""

    message: Message
    calls: list[ToolCall]
    results: list[ToolResult | None]


def _reorder(messages: Sequence[Message]) -> list[Message]:
    turns: list[_Turn] = []
    open_calls: dict[str, list[tuple[_Turn, int]]] = {}
    answered: set[str] = set()
    for message in messages:
        parts: list[Part] = []
        for part in message.parts:
            if not isinstance(part, ToolResult):
                parts.append(part)
            elif waiting := open_calls.get(part.tool_call_id):
                turn, place = waiting.pop()  # the latest call, which is the nearest in causal order
                turn.results[place] = part
                answered.add(part.tool_call_id)
            elif part.tool_call_id not in answered:  # a result without a call in this conversation
                parts.append(TextContent(text=f"[{part.name or 'a tool'} returned: {part.text}]"))
        if not parts:
            continue
        if parts != list(message.parts):
            role = Role.USER if message.role is Role.TOOL else message.role
            message = message.model_copy(update={"content": tuple(parts), "role": role, "tool_call_id": None})
        is_assistant = message.role is Role.ASSISTANT
        calls = [part for part in parts if isinstance(part, ToolCall)] if is_assistant else []
        turn = _Turn(message, calls, [None] * len(calls))
        turns.append(turn)
        for place, call in enumerate(calls):
            open_calls.setdefault(call.id, []).append((turn, place))
    return _build_messages(turns)


def _build_messages(turns: Sequence[_Turn]) -> list[Message]:
    out: list[Message] = []
    used: set[str] = set()
    for turn in turns:
        ids = [_make_unique(call.id, used) for call in turn.calls]
        message = turn.message
        if ids != [call.id for call in turn.calls]:
            rest = iter(ids)
            parts = (
                part.model_copy(update={"id": next(rest)}) if isinstance(part, ToolCall) else part
                for part in message.parts
            )
            message = message.model_copy(update={"content": tuple(parts)})
        out.append(message)
        for call, id, result in zip(turn.calls, ids, turn.results, strict=True):
            if result is None:
                if turn is turns[-1]:
                    continue  # the result is pending
                result = ToolResult(tool_call_id=id, name=call.name, content=NO_RESULT, is_error=True)
            elif result.tool_call_id != id:
                result = result.model_copy(update={"tool_call_id": id})
            out.append(Message(Role.TOOL, (result,)))
    return out


def _make_unique(id: str, used: set[str]) -> str:
    """Return an unused call id, since branches may have used the same one."""
    name, number = id, 1
    while name in used:
        number += 1
        name = f"{id}_{number}"
    used.add(name)
    return name


_NOTHING: Mapping[str, Any] = FrozenDict()


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class Node:
    """A node of a conversation graph, such as a message, system prompt or tool execution.

    Nodes are compared by identity; recursive comparison of parents would exceed Python's recursion limit.
    """

    parents: tuple[Node, ...]
    data: NodeData
    id: str = field(default_factory=lambda: os.urandom(12).hex())
    timestamp: float = field(default_factory=lambda: datetime.now(UTC).timestamp())
    """Unix timestamp in seconds, for display only."""
    metadata: Mapping[str, Any] = _NOTHING
    """For example `usage`, `cost`, `model`, `latency_ms`."""

    def __post_init__(self) -> None:
        if type(self.parents) is not tuple:
            object.__setattr__(self, "parents", tuple(self.parents))
        if type(self.metadata) is not FrozenDict:
            object.__setattr__(self, "metadata", freeze(dict(self.metadata)))

    @override
    @printable
    def __repr__(self) -> str:
        return f"Node({self.id!r}, {type(self.data).__name__}, {len(self.parents)} parents)"

    @override
    def __reduce__(self) -> Any:
        return _unflatten, (_flatten(self.ancestors()),)

    def __copy__(self) -> Node:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Node:
        return self

    def child(self, data: NodeData, **metadata: Any) -> Node:  # Any: JSON data
        """Return a new node that follows this one."""
        return Node((self,), data, metadata=metadata or _NOTHING)

    @classmethod
    def with_parents(cls, parents: Iterable[Node], data: NodeData, **metadata: Any) -> Node:  # Any: JSON data
        """Return a new node that follows several nodes."""
        return cls(tuple(parents), data, metadata=metadata or _NOTHING)

    @classmethod
    def with_content_id(cls, parents: Iterable[Node], data: NodeData, **metadata: Any) -> Node:  # Any: JSON data
        """Return a new node whose id is derived from its content and its parents' ids."""
        following = tuple(parents)
        id = content_id([parent.id for parent in following], data)
        return cls(following, data, id, metadata=metadata or _NOTHING)

    def ancestors(self) -> list[Node]:
        """Return all ancestors and this node once, parents before children."""
        return causal_order((self,))

    def to_messages(self) -> list[Message]:
        """Return the conversation up to this node as valid messages for a request."""
        return collect_messages(self.ancestors())

    def get_system_prompt(self) -> str:
        """Return the system prompts up to this node, without duplicates."""
        return collect_system_prompt(self.ancestors())

    def get_tools(self) -> list[dict[str, Any]]:
        """Return the tools at this node; a later definition replaces an earlier one of the same name."""
        return [tool.to_dict() for tool in collect_tools(self.ancestors())]


def is_question(node: Node) -> bool:
    """Whether the node is a message of a user, and not a tool result."""
    data = node.data
    return (
        isinstance(data, Message)
        and data.role is Role.USER
        and not any(isinstance(part, ToolResult) for part in data.parts)
    )


def collect_messages(nodes: Iterable[Node]) -> list[Message]:
    """Return the messages of nodes in causal order, ready to send."""
    return linearize([node.data for node in nodes if isinstance(node.data, Message)])


def link_messages(nodes: Iterable[Node]) -> list[Message]:
    """Return the messages of nodes with ids, timestamps and the ids of the messages before them."""
    messages: list[Message] = []
    parent: str | None = None
    for node in nodes:
        if isinstance(node.data, Message):
            facts = {"id": node.id, "parent_id": parent, "timestamp": node.timestamp}
            messages.append(node.data.model_copy(update=facts))
            parent = node.id
    return messages


def collect_system_prompt(nodes: Iterable[Node]) -> str:
    """Return the system prompts of nodes, without duplicates."""
    prompts = (node.data.content for node in nodes if isinstance(node.data, SystemPrompt))
    return "\n\n".join(dict.fromkeys(prompts))


def collect_tools(nodes: Iterable[Node]) -> list[ToolSpec]:
    """Return the current tools. After loading from a file, they have no functions."""
    offered = (tool for node in nodes if isinstance(node.data, ToolDefinitions) for tool in node.data.tools)
    return list({tool.name: tool for tool in offered}.values())


def content_id(parents: Sequence[str], data: NodeData) -> str:
    """Return a hash of data and parent ids, without time and metadata."""
    written = json.dumps([list(parents), data.to_dict()], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def causal_order(heads: Iterable[Node]) -> list[Node]:
    """Return nodes and their ancestors, each id once: parents before children, in the order of the heads."""
    order: list[Node] = []
    reached: set[str] = set()
    stack = [(head, False) for head in reversed([*heads])]
    while stack:
        node, has_placed_parents = stack.pop()
        if has_placed_parents:
            order.append(node)
        elif node.id not in reached:
            reached.add(node.id)
            stack.append((node, True))
            stack += [(parent, False) for parent in reversed(node.parents)]
    return order


def _flatten(nodes: Sequence[Node]) -> list[tuple[Any, ...]]:
    at = {node.id: place for place, node in enumerate(nodes)}
    return [
        (tuple(at[parent.id] for parent in node.parents), node.data, node.id, node.timestamp, dict(node.metadata))
        for node in nodes
    ]


def _unflatten(rows: Sequence[tuple[Any, ...]]) -> Node:
    nodes: list[Node] = []
    for parents, *content in rows:
        nodes.append(Node(tuple(nodes[place] for place in parents), *content))
    return nodes[-1]
