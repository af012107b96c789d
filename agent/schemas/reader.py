"""Read JSON schemas (references, types, literals), and restore output of compiled schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import NoneType
from typing import Any
from urllib.parse import unquote

from .dialect import is_valid, literal_text, unwrap_value
from .validation import StepLimitExceeded, count_steps, create_limited_validator, equality_key, limit_steps

OF_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
OF_ONE_RARELY = ("unevaluatedItems", "unevaluatedProperties", "additionalItems", "contentSchema")
OF_MANY = ("anyOf", "oneOf", "allOf", "prefixItems")
BY_NAME = ("properties", "patternProperties", "dependentSchemas")
ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "discriminator")
)
"""Keywords that do not restrict values."""
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
    # Some generators write null for these instead of omitting them.
    **dict.fromkeys(("required", *OF_MANY), (list, NoneType)),
    **dict.fromkeys((*BY_NAME, "$defs", "definitions"), (dict, NoneType)),
    "type": (str, list, NoneType),
}


class Unresolvable(ValueError):
    """The reference points outside the schema or to nothing."""


def parts(schema: Any) -> Iterator[Any]:
    """Iterate over the direct subschemas, without definitions."""
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


def find_schema_error(root: Any) -> str | None:
    """Return the first structural error of a schema, or None."""
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        path, schema = waiting.pop()
        if schema is None or isinstance(schema, bool):
            continue
        if not isinstance(schema, Mapping):
            return f"{path or '/'} is not a schema"
        for key, value in schema.items():
            if key in _SHAPES and not isinstance(value, _SHAPES[key]):
                return f"{path}/{key} has a value of the wrong type"
            if key in ("type", "required") and not all(isinstance(word, str) for word in value or ()):
                return f"{path}/{key} must contain strings only"
            if key in (*BY_NAME, "$defs", "definitions"):
                waiting.extend((f"{path}/{key}/{name}", inside) for name, inside in (value or {}).items())
            elif key in OF_MANY or (key == "items" and isinstance(value, list)):
                waiting.extend((f"{path}/{key}/{position}", inside) for position, inside in enumerate(value or ()))
            elif key in OF_ONE or key in OF_ONE_RARELY:
                waiting.append((f"{path}/{key}", value))
    return None


def find_dangling_reference(root: Any) -> str | None:
    """Return the first used reference that cannot be resolved, or None."""
    seen: set[str] = set()
    waiting = list(_references_in(root))
    while waiting:
        reference = waiting.pop()
        if reference in seen or reference.startswith(_DRAFTS):
            continue
        seen.add(reference)
        try:
            waiting.extend(_references_in(resolve_reference(reference, root)))
        except Unresolvable:
            return reference
    return None


def normalize_limits(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert boolean exclusiveMinimum and exclusiveMaximum (draft 4, OpenAPI 3.0) to numbers."""
    for flag, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(excluded := schema.get(flag), bool):
            rest = {key: value for key, value in schema.items() if key != flag}
            if excluded and limit in rest:
                rest[flag] = rest.pop(limit)
            schema = rest
    return schema


def resolve_reference(reference: str, root: Any) -> Any:
    """Return the target of a local reference."""
    if not reference.startswith("#") or (reference[1:] and not reference.startswith("#/")):
        raise Unresolvable(f"the reference {reference!r} points outside the schema")
    target = root
    for step in pointer_steps(reference):
        try:
            target = target[int(step)] if isinstance(target, list) else target[step]
        except (KeyError, IndexError, ValueError, TypeError):
            raise Unresolvable(f"the reference {reference!r} points to nothing") from None
    return target


def follow_references(schema: Any, root: Any) -> Mapping[str, Any]:
    """Follow a chain of references; {} if it cannot be resolved."""
    for _ in range(_DEEPEST):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            break
        try:
            schema = resolve_reference(schema["$ref"], root)
        except Unresolvable:
            return {}
    return schema if isinstance(schema, Mapping) and "$ref" not in schema else {}


def pointer_steps(reference: str) -> list[str]:
    if reference in ("#", "#/"):
        return []
    return [unquote(step).replace("~1", "/").replace("~0", "~") for step in reference[2:].split("/")]


