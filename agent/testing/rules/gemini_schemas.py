"""Schemas at Gemini: `parameters` and `responseSchema` are a message with fields of its own, not JSON schema.

Their siblings that end in `JsonSchema` take JSON schema, of which they know a part and pass over the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .base import Violation, a_text, is_among

FIELDS = frozenset(
    (
        "anyOf",
        "default",
        "description",
        "enum",
        "example",
        "format",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "nullable",
        "pattern",
        "properties",
        "propertyOrdering",
        "required",
        "title",
        "type",
    )
)
_TYPES = frozenset(("STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL", "TYPE_UNSPECIFIED"))
_TEXT_FORMATS = ("enum", "date-time")


def unknown_name(name: str, at: str) -> Violation:
    where = f" at '{at}'" if at else ""
    said = f'Invalid JSON payload received. Unknown name "{name}"{where}: Cannot find field.'
    return Violation(said, at or None)


def broken_schema(schema: Any, at: str, path: str) -> Iterator[Violation]:
    """What is wrong with a schema in the API's own form.

    Args:
        at: Where it stands, as the parser of JSON counts: properties by number.
        path: Where it stands, as the API counts: properties by name.
    """
    if not isinstance(schema, dict):
        yield Violation(f"Invalid value at '{at}' (type.googleapis.com/google.ai.generativelanguage.v1beta.Schema)", at)
        return
    fields = {camel_key(key): value for key, value in schema.items()}
    for key, spelt in zip(schema, fields, strict=False):
        if spelt not in FIELDS:
            yield unknown_name(key, at)
    kind = fields.get("type")
    if isinstance(kind, list):
        said = f"Proto field is not repeating, cannot start list. At '{at}.type'."
        yield Violation(f"Invalid JSON payload received. {said}", f"{at}.type")
    elif kind is not None and a_text(kind).upper() not in _TYPES:
        said = f"Invalid value at '{at}.type' (type.googleapis.com/google.ai.generativelanguage.v1beta.Type)"
        yield Violation(f'{said}, "{kind}"', f"{at}.type")
    yield from _of_type(fields, a_text(kind).upper(), at, path)
    for n, (name, value) in enumerate(_properties(fields).items()):
        yield from broken_schema(value, f"{at}.properties[{n}].value", f"{path}.properties[{name}]")
    if "items" in fields:
        yield from broken_schema(fields["items"], f"{at}.items", f"{path}.items")
    for n, value in enumerate(fields["anyOf"] if isinstance(fields.get("anyOf"), list) else ()):
        yield from broken_schema(value, f"{at}.any_of[{n}]", f"{path}.any_of[{n}]")


def _of_type(fields: dict[str, Any], kind: str, at: str, path: str) -> Iterator[Violation]:
    properties = _properties(fields)
    if kind == "ARRAY" and "items" not in fields:
        yield Violation(f"* {path}.items: missing field.\n")
    listed = fields["enum"] if isinstance(fields.get("enum"), list) else []
    for n, value in enumerate(listed):
        if not isinstance(value, str):
            said = f"Invalid value at '{at}.enum[{n}]' (TYPE_STRING), {value}"
            yield Violation(said, f"{at}.enum[{n}]")
        elif not value:
            yield Violation(f"* {path}.enum[{n}]: cannot be empty\n")
    if listed and kind not in ("STRING", ""):
        yield Violation(f"* {path}.enum: only allowed for STRING type\n")
    if kind == "STRING" and fields.get("format") not in (None, *_TEXT_FORMATS):
        yield Violation(f"* {path}.format: only 'enum' and 'date-time' are supported for STRING type\n")
    for n, name in enumerate(fields["required"] if isinstance(fields.get("required"), list) else ()):
        if not is_among(name, properties):
            yield Violation(f"* {path}.required[{n}]: property is not defined\n")


def _properties(fields: dict[str, Any]) -> dict[str, Any]:
    return fields["properties"] if isinstance(fields.get("properties"), dict) else {}


def broken_json_schema(schema: Any, path: str) -> Iterator[Violation]:
    """What is wrong with a schema that may be any JSON schema: references that lead nowhere, or have company."""
    if not isinstance(schema, dict):
        yield Violation(f"* {path}: must be a JSON object\n")
        return
    for node in _nodes(schema):
        reference = node.get("$ref")
        if not isinstance(reference, str):
            continue
        if any(not key.startswith("$") for key in node):
            yield Violation(f"* {path}: no other fields may be set beside $ref '{reference}'\n")
        found: Any = schema
        for step in reference.removeprefix("#").strip("/").split("/"):
            found = found.get(step) if isinstance(found, dict) and step else (found if not step else None)
        if found is None or not reference.startswith("#"):
            yield Violation(f"* {path}: reference '{reference}' could not be resolved\n")


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for key, inner in schema.items():
            # A property may have any name, even that of a keyword.
            named = key in ("properties", "$defs", "definitions") and isinstance(inner, dict)
            for value in inner.values() if named else [inner]:
                yield from _nodes(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _nodes(value)


def camel_key(key: str) -> str:
    """One spelling for the two that the API reads."""
    head, *rest = key.split("_")
    return head + "".join(word.capitalize() for word in rest) if head else key
