"""Messages and requests. Tool calls and tool results are parts of a message's content."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, PlainSerializer, TypeAdapter, model_validator
from typing_extensions import override

from ._base import (
    EMPTY_OBJECT,
    EMPTY_SEQUENCE,
    Accepts,
    FrozenDict,
    FrozenTuple,
    JsonObject,
    SequenceOf,
    Utc,
    Value,
    freeze,
    initialize,
)
from .media import CacheHint, ContentPart, ExtraValue, ImageContent, expand_images
from .parts import (
    CodeContent,
    DiffContent,
    Part,
    RefusalContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    VendorContent,
    find_part_class,
)
from .secrets import ExtraField
from .tools import HasSpec, OfferedTool, RequestTool, check_unique_names
from .usage import Usage

_RESULT_KEYS = ("tool_call_id", "tool_use_id", "name", "tool_name", "details", "is_error", "result")
_ONLY_RESULTS_HAVE = frozenset(("details", "is_error", "result"))
_NEVER_IN_RESULTS = (CodeContent, DiffContent, ThinkingContent, ToolCall, RefusalContent, VendorContent)


def normalize_message(fields: dict[str, Any]) -> dict[str, Any]:
    """Convert a message dict in any accepted spelling to the fields of `Message`."""
    data = dict(fields)
    content = _normalize_content(data.get("content"))
    if not isinstance(content, str | tuple):
        return fields  # pydantic reports the invalid content
    if calls := data.pop("tool_calls", None):
        content = _append_calls(content, calls)
    role = data.get("role")
    if role in ("tool", "tool_result"):
        data["role"] = "tool"
        if _is_result(content):
            content = _copy_result_ids(data, content[0])
        elif role == "tool_result" or not _ONLY_RESULTS_HAVE.isdisjoint(data):
            result = {key: data[key] for key in _RESULT_KEYS if key in data}
            content = _copy_result_ids(data, {**result, "type": "tool_result", "content": content})
        else:
            if data.get("tool_call_id") is not None:
                _check_result(content)
            data["name"] = data.get("name", data.get("tool_name"))
    data["content"] = content
    return data


def _normalize_content(content: Any) -> Any:
    """Convert content to text or a tuple of parts; accepts None, a single part, and image galleries."""
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
        if not isinstance(part, ContentPart) or type(part) is ImageContent:
            break
    else:
        return content
    return tuple(single for part in content if part is not None for single in expand_images(part))


def _append_calls(content: str | tuple[Any, ...], calls: Any) -> tuple[Any, ...]:
    """Append tool calls to the content, each id once."""
    if not isinstance(calls, list | tuple):
        raise ValueError("tool_calls must be a list")
    parts = ((TextContent(text=content),) if content else ()) if isinstance(content, str) else content
    known = [part.id if isinstance(part, ToolCall) else part.get("id") for part in parts if _is_part_of(part, ToolCall)]
    read = [call if isinstance(call, ToolCall) else ToolCall.model_validate(call) for call in calls]
    return (*parts, *(call for call in read if call.id not in known))


def _is_result(content: str | tuple[Any, ...]) -> bool:
    """Whether the content of a tool message is a single tool result."""
    return not isinstance(content, str) and len(content) == 1 and _is_part_of(content[0], ToolResult)


def _check_result(content: str | tuple[Any, ...]) -> None:
    """Reject parts that a tool result cannot contain."""
    for part in () if isinstance(content, str) else content:
        for kind in _NEVER_IN_RESULTS:
            if _is_part_of(part, kind):
                raise ValueError(
                    f"a tool result cannot contain {kind.__name__}, only text, images, documents and audio"
                )


def _is_part_of(part: Any, kind: type[ContentPart]) -> bool:
    """Whether a part or part dict is of that class."""
    if isinstance(part, kind):
        return True
    tag = part.get("type") if isinstance(part, Mapping) else None
    return isinstance(tag, str) and find_part_class(tag) is kind


def _copy_result_ids(data: dict[str, Any], result: Any) -> tuple[ToolResult]:
    """Copy the id and name of a single tool result to its message, and return its content."""
    part = result if isinstance(result, ToolResult) else ToolResult.model_validate(result)
    if data.get("tool_call_id") is None:
        data["tool_call_id"] = part.tool_call_id
    if data.get("name") is None:
        data["name"] = part.name
    return (part,)


class Role(StrEnum):
    """Role of a message. `tool_result` and `developer` are accepted as aliases."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"

    @classmethod
    @override
    def _missing_(cls, value: object) -> "Role | None":
        return {"tool_result": cls.TOOL, "developer": cls.SYSTEM}.get(value) if isinstance(value, str) else None


