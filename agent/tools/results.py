"""Conversion of return values and exceptions of tools to tool results.

A tool may return anything: text, models, images, huge or self-referencing values. The result is always JSON
serializable and within the size limit, and contains no tracebacks or local paths.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from inspect import iscoroutine
from math import isfinite, isnan
from types import GeneratorType
from typing import Any, TypeAlias

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from ..types import (
    AudioContent,
    ContentPart,
    DocumentContent,
    FileContent,
    ImageContent,
    SearchResultContent,
    TextContent,
    ToolLoopConfig,
    ToolResult,
    VideoContent,
    freeze,
)
from ..types._base import is_finite as is_finite
from .base import AgentToolResult, ArgumentsError, Tool, ToolError, omit_middle

_MAX_DEPTH = 64
_MAX_DESCRIPTION = 2_000
_MAX_INTEGER_BITS = 10_000
"""Python and other JSON parsers reject much longer integers."""
_LIST_TYPES = (list, tuple, set, frozenset, deque, range, GeneratorType, KeysView, ValuesView, ItemsView)
_SERIALIZATION_ERRORS = (PydanticSerializationError, ValueError, TypeError, RecursionError, AttributeError, KeyError)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
Binary: TypeAlias = bytes | bytearray | memoryview


class JsonSample:
    """A value as JSON data, truncated to a size.

    Args:
        value: Any value. A value without a JSON form is described as text.
        room: Approximate number of characters of its JSON.
    """

    __slots__ = ("_above", "_left", "cut", "data")

    def __init__(self, value: Any, room: int) -> None:
        self._left = room
        self._above: set[int] = set()
        self.cut: bool = False
        """Whether the value was truncated."""
        self.data: Any = self._convert(value, 0)

    @property
    def finite(self) -> Any:
        """The data with NaN and infinities as text."""
        return _replace_non_finite(self.data)

    def _convert(self, value: Any, depth: int) -> Any:
        if isinstance(value, Enum):
            value = value.value
        if value is None or isinstance(value, bool):
            self._left -= 4
            return value
        if isinstance(value, str):
            return self._convert_text(str.__str__(value))  # not the override of a subclass
        if isinstance(value, float):
            self._left -= 8
            return float.__float__(value)
        if isinstance(value, int):
            return self._convert_integer(int.__int__(value))
        if isinstance(value, Binary):
            self.cut = self.cut or binary_size(value) > self._left
            return self._convert_text(decode_binary(value, self._left))
        if id(value) in self._above:
            return self._convert_text("[circular reference]")
        if depth >= _MAX_DEPTH:
            return self._convert_text("[nested too deeply]")
        self._above.add(id(value))
        try:
            return self._convert_container(value, depth + 1)
        finally:
            self._above.discard(id(value))

    def _convert_container(self, value: Any, depth: int) -> Any:
        if isinstance(value, Mapping):
            return self._convert_mapping(value.items(), depth)
        if isinstance(value, _LIST_TYPES):
            return [self._convert(item, depth) for item in self._take_while_room(value)]
        if is_dataclass(value) and not isinstance(value, type | BaseModel):
            return self._convert_mapping(
                ((each.name, getattr(value, each.name, None)) for each in fields(value)), depth
            )
        return self._convert_other(value, depth)

    def _convert_mapping(self, items: Iterable[tuple[Any, Any]], depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, item in self._take_while_room(items):
            name = str(self._convert(key, _MAX_DEPTH - 2))
            while name in result:  # such as {1: …, "1": …}
                name += "_"
            result[name] = self._convert(item, depth)
        return result

    def _take_while_room(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            if self._left <= 0:
                self.cut = True
                return
            self._left -= 2
            yield item

    def _convert_other(self, value: Any, depth: int) -> Any:
        """Convert dates, decimals, models and everything else that pydantic serializes."""
        if iscoroutine(value):
            value.close()  # avoids the warning that it was never awaited
        try:
            data = to_jsonable_python(value, fallback=describe_value, bytes_mode="base64", inf_nan_mode="constants")
        except _SERIALIZATION_ERRORS:
            data = describe_value(value)
        return self._convert(data, depth)

    def _convert_integer(self, number: int) -> int | str:
        if number.bit_length() > _MAX_INTEGER_BITS:
            return self._convert_text(f"[an integer of {number.bit_length()} bits]")
        self._left -= 1 + number.bit_length() // 4
        return number

    def _convert_text(self, text: str) -> str:
        room = max(self._left, 0)
        self._left -= 2 + len(text)
        self.cut = self.cut or len(text) > room
        return sanitize_text(text[:room])


def _replace_non_finite(data: Any) -> Any:
    if isinstance(data, float) and not isfinite(data):
        return "NaN" if isnan(data) else "Infinity" if data > 0 else "-Infinity"
    if isinstance(data, list):
        return [_replace_non_finite(item) for item in data]
    if isinstance(data, dict):
        return {key: _replace_non_finite(item) for key, item in data.items()}
    return data


def sanitize_text(text: str) -> str:
    """Return encodable text: lone surrogates become question marks, NUL is removed."""
    if "\0" in text:
        text = text.replace("\0", "")
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def binary_size(data: Binary) -> int:
    return data.nbytes if isinstance(data, memoryview) else len(data)


def decode_binary(data: Binary, room: int) -> str:
    """Decode UTF-8 bytes up to a length; describe other binary data."""
    size = binary_size(data)
    buffer = data.tobytes() if isinstance(data, memoryview) and not data.c_contiguous else data
    piece = bytes(memoryview(buffer).cast("B")[: max(room, 0) + 1]) if size else b""
    try:
        return sanitize_text(piece.decode("utf-8"))
    except UnicodeDecodeError as error:
        if len(piece) < size and error.start >= len(piece) - 3:  # truncated within a character
            return sanitize_text(piece[: error.start].decode("utf-8"))
        return f"[{size} bytes of binary data]"


def describe_value(value: Any) -> str:
    """Return the repr of a value without memory addresses."""
    try:
        text = repr(value)[:_MAX_DESCRIPTION]
    except RecursionError:
        return f"<{type(value).__name__} with a cycle>"
    except KeyboardInterrupt:
        raise
    except BaseException:  # a broken __repr__ may raise anything
        return f"<{type(value).__name__}>"
    return _ADDRESS.sub("", text)


_CONTENT_TYPES = (
    TextContent,
    ImageContent,
    DocumentContent,
    AudioContent,
    VideoContent,
    FileContent,
    SearchResultContent,
)
_CONTENT_TYPE_NAMES = frozenset(("text", "image", "image_url", "document", "audio", "video", "file", "search_result"))
_MAX_ERROR_TEXT = 2_000
_MAX_TRACEBACK = 50_000
_MAX_MEDIA_BYTES = 10_000_000
_PART_OVERHEAD_BYTES = 20
_MAX_INSPECTED_ITEMS = 1_000
"""Number of list items inspected to detect content parts."""
_MAX_VALUE_CHARACTERS = 64 * 1024
"""Maximum size of a value's JSON that is kept beside its text."""


