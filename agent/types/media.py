"""Base class of content parts, and parts that hold media, such as images and documents."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias, TypedDict, Unpack, cast
from urllib.parse import unquote_to_bytes

from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema
from typing_extensions import override

from ._base import EMPTY_OBJECT, Base64, FrozenTuple, JsonObject, SequenceOf, Value

if TYPE_CHECKING:
    from .parts import TextContent


class ExtraValue(Value, frozen=True):
    """Base class of values that keep unknown keys of their dicts, those of a vendor, in `extra`."""

    if not TYPE_CHECKING:

        @model_validator(mode="before")
        @classmethod
        def _collect_extra(cls, data):
            """Move unknown keys of a dict into `extra`, unless they are empty."""
            known = cls._keywords
            if type(data) is not dict or known.issuperset(data) or cls.model_config.get("extra") == "forbid":
                return data
            given = data.get("extra") or {}
            if not isinstance(given, Mapping):
                return data  # pydantic reports it
            extra = {key: value for key, value in data.items() if key not in known and value not in (None, "", [], {})}
            rest = {key: value for key, value in data.items() if key in known}
            return {**rest, "extra": {**extra, **given}} if extra else rest

    @override
    def __repr_args__(self) -> Any:
        return [(name, value) for name, value in super().__repr_args__() if name != "extra" or value]


class OnDemand:
    """Annotation of a field that a function validates, without a validator of its type.

    pydantic builds the validators of all nested models anew for each model that contains them. Most processes use few
    of them, and the first call of a process would wait for all.
    """

    __slots__ = ("_read", "_type")

    def __init__(self, read: Callable[[Any], Any], type: Any) -> None:
        self._read = read
        self._type = type

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        # Wrapped in `definitions`, because the handler itself would repeat a model where a reference to it suffices.
        return handler(core_schema.definitions_schema(TypeAdapter(self._type).core_schema, []))


class Citation(Value, frozen=True):
    """A source of a piece of text. Fields that the vendor does not report are None."""

    url: str | None = None
    title: str | None = None
    quote: str | None = None
    """Quoted text of the source."""
    start: int | None = None
    end: int | None = None
    """Range of characters of the text that the source supports."""
    provider_data: JsonObject | None = None
    """The vendor's citation object, unchanged."""


class Origin(Value, frozen=True):
    """Creator of a part's opaque data, which is sent back to the same vendor, API and model only."""

    provider: str = ""
    api: str = ""
    model: str = ""


def _read_cache_hint(value: Any) -> Any:
    """Accept Anthropic's `{"type": "ephemeral", "ttl": "1h"}`."""
    if isinstance(value, Mapping):
        return "long" if value.get("ttl") == "1h" else "short"
    return value


CacheHint = Annotated[Literal["short", "long"], BeforeValidator(_read_cache_hint)]
"""Cache the prompt prefix up to here: `short` for minutes, `long` for an hour or more."""


class _Absent:
    """An attribute that is None on instances and absent on the class, so subclasses can define a field."""

    def __get__(self, part: object, owner: type) -> None:
        if part is None:
            raise AttributeError


CLASS_OF_TAG: dict[object, "type[ContentPart]"] = {}


if TYPE_CHECKING:

    class CommonFields(TypedDict, total=False):
        """Fields of all content parts."""

        provider_data: Mapping[str, Any] | None
        origin: Origin | None
        cache: Literal["short", "long"] | None
        extra: Mapping[str, Any]

    class _ImageFields(CommonFields, total=False):
        type: Literal["image", "image_url"]
        image_url: str | None
        url: str | None
        image_data: bytes | None
        data: bytes | str | None
        images: Sequence["ImageContent | Mapping[str, Any]"]
        media_type: str | None
        mime_type: str | None
        name: str | None
        detail: str | None


