"""JSON schema compiler: converts schemas to the subset that a vendor enforces.

```python
from agent.schemas import compile_schema

schema = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}}}
compiled = compile_schema(schema, "anthropic")
print(compiled.lost)
#> ('/properties/age: minimum is not enforced',)
print(compile_schema(schema, "openai").restore({"age": None}))  # strict mode requires every property
#> {}
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from .._missing_names import reject_names
from ..errors import ConfigurationError
from ..types import freeze, thaw
from ..wire_formats import schema_dialect
from .dialect import WRAPPER, wrap_value
from .reader import Restorer, find_dangling_reference, find_schema_error, follow_references, types_of
from .validation import StepLimitExceeded, check_limits, defer_if_inline, limit_steps

if TYPE_CHECKING:
    from .dialect import SchemaDialect

__all__ = [
    "CompiledSchema",
    "compile_schema",
]

if not TYPE_CHECKING:
    __getattr__ = reject_names(__name__, __all__)


@dataclass(frozen=True, slots=True)
class CompiledSchema:
    """A schema in a vendor's subset. Cached, shared and immutable."""

    schema: dict[str, Any]
    lost: tuple[str, ...] = ()
    """Warnings about keywords that the vendor does not enforce."""
    strict: bool = True
    """Whether the vendor can enforce the schema. If False, `schema` is the original, wrapped in an object if needed."""
    sendable: bool = True
    """Whether the vendor accepts the schema at all."""
    plain: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """`schema` as plain dicts and lists, for faster serialization. Must not be changed."""
    _restorer: Restorer = field(default=Restorer({}, wrapped=False, altered=False), repr=False, compare=False)

    def restore(self, value: Any) -> Any:
        """Convert output of the compiled schema to the original schema."""
        return self._restorer.restore(value)

    @property
    def wrapped(self) -> bool:
        """Whether the value is wrapped in an object, because the original is not an object schema."""
        return self._restorer.wrapped


def compile_schema(schema: Mapping[str, Any], dialect: str) -> CompiledSchema:
    """Compile a schema for a dialect ("openai", "anthropic" or "gemini"). The input is not changed.

    Raises:
        ConfigurationError: The schema is invalid.
    """
    # JSON text is the cache key: it distinguishes 1 from true, and the order of properties.
    try:
        text = to_json(schema, fallback=str)
    except PydanticSerializationError as error:
        raise ConfigurationError(
            f"The schema cannot be serialized to JSON: {error}.",
            field="schema",
            fix="Use JSON values only; text.encode('utf-8', 'replace').decode() removes lone surrogates.",
        ) from None
    return _compile(text, dialect)


_MAX_INLINE = 20_000
"""Size of schemas that are compiled on an event loop, in bytes."""
_MIN_NODES = 1_000
_NODES_PER_VALUE = 5
"""Limit of nodes after the expansion of references, so that a small schema cannot take long."""
_STEPS_PER_VALUE = 10


@lru_cache(maxsize=256)
def _compile(text: bytes, dialect_name: str) -> CompiledSchema:
    from .compiler import Compiler, TooLarge  # lazy: only requests with a schema need it

    dialect = schema_dialect(dialect_name)
    if dialect is None:
        raise KeyError(dialect_name)
    try:
        original = from_json(text)
    except ValueError as error:
        raise ConfigurationError(f"The schema is not JSON: {error}.", field="schema", fix="Use JSON values.") from None
    check_limits(original)
    if len(text) > _MAX_INLINE:
        defer_if_inline()
    if (problem := find_schema_error(original)) is not None:
        raise ConfigurationError(f"Invalid JSON schema: {problem}.", field="schema")
    reasons: tuple[str, ...] = ("/: the schema is too large when references are expanded, so it is not enforced",)
    values = text.count(b",") + text.count(b":")
    most_nodes = _MIN_NODES + _NODES_PER_VALUE * values
    for rounds in range(dialect.recursion or 1, 0, -1):
        try:
            with limit_steps(_STEPS_PER_VALUE * most_nodes):
                compiler = Compiler(original, dialect, rounds, most_nodes)
                compiled = compiler.run()
        except (TooLarge, StepLimitExceeded, RecursionError):
            continue
        if not compiler.loose:
            restorer = Restorer(original, wrapped=compiler.wrapped, altered=compiler.altered)
            return CompiledSchema(freeze(compiled), tuple(compiler.lost), plain=thaw(compiled), _restorer=restorer)
        reasons = tuple(compiler.loose)
        break
    return _not_enforced(original, reasons, dialect)


def _not_enforced(original: dict[str, Any], reasons: tuple[str, ...], dialect: SchemaDialect) -> CompiledSchema:
    wraps = dialect.object_root and not is_object_schema(original)
    schema = wrap_schema(original) if wraps else original
    return CompiledSchema(
        freeze(schema),
        reasons,
        plain=thaw(schema),
        strict=False,
        sendable=dialect.loose,
        # The vendor may still return null for optional properties of the original.
        _restorer=Restorer(original, wrapped=wraps, altered=True),
    )


def find_unresolved_reference(schema: Mapping[str, Any]) -> str | None:
    """Return an unresolvable reference, or None. Schemas with `$id` or anchors are not checked."""
    return _dead_end(to_json(schema, fallback=str))


_MAX_REFERENCE_STEPS = 100_000


@lru_cache(maxsize=256)
def _dead_end(text: bytes) -> str | None:
    named = any(keyword in text for keyword in (b'"$id"', b'"$anchor"', b'"$dynamicAnchor"'))
    if named:
        return None
    try:
        with limit_steps(_MAX_REFERENCE_STEPS):
            return find_dangling_reference(from_json(text))
    except StepLimitExceeded:
        return None


def is_object_schema(schema: Mapping[str, Any]) -> bool:
    """Whether all valid values are objects."""
    return types_of(follow_references(schema, schema)) == ["object"]


def wrap_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Wrap a schema in an object schema with one property. Definitions stay at the top."""
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    inner = {key: value for key, value in schema.items() if key not in shared}
    return {
        **wrap_value(_adjust_references(inner)),
        **{key: _adjust_references(value) for key, value in shared.items()},
    }


_DEFINITIONS = ("#/$defs/", "#/definitions/")


def _adjust_references(schema: Any) -> Any:
    """Adjust references to the root or to non-definitions for the wrapper."""
    if isinstance(schema, list):
        return [_adjust_references(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: f"#/properties/{WRAPPER}{value[1:].rstrip('/')}"
        if key == "$ref" and isinstance(value, str) and value.startswith("#") and not value.startswith(_DEFINITIONS)
        else _adjust_references(value)
        for key, value in schema.items()
    }
