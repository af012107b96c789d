"""Signatures: schemas that all vendors accept, and calls bound from JSON."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, SecretStr
from pydantic_core import to_jsonable_python

from agent.errors import ConfigurationError
from agent.schemas import compile_schema
from agent.tools.base import ArgumentsError, ToolContext
from agent.tools.functions import tool
from agent.tools.signatures import Signature, read_signature
from agent.types import AgentRequest, freeze
from tests.support.cases import for_each
from tests.tools.signature_cases import CASES, CONTEXT, SECRET, Case, Coordinates, Place, Point

if TYPE_CHECKING:
    from decimal import Decimal

BY_NAME = {case.tool.name: case for case in CASES}
each_case = for_each("case", CASES)


def fits(schema: Any, value: Any) -> bool:
    return bool(Draft202012Validator(schema).is_valid(value))


def bound(function: Callable[..., Any], **arguments: Any) -> Any:
    return read_signature(function).bind(arguments).call(function)


def outcome(case: Case, arguments: Any) -> Any:
    result = case.tool.run(case.tool.check(arguments), CONTEXT)
    return asyncio.run(_await(result)) if inspect.isawaitable(result) else result


async def _await(value: Any) -> Any:
    return await value


def refusal(signature: Signature, arguments: Any) -> str:
    with pytest.raises(ArgumentsError) as caught:
        signature.bind(arguments)
    return str(caught.value)


def property_of(function: Callable[..., Any], name: str) -> Any:
    return read_signature(function).parameters["properties"][name]


def test_there_are_enough_cases_and_no_two_are_the_same() -> None:
    assert len(BY_NAME) == len(CASES) >= 100


# The table


@each_case
def test_the_schema_is_one_of_an_object(case: Case) -> None:
    schema = case.tool.parameters
    Draft202012Validator.check_schema(schema)
    assert schema == json.loads(json.dumps(schema, allow_nan=False))
    assert schema["type"] == "object"
    assert {"properties", "additionalProperties"} <= schema.keys()
    assert set(schema.get("required", ())) <= schema["properties"].keys()


@each_case
def test_what_fits_the_schema_becomes_the_call_that_it_means(case: Case) -> None:
    assert fits(case.tool.parameters, case.given)
    result = outcome(case, freeze(dict(case.given)))
    assert result == case.expected
    if isinstance(result, dict):
        assert {name: type(value) for name, value in result.items()} == {
            name: type(value) for name, value in case.expected.items()
        }


@each_case
def test_what_does_not_fit_is_refused_by_name_and_without_the_value(case: Case) -> None:
    with pytest.raises(ArgumentsError) as caught:
        case.tool.check(case.wrong)
    message = str(caught.value)
    assert case.blamed in [problem.partition(": ")[0] for problem in message.split("; ")]
    for leaked in (SECRET, "s3cret", "pydantic", "http", "/"):
        assert leaked not in message
    if case.schema_knows:
        assert not fits(case.tool.parameters, case.wrong), "the schema is as strict as the function"


# Schemas


def test_schemas_say_what_functions_say() -> None:
    assert read_signature(BY_NAME["google_style"].tool.function).parameters == snapshot(
        {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city's name,\nin English."},
                "days": {"type": "integer", "description": "How many days.", "default": 1},
            },
            "additionalProperties": False,
            "required": ["city"],
        }
    )
    assert BY_NAME["take_nested_models"].tool.parameters == snapshot(
        {
            "type": "object",
            "properties": {"trip": {"$ref": "#/$defs/Trip"}},
            "additionalProperties": False,
            "required": ["trip"],
            "$defs": {
                "Place": {
                    "description": "Somewhere.",
                    "properties": {
                        "name": {"type": "string"},
                        "title": {"default": "none", "type": "string"},
                        "where": {
                            "anyOf": [
                                {
                                    "maxItems": 2,
                                    "minItems": 2,
                                    "prefixItems": [{"type": "number"}, {"type": "number"}],
                                    "type": "array",
                                },
                                {"type": "null"},
                            ],
                            "default": None,
                        },
                    },
                    "required": ["name"],
                    "type": "object",
                },
                "Trip": {
                    "additionalProperties": False,
                    "properties": {
                        "stops": {"items": {"$ref": "#/$defs/Place"}, "type": "array"},
                        "by_day": {
                            "additionalProperties": {"$ref": "#/$defs/Place"},
                            "default": {},
                            "type": "object",
                        },
                    },
                    "required": ["stops"],
                    "type": "object",
                },
            },
        }
    )
    assert BY_NAME["no_parameters"].tool.parameters == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


@pytest.mark.parametrize("style", ["google", "numpy", "rest", "epydoc"])
def test_all_four_styles_of_docstrings_say_the_same(style: str) -> None:
    made = BY_NAME[f"{style}_style"].tool
    assert made.description == "Forecast the weather.\n\nIt knows cities only:\nno villages."
    described = {name: member["description"] for name, member in made.parameters["properties"].items()}
    assert described == {"city": "The city's name,\nin English.", "days": "How many days."}


def test_a_description_beside_the_parameter_goes_before_the_docstrings() -> None:
    def look(a: Annotated[str, Field(description="by field")], b: Annotated[str, "by text"], c: str) -> None:
        """Look.

        Args:
            a: by docstring
            b: by docstring
            c: by docstring
        """

    properties = read_signature(look).parameters["properties"]
    assert [properties[name]["description"] for name in "abc"] == ["by field", "by text", "by docstring"]


def test_a_reference_to_a_model_carries_the_parameters_own_description() -> None:
    assert BY_NAME["optional_model"].tool.parameters["properties"]["place"] == {
        "anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}],
        "default": None,
        "description": "Where to.",
    }


@pytest.mark.parametrize(
    ("docstring", "description"),
    [
        (None, ""),
        ("  ", ""),
        ("Just this.", "Just this."),
        ("Two\nlines.", "Two\nlines."),
        (":warning: careful\n\nIt bites.", ":warning: careful\n\nIt bites."),
        ("\n    Args:\n        city: Which.\n    ", ""),
        ("Look.\n\nArgs:\n    city: Which.\n\nNote:\n    Europe only.", "Look.\n\nNote: Europe only."),
        ("Look.\n\nArgs:\n", "Look.\n\nArgs:"),
        ("Ask bob@example.org: he knows.\n\n@everyone: hello", "Ask bob@example.org: he knows.\n\n@everyone: hello"),
        ("Look.\n\nRaises:\n    ValueError: Never.", "Look."),
    ],
)
def test_no_docstring_is_too_odd(docstring: str | None, description: str) -> None:
    def look(city: str) -> None: ...

    look.__doc__ = docstring
    assert read_signature(look).description == description


def test_parameters_that_numpydoc_describes_together_are_described_each() -> None:
    def move(x: int, y: int) -> None:
        """Move.

        Parameters
        ----------
        x, y : int
            Steps.
        """

    properties = read_signature(move).parameters["properties"]
    assert properties["x"] == properties["y"] == {"type": "integer", "description": "Steps."}


@pytest.mark.parametrize(
    ("annotation", "default", "shown"),
    [
        (int, 3, 3),
        (int | None, None, None),
        (date, date(2026, 1, 2), "2026-01-02"),
        (set[str], {"b", "a", "c"}, ["a", "b", "c"]),
        (tuple[int, int], (1, 2), [1, 2]),
        (dict[str, Any], {"a": [1]}, {"a": [1]}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_default_that_is_json_is_shown(annotation: Any, default: Any, shown: Any) -> None:
    def look(x: Any = default) -> Any:
        return x

    look.__annotations__["x"] = annotation
    assert property_of(look, "x")["default"] == shown
    assert bound(look) is default, "and the function gets its own"


@pytest.mark.parametrize(
    ("annotation", "default"),
    [
        (int, object()),
        (int, "three"),
        (float, float("inf")),
        (float, float("nan")),
        (SecretStr, SecretStr("s3cret")),
        (Any, lambda: 1),
        (Any, {1, 2}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_default_that_is_no_json_is_kept_for_the_call_alone(annotation: Any, default: Any) -> None:
    def look(x: Any = default) -> Any:
        return x

    look.__annotations__["x"] = annotation
    signature = read_signature(look)
    assert "default" not in signature.parameters["properties"]["x"]
    assert "required" not in signature.parameters
    assert bound(look) is default


def test_what_a_partial_has_filled_in_is_neither_asked_for_nor_told() -> None:
    made = BY_NAME["query"].tool
    assert made.parameters["properties"].keys() == {"sql", "limit"}
    assert "k-123" not in json.dumps(made.parameters)
    assert made.description == "Ask the database."


def test_contexts_are_not_shown() -> None:
    names = [name for name in BY_NAME if name.startswith("context")]
    assert len(names) == 5
    for name in (*names, "lookup"):
        text = json.dumps(BY_NAME[name].tool.spec.to_dict())
        assert "context" not in text.replace(name, "")


def test_names_with_stars_are_described_by_what_they_hold() -> None:
    assert BY_NAME["star"].tool.parameters["properties"]["names"] == {"items": {"type": "string"}, "type": "array"}
    assert BY_NAME["double_star"].tool.parameters["additionalProperties"] == {"type": "integer"}
    assert BY_NAME["only_double_star"].tool.parameters["additionalProperties"] is True
    assert BY_NAME["take_unpacked"].tool.parameters["additionalProperties"] is False

    def function(**others: int) -> None:
        """Do.

        Args:
            **others: Anything else.
        """

    others = read_signature(function).parameters["additionalProperties"]
    assert others == {"type": "integer", "description": "Anything else."}


def test_two_models_of_one_name_are_told_apart() -> None:
    def create_second() -> type[BaseModel]:
        class Place(BaseModel):
            height: int

        return Place

    second = create_second()

    def climb(a: Any, b: Any) -> Any:
        return a, b

    climb.__annotations__ = {"a": Place, "b": second}
    signature = read_signature(climb)
    assert len(signature.parameters["$defs"]) == 2
    assert fits(signature.parameters, {"a": {"name": "x"}, "b": {"height": 1}})
    assert not fits(signature.parameters, {"a": {"height": 1}, "b": {"height": 1}})


# Arguments as models write them


def test_numbers_and_truth_in_quotes_are_read() -> None:
    def look(n: int, x: float, dry: bool) -> Any:
        return n, x, dry

    assert bound(look, n="3", x="1.5", dry="true") == (3, 1.5, True)


def test_the_function_gets_values_of_its_own_that_it_may_change() -> None:
    def look(value: Any, items: list[Any]) -> Any:
        value["a"].append(1)
        items.append({})
        items[0]["x"] = 1
        return value, items

    arguments = freeze({"value": {"a": []}, "items": [{}]})
    assert read_signature(look).bind(arguments).call(look) == ({"a": [1]}, [{"x": 1}, {}])
    assert arguments == {"value": {"a": []}, "items": [{}]}


def test_all_that_is_wrong_is_said_at_once_and_no_more_than_a_model_can_use() -> None:
    def look(a: int, b: int, c: int | list[int]) -> None: ...

    signature = read_signature(look)
    assert refusal(signature, {"b": "x", "c": "x", "d": 1}) == snapshot(
        "a: Field required; b: Input should be a valid integer, unable to parse string as an integer; "
        "c: Input should be a valid integer, unable to parse string as an integer or Input should be a valid array; "
        "d: unknown parameter; valid parameters: a, b, c"
    )
    assert len(refusal(signature, {"x" * 10_000: 1})) < 500
    many = refusal(signature, {f"x{n}": 1 for n in range(50)})
    assert many.count(";") <= 20
    assert many.endswith("and 43 more fields")


class Vault:
    def open(self, *, context: ToolContext[Any], from_: Annotated[int, Field(alias="from")] = 0, **more: Any) -> Any:
        return self, context, from_, more


@pytest.mark.parametrize("name", ["self", "context", "from_", "key"])
def test_a_model_cannot_fill_in_what_others_do(name: str) -> None:
    vault = Vault()
    function = functools.partial(vault.open, key="preset")
    signature = read_signature(function)
    assert refusal(signature, {"more": 1, name: SECRET}) == f"{name}: unknown parameter"
    call = signature.bind({"from": 3, "more": 1, "other": 2})
    assert call.call(function, CONTEXT) == (vault, CONTEXT, 3, {"key": "preset", "more": 1, "other": 2})


def test_a_wrong_tag_is_not_repeated() -> None:
    assert refusal(BY_NAME["take_tagged_union"].tool._signature, {"pet": {"kind": SECRET}}) == (
        "pet: 'kind' should be one of 'cat', 'dog'"
    )


@pytest.mark.parametrize("depth", [150, 250, 5_000])
def test_deep_nesting_is_refused_and_never_a_crash(depth: int) -> None:
    def look(value: Any) -> Any:
        return value

    value: Any = 1
    for _ in range(depth):
        value = [value]
    if depth < 200:
        assert bound(look, value=value) == value
    else:
        assert refusal(read_signature(look), {"value": value}).startswith(("value: ", "arguments: "))


@pytest.mark.parametrize(
    "value", [object(), "\ud800", {"x": socket}, float("nan")], ids=["object", "surrogate", "module", "nan"]
)
def test_what_is_no_json_is_refused_by_name(value: Any) -> None:
    def look(fine: Any, odd: int) -> None: ...

    assert refusal(read_signature(look), {"fine": 1, "odd": value}).startswith("odd: ")


def test_a_refusal_hides_what_raised_it() -> None:
    with pytest.raises(ArgumentsError) as caught:
        BY_NAME["integer"].tool.check({"count": SECRET})
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


# Rejected functions


def test_an_annotation_that_leads_nowhere_is_found_where_the_function_is_written() -> None:
    def price(item: str, currency: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigurationError, match=r"'currency' of .*price cannot be resolved: name 'Nowhere'") as caught:
        tool(price)
    assert caught.value.field == "currency"
    assert "TYPE_CHECKING" in (caught.value.fix or "")


def test_an_import_for_the_checker_alone_is_not_enough() -> None:
    def price(amount: Decimal) -> None: ...

    with pytest.raises(ConfigurationError, match="'amount'"):
        tool(price)


def test_what_is_returned_need_not_be_resolvable() -> None:
    def price(item: str) -> Decimal: ...  # type: ignore[empty-body]

    assert tool(price).parameters["required"] == ["item"]


@pytest.mark.parametrize("kind", [socket.socket, Callable[[int], int], type[int], list[socket.socket]], ids=repr)
def test_a_type_that_json_has_no_values_for_is_found_where_the_function_is_written(kind: Any) -> None:
    def send(text: str, by: Any) -> None: ...

    send.__annotations__["by"] = kind
    with pytest.raises(ConfigurationError, match=r"'by' of .*send has no JSON schema: ") as caught:
        tool(send)
    assert caught.value.field == "by"
    assert "deps" in (caught.value.fix or "")
    assert "\n" not in str(caught.value)


def test_a_default_does_not_help_a_type_that_json_has_no_values_for() -> None:
    def send(by: socket.socket = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    with pytest.raises(ConfigurationError, match="'by'"):
        tool(send)


def test_two_parameters_cannot_be_shown_by_one_name() -> None:
    def look(a: Annotated[int, Field(alias="x")], x: int) -> None: ...

    with pytest.raises(ConfigurationError, match=r"look has several parameters named x"):
        tool(look)


def test_what_does_not_say_what_it_takes_cannot_be_a_tool() -> None:
    with pytest.raises(ConfigurationError, match="has no readable signature"):
        read_signature(type("Silent", (), {"__call__": print, "__signature__": 1})())


# Vendors


@pytest.mark.parametrize("strict", [None, True])
def test_every_vendor_takes_every_tool(strict: bool | None) -> None:
    from tests.providers import test_anthropic_oracle as anthropic
    from tests.providers import test_gemini_oracle as gemini
    from tests.providers import test_openai_chat_oracle as chat
    from tests.providers import test_openai_responses_oracle as responses

    judges: dict[str, Callable[[AgentRequest], dict[str, Any]]] = {
        "claude-sonnet-4-5": anthropic.encode_checked,
        "gemini-2.5-pro": gemini.encode_checked,
        "gpt-4o": chat.judge,
        "gpt-5": responses.judge,
    }
    specs = [case.tool.spec.model_copy(update={"strict": strict}) for case in CASES]
    for model, judge in judges.items():
        body = judge(AgentRequest(model=model, input="hi", tools=specs))
        sent = json.dumps(body["tools"])
        assert all(f'"{name}"' in sent for name in BY_NAME)


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "gemini"])
def test_an_answer_to_a_vendors_subset_of_the_schema_becomes_the_same_call(dialect: str) -> None:
    for case in CASES:
        compiled = compile_schema(case.tool.parameters, dialect)
        answer = dict(case.given)
        if dialect == "openai" and compiled.strict:  # its strict mode has the model say null for what it leaves out
            answer = dict.fromkeys(case.tool.parameters["properties"]) | answer
        assert outcome(case, compiled.restore(answer)) == case.expected


# Properties

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
SIMPLE: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers()),
    (float, st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)),
    (str, st.text(max_size=5)),
    (bool, st.booleans()),
    (None, st.none()),
    (Any, JSON),
    (list[int], st.lists(st.integers(), max_size=3)),
    (tuple[str, bool], st.tuples(st.text(max_size=3), st.booleans()).map(list)),
    (dict[str, bool], st.dictionaries(st.text(max_size=3), st.booleans(), max_size=2)),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
    (str | None, st.none() | st.text(max_size=3)),
    (Point, st.fixed_dictionaries({"x": st.integers()}, optional={"y": st.integers()})),
    (Coordinates, st.lists(st.integers(0, 9), min_size=1, max_size=2)),
    (Annotated[int, Field(ge=0, lt=10)], st.integers(0, 9)),
]
ABSENT = object()


@st.composite
def signatures_and_arguments(draw: st.DrawFn) -> tuple[inspect.Signature, dict[str, Any]]:
    parameters: list[inspect.Parameter] = []
    arguments: dict[str, Any] = {}
    defaults = False
    for number, kind in enumerate(sorted(draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=5)))):
        annotation, fitting = draw(st.sampled_from(SIMPLE))
        defaults = draw(st.booleans()) or (defaults and kind is not inspect.Parameter.KEYWORD_ONLY)
        default = ABSENT if defaults else inspect.Parameter.empty
        name = f"{KINDS[kind]}{number}"
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))
        if not defaults or draw(st.booleans()):
            arguments[name] = draw(fitting if draw(st.integers(0, 3)) else JSON)
    return inspect.Signature(parameters), arguments


KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "only",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "_both",
    inspect.Parameter.KEYWORD_ONLY: "copy",
}


@settings(max_examples=150)
@given(signatures_and_arguments())
def test_what_fits_the_schema_is_called_and_what_is_called_fits_the_schema(
    case: tuple[inspect.Signature, dict[str, Any]],
) -> None:
    signature, arguments = case

    def function(*args: Any, **kwargs: Any) -> dict[str, Any]:
        got = signature.bind(*args, **kwargs)
        return {name: value for name, value in got.arguments.items() if value is not ABSENT}

    function.__signature__ = signature  # type: ignore[attr-defined]
    read = read_signature(function)
    if fits(read.parameters, arguments):
        read.bind(arguments)
    with suppress(ArgumentsError):
        got = read.bind(arguments).call(function)
        assert got.keys() == arguments.keys()
        assert fits(read.parameters, to_jsonable_python(got)), "a converted value matches the schema"
