"""Content parts: what a message is made of. One closed union, `Part`; `ContentPart` is its base and its front door.

Each kind of content is one class, whatever the vocabularies call it; other names are aliases, other spellings are
read. Nothing here knows who sends or receives a part: a vendor's opaque data is carried, never looked into.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    Required,
    TypeAlias,
    TypedDict,
    Unpack,
    get_args,
    overload,
)

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, WrapValidator, model_validator
from pydantic_core import from_json, to_json
from typing_extensions import override

from ._base import NOTHING, Base64, FrozenDict, Json, JsonObject, Many, Value, read_json
from ._media import read_document, read_image

if TYPE_CHECKING:

    class _AnyFields(TypedDict, total=False):
        provider_data: Mapping[str, Any] | None
        origin: Origin | None
        cache: Literal["short", "long"] | None

    class _ThinkingFields(_AnyFields, total=False):
        type: Literal["thinking", "reasoning"]
        signature: str | None
        id: str | None
        encrypted_content: str | None
        summary: Sequence[Mapping[str, Any]]
        redacted: bool

    class _CallFields(_AnyFields, total=False):
        type: Literal["tool_call", "tool_use", "tool-call", "function"]
        id: Required[str]
        name: Required[str]
        item_id: str | None
        signature: str | None
        invalid_arguments: str | None

    class _ResultFields(_AnyFields, total=False):
        type: Literal["tool_result", "tool-result"]
        name: str | None
        content: str | ContentPart | Sequence[ContentPart] | None
        result: Any
        is_error: bool
        details: Any


class Citation(Value, frozen=True):
    """A source of a piece of text. What a vendor does not say is None."""

    url: str | None = None
    title: str | None = None
    quote: str | None = None
    """The words of the source."""
    start: int | None = None
    end: int | None = None
    """Which characters of the text rest on it."""
    provider_data: JsonObject | None = None
    """The vendor's own form, kept verbatim."""


class Origin(Value, frozen=True):
    """Who made a part's opaque data: it is replayed there and only there."""

    provider: str = ""
    api: str = ""
    model: str = ""


def _read_cache_hint(value: Any) -> Any:
    """`{"type": "ephemeral", "ttl": "1h"}` is a hint, too."""
    if isinstance(value, Mapping):
        return "long" if value.get("ttl") == "1h" else "short"
    return value


CacheHint = Annotated[Literal["short", "long"], BeforeValidator(_read_cache_hint)]
"""Keep the conversation up to here in the vendor's cache: for minutes, or for an hour and more."""


class _Absent:
    """None on parts without that attribute. Invisible on the class, so that a field may take the name unwarned."""

    def __get__(self, part: object, owner: type) -> None:
        if part is None:
            raise AttributeError


_CLASS_OF_TAG: dict[object, type[ContentPart]] = {}


class ContentPart(Value, frozen=True, ignored_types=(_Absent,)):
    """Any part. `ContentPart(type=…, …)` and `ContentPart.model_validate(…)` give an object of the fitting class."""

    provider_data: JsonObject | None = None
    """Opaque data of the vendor that made this part, kept verbatim."""
    origin: Origin | None = None
    cache: CacheHint | None = Field(default=None, validation_alias=AliasChoices("cache", "cache_control"))
    """Vendors that let the caller choose what to cache are told to keep everything up to this part."""

    if TYPE_CHECKING:
        type: str

        def __init__(self, *, type: str, **fields: Any) -> None: ...

        @property
        def text(self) -> str | None: ...

        @property
        def image_url(self) -> str | None: ...

        @property
        def image_data(self) -> bytes | None: ...

        @property
        def media_type(self) -> str | None: ...

    else:
        text = image_url = image_data = media_type = _Absent()

        def __new__(cls, /, *args, **fields):
            # Python then runs the __init__ of whatever class came back, so choosing the class is enough.
            if cls is ContentPart and fields:
                cls = _CLASS_OF_TAG.get(fields.get("type"), cls)
            return super().__new__(cls)

        @classmethod
        def __get_pydantic_core_schema__(cls, source, handler):
            return handler.generate_schema(Part) if cls is ContentPart else handler(source)

    @staticmethod
    def text_part(text: str) -> TextContent:
        return TextContent(text=text)

    @staticmethod
    def image_url_part(url: str) -> ImageContent:
        return ImageContent(image_url=url)

    @staticmethod
    def image_data_part(data: bytes, media_type: str = "image/png") -> ImageContent:
        return ImageContent(image_data=data, media_type=media_type)


def _canonical(tag: str) -> AfterValidator:
    # An after-validator: a discriminated union looks at the tag itself, so nothing may change it before.
    return AfterValidator(lambda _: tag)


def _none_to_empty(value: Any) -> Any:
    return "" if value is None else value


