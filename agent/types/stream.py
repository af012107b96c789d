"""Stream events: one frozen dataclass for each type, and their common base class `StreamEvent`.

`AnyStreamEvent` is the union of all of them, so that type checkers narrow on `event.type`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, TypeVar, get_args

from pydantic import ConfigDict, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema
from typing_extensions import override

from ._base import FrozenDict, JsonObject, Value
from .parts import Part, ToolCall
from .response import AgentResponse
from .usage import Usage

StreamEventType = Literal[
    "text_delta",
    "thinking_delta",
    "refusal_delta",
    "tool_call_start",
    "tool_call_delta",
    "tool_call_end",
    "tool_result",
    "content_part",
    "message_start",
    "message_end",
    "usage",
    "error",
    "restart",
]
WordsType = Literal["text_delta", "thinking_delta", "refusal_delta"]


class StreamEventData(Value, frozen=True):
    """The fields of all event types together: validates and serializes events."""

    model_config = ConfigDict(title="StreamEvent")

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
    """Lets `StreamEvent(type=...)` validate its fields and return an event of the class for that type."""

    if not TYPE_CHECKING:

        def __call__(cls, *, raw=None, **values):
            __tracebackhide__ = True
            return cls._from_data(StreamEventData.model_validate(values), raw)


class _EventTypeMeta(_EventMeta):
    """Metaclass of the event classes, which are constructed like any other dataclass."""

    __call__ = type.__call__


class StreamEvent(metaclass=_EventMeta):
    """Base class of stream events. Create events with the factories.

    Every event has all attributes below; those that do not belong to its type are None. Subclasses write `field()`
    for a required field, because these class attributes would otherwise be its default.
    """

    __slots__ = ()

    type: ClassVar[StreamEventType]
    text: str | None = None
    tool_call: ToolCall | None = None
    tool_call_delta: JsonObject | None = None
    """`arguments`: the next piece of the arguments' JSON text; `id` and `name` where the vendor repeats them."""
    tool_result: str | None = None
    usage: Usage | None = None
    """Counts so far: each report replaces the one before."""
    error: str | None = None
    index: int | None = None
    """The content block of the response that the event belongs to."""
    part: Part | None = None
    response: AgentResponse | None = None
    """Facts about the response without its content: provider and model (message_start), how it ended (message_end)."""
    raw: Any = None
    """The vendor's event as received: outside equality, hash, dumps and pickles."""

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
            raw: Any = None,
        ) -> None: ...

    # Factories

    @staticmethod
    def text_delta(text: str, *, index: int | None = None, raw: Any = None) -> TextDelta:
        """The next piece of text."""
        if type(text) is not str or not (index is None or type(index) is int):
            return _validated(TextDelta, raw, text=text, index=index)
        return TextDelta(text, index, raw)

    @staticmethod
    def thinking_delta(text: str, *, index: int | None = None, raw: Any = None) -> ThinkingDelta:
        """The next piece of the model's reasoning."""
        if type(text) is not str or not (index is None or type(index) is int):
            return _validated(ThinkingDelta, raw, text=text, index=index)
        return ThinkingDelta(text, index, raw)

    @staticmethod
    def refusal_delta(text: str, *, index: int | None = None, raw: Any = None) -> RefusalDelta:
        """The next piece of a refusal."""
        if type(text) is not str or not (index is None or type(index) is int):
            return _validated(RefusalDelta, raw, text=text, index=index)
        return RefusalDelta(text, index, raw)

    @staticmethod
    def tool_call_start(tool_call: ToolCall, *, index: int | None = None, raw: Any = None) -> ToolCallStart:
        """A tool call begins; its arguments follow."""
        return _validated(ToolCallStart, raw, tool_call=tool_call, index=index)

    @staticmethod
    def tool_call_delta_event(
        arguments: str,
        *,
        id: str | None = None,
        name: str | None = None,
        index: int | None = None,
        raw: Any = None,
    ) -> ToolCallDelta:
        """The next piece of the JSON text of a tool call's arguments."""
        given = (("id", id), ("name", name), ("arguments", arguments))
        delta = FrozenDict([(key, value) for key, value in given if value is not None])
        if type(arguments) is not str or not (index is None or type(index) is int):
            return _validated(ToolCallDelta, raw, tool_call_delta=delta, index=index)
        return ToolCallDelta(delta, index, raw)

    @staticmethod
    def tool_call_end(tool_call: ToolCall, *, index: int | None = None, raw: Any = None) -> ToolCallEnd:
        """A tool call is complete."""
        return _validated(ToolCallEnd, raw, tool_call=tool_call, index=index)

    @staticmethod
    def tool_result_event(tool_result: str, *, raw: Any = None) -> ToolResultEvent:
        """The result of a tool."""
        return _validated(ToolResultEvent, raw, tool_result=tool_result)

    @staticmethod
    def content_part_event(part: Part, *, index: int | None = None, raw: Any = None) -> ContentPartEvent:
        """A complete content part; it replaces the pieces that came for the same index."""
        return _validated(ContentPartEvent, raw, part=part, index=index)

    @staticmethod
    def message_start(*, response: AgentResponse | None = None, raw: Any = None) -> MessageStart:
        """The response begins."""
        return _validated(MessageStart, raw, response=response)

    @staticmethod
    def message_end(
        *, usage: Usage | None = None, response: AgentResponse | None = None, raw: Any = None
    ) -> MessageEnd:
        """The response is complete."""
        return _validated(MessageEnd, raw, usage=usage, response=response)

    @staticmethod
    def usage_event(usage: Usage, *, raw: Any = None) -> UsageEvent:
        """The token counts so far."""
        return _validated(UsageEvent, raw, usage=usage)

    @staticmethod
    def error_event(error: str, *, raw: Any = None) -> ErrorEvent:
        """The stream fails; the exception follows."""
        return _validated(ErrorEvent, raw, error=error)

    @staticmethod
    def restart_event(reason: str | None = None, *, raw: Any = None) -> RestartEvent:
        """Everything received so far is void: another attempt starts from the beginning. `reason` is in `error`."""
        return _validated(RestartEvent, raw, error=reason)

    # Serialization

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """All fields as a dict; the options are those of pydantic's `model_dump`."""
        return self._data().model_dump(**options)

    def model_dump_json(self, **options: Any) -> str:
        """All fields as JSON text; the options are those of pydantic's `model_dump_json`."""
        return self._data().model_dump_json(**options)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data without the fields that are None."""
        return self._data().to_dict()

    @classmethod
    def model_validate(cls, data: Any, **options: Any) -> Self:
        """Read what `model_dump` wrote; an event is returned as it is."""
        return data if isinstance(data, cls) else cls._from_data(StreamEventData.model_validate(data, **options))

    @classmethod
    def model_validate_json(cls, data: str | bytes | bytearray, **options: Any) -> Self:
        """Read what `model_dump_json` wrote."""
        return cls._from_data(StreamEventData.model_validate_json(data, **options))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote."""
        return cls._from_data(StreamEventData.from_dict(data))

    @classmethod
    def model_json_schema(cls, **options: Any) -> dict[str, Any]:
        """The JSON schema of events."""
        return StreamEventData.model_json_schema(**options)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A validated copy with some fields changed; without changes, the event itself."""
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
    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self._values().items() if value is not None)
        return f"{type(self).__name__}({given})"


@dataclass(frozen=True, slots=True, repr=False)
class TextDelta(StreamEvent, metaclass=_EventTypeMeta):
    """The next piece of text."""

    type: ClassVar[Literal["text_delta"]] = "text_delta"
    text: str = ""
    index: int | None = None
    raw: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, repr=False)
class ThinkingDelta(StreamEvent, metaclass=_EventTypeMeta):
    """The next piece of the model's reasoning."""

    type: ClassVar[Literal["thinking_delta"]] = "thinking_delta"
    text: str = ""
    index: int | None = None
    raw: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, repr=False)
