"""Content parts of messages: the classes of the union `Part`, and their base class `ContentPart`.

Each kind of content has one class. Alternative names are aliases, and alternative spellings are accepted on input.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeAlias,
    Unpack,
    get_args,
    overload,
)

from pydantic import AliasChoices, BeforeValidator, Field, GetCoreSchemaHandler, WrapValidator, model_validator
from pydantic_core import CoreSchema, core_schema, from_json, to_json
from typing_extensions import override

from ._base import EMPTY_OBJECT, Accepts, FrozenDict, Json, JsonObject, SequenceOf, freeze_json, is_finite
from .media import (
    CLASS_OF_TAG,
    AudioContent,
    Citation,
    CitationSwitch,
    ContentPart,
    DocumentContent,
    FileContent,
    ImageContent,
    OnDemand,
    VideoContent,
    expand_images,
    normalize_tag,
)

if TYPE_CHECKING:
    from .media import CommonFields

    class _TextFields(CommonFields, total=False):
        type: Literal["text"]
        signature: str | None
        text_signature: str | None
        citations: Sequence[Citation]

    class _ThinkingFields(CommonFields, total=False):
        type: Literal["thinking", "reasoning"]
        thinking_signature: str | None
        redacted: bool

    class _CallFields(CommonFields, total=False):
        type: Literal["tool_call", "tool_use", "tool-call", "function"]
        signature: str | None
        invalid_arguments: str | None
        partial_json: str | None

    class _ResultFields(CommonFields, total=False):
        type: Literal["tool_result", "tool-result"]
        name: str | None
        tool_name: str | None
        result: Any
        details: Any


def _replace_none(value: Any) -> Any:
    return "" if value is None else value


def _read_texts(value: Any) -> Any:
    return ({"type": "text", "text": value},) if isinstance(value, str) else value


class TextContent(ContentPart, frozen=True):
    """Text, with citations and an optional signature."""

    __match_args__ = ("text",)
    _positional: ClassVar[tuple[str, ...]] = ("text",)
    type: Literal["text"] = "text"
    text: str
    signature: str | None = Field(default=None, validation_alias=AliasChoices("signature", "text_signature"))
    citations: SequenceOf[Citation] = Field(default=(), exclude_if=lambda citations: not citations)

    if TYPE_CHECKING:

        def __init__(self, text: str, **fields: Unpack[_TextFields]) -> None: ...

    @property
    def text_signature(self) -> str | None:
        return self.signature


Text = Annotated[str, BeforeValidator(_replace_none)]
"""Text; None becomes the empty string."""


class ThinkingContent(ContentPart, frozen=True):
    """A model's reasoning: visible text, and opaque data that must be sent back unchanged."""

    __match_args__ = ("thinking",)
    _positional: ClassVar[tuple[str, ...]] = ("thinking", "signature", "id", "encrypted_content", "summary")
    if TYPE_CHECKING:
        type: Literal["thinking"] = "thinking"
        thinking: str

        @overload
        def __init__(
            self,
            thinking: str,
            signature: str | None = ...,
            id: str | None = ...,
            encrypted_content: str | None = ...,
            summary: Sequence[Mapping[str, Any]] = ...,
            **fields: Unpack[_ThinkingFields],
        ) -> None: ...
        @overload
        def __init__(
            self,
            *,
            reasoning: str,
            signature: str | None = ...,
            id: str | None = ...,
            encrypted_content: str | None = ...,
            summary: Sequence[Mapping[str, Any]] = ...,
            **fields: Unpack[_ThinkingFields],
        ) -> None: ...
        def __init__(self, *args: Any, **fields: Any) -> None: ...

    else:
        type: Annotated[Literal["thinking", "reasoning"], normalize_tag("thinking")] = "thinking"
        thinking: str = Field(validation_alias=AliasChoices("thinking", "reasoning"))
    signature: Text = Field(default="", validation_alias=AliasChoices("signature", "thinking_signature"))
    id: Text = ""
    encrypted_content: Text = ""
    summary: SequenceOf[JsonObject] = ()
    redacted: bool = False
    """Whether the vendor withheld the text and sent opaque data only."""

    @property
    def reasoning(self) -> str:
        return self.thinking

    @property
    def thinking_signature(self) -> str:
        return self.signature


