"""A table in plain text: for people who print a value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they must be; a column in which nothing stands is left out."""
    lines = [tuple(head), *(tuple(" ".join(cell.split()) for cell in row) for row in rows)]
    used = [index for index in range(len(head)) if len(lines) == 1 or any(line[index] for line in lines[1:])]
    widths = {index: max(len(line[index]) for line in lines) for index in used}
    return "\n".join("  ".join(line[index].ljust(widths[index]) for index in used).rstrip() for line in lines)
