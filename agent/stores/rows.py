"""What every store has to check of what it is given, so that what is stored is always a whole graph.

For whoever writes a store: read the rows first, then find out inside the transaction which of them are new. Nothing
here knows where rows are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigurationError
from .base import NodeExistsError, NodeRow

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
    return Row(id, tuple(parents), as_json(f"The row {id!r}", row))


def check_encodable(field: str, *ids: str) -> None:
    """Half a character, as some models write it, may stand in a text; as an id it would be found nowhere again."""
    for id in ids:
        try:
            id.encode()
        except UnicodeEncodeError:
            raise ConfigurationError(
                f"The id {id!r} is not valid Unicode.", field=field, fix="Use ids without lone surrogates."
            ) from None


def as_json(what: str, value: Mapping[str, Any]) -> str:
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


def new_rows(
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
            if not same_row(there, row.text):
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


def same_row(one: str | bytes, other: str | bytes) -> bool:
    """Whether two texts are the same row. The order of keys does not matter."""
    return one == other or _canonical(one) == _canonical(other)


def _canonical(text: str | bytes) -> str:
    # Values of Python will not do: there, True is 1, and no nan is equal to another.
    return json.dumps(json.loads(text), sort_keys=True)
