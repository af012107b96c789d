"""Stored sessions: lookup by name, summaries, forks, and the tree of related sessions."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from secrets import choice
from typing import Any

from ...errors import ConfigurationError
from ...graph import DAG, Message, Node, Role, SystemPrompt, ToolResultContent
from ...graph.files import decode_node, encode_node
from ...stores.base import ConflictError, SessionNotFoundError, SessionRecord, check_session_id
from ...stores.sqlite import SqliteStore
from ...types import Usage

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
        return {
            "id": self.id,
            "title": self.title,
            "turns": self.turns,
            "model": self.model or None,
            "updated_at": datetime.fromtimestamp(self.updated_at, UTC).isoformat(timespec="seconds"),
            "cost": self.cost,
            "forked_from": self.forked_from,
        }


# Nodes


def decode_nodes(record: SessionRecord, nodes: dict[str, Node] | None = None) -> dict[str, Node]:
    """Return the nodes of a record by id, added to `nodes`, so that forks share them."""
    nodes = {} if nodes is None else nodes
    for row in record.nodes:
        if row["id"] not in nodes:
            nodes[row["id"]] = decode_node(row, nodes)
    return nodes


def decode_dag(record: SessionRecord) -> DAG:
    """Return the current conversation of a record."""
    nodes = decode_nodes(record)
    return DAG(tuple(nodes[id] for id in record.heads))


def is_question(node: Node) -> bool:
    """Whether the node is a message of the user, and not a tool result."""
    data = node.data
    return (
        isinstance(data, Message)
        and data.role is Role.USER
        and not any(isinstance(part, ToolResultContent) for part in data.parts)
    )


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
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TITLE else f"{line[: _MAX_TITLE - 1]}…"


def load_models(record: SessionRecord) -> list[str]:
    """Return the models that a stored session last used."""
    models = record.metadata.get(MODELS)
    if isinstance(models, list | tuple) and all(isinstance(model, str) for model in models):
        return list(models)
    return []


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
        model=models[-1] if models else ", ".join(map(str, record.metadata.get(MODELS) or ())),
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


def random_session_id(prefix: str = "chat") -> str:
    """Return a short random id. It may be taken."""
    return f"{prefix}-{''.join(choice(_ID_ALPHABET) for _ in range(5))}"


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
        decode_nodes(item, nodes)
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