class TextContent(ContentPart, frozen=True):
    """Text, with its sources, and the signature some vendors put on it."""

    __match_args__ = ("text",)
    type: Literal["text"] = "text"
    text: str
    signature: str | None = Field(default=None, validation_alias=AliasChoices("signature", "text_signature"))
    citations: Many[Citation] = Field(default=(), exclude_if=lambda citations: not citations)


Text = Annotated[str, BeforeValidator(_none_to_empty)]
"""Text where None means none was given."""


class ThinkingContent(ContentPart, frozen=True):
    """A model's reasoning: the text it shows, and the sealed form that must be sent back unchanged."""

    __match_args__ = ("thinking",)
    if TYPE_CHECKING:
        type: Literal["thinking"] = "thinking"
        thinking: str

        @overload
        def __init__(self, *, thinking: str, **fields: Unpack[_ThinkingFields]) -> None: ...
        @overload
        def __init__(self, *, reasoning: str, **fields: Unpack[_ThinkingFields]) -> None: ...
        def __init__(self, **fields: Any) -> None: ...

    else:
        type: Annotated[Literal["thinking", "reasoning"], _canonical("thinking")] = "thinking"
        thinking: str = Field(validation_alias=AliasChoices("thinking", "reasoning"))
    signature: Text = Field(default="", validation_alias=AliasChoices("signature", "thinking_signature"))
    id: Text = ""
    encrypted_content: Text = ""
    summary: Many[JsonObject] = ()
    redacted: bool = False
    """The vendor withheld the text; only the sealed form exists."""

    @property
    def reasoning(self) -> str:
        return self.thinking


def _read_arguments(value: Any, check: Any) -> Any:
    """Arguments come as an object, as its JSON text, or not at all."""
    if type(value) is FrozenDict:
        return value
    if value is None or value == "":
        return NOTHING
    if isinstance(value, str | bytes):
        try:
            value = from_json(value, allow_inf_nan=False)
        except ValueError as error:
            raise ValueError(f"arguments are not valid JSON: {error}") from None
    return read_json(check(value))


class ToolCall(ContentPart, frozen=True):
    """A model's wish to have a tool run."""

    __match_args__ = ("name", "arguments")
    _keys: ClassVar[frozenset[str]] = frozenset(("type", "id", "name", "arguments", "input"))

    if TYPE_CHECKING:
        type: Literal["tool_call"] = "tool_call"
        id: str
        name: str
        arguments: dict[str, Any]

        @overload
        def __init__(
            self, *, arguments: Mapping[str, Any] | str | None = ..., **fields: Unpack[_CallFields]
        ) -> None: ...
        @overload
        def __init__(self, *, input: Mapping[str, Any] | str | None, **fields: Unpack[_CallFields]) -> None: ...
        def __init__(self, **fields: Any) -> None: ...

    else:
        type: Annotated[Literal["tool_call", "tool_use", "tool-call", "function"], _canonical("tool_call")] = (
            "tool_call"
        )
        id: str
        name: str
        arguments: Annotated[dict[str, Any], WrapValidator(_read_arguments)] = Field(
            default=NOTHING, validation_alias=AliasChoices("arguments", "input")
        )

        @model_validator(mode="before")
        @classmethod
        def _flatten(cls, data):
            """`{"id": …, "function": {"name": …, "arguments": …}}` is a call, too."""
            if type(data) is dict and isinstance(data.get("function"), Mapping):
                return {**data, **data["function"]}
            return data

    item_id: str | None = None
    signature: str | None = Field(default=None, validation_alias=AliasChoices("signature", "thought_signature"))
    invalid_arguments: str | None = None
    """What the model wrote in place of arguments, where that is no JSON object; `arguments` is empty then."""

    @property
    def input(self) -> dict[str, Any]:
        return self.arguments

    def __getitem__(self, key: str) -> Any:
        if key in self._keys:
            return getattr(self, key)
        raise KeyError(key)


class ImageContent(ContentPart, frozen=True):
    """A picture, by address or by value. `type` follows from which of the two was given."""

    type: Literal["image", "image_url"] = "image"
    if TYPE_CHECKING:
        image_url: str | None = None
        image_data: bytes | None = None
        media_type: str | None = None
    else:
        image_url: str | None = None
        image_data: Base64 | None = Field(default=None, repr=False)
        media_type: str | None = Field(
            default=None, validation_alias=AliasChoices("media_type", "mediaType", "mime_type")
        )

        @model_validator(mode="before")
        @classmethod
        def _read(cls, data):
            return read_image(data) if type(data) is dict else data

    name: str | None = None
    detail: str | None = None
    """How closely the model should look: "low", "high", "auto"."""

    @property
    def images(self) -> Sequence[ImageContent]:
        return (self,)

    @property
    def url(self) -> str | None:
        return self.image_url

    @property
    def data(self) -> bytes | None:
        return self.image_data


