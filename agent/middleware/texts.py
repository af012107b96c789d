"""Every text in a request, a part, a response or a value, changed by one function. What has no text stays the same
object, so that what codecs have kept about it stays of use.

Not touched: reasoning that its vendor has sealed, since a changed text would not fit its seal; what only a vendor
understands; and what is about the call rather than said in it: names, ids, metadata, settings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar, assert_never

from pydantic import BaseModel

from ..types import (
    AgentRequest,
    AudioContent,
    CodeContent,
    ContentPart,
    DiffContent,
    DocumentContent,
    ImageContent,
    Message,
    Part,
    RefusalContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    VendorContent,
)

Change: TypeAlias = Callable[[str], str]
P = TypeVar("P", bound=ContentPart)


def in_request(request: AgentRequest, change: Change) -> AgentRequest:
    """A request with all its texts changed, in the order in which a model reads them."""
    changes: dict[str, Any] = {}
    if request.system is not None:
        changes["system"] = change(request.system)
    messages = tuple(in_message(message, change) for message in request.messages)
    if any(new is not old for new, old in zip(messages, request.messages, strict=True)):
        changes["messages"] = messages
    if request.input is not None:
        changes["input"] = change(request.input)
    changes = {name: value for name, value in changes.items() if value != getattr(request, name)}
    return request.model_copy(update=changes) if changes else request


def in_message(message: Message, change: Change) -> Message:
    content = message.content
    if isinstance(content, str):
        text = change(content)
        return message if text == content else message.model_copy(update={"content": text})
    parts = tuple(in_part(part, change) for part in content)
    if all(new is old for new, old in zip(parts, content, strict=True)):
        return message
    return message.model_copy(update={"content": parts})


def in_part(part: Part, change: Change) -> Part:
    """A part with its texts changed."""
    match part:
        case TextContent():
            return _changed(part, text=change(part.text))
        case ThinkingContent():
            sealed = part.signature or part.encrypted_content or part.redacted or part.provider_data
            return part if sealed else _changed(part, thinking=change(part.thinking))
        case RefusalContent():
            return _changed(part, refusal=change(part.refusal))
        case CodeContent():
            return _changed(part, code=change(part.code))
        case DiffContent():
            return _changed(part, old_code=change(part.old_code), new_code=change(part.new_code))
        case ToolCall():
            arguments = in_value(part.arguments, change)
            invalid = None if part.invalid_arguments is None else change(part.invalid_arguments)
            return _changed(part, arguments=arguments, invalid_arguments=invalid)
        case ToolResult():
            if isinstance(part.content, str):
                return _changed(part, content=change(part.content))
            inner = tuple(in_part(one, change) for one in part.content)
            same = all(new is old for new, old in zip(inner, part.content, strict=True))
            return part if same else part.model_copy(update={"content": inner})
        case DocumentContent():
            return _in_document(part, change)
        case ImageContent() | AudioContent() | VendorContent():
            return part
        case _:
            assert_never(part)


def in_value(value: Any, change: Change) -> Any:
    """A value with every text in it changed, whatever it is made of: JSON, models, dataclasses. Types stay as they are,
    and what they check of their fields is not checked again."""
    match value:
        case str():
            return change(value) if type(value) is str else value
        case BaseModel():
            fields = {name: in_value(field, change) for name, field in value.__dict__.items()}
            changed = {name: new for name, new in fields.items() if new is not value.__dict__[name]}
            return BaseModel.model_copy(value, update=changed) if changed else value
        case Mapping():
            pairs = {in_value(key, change): in_value(item, change) for key, item in value.items()}
            return value if pairs == value else pairs
        case tuple() if hasattr(value, "_make"):
            return value._make(in_value(item, change) for item in value)
        case list() | tuple() | set() | frozenset():
            items = [in_value(item, change) for item in value]
            same = all(new is old for new, old in zip(items, value, strict=True))
            return value if same else (items if isinstance(value, list) else type(value)(items))
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
            new = {name: in_value(field, change) for name, field in fields.items()}
            return value if new == fields else dataclasses.replace(value, **new)
        case _:
            return value


def _in_document(part: DocumentContent, change: Change) -> DocumentContent:
    changes: dict[str, Any] = {
        name: change(text) for name in ("text", "title") if isinstance(text := getattr(part, name), str)
    }
    if part.data is not None and (part.media_type or "").startswith("text/"):
        with suppress(UnicodeDecodeError):  # then it is no text that could be read
            changes["data"] = change(part.data.decode()).encode()
    return _changed(part, **changes)


def _changed(part: P, **changes: Any) -> P:
    new = {name: value for name, value in changes.items() if value != getattr(part, name)}
    return part.model_copy(update=new) if new else part
