"""Values in the names of other libraries: `to_dict(vocabulary=...)`. `from_dict` reads all of them.

Fields that a vocabulary lacks keep their names, so that `from_dict` restores an equivalent value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from ._base import Value, Vocabulary
from .media import ContentPart, ImageContent
from .messages import Message, Role
from .parts import TextContent, ToolCall, ToolResult, render_value
from .session import Session, StopReason, SystemPrompt, ToolDefinitions, ToolExecution
from .tools import ToolSpec
from .usage import Usage

_TAGS: dict[Vocabulary, dict[str, str]] = {
    "nano": {"tool_call": "tool_use"},
    "loop": {"image_url": "image"},
    "deepractice": {"tool_call": "tool-call", "tool_result": "tool-result", "image_url": "image"},
}
"""Tags of parts that differ from ours."""

_FIELDS: dict[Vocabulary, dict[str, dict[str, str]]] = {
    "nano": {
        "tool_call": {"arguments": "input"},
        "tool_result": {"tool_call_id": "tool_use_id"},
        "tool": {"parameters": "input_schema"},
    },
    "loop": {
        "text": {"signature": "text_signature"},
        "thinking": {"signature": "thinking_signature"},
        "image": {"image_url": "url", "media_type": "mime_type"},
        "tool_result": {"name": "tool_name"},
    },
    "deepractice": {
        "thinking": {"thinking": "reasoning"},
        "tool_call": {"arguments": "input"},
        "tool_result": {"tool_call_id": "id"},
        "image": {"image_url": "data", "image_data": "data", "media_type": "mediaType"},
        "diff": {"old_code": "oldCode", "new_code": "newCode"},
        "message": {"parent_id": "parentId"},
        "session": {"created_at": "createdAt", "updated_at": "updatedAt"},
    },
}
"""Names of fields that differ from ours, by the kind of value."""

_COUNTS: dict[Vocabulary, tuple[str, str, str, str]] = {
    "nano": ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"),
    "loop": ("input", "output", "cache_write", "cache_read"),
    "deepractice": ("input", "output", "cacheWrite", "cacheRead"),
}
"""Names of uncached input, output, cache writes and cache reads."""

_RESULT_FIELDS = frozenset(("tool_call_id", "name", "content", "details", "is_error", "result"))
"""Fields of a tool result that a message can hold in its place."""


def write_value(value: Value, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return a value as plain JSON data in another library's names."""
    if vocabulary not in _COUNTS:
        raise ValueError(f"unknown vocabulary {vocabulary!r}; expected one of {', '.join(_COUNTS)}")
    match value:
        case ContentPart():
            return _write_part(value, vocabulary)
        case Message():
            return _write_message(value, vocabulary)
        case Usage():
            return _write_usage(value, vocabulary)
        case Session():
            messages = [_write_message(message, vocabulary) for message in value.messages]
            return _rename("session", {**_own_fields(value), "messages": messages}, vocabulary)
        case ToolSpec():
            return _rename("tool", {"parameters": {}, **_own_fields(value)}, vocabulary)
        case ToolDefinitions():
            return {"type": value.type, "tools": [write_value(tool, vocabulary) for tool in value.tools]}
        case ToolExecution():
            return {"type": value.type, **_own_fields(value), "result": _write_parts(value.result, vocabulary)}
        case SystemPrompt() | StopReason():
            return value.to_dict()
        case _:
            raise TypeError(f"{type(value).__name__} has no names in other vocabularies")


def _own_fields(value: Value) -> dict[str, Any]:
    """Return the fields that were set, without the tag."""
    data = value.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    data.pop("type", None)
    return data


