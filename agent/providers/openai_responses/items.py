"""Writing a conversation as the items that the Responses API takes.

A turn of the model is several items: reasoning, messages, calls. Reasoning goes back to the model that made it, and
only together with the very item it led to, since the API refuses either without the other. Messages are immutable, so
the bytes of each are made once and kept with it. Settings are none of this module's business.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, assert_never

from ... import errors
from ...types import (
    AudioContent,
    CodeContent,
    DiffContent,
    DocumentContent,
    ImageContent,
    Message,
    Origin,
    Part,
    RefusalContent,
    Role,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    VendorContent,
)
from ...types.notes import first_notes, kept_notes
from ..beginnings import Begun
from ..repair import FOREIGN_BLOCK_DROPPED, is_own
from ..writing import (
    LARGE,
    arguments_text,
    as_json,
    as_markdown,
    as_text,
    cannot_take,
    data_url,
    fitting_id,
    fitting_name,
    text_json,
    words_json,
)
from .traits import API

LONGEST_NAME = 64
"""Letters a tool's name may have."""
CUSTOM = "custom"
"""What `provider_data["type"]` of a call says if the tool takes text instead of JSON."""

FAILED = "The tool failed."
"""How a model is told that a result is an error: the API has no field for it."""
LOST_REASONING = "reasoning was left out of the conversation: what it led to is no longer there"
UNSEALED_REASONING = (
    "reasoning was left out of the conversation: the vendor keeps no copy, and its sealed form is missing"
)
REPEATED_TURN = "a turn of the model occurs twice; the second time only its words and calls were told"
NO_TITLE = "the title of a document was left out: the API has no place for it beside an address"
NO_AUTHOR = "the name of a message's author was left out: the API has no place for it"

_CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_EXTENSIONS = {
    "application/pdf": ".pdf",
    "application/json": ".json",
    "text/plain": ".txt",
    "text/markdown": ".md",
    "text/html": ".html",
    "text/csv": ".csv",
    "application/msword": ".doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": ".pptx",
}


_ASSISTANT, _TOOL = Role.ASSISTANT, Role.TOOL  # looked up once: enums are slow to ask
_OPENINGS = {role: b'{"role":"%b","content":' % role.encode() for role in (Role.SYSTEM, Role.USER, _ASSISTANT)}
_Written: TypeAlias = tuple[bytes, bytes, Mapping[str, Mapping[str, Any]] | None]


def call_id_for(id: str) -> str:
    return fitting_id(id, _CALL_ID, 29, prefix="call_")


