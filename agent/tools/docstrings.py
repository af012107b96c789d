"""Docstrings: the description of a function and of its parameters, in any of the four usual styles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from docstring_parser import DocstringMeta, ParseError, epydoc, google, numpydoc, rest

if TYPE_CHECKING:
    from docstring_parser import Docstring

_ADVICE = ("Note", "Notes", "Warning", "Warnings", "Important", "Caution", "Hint", "Tip")
"""Docstring sections that become part of the description."""


@dataclass(frozen=True, slots=True)
class FunctionDocs:
    """The contents of a docstring."""

    description: str = ""
    """Summary and text, without the sections on parameters, results and errors."""
    parameters: Mapping[str, str] = field(default_factory=dict)


def read_docstring(text: str | None) -> FunctionDocs:
    """Parse a docstring in the style that recognizes the most sections."""
    if not text or not text.strip():
        return FunctionDocs()
    readings = [reading for read in _style_parsers() if (reading := _read(read, text)) is not None]
    best = max(readings, key=_count_findings, default=None)
    if best is None or not _count_findings(best):
        return FunctionDocs(text.strip())  # a word before a colon may look like a section of an unknown style
    paragraphs = (best.short_description, best.long_description, *_read_notes(best))
    gap = "\n\n" if best.blank_after_short_description else "\n"
    first, rest = paragraphs[0], "\n\n".join(part for part in paragraphs[1:] if part)
    return FunctionDocs(gap.join(part for part in (first, rest) if part), dict(_parameters(best)))


def _style_parsers() -> Iterator[Callable[[str], Docstring]]:
    """Yield a parser for each style."""
    advice = [google.Section(title, "notes", google.SectionType.SINGULAR) for title in _ADVICE]
    yield google.GoogleParser([*google.DEFAULT_SECTIONS, *advice]).parse
    yield numpydoc.parse
    yield rest.parse
    yield epydoc.parse


def _read(read: Callable[[str], Docstring], text: str) -> Docstring | None:
    try:
        return read("\n" + text)  # the parsers misread indentation below a title in the first line
    except (ParseError, ValueError, IndexError, KeyError):
        return None  # it is dumped in another style, or in none


def _count_findings(reading: Docstring) -> int:
    """Count the recognized sections."""
    return sum(type(found) is not DocstringMeta for found in reading.meta)


def _read_notes(reading: Docstring) -> Iterator[str]:
    for found in reading.meta:
        if found.args and found.args[0] in ("notes", "warnings") and found.description:
            yield f"{found.args[0].removesuffix('s').capitalize()}: {found.description}"


def _parameters(reading: Docstring) -> Iterator[tuple[str, str]]:
    for found in reading.params:
        for name in found.arg_name.split(","):  # numpydoc describes several at once
            if found.description:
                yield name.strip().lstrip("*"), found.description.strip()
