"""One case for each thing a schema can say."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from agent.schemas import CompiledSchema, compile_schema, is_object_schema, wrap_schema

DIALECTS = ("openai", "anthropic", "gemini")


def compile_one(schema: dict[str, Any], dialect: str, **beside: Any) -> tuple[dict[str, Any], CompiledSchema]:
    """Compile a schema as a required property."""
    compiled = compile_schema({"type": "object", "properties": {"x": schema}, "required": ["x"], **beside}, dialect)
    return compiled.schema.get("properties", {}).get("x"), compiled


# References


def test_references_stay_where_they_may_and_are_written_out_where_they_may_not() -> None:
    defs = {"A": {"type": "string"}, "Unused": {"type": "integer"}}
    for dialect in ("openai", "anthropic"):
        node, compiled = compile_one({"$ref": "#/$defs/A"}, dialect, **{"$defs": defs})
        assert node == {"$ref": "#/$defs/A"}
        assert compiled.schema["$defs"] == {"A": {"type": "string"}}
    node, compiled = compile_one({"$ref": "#/$defs/A"}, "gemini", **{"$defs": defs})
    assert node == {"type": "string"}
    assert "$defs" not in compiled.schema


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_description_beside_a_reference_is_kept(dialect: str) -> None:
    node, _ = compile_one(
        {"$ref": "#/definitions/A", "description": "Why"}, dialect, definitions={"A": {"type": "string"}}
    )
    assert node == {"type": "string", "description": "Why"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_limits_beside_a_reference_are_joined_with_what_it_means(dialect: str) -> None:
    defs = {"A": {"type": "object", "properties": {"a": {"type": "string"}}}}
    node, _ = compile_one({"$ref": "#/$defs/A", "required": ["a"]}, dialect, **{"$defs": defs})
    assert node["required"] == ["a"]
    assert node["properties"] == {"a": {"type": "string"}}


def test_references_into_any_part_of_the_schema_are_followed() -> None:
    schema = {
        "type": "object",
        "properties": {"a/b": {"type": "integer"}, "c": {"$ref": "#/properties/a~1b"}},
        "required": ["a/b", "c"],
    }
    assert compile_schema(schema, "gemini").schema["properties"]["c"] == {"type": "integer"}
    assert compile_schema(schema, "openai").schema["$defs"] == {"a_b": {"type": "integer"}}


@pytest.mark.parametrize("reference", ["https://example.com/schema.json", "#/$defs/Missing", "other.json#/x"])
def test_references_that_lead_out_or_nowhere_cannot_be_enforced(reference: str) -> None:
    for dialect in DIALECTS:
        _, compiled = compile_one({"$ref": reference}, dialect)
        assert not compiled.strict
        assert reference in compiled.lost[0]


# Recursion

TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["v", "children"],
}


def test_recursion_stays_where_it_may() -> None:
    compiled = compile_schema(TREE, "openai")
    assert compiled.strict
    assert compiled.lost == ()
    assert compiled.schema["properties"]["children"]["items"] == {"$ref": "#/$defs/Root"}
    assert compiled.schema["$defs"]["Root"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Root"}


@pytest.mark.parametrize("dialect", ["anthropic", "gemini"])
def test_recursion_is_cut_with_a_note_elsewhere(dialect: str) -> None:
    compiled = compile_schema(TREE, dialect)
    assert compiled.strict
    assert "/: recursion is cut after 4 levels; deeper values cannot be returned" in compiled.lost
    node = compiled.schema
    for _ in range(4):
        items = node["properties"]["children"]["items"]
        node = compiled.schema["$defs"][items["$ref"].rsplit("/", 1)[1]] if "$ref" in items else items
    assert node["properties"]["children"]["items"] == {"type": "null"}
    assert node["properties"]["children"].get("maxItems", 0) == 0


def test_what_recursion_leaves_optional_is_left_out_at_the_end() -> None:
    schema = {"$defs": {"N": {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}}}, "$ref": "#/$defs/N"}
    compiled = compile_schema(schema, "gemini")
    depth, node = 0, compiled.schema
    while "n" in node.get("properties", {}):
        depth, node = depth + 1, node["properties"]["n"]
    assert depth == 3
    assert set(compile_schema(schema, "anthropic").schema["$defs"]) == {"N_2", "N_3", "N_4"}


def test_recursion_that_branches_is_cut_earlier_where_it_is_written_out() -> None:
    children = {name: {"$ref": "#"} for name in "abcdef"}
    compiled = compile_schema({"type": "object", "properties": children}, "gemini")
    assert compiled.strict
    assert any("cut after 2 levels" in note for note in compiled.lost)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_contains_itself_always_cannot_be_filled(dialect: str) -> None:
    endless = {"type": "object", "properties": {"again": {"$ref": "#"}}, "required": ["again"]}
    compiled = compile_schema(endless, dialect)
    assert not compiled.strict or dialect == "openai"
    assert not compile_schema({"allOf": [{"$ref": "#"}]}, dialect).strict
    assert not compile_schema({"$ref": "#"}, dialect).strict


def test_references_that_multiply_are_not_written_out_forever() -> None:
    defs: dict[str, Any] = {"D0": {"type": "string"}}
    for level in range(1, 40):
        inner = {"$ref": f"#/$defs/D{level - 1}"}
        defs[f"D{level}"] = {"type": "object", "properties": {"a": inner, "b": inner}}
    schema = {"$ref": "#/$defs/D39", "$defs": defs}
    compiled = compile_schema(schema, "gemini")
    assert not compiled.strict
    assert "too large" in compiled.lost[0]
    assert compile_schema(schema, "anthropic").strict is False  # more optional properties than it takes


# Unions and intersections


@pytest.mark.parametrize("dialect", DIALECTS)
def test_one_of_becomes_any_of(dialect: str) -> None:
    node, compiled = compile_one({"oneOf": [{"type": "string"}, {"type": "integer"}]}, dialect)
    assert node == {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    assert compiled.lost == ()
    _, compiled = compile_one({"oneOf": [{"type": "integer"}, {"type": "number"}]}, dialect)
    assert compiled.lost == ("/properties/x: oneOf is enforced as anyOf: several variants can match",)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_discriminated_unions_lose_nothing(dialect: str) -> None:
    class Cat(BaseModel):
        kind: Literal["cat"]

    class Dog(BaseModel):
        kind: Literal["dog"]

    class Owner(BaseModel):
        pet: Annotated[Cat | Dog, Field(discriminator="kind")]

    compiled = compile_schema(Owner.model_json_schema(), dialect)
    assert compiled.strict
    assert compiled.lost == ()
    assert len(compiled.schema["properties"]["pet"]["anyOf"]) == 2
    tagged = [{"type": "object", "properties": {"k": {"const": n}}, "required": ["k"]} for n in (1, 2)]
    assert compile_one({"oneOf": tagged}, dialect)[1].lost == ()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_stands_beside_a_union_goes_into_each_variant(dialect: str) -> None:
    node, compiled = compile_one(
        {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        dialect,
    )
    assert compiled.strict
    assert [sorted(variant["properties"]) for variant in node["anyOf"]] == [["a", "b"], ["a", "b"]]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_all_of_is_merged(dialect: str) -> None:
    node, compiled = compile_one(
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]},
                {"properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["b"]},
                {"properties": {"b": {"enum": ["y", "z"]}}},
            ]
        },
        dialect,
    )
    assert compiled.strict
    assert node["properties"]["a"] == {"type": "integer"}
    assert node["properties"]["b"]["enum"] == ["y"]
    assert node["required"] == ["a", "b"]


def test_all_of_with_one_member_is_that_member() -> None:
    node, _ = compile_one(
        {"allOf": [{"$ref": "#/$defs/A"}], "title": "T"}, "openai", **{"$defs": {"A": {"type": "string"}}}
    )
    assert node == {"$ref": "#/$defs/A"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_contradiction_fits_nothing(dialect: str) -> None:
    assert not compile_one({"allOf": [{"type": "string"}, {"type": "integer"}]}, dialect)[1].strict
    node, _ = compile_one({"anyOf": [{"allOf": [{"const": 1}, {"const": True}]}, {"type": "null"}]}, dialect)
    assert node == {"type": "null"}


# Objects


def test_optional_properties_are_nullable_only_where_all_must_be_required() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    openai = compile_schema(schema, "openai")
    assert openai.schema["required"] == ["a"]
    assert openai.schema["properties"]["a"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert openai.restore({"a": None}) == {}
    assert compile_schema(schema, "anthropic").schema["required"] == []
    assert compile_schema(schema, "gemini").schema == schema


def test_null_that_the_original_allows_stays() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": ["string", "null"]}, "b": {"enum": ["x", None]}, "c": {"const": 1}},
        "required": ["b"],
    }
    assert compile_schema(schema, "openai").restore({"a": None, "b": None, "c": None}) == {"a": None, "b": None}


@pytest.mark.parametrize("rest", [{"type": "integer"}, True])
def test_maps_cannot_be_enforced_where_objects_are_closed(rest: Any) -> None:
    schema = {"type": "object", "additionalProperties": rest}
    for dialect in ("openai", "anthropic"):
        compiled = compile_schema(schema, dialect)
        assert not compiled.strict
        assert compiled.schema == schema
        assert compiled.lost == ("/: an object with arbitrary property names, so the schema is not enforced",)
    assert compile_schema(schema, "openai").sendable
    assert not compile_schema(schema, "anthropic").sendable
    assert compile_schema(schema, "gemini").schema == schema


def test_an_object_that_names_properties_and_allows_more_is_closed_with_a_note() -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        a: int

    compiled = compile_schema(Open.model_json_schema(), "openai")
    assert compiled.strict
    assert compiled.lost == ("/: additional properties cannot be returned",)


def test_an_object_without_properties_that_says_so_is_empty() -> None:
    compiled = compile_schema({"type": "object", "properties": {}}, "openai")
    assert compiled.strict
    assert compiled.schema == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


def test_properties_that_are_only_required_may_be_anything() -> None:
    assert not compile_schema({"type": "object", "properties": {}, "required": ["a"]}, "openai").strict
    closed = {"type": "object", "properties": {}, "required": ["a"], "additionalProperties": False}
    assert compile_schema(closed, "gemini").lost == ("/: no value is valid, so the schema is not enforced",)


def test_the_order_of_properties_is_told_where_it_is_asked_for() -> None:
    node, _ = compile_one({"type": "object", "properties": {"b": {"type": "null"}, "a": {"type": "null"}}}, "gemini")
    assert node["propertyOrdering"] == ["b", "a"]


# Arrays


def test_tuples() -> None:
    schema = TypeAdapter(tuple[int, str]).json_schema()
    assert not compile_schema(schema, "openai").strict
    assert not compile_schema(schema, "anthropic").strict
    assert compile_schema(schema, "gemini").schema["prefixItems"] == [{"type": "integer"}, {"type": "string"}]
    same = TypeAdapter(tuple[int, int]).json_schema()
    assert compile_schema(same, "openai").schema["properties"]["value"] == {
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "items": {"type": "integer"},
    }
    old = {"type": "array", "items": [{"type": "integer"}, {"type": "string"}], "additionalItems": False}
    assert compile_schema(old, "gemini").schema == {
        "type": "array",
        "maxItems": 2,
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
    }


@pytest.mark.parametrize("schema", [{}, {"type": "array"}, {"description": "Whatever"}])
def test_anything_cannot_be_enforced(schema: dict[str, Any]) -> None:
    for dialect in ("openai", "anthropic"):
        assert not compile_one(schema, dialect)[1].strict
    node, compiled = compile_one(schema, "gemini")
    assert compiled.strict
    assert "any value" in compiled.lost[0]
    assert node.get("description") == schema.get("description")


# Values


def test_limits_are_kept_where_they_are_enforced_and_told_where_not() -> None:
    schema = {"type": "integer", "minimum": 1, "exclusiveMaximum": 10, "multipleOf": 2, "description": "Even"}
    node, compiled = compile_one(schema, "openai")
    assert node == schema
    assert compiled.lost == ()
    node, compiled = compile_one(schema, "anthropic")
    assert node == {"type": "integer", "description": "Even\n\nminimum: 1; exclusiveMaximum: 10; multipleOf: 2"}
    assert "/properties/x: minimum is not enforced" in compiled.lost
    node, compiled = compile_one(schema, "gemini")
    assert node == {"type": "integer", "minimum": 1, "maximum": 9, "description": "Even\n\nmultipleOf: 2"}
    assert compiled.lost == ("/properties/x: multipleOf is not enforced",)


@pytest.mark.parametrize(
    ("format", "enforced"),
    [
        ("date-time", {"openai", "anthropic", "gemini"}),
        ("uuid", {"openai", "anthropic"}),
        ("uri", {"anthropic"}),
        ("byte", set()),
    ],
)
def test_formats(format: str, enforced: set[str]) -> None:
    for dialect in DIALECTS:
        node, compiled = compile_one({"type": "string", "format": format}, dialect)
        assert (node.get("format") == format) is (dialect in enforced)
        assert compiled.lost == (() if dialect in enforced else ("/properties/x: format is not enforced",))


def test_patterns_that_look_around_are_not_enforced() -> None:
    node, compiled = compile_one({"type": "string", "pattern": "^(?!0)[0-9]+$"}, "openai")
    assert node == {"type": "string", "description": 'pattern: "^(?!0)[0-9]+$"'}
    assert compiled.lost == ("/properties/x: pattern is not enforced",)
    assert compile_one({"type": "string", "pattern": "^(?:a|b)+$"}, "openai")[0]["pattern"] == "^(?:a|b)+$"


@pytest.mark.parametrize("keyword", ["not", "if", "minLength", "uniqueItems", "propertyNames", "dependentRequired"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_nobody_enforces_is_reported(dialect: str, keyword: str) -> None:
    cases: dict[str, dict[str, Any]] = {
        "not": {"type": "string", "not": {"const": "a"}},
        "if": {"type": "string", "if": {"const": "a"}, "then": {"minLength": 3}},
        "minLength": {"type": "string", "minLength": 2},
        "uniqueItems": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "propertyNames": {"type": "object", "properties": {"a": {"const": 1}}, "propertyNames": {"maxLength": 3}},
        "dependentRequired": {"type": "object", "properties": {"a": {"const": 1}}, "dependentRequired": {"a": ["b"]}},
    }
    node, compiled = compile_one(cases[keyword], dialect)
    assert compiled.strict
    assert compiled.lost == (f"/properties/x: {keyword} is not enforced",)
    assert keyword in node["description"]


def test_limits_that_limit_nothing_are_no_loss() -> None:
    schema = {"type": "array", "items": {"type": "string", "minLength": 0}, "minItems": 0, "uniqueItems": False}
    for dialect in DIALECTS:
        assert compile_one(schema, dialect)[1].lost == ()


def test_defaults_and_examples_go_without_a_word() -> None:
    for dialect in DIALECTS:
        node, compiled = compile_one({"type": "string", "default": "a", "examples": ["b"]}, dialect)
        assert node == {"type": "string"}
        assert compiled.lost == ()


def test_several_types_are_a_union() -> None:
    for dialect in DIALECTS:
        node, _ = compile_one({"type": ["string", "integer", "null"], "minimum": 3, "description": "D"}, dialect)
        assert [variant["type"] for variant in node["anyOf"]] == ["string", "integer", "null"]
        assert node["description"] == "D"
        assert "minimum" not in node["anyOf"][0]


def test_constants_and_enums_keep_their_types_where_they_may() -> None:
    assert compile_one({"const": "a"}, "openai")[0] == {"type": "string", "const": "a"}
    assert compile_one({"const": "a"}, "gemini")[0] == {"type": "string", "enum": ["a"]}
    assert compile_one({"enum": [1, 2.5]}, "anthropic")[0] == {"type": "number", "enum": [1, 2.5]}
    assert compile_one({"enum": ["a", 1, None]}, "openai")[0] == {
        "anyOf": [{"type": "string", "enum": ["a"]}, {"type": "integer", "enum": [1]}, {"type": "null"}]
    }


def test_enums_of_other_values_are_written_as_text_and_read_back() -> None:
    node, compiled = compile_one({"enum": [1, True, "x", None]}, "gemini")
    assert node == {"anyOf": [{"type": "string", "enum": ["1", "true", "x"]}, {"type": "null"}]}
    for written, meant in (("1", 1), ("true", True), ("x", "x"), (None, None)):
        assert compiled.restore({"x": written}) == {"x": meant}
        assert type(compiled.restore({"x": written})["x"]) is type(meant)
    node, compiled = compile_one({"enum": [{"a": 1}, [2]]}, "openai")
    assert node == {"type": "string", "enum": ['{"a":1}', "[2]"]}
    assert compiled.restore({"x": "[2]"}) == {"x": [2]}


def test_types_are_guessed_from_what_is_said() -> None:
    assert compile_one({"properties": {"a": {"const": 1}}, "required": ["a"]}, "openai")[0]["type"] == "object"
    assert compile_one({"items": {"type": "string"}}, "openai")[0]["type"] == "array"
    assert compile_one({"format": "date"}, "openai")[0]["type"] == "string"
    assert compile_one({"minimum": 3}, "openai")[0]["type"] == "number"


# The top


@pytest.mark.parametrize("kind", [list[int], str, int | None, Literal["a"], list[dict[str, int]]])
def test_what_is_no_object_is_wrapped_in_one_where_it_must_be(kind: Any) -> None:
    schema = TypeAdapter(kind).json_schema()
    for dialect in ("openai", "anthropic"):
        compiled = compile_schema(schema, dialect)
        assert compiled.schema["type"] == "object"
        assert compiled.restore({"value": "x"}) == "x"
        assert compiled.wrapped
        assert compiled.restore("x") == "x"
    assert compile_schema(schema, "gemini").restore({"value": "x"}) == {"value": "x"}


def test_a_union_of_objects_is_wrapped_too() -> None:
    schema = {
        "anyOf": [{"type": "object", "properties": {"value": {"const": 1}}}, {"type": "object", "properties": {}}]
    }
    assert compile_schema(schema, "openai").restore({"value": {"value": None}}) == {}


def test_wrapping_keeps_references_right() -> None:
    schema = {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/A"}]}, "$defs": {"A": {"const": 1}}}
    wrapped = wrap_schema(schema)
    assert wrapped["properties"]["value"]["items"]["anyOf"] == [
        {"$ref": "#/properties/value"},
        {"$ref": "#/$defs/A"},
    ]
    assert is_object_schema(wrapped)
    assert not is_object_schema(schema)
    assert compile_schema(schema, "openai").restore({"value": [[1]]}) == [[1]]


def test_too_much_for_strict_mode_is_not_strict() -> None:
    many = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(5001)}}
    assert "5001 properties" in compile_schema(many, "openai").lost[0]
    few = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(25)}}
    assert "25 optional properties" in compile_schema(few, "anthropic").lost[0]
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(11):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    assert "deeper than 10 levels" in compile_schema(deep, "openai").lost[0]
    assert compile_schema(deep, "gemini").strict


def test_an_unknown_dialect_is_a_mistake_of_the_codec() -> None:
    with pytest.raises(KeyError):
        compile_schema({}, "latin")


# Restoring


def test_nulls_go_at_every_depth() -> None:
    schema = {
        "$defs": {"P": {"type": "object", "properties": {"a": {"type": "integer"}, "me": {"$ref": "#/$defs/P"}}}},
        "type": "object",
        "properties": {"all": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}]}}},
        "required": ["all"],
    }
    answer = {"all": [{"a": 1, "me": {"a": None, "me": None}}, None]}
    assert compile_schema(schema, "openai").restore(answer) == {"all": [{"a": 1, "me": {}}, None]}


def test_the_variant_that_knows_all_properties_is_the_one_meant() -> None:
    small = {"type": "object", "properties": {"a": {"type": "integer"}}}
    large = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"x": {"anyOf": [small, large]}}, "required": ["x"]}
    assert compile_schema(schema, "openai").restore({"x": {"a": 1, "b": None}}) == {"x": {"a": 1}}


def test_what_fits_nothing_is_left_as_it_is() -> None:
    schema = {"type": "object", "properties": {"x": {"anyOf": [{"type": "integer"}, {"const": "a"}]}}}
    assert compile_schema(schema, "openai").restore({"x": "no", "y": [1]}) == {"x": "no", "y": [1]}
    assert compile_schema(schema, "openai").restore("no") == "no"


class Leaf(BaseModel):
    op: Literal["leaf"] = "leaf"
    weight: int = 1


class Plus(BaseModel):
    left: Tree
    right: Tree
    note: str = ""
    op: Literal["plus"]  # last, so that a trial of each variant finds it last


class Minus(BaseModel):
    left: Tree
    right: Tree
    note: str = ""
    op: Literal["minus"]


Tree = Annotated[Plus | Minus | Leaf, Field(discriminator="op")]
Plus.model_rebuild()
Minus.model_rebuild()


class Sum(BaseModel):
    tree: Tree


def test_the_variants_of_a_deep_tree_are_told_by_their_tags_and_not_by_trying_them_all() -> None:
    tree: dict[str, Any] = {"op": None, "weight": None}
    wanted: dict[str, Any] = {}
    for _ in range(40):
        tree = {"left": {"op": "leaf", "weight": 2}, "right": tree, "note": None, "op": "minus"}
        wanted = {"left": {"op": "leaf", "weight": 2}, "right": wanted, "op": "minus"}
    restored = compile_schema(Sum.model_json_schema(), "openai").restore({"tree": tree})
    assert restored == {"tree": wanted}


def test_a_tag_that_is_written_as_text_tells_the_variant_too() -> None:
    def variant(tag: int) -> dict[str, Any]:
        return {"type": "object", "properties": {"tag": {"const": tag}, "of": {"enum": [tag, "x"]}}}

    schema = {"type": "object", "properties": {"x": {"anyOf": [variant(1), variant(2)]}}}
    restored = compile_schema(schema, "gemini").restore({"x": {"tag": "2", "of": "2"}})
    assert restored == {"x": {"tag": 2, "of": 2}}
