"""One shape for the messages of all vocabularies: whatever a dict calls its content, calls and results.

It knows parts, and nothing of the message that is made of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .parts import (
    CodeContent,
    ContentPart,
    DiffContent,
    RefusalContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    VendorContent,
    class_of_tag,
)

_RESULT_KEYS = ("tool_call_id", "tool_use_id", "name", "tool_name", "details", "is_error", "result")
_ONLY_RESULTS_HAVE = frozenset(("details", "is_error", "result"))
_NEVER_IN_RESULTS = (CodeContent, DiffContent, ThinkingContent, ToolCall, RefusalContent, VendorContent)


def read_message(given: dict[str, Any]) -> dict[str, Any]:
    """What pydantic shall read in place of a dict that somebody passed."""
    data = dict(given)
    content = _read_content(data.get("content"))
    if not isinstance(content, str | tuple):
        return given  # pydantic knows how to complain about it
    if calls := data.pop("tool_calls", None):
        content = _with_calls(content, calls)
    role = data.get("role")
    if role in ("tool", "tool_result"):
        data["role"] = "tool"
        if (role == "tool_result" or not _ONLY_RESULTS_HAVE.isdisjoint(data)) and not _is_result(content):
            result = {key: data[key] for key in _RESULT_KEYS if key in data}
            content = (ToolResult.model_validate({**result, "content": content}),)
        if data.get("tool_call_id") is not None and not _is_result(content):
            _check_result(content)
        content = _name_the_result(data, content)
    data["content"] = content
    return data


def _read_content(content: Any) -> Any:
    """No content, a single part, galleries of images and gaps: all become text or a tuple of parts."""
    if content is None:
        return ""
    if isinstance(content, str | bytes):
        return content
    if not isinstance(content, tuple):
        if isinstance(content, Mapping | ContentPart):
            content = (content,)
        elif not isinstance(content, Iterable):
            return content
        content = tuple(content)
    for part in content:
        if not isinstance(part, ContentPart):
            break
    else:
        return content
    return tuple(single for part in content if part is not None for single in _single_parts(part))


def _single_parts(part: Any) -> Sequence[Any]:
    if isinstance(part, Mapping) and isinstance(images := part.get("images"), list | tuple):
        return [{**image, "type": "image"} if isinstance(image, Mapping) else image for image in images]
    return (part,)


def _with_calls(content: str | tuple[Any, ...], calls: Any) -> tuple[Any, ...]:
    """Calls given beside the content join it, each id once."""
    if not isinstance(calls, list | tuple):
        raise ValueError("tool_calls must be a list")
    parts = ((TextContent(text=content),) if content else ()) if isinstance(content, str) else content
    known = [part.id if isinstance(part, ToolCall) else part.get("id") for part in parts if _is_tagged(part, ToolCall)]
    read = [call if isinstance(call, ToolCall) else ToolCall.model_validate(call) for call in calls]
    return (*parts, *(call for call in read if call.id not in known))


def _is_result(content: str | tuple[Any, ...]) -> bool:
    """Whether the content of a tool's message is a lone result already."""
    return not isinstance(content, str) and len(content) == 1 and _is_tagged(content[0], ToolResult)


def _check_result(content: str | tuple[Any, ...]) -> None:
    """A message that is one tool's result holds what a result may hold."""
    for part in () if isinstance(content, str) else content:
        for kind in _NEVER_IN_RESULTS:
            if _is_tagged(part, kind):
                raise ValueError(
                    f"a tool's result holds text, images, documents and audio, not {kind.__name__}; write it as text"
                )


def _is_tagged(part: Any, kind: type[ContentPart]) -> bool:
    """Whether a part, read or still a dict, is of that kind."""
    if isinstance(part, kind):
        return True
    tag = part.get("type") if isinstance(part, Mapping) else None
    return isinstance(tag, str) and class_of_tag(tag) is kind


def _name_the_result(data: dict[str, Any], content: Any) -> Any:
    """The message of a lone result carries that result's id and name, too."""
    if not _is_result(content):
        data["name"] = data.get("name", data.get("tool_name"))
        return content
    part = content[0] if isinstance(content[0], ToolResult) else ToolResult.model_validate(content[0])
    if data.get("tool_call_id") is None:
        data["tool_call_id"] = part.tool_call_id
    if data.get("name") is None:
        data["name"] = part.name
    return (part,)
