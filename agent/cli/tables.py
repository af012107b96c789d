"""Tables and lists that fit into a terminal: measured in columns rather than characters, and narrower if they must be.

A pipe has no width, so what goes there is whole.
"""

from __future__ import annotations

import sys
import textwrap
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence

from .terminal import one_line, width

_GAP = 2
_LEAST = 12
"""As narrow as a column gets that may be cut."""


def room() -> int | None:
    """Columns there are on standard output; None if nobody looks at it."""
    return width() if sys.stdout.isatty() else None


def cells(text: str) -> int:
    """Columns that a text takes."""
    return len(text) if text.isascii() else sum(map(_cell, text))


def _cell(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):  # accents, and what joins emoji
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(line: str, most: int) -> str:
    """A line that fits into that many columns."""
    if cells(line) <= most:
        return line
    kept, used = "", 1
    for char in line:
        used += _cell(char)
        if used > most:
            break
        kept += char
    return f"{kept}…"


def table(
    columns: Mapping[str, Sequence[str]],
    most: int | None = None,
    *,
    right: Collection[str] = (),
    elastic: Collection[str] = (),
) -> list[str]:
    """Columns under their names, cleaned, the most important ones first.

    Args:
        columns: The cells of each.
        most: Columns of the terminal. If there is more, those named in `elastic` are cut, and then the last are left
            out. None for no limit.
        right: Those that end in line; the others begin in line.
    """
    cleaned = {name: [one_line(cell) for cell in column] for name, column in columns.items()}
    chosen = cleaned if most is None else _fitted(cleaned, most, elastic)
    widths = {name: _wide(name, column) for name, column in chosen.items()}
    lines = [tuple(chosen), *zip(*chosen.values(), strict=True)]
    return [
        (" " * _GAP)
        .join(_padded(cell, widths[name], name in right) for name, cell in zip(chosen, line, strict=True))
        .rstrip()
        for line in lines
    ]


def hanging(pairs: Iterable[tuple[str, str]], most: int | None = None, indent: str = "") -> list[str]:
    """Names, and beside each what there is to say about it, which goes on below itself."""
    told = [(one_line(name), one_line(text)) for name, text in pairs]
    wide = max((cells(name) for name, _ in told), default=0)
    beside = f"{indent}{' ' * (wide + _GAP)}"
    lines: list[str] = []
    for name, text in told:
        first, *more = wrapped(text, None if most is None else max(20, most - len(beside)))
        lines.append(f"{indent}{_padded(name, wide + _GAP)}{first}".rstrip())
        lines += [f"{beside}{line}" for line in more]
    return lines


def wrapped(text: str, most: int | None) -> list[str]:
    """A text in lines of that many columns; no word is broken."""
    if most is None:
        return [text]
    return textwrap.wrap(text, most, break_long_words=False, break_on_hyphens=False) or [""]


def _fitted(columns: Mapping[str, Sequence[str]], most: int, elastic: Collection[str]) -> dict[str, list[str]]:
    first = next(iter(columns))
    limits = {name: _wide(name, column) for name, column in columns.items()}
    limits[first] = min(limits[first], most)
    while (over := sum(limits.values()) + _GAP * (len(limits) - 1) - most) > 0:
        widest = max((name for name in limits if name in elastic), key=lambda name: limits[name], default=first)
        if widest in elastic and sum(max(0, limits[name] - _LEAST) for name in limits if name in elastic) >= over:
            limits[widest] -= 1
        elif len(limits) > 1:
            limits.popitem()
        else:
            break
    return {name: [cut(cell, limit) for cell in columns[name]] for name, limit in limits.items()}


def _wide(name: str, column: Sequence[str]) -> int:
    return max(len(name), *map(cells, column)) if column else len(name)


def _padded(cell: str, wide: int, right: bool = False) -> str:
    space = " " * (wide - cells(cell))
    return f"{space}{cell}" if right else f"{cell}{space}"
