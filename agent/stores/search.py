"""The text in a node, and how words are found in it: for stores without an index, and to check what an index says."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from .base import NodeRow

_TEXTS = ("text", "refusal", "code", "old_code", "new_code")
_NESTED = "content"
"""Of a message, its parts; of a part, what a tool gave back."""
_BEFORE, _AFTER = 40, 120


def extract_text(row: NodeRow) -> str:
    """What was said in a node: the text of messages, of tools' results, of prompts. Thoughts and data are left out."""
    found: list[str] = []
    data = row.get("data")
    waiting: list[Any] = [data.get(_NESTED)] if isinstance(data, Mapping) else []
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, list | tuple):
            waiting += reversed(item)
        elif isinstance(item, Mapping):
            waiting.append(item.get(_NESTED))
            waiting += [item[key] for key in reversed(_TEXTS) if isinstance(item.get(key), str)]
    return "\n".join(found)


def fold(text: str) -> str:
    """Without case and accents."""
    if text.isascii():
        return text.lower()
    apart = unicodedata.normalize("NFKD", text.casefold())
    return "".join(char for char in apart if not unicodedata.combining(char)).casefold()


class SearchTerms:
    """What is searched for: words that must all be there."""

    def __init__(self, text: str) -> None:
        # NUL ends a text in C, and so in the query of an index.
        self.words = tuple(dict.fromkeys(fold(text).replace("\0", " ").split()))

    def __bool__(self) -> bool:
        return bool(self.words)

    def are_in(self, text: str) -> bool:
        folded = fold(text)
        return all(word in folded for word in self.words)

    def excerpt(self, text: str) -> str:
        """The text around the first word that is found, in one line."""
        places = [found.start() for word in self.words if (found := re.search(re.escape(word), text, re.IGNORECASE))]
        start = max(0, min(places, default=0) - _BEFORE)
        part = " ".join(text[start : start + _BEFORE + _AFTER].split())
        return f"{'…' if start else ''}{part}{'…' if start + _BEFORE + _AFTER < len(text) else ''}"
