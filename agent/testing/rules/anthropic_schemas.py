"""Schemas at Anthropic: what a tool's input must be, and what is enforced for strict tools and for answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .base import a_text, everything_in, is_among

_NOT_SUPPORTED: Mapping[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("maxItems", "uniqueItems", "contains", "minContains", "maxContains", "prefixItems"),
    "object": ("minProperties", "maxProperties", "patternProperties", "propertyNames"),
}
_NOWHERE = ("oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas")
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"))
_AT_TOP = ("oneOf", "allOf", "anyOf")
_MOST_OPTIONAL = 24
_MOST_UNIONS = 16


def broken_input_schema(schema: Any) -> Iterator[tuple[str, str]]:
    """What is wrong with the input schema of any tool: where within it, and what."""
    if not isinstance(schema, dict):
        yield "", "Input should be a valid dictionary"
    elif "type" not in schema:
        yield ".type", "Field required"
    elif schema["type"] != "object":
        yield ".type", "Input should be 'object'"
    elif any(keyword in schema for keyword in _AT_TOP):
        yield "", "input_schema does not support oneOf, allOf, or anyOf at the top level"


def broken_enforced(schema: Any) -> Iterator[str]:
    """What cannot be enforced, and so is refused: in a strict tool, and in the schema of an answer."""
    if not isinstance(schema, dict):
        yield "Input should be a valid dictionary"
        return
    optional = unions = 0
    for node in _nodes(schema):
        yield from _broken_node(node, schema)
        properties = node["properties"] if isinstance(node.get("properties"), dict) else {}
        required = node["required"] if isinstance(node.get("required"), list) else []
        optional += sum(name not in required for name in properties)
        unions += "anyOf" in node or isinstance(node.get("type"), list)
    if optional > _MOST_OPTIONAL:
        yield (
            f"Schemas contains too many optional parameters ({optional}), which would make grammar compilation "
            f"inefficient. Reduce the number of optional parameters in your tool schemas (limit: {_MOST_OPTIONAL})."
        )
    if unions > _MOST_UNIONS:
        yield (
            f"Schemas contains too many parameters with union types ({unions} parameters with type arrays or anyOf). "
            f"This would make grammar compilation inefficient (limit: {_MOST_UNIONS})."
        )
    if _recurs(schema):
        yield "Recursive schemas are not supported"


def _broken_node(node: dict[str, Any], root: Mapping[str, Any]) -> Iterator[str]:
    given = node.get("type")
    kinds = [kind for kind in (given if isinstance(given, list) else [given]) if isinstance(kind, str)]
    for kind in kinds:
        if found := sorted(keyword for keyword in _NOT_SUPPORTED.get(kind, ()) if keyword in node):
            yield f"For '{kind}' type, properties {', '.join(found)} are not supported"
    for keyword in _NOWHERE:
        if keyword in node:
            yield f"Schema keyword '{keyword}' is not supported"
    if "object" in kinds or "properties" in node:
        if "additionalProperties" not in node:
            yield "For 'object' type, 'additionalProperties' must be explicitly set to false"
        elif node["additionalProperties"] is not False:
            said = str(node["additionalProperties"]).lower() if node["additionalProperties"] is True else "object"
            yield (
                f"For 'object' type, 'additionalProperties: {said}' is not supported. "
                "Please set 'additionalProperties' to false"
            )
    if "array" in kinds and node.get("minItems") not in (None, 0, 1):
        yield f"For 'array' type, 'minItems' values other than 0 or 1 are not supported, got {node['minItems']}"
    if "string" in kinds and "format" in node and not is_among(node["format"], _FORMATS):
        yield f"String format '{node['format']}' is not supported"
    reference = node.get("$ref")
    if isinstance(reference, str):
        if not reference.startswith("#"):
            yield f"External $ref '{reference}' is not supported"
        elif _target(reference, root) is None:
            yield f"$ref '{reference}' could not be resolved"


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema within a schema."""
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword in ("properties", "$defs", "definitions"):
        for value in schema[keyword].values() if isinstance(schema.get(keyword), dict) else ():
            yield from _nodes(value)
    yield from _nodes(schema.get("items"))
    yield from _nodes(schema.get("additionalProperties"))
    for keyword in ("anyOf", "allOf", "oneOf", "prefixItems"):
        for value in schema[keyword] if isinstance(schema.get(keyword), list) else ():
            yield from _nodes(value)


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        if step and (not isinstance(found, Mapping) or step not in found):
            return None
        found = found[step] if step else found
    return found


def _recurs(schema: dict[str, Any]) -> bool:
    """Whether some definition leads back to itself."""
    leads = {
        reference: {a_text(node.get("$ref")) for node in everything_in(_target(reference, schema))} - {""}
        for node in everything_in(schema)
        if (reference := a_text(node.get("$ref")))
    }
    for start in leads:
        reached, edge = set[str](), {start}
        while edge:
            edge = {step for reference in edge for step in leads.get(reference, ())} - reached
            reached |= edge
        if start in reached:
            return True
    return False
