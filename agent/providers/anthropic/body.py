"""A whole request as the JSON that the Messages API takes.

Brings together the conversation in turns, the bytes of each message, and the settings. The bytes of messages are
joined as they are, so that a turn of a long conversation costs what is new in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ... import errors
from ...types import AgentRequest, Message, Role, TextContent, ToolSpec, VendorContent
from ...types.notes import first_notes, kept_notes
from ..repair import repair
from ..writing import LARGE, TURN_ENDS, as_json, check_extra, home_of, join_turns, object_json, words_json
from .blocks import ASSISTANT_OPENS, USER_OPENS, BlockWriter, cache_control, opening
from .family import API, BETA_OF_BLOCK, BETA_OF_KEY, BETA_OF_TOOL, family_of
from .settings import Settings
from .turns import Marks, Notable, Turns, ends_with_prefill, place_marks, take_turns

_ASSISTANT, _TOOL = Role.ASSISTANT, Role.TOOL  # looked up once: enums are slow to ask
_OWN_KEYS = ("messages", "model", "stream")
_COUNTED = frozenset(
    (
        "cache_control",
        "compaction",
        "context_management",
        "mcp_servers",
        "output_config",
        "speed",
        "system",
        "thinking",
        "tool_choice",
        "tools",
    )
)
"""Keys that counting tokens takes, too."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A body, what had to be left out of it, and the betas it may need, the most telling first."""

    body: bytes
    warnings: tuple[str, ...]
    betas: tuple[str, ...]


def encode_body(
    request: AgentRequest, name: str, foreign_thinking: Literal["drop", "text"], *, stream: bool
) -> Encoded:
    """The body of a request for an answer."""
    return _encode(request, name, foreign_thinking, stream=stream)


def encode_count_body(request: AgentRequest, name: str, foreign_thinking: Literal["drop", "text"]) -> Encoded:
    """The body of a request to count the tokens of the same prompt."""
    return _encode(request, name, foreign_thinking, stream=None)


def _encode(
    request: AgentRequest, name: str, foreign_thinking: Literal["drop", "text"], *, stream: bool | None
) -> Encoded:
    check_extra(request, _OWN_KEYS)
    model = request.model or ""
    home = home_of(name, API, model)
    writer = BlockWriter(home)
    messages, repairs = repair(request.to_messages(), home, foreign_thinking)
    turns = take_turns(messages, home)
    family = family_of(model)
    _check(turns, prefill=family.prefill, name=name, model=model)
    marks = place_marks(request, turns)
    writer.warnings = dict.fromkeys((*repairs, *turns.warnings, *marks.warnings))
    conversation = _conversation(turns, marks, writer)
    settings = Settings(request, turns, family, writer.warnings)
    keys: dict[str, Any] = {"model": model}
    extra: Mapping[str, Any] = request.extra
    if stream is None:
        keys.update(settings.for_counting(marks))
        extra = {key: value for key, value in extra.items() if key in _COUNTED}
    else:
        keys.update(settings.write(marks, stream=stream))
    if turns.system:
        check_extra(request, ("system",))
        keys["system"] = _system(turns.system, marks.system)
    if "output_config" in keys and isinstance(given := extra.get("output_config"), Mapping):
        extra = {**extra, "output_config": {**keys["output_config"], **given}}  # two settings share this key
    keys.update(extra)
    body = b"".join([object_json(keys)[:-1], b',"messages":[', *conversation, b"]}"])
    betas = tuple(_betas(request, turns)) if request.tools or request.extra or turns.notable else ()
    return Encoded(body, tuple(writer.warnings), betas)


def _check(turns: Turns, *, prefill: bool, name: str, model: str) -> None:
    if not turns.messages:
        raise errors.ConfigurationError(
            "There is nothing to send: the conversation is empty.", field="messages", fix="Pass input= or messages."
        )
    if not prefill and ends_with_prefill(turns):
        raise errors.UnsupportedFeatureError(
            f"{model} does not go on from an assistant's message that stands last.",
            field="messages",
            fix="End the conversation with a user's message.",
            provider=name,
            model=model,
        )


