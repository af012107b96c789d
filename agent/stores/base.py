"""What a store of conversations is: the values it takes and gives, the methods it has, and how it fails.

A stored session is a graph of nodes and the heads in it. A node is a row of plain JSON,

    {"id": "…", "parents": ["…"], "timestamp": 0.0, "metadata": {}, "data": {}}

and a store knows of it what it must: the id, the parents, and the text that somebody may search for. What the data
means is the graph's business, and a store gives back every field that it was given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from ..errors import AgentError, ConfigurationError
from ..types import FrozenDict

T = TypeVar("T")
Given: TypeAlias = T | Awaitable[T]
"""What a method returns, or what it gives when it is awaited."""
NodeRow: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class SessionRecord:
    """A stored session."""

    id: str
    title: str = ""
    version: int = 1
    """1 when it is created, and one more after each change."""
    heads: Sequence[str] = ()
    """Ids of nodes; the first is the current one."""
    created_at: float = 0.0
    """Seconds since 1970, as are all times here. They are for people; the version says what came first."""
    updated_at: float = 0.0
    metadata: Mapping[str, Any] = field(default_factory=FrozenDict)
    node_count: int = 0
    """How many nodes there are, whether they were loaded or not."""
    nodes: Sequence[NodeRow] = field(default=(), repr=False)
    """The rows that were asked for, parents before children. The caller's own: changing them changes nothing stored."""


@dataclass(frozen=True)
class SearchHit:
    """A node in which all words were found."""

    session_id: str
    title: str
    node_id: str
    excerpt: str
    """The text around the first of them, in one line."""


