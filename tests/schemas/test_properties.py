"""Properties of every compiled schema, checked with jsonschema."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.schemas import compile_schema
from agent.types import freeze
from tests.schemas.generators import Expressing, Generator, answer
from tests.support.cases import examples

DIALECTS = ("openai", "anthropic", "gemini")
COMMON = {"type", "title", "description", "properties", "required", "items", "anyOf", "enum", "additionalProperties"}
NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
KEYWORDS = {
    "openai": COMMON | NUMBERS | {"const", "$defs", "$ref", "pattern", "format", "minItems", "maxItems"},
    "anthropic": COMMON | {"const", "$defs", "$ref", "format", "minItems"},
    "gemini": COMMON | {"minimum", "maximum", "format", "minItems", "maxItems", "prefixItems", "propertyOrdering"},
}


META = jsonschema.Draft202012Validator(jsonschema.Draft202012Validator.META_SCHEMA)


def nodes(schema: Any) -> list[dict[str, Any]]:
    """A compiled schema and all schemas in it."""
    if not isinstance(schema, dict):
        return []
    inside = [*schema.get("anyOf", ()), *schema.get("prefixItems", ()), schema.get("items")]
    inside += [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    inside.append(schema.get("additionalProperties"))
    return [schema, *(node for part in inside for node in nodes(part))]


def check_form(schema: dict[str, Any], dialect: str) -> None:
    for node in nodes(schema):
        assert node.keys() <= KEYWORDS[dialect]
        if "$ref" in node:
            assert node.keys() == {"$ref"}
        if node.get("type") == "object" and dialect != "gemini":
            assert node["additionalProperties"] is False
        if node.get("type") == "object" and dialect == "openai":
            assert node["required"] == list(node["properties"])
        if node.get("type") == "array" and dialect == "anthropic":
            assert node.get("minItems", 0) <= 1
        if dialect == "gemini" and "enum" in node:
            assert all(isinstance(value, str) for value in node["enum"])
    if dialect != "gemini":
        assert schema["type"] == "object"


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=examples(150, 1_000))
@given(seed=st.integers(0, 2**64))
def test_answers_survive_the_way_there_and_back(dialect: str, seed: int) -> None:
    random = Random(seed)
    schema, make = Generator(random, maps=dialect == "gemini" or random.random() < 0.1).document()
    before = copy.deepcopy(schema)
    compiled = compile_schema(schema, dialect)
    assert schema == before
    original = jsonschema.Draft202012Validator(schema)
    if compiled.strict:
        if seed % 3 == 0:  # it takes longer than all the rest
            META.validate(compiled.schema)
        check_form(compiled.schema, dialect)
        again = compile_schema(compiled.schema, dialect)
        assert again.strict
        check_form(again.schema, dialect)
    expressing = Expressing(compiled.schema)
    for _ in range(2):
        value = make(4)
        if not original.is_valid(value):
            continue  # the generator does not know all that its limits exclude
        assert compiled.restore(value) == value or not compiled.strict or "value" in compiled.schema["properties"]
        written = expressing.express(value)
        if not any("recursion is cut" in note for note in compiled.lost):
            assert expressing.fits(written), (schema, compiled.schema, value, written)
        if expressing.fits(written):
            restored = compiled.restore(written)
            assert original.is_valid(restored), (schema, compiled.schema, value, written, restored)


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=examples(150, 1_000))
@given(seed=st.integers(0, 2**64))
def test_whatever_a_vendor_may_answer_fits_if_nothing_is_lost(dialect: str, seed: int) -> None:
    random = Random(seed)
    schema, _ = Generator(random, maps=dialect == "gemini").document()
    compiled = compile_schema(schema, dialect)
    if not compiled.strict or any("recursion" not in note for note in compiled.lost):
        return
    written = answer(compiled.schema, random, compiled.schema)
    if not jsonschema.Draft202012Validator(compiled.schema).is_valid(written):
        return  # the maker of answers gave up on something deep
    restored = compiled.restore(written)
    assert jsonschema.Draft202012Validator(schema).is_valid(restored), (schema, compiled.schema, written, restored)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_compiling_is_deterministic_and_kept(dialect: str, rng: Random) -> None:
    for _ in range(20):
        schema, _ = Generator(rng).document()
        first = compile_schema(schema, dialect)
        assert compile_schema(freeze(schema), dialect) is first
        with pytest.raises(TypeError, match="read-only"):
            first.schema["type"] = "string"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_plain_schema_says_the_same_in_ordinary_dicts(dialect: str, rng: Random) -> None:
    for _ in range(20):
        schema, _ = Generator(rng).document()
        compiled = compile_schema(schema, dialect)
        assert compiled.plain == compiled.schema
        assert list(compiled.plain) == list(compiled.schema)
        assert _is_plain(compiled.plain)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return type(value) is dict and all(map(_is_plain, value.values()))
    return not isinstance(value, list) or (type(value) is list and all(map(_is_plain, value)))