class ItemWriter:
    """Writes the messages of one repaired conversation, in their order; collects what is left out on the way."""

    def __init__(self, home: Origin, *, stored: bool, breakpoints: bool) -> None:
        self._home = home
        self._stored = stored
        """The vendor keeps the conversation, so that it knows reasoning by its id."""
        self._breakpoints = breakpoints
        self.key = f"{API}/{home.provider}/{home.model}/{stored:d}{breakpoints:d}"
        """Of the notes on messages that hold their bytes."""
        self._begun: Begun | None = None
        self._seen: set[bytes] = set()
        """Ids of items, without those of the beginning that is known."""
        self._answered: Mapping[str, Mapping[str, Any]] = {}
        """What the vendor said about calls of its latest turn, where it said something: results must repeat it."""
        self._keep = True
        self.warnings: dict[str, None] = {}

    def continued(self, begun: Begun) -> list[bytes]:
        """As `messages`. What is known of how the conversation begins is not written again."""
        instructions = self.messages(begun.messages[: begun.first])
        self._begun = begun
        self._answered = begun.state or {}
        added = self.messages(begun.added)
        if not self.warnings:
            begun.keep(b",".join(added), self._answered, separator=b",", ids=self._seen)
        return [*instructions, *begun.pieces, *added, *self.messages(begun.rest)]

    def messages(self, messages: Iterable[Message]) -> list[bytes]:
        """The messages' items as JSON; of some messages several, joined by commas."""
        key = self.key
        pieces: list[bytes] = []
        for message in messages:
            try:
                notes = kept_notes(message)
            except AttributeError:
                notes = first_notes(message)
            written: bytes | _Written | None = notes.get(key)
            if written is None:
                if (opening := _OPENINGS.get(message.role)) is not None:
                    written = words_json(message, opening, b"}")
                if written is None:
                    written = self._written(message, notes)
                elif len(written) <= LARGE:
                    notes[key] = written
            if isinstance(written, bytes):  # words that nobody made an item of
                if self._answered and message.role is _ASSISTANT:
                    self._answered = {}
                pieces.append(written)
                continue
            encoded, ids, told = written
            if told is not None:
                self._answered = told
            elif self._answered and message.role is _TOOL:
                encoded = b",".join(map(as_json, self._said(message)))  # not kept: it depends on another message
            if ids and not self._are_new(ids):
                encoded = self._told_again(message)
            if encoded:
                pieces.append(encoded)
        return pieces

    def _written(self, message: Message, notes: dict[str, Any]) -> _Written:
        """A message's bytes, the ids of its items, and what the vendor said about the calls in a turn of its own."""
        if (encoded := self._plain_result(message)) is not None:
            written: _Written = encoded, b"", None
            if len(encoded) <= LARGE:
                notes[self.key] = written
            return written
        if self._answered and message.role is _TOOL:
            return b"", b"", None
        self._keep = True
        told: dict[str, Mapping[str, Any]] | None = None
        if message.role is _ASSISTANT:
            told = {call.id: facts for call in message.tool_calls or () if (facts := self._call_facts(call))}
        items = self._said(message) if told is None else self._assistant(message)
        encoded = b",".join(map(as_json, items))
        ids = "\n".join([item["id"] for item in items if item.get("id")]).encode()
        written = encoded, ids, told
        if self._keep and len(encoded) <= LARGE:
            notes[self.key] = written
        return written

    def _plain_result(self, message: Message) -> bytes | None:
        """A result that is only text, in one go. None for any other message."""
        content = message.content
        if message.role is not _TOOL or not isinstance(content, str):
            return None
        if message.tool_call_id is None or self._answered:
            return None
        id = text_json(call_id_for(message.tool_call_id))
        return b'{"type":"function_call_output","call_id":' + id + b',"output":' + text_json(content) + b"}"

    def _are_new(self, ids: bytes) -> bool:
        named = set(ids.split(b"\n"))
        if not self._seen.isdisjoint(named) or (self._begun is not None and any(map(self._begun.names, named))):
            return False
        self._seen |= named
        return True

    def _told_again(self, message: Message) -> bytes:
        """A turn that occurs twice: the API takes every id once."""
        self._warn(REPEATED_TURN)
        return b",".join(map(as_json, self._assistant(message, again=True)))

    def _warn(self, warning: str) -> None:
        self.warnings[warning] = None
        self._keep = False  # it must come again with the next request

    def _cannot(self, part: Part, where: str) -> errors.UnsupportedFeatureError:
        return cannot_take(part, where, provider=self._home.provider, model=self._home.model)

    # What the model has said.

    def _assistant(self, message: Message, *, again: bool = False) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        held: list[dict[str, Any]] = []
        linked, reasoning = True, False
        for part in message.parts:
            if again and isinstance(part, ThinkingContent | VendorContent):
                continue
            if isinstance(part, ThinkingContent):
                if not reasoning:
                    linked, reasoning = True, True
                item = self._reasoning(part)
                if item is None:
                    self._warn(UNSEALED_REASONING)
                    linked = False
                else:
                    held.append(item)
                continue
            if _is_empty(part):
                continue
            reasoning = False
            if held and not (linked and is_own(part, self._home)):
                self._warn(LOST_REASONING)
                linked = False
                held.clear()
            items += held
            held.clear()
            # An item whose reasoning is gone may not be known by its id: the vendor would miss the reasoning.
            self._add(part, items, by_id=linked and not again and is_own(part, self._home))
        if held:
            self._warn(LOST_REASONING)
        if message.name is not None:
            self._warn(NO_AUTHOR)
        return items

    def _reasoning(self, part: ThinkingContent) -> dict[str, Any] | None:
        """The item that the vendor made, if the vendor can still make sense of it."""
        rest = part.provider_data or {}
        if not (part.encrypted_content or rest.get("content") or (self._stored and part.id)):
            return None
        item: dict[str, Any] = {"type": "reasoning"}
        if part.id:
            item["id"] = part.id
        item["summary"] = part.summary
        if part.encrypted_content:
            item["encrypted_content"] = part.encrypted_content
        return {**rest, **item}

    def _add(self, part: Part, items: list[dict[str, Any]], *, by_id: bool) -> None:
        match part:
            case TextContent():
                annotations = [citation.provider_data for citation in part.citations if citation.provider_data]
                block = {"type": "output_text", "text": part.text, "annotations": annotations}
                self._add_words(part, part.text, block, items, by_id=by_id)
            case RefusalContent():
                block = {"type": "refusal", "refusal": part.refusal}
                self._add_words(part, part.refusal, block, items, by_id=by_id)
            case CodeContent() | DiffContent():
                self._add_words(part, as_markdown(part), {}, items, by_id=False)
            case ToolCall():
                items.append(self._call(part, by_id=by_id))
            case VendorContent():
                self._add_item(dict(part.provider_data or {"type": part.kind}), items)
            case ToolResult() | ImageContent() | DocumentContent() | AudioContent() | ThinkingContent():
                raise self._cannot(part, "in an assistant's message")
            case _:
                assert_never(part)

    def _add_item(self, item: dict[str, Any], items: list[dict[str, Any]]) -> None:
        """An item as the vendor made it; a block of a message joins the rest of that message."""
        last = items[-1] if items else {}
        if item.get("type") == last.get("type") == "message" and last.get("id") == item.get("id"):
            last["content"] = [*last["content"], *item["content"]]
        else:
            items.append(item)

    def _add_words(
        self, part: Part, text: str, block: dict[str, Any], items: list[dict[str, Any]], *, by_id: bool
    ) -> None:
        """Words join the message they belong to: by its id at home, and else whatever was said just before."""
        facts: Mapping[str, Any] = (part.provider_data or {}) if is_own(part, self._home) else {}
        id, phase = facts.get("id") if by_id else None, facts.get("phase")
        last = items[-1] if items else {}
        said_here = last.get("role") == "assistant" and last.get("id") == id and last.get("phase") == phase
        if said_here and id is not None:
            last["content"] = [*last["content"], block]
            return
        if said_here and isinstance(last["content"], str):
            last["content"] += text
            return
        said: dict[str, Any] = {"role": "assistant", "content": text}
        if id is not None:
            status = facts.get("status") or "completed"
            said = {"type": "message", "id": id, "role": "assistant", "status": status, "content": [block]}
        if phase is not None:
            said["phase"] = phase
        items.append(said)

    def _call(self, call: ToolCall, *, by_id: bool) -> dict[str, Any]:
        rest = self._call_facts(call)
        name = fitting_name(call.name, LONGEST_NAME)
        item: dict[str, Any] = {"type": "function_call", "call_id": call_id_for(call.id), "name": name}
        if rest.pop("type", None) == CUSTOM:
            item["type"] = "custom_tool_call"
            item["input"] = call.arguments.get("input", call.invalid_arguments or "")
        elif call.invalid_arguments is not None:
            item["arguments"] = call.invalid_arguments
        else:
            item["arguments"] = arguments_text(call.arguments)
        if by_id and call.item_id:
            item["id"] = call.item_id
        return {**rest, **item}

    def _call_facts(self, call: ToolCall) -> dict[str, Any]:
        """What the vendor said about a call of its own."""
        return dict(call.provider_data or {}) if is_own(call, self._home) else {}

    # What the model is told.

    def _said(self, message: Message) -> list[dict[str, Any]]:
        role = "system" if message.role is Role.SYSTEM else "user"
        items: list[dict[str, Any]] = []
        content: list[Part] = []
        for part in message.parts:
            if isinstance(part, ToolResult):
                items.append(self._result(part))
            elif isinstance(part, VendorContent):
                self._flush(role, content, items)
                if is_own(part, self._home):  # an answer to a block of the vendor's: it names who that is
                    items.append(dict(part.provider_data or {"type": part.kind}))
                else:
                    self._warn(FOREIGN_BLOCK_DROPPED)
            else:
                content.append(part)
        self._flush(role, content, items)
        if message.name is not None and message.role is not Role.TOOL:
            self._warn(NO_AUTHOR)
        return items

    def _flush(self, role: str, parts: list[Part], items: list[dict[str, Any]]) -> None:
        blocks = self._blocks(parts, f"in a {role}'s message")
        parts.clear()
        if blocks:
            items.append({"role": role, "content": _simplest(blocks)})

    def _blocks(self, parts: Sequence[Part], where: str) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        for part in parts:
            block = self._block(part, where)
            if block.get("text") == "":
                continue
            self._mark(block, part)
            blocks.append(block)
        return blocks

    def _mark(self, block: dict[str, Any], part: Part) -> None:
        if part.cache is not None and self._breakpoints:
            mark = {"mode": "explicit", "ttl": "12h"} if part.cache == "long" else {"mode": "explicit"}
            block["prompt_cache_breakpoint"] = mark

    def _block(self, part: Part, where: str) -> dict[str, Any]:
        match part:
            case TextContent():
                return {"type": "input_text", "text": part.text}
            case CodeContent() | DiffContent():
                return {"type": "input_text", "text": as_markdown(part)}
            case ImageContent():
                url = part.image_url
                if url is None:
                    url = data_url(part.image_data or b"", part.media_type or "image/png")
                return {"type": "input_image", "image_url": url, "detail": part.detail or "auto"}
            case DocumentContent():
                if part.title and part.text is None and part.data is None:
                    self._warn(NO_TITLE)
                return _document(part)
            case AudioContent() | ThinkingContent() | ToolCall() | ToolResult() | RefusalContent() | VendorContent():
                raise self._cannot(part, where)
            case _:
                assert_never(part)

    def _result(self, result: ToolResult) -> dict[str, Any]:
        item: dict[str, Any] = {"type": "function_call_output", "call_id": call_id_for(result.tool_call_id)}
        told = self._answered.get(result.tool_call_id) or {}
        if told.get("type") == CUSTOM:
            item["type"] = "custom_tool_call_output"
        if "caller" in told:
            item["caller"] = told["caller"]
        item["output"] = self._output(result)
        return item

    def _output(self, result: ToolResult) -> str | list[dict[str, Any]]:
        text_only = isinstance(result.content, str) or all(isinstance(part, TextContent) for part in result.content)
        if text_only and not (self._breakpoints and _is_marked(result)):
            return f"{FAILED}\n{result.text}" if result.is_error else result.text
        parts: Sequence[Part] = (
            (TextContent(text=result.content),) if isinstance(result.content, str) else result.content
        )
        blocks = self._blocks(parts, "in a tool's result")
        if blocks:
            self._mark(blocks[-1], result)
        if result.is_error:
            blocks.insert(0, {"type": "input_text", "text": FAILED})
        return blocks or ""


def _is_empty(part: Part) -> bool:
    return (isinstance(part, TextContent) and not part.text) or (isinstance(part, RefusalContent) and not part.refusal)


def _is_marked(result: ToolResult) -> bool:
    inside: Sequence[Part] = () if isinstance(result.content, str) else result.content
    return any(part.cache is not None for part in (*inside, result))


def _simplest(blocks: list[dict[str, Any]]) -> Any:
    """Plain text where that says it all."""
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
        return blocks[0]["text"]
    return blocks


def _document(part: DocumentContent) -> dict[str, Any]:
    if part.text is not None:
        return {"type": "input_text", "text": as_text(part)}
    if part.data is None:
        return {"type": "input_file", "file_url": part.url}
    media_type = part.media_type or "application/pdf"
    name = part.title or "document"
    if "." not in name:
        name += _EXTENSIONS.get(media_type, "")  # the vendor goes by the ending
    return {"type": "input_file", "filename": name, "file_data": data_url(part.data, media_type)}