class _State(NamedTuple):
    """How to go on behind the beginning of a conversation."""

    speaking: bytes | None
    notable: Notable


def _conversation(turns: Turns, marks: Marks, writer: BlockWriter) -> list[bytes]:
    """The messages as JSON, with commas, in pieces. Neighbours of one role become one turn.

    What is known of how they begin is not written again, unless there are marks in it.
    """
    begun, total = turns.begun, len(turns.messages)
    if begun is None or any(position < begun.cut - begun.first for position in marks.messages):
        written, speaking = join_turns(_said(turns, marks, writer, 0, total))
        return [written, b"" if speaking is None else TURN_ENDS]
    start, cut = begun.start - begun.first, begun.cut - begun.first
    state: _State | None = begun.state
    added, speaking = join_turns(_said(turns, marks, writer, start, cut), state.speaking if state else None)
    begun.keep(added, _State(speaking, tuple([found for found in turns.notable if found[0] < cut])))
    rest, speaking = join_turns(_said(turns, marks, writer, cut, total), speaking)
    return [*begun.pieces, added, rest, b"" if speaking is None else TURN_ENDS]


def _said(turns: Turns, marks: Marks, writer: BlockWriter, start: int, end: int) -> list[tuple[bytes, bytes]]:
    """How the turns of some of the messages begin, and their blocks."""
    messages, key = turns.messages, writer.key
    special = {*marks.messages}
    if messages[-1].role is Role.ASSISTANT:
        special.add(len(messages) - 1)
    said: list[tuple[bytes, bytes]] = []
    for position, message in enumerate(messages[start:end], start):
        if position in special:
            blocks = _special(message, position == len(messages) - 1, marks.messages.get(position), writer)
            said.append((opening(message), blocks))
            continue
        try:
            notes = kept_notes(message)
        except AttributeError:
            notes = first_notes(message)
        written = notes.get(key)
        if written is None:
            role = message.role
            words = words_json(message, b'{"type":"text","text":', b"}") if role is not _TOOL else None
            if words is None:
                written = writer.message(message)
            else:
                written = ASSISTANT_OPENS if role is _ASSISTANT else USER_OPENS, words
                if len(words) <= LARGE:
                    notes[key] = written
        said.append(written)
    return said


def _special(message: Message, is_last: bool, marks: Mapping[int, str] | None, writer: BlockWriter) -> bytes:
    """The blocks of a message with cache breakpoints, or of one that the model is to go on from."""
    blocks = writer.blocks(message, marks)
    if is_last and message.role is Role.ASSISTANT:
        _trim(blocks)
    return b",".join(map(as_json, blocks))


def _trim(blocks: list[dict[str, Any]]) -> None:
    """The API refuses white space at the end of words that the model is to go on from."""
    if blocks and blocks[-1].get("type") == "text":
        blocks[-1]["text"] = blocks[-1]["text"].rstrip()


def _system(texts: list[TextContent], marks: Mapping[int, str]) -> Any:
    if len(texts) == 1 and not marks:
        return texts[0].text
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text.text} for text in texts]
    for number, hint in marks.items():
        blocks[number]["cache_control"] = cache_control(hint)
    return blocks


def _betas(request: AgentRequest, turns: Turns) -> Iterator[str]:
    for tool in request.tools:
        if not isinstance(tool, ToolSpec):
            kind = str(tool.get("type", ""))
            yield from (beta for start, beta in BETA_OF_TOOL.items() if kind.startswith(start))
    yield from (beta for key, beta in BETA_OF_KEY.items() if key in request.extra)
    for _, _, part in turns.notable:
        if isinstance(part, VendorContent) and part.kind in BETA_OF_BLOCK:
            yield BETA_OF_BLOCK[part.kind]
