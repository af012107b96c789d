"""Random schemas, values that fit them, and values that fit the compiled schemas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import jsonschema

from agent.schemas.dialect import WRAPPER, literal_text

Schema = dict[str, Any]
Make = Callable[[int], Any]
"""A value that fits, nested no deeper than that."""


@dataclass
class Generator:
    """Makes one schema and, for it, any number of values."""

    random: Random
    definitions: dict[str, tuple[Schema, Make]] = field(default_factory=dict)
    maps: bool = True
    """Whether there may be what closed dialects cannot enforce: maps, tuples, anything."""

    def document(self) -> tuple[Schema, Make]:
        kinds = [self.record, self.record, self.record, self.array, self.union, self.tree, self.reference]
        schema, make = self.random.choice(kinds)(3)
        if self.definitions:
            schema = {**schema, "$defs": {name: definition for name, (definition, _) in self.definitions.items()}}
        return schema, make

    def some(self, depth: int) -> tuple[Schema, Make]:
        plain = [self.text, self.integer, self.number, self.boolean, self.make_enum, self.constant, self.null]
        nested = [
            self.record,
            self.array,
            self.union,
            self.reference,
            self.tree,
            self.make_all_of,
            self.add_description,
        ]
        loose = [self.map, self.pair, self.make_any]
        kinds = [*plain, *((nested + (loose if self.maps else [])) * (depth > 0))]
        return self.random.choice(kinds)(depth - 1)

    def text(self, depth: int) -> tuple[Schema, Make]:
        limits: Schema = self.random.choice(
            [{}, {}, {"minLength": 1}, {"maxLength": 3}, {"pattern": "^[a-z]+$"}, {"pattern": "^(?!x)[a-z]+$"}]
        )
        return {"type": "string", **limits}, lambda _: self.random.choice(["a", "bc", "def"])

    def integer(self, depth: int) -> tuple[Schema, Make]:
        low = self.random.randint(-5, 5)
        limits: Schema = self.random.choice(
            [{}, {"minimum": low}, {"exclusiveMinimum": low - 1, "maximum": low + 9}, {"exclusiveMaximum": low + 10}]
        )
        return {"type": "integer", **limits}, lambda _: self.random.randint(low, low + 9)

    def number(self, depth: int) -> tuple[Schema, Make]:
        limits: Schema = self.random.choice([{}, {"minimum": 0}, {"exclusiveMaximum": 10.5}, {"multipleOf": 0.5}])
        return {"type": "number", **limits}, lambda _: self.random.choice([0, 1.5, 10])

    def boolean(self, depth: int) -> tuple[Schema, Make]:
        return {"type": "boolean"}, lambda _: self.random.random() < 0.5

    def null(self, depth: int) -> tuple[Schema, Make]:
        return {"type": "null"}, lambda _: None

    def make_enum(self, depth: int) -> tuple[Schema, Make]:
        values: list[Any] = self.random.choice(
            [["a", "b"], [1, 2, 3], [1, "1", None], [True, "x"], [0.5, 1], [{"a": 1}, [1]], ["a", None]]
        )
        return {"enum": values}, lambda _: self.random.choice(values)

    def constant(self, depth: int) -> tuple[Schema, Make]:
        value = self.random.choice(["k", 7, True, None, 1.5])
        return {"const": value}, lambda _: value

    def record(self, depth: int) -> tuple[Schema, Make]:
        named = {name: self.some(depth) for name in self.random.sample("abcdef", self.random.randint(1, 4))}
        required = [name for name in named if self.random.random() < 0.5]
        schema: Schema = {"type": "object", "properties": {name: inner for name, (inner, _) in named.items()}}
        if required or self.random.random() < 0.3:
            schema["required"] = required
        if self.random.random() < 0.4:
            schema["additionalProperties"] = False
        if self.random.random() < 0.3:
            schema["title"] = "Thing"

        def make(left: int) -> Any:
            return {
                name: inner(left - 1)
                for name, (_, inner) in named.items()
                if name in required or (left > 0 and self.random.random() < 0.6)
            }

        return schema, make

    def array(self, depth: int) -> tuple[Schema, Make]:
        items, inner = self.some(depth)
        low = self.random.choice([0, 0, 1, 2])
        schema: Schema = {"type": "array", "items": items, "minItems": low, "maxItems": low + 2}
        for key in ("minItems", "maxItems"):
            if self.random.random() < 0.5:
                del schema[key]
        return schema, lambda left: [inner(left - 1) for _ in range(self.random.randint(low, low + (left > 0)))]

    def union(self, depth: int) -> tuple[Schema, Make]:
        variants = [self.some(depth) for _ in range(self.random.randint(1, 3))]
        schema: Schema = {"anyOf": [variant for variant, _ in variants]}
        if self.random.random() < 0.3:
            schema["description"] = "One of them"
        return schema, lambda left: self.random.choice(variants)[1](left)

    def add_description(self, depth: int) -> tuple[Schema, Make]:
        schema, make = self.some(depth)
        return {**schema, "description": "Something", "default": None, "examples": [1]}, make

    def make_all_of(self, depth: int) -> tuple[Schema, Make]:
        """allOf of two objects with different properties."""
        (one, make_one), (other, make_other) = self.record(depth), self.record(depth)
        for schema in (one, other):
            schema.pop("additionalProperties", None)
        shared = set(one["properties"]) & set(other["properties"])
        other["properties"] = {name: one for name, one in other["properties"].items() if name not in shared}
        other["required"] = [name for name in other.get("required", ()) if name not in shared]

        def make(left: int) -> Any:
            return {**{k: v for k, v in make_other(left).items() if k not in shared}, **make_one(left)}

        return {"allOf": [one, other]}, make

    def reference(self, depth: int) -> tuple[Schema, Make]:
        name = f"D{len(self.definitions)}"
        self.definitions[name] = ({}, lambda _: None)
        self.definitions[name] = self.some(max(depth, 1))
        return {"$ref": f"#/$defs/{name}"}, self.definitions[name][1]

    def tree(self, depth: int) -> tuple[Schema, Make]:
        """A definition that contains itself: in a list, in a union, or as a property that may be left out."""
        name = f"T{len(self.definitions)}"
        self.definitions[name] = ({}, lambda _: None)
        value, inner = self.some(0)
        me = {"$ref": f"#/$defs/{name}"}
        ways: list[tuple[Schema, Callable[[Any], Any] | None]] = [
            ({"type": "array", "items": me}, lambda child: [child] if child is not None else []),
            ({"anyOf": [me, {"type": "null"}]}, lambda child: child),
            (me, None),
        ]
        way, wrap = self.random.choice(ways)
        required = ["v"] if wrap is None else ["v", "next"]

        def make(left: int) -> Any:
            child = make(left - 2) if left > 1 else None
            node = {"v": inner(0)}
            if wrap is not None:
                node["next"] = wrap(child)
            elif child is not None:
                node["next"] = child
            return node

        self.definitions[name] = (
            {"type": "object", "properties": {"v": value, "next": way}, "required": required},
            make,
        )
        return dict(me), make

    def map(self, depth: int) -> tuple[Schema, Make]:
        values, inner = self.some(depth)
        return (
            {"type": "object", "additionalProperties": values},
            lambda left: {key: inner(left - 1) for key in self.random.sample("xyz", self.random.randint(0, 2))},
        )

    def pair(self, depth: int) -> tuple[Schema, Make]:
        places = [self.some(depth) for _ in range(2)]
        schema = {"type": "array", "prefixItems": [one for one, _ in places], "minItems": 2, "maxItems": 2}
        return schema, lambda left: [inner(left - 1) for _, inner in places]

    def make_any(self, depth: int) -> tuple[Schema, Make]:
        return {}, lambda _: self.random.choice([1, "a", None, [1], {"x": True}])


class Expressing:
    """Writes a value the way a vendor would that has to fit the compiled schema."""

    def __init__(self, compiled: Schema) -> None:
        self._compiled = compiled
        self._validator = jsonschema.Draft202012Validator(compiled)

    def fits(self, value: Any, schema: Any = None) -> bool:
        validator = self._validator if schema is None else self._validator.evolve(schema=schema)
        return bool(validator.is_valid(value))

    def express(self, value: Any) -> Any:
        written = self._write(value, self._compiled)
        if not self.fits(written) and list(self._compiled.get("properties", ())) == [WRAPPER]:
            return self._write({WRAPPER: value}, self._compiled)
        return written

    def _write(self, value: Any, schema: Schema) -> Any:
        if "$ref" in schema:
            return self._write(value, self._compiled["$defs"][schema["$ref"].removeprefix("#/$defs/")])
        if "anyOf" in schema:
            ways = [(self._write(value, variant), variant) for variant in schema["anyOf"]]
            return next((way for way, variant in ways if self.fits(way, variant)), value)
        if "enum" in schema and not self.fits(value, schema):
            return literal_text(value)
        if isinstance(value, dict):
            rest = schema.get("additionalProperties")
            inner = {**schema.get("properties", {}), **(dict.fromkeys(value, rest) if isinstance(rest, dict) else {})}
            inner.update(schema.get("properties", {}))
            written = {name: self._write(item, inner.get(name, {})) for name, item in value.items()}
            return {**dict.fromkeys(schema.get("required", ())), **written}
        if isinstance(value, list):
            places = schema.get("prefixItems", [])
            items = schema.get("items", {})
            return [self._write(item, places[n] if n < len(places) else items) for n, item in enumerate(value)]
        return value


def answer(schema: Schema, random: Random, root: Schema, left: int = 6) -> Any:
    """Some value that fits a compiled schema; None if it would be nested too deeply."""
    if "$ref" in schema:
        return answer(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], random, root, left)
    if "anyOf" in schema:
        order = sorted(schema["anyOf"], key=lambda _: random.random())
        if left <= 0:
            order.sort(key=lambda variant: variant != {"type": "null"})
        return answer(order[0], random, root, left)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return random.choice(schema["enum"])
    match schema.get("type"):
        case "object":
            required = schema.get("required", ())
            return {
                name: answer(inner, random, root, left - 1)
                for name, inner in schema.get("properties", {}).items()
                if name in required or (left > 0 and random.random() < 0.5)
            }
        case "array":
            places = schema.get("prefixItems", [])
            low = max(schema.get("minItems", 0), len(places))
            most = schema.get("maxItems", low + 1)
            size = random.randint(min(low, most), most) if left > 0 else low
            items = schema.get("items", {})
            return [answer(places[n] if n < len(places) else items, random, root, left - 1) for n in range(size)]
        case "integer":
            return _number(schema, 1, random)
        case "number":
            return _number(schema, 0.5, random)
        case "boolean":
            return random.random() < 0.5
        case "string":
            return random.choice(["a", "zz", "abcde"])
        case _:
            return None


def _number(schema: Schema, step: float, random: Random) -> float:
    if "multipleOf" in schema:
        return float(schema["multipleOf"]) * random.randint(0, 3)
    low = schema.get("minimum", schema.get("exclusiveMinimum", -20) + step * ("exclusiveMinimum" in schema))
    high = schema.get("maximum", schema.get("exclusiveMaximum", low + 20) - step * ("exclusiveMaximum" in schema))
    if "minimum" not in schema and "exclusiveMinimum" not in schema:
        low = min(low, high)
    return float(random.choice([low, high])) if step != 1 else int(random.choice([low, high]))