class RefusalContent(ContentPart, frozen=True):
    """A model's words for why it will not answer. Kept apart from text, so that no one takes it for the answer."""

    __match_args__ = ("refusal",)
    type: Literal["refusal"] = "refusal"
    refusal: str


class CodeContent(ContentPart, frozen=True):
    """Source code shown as such."""

    type: Literal["code"] = "code"
    code: str
    language: str | None = None


class DiffContent(ContentPart, frozen=True):
    """A change of code: before and after."""

    type: Literal["diff"] = "diff"
    old_code: str = Field(validation_alias=AliasChoices("old_code", "oldCode"))
    new_code: str = Field(validation_alias=AliasChoices("new_code", "newCode"))
    language: str | None = None


class DocumentContent(ContentPart, frozen=True):
    """A document, by address, by value, or as plain text."""

    type: Literal["document"] = "document"
    url: str | None = None
    if TYPE_CHECKING:
        data: bytes | None = None
        text: str | None = None
        media_type: str | None = None
    else:
        data: Base64 | None = Field(default=None, repr=False)
        text: str | None = None
        media_type: str | None = Field(
            default=None, validation_alias=AliasChoices("media_type", "mediaType", "mime_type")
        )

        @model_validator(mode="before")
        @classmethod
        def _read(cls, data):
            return read_document(data) if type(data) is dict else data

    title: str | None = None


class AudioContent(ContentPart, frozen=True):
    """Sound, by value."""

    type: Literal["audio"] = "audio"
    data: Base64 = Field(repr=False)
    media_type: str | None = Field(default=None, validation_alias=AliasChoices("media_type", "mediaType", "mime_type"))


class VendorContent(ContentPart, frozen=True):
    """A block that only its vendor understands, such as a search it ran: `provider_data` is the block as it came.

    It goes back to the vendor that made it, and is left out, with a warning, everywhere else.
    """

    __match_args__ = ("kind",)
    type: Literal["vendor"] = "vendor"
    kind: str
    """The vendor's own name for this type of block."""


ResultPart: TypeAlias = Annotated[
    TextContent | ImageContent | DocumentContent | AudioContent, Field(discriminator="type")
]


class ToolResult(ContentPart, frozen=True):
    """A tool's answer. `result`: what it returned; `content`: what the model sees; `details`: what only a UI sees."""

    __match_args__ = ("tool_call_id", "content")
    if TYPE_CHECKING:
        type: Literal["tool_result"] = "tool_result"
        tool_call_id: str
        name: str | None = None
        content: str | Sequence[TextContent | ImageContent | DocumentContent | AudioContent]
        result: Any = None

        @overload
        def __init__(self, *, tool_call_id: str, **fields: Unpack[_ResultFields]) -> None: ...
        @overload
        def __init__(self, *, tool_use_id: str, **fields: Unpack[_ResultFields]) -> None: ...
        def __init__(self, **fields: Any) -> None: ...

    else:
        type: Annotated[Literal["tool_result", "tool-result"], _canonical("tool_result")] = "tool_result"
        tool_call_id: str = Field(validation_alias=AliasChoices("tool_call_id", "tool_use_id", "id"))
        name: str | None = Field(default=None, validation_alias=AliasChoices("name", "tool_name"))
        content: str | tuple[ResultPart, ...] = ""
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
        """What the model sees, as far as it is text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextContent))

    @property
    def tool_use_id(self) -> str:
        return self.tool_call_id

    @property
    def id(self) -> str:
        return self.tool_call_id


def _read_tool_result(data: dict[str, Any]) -> dict[str, Any]:
    content = data.get("content")
    if type(content) is str:
        return data
    if content is None:
        return {**data, "content": _render(data.get("result"))}
    if isinstance(content, Mapping | ContentPart):
        return {**data, "content": (content,)}
    return data


def _render(result: Any) -> str:
    """A tool's return value as the text a model reads."""
    if result is None:
        return ""
    return result if isinstance(result, str) else to_json(result, fallback=str, bytes_mode="base64").decode()


Part: TypeAlias = Annotated[
    TextContent
    | ThinkingContent
    | ToolCall
    | ToolResult
    | ImageContent
    | CodeContent
    | DiffContent
    | DocumentContent
    | AudioContent
    | RefusalContent
    | VendorContent,
    Field(discriminator="type"),
]
ContentBlock: TypeAlias = Part
MessageContent: TypeAlias = Part
ToolUseContent = ToolCall
ToolCallContent = ToolCall
ToolResultContent = ToolResult
Image = ImageContent

for _class in get_args(get_args(Part)[0]):
    for _tag in get_args(_class.model_fields["type"].annotation):
        _CLASS_OF_TAG[_tag] = _class


def class_of_tag(tag: str) -> type[ContentPart] | None:
    """The class that reads parts with that `type`."""
    return _CLASS_OF_TAG.get(tag)
