"""Two schemas merged into one admit what both admit, and nothing else. jsonschema is the judge."""

from __future__ import annotations

from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.schemas import compile_schema
from agent.schemas.merge import CannotMerge, conjoin
from tests.schemas.generators import answer
from tests.support.cases import examples

VALUES: list[Any] = [
    None, True, False, 0, 1, 1.0, 2.5, 6, "", "a", "bb", "ccc", [], [1], ["a"], [1, "a"], [1, 2, 3], {}, {"a": 1},
    {"a": "x"}, {"b": 1}, {"a": 1, "b": 2}, {"a": 1, "c": 3}, {"x_1": 1}, {"a": [1], "b": "bb"},
]  # fmt: skip


def some_schema(random: Random, depth: int = 2) -> Any:
    """A few keywords, whether they go together or not."""
    if random.random() < 0.05:
        return random.choice([True, False, {}])
    inner = (lambda: some_schema(random, depth - 1)) if depth else (lambda: {"type": random.choice(TYPES)})
    keywords: dict[str, Any] = {
        "type": lambda: random.choice([*TYPES, ["string", "null"], ["integer", "object"]]),
        "enum": lambda: random.sample([None, 1, True, "a", "bb", 2.5, {"a": 1}], 3),
        "const": lambda: random.choice([1, True, "a", None]),
        "minimum": lambda: random.randint(0, 2),
        "maximum": lambda: random.randint(1, 6),
        "multipleOf": lambda: random.choice([1, 2, 3]),
        "minLength": lambda: random.randint(0, 2),
        "maxLength": lambda: random.randint(1, 3),
        "minItems": lambda: random.randint(0, 2),
        "maxItems": lambda: random.randint(0, 3),
        "uniqueItems": lambda: random.random() < 0.5,
        "items": inner,
        "prefixItems": lambda: [inner(), inner()],
        "properties": lambda: {name: inner() for name in random.sample("abc", 2)},
        "required": lambda: random.sample("abc", 1),
        "additionalProperties": lambda: random.choice([True, False, inner()]),
        "patternProperties": lambda: {"^x_": inner()},
        "anyOf": lambda: [inner(), inner()],
        "allOf": lambda: [inner()],
        "title": lambda: "T",
    }
    return {name: keywords[name]() for name in random.sample(list(keywords), random.randint(1, 4))}


TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")


def admits(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


@settings(max_examples=examples(200, 1_000))
@given(seed=st.integers(0, 2**64))
def test_a_value_fits_the_merged_schema_if_it_fits_both(seed: int) -> None:
    random = Random(seed)
    one, other = some_schema(random), some_schema(random)
    lost: list[str] = []
    try:
        merge = conjoin(one, other, lost.append)
    except CannotMerge:
        return
    for value in VALUES:
        both = admits(one, value) and admits(other, value)
        if "patternProperties" in str((one, other)):
            # Which properties a pattern covers is not looked into, so more may fit; never less.
            assert admits(merge, value) or not both
        elif not lost:
            assert admits(merge, value) is both, (one, other, value)


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "gemini"])
@settings(max_examples=examples(100, 400))
@example(seed=65_390_913_977)  # a union whose type stands beside it, and a number that is listed
@given(seed=st.integers(0, 2**64))
def test_any_mixture_of_keywords_compiles_to_something(dialect: str, seed: int) -> None:
    random = Random(seed)
    schema = {"type": "object", "properties": {"x": some_schema(random, 3)}, "required": ["x"]}
    compiled = compile_schema(schema, dialect)
    jsonschema.Draft202012Validator(compiled.schema)
    for value in random.sample(VALUES, 6):
        if admits(schema, {"x": value}):
            assert compiled.restore({"x": value}) == {"x": value}
    if compiled.strict and not compiled.lost:
        written = answer(compiled.schema, random, compiled.schema)
        if admits(compiled.schema, written):
            assert admits(schema, compiled.restore(written)), (schema, compiled.schema, written)


def merge(one: Any, other: Any) -> tuple[Any, list[str]]:
    lost: list[str] = []
    return conjoin(one, other, lost.append), lost


def test_limits_become_the_tighter_one() -> None:
    assert merge({"minimum": 1, "maxLength": 5}, {"minimum": 3, "maxLength": 2})[0] == {"minimum": 3, "maxLength": 2}
    assert merge({"multipleOf": 4}, {"multipleOf": 6})[0] == {"multipleOf": 12}


def test_what_cannot_be_said_at_once_is_reported() -> None:
    assert merge({"pattern": "a", "format": "date"}, {"pattern": "b", "format": "date"}) == (
        {"pattern": "a", "format": "date"},
        ["pattern"],
    )


def test_the_first_has_the_word_in_descriptions() -> None:
    assert merge({"title": "A"}, {"title": "B", "description": "C"})[0] == {"title": "A", "description": "C"}


def test_closed_objects_admit_only_what_both_name() -> None:
    one = {"properties": {"a": {"type": "string"}, "b": {}}, "additionalProperties": False}
    other = {"properties": {"a": {"minLength": 1}, "c": {}}, "additionalProperties": {"type": "null"}}
    assert merge(one, other)[0]["properties"] == {
        "a": {"allOf": [{"type": "string"}, {"minLength": 1}]},
        "b": {"type": "null"},
        "c": False,
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"prefixItems": [{}]}, {"items": {"type": "string"}}),
        ({"anyOf": [{"const": n} for n in range(9)]}, {"anyOf": [{"const": n} for n in range(9)]}),
    ],
)
def test_what_is_not_one_schema_is_not_enforced(one: Any, other: Any) -> None:
    with pytest.raises(CannotMerge):
        merge(one, other)
    schema = {"type": "object", "properties": {"x": {"allOf": [one, other]}}, "required": ["x"]}
    assert not compile_schema(schema, "openai").strict
