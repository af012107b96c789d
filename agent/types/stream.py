"""Stream events: one frozen dataclass per type, the base class `StreamEvent`, and their union."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, TypeVar, get_args

from pydantic import ConfigDict, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema
from typing_extensions import override

from ..errors import printable
from ._base import FrozenDict, JsonObject, Value
from .media import ImageContent
from .parts import Part, ToolCall
from .response import AgentResponse
from .usage import Usage

StreamEventType = Literal[
    "text_delta", "thinking_delta", "refusal_delta", "tool_call_start", "tool_call_delta", "tool_call_end",
    "tool_result", "content_part", "partial_image", "tool_progress", "message_start", "message_end",
    "usage", "error", "restart",
]  # fmt: skip
WordsType = Literal["text_delta", "thinking_delta", "refusal_delta"]


class StreamEventData(Value, frozen=True):
    """All fields of all event types, to validate and serialize events with pydantic."""

    model_config: ClassVar[ConfigDict] = ConfigDict(title="StreamEvent")

    type: StreamEventType
    text: str | None = None
    tool_call: ToolCall | None = None
    tool_call_delta: JsonObject | None = None
    tool_result: str | None = None
    usage: Usage | None = None
    error: str | None = None
    index: int | None = None
    part: Part | None = None
    response: AgentResponse | None = None
    tool: str | None = None
    status: str | None = None
    id: str | None = None

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        required, allowed = _FIELDS[self.type]
        for name in _DATA_FIELDS:
            value = getattr(self, name)
            if value is None and name in required:
                raise ValueError(f"a {self.type} event needs {name}")
            if value is not None and name not in allowed:
                raise ValueError(f"a {self.type} event has no {name}")
        return self


class _EventMeta(type):
    """Makes `StreamEvent(type=...)` return a validated event of the class for that type."""

    if not TYPE_CHECKING:

        def __call__(cls, *, raw=None, **values):
            __tracebackhide__ = True
            return cls._from_data(StreamEventData.model_validate(values), raw)


class _EventTypeMeta(_EventMeta):
    """Metaclass of the event classes, which have the usual dataclass constructor."""

    if not TYPE_CHECKING:
        __call__ = type.__call__


class StreamEvent(metaclass=_EventMeta):
    """Base class of stream events; create events with the factories.

    All attributes below exist on every event; those of other types are None. Subclasses write `field()` for a required
    field, because these class attributes would otherwise be its default.
    """

    __slots__ = ()

    type: ClassVar[StreamEventType]
    text: str | None = None
    tool_call: ToolCall | None = None
    tool_call_delta: JsonObject | None = None
    """`arguments`: next fragment of the arguments' JSON text; `id` and `name` if the vendor repeats them."""
    tool_result: str | None = None
    usage: Usage | None = None
    """Token counts so far; each report replaces the previous one."""
    error: str | None = None
    index: int | None = None
    """Index of the content block in the response."""
    part: Part | None = None
    response: AgentResponse | None = None
    """Metadata without content: provider and model on message_start, stop reason and others on message_end."""
    tool: str | None = None
    """Kind of a tool that runs at the vendor, by the vendor's name; `status` is its progress, `id` that of the run."""
    status: str | None = None
    id: str | None = None
    raw: Any = None
    """The vendor's event; not part of equality, hash, dumps and pickles."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            type: StreamEventType,
            text: str | None = None,
            tool_call: ToolCall | None = None,
            tool_call_delta: Mapping[str, Any] | None = None,
            tool_result: str | None = None,
            usage: Usage | None = None,
            error: str | None = None,
            index: int | None = None,
            part: Part | None = None,
            response: AgentResponse | None = None,
            tool: str | None = None,
            status: str | None = None,
            id: str | None = None,
            raw: Any = None,
        ) -> None: ...

    # Factories

    @staticmethod
    def text_delta(text: str, *, index: int | None = None, raw: Any = None) -> TextDelta:
        """The next piece of text."""
        if type(text) is not str or not (index is None or type(index) is int):
            return _create_event(TextDelta, raw, text=text, index=index)
        return TextDelta(text, index, raw)

    @staticmethod
    def thinking_delta(text: str, *, index: int | None = None, raw: Any = None) -> ThinkingDelta:
        """The next piece of the model's reasoning."""
        if type(text) is not str or not (index is None or type(index) is int):
            return _create_event(ThinkingDelta, raw, text=text, index=index)
        return ThinkingDelta(text, index, raw)

    @staticmethod
    def refusal_delta(text: str, *, index: int | None = None, raw: Any = None) -> RefusalDelta:
        """The next piece of a refusal."""
        if type(text) is not str or not (index is None or type(index) is int):
            return _create_event(RefusalDelta, raw, text=text, index=index)
        return RefusalDelta(text, index, raw)

    @staticmethod
    def tool_call_start(tool_call: ToolCall, *, index: int | None = None, raw: Any = None) -> ToolCallStart:
        """A tool call begins; its arguments follow."""
        return _create_event(ToolCallStart, raw, tool_call=tool_call, index=index)

    @staticmethod
    def tool_call_delta_event(
        arguments: str, *, id: str | None = None, name: str | None = None, index: int | None = None, raw: Any = None
    ) -> ToolCallDelta:
        """The next fragment of the JSON text of a tool call's arguments."""
        pairs = (("id", id), ("name", name), ("arguments", arguments))
        delta = FrozenDict([(key, value) for key, value in pairs if value is not None])
        if type(arguments) is not str or not (index is None or type(index) is int):
            return _create_event(ToolCallDelta, raw, tool_call_delta=delta, index=index)
        return ToolCallDelta(delta, index, raw)

    @staticmethod
    def tool_call_end(tool_call: ToolCall, *, index: int | None = None, raw: Any = None) -> ToolCallEnd:
        """A tool call is complete."""
        return _create_event(ToolCallEnd, raw, tool_call=tool_call, index=index)

    @staticmethod
    def tool_result_event(tool_result: str, *, raw: Any = None) -> ToolResultEvent:
        """The result of a tool."""
        return _create_event(ToolResultEvent, raw, tool_result=tool_result)

    @staticmethod
    def content_part_event(part: Part, *, index: int | None = None, raw: Any = None) -> ContentPartEvent:
        """A complete content part; it replaces earlier fragments with the same index."""
        return _create_event(ContentPartEvent, raw, part=part, index=index)

    @staticmethod
    def partial_image(image: ImageContent, *, index: int | None = None, raw: Any = None) -> PartialImage:
        """A preview of an image that is being generated. It is not part of the response."""
        return _create_event(PartialImage, raw, part=image, index=index)

    @staticmethod
    def tool_progress(
        tool: str, status: str, *, id: str | None = None, index: int | None = None, raw: Any = None
    ) -> ToolProgress:
        """Progress of a tool that runs at the vendor. Its result is a content part."""
        return _create_event(ToolProgress, raw, tool=tool, status=status, id=id, index=index)

    @staticmethod
    def message_start(*, response: AgentResponse | None = None, raw: Any = None) -> MessageStart:
        """The response begins."""
        return _create_event(MessageStart, raw, response=response)

    @staticmethod
    def message_end(
        *, usage: Usage | None = None, response: AgentResponse | None = None, raw: Any = None
    ) -> MessageEnd:
        """The response is complete."""
        return _create_event(MessageEnd, raw, usage=usage, response=response)

    @staticmethod
    def usage_event(usage: Usage, *, raw: Any = None) -> UsageEvent:
        """The token counts so far."""
        return _create_event(UsageEvent, raw, usage=usage)

    @staticmethod
    def error_event(error: str, *, raw: Any = None) -> ErrorEvent:
        """The stream failed; the exception follows."""
        return _create_event(ErrorEvent, raw, error=error)

    @staticmethod
    def restart_event(reason: str | None = None, *, raw: Any = None) -> RestartEvent:
        """Discard everything received so far: another attempt starts over. `reason` is stored in `error`."""
        return _create_event(RestartEvent, raw, error=reason)

    # Serialization

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Return all fields as a dict; options as in pydantic's `model_dump`."""
        return self._data().model_dump(**options)

    def model_dump_json(self, **options: Any) -> str:
        """Return all fields as JSON text; options as in pydantic's `model_dump_json`."""
        return self._data().model_dump_json(**options)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data without None fields."""
        return self._data().to_dict()

    @classmethod
    def model_validate(cls, data: Any, **options: Any) -> Self:
        """Validate `model_dump` output; events are returned as they are."""
        return data if isinstance(data, cls) else cls._from_data(StreamEventData.model_validate(data, **options))

    @classmethod
    def model_validate_json(cls, data: str | bytes | bytearray, **options: Any) -> Self:
        """Validate `model_dump_json` output."""
        return cls._from_data(StreamEventData.model_validate_json(data, **options))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Restore an event from `to_dict` output."""
        return cls._from_data(StreamEventData.from_dict(data))

    @classmethod
    def model_json_schema(cls, **options: Any) -> dict[str, Any]:
        """Return the JSON schema of events."""
        return StreamEventData.model_json_schema(**options)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a validated copy with some fields replaced."""
        if not update:
            return self
        changes = {**self._values(), **update}
        raw = changes.pop("raw", self.raw)
        return type(self)._from_data(StreamEventData(**{"type": self.type, **changes}), raw)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        data_schema = handler.generate_schema(StreamEventData)

        def validate(value: Any, read: core_schema.ValidatorFunctionWrapHandler) -> Any:
            return value if isinstance(value, cls) else cls._from_data(read(value))

        return core_schema.no_info_wrap_validator_function(
            validate,
            data_schema,
            serialization=core_schema.plain_serializer_function_ser_schema(_to_data, return_schema=data_schema),
        )

    @classmethod
    def _from_data(cls, data: StreamEventData, raw: Any = None) -> Self:
        event_class: Any = _CLASSES[data.type]
        if not issubclass(event_class, cls):
            raise ValueError(f"a {data.type} event is not a {cls.__name__}")
        values = {name: value for name in _FIELDS[data.type][1] if (value := getattr(data, name)) is not None}
        event: Self = event_class(**values, raw=raw)
        return event

    def _data(self) -> StreamEventData:
        return StreamEventData(type=self.type, **self._values())

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _FIELDS[self.type][1]}

    @override
    def __reduce__(self) -> Any:
        return _restore, (type(self), self._values())

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    @override
    @printable
    def __repr__(self) -> str:
        pairs = ", ".join(f"{name}={value!r}" for name, value in self._values().items() if value is not None)
        return f"{type(self).__name__}({pairs})"


@dataclass(frozen=True, slots=True, repr=False)
class _TextEvent(StreamEvent, metaclass=_EventTypeMeta):
    text: str = ""
    index: int | None = None
    raw: Any = field(default=None, compare=False)


class TextDelta(_TextEvent):
    """The next piece of text."""

    __slots__ = ()
    type: ClassVar[Literal["text_delta"]] = "text_delta"


class ThinkingDelta(_TextEvent):
    """The next piece of the model's reasoning."""

    __slots__ = ()
    type: ClassVar[Literal["thinking_delta"]] = "thinking_delta"


