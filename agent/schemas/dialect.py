"""Which part of JSON schema a vendor enforces, as data. Each wire format declares its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NUMBERS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))
_PRIMITIVES = frozenset(("string", "integer", "number", "boolean"))


@dataclass(frozen=True, slots=True)
class SchemaDialect:
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
