"""Encoding of messages for the Messages API, one method per kind of content part."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypeAlias, TypedDict, assert_never, cast

from ...types import (
    AudioContent,
    CodeContent,
    DiffContent,
    DocumentContent,
    FileContent,
    ImageContent,
    Message,
    Part,
    RefusalContent,
    Role,
    SearchResultContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    VendorContent,
    VideoContent,
)
from ..encoding import JsonDict, encode_base64, normalize_id, normalize_name, to_markdown
from ..repair import is_own
from .conversation import NAME_LEFT_OUT, NO_SIGNATURE, CacheSlot, is_blank, read_cache_slot
from .fields import MAX_NAME_LENGTH, MessagesContext
from .models import API

# Request types, as in the API reference.


class CacheControl(TypedDict, total=False):
    type: Required[Literal["ephemeral"]]
    ttl: Literal["5m", "1h"]


class TextBlock(TypedDict, total=False):
    type: Required[Literal["text"]]
    text: Required[str]
    signature: str
    citations: list[dict[str, Any]]
    cache_control: CacheControl


class Source(TypedDict, total=False):
    """An image, a PDF or plain text: as data, by URL, or by the id of a file that the vendor stores."""

    type: Required[Literal["base64", "url", "text", "file"]]
    media_type: str
    data: str
    url: str
    file_id: str


class ImageBlock(TypedDict, total=False):
    type: Required[Literal["image"]]
    source: Required[Source]
    transformations: dict[str, Any]
    cache_control: CacheControl


class DocumentBlock(TypedDict, total=False):
    type: Required[Literal["document"]]
    source: Required[Source]
    title: str
    context: str
    citations: dict[str, Any]
    cache_control: CacheControl


class ContainerUploadBlock(TypedDict):
    """A file for the container in which the model runs code."""

    type: Literal["container_upload"]
    file_id: str


class SearchResultBlock(TypedDict, total=False):
    type: Required[Literal["search_result"]]
    source: Required[str]
    title: Required[str]
    content: Required[list[TextBlock]]
    citations: dict[str, Any]
    cache_control: CacheControl


class ThinkingBlock(TypedDict):
    type: Literal["thinking"]
    thinking: str
    signature: str


class RedactedThinkingBlock(TypedDict):
    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(TypedDict, total=False):
    type: Required[Literal["tool_use"]]
    id: Required[str]
    name: Required[str]
    input: Required[dict[str, Any]]
    cache_control: CacheControl


VendorBlock: TypeAlias = dict[str, Any]
"""A block of a server tool or of an unknown type."""


class ToolResultBlock(TypedDict, total=False):
    type: Required[Literal["tool_result"]]
    tool_use_id: Required[str]
    content: str | list[Block]
    is_error: bool
    toolset_name: str
    cache_control: CacheControl


Block: TypeAlias = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | ContainerUploadBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | VendorBlock
)


class MessageParam(TypedDict):
    role: Literal["user", "assistant"]
    content: list[Block]


NO_BREAKPOINT = "a prompt cache marker was dropped: this kind of part cannot have one"
DETAIL_LEFT_OUT = "the detail of an image was dropped: anthropic does not support it"
FILE_TITLE_LEFT_OUT = "the title of a file was dropped: anthropic supports titles of documents only"
ERROR_WITH_MEDIA = "a tool error with media was sent as a result, because errors may only contain text"

_ID = re.compile(r"[a-zA-Z0-9_-]+")
_IMAGE_TYPES = {
    "image/png": "image/png",
    "image/jpeg": "image/jpeg",
    "image/jpg": "image/jpeg",
    "image/gif": "image/gif",
    "image/webp": "image/webp",
}
_IMAGE_STARTS = ((b"\x89PNG", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
_BLANK_ERROR = "The tool failed without a message."
"""Content of a blank error, which the API rejects."""


class MessageEncoder:
    """Encodes the conversation of one request."""

    def __init__(self, context: MessagesContext) -> None:
        self._context = context
        self._origin = context.origin
        self._caches_request = context.request.cache is not None
        self._toolsets: dict[str, str] = {}
        """Toolsets of the vendor's calls, by call id. Results repeat them."""
        self.cache_slots: list[CacheSlot] = []
        """Blocks with cache markers, in order. With `request.cache`, all blocks that can have one."""

    def encode(self, messages: Sequence[Message]) -> list[MessageParam]:
        """Encode messages. Consecutive messages of one role are merged."""
        encoded: list[MessageParam] = []
        content: list[Block] = []
        previous = ""
        tool, assistant = Role.TOOL, Role.ASSISTANT  # looking up enum members is slow in Python 3.11
        for message in messages:
            text, sender = message.content, message.role
            if message.extra or (message.name is not None and sender is not tool):
                self._warn_about_keys(message)
            blocks: list[Block]
            if not isinstance(text, str):
                blocks = self._encode_parts(message)
            else:
                blocks = [self._encode_text_result(message, text) if sender is tool else {"type": "text", "text": text}]
                if self._caches_request:
                    self.cache_slots.append(CacheSlot(cast(JsonDict, blocks[0])))
            if not blocks:
                continue
            role: Literal["user", "assistant"] = "assistant" if sender is assistant else "user"
            if role == previous:
                content += blocks
            else:
                previous, content = role, blocks
                encoded.append({"role": role, "content": content})
        if messages[-1].role is assistant:
            _strip_prefill(content[-1])
        return encoded

    def _warn_about_keys(self, message: Message) -> None:
        self._context.drop_extra(message.extra, "a message")
        if message.name is not None and message.role is not Role.TOOL:
            self._context.warn(NAME_LEFT_OUT)

    def _encode_text_result(self, message: Message, text: str) -> TextBlock | ToolResultBlock:
        if message.tool_call_id is None:
            return {"type": "text", "text": text}
        block: ToolResultBlock = {"type": "tool_result", "tool_use_id": _encode_id(message.tool_call_id)}
        if text.strip():
            block["content"] = text
        if toolset := self._toolsets.get(message.tool_call_id):
            block["toolset_name"] = toolset
        return block

    def _encode_parts(self, message: Message) -> list[Block]:
        encode_part = self._encode_assistant_part if message.role is Role.ASSISTANT else self._encode_user_part
        blocks: list[Block] = []
        for part in message.parts:
            block = self._with_extra(part, encode_part(part))
            if block is not None:
                blocks.append(block)
            self._add_cache_slot(part, block)
        return blocks

    def _with_extra(self, part: Part, block: Block | None) -> Block | None:
        """Return the block with the keys of a part dict that are only the vendor's."""
        if part.extra:
            what = f"a part of type {part.type!r}"
            if block is None:
                self._context.drop_extra(part.extra, what)
            else:
                self._context.add_extra(cast(JsonDict, block), part.extra, what)
        for inner in part.content if isinstance(part, SearchResultContent) else ():
            self._context.drop_extra(inner.extra, "a search result")
        return block

    def _encode_assistant_part(self, part: Part) -> Block | None:
        match part:
            case TextContent():
                return self._encode_own_text(part)
            case ToolCall():
                return self._encode_call(part)
            case ThinkingContent():
                return self._encode_thinking(part)
            case RefusalContent():
                return _encode_unless_blank(part.refusal)
            case CodeContent() | DiffContent():
                return encode_text(to_markdown(part))
            case VendorContent():
                return self._encode_vendor_block(part)
            case (
                ToolResult()
                | ImageContent()
                | DocumentContent()
                | AudioContent()
                | VideoContent()
                | FileContent()
                | SearchResultContent()
            ):
                raise self._context.part_error(part, "in an assistant's message")
            case _:
                assert_never(part)

    def _encode_user_part(self, part: Part) -> Block | None:
        match part:
            case TextContent():
                return _encode_unless_blank(part.text)
            case ToolResult():
                return self._encode_result(part)
            case ImageContent():
                return self._encode_image(part)
            case DocumentContent():
                return _encode_document(part, self._encode_document_source(part))
            case RefusalContent():
                return _encode_unless_blank(part.refusal)
            case CodeContent() | DiffContent():
                return encode_text(to_markdown(part))
            case VendorContent():
                return self._encode_vendor_block(part)
            case FileContent():
                return self._encode_file(part)
            case SearchResultContent():
                return _encode_search_result(part)
            case AudioContent() | VideoContent():
                raise self._context.part_error(part, "at all")
            case ThinkingContent() if is_blank(part):
                return self._encode_thinking(part)
            case ThinkingContent() | ToolCall():
                raise self._context.part_error(part, "in a user's message")
            case _:
                assert_never(part)

    # Prompt cache markers.

    def _add_cache_slot(self, part: Part, block: Block | None) -> None:
        hint = part.cache
        if hint is None and isinstance(part, ToolResult) and not isinstance(part.content, str):
            # Only a whole result can have a marker.
            hint = next((inner.cache for inner in reversed(part.content) if inner.cache is not None), None)
        if block is not None and not isinstance(part, ThinkingContent | VendorContent):
            if hint is not None or self._caches_request:
                self.cache_slots.append(CacheSlot(cast(JsonDict, block), hint))
            return
        if hint is not None:
            self._context.warn(NO_BREAKPOINT)
        if isinstance(part, VendorContent) and block is not None and (control := block.get("cache_control")):
            self.cache_slots.append(read_cache_slot(cast(JsonDict, block), control))

    # Assistant parts.

    def _encode_own_text(self, part: TextContent) -> Block | None:
        """Encode text of an assistant. Citations and unknown keys are only sent back to their vendor."""
        own = is_own(part, self._origin)
        block = encode_text(part.text) if own and part.signature else _encode_unless_blank(part.text)
        if block is None or not own:
            return block
        if part.signature:
            block["signature"] = part.signature
        if citations := [citation.provider_data for citation in part.citations if citation.provider_data]:
            block["citations"] = citations
        return {**(part.provider_data or {}), **block}

    def _encode_thinking(self, part: ThinkingContent) -> Block | None:
        block: ThinkingBlock | RedactedThinkingBlock
        if part.redacted and part.encrypted_content:
            block = {"type": "redacted_thinking", "data": part.encrypted_content}
        elif part.signature:
            block = {"type": "thinking", "thinking": part.thinking, "signature": part.signature}
        else:
            self._context.warn(NO_SIGNATURE)
            return None
        return {**part.provider_data, **block} if part.provider_data else block

    def _encode_call(self, call: ToolCall) -> ToolUseBlock | JsonDict:
        # A plain dict is serialized faster than a frozen one.
        arguments = {**call.arguments}
        if call.invalid_arguments is not None:
            # The API accepts only objects. The model sees its own text.
            arguments = {"_invalid_json": call.invalid_arguments}
        name = normalize_name(call.name, MAX_NAME_LENGTH)
        if toolset := (call.provider_data or {}).get("toolset_name"):
            self._toolsets[call.id] = toolset
        block: ToolUseBlock = {"type": "tool_use", "id": _encode_id(call.id), "name": name, "input": arguments}
        if call.provider_data and is_own(call, self._origin):
            return {**call.provider_data, **block}
        return block

    def _encode_vendor_block(self, part: VendorContent) -> JsonDict:
        self._context.vendor_blocks.append(part.kind)
        return {**(part.provider_data or {})}

    # User parts.

    def _encode_result(self, result: ToolResult) -> ToolResultBlock:
        block: ToolResultBlock = {"type": "tool_result", "tool_use_id": _encode_id(result.tool_call_id)}
        content = self._encode_result_content(result.content)
        if result.is_error and isinstance(content, list) and any(inner["type"] != "text" for inner in content):
            self._context.warn(ERROR_WITH_MEDIA)
            content = [encode_text("The tool failed:"), *content]
        elif result.is_error:
            block["is_error"] = True
            content = content or _BLANK_ERROR
        if content:
            block["content"] = content
        if toolset := self._toolsets.get(result.tool_call_id):
            block["toolset_name"] = toolset
        block.update(cast(ToolResultBlock, _read_block_settings(result, "toolset_name")))
        return block

    def _encode_result_content(self, content: str | Sequence[Part]) -> str | list[Block]:
        if isinstance(content, str):
            return content if content.strip() else ""
        blocks = [self._with_extra(part, self._encode_user_part(part)) for part in content]
        return [block for block in blocks if block is not None]

    def _encode_image(self, part: ImageContent) -> ImageBlock:
        if part.detail not in (None, "auto"):
            self._context.warn(DETAIL_LEFT_OUT)
        block: ImageBlock = {"type": "image", "source": self._encode_image_source(part)}
        block.update(cast(ImageBlock, _read_block_settings(part, "transformations")))
        return block

    def _encode_image_source(self, part: ImageContent) -> Source:
        if part.image_url is not None:
            return {"type": "url", "url": part.image_url}
        data = part.image_data or b""
        # The API rejects media types that differ from the data.
        media_type = _detect_image_type(data) or _IMAGE_TYPES.get(part.media_type or "image/png")
        if media_type is None:
            raise self._context.part_error(part, f"as {part.media_type}; PNG, JPEG, GIF and WebP are supported")
        return {"type": "base64", "media_type": media_type, "data": encode_base64(data)}

    def _encode_file(self, part: FileContent) -> ImageBlock | DocumentBlock | ContainerUploadBlock:
        """Encode a file as an image or a document. Files of other kinds are for code that the model runs."""
        media_type = part.media_type or "application/pdf"
        source: Source = {"type": "file", "file_id": part.file_id}
        if media_type == "application/pdf" or media_type.startswith("text/plain"):
            return _encode_document(part, source)
        if part.title is not None:
            self._context.warn(FILE_TITLE_LEFT_OUT)
        if media_type.startswith("image/"):
            return {"type": "image", "source": source}
        return {"type": "container_upload", "file_id": part.file_id}

    def _encode_document_source(self, part: DocumentContent) -> Source:
        media_type = part.media_type or "application/pdf"
        if part.text is not None:
            return {"type": "text", "media_type": "text/plain", "data": part.text}
        if part.url is not None and media_type == "application/pdf":
            return {"type": "url", "url": part.url}
        if part.data is not None and media_type == "application/pdf":
            return {"type": "base64", "media_type": media_type, "data": encode_base64(part.data)}
        if part.data is not None and media_type.startswith("text/"):
            try:
                return {"type": "text", "media_type": "text/plain", "data": part.data.decode()}
            except UnicodeDecodeError:
                raise self._context.part_error(part, "with text that is not UTF-8") from None
        where = f"as {media_type}; PDF and plain text are supported, and PDF by URL"
        raise self._context.part_error(part, where)