class ToolFailed(Exception):
    """A tool's exception as a message for the model.

    The message is computed where the tool ran: `__str__` of an exception may hang or raise.
    """


def render_result(value: Any, call_id: str, name: str, limit: int, truncation: Any = None) -> ToolResult:
    """Convert a tool's return value to a result. `truncation` is a `TruncationConfig` or None."""
    result: Any = None
    details: Any = None
    is_error = False
    if isinstance(value, ToolResult):
        content, cut, _ = _content(value.content or "", limit)
        result, details, is_error = to_frozen_json(value.result), value.details, value.is_error
    elif isinstance(value, AgentToolResult):
        content, cut, _ = _content(value.content or "", limit)
        details, is_error = value.details, value.is_error
    else:
        content, cut, result = _content(value, limit)
    if truncation is not None:
        content = _apply_truncation(content, truncation)
    return ToolResult(
        tool_call_id=call_id,
        name=name,
        content=_truncate_content(content, limit, cut=cut),
        result=result,
        details=to_frozen_json(details) if details else None,
        is_error=bool(is_error),
    )


def to_agent_result(value: Any, tool: Tool) -> AgentToolResult:
    """Convert a tool's return value to a list of content parts, with details."""
    result = render_result(value, "", tool.name, ToolLoopConfig().max_output_bytes, tool.truncation)
    content = [TextContent(result.content)] if isinstance(result.content, str) else list(result.content)
    return AgentToolResult(content, result.details or {}, result.is_error)


def _apply_truncation(content: str | Iterable[ContentPart], config: Any) -> str | Iterable[ContentPart]:
    if isinstance(content, str):
        return omit_middle(content, config)
    return (
        part.replace(text=omit_middle(part.text, config)) if isinstance(part, TextContent) else part for part in content
    )


