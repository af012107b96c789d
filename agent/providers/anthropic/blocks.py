"""Writing parts as the content blocks of the Messages API.

One part is one block, or none if it says nothing: the API refuses blank text. Messages are immutable, so the bytes of
each are made once and kept with it. Which messages there are, and in what order, is decided elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from ... import errors
from ...types import (
    AgentRequest,
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
    ToolSpec,
    VendorContent,
)
from ...types.notes import notes_on
from ..repair import is_own
from ..writing import LARGE, as_json, as_markdown, base64_text, cannot_take, fitting_id, fitting_name, text_json
from .family import API

_ASSISTANT, _TOOL = Role.ASSISTANT, Role.TOOL  # looked up once: enums are slow to ask
USER_OPENS, ASSISTANT_OPENS = b'{"role":"user","content":[', b'{"role":"assistant","content":['
_LONGEST_NAME = 128
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_IMAGE_TYPES = {
    "image/png": "image/png",
    "image/jpeg": "image/jpeg",
    "image/jpg": "image/jpeg",
    "image/gif": "image/gif",
    "image/webp": "image/webp",
}
_IMAGE_STARTS = ((b"\x89PNG", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
_FAILED = "The tool failed and said nothing about it."
"""The API refuses an error without words."""

NO_SIGNATURE = "reasoning that lacks its signature was left out of the conversation"
NAME_LEFT_OUT = "anthropic has no names of participants; a message's name was left out"
DETAIL_LEFT_OUT = "anthropic has no setting for an image's detail; it was left out"
ERROR_WITH_MEDIA = "a tool's error that holds more than text was sent as a result that says so"


def says_nothing(part: Part) -> bool:
    """Whether nothing of a part is sent: blank text, which is refused, and reasoning without its seal."""
    match part:
        case TextContent():
            return not part.text.strip()
        case ThinkingContent():
            return not (part.signature or (part.redacted and part.encrypted_content))
        case RefusalContent():
            return not part.refusal.strip()
        case _:
            return False


def why_left_out(part: Part) -> str | None:
    """The warning about a part that says nothing; blank text needs none."""
    return NO_SIGNATURE if isinstance(part, ThinkingContent) else None


def cache_control(hint: str) -> dict[str, str]:
    return {"type": "ephemeral", "ttl": "1h"} if hint == "long" else {"type": "ephemeral"}


def sent_id(id: str) -> str:
    return fitting_id(id, _ID, prefix="toolu_")


def sent_name(name: str) -> str:
    return fitting_name(name, _LONGEST_NAME)


def offered(request: AgentRequest) -> dict[str, ToolSpec]:
    """For reading an answer: the caller's tools by the names that were sent."""
    return {sent_name(tool.name): tool for tool in request.tools if isinstance(tool, ToolSpec)}


def opening(message: Message) -> bytes:
    """How the turn of a message begins."""
    return ASSISTANT_OPENS if message.role is _ASSISTANT else USER_OPENS


