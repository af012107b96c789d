"""Tool specifications, and tools that run at the vendor."""

from collections.abc import Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Protocol,
    TypeAlias,
    TypedDict,
    Unpack,
    overload,
)

from pydantic import AliasChoices, Field, TypeAdapter, model_validator
from typing_extensions import override

from ._base import EMPTY_OBJECT, JsonObject, SequenceOf, Value, freeze, thaw
from .media import CacheHint, ExtraValue, OnDemand
from .parts import ToolCall, ToolResult
from .secrets import SecretField

_UNSET: Any = None

__all__ = ["ToolCall", "ToolDefinition", "ToolResult", "ToolSpec"]


if TYPE_CHECKING:

    class _SpecFields(TypedDict, total=False):
        function: Any
        is_async: bool
        cache: Literal["short", "long"] | None
        strict: bool | None
        extra: Mapping[str, Any]


class ToolSpec(ExtraValue, frozen=True):
    """Description of a tool for the model. `function` is the implementation: never dumped or printed."""

    _positional = ("name", "description", "parameters")
    _spellings = ("type",)
    name: str = Field(pattern=r"^[a-zA-Z0-9_.:-]{1,128}$")
    description: str = ""
    parameters: JsonObject = Field(
        default=EMPTY_OBJECT, validation_alias=AliasChoices("parameters", "input_schema", "inputSchema")
    )
    """JSON schema of the arguments."""
    function: Any = Field(default=None, exclude=True, repr=False)
    is_async: bool = False
    cache: CacheHint | None = Field(default=None, validation_alias=AliasChoices("cache", "cache_control"))
    strict: bool | None = None
    """Whether the vendor must enforce the schema; None is the vendor's default."""
    extra: JsonObject = Field(default=EMPTY_OBJECT, exclude_if=lambda extra: not extra)
    """Vendor-specific settings, sent as they are. Unknown keys of a tool dict are collected here."""

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            name: str,
            description: str = ...,
            parameters: Mapping[str, Any] = ...,
            **fields: Unpack[_SpecFields],
        ) -> None: ...
        @overload
        def __init__(
            self, name: str, description: str = ..., *, input_schema: Mapping[str, Any], **fields: Unpack[_SpecFields]
        ) -> None: ...
        def __init__(self, *args: Any, **fields: Any) -> None: ...

        @property
        def input_schema(self) -> dict[str, Any]: ...

    else:

        @property
        def input_schema(self):
            return self.parameters

        @model_validator(mode="before")
        @classmethod
        def _flatten(cls, data):
            """Accept `{"type": "function", "function": {…}}`, and null for missing fields."""
            if type(data) is not dict:
                return data
            if isinstance(data.get("function"), Mapping):
                data = {**{key: value for key, value in data.items() if key != "function"}, **data["function"]}
            if None in data.values():
                data = {key: value for key, value in data.items() if value is not None}
            return data

    @override
    def __hash__(self) -> int:
        # `function` may be unhashable; equal specs have equal hashes without it.
        return hash((self.name, self.description, self.parameters))

    def to_openai_schema(self) -> dict[str, Any]:
        function: dict[str, Any] = {"name": self.name, "description": self.description, "parameters": self._schema()}
        if self.strict is not None:
            function["strict"] = self.strict
        return {"type": "function", "function": function, **self.extra}

    def to_anthropic_schema(self) -> dict[str, Any]:
        tool: dict[str, Any] = {"name": self.name, "description": self.description, "input_schema": self._schema()}
        if self.strict is not None:
            tool["strict"] = self.strict
        return {**tool, **self.extra}

    def to_gemini_schema(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, "parameters": self._schema(), **self.extra}

    def _schema(self) -> dict[str, Any]:
        """Return a mutable schema; without parameters an empty object schema, which all vendors require."""
        schema: dict[str, Any] = thaw(self.parameters)
        return schema or {"type": "object", "properties": {}}


ToolDefinition = ToolSpec


class HasSpec(Protocol):
    """An object with a tool spec, such as a decorated function."""

    @property
    def spec(self) -> ToolSpec: ...


class UserLocation(Value, frozen=True, extra="forbid"):
    """Approximate location of the user, for search results."""

    city: str | None = None
    region: str | None = None
    country: str | None = None
    """ISO code of two letters."""
    timezone: str | None = None
    """IANA name, such as `Europe/Rome`."""


class _BuiltinTool(Value, frozen=True, extra="forbid"):
    """Base class of tools that the vendor implements."""

    extra: JsonObject = Field(default=EMPTY_OBJECT, exclude_if=lambda extra: not extra)
    """Settings in the vendor's format, merged into the tool as they are."""

    if TYPE_CHECKING:
        builtin: str

    @property
    def name(self) -> str:
        return self.builtin


class WebSearch(_BuiltinTool, frozen=True):
    """Search of the web, run by the vendor."""

    builtin: Literal["web_search"] = "web_search"
    max_uses: int | None = Field(default=None, ge=1)
    """Maximum number of searches."""
    allowed_domains: SequenceOf[str] = ()
    blocked_domains: SequenceOf[str] = ()
    user_location: UserLocation | None = None
    context_size: Literal["low", "medium", "high"] | None = None
    """How much of the results the model reads."""


class CodeExecution(_BuiltinTool, frozen=True):
    """A sandbox at the vendor, in which the model runs code."""

    builtin: Literal["code_execution"] = "code_execution"
    container: str | None = None
    """Id of an existing container; by default a new one."""
    file_ids: SequenceOf[str] = ()
    """Files for a new container, by the vendor's ids."""


