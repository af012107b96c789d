"""Encoding of messages for Converse, one method per kind of content part, and cache points."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias, assert_never

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
    ToolSpec,
    VendorContent,
    VideoContent,
)
from ..anthropic.conversation import NAME_LEFT_OUT, NO_SIGNATURE
from ..encoding import JsonDict, encode_base64, normalize_id, normalize_name, to_markdown
from ..repair import is_own
from .fields import MAX_NAME_LENGTH, ConverseContext
from .models import MAX_CACHE_POINTS

Block: TypeAlias = JsonDict

CLIP_LEFT_OUT = "start, end and fps of a video were dropped: Converse does not support them"
DETAIL_LEFT_OUT = "the detail of an image was dropped: Converse does not support it"
NO_CACHE = "prompt cache markers were dropped: the model does not support them there"
NO_CACHE_POINT = "a prompt cache marker was dropped: this kind of part cannot have one"
TOO_MANY_CACHE_POINTS = f"Converse supports {MAX_CACHE_POINTS} prompt cache markers; the first ones were dropped"
DOCUMENT_TEXT = "(See the attached document.)"
DOCUMENT_TEXT_ADDED = f"Converse requires text beside a document; {DOCUMENT_TEXT!r} was added"
NO_OUTPUT = "(no output)"
"""Content of a blank tool result, which the API rejects."""

_ID = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
_S3 = "s3://"
_IMAGE_FORMATS = {
    "image/png": "png",
    "image/jpeg": "jpeg",
    "image/jpg": "jpeg",
    "image/gif": "gif",
    "image/webp": "webp",
}
_OFFICE = "application/vnd.openxmlformats-officedocument"
DOCUMENT_FORMATS = {
    "application/pdf": "pdf",
    "text/csv": "csv",
    "application/msword": "doc",
    f"{_OFFICE}.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    f"{_OFFICE}.spreadsheetml.sheet": "xlsx",
    "text/html": "html",
    "text/plain": "txt",
    "text/markdown": "md",
}
VIDEO_FORMATS = {
    "video/x-matroska": "mkv",
    "video/quicktime": "mov",
    "video/mp4": "mp4",
    "video/webm": "webm",
    "video/x-flv": "flv",
    "video/mpeg": "mpeg",
    "video/x-ms-wmv": "wmv",
    "video/3gpp": "three_gp",
}
_AUDIO_FORMATS = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "x-m4a": "m4a", "x-matroska": "mka"}
"""Formats by subtype, where they differ."""
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9()\[\]-]+")


class MessageEncoder:
    """Encodes the conversation of one request."""

    def __init__(self, context: ConverseContext) -> None:
        self._context = context
        self._document_names: set[str] = set()

    def encode_system(self, texts: Sequence[TextContent]) -> list[Block]:
        return [block for text in texts for block in (_encode_text(text.text), *_cache_point_of(text))]

    def encode(self, messages: Sequence[Message]) -> list[JsonDict]:
        """Encode messages. Consecutive messages of one role are merged."""
        encoded: list[JsonDict] = []
        for message in messages:
            blocks = self._encode_message(message)
            role = "assistant" if message.role is Role.ASSISTANT else "user"
            if blocks and encoded and encoded[-1]["role"] == role:
                encoded[-1]["content"] += blocks
            elif blocks:
                encoded.append({"role": role, "content": blocks})
        for turn in encoded:
            self._add_document_text(turn["content"])
        if messages[-1].role is Role.ASSISTANT and "text" in (last := encoded[-1]["content"][-1]):
            last["text"] = last["text"].rstrip()  # the API rejects white space at the end of a prefill
        return encoded

    def _add_document_text(self, content: list[Block]) -> None:
        if any("document" in block for block in content) and not any("text" in block for block in content):
            content.append(_encode_text(DOCUMENT_TEXT))
            self._context.warn(DOCUMENT_TEXT_ADDED)

    def _encode_message(self, message: Message) -> list[Block]:
        if message.name is not None and message.role is not Role.TOOL:
            self._context.warn(NAME_LEFT_OUT)
        encode_part = self._encode_assistant_part if message.role is Role.ASSISTANT else self._encode_user_part
        blocks: list[Block] = []
        for part in message.parts:
            block = encode_part(part)
            if block is not None:
                blocks.append(block)
            if block is None or isinstance(part, ThinkingContent):
                if part.cache is not None:
                    self._context.warn(NO_CACHE_POINT)
            else:
                blocks += _cache_point_of(part)
        return blocks

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
                return _encode_text(to_markdown(part))
            case VendorContent():
                return {**(part.provider_data or {})}
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
                return {"image": self._encode_image(part)}
            case DocumentContent():
                return self._encode_document(part)
            case AudioContent():
                subtype = (part.media_type or "audio/wav").partition("/")[2]
                source = {"bytes": encode_base64(part.data)}
                return {"audio": {"format": _AUDIO_FORMATS.get(subtype, subtype), "source": source}}
            case VideoContent():
                return {"video": self._encode_video(part)}
            case SearchResultContent():
                return {"searchResult": _encode_search_result(part)}
            case FileContent():
                raise self._context.part_error(part, "by id")
            case RefusalContent():
                return _encode_unless_blank(part.refusal)
            case CodeContent() | DiffContent():
                return _encode_text(to_markdown(part))
            case VendorContent():
                return {**(part.provider_data or {})}
            case ThinkingContent() | ToolCall():
                raise self._context.part_error(part, "in a user's message")
            case _:
                assert_never(part)

    # Assistant parts.

    def _encode_own_text(self, part: TextContent) -> Block | None:
        """Encode text of an assistant. Citations are only sent back to their vendor."""
        citations = [citation.provider_data for citation in part.citations if citation.provider_data]
        if not citations or not is_own(part, self._context.origin):
            return _encode_unless_blank(part.text)
        return {"citationsContent": {"content": [{"text": part.text}], "citations": citations}}

    def _encode_thinking(self, part: ThinkingContent) -> Block | None:
        if part.redacted and part.encrypted_content:
            return {"reasoningContent": {"redactedContent": part.encrypted_content}}
        if part.signature:
            return {"reasoningContent": {"reasoningText": {"text": part.thinking, "signature": part.signature}}}
        self._context.warn(NO_SIGNATURE)
        return None

    def _encode_call(self, call: ToolCall) -> Block:
        name = normalize_name(call.name, MAX_NAME_LENGTH)
        self._context.called_tools[name] = None
        arguments: JsonDict = {**call.arguments}
        if call.invalid_arguments is not None:
            # The API accepts only objects. The model sees its own text.
            arguments = {"_invalid_json": call.invalid_arguments}
        return {"toolUse": {"toolUseId": _encode_id(call.id), "name": name, "input": arguments}}

    # User parts.

    def _encode_result(self, result: ToolResult) -> Block:
        parts = [TextContent(text=result.content)] if isinstance(result.content, str) else result.content
        content = [block for part in parts if (block := self._encode_result_part(part)) is not None]
        encoded: JsonDict = {
            "toolUseId": _encode_id(result.tool_call_id),
            "content": content or [_encode_text(NO_OUTPUT)],
        }
        if result.is_error:
            encoded["status"] = "error"
        return {"toolResult": encoded}

    def _encode_result_part(self, part: Part) -> Block | None:
        if isinstance(part, AudioContent):
            raise self._context.part_error(part, "in a tool result")
        block = self._encode_user_part(part)
        if block is not None and "text" in block and self._context.features.json_results:
            return {"json": {"result": block["text"]}}
        return block

    def _encode_image(self, part: ImageContent) -> JsonDict:
        if part.detail not in (None, "auto"):
            self._context.warn(DETAIL_LEFT_OUT)
        format = _IMAGE_FORMATS.get(part.media_type or _guess_image_type(part))
        if format is None:
            raise self._context.part_error(part, f"as {part.media_type}; PNG, JPEG, GIF and WebP are supported")
        return {"format": format, "source": self._encode_source(part, part.image_url, part.image_data)}

    def _encode_video(self, part: VideoContent) -> JsonDict:
        if not (part.start is part.end is part.fps is None):
            self._context.warn(CLIP_LEFT_OUT)
        suffix = (part.url or "").rpartition(".")[2].lower()
        format = VIDEO_FORMATS.get(part.media_type or "", suffix if suffix in VIDEO_FORMATS.values() else "mp4")
        if part.media_type is not None and part.media_type not in VIDEO_FORMATS:
            raise self._context.part_error(part, f"as {part.media_type}")
        return {"format": format, "source": self._encode_source(part, part.url, part.data)}

    def _encode_document(self, part: DocumentContent) -> Block:
        media_type = part.media_type or ("text/plain" if part.text is not None else "application/pdf")
        data = part.data if part.text is None else part.text.encode()
        format = DOCUMENT_FORMATS.get(media_type, "txt" if media_type.startswith("text/") else None)
        if format is None:
            raise self._context.part_error(part, f"as {media_type}; PDF, office formats, HTML and text are supported")
        document: JsonDict = {
            "format": format,
            "name": self._choose_name(part.title or "document"),
            "source": self._encode_source(part, part.url, data),
        }
        if part.context is not None:
            document["context"] = part.context
        if part.citations is not None:
            document["citations"] = {"enabled": part.citations}
        return {"document": document}

    def _choose_name(self, title: str) -> str:
        """Return a valid name that no other document of the request has."""
        name = _NOT_IN_A_NAME.sub(" ", title).strip()[:190] or "document"
        number, unique = 1, name
        while unique in self._document_names:
            number += 1
            unique = f"{name} {number}"
        self._document_names.add(unique)
        return unique

    def _encode_source(self, part: Part, url: str | None, data: bytes | None) -> JsonDict:
        if data is not None:
            return {"bytes": encode_base64(data)}
        if url is not None and url.startswith(_S3):
            owner = (part.provider_data or {}).get("bucketOwner")
            return {"s3Location": {"uri": url, **({"bucketOwner": owner} if owner else {})}}
        raise self._context.part_error(part, "by URL, except s3:// URLs")


def _encode_text(text: str) -> Block:
    return {"text": text}


def _encode_unless_blank(text: str) -> Block | None:
    """Encode text, unless it is blank, which the API rejects."""
    return {"text": text} if text.strip() else None


def _encode_search_result(part: SearchResultContent) -> JsonDict:
    passages = [_encode_text(passage.text) for passage in part.content]
    result: JsonDict = {"source": part.source, "title": part.title, "content": passages}
    return result if part.citations is None else {**result, "citations": {"enabled": part.citations}}


def _encode_id(id: str) -> str:
    return normalize_id(id, _ID, prefix="tooluse_")


def _guess_image_type(part: ImageContent) -> str:
    """Guess the type of an image on S3 from its name."""
    suffix = (part.image_url or "").rpartition(".")[2].lower()
    return f"image/{suffix}" if f"image/{suffix}" in _IMAGE_FORMATS else "image/png"


# Cache points.


def _cache_point_of(part: Part) -> list[Block]:
    hint = part.cache
    if hint is None and isinstance(part, ToolResult) and not isinstance(part.content, str):
        # Only a whole result can have a cache point.
        hint = next((inner.cache for inner in reversed(part.content) if inner.cache is not None), None)
    return [] if hint is None else [_make_cache_point(hint)]


def _make_cache_point(hint: str) -> Block:
    return {"cachePoint": {"type": "default", **({"ttl": "1h"} if hint == "long" else {})}}


def place_cache_points(context: ConverseContext) -> None:
    """Add the cache points of tools and of `request.cache`; drop those that the model does not support."""
    body, hint, supported = context.body, context.request.cache, context.features.cached
    sections: dict[str, list[list[Block]]] = {
        "tools": [body.get("toolConfig", {}).get("tools", [])],
        "system": [body.get("system", [])],
        "messages": [message["content"] for message in body["messages"]],
    }
    tools = sections["tools"][0]
    for place, tool in reversed([*enumerate(context.request.tools)]):
        if tools and isinstance(tool, ToolSpec) and tool.cache is not None:
            tools.insert(place + 1, _make_cache_point(tool.cache))
    if hint is not None:
        for name, contents in sections.items():
            if contents[-1] and (name in supported or not supported) and "cachePoint" not in contents[-1][-1]:
                contents[-1].append(_make_cache_point(hint))
    points: list[tuple[list[Block], Block]] = []
    for name, contents in sections.items():
        for content in contents:
            for block in [block for block in content if "cachePoint" in block]:
                if name in supported:
                    points.append((content, block))
                else:
                    content.remove(block)
                    context.warn(NO_CACHE)
    for content, block in points[: -MAX_CACHE_POINTS or None]:
        content[:] = [each for each in content if each is not block]  # equal ones may follow
        context.warn(TOO_MANY_CACHE_POINTS)
    long_follows = False
    for _, block in reversed(points[-MAX_CACHE_POINTS:]):
        long_follows = long_follows or block["cachePoint"].get("ttl") == "1h"
        if long_follows:
            block["cachePoint"]["ttl"] = "1h"  # a long one must not follow a short one
