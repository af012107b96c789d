"""Decoding of media, arguments, finish reasons, usage, log probabilities and citations.

Positions of citations are in bytes of UTF-8, relative to a part or to the whole text. A position is only used if the
quoted text is there; other citations have none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from ...types import (
    AudioContent,
    Citation,
    FinishReason,
    ImageContent,
    Origin,
    Part,
    Usage,
    VendorContent,
    VideoContent,
)
from ..codec import read_count

METADATA_KEYS = ("groundingMetadata", "citationMetadata", "urlContextMetadata", "continuationToken")
_SOURCES = ("web", "retrievedContext", "maps", "image")


def read_citations(metadata: Mapping[str, Any], texts: Sequence[str]) -> list[list[Citation]]:
    """Return the citations of each text, from a candidate's metadata."""
    cited: list[list[Citation]] = [[] for _ in texts]
    if not texts:
        return cited
    grounding = metadata.get("groundingMetadata") or {}
    chunks: Sequence[Mapping[str, Any]] = grounding.get("groundingChunks") or ()
    used: set[int] = set()
    for support in grounding.get("groundingSupports") or ():
        number, start, end = _locate(support.get("segment") or {}, texts)
        for index in support.get("groundingChunkIndices") or ():
            if 0 <= index < len(chunks):
                used.add(index)
                cited[number].append(_chunk_citation(chunks[index], start, end))
    last = _last_text(texts)
    cited[last].extend(_chunk_citation(chunk, None, None) for index, chunk in enumerate(chunks) if index not in used)
    quoted = metadata.get("citationMetadata") or {}
    for source in quoted.get("citationSources") or quoted.get("citations") or ():
        number, start, end = _locate(source, texts)
        cited[number].append(
            Citation(url=source.get("uri"), title=source.get("title"), start=start, end=end, provider_data=dict(source))
        )
    return cited


def _chunk_citation(chunk: Mapping[str, Any], start: int | None, end: int | None) -> Citation:
    source: Mapping[str, Any] = next((chunk[kind] for kind in _SOURCES if isinstance(chunk.get(kind), Mapping)), {})
    return Citation(
        url=source.get("uri") or source.get("sourceUri"),
        title=source.get("title"),
        quote=source.get("text"),
        start=start,
        end=end,
        provider_data=dict(chunk),
    )


def _locate(segment: Mapping[str, Any], texts: Sequence[str]) -> tuple[int, int | None, int | None]:
    """Return the index of the text with a segment, and the segment's start and end in it."""
    quoted = segment.get("text")
    first, last = segment.get("startIndex") or 0, segment.get("endIndex")
    if isinstance(first, int) and isinstance(last, int):
        if (joined_range := _character_range("".join(texts), first, last, quoted)) is not None:
            return _split_range(joined_range, texts)
        for number, text in enumerate(texts):
            if (text_range := _character_range(text, first, last, quoted)) is not None:
                return number, *text_range
    if isinstance(quoted, str) and quoted:
        for number, text in enumerate(texts):
            if (start := text.find(quoted)) >= 0:
                return number, start, start + len(quoted)
    return _last_text(texts), None, None


def _character_range(text: str, first: int, last: int, quoted: Any) -> tuple[int, int] | None:
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


def _split_range(range: tuple[int, int], texts: Sequence[str]) -> tuple[int, int, int]:
    """Convert a range in the joined texts to the index of a text and a range in it."""
    start, end = range
    for number, text in enumerate(texts):
        if start < len(text) or number == len(texts) - 1:
            return number, start, min(end, len(text))
        start, end = start - len(text), end - len(text)
    raise AssertionError("unreachable: there is at least one text")


def _last_text(texts: Sequence[str]) -> int:
    """Return the index of the last nonempty text. An empty one with a signature may follow it."""
    return next((number for number in range(len(texts) - 1, -1, -1) if texts[number]), len(texts) - 1)


