"""From whatever a tool returned, or raised, to what a model reads.

A tool may return anything: text, values, models, pictures, half a gigabyte, an object that contains itself. What comes
out of here can always be written as JSON, is never longer than the limit, and shows no traceback and no directory of
this machine.
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

from ..types import AudioContent, ContentPart, DocumentContent, ImageContent, TextContent, ToolResult, freeze
from .base import AgentToolResult, ArgumentsError, ToolError

_DEEPEST = 64
_LONGEST_DESCRIPTION = 2_000
_MOST_BITS = 10_000
"""Python refuses to write down integers that are much longer, and so do other readers of JSON."""
_LISTED = (list, tuple, set, frozenset, deque, range, GeneratorType, KeysView, ValuesView, ItemsView)
_CANNOT_BE_WRITTEN = (PydanticSerializationError, ValueError, TypeError, RecursionError, AttributeError, KeyError)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
Binary: TypeAlias = bytes | bytearray | memoryview


class Sample:
    """A value as JSON data: dicts with text as keys, lists, text, numbers, truths and None.

    Args:
        value: Anything. What JSON has nothing for says what it is.
        room: Characters that its JSON may take, roughly.
    """

    __slots__ = ("_above", "_left", "cut", "data")

    def __init__(self, value: Any, room: int) -> None:
        self._left = room
        self._above: set[int] = set()
        self.cut = False
        """Whether the room was too small for it."""
        self.data: Any = self._of(value, 0)

    @property
    def finite(self) -> Any:
        """The data as every reader of JSON takes it: numbers that are none are text."""
        return _finite(self.data)

    def _of(self, value: Any, depth: int) -> Any:
        if isinstance(value, Enum):
            value = value.value
        if value is None or isinstance(value, bool):
            self._left -= 4
            return value
        if isinstance(value, str):
            return self._text(str.__str__(value))  # not what a subclass makes of it
        if isinstance(value, float):
            self._left -= 8
            return float.__float__(value)
        if isinstance(value, int):
            return self._integer(int.__int__(value))
        if isinstance(value, Binary):
            self.cut = self.cut or size_of(value) > self._left
            return self._text(text_of(value, self._left))
        if id(value) in self._above:
            return self._text("[contains itself]")
        if depth >= _DEEPEST:
            return self._text("[nested too deeply]")
        self._above.add(id(value))
        try:
            return self._inside(value, depth + 1)
        finally:
            self._above.discard(id(value))

    def _inside(self, value: Any, depth: int) -> Any:
        if isinstance(value, Mapping):
            return self._object(value.items(), depth)
        if isinstance(value, _LISTED):
            return [self._of(item, depth) for item in self._as_far_as_fits(value)]
        if is_dataclass(value) and not isinstance(value, type | BaseModel):
            return self._object(((each.name, getattr(value, each.name, None)) for each in fields(value)), depth)
        return self._of_other_kind(value, depth)

    def _object(self, items: Iterable[tuple[Any, Any]], depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, item in self._as_far_as_fits(items):
            name = str(self._of(key, _DEEPEST - 2))
            while name in made:  # as in {1: …, "1": …}
                name += "_"
            made[name] = self._of(item, depth)
        return made

    def _as_far_as_fits(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            if self._left <= 0:
                self.cut = True
                return
            self._left -= 2
            yield item

    def _of_other_kind(self, value: Any, depth: int) -> Any:
        """Dates, decimals, models: what pydantic knows how to write."""
        if iscoroutine(value):
            value.close()  # nobody will await it, and Python would complain about that much later
        try:
            plain = to_jsonable_python(value, fallback=described, bytes_mode="base64", inf_nan_mode="constants")
        except _CANNOT_BE_WRITTEN:
            plain = described(value)
        return self._of(plain, depth)

    def _integer(self, number: int) -> int | str:
        if number.bit_length() > _MOST_BITS:
            return self._text(f"[an integer of {number.bit_length()} bits]")
        self._left -= 1 + number.bit_length() // 4
        return number

    def _text(self, text: str) -> str:
        room = max(self._left, 0)
        self._left -= 2 + len(text)
        self.cut = self.cut or len(text) > room
        return clean(text[:room])


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not isfinite(data):
        return "NaN" if isnan(data) else "Infinity" if data > 0 else "-Infinity"
    if isinstance(data, list):
        return [_finite(item) for item in data]
    if isinstance(data, dict):
        return {key: _finite(item) for key, item in data.items()}
    return data


def is_finite(data: Any) -> bool:
    """Whether every number in JSON data is one."""
    if isinstance(data, float):
        return isfinite(data)
    if isinstance(data, dict):
        return all(map(is_finite, data.values()))
    return not isinstance(data, list) or all(map(is_finite, data))


def clean(text: str) -> str:
    """Text that can be encoded: halves of characters become question marks, NUL is left out."""
    if "\0" in text:
        text = text.replace("\0", "")
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def size_of(data: Binary) -> int:
    return data.nbytes if isinstance(data, memoryview) else len(data)


def text_of(data: Binary, room: int) -> str:
    """Bytes that are text, as text, as far as there is room; others are only described: nobody reads base64."""
    size = size_of(data)
    flat = data.tobytes() if isinstance(data, memoryview) and not data.c_contiguous else data
    piece = bytes(memoryview(flat).cast("B")[: max(room, 0) + 1]) if size else b""
    try:
        return clean(piece.decode("utf-8"))
    except UnicodeDecodeError as error:
        if len(piece) < size and error.start >= len(piece) - 3:  # cut off in the middle of a character
            return clean(piece[: error.start].decode("utf-8"))
        return f"[{size} bytes of binary data]"


def described(value: Any) -> str:
    """What a value says of itself, without where in memory it is."""
    try:
        words = repr(value)[:_LONGEST_DESCRIPTION]
    except RecursionError:
        return f"<{type(value).__name__} that contains itself>"
    except KeyboardInterrupt:
        raise
    except BaseException:  # it may be as broken as the tool that returned it
        return f"<{type(value).__name__}>"
    return without_addresses(words)


def without_addresses(text: str) -> str:
    return _ADDRESS.sub("", text)


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


_MOST_FIELDS = 10
_LONGEST_REASON = 300
_LONGEST_PLACE = 200

_WITHOUT_INPUT = {
    "uuid_parsing": "Input should be a valid UUID",
    "bytes_invalid_encoding": "Data should be valid base64",
    "json_invalid": "Input is nested too deeply",  # it was written as JSON by ourselves: nothing else can be wrong
}
"""Problems in whose usual description a piece of the input is quoted."""


def explained(error: ValidationError, given: Mapping[str, Any], names: Sequence[str], rest: str | None) -> str:
    """All that is wrong.

    Args:
        given: The arguments.
        names: The parameters that there are.
        rest: Where in `given` the arguments are that have no parameter of their own name.
    """
    reasons: dict[str, list[str]] = {}
    for problem in error.errors(include_url=False, include_input=False):
        place = _place(problem["loc"], given, problem["type"])
        if rest is not None and place[:1] == [rest]:
            place = place[1:]
        listed = reasons.setdefault(".".join(place)[:_LONGEST_PLACE] or "arguments", [])
        if (reason := _reason(problem, names)) not in listed:
            listed.append(reason)
    # Several reasons in one place are the variants of a union, of which none fits.
    lines = [f"{place}: {' or '.join(listed)}" for place, listed in reasons.items()]
    if len(lines) > _MOST_FIELDS:
        lines[_MOST_FIELDS:] = [f"and {len(lines) - _MOST_FIELDS} more fields"]
    return "; ".join(lines)


def _place(location: Sequence[str | int], given: Any, kind: str) -> list[str]:
    """The way to the problem in the arguments. pydantic's own also names the variants of unions it has tried."""
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
    kind, about = problem["type"], problem.get("ctx", {})
    if kind == "extra_forbidden" and len(problem["loc"]) == 1:
        return f"no such parameter; it takes {', '.join(names) or 'none'}"
    if kind == "union_tag_invalid":
        return f"{about['discriminator']} should be one of {about['expected_tags']}"
    return _WITHOUT_INPUT.get(kind) or str(problem["msg"])[:_LONGEST_REASON]
