"""JSON schemas as vendors take them: compiled to each one's subset, with a report of what was lost on the way.

```python
from agent.schemas import compile_schema

schema = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}}}
compiled = compile_schema(schema, "anthropic")
print(compiled.lost)
#> ('/properties/age: minimum is not enforced',)
print(compile_schema(schema, "openai").restore({"age": None}))  # a strict answer has to say something
#> {}
```

Nothing here knows how a schema is sent, or where an answer comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from ..errors import ConfigurationError
from ..types import freeze, thaw
from ..wire_formats import schema_dialect
from .dialect import WRAPPER, wrap_value
from .reader import Restorer, Unresolvable, find_dangling_reference, find_schema_error, resolve, types_of

if TYPE_CHECKING:
    from .dialect import SchemaDialect

__all__ = [
    "CompiledSchema",
    "compile_schema",
]


@dataclass(frozen=True, slots=True)
class CompiledSchema:
    """A schema in a vendor's subset. It is shared by all who compile the same one, and cannot be changed."""

    schema: dict[str, Any]
    lost: tuple[str, ...] = ()
    """Warnings: what the vendor will not enforce."""
    strict: bool = True
    """Whether the vendor can be asked to enforce it; False where the schema does not fit into its strict mode.
    Then `schema` is the original, in an object if it is none."""
    sendable: bool = True
    """Whether the vendor takes it at all: some take only what they can enforce."""
    plain: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """`schema` as plain dicts and lists, which are serialized faster. For codecs, which must not change it."""
    _restorer: Restorer = field(default=Restorer({}, wrapped=False, altered=False), repr=False, compare=False)

    def restore(self, value: Any) -> Any:
        """The answer as the original schema wants it. What fits the original already stays as it is."""
        return self._restorer.restored(value)

    @property
    def wrapped(self) -> bool:
        """Whether the answer is the only property of an object, since it is none itself."""
        return self._restorer.wrapped


def compile_schema(schema: Mapping[str, Any], dialect: str) -> CompiledSchema:
    """The schema in the subset of "openai", "anthropic" or "gemini". The input is never changed.

    Raises:
        ConfigurationError: It is no JSON schema.
    """
    # Text is the key because it tells apart what compares equal: 1 and true, or two orders of the same properties.
    try:
        text = to_json(schema, fallback=str)
    except PydanticSerializationError as error:
        raise ConfigurationError(
            f"A schema cannot be written as JSON: {error}.",
            field="schema",
            fix="Pass only what JSON can hold; text.encode('utf-8', 'replace').decode() mends half a character.",
        ) from None
    return _compile(text, dialect)


@lru_cache(maxsize=256)
def _compile(text: bytes, dialect_name: str) -> CompiledSchema:
    from .compiler import Compiler, TooLarge  # lazy: only requests with a schema need it

    dialect = schema_dialect(dialect_name)
    if dialect is None:
        raise KeyError(dialect_name)
    original = from_json(text)
    if (problem := find_schema_error(original)) is not None:
        raise ConfigurationError(f"This is not a JSON schema: {problem}.", field="schema")
    reasons: tuple[str, ...] = ("/: written out, the schema is too large, so it is not enforced",)
    for rounds in range(dialect.recursion or 1, 0, -1):
        compiler = Compiler(original, dialect, rounds)
        try:
            compiled = compiler.run()
        except (TooLarge, RecursionError):
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
        # A vendor that was told the original may still answer with null for what is optional.
        _restorer=Restorer(original, wrapped=wraps, altered=True),
    )


def find_unresolved_reference(schema: Mapping[str, Any]) -> str | None:
    """A reference that leads nowhere, so that no value can be checked; None if there is none.

    A schema that gives its parts names of their own is taken at its word: those names are not looked up here.
    """
    return _dead_end(to_json(schema, fallback=str))


@lru_cache(maxsize=256)
def _dead_end(text: bytes) -> str | None:
    named = any(keyword in text for keyword in (b'"$id"', b'"$anchor"', b'"$dynamicAnchor"'))
    return None if named else find_dangling_reference(from_json(text))


def is_object_schema(schema: Mapping[str, Any]) -> bool:
    """Whether everything that fits is an object."""
    found: Any = schema
    for _ in range(20):
        if not isinstance(found, Mapping) or not isinstance(found.get("$ref"), str):
            break
        try:
            found = resolve(found["$ref"], schema)
        except Unresolvable:
            return False
    return isinstance(found, Mapping) and types_of(found) == ["object"]


def wrap_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object whose only property holds the value. Definitions stay where references look for them."""
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    inner = {key: value for key, value in schema.items() if key not in shared}
    return {**wrap_value(_moved(inner)), **{key: _moved(value) for key, value in shared.items()}}


def _moved(schema: Any) -> Any:
    """References to the whole, or to parts that are no definitions, follow it into the wrapper."""
    if isinstance(schema, list):
        return [_moved(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: f"#/properties/{WRAPPER}{value[1:].rstrip('/')}"
        if key == "$ref" and isinstance(value, str) and value.startswith("#") and not _is_definition(value)
        else _moved(value)
        for key, value in schema.items()
    }


def _is_definition(reference: str) -> bool:
    return reference.startswith(("#/$defs/", "#/definitions/"))