def _read_arguments(value: Any, check: Any) -> Any:
    """Accept arguments as an object, as JSON text, or None."""
    if type(value) is FrozenDict:
        return value
    if value is None or value == "":
        return EMPTY_OBJECT
    if isinstance(value, str | bytes):
        try:
            value = from_json(value, allow_inf_nan=False)
            if not is_finite(value):
                raise ValueError("a number is out of range")
        except ValueError as error:
            raise ValueError(f"arguments are not valid JSON: {error}") from None
        except TypeError:  # half of a surrogate pair
            raise ValueError("arguments are not valid JSON: they are not Unicode text") from None
    return freeze_json(check(value))


class ToolCall(ContentPart, frozen=True):
    """A model's request to call a tool."""

    __match_args__ = ("name", "arguments")
    _positional: ClassVar[tuple[str, ...]] = ("id", "name", "arguments", "item_id")
    _spellings = ("function",)

    if TYPE_CHECKING:
        type: Literal["tool_call"] = "tool_call"
        id: str
        name: str
        arguments: dict[str, Any]

        @overload
        def __init__(
            self,
            id: str,
            name: str,
            arguments: Mapping[str, Any] | str | None = ...,
            item_id: str | None = ...,
            **fields: Unpack[_CallFields],
        ) -> None: ...
        @overload
        def __init__(
            self,
            id: str,
            name: str,
            *,
            input: Mapping[str, Any] | str | None,
            item_id: str | None = ...,
            **fields: Unpack[_CallFields],
        ) -> None: ...
        def __init__(self, *args: Any, **fields: Any) -> None: ...

    else:
        type: Annotated[Literal["tool_call", "tool_use", "tool-call", "function"], normalize_tag("tool_call")] = (
            "tool_call"
        )
        id: str
        name: str
        arguments: Annotated[dict[str, Any], WrapValidator(_read_arguments)] = Field(
            default=EMPTY_OBJECT, validation_alias=AliasChoices("arguments", "input")
        )

        @model_validator(mode="before")
        @classmethod
        def _flatten(cls, data):
            """Accept OpenAI's `{"id": …, "function": {"name": …, "arguments": …}}`."""
            if type(data) is dict and isinstance(data.get("function"), Mapping):
                return {**{key: value for key, value in data.items() if key != "function"}, **data["function"]}
            return data

    item_id: str | None = None
    signature: str | None = Field(default=None, validation_alias=AliasChoices("signature", "thought_signature"))
    invalid_arguments: str | None = None
    """The raw arguments if they are not a JSON object; `arguments` is empty then."""
    partial_json: str | None = None
    """The JSON text of the arguments received so far, while the call is streamed."""

    @property
    def input(self) -> dict[str, Any]:
        return self.arguments

    @property
    def thought_signature(self) -> str | None:
        return self.signature


class RefusalContent(ContentPart, frozen=True):
    """A model's refusal. Separate from text, so that it is not taken for a response."""

    __match_args__ = ("refusal",)
    type: Literal["refusal"] = "refusal"
    refusal: str


class CodeContent(ContentPart, frozen=True):
    """A code block."""

    type: Literal["code"] = "code"
    code: str
    language: str | None = None


class DiffContent(ContentPart, frozen=True):
    """A code change: old and new code."""

    type: Literal["diff"] = "diff"
    old_code: str = Field(validation_alias=AliasChoices("old_code", "oldCode"))
    new_code: str = Field(validation_alias=AliasChoices("new_code", "newCode"))
    language: str | None = None


class SearchResultContent(ContentPart, frozen=True):
    """A search result of your own, which the model can cite."""

    type: Literal["search_result"] = "search_result"
    source: str
    """URL or other name of the source."""
    title: str
    content: Accepts[Annotated[tuple[TextContent, ...], BeforeValidator(_read_texts)], str | Sequence[TextContent]]
    """Passages of the result. Citations refer to whole passages."""
    citations: CitationSwitch | None = None
    """Whether the model cites the result; None is the vendor's default."""

    @property
    @override
    def text(self) -> str:
        """The text of `content`."""
        return "".join(part.text for part in self.content)


class VendorContent(ContentPart, frozen=True):
    """A vendor-specific block, such as a web search at the vendor; `provider_data` holds it unchanged.

    It is sent back to the same vendor, and dropped with a warning elsewhere.
    """

    __match_args__ = ("kind",)
    type: Literal["vendor"] = "vendor"
    kind: str
    """The vendor's name of the block type."""


