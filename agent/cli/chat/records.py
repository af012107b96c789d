"""Stored conversations, as somebody at a terminal speaks of them: found by a name, summed up, copied, seen as a family.

It knows stores and graphs. It asks no model and prints nothing.
"""

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
"""In a record's metadata, the session that it branched off from."""
MODELS = "models"
"""In a record's metadata, who was asked last, as `provider:model`."""

_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
_TITLE = 60
_PAGE = 200


@dataclass(frozen=True)
class Spent:
    """Tokens and dollars. `unknown` answers had no price, and are not in `cost`."""

    usage: Usage = field(default_factory=Usage)
    cost: float = 0.0
    answers: int = 0
    unknown: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.usage + other.usage,
            self.cost + other.cost,
            self.answers + other.answers,
            self.unknown + other.unknown,
        )

    @property
    def known_cost(self) -> float | None:
        """None if nothing is known about it."""
        return None if self.unknown == self.answers else self.cost


@dataclass(frozen=True)
class Summary:
    """One line about a session."""

    id: str
    title: str
    turns: int
    model: str
    updated_at: float
    cost: float | None
    forked_from: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        moment = datetime.fromtimestamp(self.updated_at, UTC)
        return {
            "id": self.id,
            "title": self.title,
            "turns": self.turns,
            "model": self.model or None,
            "updated_at": moment.isoformat(timespec="seconds"),
            "cost": self.cost,
            "forked_from": self.forked_from,
        }


# Reading


def nodes_of(record: SessionRecord, known: dict[str, Node] | None = None) -> dict[str, Node]:
    """The nodes of a record by their ids. Those in `known` are taken from there, so that forks share them."""
    nodes: dict[str, Node] = {} if known is None else known
    for row in record.nodes:
        if row["id"] not in nodes:
            nodes[row["id"]] = decode_node(row, nodes)
    return nodes


def dag_of(record: SessionRecord) -> DAG:
    """The conversation as it stands."""
    nodes = nodes_of(record)
    return DAG(tuple(nodes[id] for id in record.heads))


def is_question(node: Node) -> bool:
    """Whether somebody said something here; results of tools are not said by anybody."""
    data = node.data
    return (
        isinstance(data, Message)
        and data.role is Role.USER
        and not any(isinstance(part, ToolResultContent) for part in data.parts)
    )


def instructions_of(dag: DAG) -> str | None:
    """The latest of the conversation's instructions: each replaces the one before."""
    prompts = [node.data.content for node in dag.nodes() if isinstance(node.data, SystemPrompt)]
    return prompts[-1] if prompts else None


def model_of(node: Node) -> str:
    """Who answered, as far as it is written down."""
    return ":".join(str(part) for part in (node.metadata.get("provider"), node.metadata.get("model")) if part)


def spent_on(nodes: Sequence[Node]) -> Spent:
    """What the answers among these nodes used and cost."""
    total = Spent()
    for node in nodes:
        if isinstance(node.data, Message) and node.data.role is Role.ASSISTANT:
            cost = node.metadata.get("cost")
            total += Spent(node.data.usage or Usage(), float(cost or 0.0), 1, int(cost is None))
    return total