def error_result(message: str, call_id: str, name: str, details: Any = None) -> ToolResult:
    """Return a result with an error message."""
    return ToolResult(
        tool_call_id=call_id,
        name=name,
        content=sanitize_text(message),
        is_error=True,
        details=to_frozen_json(details) if details else None,
    )


def to_frozen_json(value: Any, limit: int = _MAX_VALUE_CHARACTERS) -> Any:
    """Return frozen JSON data, or None if it is empty or too large for journals and sessions."""
    sample = JsonSample(value, limit)
    return None if sample.cut else freeze(sample.finite)


# Exceptions


def error_text(error: BaseException) -> str:
    """Return the message about an exception for the model: its type and text."""
    if isinstance(error, ToolFailed):
        return str(error)
    if isinstance(error, ToolError):
        return _message(error) or "The tool failed."
    if isinstance(error, ArgumentsError):
        return f"Invalid arguments: {_message(error)}"
    text = _type_and_message(error)
    if isinstance(error, BaseExceptionGroup):
        text = "; ".join((text, *map(_type_and_message, error.exceptions[:3])))
    return text[:_MAX_ERROR_TEXT]


def _type_and_message(error: BaseException) -> str:
    name = sanitize_text(type(error).__name__[:100])
    message = _validation_message(error) if isinstance(error, ValidationError) else _message(error)
    return f"{name}: {message}" if message else name


def _validation_message(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False, include_context=False)
    places = [(".".join(map(str, problem["loc"])), problem["msg"]) for problem in found[:10]]
    return sanitize_error_text("; ".join(f"{place}: {reason}" if place else reason for place, reason in places))


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # a broken __str__ may raise anything
        return ""
    return sanitize_error_text(text)


def sanitize_error_text(text: str) -> str:
    """Remove tracebacks, memory addresses and local directories from a message."""
    cleaned = _TRACEBACK.sub("", sanitize_text(text[:_MAX_TRACEBACK]))
    return strip_paths(_ADDRESS.sub("", cleaned)).strip()[:_MAX_ERROR_TEXT]


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


def strip_paths(text: str) -> str:
    """Shorten absolute paths to their last part: the model must not see local directories."""
    return _PATH.sub("", text)


# Return values


def _content(value: Any, limit: int) -> tuple[str | Iterable[ContentPart], bool, Any]:
    """Return the content for the model, whether it was truncated, and the value if it is kept."""
    if value is None:
        return "", False, None
    if isinstance(value, str):
        return sanitize_text(value[: limit + 1]), len(value) > limit, None
    if isinstance(value, Binary):
        return decode_binary(value, limit), binary_size(value) > limit, None
    if isinstance(value, ContentPart):
        return (_to_part(value, limit),), False, None
    if isinstance(value, list | tuple) and _has_content_parts(value):
        return (_to_part(part, limit) for part in value), False, None
    return _as_text(value, limit)


def _has_content_parts(values: Sequence[Any]) -> bool:
    """Whether a list holds content parts rather than data."""
    first = values[:_MAX_INSPECTED_ITEMS]
    return any(isinstance(value, ContentPart) for value in first) or (
        bool(first) and all(isinstance(value, dict) and _is_part_dict(value) for value in first)
    )


def _is_part_dict(value: Mapping[str, Any]) -> bool:
    kind = value.get("type")
    return isinstance(kind, str) and kind in _CONTENT_TYPE_NAMES


def _to_part(part: Any, limit: int) -> ContentPart:
    """Convert a list item to a content part. Parts that models do not accept in results become text."""
    if isinstance(part, dict) and _is_part_dict(part):
        with suppress(ValueError):
            part = ContentPart.model_validate(part)
    if isinstance(part, _CONTENT_TYPES) and _is_serializable(part):
        return part
    if isinstance(part, str):
        return TextContent(text=sanitize_text(part[: limit + 1]))
    text, cut, _ = _as_text(part, limit)
    return TextContent(text=_truncate_text(text, limit, cut=cut))


def _is_serializable(part: ContentPart) -> bool:
    try:
        part.model_dump_json(exclude={"image_data", "data", "text"})
    except (PydanticSerializationError, ValueError, RecursionError):
        return False
    return True


