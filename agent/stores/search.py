"""Full-text search: the text of nodes, search terms, and the SQLite FTS5 index.

The index is updated by searches, not by appends. Without FTS5, or for words that FTS5 cannot split, a search scans all
nodes.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .base import NodeRow

if TYPE_CHECKING:  # MemoryStore must not import sqlite3
    import sqlite3

_TEXTS = ("text", "refusal", "code", "old_code", "new_code")
_NESTED = "content"
"""Parts of a message; content of a tool result."""
_BEFORE, _AFTER = 40, 120


def extract_text(row: NodeRow) -> str:
    """Return the searchable text of a node: messages, tool results and prompts, but no reasoning."""
    texts: list[str] = []
    data = row.get("data")
    waiting: list[Any] = [data.get(_NESTED)] if isinstance(data, Mapping) else []
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            texts.append(item)
        elif isinstance(item, list | tuple):
            waiting += reversed(item)
        elif isinstance(item, Mapping):
            waiting.append(item.get(_NESTED))
            waiting += [item[key] for key in reversed(_TEXTS) if isinstance(item.get(key), str)]
    return "\n".join(texts)


def fold_case(text: str) -> str:
    """Remove case and accents."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(char for char in decomposed if not unicodedata.combining(char)).casefold()


class SearchTerms:
    """Words to search for; a match contains all of them."""

    def __init__(self, text: str) -> None:
        # NUL would end the query of the index.
        self.words: tuple[str, ...] = tuple(dict.fromkeys(fold_case(text).replace("\0", " ").split()))

    def __bool__(self) -> bool:
        return bool(self.words)

    def are_in(self, text: str) -> bool:
        folded = fold_case(text)
        return all(word in folded for word in self.words)

    def excerpt(self, text: str) -> str:
        """Return the text around the first match, on one line."""
        places = [match.start() for word in self.words if (match := re.search(re.escape(word), text, re.IGNORECASE))]
        start = max(0, min(places, default=0) - _BEFORE)
        part = " ".join(text[start : start + _BEFORE + _AFTER].split())
        return f"{'…' if start else ''}{part}{'…' if start + _BEFORE + _AFTER < len(text) else ''}"


_BATCH = 500
_MOST_WORDS = 32
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Scripts written without spaces (Thai, Lao, Burmese, Khmer, Chinese, Japanese), which FTS5 cannot split into words."""


def is_indexable(words: SearchTerms) -> bool:
    """Whether the index can find these terms."""
    return len(words.words) <= _MOST_WORDS and all(map(_can_be_indexed, words.words))


def _can_be_indexed(word: str) -> bool:
    if _UNSPACED.search(word) or not any(map(str.isalnum, word)):
        return False
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def format_match_query(words: SearchTerms) -> str:
    """Return an FTS5 query of quoted prefix phrases."""
    return " ".join('"{}"*'.format(word.replace('"', '""')) for word in words.words)


def is_index_behind(connection: sqlite3.Connection) -> bool:
    return _mark(connection) != _last(connection)


def update_index(connection: sqlite3.Connection) -> None:
    """Add the next batch of nodes to the index."""
    mark, last = _mark(connection), _last(connection)
    if mark > last:
        drop_index(connection)
        mark = 0
    connection.execute(
        "CREATE VIRTUAL TABLE IF NOT EXISTS search USING fts5 (text, columnsize = 0, tokenize = 'unicode61')"
    )
    rows = connection.execute(
        "SELECT number, row FROM nodes WHERE number > ? ORDER BY number LIMIT ?", (mark, _BATCH)
    ).fetchall()
    connection.executemany(
        "INSERT OR REPLACE INTO search (rowid, text) VALUES (?, ?)",
        [(number, _normalize_text(row)) for number, row in rows],
    )
    reached = rows[-1][0] if len(rows) == _BATCH else last
    connection.execute("INSERT OR REPLACE INTO about (key, value) VALUES ('indexed', ?)", (str(reached),))


def remove_from_index(connection: sqlite3.Connection, session: int) -> None:
    """Remove a session from the index, before its nodes are deleted."""
    if _exists(connection):
        connection.execute("DELETE FROM search WHERE rowid IN (SELECT number FROM nodes WHERE session = ?)", (session,))


def drop_index(connection: sqlite3.Connection) -> None:
    """Delete the index; the next search creates a new one."""
    connection.execute("DROP TABLE IF EXISTS search")
    connection.execute("INSERT OR REPLACE INTO about (key, value) VALUES ('indexed', '0')")


def _exists(connection: sqlite3.Connection) -> bool:
    row = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'search'").fetchone()
    return row is not None


def _mark(connection: sqlite3.Connection) -> int:
    """Number of the last indexed node, or 0."""
    row = connection.execute("SELECT value FROM about WHERE key = 'indexed'").fetchone()
    return int(row[0]) if row is not None and row[0].isdigit() and _exists(connection) else 0


def _last(connection: sqlite3.Connection) -> int:
    """Number of the last node ever inserted."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'nodes'").fetchone()
    return row[0] if row is not None and isinstance(row[0], int) else 0


def _normalize_text(row: Any) -> str:
    """Fold case and accents as `SearchTerms` does; FTS5's own rules differ."""
    try:
        return fold_case(extract_text(json.loads(row))).encode("utf-8", "replace").decode()
    except (TypeError, ValueError, RecursionError, AttributeError):
        return ""  # a damaged node, which is reported when it is loaded