class FileSearch(_BuiltinTool, frozen=True):
    """Search of files that the vendor stores."""

    builtin: Literal["file_search"] = "file_search"
    stores: SequenceOf[str]
    """Ids of the vendor's vector stores or file stores."""
    max_results: int | None = Field(default=None, ge=1)
    filters: JsonObject | str | None = None
    """Filter by metadata, in the vendor's format."""


class ComputerUse(_BuiltinTool, frozen=True):
    """Control of a computer. The model's actions are tool calls that you run, with screenshots as results."""

    builtin: Literal["computer_use"] = "computer_use"
    width: int = Field(default=1280, ge=1)
    """Width of the screen in pixels."""
    height: int = Field(default=800, ge=1)
    environment: Literal["browser", "mac", "windows", "ubuntu", "linux"] = "browser"


class McpConnector(_BuiltinTool, frozen=True):
    """An MCP server whose tools the vendor calls."""

    builtin: Literal["mcp"] = "mcp"
    label: str = Field(min_length=1)
    """Name of the server in the conversation."""
    url: str | None = None
    connector_id: str | None = None
    """Id of a connector of the vendor, instead of a URL."""
    token: SecretField = Field(default=_UNSET)
    """Access token for the server. Masked in dumps, absent from pickles."""
    allowed_tools: SequenceOf[str] = ()
    """Names of the tools that may be called; empty for all."""
    require_approval: Literal["always", "never"] | None = None

    @property
    @override
    def name(self) -> str:
        return self.label


class ImageGeneration(_BuiltinTool, frozen=True):
    """Generation of images, which are `ImageContent` in the response."""

    builtin: Literal["image_generation"] = "image_generation"
    model: str | None = None
    size: str | None = None
    """Width and height, such as `1024x1024`, or an aspect ratio, in the vendor's spelling."""
    quality: str | None = None
    background: Literal["transparent", "opaque", "auto"] | None = None
    format: Literal["png", "jpeg", "webp"] | None = None
    partial_images: int | None = Field(default=None, ge=0, le=3)
    """Number of previews while streaming, as events of type `partial_image`."""


BuiltinTool: TypeAlias = WebSearch | CodeExecution | FileSearch | ComputerUse | McpConnector | ImageGeneration
"""A tool that the vendor implements. Vendors without it raise an error; settings without an equivalent warn."""
_BUILTIN_TOOLS: TypeAdapter[BuiltinTool] = TypeAdapter(
    Annotated[BuiltinTool, Field(discriminator="builtin")], config={"defer_build": True}
)


_KEYS = frozenset((*ToolSpec.model_fields, "input_schema", "inputSchema", "cache_control", "type"))


def _is_function_tool(tool: Mapping[str, Any]) -> bool:
    """Whether a dict describes a tool that the caller runs, not one that runs at the vendor."""
    if isinstance(tool.get("function"), Mapping):
        return True
    kind = tool.get("type")
    return "name" in tool and (kind is None or kind == "function" or (kind == "custom" and "input_schema" in tool))


def _read_tool(value: Any) -> Any:
    if isinstance(value, ToolSpec | _BuiltinTool):
        return value
    if isinstance(spec := getattr(value, "spec", None), ToolSpec):
        return spec
    if isinstance(schema := getattr(value, "input_schema", None), Mapping) and hasattr(value, "name"):
        described = getattr(value, "description", "")
        return ToolSpec(name=value.name, description=described, parameters=schema, function=value)
    if not isinstance(value, Mapping) or not value:
        kind = type(value).__name__
        raise ValueError(f"expected a ToolSpec, an object with a `spec`, or a tool dict; got {kind}")
    plain = dict(value)
    if "builtin" in plain:
        return _BUILTIN_TOOLS.validate_python(plain)
    return ToolSpec.model_validate(_collect_extra(plain)) if _is_function_tool(plain) else freeze(plain)


def _collect_extra(tool: dict[str, Any]) -> dict[str, Any]:
    """Move vendor-specific keys of a tool dict into `extra`."""
    nested = tool.get("function")
    flat = {**tool, **nested, "function": None} if isinstance(nested, Mapping) else tool
    if flat.keys() <= _KEYS:
        return flat
    extra = {key: value for key, value in flat.items() if key not in _KEYS}
    return {**{key: value for key, value in flat.items() if key in _KEYS}, "extra": {**extra, **flat.get("extra", {})}}


RequestTool: TypeAlias = ToolSpec | BuiltinTool | Mapping[str, Any]
"""A tool in a request: a function of the caller, a built-in tool, or a dict that is sent to the vendor as it is."""
_ValidTool: TypeAlias = ToolSpec | BuiltinTool | JsonObject
OfferedTool = Annotated[_ValidTool, OnDemand(_read_tool, _ValidTool)]


def tool_name(tool: RequestTool) -> str | None:
    """Return the name of an offered tool; None for a dict without one."""
    return tool.get("name") if isinstance(tool, Mapping) else tool.name


def check_unique_names(tools: Sequence[RequestTool]) -> None:
    named = [tool_name(tool) for tool in tools]
    if len(set(named)) == len(named):
        return
    if twice := sorted({name for name in named if name is not None and named.count(name) > 1}):
        raise ValueError(f"tools: duplicate names {', '.join(twice)}; rename or remove one")
