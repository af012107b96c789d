"""Which part of JSON schema a vendor enforces, as data. Each wire format declares its own."""

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


WRAPPER = "value"
"""The property that holds an answer which is no object, where a vendor wants one."""

LIMITS: dict[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format"),
    "array": ("minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"),
    "object": ("minProperties", "maxProperties", "propertyNames", "dependentRequired", "dependentSchemas"),
}
LIMITS["integer"] = LIMITS["number"]
LIMITS_OF_ALL = ("not", "if")
SAY_NOTHING = {"minLength": 0, "minItems": 0, "minProperties": 0, "uniqueItems": False}
UNUSUAL_PATTERN = re.compile(r"\(\?(?!:)|\\[1-9bBkpP]")
"""Lookarounds, named groups and backreferences: constrained decoding has none of them."""

Node = dict[str, Any]

NEVER: Any = object()
INCLUSIVE = {"exclusiveMinimum": ("minimum", 1), "exclusiveMaximum": ("maximum", -1)}


class Location(NamedTuple):
    """Where the compiler is: in the caller's schema, and in the result."""

    path: str = ""
    level: int = 0
    """How many references to something recursive lead here."""
    depth: int = 0
    """How many objects are around."""
    optional: bool = False
    """Whether it is a property that may be left out."""

    def below(self, *steps: str | int) -> Location:
        escaped = (str(step).replace("~", "~0").replace("/", "~1") for step in steps)
        return self._replace(path="/".join((self.path, *escaped)), optional=False)


def wrap_value(schema: Mapping[str, Any]) -> Node:
    """An object that holds the value."""
    return {"type": "object", "properties": {WRAPPER: schema}, "required": [WRAPPER], "additionalProperties": False}


def unwrap_value(value: Any) -> Any:
    """What an answer to a wrapped schema holds; one that came without its wrapper is taken as it is."""
    return value[WRAPPER] if isinstance(value, Mapping) and value.keys() == {WRAPPER} else value


def literal_text(value: Any) -> str:
    """How a listed value is written where only text may be listed."""
    return value if isinstance(value, str) else to_json(value).decode()


def read_labels(schema: Mapping[str, Any]) -> Node:
    return {key: schema[key] for key in ("title", "description") if isinstance(schema.get(key), str)}


def add_labels(node: Node, said: Mapping[str, Any]) -> Node:
    """The node by these names. What it says itself may be a limit, so it stays beside what is said of it."""
    words = dict.fromkeys(text for text in (said.get("description"), node.get("description")) if text)
    return {**node, **said, **({"description": "\n\n".join(words)} if words else {})}


def encode_literals(values: list[Any], *, single: bool) -> Node:
    return {"const": values[0]} if single and len(values) == 1 else {"enum": values}


def make_nullable(node: Node) -> Node:
    if node == {"type": "null"}:
        return node
    if "anyOf" not in node:
        return {"anyOf": [node, {"type": "null"}]}
    variants: list[Node] = node["anyOf"]
    return node if {"type": "null"} in variants else {**node, "anyOf": [*variants, {"type": "null"}]}


def describe_limits(node: Node, unsaid: Mapping[str, Any]) -> Node:
    """What is not enforced is said to the model, which may well heed it."""
    if not unsaid:
        return node
    wishes = "; ".join(f"{keyword}: {to_json(value).decode()}" for keyword, value in unsaid.items())
    return {**node, "description": f"{node['description']}\n\n{wishes}" if node.get("description") else wishes}


def reference_path(reference: str) -> str:
    """Where a reference points, as reports name places."""
    return reference.removeprefix("#").rstrip("/")


def create_validator(schema: Any) -> Any:
    """A validator of jsonschema, by the draft that the schema names. Its own would open addresses it refers to."""
    import jsonschema
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    return kind(schema, registry=REGISTRY)


def is_valid(value: Any, validator: Any) -> bool:
    """Whether it does; also if that cannot be told, as with a pattern in another dialect of regular expressions."""
    from referencing.exceptions import Unresolvable

    try:
        return bool(validator.is_valid(value))
    except (Unresolvable, re.error):
        return True
