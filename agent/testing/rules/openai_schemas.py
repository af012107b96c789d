"""Schemas at OpenAI: what a function's parameters must be, and what the strict mode takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .base import a_text, is_among

_NOT_PERMITTED = frozenset(
    (
        "allOf",
        "oneOf",
        "not",
        "if",
        "then",
        "else",
        "dependentRequired",
        "dependentSchemas",
        "minLength",
        "maxLength",
        "patternProperties",
        "unevaluatedProperties",
        "unevaluatedItems",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "prefixItems",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
    )
)
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))
_MOST_PROPERTIES = 5_000
_MOST_LISTED = 1_000
_TELLING = frozenset(("type", "anyOf", "$ref", "enum", "const"))
"""Keywords of which a strict schema needs one everywhere."""


def broken_parameters(schema: Any) -> Iterator[str]:
    """What is wrong with the parameters of a function, strict or not."""
    if not isinstance(schema, dict):
        yield "schema must be a JSON object."
        return
    kind = schema.get("type")
    if kind != "object":
        yield f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
    for context, node in _nodes(schema, ()):
        if node.get("type") == "array" and not {"items", "prefixItems"} & node.keys():
            yield f"In context={context!r}, array schema missing items."


def broken_strict(schema: Any) -> Iterator[str]:
    """What the strict mode does not take."""
    if not isinstance(schema, dict):
        yield "schema must be a JSON object."
        return
    if schema.get("type") != "object":
        yield f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{schema.get('type')}\"'."
    if "anyOf" in schema:
        yield "In context=(), 'anyOf' is not permitted at the root of the schema."
    properties = listed = 0
    for context, node in _nodes(schema, ()):
        yield from (f"In context={context!r}, {problem}" for problem in _broken_node(node, schema))
        properties += len(node["properties"]) if isinstance(node.get("properties"), dict) else 0
        listed += len(node["enum"]) if isinstance(node.get("enum"), list) else 0
    if properties > _MOST_PROPERTIES:
        yield f"schema has {properties} properties, which exceeds the limit of {_MOST_PROPERTIES}."
    if listed > _MOST_LISTED:
        yield f"schema has {listed} enum values, which exceeds the limit of {_MOST_LISTED}."


def _broken_node(node: dict[str, Any], root: Mapping[str, Any]) -> Iterator[str]:
    for keyword in node:
        if keyword in _NOT_PERMITTED:
            yield f"'{keyword}' is not permitted."
    if not _TELLING & node.keys():
        yield "schema must have a 'type' key."
    if (reference := node.get("$ref")) is not None:
        beside = sorted(node.keys() - {"$ref"} - ({"$defs", "definitions"} if node is root else set()))
        if beside:
            yield f"$ref cannot have keywords {{{', '.join(map(repr, beside))}}}."
        if not _leads_somewhere(a_text(reference), root):
            yield f"reference to component '{reference}' which was not found in the schema."
    kinds = node.get("type")
    if kinds == "object" or (isinstance(kinds, list) and "object" in kinds) or "properties" in node:
        if node.get("additionalProperties") is not False:
            yield "'additionalProperties' is required to be supplied and to be false."
        properties = node.get("properties") if isinstance(node.get("properties"), dict) else {}
        required = node.get("required") if isinstance(node.get("required"), list) else []
        missing = next((name for name in properties or () if name not in (required or ())), None)
        if missing is not None:
            said = "'required' is required to be supplied and to be an array including every key in properties."
            yield f"{said} Missing '{missing}'."
        extra = next((name for name in required or () if not is_among(name, properties or {})), None)
        if extra is not None:
            yield f"'required' is required to be an array of keys in properties. Extra required key '{extra}' supplied."
    if kinds == "array" and "items" not in node:
        yield "array schema missing items."
    if "format" in node and not is_among(node["format"], _FORMATS) and kinds == "string":
        yield f"'{node['format']}' is not a valid format."


def _nodes(schema: Any, context: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every schema within a schema, and the way to it."""
    if not isinstance(schema, dict):
        return
    yield context, schema
    for keyword in ("properties", "$defs", "definitions"):
        inner = schema.get(keyword)
        for name, value in inner.items() if isinstance(inner, dict) else ():
            yield from _nodes(value, (*context, keyword, str(name)))
    yield from _nodes(schema.get("items"), (*context, "items"))
    for keyword in ("anyOf", "allOf", "oneOf", "prefixItems"):
        for n, value in enumerate(schema[keyword]) if isinstance(schema.get(keyword), list) else ():
            yield from _nodes(value, (*context, keyword, str(n)))


def _leads_somewhere(reference: str, root: Mapping[str, Any]) -> bool:
    if reference == "#":
        return True
    found: Any = root
    for step in reference.removeprefix("#/").split("/"):
        if not isinstance(found, Mapping) or step not in found:
            return False
        found = found[step]
    return reference.startswith("#/")
