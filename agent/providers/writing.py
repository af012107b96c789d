"""What every codec needs for writing a request down: text forms of parts, base64, ids and names that fit."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from .. import errors
from ..types import AgentRequest, CodeContent, DiffContent, DocumentContent, Message, Origin, Part, ToolSpec, thaw
from ..types.notes import first_notes, kept_notes

LARGE = 64 * 1024
"""Encoded messages beyond this are not kept: they hold images, and would double the memory of the conversation."""

_N, _I = b"NI"

NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
"""The schema of a tool without parameters: every vendor insists on an object."""


@lru_cache(maxsize=256)
def home_of(provider: str, api: str, model: str) -> Origin:
    """Who a request goes to, as the parts of its answer will say. Every call asks for the same few."""
    return Origin.trusted(provider=provider, api=api, model=model)


def as_markdown(part: CodeContent | DiffContent) -> str:
    if isinstance(part, CodeContent):
        return f"```{part.language or ''}\n{part.code}\n```"
    before = "".join(f"-{line}\n" for line in part.old_code.splitlines())
    after = "".join(f"+{line}\n" for line in part.new_code.splitlines())
    return f"```diff\n{before}{after}```"


def as_text(document: DocumentContent) -> str:
    """A document of plain text, where texts have no titles."""
    return f"{document.title}:\n{document.text}" if document.title else document.text or ""


def base64_text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def data_url(data: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64_text(data)}"


def cannot_take(part: Part, where: str, *, provider: str, model: str | None) -> errors.UnsupportedFeatureError:
    """The error for a part that the vendor has no place for."""
    return errors.UnsupportedFeatureError(
        f"{provider} does not take a part of type {part.type!r} {where}.",
        field="messages",
        fix="Leave it out, or use a provider that takes it.",
        provider=provider,
        model=model or None,
    )


def check_extra(request: AgentRequest, own_keys: Sequence[str]) -> None:
    """`extra` goes into the body as it is, but may not replace what the request itself says."""
    if not request.extra:
        return
    for key in (*own_keys, "tools") if request.tools else own_keys:
        if key in request.extra:
            raise errors.ConfigurationError(
                f"extra may not contain {key!r}.", field="extra", fix=f"Set {key} through the request itself."
            )


def fitting_id(id: str, form: re.Pattern[str], length: int = 24, *, prefix: str = "") -> str:
    """An id in the form a vendor demands: itself if it has that form, else always the same stand-in for it.

    The conversation keeps the original. Call and result go through here both, and so stay together.
    """
    if form.fullmatch(id):
        return id
    return prefix + hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[: length - len(prefix)]


@lru_cache(maxsize=4096)
def fitting_name(name: str, longest: int, allowed: str = "a-zA-Z0-9_-") -> str:
    """A tool's name in the characters a vendor allows; one that had to be changed ends in a hash of the original."""
    clean = re.sub(f"[^{allowed}]", "_", name)
    if clean == name and len(name) <= longest:
        return name
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{clean[: longest - 7]}_{mark}"


def original_names(request: AgentRequest, longest: int, allowed: str = "a-zA-Z0-9_-") -> dict[str, str]:
    """For reading an answer: the offered tools' names by what `fitting_name` made of them, where that differs."""
    names = (tool.name for tool in request.tools if isinstance(tool, ToolSpec))
    return {sent: name for name in names if (sent := fitting_name(name, longest, allowed)) != name}


def schema_name(schema: Mapping[str, Any]) -> str:
    """A name for an output schema, from its title."""
    title = str(schema.get("title") or "answer")
    name = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "_" for letter in title)
    return name[:64] or "answer"


def as_json(value: Any) -> bytes:
    """JSON for a body. A request may hold what JSON cannot: half a character, an object, a number that is none."""
    try:
        written = to_json(value)
        # Seldom, and then mostly in a text. A letter is looked for first, which takes a quarter of the time.
        if (_N in written and b"NaN" in written) or (_I in written and b"Infinity" in written):
            from_json(written, allow_inf_nan=False)
    except (PydanticSerializationError, ValueError) as error:
        raise errors.ConfigurationError(
            f"The request cannot be written as JSON: {error}.",
            field="request",
            fix="Pass only what JSON can hold; text.encode('utf-8', 'replace').decode() mends half a character.",
        ) from None
    return written


def json_text(value: Any) -> str:
    return as_json(value).decode()


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """A call's arguments as the JSON text that some vendors want. A plain dict is written faster than a frozen one."""
    return as_json({**arguments}).decode()


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
