"""Merge two schemas into one, because vendors support neither allOf nor keywords beside $ref.

Only the top level is merged; nested schemas are combined with allOf and merged later, which keeps recursion finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from .reader import ANNOTATIONS, BOOKKEEPING, is_equal, literals_of
from .validation import count_steps, equality_key

_LARGER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains")
_SMALLER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains")
_MOST_VARIANTS = 64


class CannotMerge(ValueError):
    """The schemas cannot be merged."""


def conjoin(first: Any, second: Any, lose: Callable[[str], None]) -> Any:
    """Merge two schemas; annotations of the first take precedence.

    Args:
        first: A schema without a top-level reference.
        second: Another one.
        lose: Called with each keyword that cannot be kept.
    """
    if first is True or first == {}:
        return second
    if second is True or second == {}:
        return first
    if first is False or second is False:
        return False
    count_steps(1 + sum(len(schema.get("properties") or ()) for schema in (first, second)))
    merged: dict[str, Any] = {key: value for key, value in first.items() if key not in _TOGETHER}
    for key, value in second.items():
        if key in _TOGETHER or key in BOOKKEEPING:
            continue
        if key not in merged:
            merged[key] = value
        elif key not in ANNOTATIONS:
            merged[key] = _merge_keyword(key, merged[key], value, lose)
    try:
        for merge in (_types, _literals, _objects, _arrays):
            merge(first, second, merged)
        _unions(first, second, merged, lose)
    except _Contradiction:
        return False
    return merged


class _Contradiction(Exception):
    """No value satisfies both schemas."""


_OBJECT_KEYS = ("properties", "required", "additionalProperties", "patternProperties")
_ARRAY_KEYS = ("items", "prefixItems")
_TOGETHER = frozenset(("type", "enum", "const", *_OBJECT_KEYS, *_ARRAY_KEYS, "anyOf", "oneOf", "allOf"))


def _merge_keyword(key: str, one: Any, other: Any, lose: Callable[[str], None]) -> Any:
    if key in _LARGER:
        return max(one, other)
    if key in _SMALLER:
        return min(one, other)
    if key == "uniqueItems":
        return one or other
    if key == "multipleOf" and isinstance(one, int) and isinstance(other, int):
        return math.lcm(one, other)
    if not is_equal(one, other):
        lose(key)
    return one


def _types(first: Mapping[str, Any], second: Mapping[str, Any], merged: dict[str, Any]) -> None:
    lists = [_as_list(schema["type"]) for schema in (first, second) if "type" in schema]
    if not lists:
        return
    common = lists[0]
    if len(lists) == 2:
        common = [name for name in lists[0] if name in lists[1] or (name == "integer" and "number" in lists[1])]
        common += [name for name in lists[1] if name == "integer" and "number" in lists[0] and name not in common]
    if not common:
        raise _Contradiction
    merged["type"] = common[0] if len(common) == 1 else common


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _literals(first: Mapping[str, Any], second: Mapping[str, Any], merged: dict[str, Any]) -> None:
    lists = [allowed for schema in (first, second) for allowed in literals_of(schema)]
    if not lists:
        return
    others = [{equality_key(value) for value in values} for values in lists[1:]]
    common = [value for value in lists[0] if all(equality_key(value) in keys for keys in others)]
    if not common:
        raise _Contradiction
    merged["enum"] = common


def _objects(first: Mapping[str, Any], second: Mapping[str, Any], merged: dict[str, Any]) -> None:
    properties: dict[str, Any] = {}
    required = list(dict.fromkeys((*(first.get("required") or ()), *(second.get("required") or ()))))
    for own, other in ((first, second), (second, first)):
        for name, schema in (own.get("properties") or {}).items():
            if name in properties:
                continue
            elsewhere = (other.get("properties") or {}).get(name, _rest_of(other))
            properties[name] = _combine(schema, elsewhere)
    if properties or "properties" in first or "properties" in second:
        merged["properties"] = properties
    if required:
        merged["required"] = required
    rests = [schema["additionalProperties"] for schema in (first, second) if "additionalProperties" in schema]
    if rests:
        merged["additionalProperties"] = rests[0] if len(rests) == 1 else _combine(*rests)
    patterns = [schema["patternProperties"] for schema in (first, second) if schema.get("patternProperties")]
    if patterns:
        joined = dict(patterns[0])
        for pattern, schema in (patterns[1] if len(patterns) == 2 else {}).items():
            joined[pattern] = _combine(joined[pattern], schema) if pattern in joined else schema
        merged["patternProperties"] = joined


def _rest_of(schema: Mapping[str, Any]) -> Any:
    """Return the schema of properties that are not named."""
    return True if schema.get("patternProperties") else schema.get("additionalProperties", True)


def _combine(one: Any, other: Any) -> Any:
    if one is True or one == {}:
        return other
    if other is True or other == {}:
        return one
    if one is False or other is False:
        return False
    return one if one == other and is_equal(one, other) else {"allOf": [one, other]}


def _arrays(first: Mapping[str, Any], second: Mapping[str, Any], merged: dict[str, Any]) -> None:
    tuples = [schema for schema in (first, second) if "prefixItems" in schema or isinstance(schema.get("items"), list)]
    others = [schema for schema in (first, second) if "items" in schema and schema not in tuples]
    if tuples and (len(tuples) == 2 or others):
        raise CannotMerge("tuples in allOf")
    for key in _ARRAY_KEYS:
        values = [schema[key] for schema in (first, second) if key in schema]
        if values:
            merged[key] = values[0] if len(values) == 1 else _combine(*values)


def _unions(
    first: Mapping[str, Any], second: Mapping[str, Any], merged: dict[str, Any], lose: Callable[[str], None]
) -> None:
    """Combine several unions into one with all combinations."""
    keys = [(schema, key) for schema in (first, second) for key in ("anyOf", "oneOf") if schema.get(key)]
    unions = [schema[key] for schema, key in keys]
    if len(unions) == 1:
        merged[keys[0][1]] = unions[0]
    elif unions:
        if any(key == "oneOf" for _, key in keys):
            lose("oneOf")
        ways: list[Any] = list(unions[0])
        for union in unions[1:]:
            if len(ways) * len(union) > _MOST_VARIANTS:
                raise CannotMerge("unions in allOf with too many combinations")
            ways = [both for one in ways for other in union if (both := _combine(one, other)) is not False]
        if not ways:
            raise _Contradiction
        merged["anyOf"] = ways
    rest = [*(first.get("allOf") or ()), *(second.get("allOf") or ())]
    if rest:
        merged["allOf"] = rest