class ContentPart(ExtraValue, frozen=True, ignored_types=(_Absent,)):
    """Base class of content parts. Constructing it with `type=` returns an instance of the matching class."""

    _spellings: ClassVar[tuple[str, ...]] = ("type",)
    provider_data: JsonObject | None = None
    """Opaque data of the vendor that created the part, unchanged."""
    origin: Origin | None = None
    cache: CacheHint | None = Field(default=None, validation_alias=AliasChoices("cache", "cache_control"))
    """Prompt caching: ask the vendor to cache the prompt up to this part."""
    extra: JsonObject = Field(default=EMPTY_OBJECT, exclude_if=lambda extra: not extra)
    """Keys of the vendor. Unknown keys of a part dict are collected here; codecs send them or warn."""

    _union: ClassVar[Any] = None
    """`Part`, which is defined after all its classes."""

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
            # Python calls the __init__ of the returned class.
            if cls is ContentPart and fields:
                cls = CLASS_OF_TAG.get(fields.get("type"), cls)
            return super().__new__(cls)

        @classmethod
        def __get_pydantic_core_schema__(cls, source, handler):
            return handler.generate_schema(cls._union) if cls is ContentPart else handler(source)

    @classmethod
    def _accept(cls, value: Any) -> Self:
        """Return a part of this class; a dict is validated."""
        return value if isinstance(value, cls) else cls.model_validate(value)

    @staticmethod
    def text_part(text: str) -> "TextContent":
        return cast("TextContent", CLASS_OF_TAG["text"](type="text", text=text))

    @staticmethod
    def image_url_part(url: str) -> "ImageContent":
        return ImageContent(image_url=url)

    @staticmethod
    def image_data_part(data: bytes, media_type: str = "image/png") -> "ImageContent":
        return ImageContent(image_data=data, media_type=media_type)


def normalize_tag(tag: str) -> AfterValidator:
    # Not a before-validator: the discriminated union reads the raw tag.
    return AfterValidator(lambda _: tag)


def _read_switch(value: Any) -> Any:
    """Accept Anthropic's `{"enabled": true}`."""
    return value.get("enabled") if isinstance(value, Mapping) else value


CitationSwitch = Annotated[bool, BeforeValidator(_read_switch)]
if TYPE_CHECKING:
    MediaType: TypeAlias = str | None
else:
    MediaType = Annotated[str | None, Field(validation_alias=AliasChoices("media_type", "mediaType", "mime_type"))]


class ImageContent(ContentPart, frozen=True):
    """An image, by URL or as data, or several `images`. `type` follows from the field that is set."""

    _spellings = ("data", "images", "source", "url")
    type: Literal["image", "image_url"] = "image"
    if TYPE_CHECKING:
        image_url: str | None = None
        image_data: bytes | None = None
        media_type: str | None = None

        def __init__(self, **fields: Unpack[_ImageFields]) -> None: ...

    else:
        image_url: str | None = None
        image_data: Base64 | None = Field(default=None, repr=False)
        media_type: MediaType = None

        @model_validator(mode="before")
        @classmethod
        def _read(cls, data):
            return _read_image(data) if type(data) is dict else data

    name: str | None = None
    detail: str | None = None
    """Requested level of detail: "low", "high" or "auto"."""
    gallery: SequenceOf["ImageContent"] | None = Field(default=None, exclude_if=lambda gallery: gallery is None)
    """Several images. Messages and tool results contain each of them as a part."""

    @property
    def images(self) -> Sequence["ImageContent"]:
        return self.gallery or FrozenTuple((self,))

    @property
    def url(self) -> str | None:
        return self.image_url

    @property
    def data(self) -> bytes | None:
        return self.image_data

    @property
    def mime_type(self) -> str | None:
        return self.media_type


class DocumentContent(ContentPart, frozen=True):
    """A document, by URL, as data, or as plain text."""

    _spellings = ("source",)
    type: Literal["document"] = "document"
    url: str | None = None
    if TYPE_CHECKING:
        data: bytes | None = None
        text: str | None = None
        media_type: str | None = None
    else:
        data: Base64 | None = Field(default=None, repr=False)
        text: str | None = None
        media_type: MediaType = None

        @model_validator(mode="before")
        @classmethod
        def _read(cls, data):
            return _read_document(data) if type(data) is dict else data

    title: str | None = None
    context: str | None = None
    """Information about the document for the model, which is not cited."""
    citations: CitationSwitch | None = None
    """Whether the model cites the document; None is the vendor's default."""

    @property
    def mime_type(self) -> str | None:
        return self.media_type


