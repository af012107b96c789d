"""What a tool looks like to a model: name, purpose, parameters.

Running tools, and making specs from functions, happens elsewhere; here is only the description and the three common
shapes in which it is written down.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import AliasChoices, Field, WrapValidator, model_validator
from pydantic_core import to_json
from typing_extensions import override

from ._base import (
    NOTHING,
    FrozenDict,
    JsonObject,
    _defaults,
    _set_extra,
    _set_given,
    _set_private,
    _set_values,
    freeze,
    thaw,
)
from .notes import Noted, _set_notes, notes_on
from .parts import CacheHint, ToolCall, ToolResult
from .plain import plain_object

__all__ = ["HasSpec", "OfferedTool", "ToolCall", "ToolDefinition", "ToolResult", "ToolSpec"]


class ToolSpec(Noted, frozen=True):
    """The description of a tool. `function` is for whoever runs it: never dumped, never printed."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.:-]{1,128}$")
    description: str = ""
    parameters: JsonObject = Field(
        default=NOTHING, validation_alias=AliasChoices("parameters", "input_schema", "inputSchema")
    )
    """JSON schema of the arguments."""
    function: Any = Field(default=None, exclude=True, repr=False)
    is_async: bool = False
    cache: CacheHint | None = Field(default=None, validation_alias=AliasChoices("cache", "cache_control"))
    strict: bool | None = None
    """Whether the vendor shall force the arguments to fit the schema; None leaves it to the vendor."""
    extra: JsonObject = Field(default=NOTHING, exclude_if=lambda extra: not extra)
    """Settings of one vendor, written beside the others as they are. A dict's keys that we do not know go here."""

    if TYPE_CHECKING:
        input_schema: JsonObject = NOTHING
    else:

        def __init__(self, /, **data):
            __tracebackhide__ = True
            if data.keys() <= _PLAIN_KEYS and _is_plain(**data) and _describe(self, data):
                return  # what every tool has, without pydantic, which takes three times as long
            self.__pydantic_validator__.validate_python(data, self_instance=self)

        # Tells pydantic that this __init__ only validates, so that nested specs are built without calling it.
        __init__.__pydantic_base_init__ = True

        @property
        def input_schema(self):
            return self.parameters

        @model_validator(mode="before")
        @classmethod
        def _flatten(cls, data):
            """`{"type": "function", "function": {…}}` is a tool, too; a missing description or schema may be null."""
            if type(data) is not dict:
                return data
            if isinstance(data.get("function"), Mapping):
                data = {**{key: value for key, value in data.items() if key != "function"}, **data["function"]}
            if None in data.values():
                data = {key: value for key, value in data.items() if value is not None}
            return data

    @override
    def __hash__(self) -> int:
        # `function` may be anything, hashable or not; equal specs have equal hashes without it.
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
        """A fresh, mutable schema. No parameters still are an object, which every vendor insists on."""
        schema: dict[str, Any] = thaw(self.parameters)
        return schema or {"type": "object", "properties": {}}


_PLAIN_KEYS = frozenset(("name", "description", "parameters"))
_OBJECTS, _TEXT = (dict, FrozenDict), frozenset((str,))
_is_name = re.compile(r"[a-zA-Z0-9_.:-]{1,128}").fullmatch


def _is_plain(name: Any = None, description: Any = "", parameters: Any = NOTHING) -> bool:
    if type(name) is not str or type(description) is not str or type(parameters) not in _OBJECTS:
        return False
    return _is_name(name) is not None and _TEXT.issuperset(map(type, parameters))


def _describe(spec: ToolSpec, given: dict[str, Any]) -> bool:
    values = {**_defaults(ToolSpec), **given}
    notes: dict[str, Any] = {}
    if type(parameters := values["parameters"]) is dict:
        if (read := _read_schema(values["name"], parameters)) is None:
            return False  # pydantic knows what to do with it
        values["parameters"], text = read
        if parameters:
            notes[_SCHEMA] = text
    _set_values(spec, values)
    _set_given(spec, set(given))
    _set_extra(spec, None)
    _set_private(spec, None)
    _set_notes(spec, notes)
    return True


_SCHEMA = "schema"
_MOST_KNOWN = 256
_known: dict[str, tuple[FrozenDict, bytes]] = {}
"""The schema of the last tool of each name, frozen and written: programs make the same tools for every request."""


def _read_schema(name: str, schema: dict[str, Any]) -> tuple[FrozenDict, bytes] | None:
    known = _known.get(name)
    if known is not None and _is_same(schema, *known):
        return known
    read = plain_object(schema)
    if read is not None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[name] = read
    return read


def _is_same(schema: dict[str, Any], frozen: FrozenDict, text: bytes) -> bool:
    """Written, 1 and True and 1.0 differ; compared, 1 and "1" as keys do, and whatever would be gone once written."""
    try:
        return frozen == schema and to_json(schema) == text
    except Exception:  # there are things that cannot be compared
        return False


def plain_schema(tool: ToolSpec) -> bytes | None:
    """The JSON of the schema of a tool that has a name, a description and a schema, and nothing else.

    None of any other tool. This one was written when the tool was made, from what was given: what is frozen takes
    several times as long.
    """
    text: bytes | None = notes_on(tool).get(_SCHEMA)
    return text


ToolDefinition = ToolSpec


class HasSpec(Protocol):
    """Anything that knows its own description, such as a decorated function."""

    @property
    def spec(self) -> ToolSpec: ...


_KEYS = frozenset((*ToolSpec.model_fields, "input_schema", "inputSchema", "cache_control", "type"))


def _describes_a_function(tool: Mapping[str, Any]) -> bool:
    """Whether a dict is a tool of the caller's, rather than one that runs at the vendor."""
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
        raise ValueError(f"expected a ToolSpec, an object with a spec, or a dict that describes a tool; got {kind}")
    plain = dict(value)
    return ToolSpec.model_validate(_sorted(plain)) if _describes_a_function(plain) else freeze(plain)


def _sorted(tool: dict[str, Any]) -> dict[str, Any]:
    """What a dict says about a tool beyond what every vendor knows is kept apart, not dropped."""
    nested = tool.get("function")
    flat = {**tool, **nested, "function": None} if isinstance(nested, Mapping) else tool
    if flat.keys() <= _KEYS:
        return flat
    extra = {key: value for key, value in flat.items() if key not in _KEYS}
    return {**{key: value for key, value in flat.items() if key in _KEYS}, "extra": {**extra, **flat.get("extra", {})}}


OfferedTool = Annotated[ToolSpec | JsonObject, WrapValidator(_read_tool)]
"""A tool in a request: one of the caller's, or a frozen dict that goes to the vendor as it is."""
