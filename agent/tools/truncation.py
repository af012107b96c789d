"""Truncation of long texts to the limits of a `TruncationConfig`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class OutputLimits(Protocol):
    """The fields of a `TruncationConfig`."""

    max_chars: int
    max_lines: int
    enabled: bool


def count_lines(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n") and bool(text))


def split_long_text(text: str, limits: OutputLimits) -> tuple[str, str] | None:
    """Return the start and the end of a text, without the middle; None if it is within the limits."""
    if not limits.enabled or (len(text) <= limits.max_chars and count_lines(text) <= limits.max_lines):
        return None
    most_chars, most_lines = max(limits.max_chars, 0), max(limits.max_lines, 0)
    lines = text.removesuffix("\n").split("\n")
    if len(lines) > most_lines:
        ending = len(lines) - most_lines // 2
        head, tail = "\n".join(lines[: most_lines - most_lines // 2]), "\n".join(lines[ending:])
    else:
        head, tail = text, text
    room = most_chars // 2
    return head[: most_chars - room], tail[-room:] if room else ""


def omit_middle(text: str, limits: OutputLimits, store: Callable[[str], str] | None = None) -> str:
    """Replace the middle of a text beyond the limits by a note; `store` keeps the text and returns where."""
    parts = split_long_text(text, limits)
    if parts is None:
        return text
    head, tail = parts
    missing = max(len(text) - len(head) - len(tail), 0)
    missing_lines = max(count_lines(text) - count_lines(head) - count_lines(tail), 0)
    lost = f"{missing:,} of {len(text):,} characters ({missing_lines:,} lines)"
    where = "" if store is None else f" {store(text)}"
    return "\n".join(part for part in (head.rstrip("\n"), f"[… {lost} are omitted.{where}]", tail) if part)
