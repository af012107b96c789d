"""Finding one's way in a JSON schema: where its parts are, what references mean, which lead back to themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Any
from urllib.parse import unquote

OF_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
OF_ONE_RARELY = ("unevaluatedItems", "unevaluatedProperties", "additionalItems", "contentSchema")
OF_MANY = ("anyOf", "oneOf", "allOf", "prefixItems")
BY_NAME = ("properties", "patternProperties", "dependentSchemas")
ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "discriminator")
)
"""Say something about a value without restricting it. A discriminator only helps to find the variant."""
BOOKKEEPING = frozenset(
    ("$defs", "definitions", "$schema", "$id", "$comment", "$anchor", "$vocabulary", "$dynamicAnchor")
)


_DRAFTS = ("http://json-schema.org/", "https://json-schema.org/")
_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_SHAPES: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("enum",), list),
    **dict.fromkeys(("pattern", "format"), str),
    **dict.fromkeys(
        (*_SIZES, "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), (int, float)
    ),
    # Null is written for these where others leave them out.
    **dict.fromkeys(("required", *OF_MANY), (list, NoneType)),
    **dict.fromkeys((*BY_NAME, "$defs", "definitions"), (dict, NoneType)),
    "type": (str, list, NoneType),
}


class Unresolvable(ValueError):
    """A reference that leads nowhere, or out of the schema."""


def parts(schema: Any) -> Iterator[Any]:
    """The schemas directly inside one, definitions aside."""
    if not isinstance(schema, Mapping):
        return
    for key in (*OF_ONE, *OF_ONE_RARELY):
        if key in schema:
            inside = schema[key]
            yield from inside if isinstance(inside, list) else (inside,)
    for key in OF_MANY:
        yield from schema.get(key) or ()
    for key in BY_NAME:
        yield from (schema.get(key) or {}).values()


def misshapen(root: Any) -> str | None:
    """Where something is no JSON schema, so that nobody can say what it means; None if it is one."""
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        path, schema = waiting.pop()
        if schema is None or isinstance(schema, bool):
            continue
        if not isinstance(schema, Mapping):
            return f"{path or '/'} is no schema"
        for key, value in schema.items():
            if key in _SHAPES and not isinstance(value, _SHAPES[key]):
                return f"{path}/{key} has a value of the wrong type"
            if key in ("type", "required") and not all(isinstance(word, str) for word in value or ()):
                return f"{path}/{key} lists something that is no text"
            if key in (*BY_NAME, "$defs", "definitions"):
                waiting.extend((f"{path}/{key}/{name}", inside) for name, inside in (value or {}).items())
            elif key in OF_MANY or (key == "items" and isinstance(value, list)):
                waiting.extend((f"{path}/{key}/{position}", inside) for position, inside in enumerate(value or ()))
            elif key in OF_ONE or key in OF_ONE_RARELY:
                waiting.append((f"{path}/{key}", value))
    return None


def dangling_reference(root: Any) -> str | None:
    """A reference that is used and leads nowhere; None if there is none. The drafts themselves are always there."""
    seen: set[str] = set()
    waiting = list(_references_in(root))
    while waiting:
        reference = waiting.pop()
        if reference in seen or reference.startswith(_DRAFTS):
            continue
        seen.add(reference)
        try:
            waiting.extend(_references_in(resolve(reference, root)))
        except Unresolvable:
            return reference
    return None


def with_limits_as_numbers(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Until draft 4, and in OpenAPI 3.0, a flag beside a limit said that the limit itself is excluded."""
    for flag, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(excluded := schema.get(flag), bool):
            said = {key: value for key, value in schema.items() if key != flag}
            if excluded and limit in said:
                said[flag] = said.pop(limit)
            schema = said
    return schema