class Store(Protocol):
    """What a place for conversations has to do. `agent.testing.check_store` finds out whether it does.

    Each method may be async: what it returns is awaited if it can be. Every error is a `StoreError`, or a
    `ConfigurationError` if the arguments can never work. A method that raises has changed nothing.
    """

    @property
    def blocking(self) -> bool:
        """Whether plain methods may take longer than an event loop should wait."""
        ...

    def create(
        self,
        session_id: str,
        *,
        title: str = "",
        metadata: Mapping[str, Any] | None = None,
        rows: Sequence[NodeRow] = (),
        heads: Sequence[str] = (),
    ) -> Given[SessionRecord]:
        """A new session, with its first nodes if there are any. `ConflictError` if the id is taken."""
        ...

    def load(self, session_id: str, *, since: int = 0) -> Given[SessionRecord]:
        """A session with its nodes, as they were at one moment.

        Args:
            session_id: `SessionNotFoundError` if there is none.
            since: Leave out the nodes that were there at this version. The rest of the record is whole.
        """
        ...

    def append(
        self,
        session_id: str,
        rows: Sequence[NodeRow],
        *,
        heads: Sequence[str],
        expected_version: int,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Given[int]:
        """Add nodes and move the heads: all of it or nothing. When this has returned, it is there to stay.

        Args:
            session_id: `SessionNotFoundError` if there is none.
            rows: Parents before children. A row that is there already is left out; one with the id of another row is a
                `NodeExistsError`.
            heads: From now on.
            expected_version: The version that the caller knows. If it is no longer that, somebody else has changed the
                session, and this is a `ConflictError`.
            title: None leaves it as it is.
            metadata: Replaces what was there. None leaves it as it is.

        Returns:
            The new version.
        """
        ...

    def update(
        self,
        session_id: str,
        *,
        expected_version: int,
        heads: Sequence[str] | None = None,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Given[int]:
        """Change what is not None, as `append` does. Returns the new version."""
        ...

    def list(self, *, limit: int = 50, before: SessionRecord | None = None) -> Given[Sequence[SessionRecord]]:
        """Sessions without their nodes, those that were changed last first.

        Args:
            limit: How many at most.
            before: The last one of the page before this one.
        """
        ...

    def search(self, text: str, *, limit: int = 20) -> Given[Sequence[SearchHit]]:
        """Nodes with all these words in them, the newest first. No text is an error; one without words finds nothing.

        A word is found at the beginning of a word, whatever its case. A store may find it elsewhere, too.
        """
        ...

    def delete(self, session_id: str) -> Given[None]:
        """Remove a session with all its nodes. `SessionNotFoundError` if there is none."""
        ...

    def close(self) -> Given[None]:
        """Let go of files and connections. Nothing is lost by it, and it may be done twice."""
        ...


# How stores fail


class StoreError(AgentError):
    """A store cannot do what it was asked; what it had, it still has. `code` is the database's own word for why."""


class SessionNotFoundError(StoreError):
    """There is no session with that id."""

    def __init__(self, message: str = "", *, session_id: str | None = None, **facts: Any) -> None:
        super().__init__(message or f"There is no session {session_id!r}.", **facts)
        self.session_id = session_id


class ConflictError(StoreError):
    """Somebody else has changed the session. Load what is new, and decide again: nothing was written.

    A session that exists where a new one was wanted is a conflict with `expected` 0.
    """

    def __init__(
        self,
        message: str = "",
        *,
        session_id: str | None = None,
        expected: int | None = None,
        actual: int | None = None,
        **facts: Any,
    ) -> None:
        if not message and expected == 0:
            message = f"There is a session {session_id!r} already."
        elif not message:
            message = f"The session {session_id!r} is at version {actual}, not {expected}: it was changed elsewhere."
        super().__init__(message, **facts)
        self.session_id = session_id
        self.expected = expected
        self.actual = actual


class NodeExistsError(StoreError):
    """A node with that id is there, with other content. Nodes do not change: a changed node is a new one."""

    def __init__(self, message: str = "", *, node_id: str | None = None, **facts: Any) -> None:
        super().__init__(
            message or f"There is a node {node_id!r} with other content. A changed node needs a new id.", **facts
        )
        self.node_id = node_id


class StoreBusyError(StoreError):
    """Somebody else was writing for too long."""

    _retryable_by_default: ClassVar[bool] = True


class StoreFullError(StoreError):
    """There is no room left."""


class CorruptStoreError(StoreError):
    """What was read is not what was written."""

    def __init__(self, message: str = "", *, set_aside: Path | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.set_aside = set_aside
        """Where the damaged file is now; the next use begins a new one. None if it was left where it is."""


class UnknownFormatError(StoreError):
    """The file is not ours, or it was written by a newer version of this package. It was left as it is."""


_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Row:
    """A node's row, and what a store knows of it."""

    id: str
    parents: Sequence[str]
    text: str
    """The whole row as JSON."""


def check_session_id(session_id: str) -> None:
    """Ids may become names of files and keys, so they are plain."""
    if _SESSION_ID.fullmatch(session_id) is None:
        raise ConfigurationError(
            "This cannot be the id of a session.",
            field="session_id",
            fix="Use 1 to 64 of the letters A to Z and a to z, digits, - and _.",
        )


def check_limit(limit: int) -> None:
    if limit < 1:
        raise ConfigurationError(f"limit is {limit!r}.", field="limit", fix="Use 1 or more.")


def read_rows(rows: Iterable[NodeRow]) -> list[Row]:
    """The rows of an append, checked one by one."""
    return [_read_row(row) for row in rows]


def _read_row(row: NodeRow) -> Row:
    id, parents = row.get("id"), row.get("parents")
    if not isinstance(id, str) or not id:
        raise ConfigurationError("A row has no id.", field="rows", fix='Its "id" must be a text that is not empty.')
    if not isinstance(parents, list | tuple) or not all(isinstance(parent, str) for parent in parents):
        raise ConfigurationError(
            f"The row {id!r} has no parents.", field="rows", fix='Its "parents" must be a list of ids, [] for none.'
        )
    check_encodable("rows", id, *parents)
    return Row(id, tuple(parents), encode_object(f"The row {id!r}", row))


def check_encodable(field: str, *ids: str) -> None:
    """Half a character, as some models write it, may stand in a text; as an id it would be found nowhere again."""
    for id in ids:
        try:
            id.encode()
        except UnicodeEncodeError:
            raise ConfigurationError(
                f"The id {id!r} is not valid Unicode.", field=field, fix="Use ids without lone surrogates."
            ) from None


def encode_object(what: str, value: Mapping[str, Any]) -> str:
    """A JSON object in one line, such that a file can hold it."""
    try:
        text = json.dumps(dict(value), ensure_ascii=False, separators=(",", ":"))
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:  # half a character: only its escape can be written
                text = json.dumps(dict(value), separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{what} is not JSON: {type(error).__name__}: {error}.",
            fix="Pass plain data, such as `to_dict()` of a message gives.",
        ) from None
    return text


def select_new_rows(
    rows: Sequence[Row],
    heads: Sequence[str],
    *,
    known: Callable[[str], bool],
    text: Callable[[str], str | bytes | None],
) -> list[Row]:
    """Those rows that are not there yet, if they and the heads fit what is there.

    Args:
        rows: In the order in which they will be added.
        heads: They must be among the rows or known.
        known: Whether there is a node with that id.
        text: Its JSON; None if there is no such node.
    """
    fresh: dict[str, Row] = {}
    for row in rows:
        there = fresh[row.id].text if row.id in fresh else text(row.id)
        if there is not None:
            if not is_same_row(there, row.text):
                raise NodeExistsError(node_id=row.id)
            continue
        for parent in row.parents:
            if parent not in fresh and not known(parent):
                raise ConfigurationError(
                    f"The row {row.id!r} follows {parent!r}, which is not there.",
                    field="rows",
                    fix="Append parents before their children.",
                )
        fresh[row.id] = row
    for head in heads:
        if head not in fresh and not known(head):
            raise ConfigurationError(
                f"The head {head!r} is no node of this session.", field="heads", fix="Append the node together with it."
            )
    return list(fresh.values())


def is_same_row(one: str | bytes, other: str | bytes) -> bool:
    """Whether two texts are the same row. The order of keys does not matter."""
    return one == other or _canonical(one) == _canonical(other)


def _canonical(text: str | bytes) -> str:
    # Values of Python will not do: there, True is 1, and no nan is equal to another.
    return json.dumps(json.loads(text), sort_keys=True)