class RefusalDelta(_TextEvent):
    """The next piece of a refusal."""

    __slots__ = ()
    type: ClassVar[Literal["refusal_delta"]] = "refusal_delta"


@dataclass(frozen=True, slots=True, repr=False)
class _ToolCallEvent(StreamEvent, metaclass=_EventTypeMeta):
    tool_call: ToolCall = field()
    index: int | None = None
    raw: Any = field(default=None, compare=False)


class ToolCallStart(_ToolCallEvent):
    """A tool call begins; its arguments follow."""

    __slots__ = ()
    type: ClassVar[Literal["tool_call_start"]] = "tool_call_start"


class ToolCallEnd(_ToolCallEvent):
    """A tool call is complete."""

    __slots__ = ()
    type: ClassVar[Literal["tool_call_end"]] = "tool_call_end"


@dataclass(frozen=True, slots=True, repr=False)
class ToolCallDelta(StreamEvent, metaclass=_EventTypeMeta):
    """The next fragment of the JSON text of a tool call's arguments."""

    type: ClassVar[Literal["tool_call_delta"]] = "tool_call_delta"
    tool_call_delta: JsonObject = field()
    index: int | None = None
    raw: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, repr=False)
class ToolResultEvent(StreamEvent, metaclass=_EventTypeMeta):
    """The result of a tool."""

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    tool_result: str = ""
    index: int | None = None
    raw: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, repr=False)
