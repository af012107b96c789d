"""Keeps what is private from the vendor: placeholders go out, and what comes back has the values again.

The vendor sees `[EMAIL_1]`; the caller, in the answer, in the events of a stream and in the arguments of tool calls,
sees what it stands for. The model's reasoning keeps the placeholders: its vendor has signed it, and wants it back as it
was.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
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
    FrozenDict,
    ImageContent,
    Message,
    Part,
    RefusalContent,
    StreamEvent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    VendorContent,
)
from .base import CallInfo, Middleware
from .patterns import FINDERS, Finder, Key, Pieces, Table, by_pattern, placeholders_in

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


_KIND = re.compile(r"[A-Z][A-Z0-9_]*")


class Redaction(Middleware):
    """Replaces private values in everything a request says, and puts them back into the answer.

    Looked through are the system prompt, messages, tool results, arguments of tool calls and documents that are text;
    not names, metadata, `extra`, descriptions of tools, pictures and sounds.

    Args:
        kinds: What to look for: `email`, `phone`, `card`, `iban`, `key`; without any, all of them.
        patterns: More kinds, each with a regular expression or a function that yields spans (start, end) of a text.
        restore: Whether the answer gets the values back.
    """

    def __init__(
        self, *kinds: str, patterns: Mapping[str, str | re.Pattern[str] | Finder] | None = None, restore: bool = True
    ) -> None:
        unknown = [kind for kind in kinds if kind not in FINDERS]
        if unknown:
            raise errors.ConfigurationError(
                f"Redaction does not know {', '.join(unknown)}.",
                field="kinds",
                fix=f"Use {', '.join(FINDERS)}, or pass yours in patterns=.",
            )
        self._finders = [(name, _finder(name, find)) for name, find in (patterns or {}).items()]
        self._finders += [(kind.upper(), find) for kind, find in FINDERS.items() if not kinds or kind in kinds]
        self._made_from = (kinds, dict(patterns or {}), restore)
        self._restore = restore

    @override
    def __reduce__(self) -> Any:
        return _rebuild, self._made_from

    @override
    def before(self, request: AgentRequest, call: CallInfo) -> AgentRequest | None:
        met: set[str] = set()

        def note(text: str) -> str:
            met.update(placeholders_in(text))
            return text

        in_request(request, note)
        table = Table(self._finders, frozenset(met))
        redacted = in_request(request, table.hide)
        if not table:
            return None
        if self._restore:
            call.state["table"], call.state["pieces"] = table, Pieces(table)
            call.state["in_json"] = request.output_schema is not None
        return redacted

    @override
    def after(self, response: AgentResponse, call: CallInfo) -> AgentResponse | None:
        return self._restored(response, call)

    @override
    def on_error(self, error: Exception, call: CallInfo) -> None:
        """What had come of an answer is for the caller, too."""
        if isinstance(error, errors.StreamInterrupted) and error.partial is not None:
            error.partial = self._restored(error.partial, call)
        if isinstance(error, errors.SchemaValidationError) and "table" in call.state:
            error.text = None if error.text is None else call.state["table"].show(error.text, in_json=True)
            error.response = None if error.response is None else self._restored(error.response, call)

    @override
    def on_event(self, event: Any, call: CallInfo) -> list[StreamEvent] | None:
        if not isinstance(event, StreamEvent) or "table" not in call.state:
            return None
        return _Told(call.state["table"], call.state["pieces"], call.state["in_json"]).again(event)

    def _restored(self, response: AgentResponse, call: CallInfo) -> AgentResponse:
        table: Table | None = call.state.get("table")
        if table is None:
            return response
        in_json: bool = call.state["in_json"]
        changes: dict[str, Any] = {"content": tuple(_part(part, table, in_json) for part in response.content)}
        if response.output is not None:
            changes["output"] = in_value(response.output, table.show)
        return response.model_copy(update=changes)


class _Told:
    """Events with values in the place of placeholders."""

    __slots__ = ("_in_json", "_pieces", "_table")

    def __init__(self, table: Table, pieces: Pieces, in_json: bool) -> None:
        self._table, self._pieces, self._in_json = table, pieces, in_json

    def again(self, event: StreamEvent) -> list[StreamEvent]:
        kind, index = event.type, event.index
        key: Key = (kind, index)
        # A text without an index is over when something else comes.
        over: list[Key] = [held for held in self._pieces.holding() if held[1] is None and held != key]
        told: list[StreamEvent] = []
        match kind:
            case "text_delta" | "refusal_delta":
                in_json = self._in_json and kind == "text_delta"
                if text := self._pieces.feed(key, event.text or "", in_json=in_json):
                    told.append(event.model_copy(update={"text": text}))
            case "tool_call_delta":
                told += self._arguments(event, key)
            case "restart":
                self._pieces.clear()
                return [event]
            case "thinking_delta":
                told.append(event)
            case "message_end":
                over = self._pieces.holding()
                told.append(self._whole(event))
            case "tool_call_end":
                over.append(("tool_call_delta", index))
                told.append(self._whole(event))
            case "content_part":
                for spoken in ("text_delta", "refusal_delta"):
                    self._pieces.end((spoken, index))  # the part takes the place of what was said of it
                told.append(self._whole(event))
            case _:
                told.append(self._whole(event))
        return [*self._rest(over), *told]

    def _arguments(self, event: StreamEvent, key: Key) -> list[StreamEvent]:
        delta = event.tool_call_delta or {}
        text = self._pieces.feed(key, delta.get("arguments") or "", in_json=True)
        if not text and not delta.get("name"):
            return []
        return [event.model_copy(update={"tool_call_delta": FrozenDict({**delta, "arguments": text})})]

    def _rest(self, keys: list[Key]) -> list[StreamEvent]:
        """What was held back of texts that are over. It was no placeholder after all."""
        events: list[StreamEvent] = []
        for kind, index in keys:
            text = self._pieces.end((kind, index))
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

    def _whole(self, event: StreamEvent) -> StreamEvent:
        """An event that holds whole things."""
        changes: dict[str, Any] = {}
        if event.tool_call is not None:
            changes["tool_call"] = _part(event.tool_call, self._table, self._in_json)
        if event.part is not None:
            changes["part"] = _part(event.part, self._table, self._in_json)
        if event.tool_result is not None:
            changes["tool_result"] = self._table.show(event.tool_result)
        if event.response is not None and event.response.output is not None:
            output = in_value(event.response.output, self._table.show)
            changes["response"] = event.response.model_copy(update={"output": output})
        return event.model_copy(update=changes) if changes else event


def _part(part: Part, table: Table, in_json: bool) -> Part:
    """A part of an answer with the values in it."""
    match part:
        case ThinkingContent():
            return part
        case TextContent():
            text = table.show(part.text, in_json=in_json)
            if text == part.text:
                return part
            shifts = table.shifts(part.text, in_json=in_json) if part.citations else []
            citations = tuple(_moved(citation, shifts) for citation in part.citations)
            return part.model_copy(update={"text": text, "citations": citations})
        case ToolCall() if part.invalid_arguments is not None:  # meant as JSON, and nearly that
            return part.model_copy(update={"invalid_arguments": table.show(part.invalid_arguments, in_json=True)})
        case _:
            return in_part(part, table.show)


def _moved(citation: Citation, shifts: list[tuple[int, int]]) -> Citation:
    """A source of the same words, which stand elsewhere now."""

    def moved(place: int | None) -> int | None:
        return None if place is None else place + sum(grown for end, grown in shifts if end <= place)

    return citation.model_copy(update={"start": moved(citation.start), "end": moved(citation.end)})


def _finder(name: str, find: str | re.Pattern[str] | Finder) -> Finder:
    if not _KIND.fullmatch(name):
        raise errors.ConfigurationError(
            f"{name!r} cannot stand in a placeholder.", field="patterns", fix="Use capitals, digits and underscores."
        )
    return find if callable(find) else by_pattern(find)


def _rebuild(
    kinds: tuple[str, ...], patterns: Mapping[str, str | re.Pattern[str] | Finder], restore: bool
) -> Redaction:
    return Redaction(*kinds, patterns=patterns, restore=restore)