class BlockWriter:
    """Messages of one request; collects warnings about what is left out on the way."""

    def __init__(self, home: Origin) -> None:
        self._home = home
        self.key = f"{API}/{home.provider}/{home.model}"
        """Of the notes on messages that hold their bytes."""
        self.warnings: dict[str, None] = {}

    def message(self, message: Message) -> tuple[bytes, bytes]:
        """How the turn of a message begins, and its blocks as JSON, joined by commas."""
        encoded = self._plainly(message)
        warned = False
        if encoded is None:
            before, self.warnings = self.warnings, {}
            encoded = b",".join(map(as_json, self.blocks(message)))
            warned, self.warnings = bool(self.warnings), {**before, **self.warnings}
        written = opening(message), encoded
        # A warning must come again with the next request, so a message that causes one is not kept.
        if not warned and len(encoded) <= LARGE:
            notes_on(message)[self.key] = written
        return written

    def _plainly(self, message: Message) -> bytes | None:
        """A result that is only text, and a turn of words and calls, in one go. None for any other message."""
        content, role = message.content, message.role
        if role is _TOOL:
            if message.tool_call_id is None or not isinstance(content, str):
                return None
            block = b'{"type":"tool_result","tool_use_id":' + text_json(sent_id(message.tool_call_id))
            return block + (b',"content":' + text_json(content) + b"}" if content.strip() else b"}")
        if message.name is not None or isinstance(content, str) or role is not _ASSISTANT:
            return None
        blocks: list[dict[str, Any]] = []
        for part in content:
            if part.provider_data is not None:
                return None
            if isinstance(part, TextContent) and not part.citations:
                if part.text.strip():
                    blocks.append({"type": "text", "text": part.text})
            elif isinstance(part, ToolCall):
                blocks.append(self._call(part))
            else:
                return None
        return as_json(blocks)[1:-1]

    def blocks(self, message: Message, marks: Mapping[int, str] | None = None) -> list[dict[str, Any]]:
        """The blocks of a message, those at `marks` with a cache breakpoint."""
        if message.name is not None and message.role is not Role.TOOL:
            self.warn(NAME_LEFT_OUT)
        write = self._assistant_block if message.role is Role.ASSISTANT else self._user_block
        written: list[dict[str, Any]] = []
        for position, part in enumerate(message.parts):
            block = None if says_nothing(part) else write(part)
            if block is None:
                if (warning := why_left_out(part)) is not None:
                    self.warn(warning)
                continue
            if marks and position in marks:
                block["cache_control"] = cache_control(marks[position])
            written.append(block)
        return written

    def warn(self, warning: str) -> None:
        self.warnings[warning] = None

    def _assistant_block(self, part: Part) -> dict[str, Any] | None:
        match part:
            case TextContent():
                return self._text(part)
            case ThinkingContent():
                return self._thinking(part)
            case ToolCall():
                return self._call(part)
            case RefusalContent():
                return _plain_text(part.refusal)
            case CodeContent() | DiffContent():
                return _plain_text(as_markdown(part))
            case VendorContent():
                return dict(part.provider_data or {})
            case ToolResult() | ImageContent() | DocumentContent() | AudioContent():
                raise self._cannot(part, "in an assistant's message")
            case _:
                assert_never(part)

    def _user_block(self, part: Part) -> dict[str, Any] | None:
        match part:
            case TextContent():
                return _plain_text(part.text)
            case ImageContent():
                return self._image(part)
            case DocumentContent():
                return self._document(part)
            case ToolResult():
                return self._result(part)
            case RefusalContent():
                return _plain_text(part.refusal)
            case CodeContent() | DiffContent():
                return _plain_text(as_markdown(part))
            case VendorContent():
                return dict(part.provider_data or {})
            case AudioContent():
                raise self._cannot(part, "at all")
            case ThinkingContent() | ToolCall():
                raise self._cannot(part, "in a user's message")
            case _:
                assert_never(part)

    def _text(self, part: TextContent) -> dict[str, Any] | None:
        block = _plain_text(part.text)
        if block is not None and is_own(part, self._home):
            block = {**(part.provider_data or {}), **block}
            if sources := [citation.provider_data for citation in part.citations if citation.provider_data]:
                block["citations"] = sources
        return block

    def _thinking(self, part: ThinkingContent) -> dict[str, Any]:
        if part.redacted and part.encrypted_content:
            block = {"type": "redacted_thinking", "data": part.encrypted_content}
        else:
            block = {"type": "thinking", "thinking": part.thinking, "signature": part.signature}
        return {**part.provider_data, **block} if part.provider_data else block

    def _call(self, call: ToolCall) -> dict[str, Any]:
        arguments: Mapping[str, Any] = {**call.arguments}  # a plain dict is written faster than a frozen one
        if call.invalid_arguments is not None:
            arguments = {"_invalid_json": call.invalid_arguments}  # only an object is taken; the model sees its text
        block = {"type": "tool_use", "id": sent_id(call.id), "name": sent_name(call.name), "input": arguments}
        return {**call.provider_data, **block} if call.provider_data and is_own(call, self._home) else block

    def _result(self, result: ToolResult) -> dict[str, Any]:
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": sent_id(result.tool_call_id)}
        block.update(_chosen(result, "toolset_name"))
        content = self._result_content(result.content)
        if result.is_error:
            if isinstance(content, list) and any(inner["type"] != "text" for inner in content):
                self.warn(ERROR_WITH_MEDIA)
                content = [{"type": "text", "text": "The tool reports an error."}, *content]
            else:
                block["is_error"] = True
                content = content or _FAILED
        if content:
            block["content"] = content
        return block

    def _result_content(self, content: str | Sequence[Part]) -> str | list[dict[str, Any]]:
        if isinstance(content, str):
            return content if content.strip() else ""
        blocks = [self._user_block(part) for part in content]
        return [block for block in blocks if block is not None]

    def _image(self, part: ImageContent) -> dict[str, Any]:
        if part.detail not in (None, "auto"):
            self.warn(DETAIL_LEFT_OUT)
        if part.image_url is not None:
            source = {"type": "url", "url": part.image_url}
        else:
            data = part.image_data or b""
            # The API compares the two and refuses a wrong label.
            media_type = _image_type(data) or _IMAGE_TYPES.get(part.media_type or "image/png")
            if media_type is None:
                raise self._cannot(part, f"as {part.media_type}; it takes PNG, JPEG, GIF and WebP")
            source = {"type": "base64", "media_type": media_type, "data": base64_text(data)}
        return {"type": "image", "source": source, **_chosen(part, "transformations")}

    def _document(self, part: DocumentContent) -> dict[str, Any]:
        block: dict[str, Any] = {"type": "document", "source": self._document_source(part)}
        if part.title is not None:
            block["title"] = part.title
        block.update(_chosen(part, "citations", "context"))
        return block

    def _document_source(self, part: DocumentContent) -> dict[str, Any]:
        media_type = part.media_type or "application/pdf"
        if part.text is not None:
            return {"type": "text", "media_type": "text/plain", "data": part.text}
        if part.url is not None and media_type == "application/pdf":
            return {"type": "url", "url": part.url}
        if part.data is not None and media_type == "application/pdf":
            return {"type": "base64", "media_type": media_type, "data": base64_text(part.data)}
        if part.data is not None and media_type.startswith("text/"):
            try:
                return {"type": "text", "media_type": "text/plain", "data": part.data.decode()}
            except UnicodeDecodeError:
                raise self._cannot(part, "whose text is not UTF-8") from None
        raise self._cannot(part, f"as {media_type}; it takes PDF and plain text, and only PDF by URL")

    def _cannot(self, part: Part, where: str) -> errors.UnsupportedFeatureError:
        return cannot_take(part, where, provider=self._home.provider, model=self._home.model)


def _plain_text(text: str) -> dict[str, Any] | None:
    return {"type": "text", "text": text} if text.strip() else None


def _chosen(part: Part, *keys: str) -> dict[str, Any]:
    """Settings of a block that only this API has, which the caller may give as the part's `provider_data`."""
    data = part.provider_data
    if not data or (part.origin is not None and part.origin.api != API):
        return {}
    return {key: data[key] for key in keys if key in data}


def _image_type(data: bytes) -> str | None:
    """What an image is by its first bytes, whatever it is called."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _IMAGE_STARTS if data.startswith(start)), None)