MessageRole = Role
RoleName = Literal["system", "user", "assistant", "tool"]


class ThinkingLevel(StrEnum):
    """How much a model thinks before it responds; codecs map it to token budgets or efforts."""

    OFF = "off"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    XHIGH = "xhigh"


ThinkingName = Literal["off", "minimal", "low", "medium", "high", "xhigh"]
OutputMode = Literal["native", "tool", "prompted"]
ThinkingField = Accepts[ThinkingLevel | None, ThinkingLevel | ThinkingName | None]

_MISSING: Any = object()


class Message(ExtraValue, frozen=True):
    """One message of a conversation.

    `content` keeps text or parts as passed; `tool_calls` are moved into it. `parts` always returns parts.
    """

    __match_args__ = ("role", "content")
    _spellings = ("tool_calls", "tool_use_id", "tool_name", "details", "is_error", "result")

    role: Role
    if TYPE_CHECKING:
        content: str | Sequence[Part]
    else:
        content: str | SequenceOf[Part] = ""
    name: str | None = None
    tool_call_id: str | None = None
    id: str | None = None
    timestamp: Utc | None = Field(default=None, validation_alias=AliasChoices("timestamp", "created_at", "createdAt"))
    parent_id: str | None = Field(default=None, validation_alias=AliasChoices("parent_id", "parentId"))
    usage: Usage | None = None
    stop_reason: str | None = None
    """Why an assistant message ended. After `error` and `aborted` it is incomplete and not sent again."""
    error_message: str | None = None
    provider: str | None = None
    api: str | None = None
    model: str | None = None
    extra: JsonObject = Field(default=EMPTY_OBJECT, exclude_if=lambda extra: not extra)
    """Keys of the vendor. Unknown keys of a message dict are collected here; codecs send them or warn."""

    if TYPE_CHECKING:

        def __init__(
            self,
            role: Role | RoleName,
            content: str | ContentPart | Sequence[ContentPart] | None = "",
            *,
            name: str | None = ...,
            tool_call_id: str | None = ...,
            tool_calls: Sequence[ToolCall | Mapping[str, Any]] | None = ...,
            id: str | None = ...,
            timestamp: datetime | float | str | None = ...,
            parent_id: str | None = ...,
            usage: Usage | None = ...,
            stop_reason: str | None = ...,
            error_message: str | None = ...,
            provider: str | None = ...,
            api: str | None = ...,
            model: str | None = ...,
            extra: Mapping[str, Any] = ...,
        ) -> None: ...

    else:

        def __init__(self, role=_MISSING, content="", **data):
            __tracebackhide__ = True
            if not data and type(content) is str and type(role) in _ROLE_TYPES and role in _ROLES:
                fields = _TEXT_FIELDS.copy()
                fields["role"] = _ROLES[role]
                fields["content"] = content
                initialize(self, fields, _TEXT_FIELDS_SET)
                return
            if not self._keywords.issuperset(data):
                self._reject_keyword(data)
            if role is not _MISSING:
                data["role"] = role
            data["content"] = content
            self.__pydantic_validator__.validate_python(data, self_instance=self)

        # pydantic builds nested messages without calling an __init__ marked like this.
        __init__.__pydantic_base_init__ = True

        @model_validator(mode="before")
        @classmethod
        def _read(cls, data):
            if type(data) is not dict or (len(data) == 2 and type(data.get("content")) is str):
                return data
            return normalize_message(data)

    @classmethod
    def system(cls, content: str | ContentPart | Sequence[ContentPart]) -> Self:
        return cls(Role.SYSTEM, content)

    @classmethod
    def user(cls, content: str | ContentPart | Sequence[ContentPart], *, name: str | None = None) -> Self:
        return cls(Role.USER, content) if name is None else cls(Role.USER, content, name=name)

    @classmethod
    def assistant(
        cls,
        content: str | ContentPart | Sequence[ContentPart] | None = "",
        *,
        tool_calls: Sequence[ToolCall | Mapping[str, Any]] | None = None,
    ) -> Self:
        return cls(Role.ASSISTANT, content, tool_calls=tool_calls) if tool_calls else cls(Role.ASSISTANT, content)

    @classmethod
    def tool(
        cls, content: str | ContentPart | Sequence[ContentPart], *, tool_call_id: str, name: str | None = None
    ) -> Self:
        return cls(Role.TOOL, content, tool_call_id=tool_call_id, name=name)

    @property
    def parts(self) -> Sequence[Part]:
        """The content as parts: text as `TextContent`, the content of a tool message as `ToolResult`."""
        content = self.content
        if self.tool_call_id is not None and self.role is Role.TOOL and not _has_result(content):
            return FrozenTuple((ToolResult(tool_call_id=self.tool_call_id, name=self.name, content=content),))
        if isinstance(content, str):
            return FrozenTuple((TextContent(text=content),) if content else ())
        return content

    @property
    def text(self) -> str:
        """All text of the message; for a tool message, the text of its results."""
        if isinstance(self.content, str):
            return self.content
        shown = (TextContent, ToolResult) if self.role is Role.TOOL else (TextContent,)
        return "".join(part.text or "" for part in self.content if isinstance(part, shown))

    @property
    def tool_calls(self) -> list[ToolCall] | None:
        """Tool calls in the content, or None."""
        if isinstance(self.content, str):
            return None
        return [part for part in self.content if isinstance(part, ToolCall)] or None

    @property
    def tool_name(self) -> str | None:
        return self.name

    @property
    def tool_use_id(self) -> str | None:
        return self.tool_call_id

    @property
    def created_at(self) -> datetime | None:
        return self.timestamp

    @property
    def is_error(self) -> bool:
        """Whether it is a tool message with a failed result."""
        return any(part.is_error for part in self.parts if isinstance(part, ToolResult))

    @property
    def details(self) -> Any:  # Any: JSON data
        """The details of the result in a tool message, for user interfaces."""
        return next((part.details for part in self.parts if isinstance(part, ToolResult)), None)