_MODALITY_DETAILS = (
    ("promptTokensDetails", "input_{}_tokens"),
    ("cacheTokensDetails", "cache_{}_read_tokens"),
    ("candidatesTokensDetails", "output_{}_tokens"),
)
"""Lists of counts by modality, and the names of the details."""


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Read `usageMetadata`. The counts exclude thoughts and server-side tools, which are added."""
    thoughts, tools = read_count(usage, "thoughtsTokenCount"), read_count(usage, "toolUsePromptTokenCount")
    total = read_count(usage, "totalTokenCount")
    details = {"input_tool_tokens": tools}
    for key, name in _MODALITY_DETAILS:
        if entries := usage.get(key):
            details |= _modality_counts(entries, name)
    counted = Usage.from_counts(
        read_count(usage, "promptTokenCount"),
        read_count(usage, "candidatesTokenCount") + thoughts,
        cache_read=read_count(usage, "cachedContentTokenCount"),
        reasoning=thoughts,
        total=None if tools else total,
        details=details,
    )
    return counted.model_copy(update={"total_tokens": max(total, counted.total_tokens)}) if tools else counted


def _modality_counts(entries: Any, name: str) -> dict[str, int]:
    """Return the counts of modalities other than text, by the name of the detail."""
    counts: dict[str, int] = {}
    for entry in entries if isinstance(entries, list) else ():
        modality = entry.get("modality") if isinstance(entry, dict) else None
        if isinstance(modality, str) and modality != "TEXT":
            key = name.format(modality.lower())
            counts[key] = counts.get(key, 0) + read_count(entry, "tokenCount")
    return counts


READ_USAGE_KEYS = frozenset(
    (
        "cacheTokensDetails",
        "cachedContentTokenCount",
        "candidatesTokenCount",
        "candidatesTokensDetails",
        "promptTokenCount",
        "promptTokensDetails",
        "serviceTier",
        "thoughtsTokenCount",
        "toolUsePromptTokenCount",
        "toolUsePromptTokensDetails",
        "totalTokenCount",
    )
)


def read_logprobs(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    tops = result.get("topCandidates") or ()
    read: list[dict[str, Any]] = []
    for position, chosen in enumerate(result.get("chosenCandidates") or ()):
        top = (tops[position].get("candidates") or ()) if position < len(tops) else ()
        read.append({**_token(chosen), "top": [_token(candidate) for candidate in top]})
    return read


def _token(candidate: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": candidate.get("token") or "", "logprob": candidate.get("logProbability") or 0.0}


_PATH_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\[\"((?:[^\"\\]|\\.)*)\"\]")


def set_argument(arguments: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Set an argument by its JSON path, such as $.city or $.stops[0].name. Pieces of a string are joined."""
    steps = [
        int(match[2]) if match[2] is not None else next(name for name in match.group(1, 3, 4) if name is not None)
        for match in _PATH_STEP.finditer(piece["jsonPath"].removeprefix("$"))
    ]
    if not steps or isinstance(steps[0], int):
        raise ValueError("the JSON path has no argument name")
    where: Any = arguments
    for step, following in pairwise(steps):
        where = _entry(where, step, [] if isinstance(following, int) else {})
    last = steps[-1]
    value = next(
        (piece[key] for key in ("stringValue", "numberValue", "boolValue") if piece.get(key) is not None), None
    )
    if value is None and "nullValue" not in piece:
        return  # the end of the pieces for this path
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str):
        value = _entry(where, last, "") + value
    _entry(where, last, value)
    where[last] = value


def _entry(where: Any, step: str | int, missing: Any) -> Any:
    """Return the value at a step of a path. `missing` is added if there is none."""
    if isinstance(step, int):
        if step > len(where):
            raise ValueError("the path skips an item of a list")
        if step == len(where):
            where.append(missing)
        return where[step]
    return where.setdefault(step, missing)


UNSPECIFIED = "FINISH_REASON_UNSPECIFIED"
"""Some servers send it before the end."""
_FILTERED: FinishReason = "content_filter"
_FINISH_REASONS: dict[str, FinishReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": _FILTERED,
    "RECITATION": _FILTERED,
    "BLOCKLIST": _FILTERED,
    "PROHIBITED_CONTENT": _FILTERED,
    "SPII": _FILTERED,
    "MODEL_ARMOR": _FILTERED,
    "IMAGE_SAFETY": _FILTERED,
    "IMAGE_PROHIBITED_CONTENT": _FILTERED,
    "IMAGE_RECITATION": _FILTERED,
    "CONTINUATION": "pause",
    "MALFORMED_FUNCTION_CALL": "error",
    "MALFORMED_RESPONSE": "error",
    "UNEXPECTED_TOOL_CALL": "error",
    "TOO_MANY_TOOL_CALLS": "error",
}
_CALL_REASONS = frozenset(("STOP", "UNEXPECTED_TOOL_CALL", "FUNCTION_CALL"))
"""Finish reasons of responses with calls."""


def read_stop_reason(reason: str | None, *, called: bool, blocked: bool) -> FinishReason:
    if reason is None:
        return _FILTERED if blocked else "other"
    if called and reason in _CALL_REASONS:
        return "tool_calls"
    return _FINISH_REASONS.get(reason, "other")


SHARED_KEYS = frozenset(("thought", "thoughtSignature"))
"""Keys that all kinds of parts may have."""


def find_kind(part: Mapping[str, Any]) -> str | None:
    """Return the key of a part's data."""
    return next((key for key, value in part.items() if value is not None and key not in SHARED_KEYS), None)


def read_other_part(part: Mapping[str, Any], kind: str, origin: Origin) -> Part:
    """Decode generated media, or a vendor-specific part."""
    media = part.get("inlineData") or part.get("fileData") or {}
    data, url = media.get("data"), media.get("fileUri")
    shown = not part.get("thought") and isinstance(url if data is None else data, str)
    media_type = str(media.get("mimeType") or "")
    signature = part.get("thoughtSignature")
    opaque = {"thoughtSignature": signature} if signature else None
    signed_origin = origin if opaque else None
    if shown and media_type.startswith("image/"):
        return ImageContent(
            image_data=data, image_url=url, media_type=media_type, provider_data=opaque, origin=signed_origin
        )
    if shown and media_type.startswith("audio/") and data is not None:
        return AudioContent(data=data, media_type=media_type, provider_data=opaque, origin=signed_origin)
    if shown and media_type.startswith("video/"):
        return VideoContent(data=data, url=url, media_type=media_type, provider_data=opaque, origin=signed_origin)
    return VendorContent(kind=kind, provider_data=dict(part), origin=origin)
