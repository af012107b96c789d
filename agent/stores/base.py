"""The `Store` protocol, its values and errors, and helpers to implement it.

A stored session is a graph of nodes with one or more heads. A node is a row of plain JSON:

    {"id": "…", "parents": ["…"], "timestamp": 0.0, "metadata": {}, "data": {}}

A store interprets the id, the parents and the searchable text only. It returns every field unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from typing_extensions import Unpack

from ..errors import AgentError, ConfigurationError, ErrorFacts
from ..types import FrozenDict

T = TypeVar("T")
MaybeAwaitable: TypeAlias = T | Awaitable[T]
"""A return value, or an awaitable of it."""
NodeRow: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class SessionRecord:
    """A stored session."""

    id: str
    title: str = ""
    version: int = 1
    """Starts at 1 and increases with each change."""
    heads: Sequence[str] = ()
    """Ids of the latest nodes; the first is the current one."""
    created_at: float = 0.0
    """Unix timestamp in seconds, for display only; compare versions to order changes."""
    updated_at: float = 0.0
    metadata: Mapping[str, Any] = field(default_factory=FrozenDict)
    node_count: int = 0
    """Number of all nodes, whether loaded or not."""
    nodes: Sequence[NodeRow] = field(default=(), repr=False)
    """Requested rows, parents before children. Copies: changing them does not change the store."""


@dataclass(frozen=True)
class SearchHit:
    """A node that contains all search terms."""

    session_id: str
    title: str
    node_id: str
    excerpt: str
    """The text around the first match, on one line."""


class Store(Protocol):
    """Protocol of session stores. `agent.testing.check_store` tests an implementation.

    Methods can be sync or async. Errors are a `StoreError`, or a `ConfigurationError` for invalid arguments. A method
    that raises must not have changed anything.
    """

    @property
    def blocking(self) -> bool:
        """Whether sync methods can block an event loop noticeably."""
        ...

    def create(
        self,
        session_id: str,
        *,
        title: str = "",
        metadata: Mapping[str, Any] | None = None,
        rows: Sequence[NodeRow] = (),
        heads: Sequence[str] = (),
    ) -> MaybeAwaitable[SessionRecord]:
        """Create a session, optionally with its first nodes. `ConflictError` if the id exists."""
        ...

    def load(self, session_id: str, *, since: int = 0) -> MaybeAwaitable[SessionRecord]:
        """Load a session with its nodes, as a consistent snapshot.

        Args:
            session_id: `SessionNotFoundError` if it does not exist.
            since: Omit nodes that existed at this version. The rest of the record is complete.
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
    ) -> MaybeAwaitable[int]:
        """Add nodes and replace the heads, atomically and durably.

        Args:
            session_id: `SessionNotFoundError` if it does not exist.
            rows: Parents before children. Existing identical rows are skipped; a different row with an existing id is a
                `NodeExistsError`.
            heads: The new heads.
            expected_version: The version last seen by the caller. `ConflictError` if the session has changed since.
            title: None keeps the title.
            metadata: Replaces the metadata; None keeps it.

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
    ) -> MaybeAwaitable[int]:
        """Change everything that is not None, as in `append`. Returns the new version."""
        ...

    def list(self, *, limit: int = 50, before: SessionRecord | None = None) -> MaybeAwaitable[Sequence[SessionRecord]]:
        """List sessions without nodes, most recently changed first.

        Args:
            limit: Maximum number of sessions.
            before: The last session of the previous page.
        """
        ...

    def search(self, text: str, *, limit: int = 20) -> MaybeAwaitable[Sequence[SearchHit]]:
        """Find nodes with all words of `text`, newest first; without words, nothing.

        Words match case-insensitively at the beginning of a word; a store may also match inside words.
        """
        ...

    def delete(self, session_id: str) -> MaybeAwaitable[None]:
        """Delete a session and its nodes. `SessionNotFoundError` if it does not exist."""
        ...

    def close(self) -> MaybeAwaitable[None]:
        """Release files and connections. Can be called more than once."""
        ...


# Errors


class StoreError(AgentError):
    """A store operation failed and changed nothing. `code` is the database's error code."""


class SessionNotFoundError(StoreError):
    """The session does not exist."""

    def __init__(self, message: str = "", *, session_id: str | None = None, **facts: Unpack[ErrorFacts]) -> None:
        super().__init__(message or f"Session {session_id!r} does not exist.", **facts)
        self.session_id = session_id


class ConflictError(StoreError):
    """The session was changed elsewhere. Nothing was written: load the changes and try again.

    Creating a session that exists is a conflict with `expected` 0.
    """

    def __init__(
        self,
        message: str = "",
        *,
        session_id: str | None = None,
        expected: int | None = None,
        actual: int | None = None,
        **facts: Unpack[ErrorFacts],
    ) -> None:
        if not message and expected == 0:
            message = f"Session {session_id!r} already exists."
        elif not message:
            message = f"Session {session_id!r} is at version {actual}, not {expected}: it was changed elsewhere."
        super().__init__(message, **facts)
        self.session_id = session_id
        self.expected = expected
        self.actual = actual


