"""Byte splicing, for the codecs that do not build dicts yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from .. import errors
from ..types import Message, Part, ToolSpec, thaw
from ..types.notes import first_notes, kept_notes
from . import encoding

arguments_text = encoding.dump_arguments
as_json = encoding.dump_json
as_markdown = encoding.to_markdown
as_text = encoding.document_text
base64_text = encoding.encode_base64
check_extra = encoding.check_extra
data_url = encoding.data_url
fitting_id = encoding.normalize_id
fitting_name = encoding.normalize_name
home_of = encoding.request_origin
original_names = encoding.original_names
schema_name = encoding.schema_name

LARGE = 64 * 1024
"""Encoded messages beyond this are not kept: they hold images, and would double the memory of the conversation."""

NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
"""The schema of a tool without parameters: every vendor insists on an object."""


def cannot_take(part: Part, where: str, *, provider: str, model: str | None) -> errors.UnsupportedFeatureError:
    """The error for a part that the vendor has no place for."""
    return errors.UnsupportedFeatureError(
        f"{provider} does not take a part of type {part.type!r} {where}.",
        field="messages",
        fix="Leave it out, or use a provider that takes it.",
        provider=provider,
        model=model or None,
    )


def text_json(text: str) -> bytes:
    """`as_json` for text alone, of which most of a conversation consists."""
    try:
        return to_json(text)
    except (PydanticSerializationError, ValueError):
        return as_json(text)  # which says what is wrong


def words_json(message: Message, before: bytes, after: bytes) -> bytes | None:
    """A message of words alone, between two pieces of JSON; None for any other. Who speaks is the caller's business."""
    content = message.content
    if type(content) is not str or not content or message.name is not None:
        return None
    try:
        return before + to_json(content) + after
    except (PydanticSerializationError, ValueError):
        return as_json(content)  # which says what is wrong


class Written(bytes):
    """JSON that stands where a value is going to be: what is written once is joined as bytes."""

    __slots__ = ()


def object_json(values: Mapping[str, Any]) -> bytes:
    """`as_json` for an object, some of whose values may be `Written` already."""
    pieces: list[bytes] = []
    plain: dict[str, Any] = {}
    for key, value in values.items():
        if type(value) is not Written:
            plain[key] = value
            continue
        if plain:
            pieces.append(as_json(plain)[1:-1])
            plain = {}
        pieces.append(text_json(key) + b":" + value)
    if plain or not pieces:
        pieces.append(as_json(plain)[1:-1])
    return b"{" + b",".join(pieces) + b"}"


def with_commas(pieces: Sequence[bytes]) -> list[bytes]:
    """The items of an array, to be joined together with what stands around it: a long conversation is copied once."""
    written = [b","] * (2 * len(pieces) - 1)
    written[::2] = pieces
    return written


TURN_ENDS = b"]}"


def join_turns(said: Iterable[tuple[bytes, bytes]], speaking: bytes | None = None) -> tuple[bytes, bytes | None]:
    """Turns as JSON, joined by commas: what was said under one opening after another becomes one turn.

    The last turn stays open for more: it lacks its `TURN_ENDS`.

    Args:
        said: How a turn of that role begins, up to the bracket of its blocks, and some of its blocks. None is no turn.
        speaking: The opening of the turn that is open already.

    Returns:
        The JSON, and the opening of the last turn; None if there is no turn.
    """
    pieces: list[bytes] = []
    add = pieces.append
    for opening, blocks in said:
        if not blocks:
            continue
        if opening is speaking:
            add(b",")
        else:
            if speaking is not None:
                add(b"]},")
            add(opening)
            speaking = opening
        add(blocks)
    return b"".join(pieces), speaking


def tools_json(
    tools: Sequence[ToolSpec | Mapping[str, Any]],
    key: str,
    write: Callable[[ToolSpec, list[str]], Mapping[str, Any] | Written],
    warn: Callable[[str], object],
) -> Written:
    """Offered tools as JSON, each written once: its bytes are kept with it, and so is what was left out of them.

    Args:
        tools: The caller's own, and those of the vendor's, which go there as they are.
        key: Tells apart all that `write` depends on besides the tool.
        write: What a tool is to the vendor, or the JSON of that. It adds its warnings to the list.
        warn: Told the warnings, those of a tool that was written before as well.
    """
    return Written(b"[" + b",".join([tool_json(tool, key, write, warn) for tool in tools]) + b"]")


def tool_json(
    tool: ToolSpec | Mapping[str, Any],
    key: str,
    write: Callable[[ToolSpec, list[str]], Mapping[str, Any] | Written],
    warn: Callable[[str], object],
) -> bytes:
    """One of the tools that `tools_json` writes."""
    if not isinstance(tool, ToolSpec):
        return as_json(tool)
    try:
        notes = kept_notes(tool)
    except AttributeError:
        notes = first_notes(tool)
    known: tuple[bytes, list[str]] | None = notes.get(key)
    if known is None:
        warnings: list[str] = []
        made = write(tool, warnings)
        # Thawing takes less time than writing what is frozen.
        known = notes[key] = made if isinstance(made, Written) else as_json(thaw(made)), warnings
    written, warnings = known
    for warning in warnings:
        warn(warning)
    return written