def _as_text(value: Any, limit: int) -> tuple[str, bool, Any]:
    """Convert a value to JSON text; also return whether it was truncated, and the value if it is small."""
    sample = JsonSample(value, limit + 1)
    data = sample.data
    text = data if isinstance(data, str) else to_json(data, inf_nan_mode="constants").decode()
    small = not sample.cut and len(text) <= _MAX_VALUE_CHARACTERS
    return text, sample.cut, freeze(sample.finite) if small else None


def _truncate_content(content: str | Iterable[Any], limit: int, *, cut: bool) -> str | Sequence[Any]:
    """Truncate content to the limit, with a note."""
    if isinstance(content, str):
        return _truncate_text(content, limit, cut=cut)
    left, media = limit, _MAX_MEDIA_BYTES
    kept: list[Any] = []
    for given in content:
        part: Any = given
        if part.text is None:
            size = len(getattr(part, "image_data", None) or getattr(part, "data", None) or b"")
            media -= size
            if media < 0:
                part = TextContent(text=f"[{part.type} of {size} bytes left out: too large]")
        text = sanitize_text((part.text or "")[: left + 1]).encode("utf-8")
        if len(text) > left:
            kept.append(TextContent(text=text[:left].decode("utf-8", "ignore") + _CUT.format(limit)))
            break
        left = max(0, left - len(text) - _PART_OVERHEAD_BYTES)
        kept.append(part if part.text is None else part.model_copy(update={"text": text.decode("utf-8")}))
    return tuple(kept)


_CUT = "\n[truncated: the output was longer than {} bytes]"


def _truncate_text(text: str, limit: int, *, cut: bool = False) -> str:
    """Truncate text to `limit` UTF-8 bytes, with a note."""
    if not cut and len(text) * 4 <= limit:
        return text
    encoded = text.encode("utf-8")
    if not cut and len(encoded) <= limit:
        return text
    return encoded[:limit].decode("utf-8", "ignore") + _CUT.format(limit)


_MAX_FIELDS = 10
_MAX_REASON = 300
_MAX_PLACE = 200

_REDACTED_MESSAGES = {
    "uuid_parsing": "Input should be a valid UUID",
    "bytes_invalid_encoding": "Data should be valid base64",
    "json_invalid": "Input is nested too deeply",  # the JSON is serialized here, so nothing else can fail
}
"""Messages for errors whose pydantic message quotes the input."""


def describe_argument_errors(
    error: ValidationError, given: Mapping[str, Any], names: Sequence[str], rest: str | None
) -> str:
    """Describe all argument errors for the model: each field with its problem, without values.

    Args:
        given: The arguments.
        names: The parameters.
        rest: The key in `given` of the arguments for `**kwargs`.
    """
    reasons: dict[str, list[str]] = {}
    for problem in error.errors(include_url=False, include_input=False):
        place = _place(problem["loc"], given, problem["type"])
        if rest is not None and place[:1] == [rest]:
            place = place[1:]
        listed = reasons.setdefault(".".join(place)[:_MAX_PLACE] or "arguments", [])
        if (reason := _reason(problem, names)) not in listed:
            listed.append(reason)
    # Several reasons for one field are the variants of a union, none of which matches.
    lines = [f"{place}: {' or '.join(listed)}" for place, listed in reasons.items()]
    if len(lines) > _MAX_FIELDS:
        lines[_MAX_FIELDS:] = [f"and {len(lines) - _MAX_FIELDS} more fields"]
    return "; ".join(lines)


def _place(location: Sequence[str | int], given: Any, kind: str) -> list[str]:
    """Return the path to a problem in the arguments, without the union variants in pydantic's path."""
    place: list[str] = []
    for number, step in enumerate(location, 1):
        match given:
            case dict() if step in given:
                given = given[step]
            case list() if isinstance(step, int) and step < len(given):
                given = given[step]
            case _ if kind.startswith("missing") and number == len(location):
                pass
            case _:
                continue
        place.append(str(step))
    return place


def _reason(problem: Any, names: Sequence[str]) -> str:
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "extra_forbidden" and len(problem["loc"]) == 1:
        return f"unknown parameter; valid parameters: {', '.join(names) or 'none'}"
    if kind == "union_tag_invalid":
        return f"{context['discriminator']} should be one of {context['expected_tags']}"
    return _REDACTED_MESSAGES.get(kind) or str(problem["msg"])[:_MAX_REASON]
