"""Redaction: replaces private values in requests by placeholders, and restores them in responses.

The vendor receives `[EMAIL_1]`; the caller gets the value in the response, stream events and arguments of tool calls.
Reasoning keeps the placeholders, because vendors sign it and need it back unchanged.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar, assert_never

from pydantic import BaseModel
from typing_extensions import override

from .. import errors
from ..types import (
    AgentRequest,
    AgentResponse,
    AudioContent,
    Citation,
    CodeContent,
    ContentPart,
    DiffContent,
    DocumentContent,
    FileContent,
    FrozenDict,
    ImageContent,
    Message,
    Part,
    RefusalContent,
    SearchResultContent,
    StreamEvent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    VendorContent,
    VideoContent,
)
from .base import CallInfo, Middleware
from .patterns import FINDERS, Finder, PlaceholderTable, compile_finder, find_placeholders

Change: TypeAlias = Callable[[str], str]
P = TypeVar("P", bound=ContentPart)
_KIND_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


class Redaction(Middleware):
    """Replaces private values in requests by placeholders, and restores them in responses.

    It covers the system prompt, messages, tool results, arguments of tool calls and text documents, but not names,
    metadata, `extra`, tool descriptions, images and audio.

    Args:
        kinds: Kinds of values: `email`, `phone`, `card`, `iban`, `key`; by default all of them.
        patterns: More kinds, each with a regular expression or a function that yields spans (start, end) of a text.
        restore: Whether to restore the values in the response.
    """

    def __init__(
        self, *kinds: str, patterns: Mapping[str, str | re.Pattern[str] | Finder] | None = None, restore: bool = True
    ) -> None:
        unknown = [kind for kind in kinds if kind not in FINDERS]
        if unknown:
            raise errors.ConfigurationError(
                f"Unknown kinds of private values: {', '.join(unknown)}.",
                field="kinds",
                fix=f"Use {', '.join(FINDERS)}, or define them in patterns=.",
            )
        self._finders = [(name, _read_pattern(name, find)) for name, find in (patterns or {}).items()]
        self._finders += [(kind.upper(), find) for kind, find in FINDERS.items() if not kinds or kind in kinds]
        self._kinds, self._patterns, self._restore = kinds, patterns, restore

    @override
    def __reduce__(self) -> Any:
        return partial(Redaction, *self._kinds, patterns=self._patterns, restore=self._restore), ()

    @override
    def before(self, request: AgentRequest, call: CallInfo) -> AgentRequest | None:
        reserved: set[str] = set()

        def collect(text: str) -> str:
            reserved.update(find_placeholders(text))
            return text

        change_request(request, collect)
        table = PlaceholderTable(self._finders, frozenset(reserved))
        redacted = change_request(request, table.redact)
        if not table:
            return None
        if self._restore:
            call.state["restoration"] = StreamRestoration(table, in_json=request.output_schema is not None)
        return redacted

    @override
    def after(self, response: AgentResponse, call: CallInfo) -> AgentResponse | None:
        restoration: StreamRestoration | None = call.state.get("restoration")
        return None if restoration is None else restoration.restore_response(response)

    @override
    def on_error(self, error: Exception, call: CallInfo) -> None:
        """Restore the partial or invalid response of an error."""
        restoration: StreamRestoration | None = call.state.get("restoration")
        if restoration is None:
            return
        if isinstance(error, errors.StreamInterrupted) and error.partial is not None:
            error.partial = restoration.restore_response(error.partial)
        if isinstance(error, errors.SchemaValidationError):
            if error.text is not None:
                error.text = restoration.table.restore(error.text, in_json=True)
            if error.response is not None:
                error.response = restoration.restore_response(error.response)

    @override
    def on_event(self, event: Any, call: CallInfo) -> list[StreamEvent] | None:  # Any: an event of a stream or a run
        restoration: StreamRestoration | None = call.state.get("restoration")
        if not isinstance(event, StreamEvent) or restoration is None:
            return None
        return restoration.restore_event(event)


_TextKey: TypeAlias = tuple[str, int | None]
"""Identifies one of the texts of a stream: the type of its events and their index."""


class StreamRestoration:
    """Restores the values in the response or the stream events of one call."""

    def __init__(self, table: PlaceholderTable, *, in_json: bool) -> None:
        self.table: PlaceholderTable = table
        self._in_json = in_json
        self._buffers: dict[_TextKey, str] = {}
        """Incomplete placeholders at the ends of texts that are streamed."""

    def restore_response(self, response: AgentResponse) -> AgentResponse:
        changes: dict[str, Any] = {"content": tuple(self._restore_part(part) for part in response.content)}
        if response.output is not None:
            changes["output"] = change_value(response.output, self.table.restore)
        return response.model_copy(update=changes)

    def restore_event(self, event: StreamEvent) -> list[StreamEvent]:
        """Return the events to emit: buffered ends of texts that are over, then the restored event."""
        kind, index = event.type, event.index
        key: _TextKey = (kind, index)
        # A text without an index ends when an event of another text arrives.
        ended = [text for text in self._buffers if text[1] is None and text != key]
        restored: list[StreamEvent] = []
        match kind:
            case "text_delta" | "refusal_delta":
                in_json = self._in_json and kind == "text_delta"
                if text := self._restore_piece(key, event.text or "", in_json=in_json):
                    restored.append(event.model_copy(update={"text": text}))
            case "tool_call_delta":
                delta = event.tool_call_delta or {}
                arguments = self._restore_piece(key, delta.get("arguments") or "", in_json=True)
                if arguments or delta.get("name"):
                    changed = FrozenDict({**delta, "arguments": arguments})
                    restored.append(event.model_copy(update={"tool_call_delta": changed}))
            case "restart":
                self._buffers.clear()
                return [event]
            case "thinking_delta":
                restored.append(event)
            case "message_end":
                ended = list(self._buffers)
                restored.append(self._restore_values(event))
            case "tool_call_end":
                ended.append(("tool_call_delta", index))
                restored.append(self._restore_values(event))
            case "content_part":
                self._buffers.pop(("text_delta", index), None)  # the part replaces its deltas
                self._buffers.pop(("refusal_delta", index), None)
                restored.append(self._restore_values(event))
            case _:
                restored.append(self._restore_values(event))
        return [*self._flush_texts(ended), *restored]

    def _restore_piece(self, key: _TextKey, piece: str, *, in_json: bool) -> str:
        """Add a piece of a text, and return the restored text that is complete."""
        text = self._buffers.pop(key, "") + piece
        length = self.table.complete_length(text)
        if length < len(text):
            self._buffers[key] = text[length:]
        return self.table.restore(text[:length], in_json=in_json)

    def _flush_texts(self, keys: list[_TextKey]) -> list[StreamEvent]:
        """Return events with the buffered ends of texts, which are not placeholders after all."""
        events: list[StreamEvent] = []
        for kind, index in keys:
            text = self._buffers.pop((kind, index), "")
            match kind if text else None:
                case "text_delta":
                    events.append(StreamEvent.text_delta(text, index=index))
                case "refusal_delta":
                    events.append(StreamEvent.refusal_delta(text, index=index))
                case "tool_call_delta":
                    events.append(StreamEvent.tool_call_delta_event(text, index=index))
                case _:
                    pass
        return events

    def _restore_values(self, event: StreamEvent) -> StreamEvent:
        """Restore the complete values of an event."""
        changes: dict[str, Any] = {}
        if event.tool_call is not None:
            changes["tool_call"] = self._restore_part(event.tool_call)
        if event.part is not None:
            changes["part"] = self._restore_part(event.part)
        if event.tool_result is not None:
            changes["tool_result"] = self.table.restore(event.tool_result)
        if event.response is not None and event.response.output is not None:
            output = change_value(event.response.output, self.table.restore)
            changes["response"] = event.response.model_copy(update={"output": output})
        return event.model_copy(update=changes) if changes else event

    def _restore_part(self, part: Part) -> Part:
        match part:
            case ThinkingContent():
                return part
            case TextContent():
                text = self.table.restore(part.text, in_json=self._in_json)
                if text == part.text:
                    return part
                shifts = self.table.list_shifts(part.text, in_json=self._in_json) if part.citations else []
                citations = tuple(_shift_citation(citation, shifts) for citation in part.citations)
                return part.model_copy(update={"text": text, "citations": citations})
            case ToolCall() if part.invalid_arguments is not None:
                arguments = self.table.restore(part.invalid_arguments, in_json=True)
                return part.model_copy(update={"invalid_arguments": arguments})
            case _:
                return change_part(part, self.table.restore)


def _shift_citation(citation: Citation, shifts: list[tuple[int, int]]) -> Citation:
    """Move the offsets of a citation to the restored text."""

    def shift(offset: int | None) -> int | None:
        return None if offset is None else offset + sum(added for end, added in shifts if end <= offset)

    return citation.model_copy(update={"start": shift(citation.start), "end": shift(citation.end)})


def _read_pattern(name: str, pattern: str | re.Pattern[str] | Finder) -> Finder:
    if not _KIND_NAME.fullmatch(name):
        raise errors.ConfigurationError(
            f"{name!r} is not a valid kind for placeholders.",
            field="patterns",
            fix="Use capitals, digits and underscores.",
        )
    return pattern if callable(pattern) else compile_finder(pattern)


# Changing the texts of requests and values


def change_request(request: AgentRequest, change: Change) -> AgentRequest:
    """Change all texts of a request, in the order in which a model reads them."""
    changes: dict[str, Any] = {}
    if request.system is not None:
        changes["system"] = change(request.system)
    messages = tuple(change_message(message, change) for message in request.messages)
    if any(new is not old for new, old in zip(messages, request.messages, strict=True)):
        changes["messages"] = messages
    if request.input is not None:
        changes["input"] = change(request.input)
    changes = {name: value for name, value in changes.items() if value != getattr(request, name)}
    return request.model_copy(update=changes) if changes else request


def change_message(message: Message, change: Change) -> Message:
    content = message.content
    if isinstance(content, str):
        text = change(content)
        return message if text == content else message.model_copy(update={"content": text})
    parts = tuple(change_part(part, change) for part in content)
    if all(new is old for new, old in zip(parts, content, strict=True)):
        return message
    return message.model_copy(update={"content": parts})


def change_part(part: Part, change: Change) -> Part:
    """Change all texts of a content part."""
    match part:
        case TextContent():
            return _copy_changed(part, text=change(part.text))
        case ThinkingContent():
            is_sealed = part.signature or part.encrypted_content or part.redacted or part.provider_data
            return part if is_sealed else _copy_changed(part, thinking=change(part.thinking))
        case RefusalContent():
            return _copy_changed(part, refusal=change(part.refusal))
        case CodeContent():
            return _copy_changed(part, code=change(part.code))
        case DiffContent():
            return _copy_changed(part, old_code=change(part.old_code), new_code=change(part.new_code))
        case ToolCall():
            arguments = change_value(part.arguments, change)
            invalid = None if part.invalid_arguments is None else change(part.invalid_arguments)
            return _copy_changed(part, arguments=arguments, invalid_arguments=invalid)
        case ToolResult():
            if isinstance(part.content, str):
                return _copy_changed(part, content=change(part.content))
            inner = tuple(change_part(one, change) for one in part.content)
            is_same = all(new is old for new, old in zip(inner, part.content, strict=True))
            return part if is_same else part.model_copy(update={"content": inner})
        case DocumentContent():
            return _change_document(part, change)
        case SearchResultContent():
            texts = tuple(_copy_changed(text, text=change(text.text)) for text in part.content)
            return _copy_changed(part, title=change(part.title), content=texts)
        case ImageContent() | AudioContent() | VideoContent() | FileContent() | VendorContent():
            return part
        case _:
            assert_never(part)


def change_value(value: Any, change: Change) -> Any:
    """Change all texts in JSON values, models and dataclasses. Validation does not run again."""
    match value:
        case str():
            return change(value) if type(value) is str else value
        case BaseModel():
            fields = {name: change_value(field, change) for name, field in value.__dict__.items()}
            changes = {name: new for name, new in fields.items() if new is not value.__dict__[name]}
            return BaseModel.model_copy(value, update=changes) if changes else value
        case Mapping():
            pairs = {change_value(key, change): change_value(item, change) for key, item in value.items()}
            return value if pairs == value else pairs
        case tuple() if hasattr(value, "_make"):
            return value._make(change_value(item, change) for item in value)
        case list() | tuple() | set() | frozenset():
            items = [change_value(item, change) for item in value]
            is_same = all(new is old for new, old in zip(items, value, strict=True))
            return value if is_same else (items if isinstance(value, list) else type(value)(items))
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
            new = {name: change_value(field, change) for name, field in fields.items()}
            return value if new == fields else dataclasses.replace(value, **new)
        case _:
            return value


def _change_document(part: DocumentContent, change: Change) -> DocumentContent:
    changes: dict[str, Any] = {
        name: change(text) for name in ("text", "title", "context") if isinstance(text := getattr(part, name), str)
    }
    if part.data is not None and (part.media_type or "").startswith("text/"):
        with suppress(UnicodeDecodeError):
            changes["data"] = change(part.data.decode()).encode()
    return _copy_changed(part, **changes)


def _copy_changed(part: P, **changes: Any) -> P:
    new = {name: value for name, value in changes.items() if value != getattr(part, name)}
    return part.model_copy(update=new) if new else part
