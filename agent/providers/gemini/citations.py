"""Sources of an answer: what Gemini calls grounding and citations, as citations on the text they belong to.

Gemini counts bytes of UTF-8, and is not clear about where it begins to count, so a place is believed only if the words
found there are the words it quotes. What cannot be placed is kept without a place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...types import Citation

_SOURCES = ("web", "retrievedContext", "maps", "image")


def citations_of(metadata: Mapping[str, Any], texts: Sequence[str]) -> list[list[Citation]]:
    """The citations of each text, from everything a candidate says about its sources."""
    cited: list[list[Citation]] = [[] for _ in texts]
    if not texts:
        return cited
    grounding = metadata.get("groundingMetadata") or {}
    chunks: Sequence[Mapping[str, Any]] = grounding.get("groundingChunks") or ()
    used: set[int] = set()
    for support in grounding.get("groundingSupports") or ():
        number, start, end = _place(support.get("segment") or {}, texts)
        for index in support.get("groundingChunkIndices") or ():
            if 0 <= index < len(chunks):
                used.add(index)
                cited[number].append(_from_chunk(chunks[index], start, end))
    last = _last_said(texts)
    cited[last].extend(_from_chunk(chunk, None, None) for index, chunk in enumerate(chunks) if index not in used)
    quoted = metadata.get("citationMetadata") or {}
    for source in quoted.get("citationSources") or quoted.get("citations") or ():
        number, start, end = _place(source, texts)
        cited[number].append(
            Citation(url=source.get("uri"), title=source.get("title"), start=start, end=end, provider_data=dict(source))
        )
    return cited


def _from_chunk(chunk: Mapping[str, Any], start: int | None, end: int | None) -> Citation:
    source: Mapping[str, Any] = next((chunk[kind] for kind in _SOURCES if isinstance(chunk.get(kind), Mapping)), {})
    return Citation(
        url=source.get("uri") or source.get("sourceUri"),
        title=source.get("title"),
        quote=source.get("text"),
        start=start,
        end=end,
        provider_data=dict(chunk),
    )


def _place(segment: Mapping[str, Any], texts: Sequence[str]) -> tuple[int, int | None, int | None]:
    """Which text a segment lies in, and its characters there."""
    quoted = segment.get("text")
    first, last = segment.get("startIndex") or 0, segment.get("endIndex")
    if isinstance(first, int) and isinstance(last, int):
        together = "".join(texts)
        found = _characters(together, first, last, quoted)
        if found is not None:
            return _within(found, texts)
        for number, text in enumerate(texts):
            found = _characters(text, first, last, quoted)
            if found is not None:
                return number, *found
    if isinstance(quoted, str) and quoted:
        for number, text in enumerate(texts):
            if (start := text.find(quoted)) >= 0:
                return number, start, start + len(quoted)
    return _last_said(texts), None, None


def _characters(text: str, first: int, last: int, quoted: Any) -> tuple[int, int] | None:
    data = text.encode("utf-8", "surrogatepass")
    if not 0 <= first <= last <= len(data):
        return None
    try:
        before, words = data[:first].decode(), data[first:last].decode()
    except UnicodeDecodeError:
        return None
    if isinstance(quoted, str) and quoted and words != quoted:
        return None
    return len(before), len(before) + len(words)


def _within(place: tuple[int, int], texts: Sequence[str]) -> tuple[int, int, int]:
    """A place in all texts together as a place in one of them."""
    start, end = place
    for number, text in enumerate(texts):
        if start < len(text) or number == len(texts) - 1:
            return number, start, min(end, len(text))
        start, end = start - len(text), end - len(text)
    raise AssertionError("there is a last text")


def _last_said(texts: Sequence[str]) -> int:
    """The last text that says something; a signature may follow it on an empty one."""
    return next((number for number in range(len(texts) - 1, -1, -1) if texts[number]), len(texts) - 1)
