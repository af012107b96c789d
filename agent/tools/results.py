"""From whatever a tool returned, or raised, to what a model reads.

A tool may return anything: text, values, models, pictures, half a gigabyte, an object that contains itself. What comes
out of here can always be written as JSON, is never longer than the limit, and shows no traceback and no directory of
this machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_json

from ..types import (
    AudioContent,
    ContentPart,
    DocumentContent,
    ImageContent,
    TextContent,
    ToolResult,
    freeze,
)
from .base import AgentToolResult, ArgumentsError, ToolError
from .sampling import Binary, Sample, clean, size_of, text_of, without_addresses

_SHOWN = (TextContent, ImageContent, DocumentContent, AudioContent)
_SHOWN_TYPES = frozenset(("text", "image", "image_url", "document", "audio"))
_MOST_ERROR_TEXT = 2_000
_MOST_TRACEBACK = 50_000
_MOST_BYTES_OF_MEDIA = 10_000_000
_BYTES_AROUND_A_PART = 20
_LOOKED_AT = 1_000
"""Items of a list that are looked at to tell what it is."""
_KEPT_VALUE = 64 * 1024
"""Characters of a value's JSON up to which the value itself is kept beside its text."""


class ToolFailed(Exception):
    """What a tool raised, in the words that a model is told. They are found where the tool ran: an exception brings
    code of its own, which may hang or raise like any other of the tool's.
    """


def rendered(value: Any, call_id: str, name: str, limit: int) -> ToolResult:
    """The result of a call."""
    result: Any = None
    details: Any = None
    failed = False
    if isinstance(value, ToolResult):
        content, cut, _ = _content(value.content or "", limit)
        result, details, failed = as_json(value.result), value.details, value.is_error
    elif isinstance(value, AgentToolResult):
        content, cut, _ = _content(value.content or "", limit)
        details, failed = value.details, value.is_error
    else:
        content, cut, result = _content(value, limit)
    return ToolResult(
        tool_call_id=call_id,
        name=name,
        content=_within(content, limit, cut=cut),
        result=result,
        details=as_json(details) if details else None,
        is_error=bool(failed),
    )


def failed(message: str, call_id: str, name: str, details: Any = None) -> ToolResult:
    """The result of a call that brought none."""
    return ToolResult(
        tool_call_id=call_id,
        name=name,
        content=clean(message),
        is_error=True,
        details=as_json(details) if details else None,
    )


def as_json(value: Any, most: int = _KEPT_VALUE) -> Any:
    """Frozen JSON data, or None where there is none or too much of it: results are kept in journals and sessions."""
    sample = Sample(value, most)
    return None if sample.cut else freeze(sample.finite)


# What was raised


def error_text(error: BaseException) -> str:
    """What a model is told about an exception: its kind and its words, where they help."""
    if isinstance(error, ToolFailed):
        return str(error)
    if isinstance(error, ToolError):
        return _words(error) or "The tool failed."
    if isinstance(error, ArgumentsError):
        return f"The arguments do not fit: {_words(error)}"
    told = _kind_and_words(error)
    if isinstance(error, BaseExceptionGroup):
        told = "; ".join((told, *map(_kind_and_words, error.exceptions[:3])))
    return told[:_MOST_ERROR_TEXT]


def _kind_and_words(error: BaseException) -> str:
    kind = clean(type(error).__name__[:100])
    words = _problems(error) if isinstance(error, ValidationError) else _words(error)
    return f"{kind}: {words}" if words else kind


def _problems(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False, include_context=False)
    places = [(".".join(map(str, problem["loc"])), problem["msg"]) for problem in found[:10]]
    return for_a_model("; ".join(f"{place}: {reason}" if place else reason for place, reason in places))


def _words(error: BaseException) -> str:
    try:
        text = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # an exception may be as broken as the tool that raised it
        return ""
    return for_a_model(text)


def for_a_model(text: str) -> str:
    """Words of a program, without what only its programmer should see."""
    told = _TRACEBACK.sub("", clean(text[:_MOST_TRACEBACK]))
    return without_paths(without_addresses(told)).strip()[:_MOST_ERROR_TEXT]