_ROLES = {role.value: role for role in Role}
_ROLE_TYPES = (str, Role)
_TEXT_FIELDS = {name: field.default for name, field in Message.model_fields.items()}
"""Default fields of a text message."""
_TEXT_FIELDS_SET = {"role", "content"}
"""Fields set on text messages; shared, because messages are immutable."""


def _has_result(content: str | Sequence[Part]) -> bool:
    if not isinstance(content, str):
        for part in content:  # twice as fast as `any`, and used for every message
            if isinstance(part, ToolResult):
                return True
    return False


Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]
TopP = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
MaxTokens = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _read_stop(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _read_logprobs(value: Any) -> Any:
    """True requests the probabilities of the chosen tokens only, False none."""
    if value is True:
        return 0
    return None if value is False else value


def _read_schema(value: Any) -> Any:
    if isinstance(value, Mapping):
        return freeze(dict(value))
    if isinstance(value, str | bytes | int | float | list | tuple):
        raise ValueError("pass a JSON schema as a dict, or a type such as a pydantic model")
    return value


def _to_json_schema(value: Any) -> dict[str, Any]:
    """Return the JSON schema of a type; a JSON schema is returned as it is."""
    if isinstance(value, FrozenDict):
        return value
    if isinstance(value, type):
        return _class_schema(value)
    adapter: TypeAdapter[Any] = value if isinstance(value, TypeAdapter) else TypeAdapter(value)
    return FrozenDict(freeze(adapter.json_schema()))


@lru_cache(maxsize=256)
def _class_schema(value: type) -> dict[str, Any]:
    return FrozenDict(freeze(TypeAdapter(value).json_schema()))


Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(ge=1)]
Verbosity = Literal["low", "medium", "high"]
Modality = Literal["text", "image", "audio"]
StopTexts = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], FrozenTuple]
Stop = Annotated[StopTexts | None, BeforeValidator(_read_stop)]
Logprobs = Annotated[Annotated[int, Field(ge=0, le=20)] | None, BeforeValidator(_read_logprobs)]
Schema = Annotated[Any, AfterValidator(_read_schema), PlainSerializer(_to_json_schema, when_used="json-unless-none")]
Tools = Accepts[SequenceOf[OfferedTool], Sequence[RequestTool | HasSpec]]
_NO_TOOLS: Any = EMPTY_SEQUENCE
_UNSET: Any = None


