"""The index for searching: made from the nodes, and made anew whenever it is in doubt.

Appending does not touch it. Whoever searches first brings it up to date, a few hundred nodes at a time. Where SQLite
has no FTS5, and for words that it cannot tell apart, all nodes are read instead.
"""

from __future__ import annotations

import json
import re
import sqlite3
from typing import Any

from .search import SearchTerms, extract_text, fold

_BATCH = 500
_MOST_WORDS = 32
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Thai, Lao, Burmese, Khmer, Chinese and Japanese: written without spaces, so the index sees sentences, not words."""


def serves(words: SearchTerms) -> bool:
    """Whether the index can find these words."""
    return len(words.words) <= _MOST_WORDS and all(map(_can_be_indexed, words.words))


def _can_be_indexed(word: str) -> bool:
    if _UNSPACED.search(word) or not any(map(str.isalnum, word)):
        return False
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def query(words: SearchTerms) -> str:
    """Each word as a phrase in quotes, so that no sign in it means anything, and as the beginning of one."""
    return " ".join('"{}"*'.format(word.replace('"', '""')) for word in words.words)


def is_behind(connection: sqlite3.Connection) -> bool:
    return _mark(connection) != _last(connection)


def catch_up(connection: sqlite3.Connection) -> None:
    """Add some of the nodes that are not in it yet."""
    mark, last = _mark(connection), _last(connection)
    if mark > last:
        forget(connection)
        mark = 0
    connection.execute(
        "CREATE VIRTUAL TABLE IF NOT EXISTS search USING fts5 (text, columnsize = 0, tokenize = 'unicode61')"
    )
    rows = connection.execute(
        "SELECT number, row FROM nodes WHERE number > ? ORDER BY number LIMIT ?", (mark, _BATCH)
    ).fetchall()
    connection.executemany(
        "INSERT OR REPLACE INTO search (rowid, text) VALUES (?, ?)", [(number, _said(row)) for number, row in rows]
    )
    reached = rows[-1][0] if len(rows) == _BATCH else last
    connection.execute("INSERT OR REPLACE INTO about (key, value) VALUES ('indexed', ?)", (str(reached),))


def remove(connection: sqlite3.Connection, session: int) -> None:
    """Take a session out of it, before its nodes are gone."""
    if not _exists(connection):
        return
    try:
        connection.execute("DELETE FROM search WHERE rowid IN (SELECT number FROM nodes WHERE session = ?)", (session,))
    except sqlite3.DatabaseError:  # it is damaged, or this SQLite cannot read it: then there is none
        forget(connection)


def forget(connection: sqlite3.Connection) -> None:
    """Throw it away. The next search makes a new one."""
    connection.execute("DROP TABLE IF EXISTS search")
    connection.execute("INSERT OR REPLACE INTO about (key, value) VALUES ('indexed', '0')")


def _exists(connection: sqlite3.Connection) -> bool:
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'search'").fetchone()
    return found is not None


def _mark(connection: sqlite3.Connection) -> int:
    """The number of the last node in it; 0 if there is nothing in it."""
    row = connection.execute("SELECT value FROM about WHERE key = 'indexed'").fetchone()
    return int(row[0]) if row is not None and row[0].isdigit() and _exists(connection) else 0


def _last(connection: sqlite3.Connection) -> int:
    """The number of the last node that there ever was."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'nodes'").fetchone()
    return row[0] if row is not None and isinstance(row[0], int) else 0


def _said(row: Any) -> str:
    """Folded as the words of a search are: the index has its own ideas of case and accents, and other ones."""
    try:
        return fold(extract_text(json.loads(row))).encode("utf-8", "replace").decode()
    except (TypeError, ValueError, RecursionError, AttributeError):
        return ""  # damaged: whoever loads it is told