def encode_text(text: str) -> TextBlock:
    return {"type": "text", "text": text}


def _encode_document(part: DocumentContent | FileContent, source: Source) -> DocumentBlock:
    block: DocumentBlock = {"type": "document", "source": source}
    if part.title is not None:
        block["title"] = part.title
    if isinstance(part, DocumentContent) and part.context is not None:
        block["context"] = part.context
    if isinstance(part, DocumentContent) and part.citations is not None:
        block["citations"] = {"enabled": part.citations}
    block.update(cast(DocumentBlock, _read_block_settings(part, "citations", "context")))
    return block


def _encode_search_result(part: SearchResultContent) -> SearchResultBlock:
    block: SearchResultBlock = {
        "type": "search_result",
        "source": part.source,
        "title": part.title,
        "content": [encode_text(text.text) for text in part.content if text.text.strip()],
    }
    if part.citations is not None:
        block["citations"] = {"enabled": part.citations}
    return block


def _encode_unless_blank(text: str) -> TextBlock | None:
    """Encode text, unless it is blank, which the API rejects."""
    return {"type": "text", "text": text} if text.strip() else None


def _encode_id(id: str) -> str:
    return normalize_id(id, _ID, prefix="toolu_")


def _strip_prefill(block: Block) -> None:
    """Strip trailing white space of a prefill, which the API rejects."""
    if block.get("type") == "text":
        prefill = cast(TextBlock, block)
        prefill["text"] = prefill["text"].rstrip()


def _read_block_settings(part: Part, *keys: str) -> Mapping[str, Any]:
    """Return vendor-specific settings of a block, from the part's `provider_data`."""
    data = part.provider_data
    if not data or (part.origin is not None and part.origin.api != API):
        return {}
    return {key: data[key] for key in keys if key in data}


def _detect_image_type(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((media_type for start, media_type in _IMAGE_STARTS if data.startswith(start)), None)
