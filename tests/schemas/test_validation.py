"""Validations of hostile schemas end in time, and agree with jsonschema where that ends."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from contextlib import suppress
from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from agent import errors
from agent.schemas import compile_schema
from agent.schemas.validation import (
    Deferred,
    TooExpensive,
    Validation,
    equality_key,
    find_problems,
    run_inline,
    run_until,
)
from agent.schemas.validation_process import create_validator
from agent.testing import scripted_agent
from agent.tools import Tool
from agent.tools.base import ArgumentsError
from tests.loop.result_checks import call
from tests.support.cases import FULL, examples, within_budget
from tests.support.values import json_values

SENTENCE = "a sentence of words that goes on and on, and then ends with the wrong sign !" * 2


def ladder(levels: int, keyword: str = "allOf") -> dict[str, Any]:
    """References that double at each level."""
    steps = {f"a{i}": {keyword: [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(levels)}
    return {"$ref": "#/$defs/a0", "$defs": {**steps, f"a{levels}": {"type": "integer"}}}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return schema


def tree(levels: int) -> Any:
    return [tree(levels - 1)] if levels else "x"


OBJECTS = [{"a": i} for i in range(3_000)]
LISTS = {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"items": {"$ref": "#/$defs/a"}, "maxItems": 0}] * 2}}}
HOSTILE: dict[str, tuple[dict[str, Any], Any]] = {
    "backtracking": ({"pattern": r"^(\w+\s?)*$"}, SENTENCE),
    "backtracking that no linear matcher takes": ({"pattern": r"^(?=(\w+\s?)*$)"}, SENTENCE),
    "a pattern that is slow to compile": ({"pattern": r"(\w{1,100}){1,100}"}, SENTENCE),
    "a pattern of a property name": ({"patternProperties": {r"^(\w+\s?)*$": {}}}, {SENTENCE: 1}),
    "a pattern beside another draft": ({"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#",
        "pattern": r"^(?=(\w+\s?)*$)"}}}, {"a": SENTENCE}),
    "doubled references": (ladder(30), 1),
    "doubled unions": (ladder(30, "oneOf"), 1),
    "recursive unions": (LISTS, tree(60)),
    "a reference to itself": ({"$ref": "#"}, 1),
    "unique objects": ({"uniqueItems": True}, OBJECTS),
    "a metaschema with unique objects": ({"$ref": "http://json-schema.org/draft-04/schema#"}, {"enum": OBJECTS}),
    "a long enum beside a long list": ({"items": {"enum": OBJECTS}}, OBJECTS),
    "a large value quoted by many errors": ({"anyOf": [{"type": "null"}] * 2_000}, "x" * 1_000_000),
    "evaluated properties": ({**ladder(20), "unevaluatedProperties": False}, {"a": 1}),
    "deep": (deep(3_000), {}),
    "wide": ({"properties": {f"p{i}": {} for i in range(60_000)}}, {}),
    "long names": ({"properties": {"k" * 1_000: {}}}, {}),
}  # fmt: skip
EXPECTED = (Validation, TooExpensive, errors.ConfigurationError)


def outcome(schema: dict[str, Any], value: Any, seconds: float) -> object:
    try:
        return run_until(monotonic() + seconds, find_problems, schema, value)
    except EXPECTED[1:] as error:
        return error


@pytest.mark.timing
@pytest.mark.parametrize("name", HOSTILE)
def test_every_validation_ends_within_its_time_limit(name: str) -> None:
    schema, value = HOSTILE[name]
    find_problems({"type": "string"}, "imports jsonschema")
    began = monotonic()
    assert isinstance(outcome(schema, value, 0.5), EXPECTED)
    assert monotonic() - began < 0.5 + 0.1 * (1 if FULL else 4)
    began = monotonic()
    with suppress(Deferred, errors.ConfigurationError):
        run_inline(find_problems, schema, value)
    assert monotonic() - began < 0.05 * 4


@pytest.mark.timing
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("dialect", ["openai", "anthropic", "gemini"])
def test_every_schema_is_compiled_in_time(name: str, dialect: str) -> None:
    schema, value = HOSTILE[name]
    around = {"type": "object", "properties": {"x": {**schema, "$defs": None}}, "$defs": schema.get("$defs", {})}
    began = monotonic()
    with suppress(errors.ConfigurationError):
        compile_schema(around, dialect).restore({"x": value})
    assert monotonic() - began < 0.5 * 4


PATTERNS = (
    "a",
    "\\w",
    ".",
    "[a-z ]",
    "(a|a)",
    "(\\w+\\s?)",
    "(a*)*",
    "(.*a){20}",
    "(?=(\\w+\\s?)*$)",
    "(\\w{1,90}){1,90}",
)


def make_schema(rng: random.Random, levels: int) -> Any:
    """A random schema in which every part is as expensive as it can be."""

    def inner() -> Any:
        return make_schema(rng, levels - 1) if levels else rng.choice(({}, True, {"type": "integer"}, {"const": 0}))

    pattern = f"^{''.join(rng.choice(PATTERNS) + rng.choice(('', '*', '+', '?')) for _ in range(3))}$"
    match rng.randrange(10):
        case 0:
            return {"pattern": pattern}
        case 1:
            return {"patternProperties": {pattern: inner()}, "additionalProperties": inner()}
        case 2:
            return {rng.choice(("allOf", "anyOf", "oneOf")): [inner()] * rng.choice((2, 30, 2_000))}
        case 3:
            return {rng.choice(("items", "contains", "not", "propertyNames")): inner(), "uniqueItems": True}
        case 4:
            return {"$ref": rng.choice(("#", "#/$defs/a0", "http://json-schema.org/draft-04/schema#"))}
        case 5:
            return {"$schema": "http://json-schema.org/draft-07/schema#", "items": inner(), "pattern": pattern}
        case 6:
            return {"enum": [{"a": [i] * rng.choice((1, 50))} for i in range(rng.choice((3, 3_000)))]}
        case 7:
            return {"properties": {name: inner() for name in "ab"}, "unevaluatedProperties": inner()}
        case 8:
            return deep(rng.choice((3, 100, 200)))
        case _:
            return {"items": inner(), "contains": inner(), "unevaluatedItems": False}


def make_value(rng: random.Random, levels: int) -> Any:
    inner = [make_value(rng, levels - 1) for _ in range(3)] if levels else [0, None, "a"]
    text = rng.choice(("a", "a b ", SENTENCE)) * rng.choice((1, 30, 20_000))
    return rng.choice(
        (text, OBJECTS, inner * rng.choice((1, 300)), {"a": inner, "b": inner[0], text[:400]: 1}, tree(40))
    )


def dump_unless_large(case: Any) -> str | None:
    """Return JSON, or None: nested repetitions may be larger than the memory."""
    pieces, size = [], 0
    for piece in json.JSONEncoder().iterencode(case):
        pieces.append(piece)
        size += len(piece)
        if size > 3_000_000:
            return None
    return "".join(pieces)


VALIDATOR = """
import json, sys
from time import monotonic
from agent import errors
from agent.schemas.validation import TooExpensive, find_problems, run_until