class RefusalDelta(StreamEvent, metaclass=_EventTypeMeta):
    """The next piece of a refusal."""

    type: ClassVar[Literal["refusal_delta"]] = "refusal_delta"
    text: str = ""
    index: int | None = None
    raw: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, repr=False)
class ToolCallStart(StreamEvent, metaclass=_EventTypeMeta):
    """A tool call begins; its arguments follow."""

    type: ClassVar[Literal["tool_call_start"]] = "tool_call_start"
    tool_call: ToolCall = field()
    index: int | None = None
    raw: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, repr=False)
class ToolCallDelta(StreamEvent, metaclass=_EventTypeMeta):
    """The next piece of the JSON text of a tool call's arguments."""

    type: ClassVar[Literal["tool_call_delta"]] = "tool_call_delta"
    tool_call_delta: JsonObject = field()
    index: int | None = None
    raw: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, repr=False)
class ToolCallEnd(StreamEvent, metaclass=_EventTypeMeta):
    """A tool call is complete."""

    type: ClassVar[Literal["tool_call_end"]] = "tool_call_end"
    tool_call: ToolCall = field()
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
class ContentPartEvent(StreamEvent, metaclass=_EventTypeMeta):
    """A complete content part."""

    type: ClassVar[Literal["content_part"]] = "content_part"
    part: Part = field()
    index: int | None = None
    raw: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, repr=False)
