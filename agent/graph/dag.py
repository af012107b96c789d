"""The conversation graph. Methods return a new graph that shares history; nothing here calls a model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from typing_extensions import override

from ..errors import ConfigurationError, printable
from ..models.prices import to_dollars, to_units
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
    Vocabulary,
)
from .diagrams import draw_mermaid, draw_text, html_page
from .files import decode_document, encode_document, load, save
from .node import Node, causal_order, collect_messages, collect_system_prompt, collect_tools, is_question


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of two conversations, in causal order."""

    only_first: Sequence[Node]
    only_second: Sequence[Node]
    common: Sequence[Node]


Content = str | ContentPart | Sequence[ContentPart | Mapping[str, Any]]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DAG:
    """A conversation graph, as seen from its heads. Added nodes follow all heads.

    ```python
    from agent.graph import DAG

    dag = DAG().system("Be brief.").user("Hi")
    kind = dag.assistant("Hello!")
    curt = dag.assistant("What?")
    assert [message.text for message in kind.to_messages()] == ["Hi", "Hello!"]
    print(DAG.merge(kind, curt).user("Which one was better?"))
    ```

    Args:
        heads: The latest nodes.
        content_ids: Derive the ids of new nodes from their content, so that equal conversations have equal ids.
        extra: Unknown fields of a saved graph, kept for saving.
    """

    heads: tuple[Node, ...] = ()
    content_ids: bool = False
    extra: Mapping[str, Any] = FrozenDict()

    # Building

    def add(self, data: NodeData, **metadata: Any) -> DAG:  # Any: JSON data
        """Add a node after all heads."""
        return self._at(self._create_node(self.heads, data, **metadata))

    def system(self, content: str) -> DAG:
        return self.add(SystemPrompt(content=content))

    def tools(self, *tools: Any) -> DAG:  # Any: vendors' own tools
        """Add tools for all later nodes: specs, tools, dicts, or lists of them."""
        flat = [
            tool for argument in tools for tool in (argument if isinstance(argument, list | tuple) else (argument,))
        ]
        read = AgentRequest(input="", tools=[getattr(tool, "spec", tool) for tool in flat]).tools
        return self.add(ToolDefinitions(tools=[tool for tool in read if isinstance(tool, ToolSpec)]))

    def user(self, content: Content, **metadata: Any) -> DAG:  # Any: JSON data
        return self.add(_message(Role.USER, content), **metadata)

    def assistant(self, content: Content | AgentResponse, **metadata: Any) -> DAG:  # Any: JSON data
        """Add an assistant message. A response also stores its usage, cost and latency."""
        if isinstance(content, AgentResponse):
            return self.add(content.message, **{**response_metadata(content), **metadata})
        return self.add(_message(Role.ASSISTANT, content), **metadata)

    def tool_result(self, *results: ToolResult | Mapping[str, Any]) -> DAG:
        """Add a message with tool results."""
        read = [one if isinstance(one, ToolResult) else ToolResult.from_dict(one) for one in results]
        return self.add(Message(Role.TOOL, read))

    def tool_execution(self, *executions: ToolExecution) -> DAG:
        """Add parallel tool executions as branches, which are drawn and never sent. The next node joins them."""
        if not executions:
            return self
        return replace(self, heads=tuple(self._create_node(self.heads, execution) for execution in executions))

    def stop(self, reason: str, usage: Usage | Mapping[str, Any] | None = None) -> DAG:
        """Add the reason why the conversation ended. Drawn, never sent."""
        return self.add(StopReason(reason=reason, usage=usage if usage is not None else {}))

    def _create_node(self, parents: Sequence[Node], data: NodeData, **metadata: Any) -> Node:
        make = Node.with_content_id if self.content_ids else Node.with_parents
        return make(parents, data, **metadata)

    def messages(self, messages: Iterable[Message]) -> DAG:
        """Add messages in sequence."""
        dag = self
        for message in messages:
            dag = dag.add(message)
        return dag

    # Navigation

    @property
    def head(self) -> Node:
        """The current node: the first head."""
        if not self.heads:
            raise ConfigurationError("The graph is empty.", field="head", fix="Add a node first: DAG().user(…).")
        return self.heads[0]

    def at(self, node: Node | str) -> DAG:
        """Return the conversation up to a node, for time travel or to start a branch."""
        return self._at(self.node(node) if isinstance(node, str) else node)

    def back(self, steps: int = 1) -> DAG:
        """Go back by a number of nodes; before a merge, all its parents are heads again."""
        heads = self.heads
        for _ in range(steps):
            heads = tuple(dict.fromkeys(parent for head in heads for parent in head.parents))
        return replace(self, heads=heads)

    def branches(self) -> list[DAG]:
        """Return one graph per head."""
        return [self._at(head) for head in self.heads]

    def merge(self, *others: DAG) -> DAG:
        """Merge branches: the result has all heads, and the next node follows all of them."""
        heads = dict.fromkeys(head for dag in (self, *others) for head in dag.heads)
        return replace(self, heads=tuple(heads))

    def _at(self, node: Node) -> DAG:
        return DAG((node,), self.content_ids, self.extra)

    # Reading

    def nodes(self) -> list[Node]:
        """Return all nodes once, parents before children."""
        return causal_order(self.heads)

    def node(self, id: str) -> Node:
        """Return the node with this id."""
        match = next((node for node in self.nodes() if node.id == id), None)
        if match is None:
            raise ConfigurationError(f"Node {id!r} is not in this graph.", field="id", fix="Use an id of this graph.")
        return match

    def children(self) -> dict[str, list[Node]]:
        """Return the children of each node that has any, by node id."""
        children: dict[str, list[Node]] = {}
        for node in self.nodes():
            for parent in node.parents:
                children.setdefault(parent.id, []).append(node)
        return children

    def to_messages(self) -> list[Message]:
        """Return valid messages for a request: linear, with one result per tool call."""
        return collect_messages(self.nodes())

    def to_request(self) -> AgentRequest:
        """Return a request with the system prompt, tools and messages."""
        nodes = self.nodes()
        return AgentRequest(
            messages=collect_messages(nodes), system=collect_system_prompt(nodes) or None, tools=collect_tools(nodes)
        )

    def get_system_prompt(self) -> str:
        """Return all system prompts, without duplicates."""
        return collect_system_prompt(self.nodes())

    def get_tools(self) -> list[dict[str, Any]]:
        """Return the current tools; a later definition replaces an earlier one of the same name."""
        return [tool.to_dict() for tool in collect_tools(self.nodes())]

    def usage(self, since: Node | None = None) -> Usage:
        """Return the token usage, optionally after a node. Nodes shared by branches count once."""
        total = Usage()
        for node in self._since(since):
            if isinstance(node.data, Message) and node.data.usage is not None:
                total += node.data.usage
        return total

    def cost(self, since: Node | None = None) -> float | None:
        """Return the cost in US dollars, optionally after a node; None if the price of a response is unknown."""
        units = 0
        for node in self._since(since):
            if (cost := node.metadata.get("cost")) is not None:
                units += to_units(cost)
            elif isinstance(node.data, Message) and node.data.usage is not None:
                return None
        return to_dollars(units)

    def _since(self, start: Node | None) -> list[Node]:
        if start is None:
            return self.nodes()
        before = {node.id for node in start.ancestors()}
        return [node for node in self.nodes() if node.id not in before]

    def __len__(self) -> int:
        return len(self.nodes())

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes())

    def __bool__(self) -> bool:
        return bool(self.heads)

    @override
    @printable
    def __repr__(self) -> str:
        return f"DAG({', '.join(head.id for head in self.heads)})"

    # Comparison

    def diff(self, other: DAG) -> Difference:
        """Return the nodes of only this graph, only the other, and both.

        Nodes are compared by id, so that loaded copies and content-addressed nodes are equal.
        """
        mine, theirs = self.nodes(), other.nodes()
        my_ids, their_ids = {node.id for node in mine}, {node.id for node in theirs}
        return Difference(
            only_first=tuple(node for node in mine if node.id not in their_ids),
            only_second=tuple(node for node in theirs if node.id not in my_ids),
            common=tuple(node for node in mine if node.id in their_ids),
        )

    def common_ancestor(self, other: DAG) -> Node | None:
        """Return the common ancestor with the longest history, if any.

        After merges there can be several; among equally deep ones, the last in this graph's order wins.
        """
        theirs = {node.id for node in other.nodes()}
        depth: dict[str, int] = {}
        best: Node | None = None
        for node in self.nodes():
            depth[node.id] = 1 + max((depth[parent.id] for parent in node.parents), default=0)
            if node.id in theirs and (best is None or depth[node.id] >= depth[best.id]):
                best = node
        return best

    def rebase(self, onto: DAG) -> DAG:
        """Copy the nodes that `onto` lacks to the end of it. Existing nodes are not changed."""
        copies: dict[str, Node] = {}
        for node in self.diff(onto).only_first:
            copied = [copies[parent.id] for parent in node.parents if parent.id in copies]
            foreign = len(copied) < len(node.parents) or not node.parents
            parents = tuple(dict.fromkeys((*(onto.heads if foreign else ()), *copied)))
            copies[node.id] = self._create_node(parents, node.data, **node.metadata)
        heads = dict.fromkeys(copies[head.id] for head in self.heads if head.id in copies)
        return replace(self, heads=tuple(heads) or onto.heads)

    # Output and files

    @override
    @printable
    def __str__(self) -> str:
        """Draw the graph as text."""
        return draw_text(self.heads)

    def mermaid(self) -> str:
        """Draw the graph as a Mermaid diagram."""
        return draw_mermaid(self.heads)

    def html(self, *, title: str = "Conversation") -> str:
        """Return a self-contained HTML page that shows the graph."""
        return html_page(self.to_dict(), title=title)

    def save_html(self, path: str | os.PathLike[str], *, title: str = "Conversation") -> None:
        """Write the HTML page to a file."""
        replace_file(path, [self.html(title=title).encode()])

    def to_dict(self, *, vocabulary: Vocabulary | None = None) -> dict[str, Any]:
        """Return the graph as plain JSON data; `vocabulary` names the data of nodes as another library does."""
        return encode_document(self, vocabulary)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DAG:
        """Restore a graph from `to_dict` output, including older versions."""
        return cls(*decode_document(data))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the graph to a file, atomically."""
        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DAG:
        """Load a saved graph."""
        return cls(*load(path))


def _message(role: Role, content: Any) -> Message:
    return Message(role, content)


def response_metadata(response: AgentResponse) -> dict[str, Any]:
    """Return the metadata of a response to store with its message."""
    facts = {
        "provider": response.provider,
        "model": response.model,
        "stop_reason": response.stop_reason,
        "cost": response.cost_estimate,
        "latency_ms": response.latency_ms,
        "usage": None if response.usage is None else response.usage.to_dict(),
    }
    return {name: value for name, value in facts.items() if value not in (None, "")}


def append_messages(dag: DAG, messages: Sequence[Message], responses: Sequence[AgentResponse] = ()) -> DAG:
    """Append messages, with the metadata of their responses, and tool executions before their results."""
    answers = iter(responses)
    index = 0
    while index < len(messages):
        message = messages[index]
        if message.role is Role.ASSISTANT:
            response = next(answers, None)
            dag = dag.add(message, **({} if response is None else response_metadata(response)))
            index += 1
            results = _results(messages, index)
            executions = [
                ToolExecution(result.name or "", result.tool_call_id, result.content or "", result.is_error)
                for result in results
            ]
            dag = dag.tool_execution(*executions)
        else:
            dag = dag.add(message)
            index += 1
    return dag


def _results(messages: Sequence[Message], index: int) -> list[ToolResult]:
    results: list[ToolResult] = []
    while index < len(messages) and messages[index].role is Role.TOOL:
        results += [part for part in messages[index].parts if isinstance(part, ToolResult)]
        index += 1
    return results


def keep_setup(dag: DAG) -> DAG:
    """Return a graph with only the system prompts and tools."""
    setup = DAG(content_ids=dag.content_ids, extra=dag.extra)
    for node in dag.nodes():
        if not isinstance(node.data, Message | ToolExecution) and node.data.type != "stop_reason":
            setup = setup.add(node.data)
    return setup


def rewind_last_turn(dag: DAG) -> DAG | None:
    """Return the graph before the last user message; None if there is none."""
    at = dag
    while at.heads:
        has_question = any(map(is_question, at.heads))
        at = at.back()
        if has_question:
            return at
    return None