class AudioContent(ContentPart, frozen=True):
    """Audio data."""

    type: Literal["audio"] = "audio"
    data: Base64 = Field(repr=False)
    media_type: MediaType = None

    @property
    def mime_type(self) -> str | None:
        return self.media_type


class VideoContent(ContentPart, frozen=True):
    """A video, by URL or as data."""

    _spellings = ("video_url",)
    type: Annotated[Literal["video", "video_url"], normalize_tag("video")] = "video"
    url: str | None = None
    data: Base64 | None = Field(default=None, repr=False)
    media_type: MediaType = None
    start: float | None = Field(default=None, ge=0)
    """Start of the clip in seconds."""
    end: float | None = Field(default=None, ge=0)
    """End of the clip in seconds."""
    fps: float | None = Field(default=None, gt=0)
    """Frames per second that the model sees."""

    @property
    def mime_type(self) -> str | None:
        return self.media_type

    if not TYPE_CHECKING:

        @model_validator(mode="before")
        @classmethod
        def _read(cls, data):
            return _read_video(data) if type(data) is dict else data


class FileContent(ContentPart, frozen=True):
    """A file that the vendor stores, by its id. Only that vendor accepts it."""

    _spellings = ("file",)
    type: Literal["file"] = "file"
    file_id: str = Field(min_length=1, validation_alias=AliasChoices("file_id", "id"))
    media_type: MediaType = None
    """Kind of the file, where the API has separate blocks for images, documents and others."""
    title: str | None = None

    @property
    def mime_type(self) -> str | None:
        return self.media_type

    @property
    def id(self) -> str:
        return self.file_id

    if not TYPE_CHECKING:

        @model_validator(mode="before")
        @classmethod
        def _read(cls, data):
            return _read_file(data) if type(data) is dict else data


def _read_image(fields: dict[str, Any]) -> dict[str, Any]:
    """Normalize image fields to exactly one of `image_url`, `image_data` and `gallery`."""
    data = dict(fields)
    if (images := data.pop("images", None)) is not None:
        if not isinstance(images, list | tuple) or not images:
            raise ValueError("images must be a list with at least one image")
        if len(images) > 1:
            if own := [name for name, value in data.items() if name != "type" and value is not None]:
                raise ValueError(f"several images have no common {', '.join(own)}; set it on each image")
            return {"gallery": images}
        only = images[0]
        data |= only if isinstance(only, Mapping) else only.model_dump(exclude_none=True)
    if data.get("gallery"):
        return data
    if isinstance(source := data.get("source"), Mapping):
        data = _unpack_source(data, source)
    if isinstance(nested := data.get("image_url"), Mapping):
        data["image_url"] = nested.get("url")
        data.setdefault("detail", nested.get("detail"))
        _keep_nested(data, "image_url", nested, ("url", "detail"))
    address, content = data.pop("url", None), data.pop("data", None)
    if isinstance(content, str) and content.startswith(("http:", "https:", "data:")):
        address, content = content, None
    if data.get("image_url") is None:
        data["image_url"] = address
    elif address is not None and address != data["image_url"]:
        raise ValueError("image_url and url differ; give one of them")
    if data.get("image_data") is None:
        data["image_data"] = content
    url = data["image_url"]
    if isinstance(url, str) and url.startswith("data:") and data["image_data"] is None:
        data["image_url"] = None
        data["image_data"], media_type = _split_data_url(url)
        _set_media_type(data, media_type)
    _require_one("an image", data, ("image_url", "image_data"))
    data["type"] = "image" if data["image_url"] is None else "image_url"
    return data


