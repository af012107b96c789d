"""Values and the placeholders that stand for them: `[EMAIL_1]`, numbered in the order in which they are first met.

A conversation is numbered the same way in every turn, since it begins the same way. Going back, a placeholder is found
also where a stream has cut it into pieces; and in JSON it becomes the value as JSON writes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TypeAlias

from .patterns import Finder, Span

Key: TypeAlias = tuple[str, int | None]
"""Which of the texts of a stream: the type of its events, and their index."""

_SHAPE = re.compile(r"\[[A-Z][A-Z0-9_]*_[0-9]+\]")


def placeholders_in(text: str) -> list[str]:
    """What a text holds that looks like a placeholder."""
    return _SHAPE.findall(text) if "[" in text else []


class Table:
    """Values of one request and their placeholders.

    Args:
        finders: Kinds of values, and what finds them.
        taken: Placeholders that mean something else, since the request holds them already.
    """

    def __init__(self, finders: Sequence[tuple[str, Finder]], taken: frozenset[str] = frozenset()) -> None:
        self._finders = finders
        self._taken = taken
        self._numbers: dict[str, int] = {}
        self._placeholders: dict[str, str] = {}
        self._values: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._values)

    def hide(self, text: str) -> str:
        """The text with placeholders for all values that are found in it."""
        pieces: list[str] = []
        position = 0
        for start, end, kind in self._spans(text):
            pieces += (text[position:start], self._placeholder(text[start:end], kind))
            position = end
        if not pieces:
            return text
        pieces.append(text[position:])
        return "".join(pieces)

    def show(self, text: str, *, in_json: bool = False) -> str:
        """The text with the values in the place of their placeholders."""
        if "[" not in text:
            return text
        return _SHAPE.sub(lambda found: self._value(found[0], in_json), text)

    def shifts(self, text: str, *, in_json: bool = False) -> list[tuple[int, int]]:
        """Where `show` changes a text, and by how much it grows there: ends of placeholders, and characters."""
        return [
            (found.end(), len(self._value(found[0], in_json)) - len(found[0]))
            for found in _SHAPE.finditer(text)
            if found[0] in self._values
        ]

    def unfinished(self, text: str) -> int:
        """Where at the end of a text a placeholder begins that is cut off; the text's length if none does."""
        start = text.rfind("[")
        if start < 0:
            return len(text)
        tail = text[start:]
        begun = any(placeholder.startswith(tail) and placeholder != tail for placeholder in self._values)
        return start if begun else len(text)

    def _spans(self, text: str) -> list[tuple[int, int, str]]:
        """Where values are, in order. What overlaps is one value: no part of it may be left."""
        found = sorted(
            (*_within(span, text), rank, kind) for rank, (kind, find) in enumerate(self._finders) for span in find(text)
        )
        spans: list[tuple[int, int, str]] = []
        for start, end, _, kind in found:
            if spans and start < spans[-1][1]:
                begun, last, first_kind = spans[-1]
                spans[-1] = (begun, max(last, end), first_kind)
            elif start < end:
                spans.append((start, end, kind))
        return spans

    def _placeholder(self, value: str, kind: str) -> str:
        known = self._placeholders.get(value)
        if known is not None:
            return known
        while True:
            number = self._numbers[kind] = self._numbers.get(kind, 0) + 1
            placeholder = f"[{kind}_{number}]"
            if placeholder not in self._taken:
                break
        self._placeholders[value] = placeholder
        self._values[placeholder] = value
        return placeholder

    def _value(self, placeholder: str, in_json: bool) -> str:
        value = self._values.get(placeholder)
        if value is None:
            return placeholder
        return json.dumps(value, ensure_ascii=False)[1:-1] if in_json else value


def _within(span: Span, text: str) -> Span:
    start, end = span
    return max(0, start), min(end, len(text))


class Pieces:
    """Texts that arrive in pieces, several at a time: what may be half a placeholder is held back until more comes."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._held: dict[Key, str] = {}

    def feed(self, key: Key, piece: str, *, in_json: bool) -> str:
        """What can be said of a text now that another piece of it has come."""
        text = self._held.pop(key, "") + piece
        cut = self._table.unfinished(text)
        if cut < len(text):
            self._held[key] = text[cut:]
        return self._table.show(text[:cut], in_json=in_json)

    def holding(self) -> list[Key]:
        return list(self._held)

    def end(self, key: Key) -> str:
        """What was held back of a text after which nothing comes any more."""
        return self._held.pop(key, "")

    def clear(self) -> None:
        self._held.clear()