class MessageStart(StreamEvent, metaclass=_EventTypeMeta):
    """The response begins."""

    type: ClassVar[Literal["message_start"]] = "message_start"
    usage: Usage | None = None
    response: AgentResponse | None = None
    raw: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, repr=False)
class MessageEnd(StreamEvent, metaclass=_EventTypeMeta):
    """The response is complete."""

    type: ClassVar[Literal["message_end"]] = "message_end"
    usage: Usage | None = None
    response: AgentResponse | None = None
    raw: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, repr=False)
class UsageEvent(StreamEvent, metaclass=_EventTypeMeta):
    """The token counts so far."""

    type: ClassVar[Literal["usage"]] = "usage"
    usage: Usage = field()
    raw: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, repr=False)
class ErrorEvent(StreamEvent, metaclass=_EventTypeMeta):
    """The stream fails; the exception follows."""

    type: ClassVar[Literal["error"]] = "error"
    error: str = ""
    raw: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, repr=False)
class RestartEvent(StreamEvent, metaclass=_EventTypeMeta):
    """Everything received so far is void: another attempt starts from the beginning."""

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
    | MessageStart
    | MessageEnd
    | UsageEvent
    | ErrorEvent
    | RestartEvent
)
"""Every event of a stream, as a union that narrows on `event.type`."""

E = TypeVar("E", bound=StreamEvent)


def _fields_of(kind: Any) -> tuple[frozenset[str], tuple[str, ...]]:
    own = [one for one in fields(kind) if one.name != "raw"]
    required = frozenset(one.name for one in own if one.default is MISSING)
    return required, tuple(one.name for one in own)


_DATA_FIELDS = tuple(name for name in StreamEventData.model_fields if name != "type")
_CLASSES: dict[str, type[StreamEvent]] = {kind.type: kind for kind in get_args(AnyStreamEvent)}
_FIELDS = {name: _fields_of(kind) for name, kind in _CLASSES.items()}
"""For each type, the fields that an event must have and those that it may have."""


def _validated(kind: type[E], raw: Any, **values: Any) -> E:
    return kind._from_data(StreamEventData(type=kind.type, **values), raw)


def _to_data(event: StreamEvent) -> StreamEventData:
    return event._data()


def _restore(kind: type[E], values: dict[str, Any]) -> E:
    return kind(**values)