def recursive_references(root: Any) -> frozenset[str]:
    """Return the references whose target contains them again."""
    leads_to: dict[str, set[str]] = {}
    waiting = list(_references_in(root))
    while waiting:
        reference = waiting.pop()
        if reference in leads_to:
            continue
        try:
            references = set(_references_in(resolve_reference(reference, root)))
        except Unresolvable:
            references = set()
        leads_to[reference] = references
        waiting.extend(references)
    return frozenset(reference for reference in leads_to if _is_recursive(reference, leads_to))


def _references_in(schema: Any) -> Iterator[str]:
    waiting = [schema]
    while waiting:
        count_steps()
        current = waiting.pop()
        if isinstance(current, Mapping) and isinstance(current.get("$ref"), str):
            yield current["$ref"]
        waiting.extend(parts(current))


def _is_recursive(reference: str, leads_to: Mapping[str, set[str]]) -> bool:
    seen: set[str] = set()
    waiting = list(leads_to[reference])
    while waiting:
        count_steps()
        current = waiting.pop()
        if current == reference:
            return True
        if current not in seen:
            seen.add(current)
            waiting.extend(leads_to[current])
    return False


def json_type(value: Any) -> str:
    """Return the JSON schema type of a value."""
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


def is_equal(one: Any, other: Any) -> bool:
    """Compare as JSON schema does: 1 equals 1.0, but not true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_equal(one[key], other[key]) for key in one)
    return bool(one == other)


_TYPE_OF_KEYWORD = {
    **dict.fromkeys(("properties", "required", "additionalProperties", "patternProperties", "propertyNames"), "object"),
    **dict.fromkeys(("minProperties", "maxProperties"), "object"),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"), "array"),
    **dict.fromkeys(("pattern", "minLength", "maxLength"), "string"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), "number"),
}


def types_of(schema: Mapping[str, Any]) -> list[str]:
    """Return the types of a schema: declared ones, else those implied by its keywords."""
    named = schema.get("type")
    if isinstance(named, str):
        return [named]
    if isinstance(named, list):
        return list(dict.fromkeys(named))
    implied = [_TYPE_OF_KEYWORD[key] for key in schema if key in _TYPE_OF_KEYWORD]
    if not implied and "format" in schema:
        implied = ["string"]
    return list(dict.fromkeys(implied))


def literals_of(schema: Mapping[str, Any]) -> list[list[Any]]:
    """Return the lists of allowed values (const, enum); a value must be in each."""
    constant = [[schema["const"]]] if "const" in schema else []
    return [*constant, *([list(schema["enum"])] if "enum" in schema else [])]


def evidently_disjoint(schemas: Sequence[Mapping[str, Any]]) -> bool:
    """Whether no value can match two of the schemas, judged by types or discriminator properties."""
    kinds = [kind for schema in schemas for kind in (types_of(schema) or ("any",))]
    if "any" not in kinds and len(set(kinds)) == len(kinds) and not {"integer", "number"} <= set(kinds):
        return True
    tags = [_tags(schema) for schema in schemas]
    for name in set.intersection(*(set(tagged) for tagged in tags)) if tags else ():
        values = [equality_key(value) for tagged in tags for value in tagged[name]]
        if len(set(values)) == len(values):
            return True
    return False


def _tags(schema: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the required properties with literal values."""
    return {
        name: literals_of(property)[0]
        for name, property in (schema.get("properties") or {}).items()
        if name in (schema.get("required") or ()) and isinstance(property, Mapping) and literals_of(property)
    }


_DEEPEST = 200
_RESTORE_STEPS = 2_000
_STEPS_PER_VALUE = 20
_CHARACTERS_PER_STEP = 50_000