def resolve(reference: str, root: Any) -> Any:
    """What a reference points at."""
    if not reference.startswith("#") or (reference[1:] and not reference.startswith("#/")):
        raise Unresolvable(f"the reference {reference!r} leads out of the schema")
    found = root
    for step in pointer_steps(reference):
        try:
            found = found[int(step)] if isinstance(found, list) else found[step]
        except (KeyError, IndexError, ValueError, TypeError):
            raise Unresolvable(f"the reference {reference!r} leads nowhere") from None
    return found


def pointer_steps(reference: str) -> list[str]:
    if reference in ("#", "#/"):
        return []
    return [unquote(step).replace("~1", "/").replace("~0", "~") for step in reference[2:].split("/")]


def recursive_references(root: Any) -> frozenset[str]:
    """The references from whose target one can come back to them."""
    leads_to: dict[str, set[str]] = {}
    waiting = list(_references_in(root))
    while waiting:
        reference = waiting.pop()
        if reference in leads_to:
            continue
        try:
            found = set(_references_in(resolve(reference, root)))
        except Unresolvable:
            found = set()
        leads_to[reference] = found
        waiting.extend(found)
    return frozenset(reference for reference in leads_to if _comes_back(reference, leads_to))


def _references_in(schema: Any) -> Iterator[str]:
    waiting = [schema]
    while waiting:
        current = waiting.pop()
        if isinstance(current, Mapping) and isinstance(current.get("$ref"), str):
            yield current["$ref"]
        waiting.extend(parts(current))


def _comes_back(reference: str, leads_to: Mapping[str, set[str]]) -> bool:
    seen: set[str] = set()
    waiting = list(leads_to[reference])
    while waiting:
        current = waiting.pop()
        if current == reference:
            return True
        if current not in seen:
            seen.add(current)
            waiting.extend(leads_to[current])
    return False


def json_type(value: Any) -> str:
    """The name JSON schema has for the type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list() | tuple():
            return "array"
        case _:
            return "object"


def same(one: Any, other: Any) -> bool:
    """Equality as JSON schema has it: 1 is 1.0, but neither is true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


_TYPE_OF_KEYWORD = {
    **dict.fromkeys(("properties", "required", "additionalProperties", "patternProperties", "propertyNames"), "object"),
    **dict.fromkeys(("minProperties", "maxProperties"), "object"),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"), "array"),
    **dict.fromkeys(("pattern", "minLength", "maxLength"), "string"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), "number"),
}


def types_of(schema: Mapping[str, Any]) -> list[str]:
    """The types a schema admits as it says; else those its keywords are about; none if it does not say."""
    named = schema.get("type")
    if isinstance(named, str):
        return [named]
    if isinstance(named, list):
        return list(dict.fromkeys(named))
    meant = [_TYPE_OF_KEYWORD[key] for key in schema if key in _TYPE_OF_KEYWORD]
    if not meant and "format" in schema:
        meant = ["string"]
    return list(dict.fromkeys(meant))


def literals_of(schema: Mapping[str, Any]) -> list[list[Any]]:
    """The lists of values that a schema admits, each of which must hold."""
    constant = [[schema["const"]]] if "const" in schema else []
    return [*constant, *([list(schema["enum"])] if "enum" in schema else [])]


def evidently_disjoint(schemas: Sequence[Mapping[str, Any]]) -> bool:
    """Whether no value can fit two of them: by type, or by a required property that each gives other values."""
    kinds = [kind for schema in schemas for kind in (types_of(schema) or ("any",))]
    if "any" not in kinds and len(set(kinds)) == len(kinds) and not {"integer", "number"} <= set(kinds):
        return True
    tags = [_tags(schema) for schema in schemas]
    for name in set.intersection(*(set(tagged) for tagged in tags)) if tags else ():
        values = [value for tagged in tags for value in tagged[name]]
        if not any(same(one, other) for position, one in enumerate(values) for other in values[:position]):
            return True
    return False


def _tags(schema: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The required properties whose values are listed."""
    return {
        name: literals_of(property)[0]
        for name, property in (schema.get("properties") or {}).items()
        if name in (schema.get("required") or ()) and isinstance(property, Mapping) and literals_of(property)
    }