class NodeExistsError(StoreError):
    """A node with this id but different content exists. A changed node needs a new id."""

    def __init__(self, message: str = "", *, node_id: str | None = None, **facts: Unpack[ErrorFacts]) -> None:
        super().__init__(
            message or f"Node {node_id!r} exists with different content. A changed node needs a new id.", **facts
        )
        self.node_id = node_id


class StoreBusyError(StoreError):
    """The store was locked by another writer for too long."""

    _retryable_by_default: ClassVar[bool] = True


class StoreUnavailableError(StoreError):
    """The server cannot be reached.

    If the connection broke while a change was in flight, it may have been made: load the session before trying again.
    """

    _retryable_by_default: ClassVar[bool] = True


class StoreFullError(StoreError):
    """The disk, or the memory of the server, is full."""


class CorruptStoreError(StoreError):
    """The stored data is damaged."""

    def __init__(self, message: str = "", *, set_aside: Path | None = None, **facts: Unpack[ErrorFacts]) -> None:
        super().__init__(message, **facts)
        self.set_aside = set_aside
        """New path of the damaged file, if it was moved; the next use creates a new file."""


class UnknownFormatError(StoreError):
    """The file is not a store, or was written by a newer version of the package. It is left unchanged."""


_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Row:
    """A validated node row."""

    id: str
    parents: Sequence[str]
    text: str
    """The row as JSON."""


def check_session_id(session_id: str) -> None:
    """Raise a ConfigurationError unless the id is valid: ids can become file names and keys."""
    if _SESSION_ID.fullmatch(session_id) is None:
        raise ConfigurationError(
            "Invalid session id.",
            field="session_id",
            fix="Use 1 to 64 letters (A to Z, a to z), digits, - and _.",
        )


def check_limit(limit: int) -> None:
    if limit < 1:
        raise ConfigurationError(f"limit is {limit!r}.", field="limit", fix="Use 1 or more.")


def read_rows(rows: Iterable[NodeRow]) -> list[Row]:
    """Validate the rows of an append."""
    return [_read_row(row) for row in rows]


def _read_row(row: NodeRow) -> Row:
    id, parents = row.get("id"), row.get("parents")
    if not isinstance(id, str) or not id:
        raise ConfigurationError("A row has no id.", field="rows", fix='Set "id" to a non-empty string.')
    if not isinstance(parents, list | tuple) or not all(isinstance(parent, str) for parent in parents):
        raise ConfigurationError(
            f"Row {id!r} has no parents.", field="rows", fix='Set "parents" to a list of ids, [] for none.'
        )
    check_encodable("rows", id, *parents)
    return Row(id, tuple(parents), encode_object(f"Row {id!r}", row))


def check_encodable(field: str, *ids: str) -> None:
    """Reject ids with lone surrogates, which databases cannot find again."""
    for id in ids:
        try:
            id.encode()
        except UnicodeEncodeError:
            raise ConfigurationError(
                f"The id {id!r} is not valid Unicode.", field=field, fix="Use ids without lone surrogates."
            ) from None


def encode_object(what: str, value: Mapping[str, Any]) -> str:
    """Encode a JSON object on one line, as valid UTF-8."""
    try:
        text = json.dumps(dict(value), ensure_ascii=False, separators=(",", ":"))
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:  # a lone surrogate can only be written escaped
                text = json.dumps(dict(value), separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{what} is not JSON: {type(error).__name__}: {error}.",
            fix="Pass plain data, such as `message.to_dict()`.",
        ) from None
    return text


def select_new_rows(
    rows: Sequence[Row],
    heads: Sequence[str],
    *,
    known: Callable[[str], bool],
    text: Callable[[str], str | bytes | None],
) -> list[Row]:
    """Return the rows that do not exist yet, after checking rows and heads against the session.

    Args:
        rows: The rows to append, in order.
        heads: The new heads: existing nodes or appended rows.
        known: Whether a node with this id exists.
        text: The JSON of an existing node; None if it does not exist.
    """
    fresh: dict[str, Row] = {}
    for row in rows:
        existing = fresh[row.id].text if row.id in fresh else text(row.id)
        if existing is not None:
            if not is_same_row(existing, row.text):
                raise NodeExistsError(node_id=row.id)
            continue
        for parent in row.parents:
            if parent not in fresh and not known(parent):
                raise ConfigurationError(
                    f"Parent {parent!r} of row {row.id!r} does not exist.",
                    field="rows",
                    fix="Append parents before their children.",
                )
        fresh[row.id] = row
    for head in heads:
        if head not in fresh and not known(head):
            raise ConfigurationError(
                f"Head {head!r} is not a node of this session.", field="heads", fix="Append its node in the same call."
            )
    return list(fresh.values())


def is_same_row(one: str | bytes, other: str | bytes) -> bool:
    """Whether two JSON texts are the same row, regardless of key order."""
    return one == other or _canonical(one) == _canonical(other)


def _canonical(text: str | bytes) -> str:
    # Compare as text: in Python, True equals 1, and NaN never equals itself.
    return json.dumps(json.loads(text), sort_keys=True)
