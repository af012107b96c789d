"""Compiler from any JSON schema to one that a vendor enforces.

Unsupported constructs are rewritten to something at most as permissive, so restored output is valid for the original.
Unsupported limits are added to the description and reported as lost. Anything else makes the schema `loose`: it can be
sent as advice, but not be enforced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from .dialect import (
    INCLUSIVE,
    LIMITS,
    LIMITS_OF_ALL,
    NEVER,
    SAY_NOTHING,
    UNUSUAL_PATTERN,
    Location,
    Node,
    SchemaDialect,
    add_labels,
    describe_limits,
    encode_literals,
    is_valid,
    literal_text,
    make_nullable,
    read_labels,
    reference_path,
    wrap_value,
)
from .merge import CannotMerge, conjoin
from .reader import (
    ANNOTATIONS,
    BOOKKEEPING,
    Unresolvable,
    evidently_disjoint,
    follow_references,
    is_equal,
    json_type,
    literals_of,
    normalize_limits,
    parts,
    pointer_steps,
    recursive_references,
    resolve_reference,
    types_of,
)
from .validation import create_limited_validator, equality_key

MERGED_ROUNDS = 8
"""Limit of expansions when a recursive definition is merged into itself."""


class TooLarge(Exception):
    """The expanded schema exceeds the size limit."""


class Compiler:
    """Compiles one schema."""

    def __init__(self, root: Any, dialect: SchemaDialect, rounds: int, most_nodes: int) -> None:
        self._root = root
        self._dialect = dialect
        self._rounds = rounds
        self._most_nodes = min(most_nodes, dialect.most_nodes)
        self._recursive = recursive_references(root)
        self._names: dict[tuple[str, int], str] = {}
        self._definitions: dict[str, Node | None] = {}
        self._nodes = self._properties = self._optional = self._unions = self._listed = 0
        self.lost: dict[str, None] = {}
        self.loose: dict[str, None] = {}
        """Why the schema cannot be enforced."""
        self.altered: bool = False
        """Whether output must be restored: nulls or strings stand for other values."""
        self.wrapped: bool = False

    def run(self) -> Node:
        top = Location()
        compiled = self._schema(self._root, top)
        if compiled is None:
            self._loosen(top, "no value is valid")
            return {}
        if self._dialect.object_root and compiled.get("type") != "object":
            self.wrapped = True
            compiled = wrap_value(compiled)
        if any(definition is None for definition in self._definitions.values()) and self._dialect.recursion is None:
            self._loosen(top, "a definition has no valid value")
        if used := self._used_definitions(compiled):
            compiled = {**compiled, "$defs": used}
        self._check_limits(top)
        return compiled

    def _check_limits(self, top: Location) -> None:
        limits = self._dialect
        for count, most, what in (
            (self._properties, limits.most_properties, "properties"),
            (self._optional, limits.most_optional, "optional properties"),
            (self._unions, limits.most_unions, "unions"),
            (self._listed, limits.most_listed, "listed values"),
        ):
            if most is not None and count > most:
                self._loosen(top, f"{count} {what} exceed the limit of {most}")

    def _used_definitions(self, compiled: Node) -> dict[str, Node]:
        used: dict[str, Node] = {}
        waiting: list[Any] = [compiled]
        while waiting:
            current = waiting.pop()
            name = current["$ref"].removeprefix("#/$defs/") if isinstance(current.get("$ref"), str) else None
            if name is not None and name not in used and (definition := self._definitions[name]) is not None:
                used[name] = definition
                waiting.append(definition)
            waiting.extend(part for part in parts(current) if isinstance(part, dict))
        return {name: used[name] for name in self._definitions if name in used}

    # Compile one schema; None if no value is valid

    def _schema(self, schema: Any, at: Location) -> Node | None:
        self._count_node()
        if schema is False:
            return None
        if schema is True or not schema:
            return self._compile_any({}, at)
        if isinstance(schema.get("$ref"), str):
            return self._compile_reference(schema, at)
        if schema.get("allOf"):
            return self._compile_all_of(schema, at)
        if schema.get("anyOf") or schema.get("oneOf"):
            return self._union(schema, at)
        if "enum" in schema or "const" in schema:
            return self._literal(schema, at)
        return self._of_types(types_of(schema), schema, at)

    def _count_node(self) -> None:
        self._nodes += 1
        if self._nodes > self._most_nodes:
            raise TooLarge

    def _compile_any(self, schema: Mapping[str, Any], at: Location) -> Node:
        if not self._dialect.anything:
            return self._loosen(at, "any value is allowed here")
        self._lose(at, "any value is allowed here, so nothing is enforced")
        return read_labels(schema)

    def _of_types(self, types: Sequence[str], schema: Mapping[str, Any], at: Location) -> Node | None:
        if not types:
            return self._compile_any(schema, at)
        kinds = [kind for kind in types if kind != "integer" or "number" not in types]
        if len(kinds) == 1:
            return self._compile_type(kinds[0], schema, at)
        bare = {key: value for key, value in schema.items() if key not in ANNOTATIONS}
        return self._build_union([self._compile_type(kind, bare, at) for kind in kinds], schema)

    def _compile_type(self, kind: str, schema: Mapping[str, Any], at: Location) -> Node | None:
        node: Node | None = {"type": kind, **read_labels(schema)}
        assert node is not None
        unenforced = self._limits(kind, schema, node)
        if kind == "object":
            node = self._object(schema, node, at)
        elif kind == "array":
            node = self._array(schema, node, unenforced, at)
        if node is None:
            return None
        for keyword in unenforced:
            self._lose_keyword(at, keyword)
        return describe_limits(node, unenforced)

    def _limits(self, kind: str, schema: Mapping[str, Any], node: Node) -> dict[str, Any]:
        """Add enforced limits to the node; return the others."""
        enforced = self._dialect.enforced.get(kind, frozenset())
        schema = normalize_limits(schema)
        unenforced: dict[str, Any] = {}
        for keyword in (*LIMITS.get(kind, ()), *LIMITS_OF_ALL):
            if keyword not in schema or SAY_NOTHING.get(keyword, NEVER) == schema[keyword]:
                continue
            value = schema[keyword]
            if keyword in enforced and self._holds(keyword, value):
                node[keyword] = value
            elif kind == "integer" and (inclusive := INCLUSIVE.get(keyword)) and inclusive[0] in enforced:
                name, step = inclusive
                tighter = max if step > 0 else min
                nearest = int(value // 1) + 1 if step > 0 else -int(-value // 1) - 1
                node[name] = tighter(node.get(name, nearest), nearest)
            elif keyword == "if":
                unenforced[keyword] = {key: schema[key] for key in ("if", "then", "else") if key in schema}
            else:
                unenforced[keyword] = value
        return unenforced

    def _holds(self, keyword: str, value: Any) -> bool:
        if keyword == "format":
            return value in self._dialect.formats
        if keyword == "pattern":
            return UNUSUAL_PATTERN.search(value) is None
        return keyword != "minItems" or self._dialect.min_items is None or value <= self._dialect.min_items

    # Objects and arrays

    def _object(self, schema: Mapping[str, Any], node: Node, at: Location) -> Node | None:
        named: dict[str, Any] = dict(schema.get("properties") or {})
        required = list(dict.fromkeys(schema.get("required") or ()))
        rest = schema.get("additionalProperties", True)
        for name in required:
            named.setdefault(name, rest)
        at = at._replace(depth=at.depth + 1)
        if self._dialect.deepest is not None and at.depth > self._dialect.deepest:
            self._loosen(at, f"objects are nested deeper than {self._dialect.deepest} levels")
            return node
        properties: dict[str, Node] = {}
        for name, property in named.items():
            compiled = self._schema(property, at.below("properties", name)._replace(optional=name not in required))
            if compiled is None:
                if name in required:
                    return None
                continue
            if name not in required:
                self._optional += 1
                if self._dialect.all_required:
                    self.altered = True
                    compiled = make_nullable(compiled)
            properties[name] = compiled
        self._properties += len(properties)
        # Without `properties`, an object is a map.
        if properties or "properties" in schema or not self._dialect.closed:
            node["properties"] = properties
        node["required"] = list(properties) if self._dialect.all_required else [n for n in properties if n in required]
        self._rest(schema, rest, node, at)
        if self._dialect.ordering and len(properties) > 1:
            node["propertyOrdering"] = list(properties)
        return {key: value for key, value in node.items() if self._dialect.closed or value != [] or key != "required"}

    def _rest(self, schema: Mapping[str, Any], rest: Any, node: Node, at: Location) -> None:
        """Compile the rules for properties that are not named."""
        patterns = schema.get("patternProperties")
        if self._dialect.closed:
            if patterns or isinstance(rest, dict) or (rest is True and "properties" not in node):
                self._loosen(at, "an object with arbitrary property names")
            elif "additionalProperties" in schema and rest is True:
                self._lose(at, "additional properties cannot be returned")
            node["additionalProperties"] = False
            return
        if patterns:
            self._lose_keyword(at, "patternProperties")
        if isinstance(rest, dict):
            compiled = self._schema(rest, at.below("additionalProperties"))
            if compiled is not None:
                node["additionalProperties"] = compiled
        elif rest is True and not node["properties"]:
            node["additionalProperties"] = True
        if not node["properties"]:
            del node["properties"]

    def _array(self, schema: Mapping[str, Any], node: Node, unenforced: dict[str, Any], at: Location) -> Node | None:
        items = schema.get("items", True)
        places = schema.get("prefixItems")
        if isinstance(items, list):  # tuple syntax before draft 2020-12
            places, items = items, schema.get("additionalItems", True)
        if places:
            most = schema.get("maxItems", len(places) if items is False else None)
            if all(is_equal(place, places[0]) for place in places) and most is not None and most <= len(places):
                items = places[0]
                self._set_limit(node, unenforced, "maxItems", most)
            else:
                return self._tuple(places, items, node, at)
        if items is not False:
            compiled = self._schema(items, at.below("prefixItems", 0) if places else at.below("items"))
            if compiled is not None:
                return {**node, "items": compiled}
        # Only the empty array is valid; without enforcement, omit the property.
        if schema.get("minItems", 0) > 0 or (at.optional and "maxItems" not in self._dialect.enforced["array"]):
            return None
        self._set_limit(node, unenforced, "maxItems", 0)
        return {**node, "items": {"type": "null"}}

    def _set_limit(self, node: Node, unenforced: dict[str, Any], keyword: str, value: int) -> None:
        target = node if keyword in self._dialect.enforced["array"] else unenforced
        target[keyword] = value

    def _tuple(self, places: list[Any], items: Any, node: Node, at: Location) -> Node | None:
        if not self._dialect.tuples:
            return self._loosen(at, "a tuple")
        compiled: list[Node] = []
        for position, place in enumerate(places):
            one = self._schema(place, at.below("prefixItems", position))
            if one is None:
                break
            compiled.append(one)
        if len(compiled) < node.get("minItems", 0) and len(compiled) < len(places):
            return None
        if len(compiled) < len(places) or items is False:
            node["maxItems"] = min(len(compiled), node.get("maxItems", len(compiled)))
        elif items is not True and (rest := self._schema(items, at.below("items"))) is not None:
            node["items"] = rest
        return {**node, "prefixItems": compiled}

    # Literals

    def _literal(self, schema: Mapping[str, Any], at: Location) -> Node | None:
        lists = literals_of(schema)
        types = types_of(schema) if "type" in schema else []
        groups: dict[str, list[Any]] = {}
        others = [{equality_key(value) for value in values} for values in lists[1:]]
        seen: set[tuple[str, str]] = set()
        beside = schema.keys() - ANNOTATIONS - BOOKKEEPING - {"enum", "const", "type"}
        allowed = lists[0]
        if beside:  # other limits of the schema apply, too
            validator = create_limited_validator(self._root).evolve(schema=schema)
            allowed = [value for value in allowed if is_valid(value, validator)]
        for value in allowed:
            kind = json_type(value)
            fits = not types or kind in types or (kind == "integer" and "number" in types)
            if not fits or not all(equality_key(value) in keys for keys in others):
                continue
            if kind != "null" and kind not in self._dialect.literals:
                kind, value, self.altered = "string", literal_text(value), True
            if (kind, key := equality_key(value)) not in seen:
                seen.add((kind, key))
                groups.setdefault(kind, []).append(value)
        if "number" in groups and "integer" in groups:
            groups["number"] = groups.pop("integer") + groups["number"]
        self._listed += sum(map(len, groups.values()))
        single = "const" in schema and self._dialect.const
        nodes: list[Node | None] = [
            {"type": kind} if kind == "null" else {"type": kind, **encode_literals(values, single=single)}
            for kind, values in groups.items()
        ]
        return self._build_union(nodes, schema)

    # Unions, intersections, references

    def _union(self, schema: Mapping[str, Any], at: Location) -> Node | None:
        variants, others = schema.get("anyOf"), schema.get("oneOf")
        if variants and others:
            rest = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
            return self._compile_all_of({**rest, "allOf": [{"anyOf": variants}, {"oneOf": others}]}, at)
        targets = [follow_references(one, self._root) for one in others or ()]
        if others and "discriminator" not in schema and not evidently_disjoint(targets):
            self._lose(at, "oneOf is enforced as anyOf: several variants can match")
        key = "oneOf" if others else "anyOf"
        base = {name: schema[name] for name in schema if name != key and name not in ANNOTATIONS | BOOKKEEPING}
        compiled = []
        for position, variant in enumerate(others or variants or ()):
            combined = variant if self._implies(variant, base) else {"allOf": [variant, base]}
            compiled.append(self._schema(combined, at.below(key, position)))
        return self._build_union(compiled, schema)

    def _implies(self, variant: Any, base: Mapping[str, Any]) -> bool:
        """Whether the variant implies the keywords beside the union."""
        if not base:
            return True
        if base.keys() != {"type"} or not isinstance(variant, dict):
            return False
        types = types_of(follow_references(variant, self._root))
        return bool(types) and set(types) <= set(types_of(base))

    def _build_union(self, nodes: Sequence[Node | None], schema: Mapping[str, Any]) -> Node | None:
        found: dict[str, Node] = {}
        for node in nodes:
            if node is None:
                continue
            for one in node["anyOf"] if node.keys() == {"anyOf"} else [node]:
                found.setdefault(equality_key(one), one)
        variants = list(found.values())
        labels = read_labels(schema)
        if not variants:
            return None
        if len(variants) > 1:
            self._unions += 1
        elif not labels or "$ref" not in variants[0]:
            return add_labels(variants[0], labels)
        elif "description" not in labels:
            return variants[0]
        return {"anyOf": variants, **labels}

    def _compile_all_of(self, schema: Mapping[str, Any], at: Location) -> Node | None:
        rest = {key: value for key, value in schema.items() if key != "allOf" and key not in BOOKKEEPING}
        members: list[Any] = schema["allOf"]
        if len(members) == 1 and rest.keys() <= ANNOTATIONS and isinstance(members[0], dict):
            return self._schema({**members[0], **rest}, at)
        level = at.level
        merged: Any = rest
        try:
            for position, member in enumerate(members):
                lose = partial(self._lose_keyword, at.below("allOf", position))
                plain, level = self._without_reference(member, level, lose)
                merged = conjoin(merged, plain, lose)
        except (CannotMerge, Unresolvable) as error:
            return self._loosen(at, str(error))
        return self._schema(merged, at._replace(level=level))

    def _without_reference(self, schema: Any, level: int, lose: Callable[[str], None]) -> tuple[Any, int]:
        self._count_node()
        while isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
            reference = schema["$ref"]
            level += reference in self._recursive
            if level > MERGED_ROUNDS:
                raise CannotMerge("allOf with a recursive reference")
            local = {key: value for key, value in schema.items() if key != "$ref"}
            target, level = self._without_reference(resolve_reference(reference, self._root), level, lose)
            schema = conjoin(local, target, lose)
        return schema, level

    def _compile_reference(self, schema: Mapping[str, Any], at: Location) -> Node | None:
        reference = schema["$ref"]
        local = {key: value for key, value in schema.items() if key != "$ref" and key not in BOOKKEEPING}
        if not local.keys() <= ANNOTATIONS:
            return self._compile_all_of({**local, "allOf": [{"$ref": reference}, *(local.get("allOf") or ())]}, at)
        try:
            target = resolve_reference(reference, self._root)
        except Unresolvable as error:
            return self._loosen(at, str(error))
        recursive = reference in self._recursive
        # References are not allowed at the top or beside a description, so inline the target there.
        if self._dialect.references and at.path and ("description" not in local or recursive):
            referenced = self._reference(reference, target, at)
            return (
                referenced
                if referenced is None or "description" not in local
                else self._build_union([referenced], local)
            )
        inside = Location(reference_path(reference), at.level + recursive, at.depth)
        most = self._rounds if self._dialect.recursion is not None else MERGED_ROUNDS
        if inside.level > most:
            return self._cut()
        if not isinstance(target, dict):
            return self._schema(target, inside)
        return self._schema({**target, **read_labels(local)}, inside)

    def _reference(self, reference: str, target: Any, at: Location) -> Node | None:
        level = at.level
        if self._dialect.recursion is None:
            level = 0
        elif reference in self._recursive:
            level += 1
            if level > self._rounds:
                return self._cut()
        key = (reference, level)
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = self._fresh_name(reference, level)
            self._definitions[name] = {}
            self._definitions[name] = self._schema(target, Location(reference_path(reference) or "/", level))
        return None if self._definitions[name] is None else {"$ref": f"#/$defs/{name}"}

    def _fresh_name(self, reference: str, level: int) -> str:
        steps = pointer_steps(reference)
        base = re.sub(r"[^A-Za-z0-9_.-]", "_", steps[-1]) if steps else "Root"
        name = base if level < 2 else f"{base}_{level}"
        while name in self._definitions:
            name += "_"
        return name

    def _cut(self) -> Node | None:
        self._lose(Location(), f"recursion is cut after {self._rounds} levels; deeper values cannot be returned")
        return None

    # Report

    def _lose(self, at: Location, what: str) -> None:
        self.lost.setdefault(f"{at.path or '/'}: {what}")

    def _lose_keyword(self, at: Location, keyword: str) -> None:
        self._lose(at, f"{keyword} is not enforced")

    def _loosen(self, at: Location, why: str) -> Node:
        self.loose.setdefault(f"{at.path or '/'}: {why}, so the schema is not enforced")
        return {}