class Restorer:
    """Converts output of a compiled schema back to the original schema."""

    def __init__(self, original: Any, *, wrapped: bool, altered: bool) -> None:
        self._original = original
        self.wrapped = wrapped
        self._altered = altered

    @cached_property
    def _validator(self) -> Any:
        return create_limited_validator(self._original)

    def restore(self, value: Any) -> Any:
        if self.wrapped:
            value = unwrap_value(value)
        if not self._altered:
            return value
        try:
            with limit_steps(_step_budget(value)):
                return self._walk(value, self._original, 0)
        except (StepLimitExceeded, RecursionError):  # the validation of the value reports what is wrong
            return value

    def _walk(self, value: Any, schema: Any, depth: int) -> Any:
        count_steps()
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            return value
        if isinstance(reference := schema.get("$ref"), str):
            try:
                value = self._walk(value, resolve_reference(reference, self._original), depth + 1)
            except Unresolvable:
                return value
        for part in schema.get("allOf") or ():
            value = self._walk(value, part, depth + 1)
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                value = self._walk_union(value, schema, key, depth + 1)
        if isinstance(value, str):
            return _restore_literal(value, schema)
        if isinstance(value, dict):
            return self._walk_object(value, schema, depth + 1)
        if isinstance(value, list):
            return self._walk_array(value, schema, depth + 1)
        return value

    def _walk_union(self, value: Any, schema: Mapping[str, Any], key: str, depth: int) -> Any:
        targets = [(variant, follow_references(variant, self._original)) for variant in schema[key]]
        possible = [(variant, target) for variant, target in targets if not _contradicts(value, target)]
        if len(possible) == 1:  # trying all variants takes exponential time in recursive unions
            return self._walk(value, possible[0][0], depth)
        fitting: list[Any] = []
        for variant, _ in sorted(possible, key=lambda pair: _count_unknown_properties(value, pair[1])):
            candidate = self._walk(value, variant, depth)
            if self._fits(candidate, variant):
                # The type may be declared outside the union.
                if not isinstance(candidate, str) or self._fits(candidate, schema):
                    return candidate
                fitting.append(candidate)
        return fitting[0] if fitting else value

    def _walk_object(self, value: dict[str, Any], schema: Mapping[str, Any], depth: int) -> Any:
        named = schema.get("properties")
        rest = schema.get("additionalProperties")
        if not named and not isinstance(rest, Mapping):
            return value
        required = schema.get("required") or ()
        restored: dict[str, Any] = {}
        for name, item in value.items():
            own = (named or {}).get(name, rest)
            if item is None and named and name in named and name not in required and not self._fits(None, own):
                continue
            restored[name] = self._walk(item, own, depth)
        return restored

    def _walk_array(self, value: list[Any], schema: Mapping[str, Any], depth: int) -> Any:
        items = schema.get("items")
        places = schema.get("prefixItems") or ()
        if isinstance(items, list):
            places, items = items, schema.get("additionalItems")
        return [
            self._walk(item, places[position] if position < len(places) else items, depth)
            for position, item in enumerate(value)
        ]

    def _fits(self, value: Any, schema: Any) -> bool:
        return is_valid(value, self._validator.evolve(schema=schema))


def _step_budget(value: Any) -> int:
    """Return the step limit for restoring a value; less for long text, which failures quote."""
    values = characters = 0
    waiting = [value]
    while waiting:
        values += 1
        item = waiting.pop()
        if isinstance(item, str):
            characters += len(item)
        elif isinstance(item, dict | list):
            waiting += item.values() if isinstance(item, dict) else item
    return (_RESTORE_STEPS + _STEPS_PER_VALUE * values) // (1 + characters // _CHARACTERS_PER_STEP)


def _count_unknown_properties(value: Any, variant: Mapping[str, Any]) -> int:
    """Count the properties that a variant does not name; the best match has the fewest."""
    if not isinstance(value, dict) or "properties" not in variant:
        return 0
    return sum(name not in variant["properties"] for name in value)


def _contradicts(value: Any, variant: Mapping[str, Any]) -> bool:
    """Whether a value cannot match a variant, judged by type or literal properties."""
    if not isinstance(value, str):  # a string may stand for any literal
        types = types_of(variant) if "type" in variant else []
        kind = json_type(value)
        if types and kind not in types and not (kind == "integer" and "number" in types):
            return True
    if not isinstance(value, dict):
        return False
    return any(
        not _is_listed(value[name], literals_of(property)[0])
        for name, property in (variant.get("properties") or {}).items()
        # Null may stand for a missing property.
        if value.get(name) is not None and isinstance(property, Mapping) and literals_of(property)
    )


def _is_listed(value: Any, values: Sequence[Any]) -> bool:
    count_steps(len(values))
    return any(is_equal(value, other) or literal_text(other) == value for other in values)


def _restore_literal(text: str, schema: Mapping[str, Any]) -> Any:
    """Return the literal that a string stands for."""
    for values in literals_of(schema)[:1]:
        count_steps(len(values))
        if not any(is_equal(text, value) for value in values):
            return next((value for value in values if value is not None and literal_text(value) == text), text)
    return text
