"""Which part of JSON schema each vendor enforces, as data. What to do about the rest is decided in `compiling`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_NUMBERS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))
_PRIMITIVES = frozenset(("string", "integer", "number", "boolean"))


@dataclass(frozen=True, slots=True)
class Dialect:
    """One vendor's subset. Types, properties, items, anyOf, titles and descriptions are in all of them."""

    name: str
    enforced: Mapping[str, frozenset[str]]
    """Keywords beyond the common ones, by the type they belong to."""
    formats: frozenset[str]
    literals: frozenset[str] = _PRIMITIVES
    """Types of values that may stand in enum; others are written as text, and read back."""
    const: bool = True
    """Without it, a constant is an enum of one."""
    closed: bool = True
    """Objects must say additionalProperties: false, so there are no maps."""
    all_required: bool = False
    """Every property must be required; null stands for one that is left out."""
    references: bool = True
    recursion: int | None = None
    """How many rounds a recursive schema is written out; None where it may refer to itself."""
    tuples: bool = False
    """Takes prefixItems."""
    anything: bool = False
    """Takes a schema that says nothing."""
    object_root: bool = True
    min_items: int | None = None
    """The largest minItems that is enforced."""
    ordering: bool = False
    """Wants to be told the order of properties."""
    loose: bool = False
    """Takes any other schema, too, as advice to the model."""
    most_nodes: int = 20_000
    most_properties: int | None = None
    most_optional: int | None = None
    most_unions: int | None = None
    most_listed: int | None = None
    deepest: int | None = None


OPENAI = Dialect(
    name="openai",
    enforced={
        "string": frozenset(("pattern", "format")),
        "integer": _NUMBERS,
        "number": _NUMBERS,
        "array": frozenset(("minItems", "maxItems")),
    },
    formats=_FORMATS,
    all_required=True,
    loose=True,
    most_properties=5_000,
    most_listed=1_000,
    deepest=10,
)

ANTHROPIC = Dialect(
    name="anthropic",
    enforced={"string": frozenset(("format",)), "array": frozenset(("minItems",))},
    formats=_FORMATS | {"uri"},
    recursion=4,
    min_items=1,
    most_optional=24,
    most_unions=16,
)

# What `responseJsonSchema` and `parametersJsonSchema` take today, without what their older siblings refuse: references,
# constants, enums of anything but text.
GEMINI = Dialect(
    name="gemini",
    enforced={
        "string": frozenset(("format",)),
        "integer": frozenset(("minimum", "maximum", "format")),
        "number": frozenset(("minimum", "maximum", "format")),
        "array": frozenset(("minItems", "maxItems")),
    },
    formats=frozenset(("date-time", "date", "time", "int32", "int64", "float", "double")),
    literals=frozenset(("string",)),
    const=False,
    closed=False,
    references=False,
    recursion=4,
    tuples=True,
    anything=True,
    object_root=False,
    ordering=True,
    most_nodes=1_500,
)

DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (OPENAI, ANTHROPIC, GEMINI)}