def expand_images(part: Any) -> Sequence[Any]:
    """Return the single images of a part or part dict with several; other parts unchanged."""
    if isinstance(part, Mapping) and part.get("type") == "image" and part.get("images"):
        return ImageContent.from_dict(part).images
    return part.gallery if isinstance(part, ImageContent) and part.gallery else (part,)


def _read_document(fields: dict[str, Any]) -> dict[str, Any]:
    """Normalize document fields to exactly one of `url`, `data` and `text`."""
    data = _unpack_source(fields, fields["source"]) if isinstance(fields.get("source"), Mapping) else dict(fields)
    _unpack_data_url(data)
    _require_one("a document", data, ("url", "data", "text"))
    return data


def _read_video(fields: dict[str, Any]) -> dict[str, Any]:
    """Normalize video fields to exactly one of `url` and `data`."""
    data = dict(fields)
    address = data.pop("video_url", None)
    if isinstance(address, Mapping):
        data["url"] = address.get("url")
        _keep_nested(data, "video_url", address, ("url",))
    elif address is not None:
        data["url"] = address
    _unpack_data_url(data)
    _require_one("a video", data, ("url", "data"))
    return data


def _read_file(fields: dict[str, Any]) -> dict[str, Any]:
    """Flatten OpenAI's `{"file": {"file_id": …}}`."""
    nested = fields.get("file")
    if not isinstance(nested, Mapping):
        return fields
    if nested.get("file_data") is not None:
        raise ValueError("a file by id has no data; pass a document instead")
    flat = {**fields, **nested, "title": nested.get("filename", fields.get("title"))}
    return {key: value for key, value in flat.items() if key not in ("file", "filename")}


def _keep_nested(data: dict[str, Any], key: str, nested: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Keep unknown keys of a nested object in `extra`, in an object of the same name."""
    others = {name: value for name, value in nested.items() if name not in known and value is not None}
    given = data.get("extra") or {}
    if others and isinstance(given, Mapping):
        data["extra"] = {**given, key: others}


def _unpack_data_url(data: dict[str, Any]) -> None:
    url = data.get("url")
    if isinstance(url, str) and url.startswith("data:"):
        data["url"] = None
        data["data"], media_type = _split_data_url(url)
        _set_media_type(data, media_type)


def _set_media_type(data: dict[str, Any], media_type: str | None) -> None:
    """Use the media type of a `data:` URL unless one is given."""
    if not any(data.get(name) for name in ("media_type", "mediaType", "mime_type")):
        data["media_type"] = media_type


def _split_data_url(url: str) -> tuple[str | bytes, str | None]:
    """Return the data (bytes or base64 text) and the media type of a `data:` URL."""
    header, comma, body = url.removeprefix("data:").partition(",")
    if not comma:
        raise ValueError("invalid data: URL: the comma before the data is missing")
    media_type, *options = header.split(";")
    if options and options[-1].strip().lower() == "base64":
        return unquote_to_bytes(body).decode("ascii", "replace"), media_type or None
    return unquote_to_bytes(body), media_type or None


def _unpack_source(data: dict[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten `{"source": {"type": "base64" | "url" | "text", …}}` into url, data or text."""
    flat = {key: value for key, value in data.items() if key != "source"}
    if (media_type := source.get("media_type")) is not None:
        flat["media_type"] = media_type
    _keep_nested(flat, "source", source, ("type", "media_type", "url", "data"))
    match source.get("type"):
        case "url":
            flat["url"] = source.get("url")
        case "base64":
            flat["data"] = source.get("data")
        case "text":
            flat["text"] = source.get("data")
        case other:
            raise ValueError(f"source.type is {other!r}; expected 'base64', 'url' or 'text'")
    return flat


def _require_one(kind: str, fields: Mapping[str, Any], names: tuple[str, ...]) -> None:
    present = [name for name in names if fields.get(name) is not None]
    if len(present) != 1:
        received = " and ".join(present) if present else "none of them"
        raise ValueError(f"{kind} needs exactly one of {', '.join(names)}; got {received}")