_TRACEBACK = re.compile(
    r"""Traceback\ \(most\ recent\ call\ last\):[^\n]*   # its head
        (?:\n[ \t][^\n]*)*\n?                            # and its frames, which are indented""",
    re.VERBOSE,
)
_ROOT = r"(?:file://|[A-Za-z]:[\\/]|\\\\|~?/)"
_PATH = re.compile(
    rf"""(?<=['"])(?!//){_ROOT}[^'"\n]*[\\/](?=[^'"\\/\n]*['"])           # the directories of a path in quotes, or
        |(?<![\w/\\.%-])(?!(?<=:)//){_ROOT}(?:[^\s'"<>|:*?,;()\[\]]+[\\/])+  # of one that is not in a URL or a word""",
    re.VERBOSE,
)


def without_paths(text: str) -> str:
    """Absolute paths keep their last part only: where something lies on this machine is not the model's business."""
    return _PATH.sub("", text)


# What was returned


def _content(value: Any, limit: int) -> tuple[str | Iterable[ContentPart], bool, Any]:
    """What the model reads, whether something of it is left out, and the value if it is worth keeping beside that."""
    if value is None:
        return "", False, None
    if isinstance(value, str):
        return clean(value[: limit + 1]), len(value) > limit, None
    if isinstance(value, Binary):
        return text_of(value, limit), size_of(value) > limit, None
    if isinstance(value, ContentPart):
        return (_part(value, limit),), False, None
    if isinstance(value, list | tuple) and _has_parts(value):
        return (_part(part, limit) for part in value), False, None
    return _as_text(value, limit)


def _has_parts(values: Sequence[Any]) -> bool:
    """Whether these are pieces of content, rather than data: one of the first is, or all of them describe one."""
    first = values[:_LOOKED_AT]
    return any(isinstance(value, ContentPart) for value in first) or (
        bool(first) and all(isinstance(value, dict) and _describes_a_part(value) for value in first)
    )


def _describes_a_part(value: Mapping[str, Any]) -> bool:
    kind = value.get("type")
    return isinstance(kind, str) and kind in _SHOWN_TYPES


def _part(part: Any, limit: int) -> ContentPart:
    """A piece of content. What models are not shown in results, such as a call, is told in words."""
    if isinstance(part, dict) and _describes_a_part(part):
        with suppress(ValueError):
            part = ContentPart.model_validate(part)
    if isinstance(part, _SHOWN) and _can_be_written(part):
        return part
    if isinstance(part, str):
        return TextContent(text=clean(part[: limit + 1]))
    text, cut, _ = _as_text(part, limit)
    return TextContent(text=_shortened(text, limit, cut=cut))


def _can_be_written(part: ContentPart) -> bool:
    try:
        part.model_dump_json(exclude={"image_data", "data", "text"})
    except (PydanticSerializationError, ValueError, RecursionError):
        return False
    return True


def _as_text(value: Any, limit: int) -> tuple[str, bool, Any]:
    """JSON where there is a JSON for it, and else what the value says of itself; and the value, if it is small."""
    sample = Sample(value, limit + 1)
    data = sample.data
    text = data if isinstance(data, str) else to_json(data, inf_nan_mode="constants").decode()
    small = not sample.cut and len(text) <= _KEPT_VALUE
    return text, sample.cut, freeze(sample.finite) if small else None


def _within(content: str | Iterable[Any], limit: int, *, cut: bool) -> str | Sequence[Any]:
    """As much of the content as the limit allows; the rest is said to be missing."""
    if isinstance(content, str):
        return _shortened(content, limit, cut=cut)
    left, media = limit, _MOST_BYTES_OF_MEDIA
    kept: list[Any] = []
    for given in content:
        part: Any = given
        if part.text is None:
            size = len(getattr(part, "image_data", None) or getattr(part, "data", None) or b"")
            media -= size
            if media < 0:
                part = TextContent(text=f"[{part.type} of {size} bytes left out: too large]")
        text = clean((part.text or "")[: left + 1]).encode("utf-8")
        if len(text) > left:
            kept.append(TextContent(text=text[:left].decode("utf-8", "ignore") + _CUT.format(limit)))
            break
        left = max(0, left - len(text) - _BYTES_AROUND_A_PART)
        kept.append(part if part.text is None else part.model_copy(update={"text": text.decode("utf-8")}))
    return tuple(kept)


_CUT = "\n[cut off here: the output was longer than {} bytes]"


def _shortened(text: str, limit: int, *, cut: bool = False) -> str:
    """Never longer than the limit allows, in bytes, plus a note that says so."""
    if not cut and len(text) * 4 <= limit:
        return text
    encoded = text.encode("utf-8")
    if not cut and len(encoded) <= limit:
        return text
    return encoded[:limit].decode("utf-8", "ignore") + _CUT.format(limit)
