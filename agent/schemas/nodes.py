"""The pieces that compiled schemas are made of, the words for limits on values, and where one is in a schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic_core import to_json

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


def wrapped(schema: Mapping[str, Any]) -> Node:
    """An object that holds the value."""
    return {"type": "object", "properties": {WRAPPER: schema}, "required": [WRAPPER], "additionalProperties": False}


def unwrap_value(value: Any) -> Any:
    """What an answer to a wrapped schema holds; one that came without its wrapper is taken as it is."""
    return value[WRAPPER] if isinstance(value, Mapping) and value.keys() == {WRAPPER} else value


def text_of(value: Any) -> str:
    """How a listed value is written where only text may be listed."""
    return value if isinstance(value, str) else to_json(value).decode()


def labels(schema: Mapping[str, Any]) -> Node:
    return {key: schema[key] for key in ("title", "description") if isinstance(schema.get(key), str)}


def labelled(node: Node, said: Mapping[str, Any]) -> Node:
    """The node by these names. What it says itself may be a limit, so it stays beside what is said of it."""
    words = dict.fromkeys(text for text in (said.get("description"), node.get("description")) if text)
    return {**node, **said, **({"description": "\n\n".join(words)} if words else {})}


def listing(values: list[Any], *, single: bool) -> Node:
    return {"const": values[0]} if single and len(values) == 1 else {"enum": values}


def nullable(node: Node) -> Node:
    if node == {"type": "null"}:
        return node
    if "anyOf" not in node:
        return {"anyOf": [node, {"type": "null"}]}
    variants: list[Node] = node["anyOf"]
    return node if {"type": "null"} in variants else {**node, "anyOf": [*variants, {"type": "null"}]}


def told(node: Node, unsaid: Mapping[str, Any]) -> Node:
    """What is not enforced is said to the model, which may well heed it."""
    if not unsaid:
        return node
    wishes = "; ".join(f"{keyword}: {to_json(value).decode()}" for keyword, value in unsaid.items())
    return {**node, "description": f"{node['description']}\n\n{wishes}" if node.get("description") else wishes}


def path(reference: str) -> str:
    """Where a reference points, as reports name places."""
    return reference.removeprefix("#").rstrip("/")


def validator_of(schema: Any) -> Any:
    """A validator of jsonschema, by the draft that the schema names. Its own would open addresses it refers to."""
    import jsonschema
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    return kind(schema, registry=REGISTRY)


def fits(value: Any, validator: Any) -> bool:
    """Whether it does; also if that cannot be told, as with a pattern in another dialect of regular expressions."""
    from referencing.exceptions import Unresolvable

    try:
        return bool(validator.is_valid(value))
    except (Unresolvable, re.error):
        return True
