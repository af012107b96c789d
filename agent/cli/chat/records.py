"""Stored sessions: lookup, summaries, forks, trees, and their formats: text, Markdown, JSON and HTML."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from secrets import choice
from typing import Any

from ...errors import ConfigurationError
from ...graph import DAG, Message, Node, Role, SystemPrompt, ToolExecution
from ...graph.diagrams import draw_text
from ...graph.files import decode_nodes, encode_node
from ...graph.node import causal_order, is_question, link_messages
from ...stores.base import ConflictError, SessionNotFoundError, SessionRecord, check_session_id
from ...stores.files import replace_file
from ...stores.sqlite import SqliteStore
from ...types import Session, ToolCall, Usage
from ..terminal import (
    Style,
    display_width,
    format_json,
    sanitize,
    sanitize_line,
    tool_call_line,
    tool_result_line,
    truncate,
)

FORKED_FROM = "forked_from"
"""Metadata key: the session from which this one was forked."""
MODELS = "models"
"""Metadata key: the models in use, as `provider:model`."""

_ID_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_MAX_TITLE = 60
_PAGE_SIZE = 200


@dataclass(frozen=True)
class SpendingTotal:
    """Tokens and dollars of some responses. `known_cost` excludes the `unpriced` ones."""

    usage: Usage = field(default_factory=Usage)
    known_cost: float = 0.0
    responses: int = 0
    unpriced: int = 0

    def __add__(self, other: SpendingTotal) -> SpendingTotal:
        return SpendingTotal(
            self.usage + other.usage,
            self.known_cost + other.known_cost,
            self.responses + other.responses,
            self.unpriced + other.unpriced,
        )

    @property
    def cost(self) -> float | None:
        """The cost; None if the price of a response is unknown."""
        return None if self.unpriced else self.known_cost


@dataclass(frozen=True)
class SessionSummary:
    """One row of a list of sessions."""

    id: str
    title: str
    turns: int
    model: str
    updated_at: float
    cost: float | None
    forked_from: str | None = None

    def to_dict(self) -> dict[str, Any]:
        updated_at = datetime.fromtimestamp(self.updated_at, UTC).isoformat(timespec="seconds")
        return {**asdict(self), "model": self.model or None, "updated_at": updated_at}


# Nodes


def decode_dag(record: SessionRecord) -> DAG:
    """Return the current conversation of a record."""
    nodes = decode_nodes(record.nodes)
    return DAG(tuple(nodes[id] for id in record.heads))


def find_instructions(dag: DAG) -> str | None:
    """Return the latest system prompt."""
    prompts = [node.data.content for node in dag.nodes() if isinstance(node.data, SystemPrompt)]
    return prompts[-1] if prompts else None


def model_name(node: Node) -> str:
    """Return the model that answered, as `provider:model`; empty if it is not recorded."""
    return ":".join(str(part) for part in (node.metadata.get("provider"), node.metadata.get("model")) if part)


def sum_spending(nodes: Sequence[Node]) -> SpendingTotal:
    """Add up the usage and cost of the assistant messages."""
    total = SpendingTotal()
    for node in nodes:
        if isinstance(node.data, Message) and node.data.role is Role.ASSISTANT:
            cost = node.metadata.get("cost")
            total += SpendingTotal(node.data.usage or Usage(), float(cost or 0.0), 1, int(cost is None))
    return total


def make_title(text: str) -> str:
    """Shorten a question to a one-line title."""
    return truncate(" ".join(text.split()), _MAX_TITLE)


def load_models(record: SessionRecord) -> list[str]:
    """Return the models that a stored session last used."""
    return [str(model) for model in record.metadata.get(MODELS) or ()]


# Lookup


def summarize_record(record: SessionRecord) -> SessionSummary:
    """Summarize a session that was loaded with its nodes."""
    nodes = decode_dag(record).nodes()
    questions = [node.data for node in nodes if is_question(node)]
    models = [model_name(node) for node in nodes if model_name(node)]
    title = record.title or next((make_title(data.text) for data in questions if isinstance(data, Message)), "")
    forked_from = record.metadata.get(FORKED_FROM)
    return SessionSummary(
        id=record.id,
        title=title,
        turns=len(questions),
        model=models[-1] if models else ", ".join(load_models(record)),
        updated_at=record.updated_at,
        cost=sum_spending(nodes).cost,
        forked_from=str(forked_from) if forked_from else None,
    )


def list_summaries(store: SqliteStore, limit: int) -> list[SessionSummary]:
    """Summarize the latest sessions."""
    records = (load_exact(store, header.id) for header in store.list(limit=limit))
    return [summarize_record(record) for record in records if record is not None]  # None: deleted meanwhile


def _iter_headers(store: SqliteStore) -> Iterator[SessionRecord]:
    """All sessions without their nodes, latest first."""
    last: SessionRecord | None = None
    while page := store.list(limit=_PAGE_SIZE, before=last):
        yield from page
        last = page[-1]


def load_latest(store: SqliteStore) -> SessionRecord:
    """Load the session that was changed last."""
    page = store.list(limit=1)
    if not page:
        raise ConfigurationError(
            "There is no session to continue.", field="--continue", fix="Start one with: agent chat"
        )
    return store.load(page[0].id)


def load_exact(store: SqliteStore, name: str) -> SessionRecord | None:
    """Load the session with exactly this id; None if there is none."""
    check_session_id(name)
    try:
        return store.load(name)
    except SessionNotFoundError:
        return None


def load_by_prefix(store: SqliteStore, name: str) -> SessionRecord:
    """Load the session with this id, or the only one whose id starts with it."""
    if (record := load_exact(store, name)) is not None:
        return record
    ids = [header.id for header in _iter_headers(store)]
    matches = [id for id in ids if id.startswith(name)]
    if len(matches) == 1:
        return store.load(matches[0])
    if matches:
        message = f"{name!r} is ambiguous: several sessions start with it."
        fix = f"Use one of {_join_ids(matches)}."
    else:
        message = f"There is no session {name!r}."
        if near := difflib.get_close_matches(name, ids, n=3):
            fix = f"Did you mean {_join_ids(near)}?"
        else:
            fix = "List them with: agent sessions" if ids else "Start one with: agent chat"
    raise ConfigurationError(message, field="session", fix=fix)


def _join_ids(ids: Sequence[str]) -> str:
    return ", ".join(ids[:5]) + (f" or {len(ids) - 5} others" if len(ids) > 5 else "")


# Forks


def random_session_id() -> str:
    """Return a short random id. It may be taken."""
    return f"chat-{''.join(choice(_ID_ALPHABET) for _ in range(5))}"


def create_fork(
    store: SqliteStore, dag: DAG, new_id: str | None, *, forked_from: str, title: str, models: Sequence[str] = ()
) -> SessionRecord:
    """Store a conversation as a new session; without an id, it gets a numbered one.

    Raises:
        ConflictError: `new_id` is taken.
    """
    metadata: dict[str, Any] = {FORKED_FROM: forked_from}
    if models:
        metadata[MODELS] = list(models)
    rows = [encode_node(node) for node in dag.nodes()]
    heads = [head.id for head in dag.heads]
    if new_id is not None:
        return store.create(new_id, title=title, metadata=metadata, rows=rows, heads=heads)
    for number in range(2, 1000):
        try:
            return store.create(_format_id(forked_from, number), title=title, metadata=metadata, rows=rows, heads=heads)
        except ConflictError:
            continue
    raise ConfigurationError(
        f"All numbered names for forks of {forked_from!r} are taken.", field="/fork", fix="Choose a name."
    )


def _format_id(name: str, number: int) -> str:
    stem, dash, last = name.rpartition("-")
    if dash and last.isdigit() and len(last) < 4:
        name = stem
    return f"{name[:58]}-{number}"


@dataclass(frozen=True)
class SessionTree:
    """A session, its forks, the session it was forked from, and all undone turns, as one graph."""

    heads: tuple[Node, ...]
    """The ends of all branches; those of the requested session come first."""
    sessions: dict[str, list[str]]
    """The sessions whose head is a node, by node id."""
    undone: frozenset[str]
    """Ids of heads that belong to no session any more."""


def load_tree(store: SqliteStore, record: SessionRecord) -> SessionTree:
    """Load the tree of a session from the store."""
    parents = {header.id: header.metadata.get(FORKED_FROM) for header in _iter_headers(store)}
    root = _find_root(record.id, parents)
    related = [id for id in parents if id != record.id and _find_root(id, parents) == root]
    records = [record, *(item for id in related if (item := load_exact(store, id)) is not None)]
    nodes: dict[str, Node] = {}
    sessions: dict[str, list[str]] = {}
    for item in records:
        decode_nodes(item.nodes, nodes)
        for head in item.heads:
            sessions.setdefault(head, []).append(item.id)
    inner = {parent.id for node in nodes.values() for parent in node.parents}
    leaves = [id for id in nodes if id not in inner]
    heads = dict.fromkeys([*(head for item in records for head in item.heads), *leaves])
    return SessionTree(tuple(nodes[id] for id in heads), sessions, frozenset(leaves) - frozenset(sessions))


def _find_root(id: str, parents: dict[str, Any]) -> str:
    visited = {id}
    while isinstance(parent := parents.get(id), str) and parent not in visited:
        id = parent  # a deleted parent still connects its forks
        visited.add(id)
    return id


# Formats


def format_nodes(nodes: Iterable[Node]) -> Iterator[tuple[str, Style]]:
    """Format messages as a chat displays them: sanitized texts with styles."""
    is_first = True
    for node in nodes:
        match node.data:
            case SystemPrompt(content):
                yield f"instructions: {sanitize_line(content)}", "dim"
            case ToolExecution():
                yield _format_execution(node.data), "dim"
            case Message():
                if is_question(node) and not is_first:
                    yield "", "plain"
                yield from _format_message(node, node.data)
                is_first = False
            case _:
                pass


def _format_message(node: Node, message: Message) -> Iterator[tuple[str, Style]]:
    if is_question(node):
        lines = _message_text(message).split("\n")
        yield "\n".join(f"{'.' if number else '>'} {line}" for number, line in enumerate(lines)), "bold"
    elif message.role is Role.ASSISTANT:
        if text := _message_text(message):
            yield text, "plain"
        for call in message.parts:
            if isinstance(call, ToolCall):
                yield tool_call_line(call.name, call.arguments), "dim"
    elif message.role is Role.SYSTEM:
        yield f"instructions: {sanitize_line(message.text)}", "dim"


def _format_execution(execution: ToolExecution) -> str:
    text = "".join(part.text or "" for part in execution.result)
    return tool_result_line(execution.tool_name, text, is_error=execution.is_error)


def _message_text(message: Message) -> str:
    """The sanitized text of a message, with placeholders for other content and without thinking."""
    texts = [
        part.text or f"[{part.type}]"
        for part in message.parts
        if not isinstance(part, ToolCall) and part.type not in ("thinking", "redacted_thinking")
    ]
    return sanitize("\n".join(texts)).strip("\n")


def format_markdown(dag: DAG, title: str) -> str:
    blocks = [f"# {sanitize_line(title) or 'Conversation'}"]
    for node in dag.nodes():
        match node.data:
            case SystemPrompt(content):
                blocks.append(f"*Instructions:* {sanitize(content)}")
            case Message() if is_question(node):
                blocks.append(f"**You:** {_message_text(node.data)}")
            case Message(role=Role.ASSISTANT):
                if text := _message_text(node.data):
                    blocks.append(f"**{sanitize_line(model_name(node)) or 'Model'}:** {text}")
                blocks += [
                    f"`{tool_call_line(part.name, part.arguments)}`"
                    for part in node.data.parts
                    if isinstance(part, ToolCall)
                ]
            case ToolExecution():
                blocks.append(f"`{_format_execution(node.data)}`")
            case _:
                pass
    return "\n\n".join(blocks) + "\n"


def to_session_dict(dag: DAG, id: str, title: str, record: SessionRecord | None = None) -> dict[str, Any]:
    """Convert a conversation to the JSON that `AgentSession.of` reads."""
    session = Session(id=id, title=title, messages=link_messages(dag.nodes()))
    if record is not None:
        created = datetime.fromtimestamp(record.created_at, UTC)
        session = session.replace(created_at=created, updated_at=datetime.fromtimestamp(record.updated_at, UTC))
    return session.to_dict()


def write_transcript(
    path: Path, dag: DAG, *, id: str, title: str, record: SessionRecord | None = None, replace: bool = False
) -> None:
    """Write a conversation to a .md, .txt, .json or .html file.

    Args:
        replace: Whether an existing file may be replaced.
    """
    suffix = path.suffix.lower()
    if suffix in (".md", ".txt"):
        text = format_markdown(dag, title)
    elif suffix == ".json":
        text = format_json(to_session_dict(dag, id, title, record)) + "\n"
    elif suffix == ".html":
        text = dag.html(title=sanitize_line(title) or id)
    else:
        raise ConfigurationError(
            f"The file format of {path.name!r} is unknown.", field="file", fix="Use .md, .txt, .json or .html."
        )
    _check_free(path, replace=replace)
    replace_file(path, [text.encode("utf-8", "replace")])


def write_tree(path: Path, tree: SessionTree, title: str, *, replace: bool = False) -> None:
    """Write a session tree to a .html page, or to a .json file for `agent graph` and `DAG.load`."""
    suffix = path.suffix.lower()
    if suffix not in (".html", ".json"):
        raise ConfigurationError(
            f"The file format of {path.name!r} is unknown.", field="file", fix="Use .html or .json."
        )
    _check_free(path, replace=replace)
    dag = DAG(tree.heads)
    if suffix == ".html":
        dag.save_html(path, title=sanitize_line(title))
    else:
        dag.save(path)


def _check_free(path: Path, *, replace: bool) -> None:
    if path.is_dir() or (path.exists() and not replace):
        raise ConfigurationError(f"{path} exists already.", field="file", fix="Name another file.")


_NODE = "●"


def draw_tree(tree: SessionTree, current: str | None = None, limit: int | None = None) -> str:
    """Draw a session tree with the names of its sessions, in lines of at most `limit` columns."""
    labels = iter([_node_label(node, tree, current) for node in causal_order(tree.heads)])
    lines: list[str] = []
    for line in draw_text(tree.heads).split("\n"):
        # Each node has one line with a dot, in causal order.
        label = next(labels, "") if _NODE in line else ""
        if limit is not None:
            line = truncate(line, max(20, limit - 1 - display_width(label)))
        lines.append(line + label)
    return "\n".join(lines)


def _node_label(node: Node, tree: SessionTree, current: str | None) -> str:
    if names := tree.sessions.get(node.id, []):
        return f"  ← {', '.join(f'{name} (here)' if name == current else name for name in names)}"
    return "  ← undone" if node.id in tree.undone else ""