def title_from(text: str) -> str:
    """The first words of a question, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= _TITLE else f"{line[: _TITLE - 1]}…"


def summary_of(record: SessionRecord) -> Summary:
    """What a list says about a session that was loaded with its nodes."""
    nodes = dag_of(record).nodes()
    questions = [node.data for node in nodes if is_question(node)]
    models = [model_of(node) for node in nodes if model_of(node)]
    chosen = record.metadata.get(MODELS) or ()
    title = record.title or next((title_from(data.text) for data in questions if isinstance(data, Message)), "")
    forked = record.metadata.get(FORKED_FROM)
    return Summary(
        id=record.id,
        title=title,
        turns=len(questions),
        model=models[-1] if models else ", ".join(map(str, chosen)),
        updated_at=record.updated_at,
        cost=spent_on(nodes).known_cost,
        forked_from=str(forked) if forked else None,
    )


def headers(store: SqliteStore) -> Iterator[SessionRecord]:
    """All sessions without their nodes, the latest first."""
    last: SessionRecord | None = None
    while page := store.list(limit=_PAGE, before=last):
        yield from page
        last = page[-1]


def summaries(store: SqliteStore, limit: int) -> list[Summary]:
    """The latest sessions."""
    found: list[Summary] = []
    for header in store.list(limit=limit):
        try:
            found.append(summary_of(store.load(header.id)))
        except SessionNotFoundError:
            continue  # somebody has just deleted it
    return found


def latest(store: SqliteStore) -> SessionRecord:
    """The session that was changed last."""
    page = store.list(limit=1)
    if not page:
        raise ConfigurationError(
            "There is no session to go on with.", field="--continue", fix="Start one with: agent chat"
        )
    return store.load(page[0].id)


def loaded(store: SqliteStore, name: str) -> SessionRecord | None:
    """The session with exactly that id; None if there is none."""
    check_session_id(name)
    try:
        return store.load(name)
    except SessionNotFoundError:
        return None


def found(store: SqliteStore, name: str) -> SessionRecord:
    """The session with that id, or the only one whose id begins so."""
    if (record := loaded(store, name)) is not None:
        return record
    ids = [header.id for header in headers(store)]
    matching = [id for id in ids if id.startswith(name)]
    if len(matching) == 1:
        return store.load(matching[0])
    if matching:
        fix = f"It could be {_listed(matching)}."
    elif near := difflib.get_close_matches(name, ids, n=3):
        fix = f"Did you mean {_listed(near)}?"
    else:
        fix = "List them with: agent sessions" if ids else "There are none yet; start one with: agent chat"
    what = f"Several sessions begin with {name!r}." if matching else f"There is no session {name!r}."
    raise ConfigurationError(what, field="session", fix=fix)


def _listed(ids: Sequence[str]) -> str:
    return ", ".join(ids[:5]) + (f" or {len(ids) - 5} others" if len(ids) > 5 else "")


# Copying


def free_id(prefix: str = "chat") -> str:
    """A short name for a new session. It is random, and the store says if it is taken."""
    return f"{prefix}-{''.join(choice(_LETTERS) for _ in range(5))}"


def copied(
    store: SqliteStore, dag: DAG, new_id: str | None, *, forked_from: str, title: str, models: Sequence[str] = ()
) -> SessionRecord:
    """A new session that begins with that conversation. `ConflictError` if a name was given that is taken."""
    metadata: dict[str, Any] = {FORKED_FROM: forked_from}
    if models:
        metadata[MODELS] = list(models)
    rows = [encode_node(node) for node in dag.nodes()]
    heads = [head.id for head in dag.heads]
    numbers = iter(range(2, 1000))
    while True:
        name = new_id or _numbered(forked_from, next(numbers))
        try:
            return store.create(name, title=title, metadata=metadata, rows=rows, heads=heads)
        except ConflictError:
            if new_id is not None:
                raise


def _numbered(name: str, number: int) -> str:
    stem, dash, last = name.rpartition("-")
    if dash and last.isdigit() and len(last) < 4:
        name = stem
    return f"{name[:58]}-{number}"


# Families


@dataclass(frozen=True)
class Family:
    """A session with all that it was forked from and into, and everything that was undone in them, as one graph."""

    heads: tuple[Node, ...]
    """The ends of all branches; those of the session that was asked about first."""
    names: dict[str, list[str]]
    """By the id of a node, the sessions that stand there."""
    undone: frozenset[str]
    """Ids of ends that no session stands at."""


def family_of(store: SqliteStore, record: SessionRecord) -> Family:
    """The family of a session, from the store."""
    parents = {header.id: header.metadata.get(FORKED_FROM) for header in headers(store)}
    root = _root(record.id, parents)
    members = [id for id in parents if id != record.id and _root(id, parents) == root]
    records = [record]
    for member in members:
        try:
            records.append(store.load(member))
        except SessionNotFoundError:
            continue
    return family(records)


def _root(id: str, parents: dict[str, Any]) -> str:
    seen = {id}
    while isinstance(parent := parents.get(id), str) and parent not in seen:
        id = parent  # it may have been deleted: its forks are still a family
        seen.add(id)
    return id


def family(records: Sequence[SessionRecord]) -> Family:
    """Several sessions as one graph."""
    nodes: dict[str, Node] = {}
    names: dict[str, list[str]] = {}
    for record in records:
        nodes_of(record, nodes)
        for head in record.heads:
            names.setdefault(head, []).append(record.id)
    followed = {parent.id for node in nodes.values() for parent in node.parents}
    ends = [id for id in nodes if id not in followed]
    first = [head for record in records for head in record.heads]
    order = dict.fromkeys([*first, *ends])
    return Family(tuple(nodes[id] for id in order), names, frozenset(ends) - frozenset(names))