def _rename(kind: str, data: Mapping[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    names = _FIELDS[vocabulary].get(kind, {})
    return {names.get(name, name): value for name, value in data.items()}


# Parts


def _write_parts(content: str | Sequence[Any], vocabulary: Vocabulary) -> list[dict[str, Any]]:
    parts: Sequence[Any] = content
    if isinstance(content, str):
        parts = [TextContent(content)] if content else []
    return [_write_part(part, vocabulary) for part in parts]


def _write_part(part: ContentPart, vocabulary: Vocabulary) -> dict[str, Any]:
    tag = _TAGS[vocabulary].get(part.type, part.type)
    if isinstance(part, ImageContent) and (part.gallery or vocabulary == "deepractice"):
        return {"type": tag, "images": [_write_image(image, vocabulary) for image in part.images]}
    if isinstance(part, ImageContent):
        return {"type": tag, **_write_image(part, vocabulary)}
    data = _own_fields(part)
    if isinstance(part, ToolCall):
        data.setdefault("arguments", {})
    if isinstance(part, ToolResult):
        data = _write_result(part, data, vocabulary)
    return {"type": tag, **_rename(part.type, data, vocabulary)}


def _write_image(image: ImageContent, vocabulary: Vocabulary) -> dict[str, Any]:
    data = _own_fields(image)
    if vocabulary == "loop" and image.image_data is not None:  # this vocabulary has addresses only
        media_type = data.pop("media_type", "")
        data["image_url"] = f"data:{quote(media_type)};base64,{data.pop('image_data')}"
        data |= {"media_type": media_type} if media_type else {}
    return _rename("image", data, vocabulary)


def _write_result(result: ToolResult, data: dict[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    if vocabulary == "deepractice":
        shown = result.text if result.result is None else data["result"]
        if result.content == render_value(shown):
            return {**{name: item for name, item in data.items() if name != "content"}, "result": shown}
        content = result.content if isinstance(result.content, str) else _write_parts(result.content, vocabulary)
        return {**data, "content": content, "result": shown}
    return {**data, "content": _write_parts(result.content, vocabulary)}


# Messages


def _write_message(message: Message, vocabulary: Vocabulary) -> dict[str, Any]:
    data = _own_fields(message)
    result = _only_result(message)
    if result is not None:  # its id and name are those of the part
        data = {name: value for name, value in data.items() if name not in ("tool_call_id", "name")}
    if message.usage is not None:
        data["usage"] = _write_usage(message.usage, vocabulary)
    match vocabulary:
        case "nano":
            if message.role is Role.TOOL:
                data["role"] = "user"
            if message.role is Role.TOOL or not isinstance(message.content, str):
                data["content"] = _write_parts(message.parts, vocabulary)
        case "loop":
            if message.timestamp is not None:
                data["timestamp"] = _to_milliseconds(message.timestamp)
            own = {} if result is None else _own_fields(result)
            if result is not None and own.keys() <= _RESULT_FIELDS:
                own["content"] = _write_parts(result.content, vocabulary)
                return {**data, "role": "tool_result", **_rename("tool_result", own, vocabulary)}
            data["content"] = _write_parts(message.parts, vocabulary)
        case "deepractice":
            data["content"] = _write_content(message, vocabulary)
    return _rename("message", data, vocabulary)


def _only_result(message: Message) -> ToolResult | None:
    """Return the tool result of a tool message, if it has exactly one part."""
    parts = message.parts if message.role is Role.TOOL else ()
    return parts[0] if len(parts) == 1 and isinstance(parts[0], ToolResult) else None


def _write_content(message: Message, vocabulary: Vocabulary) -> Any:
    """Return one object where possible: a single part, or a gallery."""
    parts = message.parts or (TextContent(""),)
    if len(parts) > 1 and all(isinstance(part, ImageContent) for part in parts):
        return _write_part(ImageContent(images=[part for part in parts if isinstance(part, ImageContent)]), vocabulary)
    written = _write_parts(parts, vocabulary)
    return written[0] if len(written) == 1 else written


def _to_milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)


# Usage


def _write_usage(usage: Usage, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return exclusive counts; except in `nano`, cache counts only if they are known."""
    uncached, output, written, read = _COUNTS[vocabulary]
    counts: dict[str, Any] = {uncached: usage.input_tokens, output: usage.output_tokens}
    if vocabulary == "nano" or "cache_write_tokens" in usage.model_fields_set:
        counts[written] = usage.cache_write_tokens
    if vocabulary == "nano" or "cache_read_tokens" in usage.model_fields_set:
        counts[read] = usage.cache_read_tokens
    if usage.reasoning_tokens:
        counts["reasoning_tokens"] = usage.reasoning_tokens
    if usage.total_tokens != usage.prompt_tokens + usage.completion_tokens:
        counts["total_tokens"] = usage.total_tokens
    own = usage.to_dict()
    return counts | {name: own[name] for name in ("details", "billed", "estimated") if name in own}
