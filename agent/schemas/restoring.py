"""From an answer to a compiled schema back to an answer to the original one.

Null where the original has no null stands for a property that was left out; text where it lists other values stands
for one of them; and the only property of a wrapper is the answer. Which schema of a union an answer belongs to is told
by its type and by listed values; where those leave it open, the one that it fits after restoring decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from .fitting import fits, validator_of
from .nodes import text_of, unwrap_value
from .reading import Unresolvable, json_type, literals_of, resolve, same, types_of

_DEEPEST = 200


class Restorer:
    """Undoes what compiling one schema did."""

    def __init__(self, original: Any, *, wrapped: bool, altered: bool) -> None:
        self._original = original
        self.wrapped = wrapped
        self._altered = altered

    @cached_property
    def _validator(self) -> Any:
        return validator_of(self._original)

    def restored(self, value: Any) -> Any:
        if self.wrapped:
            value = unwrap_value(value)
        return self._walk(value, self._original, 0) if self._altered else value

    def _walk(self, value: Any, schema: Any, depth: int) -> Any:
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            return value
        if isinstance(reference := schema.get("$ref"), str):
            try:
                value = self._walk(value, resolve(reference, self._original), depth + 1)
            except Unresolvable:
                return value
        for part in schema.get("allOf") or ():
            value = self._walk(value, part, depth + 1)
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                value = self._walk_union(value, schema, key, depth + 1)
        if isinstance(value, str):
            return _listed(value, schema)
        if isinstance(value, dict):
            return self._walk_object(value, schema, depth + 1)
        if isinstance(value, list):
            return self._walk_array(value, schema, depth + 1)
        return value

    def _walk_union(self, value: Any, schema: Mapping[str, Any], key: str, depth: int) -> Any:
        possible = [variant for variant in schema[key] if not _contradicts(value, self._target(variant))]
        if len(possible) == 1:  # the common case; trying them all takes exponential time in recursive unions
            return self._walk(value, possible[0], depth)
        fitting: list[Any] = []
        for variant in sorted(possible, key=lambda variant: _strangers(value, self._target(variant))):
            candidate = self._walk(value, variant, depth)
            if self._fits(candidate, variant):
                # A variant may leave to the schema around it what type it is of, and then fit texts, too.
                if not isinstance(candidate, str) or self._fits(candidate, schema):
                    return candidate
                fitting.append(candidate)
        return fitting[0] if fitting else value

    def _target(self, schema: Any) -> Mapping[str, Any]:
        """What a reference means; nothing if that cannot be said."""
        for _ in range(_DEEPEST):
            if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
                break
            try:
                schema = resolve(schema["$ref"], self._original)
            except Unresolvable:
                return {}
        return schema if isinstance(schema, Mapping) and "$ref" not in schema else {}

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
        return fits(value, self._validator.evolve(schema=schema))


def _strangers(value: Any, variant: Mapping[str, Any]) -> int:
    """How many properties of a value a variant does not name: the fewer, the likelier it is the one meant."""
    if not isinstance(value, dict) or "properties" not in variant:
        return 0
    return sum(name not in variant["properties"] for name in value)


def _contradicts(value: Any, variant: Mapping[str, Any]) -> bool:
    """Whether a value is evidently none of a variant's: by its type, or by a listed value such as a tag."""
    if not isinstance(value, str):  # text may stand for anything that is listed
        types = types_of(variant) if "type" in variant else []
        kind = json_type(value)
        if types and kind not in types and not (kind == "integer" and "number" in types):
            return True
    if not isinstance(value, dict):
        return False
    return any(
        not _is_listed(value[name], literals_of(property)[0])
        for name, property in (variant.get("properties") or {}).items()
        # Null may stand for a property that was left out.
        if value.get(name) is not None and isinstance(property, Mapping) and literals_of(property)
    )


def _is_listed(value: Any, values: Sequence[Any]) -> bool:
    return any(same(value, other) or text_of(other) == value for other in values)


def _listed(text: str, schema: Mapping[str, Any]) -> Any:
    """The listed value that a text stands for."""
    for values in literals_of(schema)[:1]:
        if not any(same(text, value) for value in values):
            return next((value for value in values if value is not None and text_of(value) == text), text)
    return text
