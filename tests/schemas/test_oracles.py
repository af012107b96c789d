"""The official SDKs convert schemas, too. Where they do it well, we do the same."""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from typing import Annotated, Any, Literal

import anthropic
import jsonschema
import pytest
from google.genai import types as gemini_types
from openai.lib._pydantic import to_strict_json_schema
from pydantic import BaseModel, Field, TypeAdapter

from agent.schemas import compile_schema


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    """Where someone lives."""

    street: str
    number: int | None
    since: date


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


class Person(BaseModel):
    name: str = Field(description="The whole name")
    home: Address
    other_homes: list[Address]
    favourite: Colour
    pet: Cat | Dog | None
    ratio: float
    nested: list[list[int]]


class Described(BaseModel):
    home: Address = Field(description="Where to write to")
    born: Annotated[date, Field(description="ISO date")]


class Node(BaseModel):
    value: int
    children: list[Node]


class Linked(BaseModel):
    next: Linked | None
    label: str


class Bounded(BaseModel):
    age: Annotated[int, Field(ge=0, le=150)]
    code: Annotated[str, Field(pattern="^[A-Z]{3}$")]
    few: Annotated[list[int], Field(min_length=1, max_length=3)]


MODELS = [Address, Person, Described, Node, Linked, Bounded]


def plain(schema: Any, *, drop: tuple[str, ...] = ()) -> Any:
    """Without what changes no meaning: unused definitions, labels, and the type of what is listed."""
    if isinstance(schema, list):
        return [plain(item, drop=drop) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: plain(value, drop=drop) for key, value in schema.items() if key not in ("title", *drop)}
    if "enum" in kept or "const" in kept:
        kept.pop("type", None)
    return kept


def used(schema: dict[str, Any]) -> dict[str, Any]:
    text = str({key: value for key, value in schema.items() if key != "$defs"})
    definitions = schema.get("$defs", {})
    kept = {name for name in definitions if f"#/$defs/{name}'" in text + str(definitions)}
    return {**schema, "$defs": {name: definitions[name] for name in definitions if name in kept}}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_models_become_what_the_openai_sdk_sends(model: type[BaseModel]) -> None:
    compiled = compile_schema(model.model_json_schema(), "openai")
    assert compiled.strict
    assert compiled.lost == ()
    theirs = to_strict_json_schema(model)
    if "$ref" in theirs:  # the API wants an object at the top, not a reference to one
        theirs = {**theirs["$defs"][theirs["$ref"].rsplit("/", 1)[1]], "$defs": theirs["$defs"]}
    assert used(plain(compiled.schema)) == used(plain(theirs))


@pytest.mark.parametrize("model", [Address, Person, Described, Bounded], ids=lambda model: model.__name__)
def test_models_become_what_the_anthropic_sdk_sends(model: type[BaseModel]) -> None:
    compiled = compile_schema(model.model_json_schema(), "anthropic")
    assert compiled.strict
    theirs = anthropic.transform_schema(model)
    for name in ("home",) if model is Described else ():  # they leave out what is said beside a reference
        theirs["properties"][name] = theirs["$defs"]["Address"]
    assert used(plain(compiled.schema, drop=("description",))) == used(plain(theirs, drop=("description",)))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_the_anthropic_sdk_leaves_our_schemas_as_they_are(model: type[BaseModel]) -> None:
    compiled = compile_schema(model.model_json_schema(), "anthropic")
    again = anthropic.transform_schema(compiled.schema.copy())
    assert plain(again) == plain(compiled.schema)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_the_google_sdk_reads_our_schemas(model: type[BaseModel]) -> None:
    compiled = compile_schema(model.model_json_schema(), "gemini")
    sent = without_ordering(compiled.schema)
    read = gemini_types.Schema.from_json_schema(
        json_schema=gemini_types.JSONSchema.model_validate(sent), raise_error_on_unsupported_field=True
    )
    assert names(read.model_dump(exclude_none=True)) == names(sent)
    gemini_types.Schema.model_validate(compiled.schema)


def without_ordering(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_ordering(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: without_ordering(value) for key, value in schema.items() if key != "propertyOrdering"}


def names(schema: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """The paths of all properties; a union and a list add no step."""
    if not isinstance(schema, dict):
        return set()
    found = {path}
    for name, inner in (schema.get("properties") or {}).items():
        found |= names(inner, (*path, name))
    for inner in (schema.get("items"), *(schema.get("anyOf") or schema.get("any_of") or ())):
        found |= names(inner, path)
    return found


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "gemini"])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Person, Person(
            name="Ada",
            home=Address(street="High", number=None, since=date(1840, 1, 1)),
            other_homes=[],
            favourite=Colour.RED,
            pet=Dog(kind="dog", tricks=["sit"]),
            ratio=1.5,
            nested=[[1], []],
        )),
        (Node, Node(value=1, children=[Node(value=2, children=[])])),
        (Linked, Linked(label="a", next=Linked(label="b", next=None))),
        (list[Cat | Dog], [Cat(kind="cat", lives=9)]),
        (Literal["a", "b"], "b"),
        (int | None, None),
        (Colour, Colour.BLUE),
    ],
    ids=str,
)  # fmt: skip
def test_a_value_fits_what_its_type_is_compiled_to(dialect: str, kind: Any, value: Any) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    compiled = compile_schema(adapter.json_schema(), dialect)
    assert compiled.strict
    written = adapter.dump_python(value, mode="json")
    if compiled.schema.get("properties", {}).keys() == {"value"}:
        written = {"value": written}
    jsonschema.validate(written, compiled.schema)
    assert adapter.validate_python(compiled.restore(written)) == value
