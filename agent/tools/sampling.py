"""Any value as JSON data, as far as there is room for it.

What a tool returns may be a hundred megabytes, endless, deeper than any parser goes, or contain itself. Looking stops
where the room ends, so the time this takes depends on the room and not on the value.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from dataclasses import fields, is_dataclass
from enum import Enum
from inspect import iscoroutine
from math import isfinite, isnan
from types import GeneratorType
from typing import Any, TypeAlias

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

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