class _ByTag:
    """Annotation of a union of part classes, whose validators are built at first use; `type` selects one."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        choices: dict[Hashable, CoreSchema] = {}
        for kind in get_args(source):
            choice = handler.generate_schema(Annotated[Any, OnDemand(kind._accept, kind)])
            choices.update(dict.fromkeys(get_args(kind.model_fields["type"].annotation), choice))
        return core_schema.tagged_union_schema(choices, discriminator="type", from_attributes=True)


ResultPart: TypeAlias = Annotated[
    TextContent | ImageContent | DocumentContent | AudioContent | VideoContent | FileContent | SearchResultContent,
    _ByTag(),
]


class ToolResult(ContentPart, frozen=True):
    """A tool's result: `result` is the return value, `content` is for the model, `details` for a UI only."""

    __match_args__ = ("tool_call_id", "content")
    _positional: ClassVar[tuple[str, ...]] = ("tool_call_id", "content", "is_error")
    if TYPE_CHECKING:
        type: Literal["tool_result"] = "tool_result"
        tool_call_id: str
        name: str | None = None
        content: str | Sequence[ResultPart]
        result: Any = None

        @overload
        def __init__(
            self,
            tool_call_id: str,
            content: str | ContentPart | Sequence[ContentPart | Mapping[str, Any]] | None = ...,
            is_error: bool = ...,
            **fields: Unpack[_ResultFields],
        ) -> None: ...
        @overload
        def __init__(
            self,
            *,
            tool_use_id: str,
            content: str | ContentPart | Sequence[ContentPart | Mapping[str, Any]] | None = ...,
            is_error: bool = ...,
            **fields: Unpack[_ResultFields],
        ) -> None: ...
        @overload
        def __init__(
            self,
            *,
            id: str,
            content: str | ContentPart | Sequence[ContentPart | Mapping[str, Any]] | None = ...,
            is_error: bool = ...,
            **fields: Unpack[_ResultFields],
        ) -> None: ...
        def __init__(self, *args: Any, **fields: Any) -> None: ...

    else:
        type: Annotated[Literal["tool_result", "tool-result"], normalize_tag("tool_result")] = "tool_result"
        tool_call_id: str = Field(validation_alias=AliasChoices("tool_call_id", "tool_use_id", "id"))
        name: str | None = Field(default=None, validation_alias=AliasChoices("name", "tool_name"))
        content: str | SequenceOf[ResultPart] = ""
        result: Json = None

        @model_validator(mode="before")
        @classmethod
        def _read(cls, data):
            return _read_tool_result(data) if type(data) is dict else data

    is_error: bool = False
    details: Json = None

    @property
    @override
    def text(self) -> str:
        """The text of `content`."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextContent))

    @property
    def tool_use_id(self) -> str:
        return self.tool_call_id

    @property
    def tool_name(self) -> str | None:
        return self.name

    @property
    def id(self) -> str:
        return self.tool_call_id


def _read_tool_result(data: dict[str, Any]) -> dict[str, Any]:
    content = data.get("content")
    if type(content) is str:
        return data
    if content is None:
        return {**data, "content": render_value(data.get("result"))}
    if isinstance(content, Mapping | ContentPart):
        content = (content,)
    if isinstance(content, list | tuple):
        return {**data, "content": tuple(single for part in content for single in expand_images(part))}
    return data


def render_value(result: Any) -> str:
    if result is None:
        return ""
    return result if isinstance(result, str) else to_json(result, fallback=str, bytes_mode="base64").decode()


ContentBlock: TypeAlias = (
    TextContent
    | ThinkingContent
    | ToolCall
    | ToolResult
    | ImageContent
    | CodeContent
    | DiffContent
    | DocumentContent
    | AudioContent
    | VideoContent
    | FileContent
    | SearchResultContent
    | RefusalContent
    | VendorContent
)
"""Every class of content part, for `isinstance`."""
MessageContent: TypeAlias = ContentBlock
Part: TypeAlias = Annotated[ContentBlock, _ByTag()]
"""A content part, for fields of pydantic models: the class follows from `type`."""
ToolUseContent = ToolCall
ToolCallContent = ToolCall
ToolResultContent = ToolResult
Image = ImageContent

ContentPart._union = Part
for _class in get_args(ContentBlock):
    for _tag in get_args(_class.model_fields["type"].annotation):
        CLASS_OF_TAG[_tag] = _class


def find_part_class(tag: str) -> type[ContentPart] | None:
    """Return the part class for a `type` tag."""
    return CLASS_OF_TAG.get(tag)
