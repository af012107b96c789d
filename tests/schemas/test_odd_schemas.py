"""Schemas that are broken, old-fashioned, or refer to what is not there: never a stray exception."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from agent import Agent, errors
from agent.schemas import compile_schema, find_unresolved_reference
from agent.testing import scripted_agent

DIALECTS = ("openai", "anthropic", "gemini")


def around(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}, "required": ["x"]}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (around("string"), "/properties/x is"),
        (around({"type": "string", "required": True}), "/properties/x/required has"),
        (around({"type": "object", "properties": ["a"]}), "/properties/x/properties has"),
        (around({"type": ["string", {"a": 1}]}), "/properties/x/type must contain"),
        (around({"enum": "abc"}), "/properties/x/enum has"),
        (around({"anyOf": {"type": "string"}}), "/properties/x/anyOf has"),
        (around({"allOf": ["x"]}), "/properties/x/allOf/0 is"),
        (around({"type": "array", "items": "string"}), "/properties/x/items is"),
        (around({"type": "array", "minItems": "1"}), "/properties/x/minItems has"),
        (around({"type": "integer", "exclusiveMinimum": "0"}), "/properties/x/exclusiveMinimum has"),
        (around({"type": "string", "pattern": 3}), "/properties/x/pattern has"),
        ({"type": "object", "properties": {"city": {"type": "string"}}, "required": "city"}, "/required has"),
        ({"$ref": "#/$defs/A", "$defs": {"A": "string"}}, "/$defs/A is"),
    ],
)
def test_what_is_no_json_schema_is_the_callers_mistake(schema: dict[str, Any], place: str, dialect: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="Invalid JSON schema") as caught:
        compile_schema(schema, dialect)
    assert place in caught.value.message


def test_a_tool_without_a_proper_schema_is_a_finding_and_no_exception() -> None:
    tool = {"name": "look", "parameters": around("string")}
    report = Agent("gemini:gemini-2.5-flash", api_key="k", tools=[tool]).check("Hi")
    assert [problem.kind for problem in report.problems] == ["ConfigurationError"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_null_in_place_of_what_could_be_left_out_is_no_mistake(dialect: str) -> None:
    bare = around({"type": "object", "properties": {"a": {"type": "string", "description": None}}})
    nulls = around({**bare["properties"]["x"], "required": None, "anyOf": None, "$defs": None})
    assert compile_schema(nulls, dialect) == compile_schema(bare, dialect)


def test_limits_that_a_flag_excludes_are_read_as_the_drafts_after_it_write_them() -> None:
    flags = around({"type": "integer", "minimum": 0, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False})
    numbers = around({"type": "integer", "exclusiveMinimum": 0, "maximum": 9})
    for dialect in DIALECTS:
        assert compile_schema(flags, dialect) == compile_schema(numbers, dialect)
    limits = compile_schema(flags, "gemini").schema["properties"]["x"]
    assert limits == {"type": "integer", "minimum": 1, "maximum": 9}


def test_more_listed_values_than_the_vendor_takes_are_sent_as_advice() -> None:
    few, many = ([f"v{number}" for number in range(count)] for count in (1_000, 1_001))
    assert compile_schema(around({"enum": few}), "openai").strict
    compiled = compile_schema(around({"enum": many}), "openai")
    assert not compiled.strict
    assert "1001 listed values" in compiled.lost[0]


def test_that_only_one_may_fit_is_reported_also_inside_all_of() -> None:
    variants = [{"type": "object", "properties": {name: {"type": "string"}}, "required": [name]} for name in "ab"]
    for beside in ({"description": "Why"}, {"required": ["c"]}, {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}):
        compiled = compile_schema(around({"allOf": [{"oneOf": variants}, {"type": "object", **beside}]}), "gemini")
        assert any("oneOf" in lost for lost in compiled.lost), beside


def test_a_limit_is_told_beside_the_description_of_a_union_of_one() -> None:
    schema = around({"description": "Why", "anyOf": [{"type": "string", "maxLength": 5}]})
    assert compile_schema(schema, "openai").schema["properties"]["x"]["description"] == "Why\n\nmaxLength: 5"


# Undecidable validity


class Person(BaseModel):
    name: Annotated[str, Field(pattern=r"^\p{L}+$")] | None = None


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_pattern_in_another_dialect_of_regular_expressions_does_no_harm(dialect: str) -> None:
    compiled = compile_schema(Person.model_json_schema(), dialect)
    assert compiled.restore({"name": "Ada"}) == {"name": "Ada"}
    assert compile_schema(around({"enum": ["a"], "pattern": r"\p{L}"}), dialect).schema["properties"]["x"]


def test_such_a_pattern_is_judged_by_who_understands_it() -> None:
    assert scripted_agent({"name": "Ada"}).json("?", schema=Person).output == Person(name="Ada")
    with pytest.raises(errors.SchemaValidationError):
        scripted_agent({"name": "4da"}, {"name": "4da"}, {"name": "4da"}).json("?", schema=Person)


@pytest.mark.parametrize("reference", ["#/components/schemas/X", "#/$defs/Missing", "https://example.com/x.json"])
def test_a_reference_that_leads_nowhere_is_found_before_anything_is_paid_for(reference: str) -> None:
    for schema in (
        around({"$ref": reference}),
        {**around({"$ref": "#/$defs/A"}), "$defs": {"A": around({"$ref": reference})}},
    ):
        with pytest.raises(errors.ConfigurationError, match="cannot be resolved") as caught:
            scripted_agent({"x": 1}).json("?", schema=schema)
        assert caught.value.field == "output_schema"


def test_references_that_lead_somewhere_are_no_dead_ends() -> None:
    assert find_unresolved_reference({**around({"$ref": "#/$defs/A"}), "$defs": {"A": around({"$ref": "#"})}}) is None
    assert (
        find_unresolved_reference({**around({"$ref": "a.json"}), "$defs": {"A": {"$id": "a.json", "type": "string"}}})
        is None
    )
    assert find_unresolved_reference({**around({}), "$defs": {"Unused": {"$ref": "#/nowhere"}}}) is None


def test_parts_with_names_of_their_own_are_found_when_the_answer_is_judged() -> None:
    schema = {**around({"$ref": "a.json"}), "$defs": {"A": {"$id": "a.json", "type": "string"}}}
    assert scripted_agent({"x": "yes"}).json("?", schema=schema).output == {"x": "yes"}


def test_the_drafts_themselves_may_be_referred_to() -> None:
    schema = around({"$ref": "https://json-schema.org/draft/2020-12/schema"})
    assert scripted_agent({"x": {"type": "string"}}).json("?", schema=schema).output == {"x": {"type": "string"}}


def test_a_reference_out_of_the_schema_is_never_fetched_and_never_asked_about_again() -> None:
    schema = {"$id": "https://example.com/own.json", **around({"$ref": "https://example.com/other.json"})}
    with pytest.raises(errors.SchemaValidationError, match=r"example\.com/other\.json") as caught:
        scripted_agent({"x": 1}).json("?", schema=schema)
    assert caught.value.text == '{"x":1}'
    assert len(caught.value.attempts) == 1


def test_a_tools_arguments_are_restored_though_a_reference_leads_nowhere() -> None:
    schema = {**around({"type": "string"}), "properties": {"x": {"type": "string"}, "y": {"$ref": "#/nowhere"}}}
    for dialect in DIALECTS:
        assert compile_schema(schema, dialect).restore({"x": "a", "y": None}) == {"x": "a", "y": None}
