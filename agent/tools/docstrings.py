"""What a docstring says: what a function does, and what each of its parameters means.

It may be written in any of the four usual styles. The one that finds most in it is taken to be meant. Nothing here
knows the function itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from docstring_parser import DocstringMeta, ParseError, epydoc, google, numpydoc, rest

if TYPE_CHECKING:
    from docstring_parser import Docstring

_ADVICE = ("Note", "Notes", "Warning", "Warnings", "Important", "Caution", "Hint", "Tip")
"""Sections that say how to use the function, and so belong to what it does."""


@dataclass(frozen=True, slots=True)
class Docs:
    description: str = ""
    """The summary and the text after it, without the sections about parameters, results and errors."""
    parameters: Mapping[str, str] = field(default_factory=dict)


def read_docstring(text: str | None) -> Docs:
    if not text or not text.strip():
        return Docs()
    readings = [reading for read in _styles() if (reading := _read(read, text)) is not None]
    best = max(readings, key=_findings, default=None)
    if best is None or not _findings(best):
        # Words before a colon that no style knows may still look like a section. They are part of the text.
        return Docs(text.strip())
    paragraphs = (best.short_description, best.long_description, *_advice(best))
    gap = "\n\n" if best.blank_after_short_description else "\n"
    first, rest = paragraphs[0], "\n\n".join(part for part in paragraphs[1:] if part)
    return Docs(gap.join(part for part in (first, rest) if part), dict(_parameters(best)))


def _styles() -> Iterator[Callable[[str], Docstring]]:
    """A parser for each style. They take time to load, and programs without tools do not need them."""
    advice = [google.Section(title, "notes", google.SectionType.SINGULAR) for title in _ADVICE]
    yield google.GoogleParser([*google.DEFAULT_SECTIONS, *advice]).parse
    yield numpydoc.parse
    yield rest.parse
    yield epydoc.parse


def _read(read: Callable[[str], Docstring], text: str) -> Docstring | None:
    try:
        return read("\n" + text)  # or the parser takes the indentation below a title in the first line for the margin
    except (ParseError, ValueError, IndexError, KeyError):
        return None  # it is written in another style, or in none


def _findings(reading: Docstring) -> int:
    """How much of it a style has understood. What it merely found is not counted."""
    return sum(type(found) is not DocstringMeta for found in reading.meta)


def _advice(reading: Docstring) -> Iterator[str]:
    for found in reading.meta:
        if found.args and found.args[0] in ("notes", "warnings") and found.description:
            yield f"{found.args[0].removesuffix('s').capitalize()}: {found.description}"


def _parameters(reading: Docstring) -> Iterator[tuple[str, str]]:
    for found in reading.params:
        for name in found.arg_name.split(","):  # numpydoc describes several at once
            if found.description:
                yield name.strip().lstrip("*"), found.description.strip()