class AgentRequest(Value, frozen=True, extra="forbid"):
    """A request to a model. Unset fields fall back to the agent's configuration."""

    __slots__ = ("_schema_json",)

    input: str | None = None
    messages: SequenceOf[Message] = EMPTY_SEQUENCE
    system: str | None = None
    model: str | None = None
    """Overrides the configured model."""
    tools: Tools = Field(default=_NO_TOOLS)
    tool_choice: str | None = None
    """"auto", "none", "required", or the name of a tool."""
    parallel_tool_calls: bool | None = None
    output_schema: Schema = Field(
        default=None, validation_alias=AliasChoices("output_schema", "schema"), serialization_alias="schema"
    )
    """A JSON schema, or a type such as a pydantic model. `model_dump(by_alias=True)` writes it as `schema`."""
    temperature: Temperature | None = None
    max_tokens: MaxTokens | None = None
    top_p: TopP | None = None
    stop: Accepts[Stop, str | Sequence[str] | None] = Field(default=_UNSET)
    thinking: ThinkingField = Field(default=_UNSET)
    thinking_budget: int | None = Field(default=None, ge=0)
    """Maximum number of reasoning tokens, for models that take a number instead of a level."""
    verbosity: Verbosity | None = None
    """Length and detail of the response."""
    top_k: PositiveInt | None = None
    """Sample from the k most likely tokens."""
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: JsonObject = EMPTY_OBJECT
    """Bias per token id, -100 to 100."""
    n: PositiveInt | None = None
    """Number of alternative responses; the others are in `response.choices`."""
    modalities: SequenceOf[Modality] = ()
    """Kinds of output. Empty: text."""
    service_tier: str | None = None
    """Processing tier, such as `flex` or `priority`, in the vendor's spelling."""
    user: str | None = None
    """Stable id of the end user, for the vendor's abuse detection. Do not send names or addresses."""
    store: bool | None = None
    """Whether the vendor stores the response."""
    previous_response_id: str | None = None
    """Id of a stored response that this request continues."""
    conversation: str | None = None
    """Id of a conversation that the vendor stores."""
    background: bool | None = None
    """Whether the vendor processes the request in the background. `complete` waits for the response."""
    cached_content: str | None = None
    """Name of a prompt cache that was created at the vendor."""
    safety_settings: SequenceOf[JsonObject] = ()
    """Thresholds of content filters, in the vendor's format."""
    betas: SequenceOf[str] = ()
    """Beta features to enable, by the vendor's names."""
    seed: int | None = None
    logprobs: Accepts[Logprobs, int | bool | None] = Field(default=_UNSET)
    """Number of alternatives per token; 0 returns the chosen tokens only."""
    cache: CacheHint | None = None
    """Ask the vendor to cache the conversation so far; single parts have a `cache` field, too."""
    output_mode: OutputMode | None = None
    """How to enforce the schema: natively, with a tool, or in the prompt. None picks the best mode of the model."""
    deadline: Seconds | None = None
    """Time limit of the whole call in seconds, including retries and fallbacks."""
    metadata: JsonObject = EMPTY_OBJECT
    session_id: str | None = None
    extra: ExtraField = EMPTY_OBJECT
    """Fields merged into the request body as they are."""

    if TYPE_CHECKING:
        schema: Any = None
        _schema_json: dict[str, Any] = EMPTY_OBJECT
    else:

        @property
        def schema(self):
            return self.output_schema

        @model_validator(mode="after")
        def _check(self):
            if len(self.tools) > 1:
                check_unique_names(self.tools)
            return self

    @property
    def output_json_schema(self) -> dict[str, Any] | None:
        """The JSON schema of `output_schema`, computed once."""
        if self.output_schema is None:
            return None
        try:
            return self._schema_json
        except AttributeError:
            object.__setattr__(self, "_schema_json", _to_json_schema(self.output_schema))
            return self._schema_json

    def to_messages(self) -> list[Message]:
        """Return the conversation as messages: system prompt, messages, input."""
        before = [Message(Role.SYSTEM, self.system)] if self.system else []
        return [*before, *self._conversation()]

    def with_messages(self, *messages: Message) -> Self:
        """Return a request that continues the conversation; the input becomes a message before `messages`."""
        return self.model_copy(update={"input": None, "messages": (*self._conversation(), *messages)})

    def _conversation(self) -> Sequence[Message]:
        if self.input is None:
            return self.messages
        return (*self.messages, Message(Role.USER, self.input))