class _PartEvent(StreamEvent, metaclass=_EventTypeMeta):
    part: Part = field()
    index: int | None = None
    raw: Any = field(default=None, compare=False)


class ContentPartEvent(_PartEvent):
    """A complete content part."""

    __slots__ = ()
    type: ClassVar[Literal["content_part"]] = "content_part"


class PartialImage(_PartEvent):
    """A preview of an image that is being generated."""

    __slots__ = ()
    type: ClassVar[Literal["partial_image"]] = "partial_image"


@dataclass(frozen=True, slots=True, repr=False)
class ToolProgress(StreamEvent, metaclass=_EventTypeMeta):
    """Progress of a tool that runs at the vendor."""

    type: ClassVar[Literal["tool_progress"]] = "tool_progress"
    tool: str = field()
    status: str = field()
    id: str | None = None
    index: int | None = None
    raw: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, repr=False)
class _MessageEvent(StreamEvent, metaclass=_EventTypeMeta):
    usage: Usage | None = None
    response: AgentResponse | None = None
    raw: Any = field(default=None, compare=False)


class MessageStart(_MessageEvent):
    """The response begins."""

    __slots__ = ()
    type: ClassVar[Literal["message_start"]] = "message_start"


class MessageEnd(_MessageEvent):
    """The response is complete."""

    __slots__ = ()
    type: ClassVar[Literal["message_end"]] = "message_end"


