"""Tool specifications: name, description and parameters, in the formats of the vendors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import AliasChoices, Field, WrapValidator, model_validator
from typing_extensions import override

from ._base import EMPTY_OBJECT, JsonObject, Value, freeze, thaw
from .parts import CacheHint, ToolCall, ToolResult

__all__ = ["ToolCall", "ToolDefinition", "ToolResult", "ToolSpec"]


class ToolSpec(Value, frozen=True):
    """Description of a tool for the model. `function` is the implementation: never dumped or printed."""

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
        input_schema: JsonObject = EMPTY_OBJECT
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


_KEYS = frozenset((*ToolSpec.model_fields, "input_schema", "inputSchema", "cache_control", "type"))


def _is_function_tool(tool: Mapping[str, Any]) -> bool:
    """Whether a dict describes a tool that the caller runs, not one that runs at the vendor."""
    if isinstance(tool.get("function"), Mapping):
        return True
    kind = tool.get("type")
    return "name" in tool and (kind is None or kind == "function" or (kind == "custom" and "input_schema" in tool))


def _read_tool(value: Any, check: Any) -> Any:
    if isinstance(value, ToolSpec):
        return value
    if isinstance(spec := getattr(value, "spec", None), ToolSpec):
        return spec
    if not isinstance(value, Mapping) or not value:
        kind = type(value).__name__
        raise ValueError(f"expected a ToolSpec, an object with a `spec`, or a tool dict; got {kind}")
    plain = dict(value)
    return ToolSpec.model_validate(_collect_extra(plain)) if _is_function_tool(plain) else freeze(plain)


def _collect_extra(tool: dict[str, Any]) -> dict[str, Any]:
    """Move vendor-specific keys of a tool dict into `extra`."""
    nested = tool.get("function")
    flat = {**tool, **nested, "function": None} if isinstance(nested, Mapping) else tool
    if flat.keys() <= _KEYS:
        return flat
    extra = {key: value for key, value in flat.items() if key not in _KEYS}
    return {**{key: value for key, value in flat.items() if key in _KEYS}, "extra": {**extra, **flat.get("extra", {})}}


OfferedTool = Annotated[ToolSpec | JsonObject, WrapValidator(_read_tool)]
"""A tool in a request: a spec, or a frozen dict that is sent to the vendor as it is."""
