"""Reading the plain dicts of the commonest shapes without pydantic: words, calls with their arguments as JSON, schemas.

A conversation arrives as hundreds of such dicts. Whatever is not exactly of these shapes is None here, and read by
pydantic, which also says what is wrong with it; what is read here is the same as pydantic would have made of it.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from pydantic_core import from_json, to_json

from ._base import NOTHING, FrozenDict, FrozenList, _put, freeze
from .parts import Part, TextContent, ToolCall


def plain_content(content: Any, calls: Any) -> str | tuple[Part, ...] | None:
    """The content of a message, from what stands under `content` and `tool_calls`."""
    if content is None and calls:
        content = ""
    if type(content) is str:
        if calls is None:
            return content
        parts: list[Part] = [TextContent.trusted(text=content)] if content else []
    elif type(content) is list and content and calls is None:
        parts = []
        for block in content:
            if type(block) is not dict or len(block) != 2 or block.get("type") != "text":
                return None
            if type(text := block.get("text")) is not str:
                return None
            parts.append(TextContent.trusted(type="text", text=text))
        return tuple(parts)
    else:
        return None
    if type(calls) is not list or not calls:
        return None
    for call in calls:
        if (read := _plain_call(call)) is None:
            return None
        parts.append(read)
    return tuple(parts)


def _plain_call(call: Any) -> ToolCall | None:
    """`{"id": …, "type": "function", "function": {"name": …, "arguments": …}}`."""
    if type(call) is not dict or len(call) != 3 or call.get("type") != "function":
        return None
    function = call.get("function")
    if type(function) is not dict or len(function) != 2 or "arguments" not in function:
        return None
    id, name, arguments = call.get("id"), function.get("name"), _plain_arguments(function["arguments"])
    if type(id) is not str or type(name) is not str or arguments is None:
        return None
    return ToolCall.trusted(type="tool_call", id=id, name=name, arguments=arguments)


def _plain_arguments(arguments: Any) -> FrozenDict | None:
    if type(arguments) is str:
        if not arguments:
            return NOTHING  # type: ignore[no-any-return]  # an empty FrozenDict
        try:
            arguments = from_json(arguments, allow_inf_nan=False)
        except ValueError:
            return None
    elif type(arguments) is not dict or set(map(type, arguments)) - {str}:
        return None
    try:
        return freeze(arguments) if type(arguments) is dict else None
    except RecursionError:
        return None


def plain_object(value: dict[str, Any]) -> tuple[FrozenDict, bytes] | None:
    """An object frozen, and written as JSON while it is still a plain dict, which takes a sixth of the time.

    None if it holds anything but JSON: that may be written differently later, or be gone once it was written.
    """
    try:
        return _freeze(value), to_json(value)
    except (TypeError, ValueError, RecursionError):
        return None


_PLAIN = frozenset((str, int, bool, type(None)))


def _freeze(value: Any) -> Any:
    """`freeze` for what JSON can hold. TypeError for anything else."""
    kind = type(value)
    if kind is dict:
        frozen = FrozenDict(value)
        for key, item in frozen.items():
            inner = type(item)
            if inner is not str and inner not in _PLAIN:  # most are text
                _put(frozen, key, _freeze(item))  # a key that is there already: the dict keeps its shape
        return frozen
    if kind is list or kind is tuple:
        return FrozenList([item if type(item) in _PLAIN else _freeze(item) for item in value])
    if kind is float and isfinite(value):
        return value
    raise TypeError(f"no JSON: {kind.__name__}")