@dataclass(frozen=True, slots=True, repr=False)
class UsageEvent(StreamEvent, metaclass=_EventTypeMeta):
    """The token counts so far."""

    type: ClassVar[Literal["usage"]] = "usage"
    usage: Usage = field()
    raw: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, repr=False)
class ErrorEvent(StreamEvent, metaclass=_EventTypeMeta):
    """The stream failed; the exception follows."""

    type: ClassVar[Literal["error"]] = "error"
    error: str = ""
    raw: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, repr=False)
class RestartEvent(StreamEvent, metaclass=_EventTypeMeta):
    """Discard everything received so far: another attempt starts over."""

    type: ClassVar[Literal["restart"]] = "restart"
    error: str | None = None
    raw: Any = field(default=None, compare=False)


AnyStreamEvent: TypeAlias = (
    TextDelta
    | ThinkingDelta
    | RefusalDelta
    | ToolCallStart
    | ToolCallDelta
    | ToolCallEnd
    | ToolResultEvent
    | ContentPartEvent
    | PartialImage
    | ToolProgress
    | MessageStart
    | MessageEnd
    | UsageEvent
    | ErrorEvent
    | RestartEvent
)
"""Union of all stream events; type checkers narrow it on `event.type`."""

E = TypeVar("E", bound=StreamEvent)


def _fields_of(kind: Any) -> tuple[frozenset[str], tuple[str, ...]]:
    own = [item for item in fields(kind) if item.name != "raw"]
    required = frozenset(item.name for item in own if item.default is MISSING)
    return required, tuple(item.name for item in own)


_DATA_FIELDS = tuple(name for name in StreamEventData.model_fields if name != "type")
_CLASSES: dict[str, type[StreamEvent]] = {kind.type: kind for kind in get_args(AnyStreamEvent)}
_FIELDS = {name: _fields_of(kind) for name, kind in _CLASSES.items()}
"""Required and allowed fields of each event type."""


def _create_event(kind: type[E], raw: Any, **values: Any) -> E:
    return kind._from_data(StreamEventData(type=kind.type, **values), raw)


def _to_data(event: StreamEvent) -> StreamEventData:
    return event._data()


def _restore(kind: type[E], values: dict[str, Any]) -> E:
    return kind(**values)