find_problems({"type": "string"}, "imports jsonschema")
for line in sys.stdin:
    schema, value, seconds = json.loads(line)
    print("begin", flush=True)
    try:
        run_until(monotonic() + seconds, find_problems, schema, value)
    except (TooExpensive, errors.ConfigurationError):
        pass
    print("end", flush=True)
"""


@pytest.mark.timing
def test_any_validation_ends_within_its_time_limit_as_another_process_sees_it(rng: random.Random) -> None:
    worst = 0.0
    with subprocess.Popen(
        [sys.executable, "-c", VALIDATOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in within_budget(range(examples(25, 2_000))):
            references = ladder(rng.choice((3, 30)), rng.choice(("allOf", "oneOf")))["$defs"]
            schema = {"allOf": [make_schema(rng, rng.randrange(4))], "$defs": references}
            case = dump_unless_large((schema, make_value(rng, rng.randrange(3)), 0.2))
            if case is None:
                continue
            process.stdin.write(case + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "begin\n"
            began = monotonic()
            assert process.stdout.readline() == "end\n"
            worst = max(worst, monotonic() - began)
            assert worst < 0.2 + 0.1 * 4, case[:1000]
    print(f"worst: {worst:.3f} s")


schemas: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(
        (
            True, {"type": "integer"}, {"type": "string", "pattern": "^[a-c]"}, {"enum": [1, "a", None]}, {"const": 0},
            {"$ref": "#"}, {"$ref": "#/$defs/a"}, {"minimum": 3}, {"type": ["null", "boolean"]}, {"pattern": "(?=b)"},
        )
    ),
    lambda inner: st.builds(lambda key, items: {key: items}, st.sampled_from(["anyOf", "oneOf", "allOf"]),
                            st.lists(inner, min_size=1, max_size=3))
    | st.builds(lambda key, item: {key: item}, st.sampled_from(["not", "items", "contains", "propertyNames"]), inner)
    | st.builds(lambda item, name: {"properties": {name: item}, "required": [name]}, inner, st.sampled_from("ab"))
    | st.builds(lambda item: {"patternProperties": {"^a": item}, "additionalProperties": False}, inner)
    | st.just({"uniqueItems": True}),
    max_leaves=6,
)  # fmt: skip


@given(schemas, schemas, json_values)
def test_a_validation_agrees_with_jsonschema(schema: Any, shared: Any, value: Any) -> None:
    if schema is True or "(?=" in repr(schema) or "patternProperties" in repr(schema):
        schema = {"allOf": [schema]} if FULL else {}  # these take a process each
    schema = {**schema, "$defs": {"a": shared if FULL or "(?=" not in repr(shared) else {}}}
    plain: object
    try:
        plain = {(error.json_path, error.message) for error in create_validator(schema).iter_errors(value)}
    except RecursionError:
        return
    verdict = find_problems(schema, value)
    assert {tuple(problem) for problem in verdict.problems} <= plain
    assert (verdict.best is None) == (not plain)


@given(json_values, json_values)
def test_values_have_equal_keys_if_they_are_equal_in_json_schema(one: Any, other: Any) -> None:
    assert (equality_key(one) == equality_key(other)) == create_validator({"const": one}).is_valid(other)


@pytest.mark.parametrize(
    ("value", "unique"),
    [([1, 1.0], False), ([1, True], True), ([[0], [False]], True), ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], False)],
)
def test_unique_items_are_compared_as_json(value: Any, unique: bool) -> None:
    assert (find_problems({"uniqueItems": True}, value).best is None) is unique


# The paths on which external schemas are evaluated


def make_tool(schema: dict[str, Any]) -> Tool:
    class Echo(Tool):
        @override
        def run(self, arguments: Any, context: Any) -> str:
            return "ran"

    return Echo("echo", "", {"type": "object", "properties": {"x": schema}, "$defs": schema.get("$defs", {})})


SLOW = ("backtracking that no linear matcher takes", "doubled references")


@pytest.mark.timing
@pytest.mark.parametrize("name", SLOW)
def test_arguments_that_cannot_be_validated_in_time_are_refused(name: str) -> None:
    schema, value = HOSTILE[name]
    tool = make_tool(schema)
    with pytest.raises(ArgumentsError, match="took longer than"):
        run_until(monotonic() + 0.3, tool.check, {"x": value})


@pytest.mark.timing
@pytest.mark.parametrize("name", SLOW)
def test_a_run_keeps_its_event_loop_and_tool_timeout(name: str) -> None:
    schema, value = HOSTILE[name]
    tool = make_tool(schema)
    tool.timeout = 0.5
    lag = 0.0

    async def watch() -> None:
        nonlocal lag
        while True:
            began = monotonic()
            await asyncio.sleep(0.005)
            lag = max(lag, monotonic() - began - 0.005)

    async def main() -> str:
        agent = scripted_agent(call("c1", "echo", x=value), "done")
        watching = asyncio.create_task(watch())
        result = await agent.arun("Hi", tools=[tool])
        watching.cancel()
        return str(result.messages)

    began = monotonic()
    assert "took longer than" in asyncio.run(main())
    assert monotonic() - began < 2.5
    assert lag < 0.05 * 4
