"""Schema dialects of vendors, and building blocks of compiled schemas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic_core import to_json

NUMBERS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))
_PRIMITIVES = frozenset(("string", "integer", "number", "boolean"))


@dataclass(frozen=True, slots=True)
class SchemaDialect:
    """Subset of JSON schema that a vendor enforces, beyond types, properties, items and anyOf."""

    name: str
    enforced: Mapping[str, frozenset[str]]
    """Additionally enforced keywords by type."""
    formats: frozenset[str]
    literals: frozenset[str] = _PRIMITIVES
    """Types allowed in enum; other values are sent as strings and restored."""
    const: bool = True
    """Supports const; otherwise a constant is an enum with one value."""
    closed: bool = True
    """Requires additionalProperties: false, so maps are not supported."""
    all_required: bool = False
    """Requires all properties; null stands for a missing optional property."""
    references: bool = True
    recursion: int | None = None
    """Number of levels to expand a recursive schema; None if recursive references are supported."""
    tuples: bool = False
    """Supports prefixItems."""
    anything: bool = False
    """Supports the empty schema."""
    object_root: bool = True
    min_items: int | None = None
    """Largest enforced minItems."""
    ordering: bool = False
    """Needs propertyOrdering."""
    loose: bool = False
    """Accepts schemas that it does not enforce."""
    most_nodes: int = 20_000
    most_properties: int | None = None
    most_optional: int | None = None
    most_unions: int | None = None
    most_listed: int | None = None
    deepest: int | None = None


WRAPPER = "value"
"""Name of the property that wraps a value where a vendor requires an object."""

LIMITS: dict[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format"),
    "array": ("minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"),
    "object": ("minProperties", "maxProperties", "propertyNames", "dependentRequired", "dependentSchemas"),
}
LIMITS["integer"] = LIMITS["number"]
LIMITS_OF_ALL = ("not", "if")
SAY_NOTHING: dict[str, Any] = {"minLength": 0, "minItems": 0, "minProperties": 0, "uniqueItems": False}
UNUSUAL_PATTERN = re.compile(r"\(\?(?!:)|\\[1-9bBkpP]")
"""Lookarounds, named groups and backreferences, which constrained decoding does not support."""

Node = dict[str, Any]

NEVER: Any = object()
INCLUSIVE = {"exclusiveMinimum": ("minimum", 1), "exclusiveMaximum": ("maximum", -1)}


class Location(NamedTuple):
    """Position of the compiler in the schema."""

    path: str = ""
    level: int = 0
    """Number of recursive references on the way here."""
    depth: int = 0
    """Number of enclosing objects."""
    optional: bool = False
    """Whether this is an optional property."""

    def below(self, *steps: str | int) -> Location:
        escaped = (str(step).replace("~", "~0").replace("/", "~1") for step in steps)
        return self._replace(path="/".join((self.path, *escaped)), optional=False)


def wrap_value(schema: Mapping[str, Any]) -> Node:
    """Return the schema of an object that holds the value."""
    return {"type": "object", "properties": {WRAPPER: schema}, "required": [WRAPPER], "additionalProperties": False}


def unwrap_value(value: Any) -> Any:
    """Return the wrapped value, or the value itself if it is not wrapped."""
    return value[WRAPPER] if isinstance(value, Mapping) and value.keys() == {WRAPPER} else value


def literal_text(value: Any) -> str:
    """Return the string form of a literal, where only strings are allowed."""
    return value if isinstance(value, str) else to_json(value).decode()


def read_labels(schema: Mapping[str, Any]) -> Node:
    return {key: schema[key] for key in ("title", "description") if isinstance(schema.get(key), str)}


def add_labels(node: Node, labels: Mapping[str, Any]) -> Node:
    """Add a title and description to a node, in front of its own description, which may hold limits."""
    words = dict.fromkeys(text for text in (labels.get("description"), node.get("description")) if text)
    return {**node, **labels, **({"description": "\n\n".join(words)} if words else {})}


def encode_literals(values: list[Any], *, single: bool) -> Node:
    return {"const": values[0]} if single and len(values) == 1 else {"enum": values}


def make_nullable(node: Node) -> Node:
    if node == {"type": "null"}:
        return node
    if "anyOf" not in node:
        return {"anyOf": [node, {"type": "null"}]}
    variants: list[Node] = node["anyOf"]
    return node if {"type": "null"} in variants else {**node, "anyOf": [*variants, {"type": "null"}]}


def describe_limits(node: Node, unenforced: Mapping[str, Any]) -> Node:
    """Describe limits that are not enforced, for the model."""
    if not unenforced:
        return node
    limits = "; ".join(f"{keyword}: {to_json(value).decode()}" for keyword, value in unenforced.items())
    return {**node, "description": f"{node['description']}\n\n{limits}" if node.get("description") else limits}


def reference_path(reference: str) -> str:
    """Return the path that a local reference points to."""
    return reference.removeprefix("#").rstrip("/")


def is_valid(value: Any, validator: Any) -> bool:
    """Whether the value is valid; True if undecidable, as with unsupported regular expressions."""
    from referencing.exceptions import Unresolvable

    try:
        return bool(validator.is_valid(value))
    except (Unresolvable, re.error):
        return True
