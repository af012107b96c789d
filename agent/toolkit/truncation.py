"""Long output is cut in its middle, and says so: how much is missing, and where all of it is.

The beginning says what was done, the end how it went; so both are kept. Pure text, no files.
"""

from __future__ import annotations

from dataclasses import dataclass

from .state import TruncationConfig


@dataclass(frozen=True, slots=True)
class Cut:
    """The two ends of a text, and the size of what lay between."""

    head: str
    tail: str
    missing_chars: int
    missing_lines: int

    def text(self, original_chars: int, whereabouts: str) -> str:
        lost = f"{self.missing_chars:,} of {original_chars:,} characters ({self.missing_lines:,} lines)"
        marker = f"[… {lost} are left out here. {whereabouts}]"
        return "\n".join(part for part in (self.head.rstrip("\n"), marker, self.tail) if part)


def count_lines(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n") and bool(text))


def cut(text: str, config: TruncationConfig) -> Cut | None:
    """None for a text that may stay as it is."""
    if not config.enabled or (len(text) <= config.max_chars and count_lines(text) <= config.max_lines):
        return None
    most_chars, most_lines = max(config.max_chars, 0), max(config.max_lines, 0)
    lines = text.removesuffix("\n").split("\n")
    if len(lines) > most_lines:
        ending = len(lines) - most_lines // 2
        head, tail = "\n".join(lines[: most_lines - most_lines // 2]), "\n".join(lines[ending:])
    else:
        head, tail = text, text
    head = head[: most_chars - most_chars // 2]
    room = most_chars // 2
    tail = tail[-room:] if room else ""
    missing = max(len(text) - len(head) - len(tail), 0)
    return Cut(head, tail, missing, max(count_lines(text) - count_lines(head) - count_lines(tail), 0))
