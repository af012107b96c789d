"""DAG: a conversation as a value. Every method returns a new one; all of them share their history.

The graph never runs a tool and never asks a model. It records what was said and done, in branches that may part and
join, and gives it back as messages.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from typing_extensions import override

from ..errors import ConfigurationError
from ..stores.files import replace_file
from ..types import (
    AgentRequest,
    AgentResponse,
    ContentPart,
    FrozenDict,
    Message,
    NodeData,
    Role,
    StopReason,
    SystemPrompt,
    ToolDefinitions,
    ToolExecution,
    ToolResult,
    ToolSpec,
    Usage,
)
from .drawing import drawn, mermaid
from .files import decode_document, encode_document, load, save
from .node import Node, causal_order, collect_messages, collect_system_prompt, collect_tools
from .viewer import html_page


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


def rebase_heads(heads: Sequence[Node], onto: Sequence[Node], *, addressed: bool) -> tuple[Node, ...]:
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


Content = str | ContentPart | Sequence[ContentPart | Mapping[str, Any]]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DAG:
    """A conversation, as seen from its heads. What is added follows all of them.

    ```python
    from agent.graph import DAG

    dag = DAG().system("Be brief.").user("Hi")
    kind = dag.assistant("Hello!")
    curt = dag.assistant("What?")
    assert [message.text for message in kind.to_messages()] == ["Hi", "Hello!"]
    print(DAG.merged(kind, curt).user("Which one was better?"))
    ```

    Args:
        heads: The latest nodes.
        addressed: Whether ids of new nodes follow from their content. Then the same conversation has the same ids.
        extra: Fields of a saved graph that this version does not know.
    """

    heads: tuple[Node, ...] = ()
    addressed: bool = False
    extra: Mapping[str, Any] = FrozenDict()

    # Growing

    def add(self, data: NodeData, **metadata: Any) -> DAG:
        """Add a node behind all heads."""
        make = Node.addressed if self.addressed else Node.with_parents
        return self._at(make(self.heads, data, **metadata))

    def system(self, content: str) -> DAG:
        return self.add(SystemPrompt(content=content))

    def tools(self, *tools: Any) -> DAG:
        """Offer tools from here on: specs, tools, dicts, or lists of them."""
        flat = [one for given in tools for one in (given if isinstance(given, list | tuple) else (given,))]
        read = AgentRequest(input="", tools=[getattr(one, "spec", one) for one in flat]).tools
        return self.add(ToolDefinitions(tools=[tool for tool in read if isinstance(tool, ToolSpec)]))

    def user(self, content: Content, **metadata: Any) -> DAG:
        return self.add(_message(Role.USER, content), **metadata)

    def assistant(self, content: Content | AgentResponse, **metadata: Any) -> DAG:
        """What a model said. Of a response, its usage, cost and time are kept with it."""
        if isinstance(content, AgentResponse):
            return self.add(content.message, **{**response_metadata(content), **metadata})
        return self.add(_message(Role.ASSISTANT, content), **metadata)

    def tool_result(self, *results: ToolResult | Mapping[str, Any]) -> DAG:
        """What tools returned, in one message."""
        read = [one if isinstance(one, ToolResult) else ToolResult.from_dict(one) for one in results]
        return self.add(Message(Role.TOOL, read))

    def tool_execution(self, *executions: ToolExecution) -> DAG:
        """Tools that ran beside each other: drawn as branches, never sent. What is added next joins them."""
        if not executions:
            return self
        make = Node.addressed if self.addressed else Node.with_parents
        return replace(self, heads=tuple(make(self.heads, execution) for execution in executions))

    def stop(self, reason: str, usage: Usage | Mapping[str, Any] | None = None) -> DAG:
        """Say why the conversation ended here. Drawn, never sent."""
        return self.add(StopReason(reason=reason, usage=usage if usage is not None else {}))

    def messages(self, messages: Iterable[Message]) -> DAG:
        """Add several messages, one behind the other."""
        dag = self
        for message in messages:
            dag = dag.add(message)
        return dag

    # Places

    @property
    def head(self) -> Node:
        """The latest node; of several, the first."""
        if not self.heads:
            raise ConfigurationError("The graph is empty.", field="head", fix="Add something: DAG().user(…).")
        return self.heads[0]

    def at(self, node: Node | str) -> DAG:
        """The conversation as it was when that node was the latest: time travel, or the start of a branch."""
        return self._at(self.node(node) if isinstance(node, str) else node)

    def back(self, steps: int = 1) -> DAG:
        """Some nodes earlier. Where branches joined, all of them are heads again."""
        heads = self.heads
        for _ in range(steps):
            heads = tuple(dict.fromkeys(parent for head in heads for parent in head.parents))
        return replace(self, heads=heads)

    def branches(self) -> list[DAG]:
        """One graph for each head."""
        return [self._at(head) for head in self.heads]

    @classmethod
    def merged(cls, *dags: DAG) -> DAG:
        """Several conversations as one with all their heads. What is added next follows all of them."""
        heads = dict.fromkeys(head for dag in dags for head in dag.heads)
        first = dags[0] if dags else cls()
        return replace(first, heads=tuple(heads))

    def merge(self, *others: DAG) -> DAG:
        """This conversation and others as one."""
        return DAG.merged(self, *others)

    def _at(self, node: Node) -> DAG:
        return DAG((node,), self.addressed, self.extra)

    # Reading

    def nodes(self) -> list[Node]:
        """All nodes: parents before children, each once."""
        return causal_order(self.heads)

    def node(self, id: str) -> Node:
        """The node with that id."""
        found = next((node for node in self.nodes() if node.id == id), None)
        if found is None:
            raise ConfigurationError(f"There is no node {id!r} here.", field="id", fix="Use an id of this graph.")
        return found

    def children(self) -> dict[str, list[Node]]:
        """By a node's id, the nodes that follow it, as far as the heads have seen them."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes():
            for parent in node.parents:
                found.setdefault(parent.id, []).append(node)
        return found

    def to_messages(self) -> list[Message]:
        """The conversation as a vendor can take it, whatever was merged: each call with its result, once."""
        return collect_messages(self.nodes())

    def to_request(self) -> AgentRequest:
        """The conversation as a request: its instructions, its tools, its messages."""
        nodes = self.nodes()
        return AgentRequest(
            messages=collect_messages(nodes), system=collect_system_prompt(nodes) or None, tools=collect_tools(nodes)
        )

    def get_system_prompt(self) -> str:
        """The instructions, each once."""
        return collect_system_prompt(self.nodes())

    def get_tools(self) -> list[dict[str, Any]]:
        """The tools that are offered. A later definition replaces an earlier one of the same name."""
        return [tool.to_dict() for tool in collect_tools(self.nodes())]

    def usage(self, since: Node | None = None) -> Usage:
        """What the model used on the way here, or behind a node of it. What branches share counts once."""
        total = Usage()
        for node in self._since(since):
            if isinstance(node.data, Message) and node.data.usage is not None:
                total += node.data.usage
        return total

    def cost(self, since: Node | None = None) -> float:
        """What that cost, in dollars, as far as it is known."""
        return sum(float(node.metadata.get("cost") or 0.0) for node in self._since(since))

    def _since(self, start: Node | None) -> list[Node]:
        if start is None:
            return self.nodes()
        before = {id(node) for node in start.ancestors()}
        return [node for node in self.nodes() if id(node) not in before]

    def __len__(self) -> int:
        return len(self.nodes())

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes())

    def __bool__(self) -> bool:
        return bool(self.heads)

    @override
    def __repr__(self) -> str:
        return f"DAG({', '.join(head.id for head in self.heads)})"

    # Two graphs

    def diff(self, other: DAG) -> Difference:
        """What only this one holds, what only the other, and what both."""
        return difference(self.heads, other.heads)

    def common_ancestor(self, other: DAG) -> Node | None:
        """The latest node that both have seen, if they have any in common."""
        return common_ancestor(self.heads, other.heads)

    def rebase(self, onto: DAG) -> DAG:
        """What this one has and the other has not, again, behind the other. Nodes of either stay as they are."""
        return replace(self, heads=rebase_heads(self.heads, onto.heads, addressed=self.addressed))

    # Pictures and files

    @override
    def __str__(self) -> str:
        """A drawing for a terminal."""
        return drawn(self.heads)

    def mermaid(self) -> str:
        """A drawing in Mermaid's language."""
        return mermaid(self.heads)

    def html(self, *, title: str = "Conversation") -> str:
        """A page that shows the graph: self-contained, without network."""
        return html_page(self.to_dict(), title=title)

    def save_html(self, path: str | os.PathLike[str], *, title: str = "Conversation") -> None:
        """Write that page to a file."""
        replace_file(path, [self.html(title=title).encode()])

    def to_dict(self) -> dict[str, Any]:
        """The graph as plain JSON data."""
        return encode_document(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DAG:
        """Reads what `to_dict` wrote, also in older versions."""
        return cls(*decode_document(data))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph to a file, whole or not at all."""
        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DAG:
        """Read a graph that was saved."""
        return cls(*load(path))


def _message(role: Role, content: Any) -> Message:
    return Message(role, content)


def response_metadata(response: AgentResponse) -> dict[str, Any]:
    """What is worth keeping of a response beside its content."""
    facts = {
        "provider": response.provider,
        "model": response.model,
        "stop_reason": response.stop_reason,
        "cost": response.cost_estimate,
        "latency_ms": response.latency_ms,
        "usage": None if response.usage is None else response.usage.to_dict(),
    }
    return {name: value for name, value in facts.items() if value not in (None, "")}


def append_messages(dag: DAG, said: Sequence[Message], responses: Sequence[AgentResponse] = ()) -> DAG:
    """The graph with these messages behind it. Each assistant's message gets the facts of its response.

    Tools that ran are drawn beside each other, between the calls and their results.
    """
    answers = iter(responses)
    place = 0
    while place < len(said):
        message = said[place]
        if message.role is Role.ASSISTANT:
            response = next(answers, None)
            dag = dag.add(message, **({} if response is None else response_metadata(response)))
            place += 1
            results = _results(said, place)
            if results:
                dag = dag.tool_execution(*(_execution(result) for result in results))
        else:
            dag = dag.add(message)
            place += 1
    return dag


def _results(said: Sequence[Message], place: int) -> list[ToolResult]:
    found: list[ToolResult] = []
    while place < len(said) and said[place].role is Role.TOOL:
        found += [part for part in said[place].parts if isinstance(part, ToolResult)]
        place += 1
    return found


def _execution(result: ToolResult) -> ToolExecution:
    shown: Any = result.content if result.content else ""
    return ToolExecution(
        tool_name=result.name or "", tool_use_id=result.tool_call_id, result=shown, is_error=result.is_error
    )


def keep_setup(dag: DAG) -> DAG:
    """The same instructions and tools, and nothing said."""
    kept = DAG(addressed=dag.addressed, extra=dag.extra)
    for node in dag.nodes():
        if not isinstance(node.data, Message | ToolExecution) and node.data.type != "stop_reason":
            kept = kept.add(node.data)
    return kept


def rewind_last_turn(dag: DAG) -> DAG | None:
    """The graph as it was before somebody last said something; None if nobody has."""
    at = dag
    while at.heads:
        said = any(isinstance(head.data, Message) and _is_said(head.data) for head in at.heads)
        at = at.back()
        if said:
            return replace(at, extra=dag.extra)
    return None


def _is_said(message: Message) -> bool:
    """A person's words, not a tool's."""
    return message.role is Role.USER and not any(isinstance(part, ToolResult) for part in message.parts)
