"""Functions with a valid call, its result, and an invalid call."""

from __future__ import annotations

import enum
import functools
import ipaddress
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, Optional, TypeVar, Union, Unpack
from uuid import UUID

from annotated_types import Ge, Len
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, HttpUrl, Json, conint, constr
from typing_extensions import Doc, TypeAliasType, TypedDict

from agent.tools.base import ToolContext
from agent.tools.functions import FunctionTool, tool

SECRET = "s3cret-value"
"""An invalid value that no message may repeat."""


@dataclass(frozen=True)
class Case:
    tool: FunctionTool[..., Any]
    given: Mapping[str, Any]
    expected: Any
    """The return value; by default the argument."""
    wrong: Mapping[str, Any]
    blamed: str
    """The field that the refusal names."""
    schema_knows: bool
    """Whether the schema alone forbids the wrong call."""


CASES: list[Case] = []


def case(
    given: Mapping[str, Any], expected: Any, wrong: Mapping[str, Any], blamed: str, *, schema_knows: bool = True
) -> Callable[[Callable[..., Any]], FunctionTool[..., Any]]:
    def add(function: Callable[..., Any]) -> FunctionTool[..., Any]:
        made = tool(function)
        CASES.append(Case(made, given, expected, wrong, blamed, schema_knows))
        return made

    return add


# Plain values


@case({}, {}, {"city": SECRET}, "city")
def no_parameters() -> Any:
    """Nothing to say."""
    return locals()


@case({"city": "Oslo"}, {"city": "Oslo"}, {}, "city")
def text(city: str) -> Any:
    return locals()


@case({"count": 3}, {"count": 3}, {"count": SECRET}, "count")
def integer(count: int) -> Any:
    return locals()


@case({"count": 2**70}, {"count": 2**70}, {"count": 3.5}, "count")
def large_integer(count: int) -> Any:
    return locals()


@case({"ratio": 1}, {"ratio": 1.0}, {"ratio": SECRET}, "ratio")
def number(ratio: float) -> Any:
    return locals()


@case({"dry": True}, {"dry": True}, {"dry": SECRET}, "dry")
def boolean(dry: bool) -> Any:
    return locals()


@case({"nothing": None}, {"nothing": None}, {"nothing": SECRET}, "nothing")
def null(nothing: None) -> Any:
    return locals()


@case({"value": {"a": [1, None]}}, {"value": {"a": [1, None]}}, {}, "value")
def take_anything(value: Any) -> Any:
    return locals()


@case({"value": [1]}, {"value": [1]}, {}, "value")
def take_unannotated(value):  # type: ignore[no-untyped-def]
    return locals()


@case({"data": "aGk+"}, {"data": b"hi>"}, {"data": "s3cret-value!"}, "data", schema_knows=False)
def binary(data: bytes) -> Any:
    return locals()


# Several, optional, defaults


@case({"a": 1}, {"a": 1, "b": 2}, {"a": 1, "b": SECRET}, "b")
def default(a: int, b: int = 2) -> Any:
    return locals()


@case({}, {"limit": None}, {"limit": SECRET}, "limit")
def optional(limit: int | None = None) -> Any:
    return locals()


@case({"limit": None}, {"limit": None}, {}, "limit")
def optional_but_required(limit: Optional[int]) -> Any:  # noqa: UP045
    return locals()


@case({"limit": None}, {"limit": None}, {"limit": SECRET}, "limit")
def take_none_by_default_only(limit: int = None) -> Any:  # type: ignore[assignment]  # noqa: RUF013
    return locals()


@case({"limit": None}, {"limit": None}, {"limit": 0}, "limit")
def take_limited_and_none_by_default(limit: Annotated[int, Field(ge=1)] = None) -> Any:  # type: ignore[assignment]  # noqa: RUF013
    return locals()


NOT_GIVEN: Any = object()


@case({}, {"x": True}, {"x": SECRET}, "x")
def sentinel_default(x: int = NOT_GIVEN) -> Any:
    return {"x": x is NOT_GIVEN}


@case({"tags": ["x"]}, {"tags": ["x"]}, {"tags": [SECRET, 1]}, "tags.1")
def list_default(tags: list[str] = ["a", "b"]) -> Any:  # noqa: B006
    return locals()


@case({}, {"n": 5}, {"n": 0}, "n")
def pydantic_default(n: int = Field(default=5, ge=1, description="How many.")) -> Any:
    return locals()


@case({"n": 7}, {"n": 7}, {}, "n")
def pydantic_required(n: int = Field(description="How many.")) -> Any:
    return locals()


@case({}, {"n": 5}, {"n": SECRET}, "n")
def take_annotated_default(n: Annotated[int, Field(default=5)]) -> Any:
    return locals()


# Unions, literals, enums


@case({"value": 1.5}, {"value": 1.5}, {"value": {SECRET: 1}}, "value")
def union(value: int | float | str) -> Any:
    return locals()


@case({"value": [1]}, {"value": [1]}, {"value": [SECRET]}, "value.0")
def old_union(value: Union[int, list[int]]) -> Any:  # noqa: UP007
    return locals()


@case({"unit": "C"}, {"unit": "C"}, {"unit": SECRET}, "unit")
def literal(unit: Literal["C", "F"] = "F") -> Any:
    return locals()


@case({"value": 2}, {"value": 2}, {"value": SECRET}, "value")
def take_mixed_literal(value: Literal[1, 2, "auto", None] = "auto") -> Any:
    return locals()


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Permission(enum.StrEnum):
    READ = "r"
    WRITE = "w"


@case({"colour": "red"}, {"colour": Colour.RED}, {"colour": SECRET}, "colour")
def enumeration(colour: Colour = Colour.BLUE) -> Any:
    return locals()


@case({"level": 2}, {"level": Level.HIGH}, {"level": 9}, "level")
def integer_enumeration(level: Level) -> Any:
    return locals()


@case({"wanted": ["r"]}, {"wanted": {Permission.READ}}, {"wanted": [SECRET]}, "wanted.0")
def set_of_enumeration(wanted: set[Permission] = {Permission.READ, Permission.WRITE}) -> Any:  # noqa: B006
    return locals()


# Types that JSON writes as text


@case({"day": "2026-11-16"}, {"day": date(2026, 11, 16)}, {"day": SECRET}, "day", schema_knows=False)
def day(day: date) -> Any:
    return locals()


@case(
    {"at": "2026-11-16T12:00:00Z"},
    {"at": datetime(2026, 11, 16, 12, tzinfo=timezone.utc)},  # noqa: UP017
    {"at": "2026-11-16T12:00:00"},
    "at",
    schema_knows=False,
)
def moment(at: AwareDatetime) -> Any:
    return locals()


@case(
    {"at": "12:30", "after": "PT90S"},
    {"at": time(12, 30), "after": timedelta(seconds=90)},
    {"at": "12:30", "after": SECRET},
    "after",
    schema_knows=False,
)
def clock(at: time, after: timedelta) -> Any:
    return locals()


ID = "12345678-1234-5678-1234-567812345678"


@case({"id": ID}, {"id": UUID(ID)}, {"id": SECRET}, "id", schema_knows=False)
def unique_id(id: UUID) -> Any:
    return locals()


@case({"price": "1.10"}, {"price": Decimal("1.10")}, {"price": SECRET}, "price", schema_knows=False)
def money(price: Decimal) -> Any:
    return locals()


@case({"file": "a/b"}, {"file": Path("a/b")}, {"file": 1}, "file")
def path(file: Path, base: PurePosixPath = PurePosixPath("x")) -> Any:  # noqa: B008
    return {"file": file}


@case({"url": "http://a.example/x"}, {"url": "a.example"}, {"url": SECRET}, "url", schema_knows=False)
def address(url: HttpUrl) -> Any:
    return {"url": url.host}


@case(
    {"host": "127.0.0.1"},
    {"host": ipaddress.IPv4Address("127.0.0.1")},
    {"host": SECRET},
    "host",
    schema_knows=False,
)
def host(host: ipaddress.IPv4Address) -> Any:
    return locals()


@case({"value": '{"a": 1}'}, {"value": {"a": 1}}, {"value": SECRET}, "value", schema_knows=False)
def json_in_text(value: Json[dict[str, int]]) -> Any:
    return locals()


# Collections


@case({"items": [1, 2]}, {"items": [1, 2]}, {"items": [1, SECRET]}, "items.1")
def many(items: list[int]) -> Any:
    return locals()


@case({"items": ["a"]}, {"items": ["a"]}, {"items": SECRET}, "items")
def sequence(items: Sequence[str]) -> Any:
    return locals()


@case({"items": [1]}, {"items": [1], "more": None}, {"items": SECRET, "more": [SECRET]}, "more.0")
def iterable(items: Iterable[int], more: Annotated[Iterable[int] | None, "More."] = None) -> Any:
    return locals()


@case({"point": [1, 2.5]}, {"point": (1, 2.5)}, {"point": [1]}, "point.1")
def pair(point: tuple[int, float]) -> Any:
    return locals()


@case({"items": [1, 2, 3]}, {"items": (1, 2, 3)}, {"items": [SECRET]}, "items.0")
def take_any_tuple(items: tuple[int, ...]) -> Any:
    return locals()


@case({"items": [2, 1]}, {"items": {1, 2}}, {"items": [SECRET]}, "items.0")
def unique(items: set[int]) -> Any:
    return locals()


@case({"items": [1]}, {"items": frozenset({1})}, {"items": 1}, "items")
def take_frozen(items: frozenset[int]) -> Any:
    return locals()


@case({"items": [1]}, {"items": deque([1])}, {"items": SECRET}, "items")
def queue(items: deque[int]) -> Any:
    return locals()


@case({"scores": {"a": 1}}, {"scores": {"a": 1}}, {"scores": {"a": SECRET}}, "scores.a")
def mapping(scores: dict[str, int]) -> Any:
    return locals()


@case({"names": {"1": "a"}}, {"names": {1: "a"}}, {"names": {"x": "a"}}, "names.x", schema_knows=False)
def integer_keys(names: Mapping[int, str]) -> Any:
    return {"names": dict(names)}


@case({"scores": {"a": [1]}}, {"scores": OrderedDict(a=[1])}, {"scores": {"a": [SECRET]}}, "scores.a.0")
def take_nested_collections(scores: OrderedDict[str, list[int]]) -> Any:
    return locals()


# Constraints and descriptions


@case({"n": 1}, {"n": 1}, {"n": 0}, "n")
def at_least(n: Annotated[int, Field(ge=1, le=9, description="From one to nine.")]) -> Any:
    return locals()


@case({"city": "Rome"}, {"city": "Rome"}, {"city": 5}, "city")
def take_described_by_text(city: Annotated[str, "The name of a city."]) -> Any:
    return locals()


@case({"city": "Rome"}, {"city": "Rome"}, {"city": 5}, "city")
def take_described_by_doc(city: Annotated[str, Doc("The name of a city.")]) -> Any:
    return locals()


@case({"n": 3, "names": ["a"]}, {"n": 3, "names": ["a"]}, {"n": 3, "names": []}, "names")
def take_annotated_types(n: Annotated[int, Ge(3)], names: Annotated[list[str], Len(1, 2)]) -> Any:
    return locals()


@case({"code": "ab", "n": 4}, {"code": "ab", "n": 4}, {"code": "s3", "n": 4}, "code")
def take_constrained(code: constr(pattern="^[a-z]+$"), n: conint(multiple_of=2)) -> Any:  # type: ignore[valid-type]
    return locals()


def _even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


@case({"n": 2}, {"n": 2}, {"n": 3}, "n", schema_knows=False)
def take_checked_by_own_code(n: Annotated[int, AfterValidator(_even)]) -> Any:
    return locals()


@case({"from": "a"}, {"from_": "a"}, {"from_": SECRET}, "from_")
def take_renamed(from_: Annotated[str, Field(alias="from")]) -> Any:
    return locals()


# Names that mean something elsewhere


@case(
    {"schema": 1, "copy": 2, "json": 3, "model_config": 4, "_private": 5, "self": 6, "dict": 7},
    {"schema": 1, "copy": 2, "json": 3, "model_config": 4, "_private": 5, "self": 6, "dict": 7},
    {"schema": 1, "copy": 2, "json": 3, "model_config": SECRET, "_private": 5, "self": 6, "dict": 7},
    "model_config",
)
def odd_names(schema: int, copy: int, json: int, model_config: int, _private: int, self: int, dict: int) -> Any:
    return locals()


@case({"p0": 1, "p1": 2, "arguments": 3}, {"p1": 2, "p0": 1, "arguments": 3}, {"p0": SECRET}, "p0")
def our_own_names(p1: int, p0: int, arguments: int) -> Any:
    return locals()


# Models


class Place(BaseModel):
    """Somewhere."""

    name: str
    title: str = "none"
    where: tuple[float, float] | None = None


class Trip(BaseModel):
    model_config = ConfigDict(extra="forbid")

    stops: list[Place]
    by_day: dict[str, Place] = {}


class StrictEvent(BaseModel):
    model_config = ConfigDict(strict=True)

    day: date
    id: UUID


class Aliased(BaseModel):
    from_: str = Field(alias="from")


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Odd(BaseModel):
    x: int = Field(default_factory=int)
    y: Any = NOT_GIVEN


T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    items: list[T]
    number: int = 1


@case({"place": {"name": "Oslo"}}, {"place": Place(name="Oslo")}, {"place": {"title": SECRET}}, "place.name")
def model(place: Place) -> Any:
    return locals()


@case(
    {"trip": {"stops": [{"name": "a"}], "by_day": {"mon": {"name": "b", "where": [1, 2]}}}},
    {"trip": Trip(stops=[Place(name="a")], by_day={"mon": Place(name="b", where=(1, 2))})},
    {"trip": {"stops": [{"name": 1}]}},
    "trip.stops.0.name",
)
def take_nested_models(trip: Trip) -> Any:
    """Plan a trip."""
    return locals()


@case({"place": {"name": "x"}}, {"place": Place(name="x")}, {"place": SECRET}, "place")
def optional_model(place: Place | None = None) -> Any:
    """Go.

    Args:
        place: Where to.
    """
    return locals()


@case(
    {"event": {"day": "2026-01-02", "id": ID}},
    {"event": StrictEvent(day=date(2026, 1, 2), id=UUID(ID))},
    {"event": {"day": SECRET, "id": ID}},
    "event.day",
    schema_knows=False,
)
def strict_model(event: StrictEvent) -> Any:
    return locals()


@case({"value": {"from": "a"}}, {"value": "a"}, {"value": {"from_": SECRET}}, "value.from")
def take_aliased_model(value: Aliased) -> Any:
    return {"value": value.from_}


@case(
    {"tree": {"value": 1, "children": [{"value": 2}]}},
    {"tree": Tree(value=1, children=[Tree(value=2)])},
    {"tree": {"value": 1, "children": [{"value": 2, "children": [{"value": SECRET}]}]}},
    "tree.children.0.children.0.value",
)
def recursive(tree: Tree) -> Any:
    return locals()


@case(
    {"pet": {"kind": "dog", "name": "Rex"}},
    {"pet": Dog(kind="dog", name="Rex")},
    {"pet": {"kind": SECRET}},
    "pet",
)
def take_tagged_union(pet: Annotated[Cat | Dog, Field(discriminator="kind")]) -> Any:
    return locals()


@case({"pets": [{"kind": "cat", "lives": 9}]}, {"pets": [Cat(kind="cat", lives=9)]}, {"pets": [{}]}, "pets.0.kind")
def take_untagged_union(pets: list[Cat | Dog]) -> Any:
    return locals()


@case(
    {"page": {"items": [{"name": "a"}]}},
    {"page": Page[Place](items=[Place(name="a")])},
    {"page": {"items": [1]}},
    "page.items.0",
)
def generic_model(page: Page[Place]) -> Any:
    return locals()


@case({"odd": {}}, {"odd": True}, {"odd": {"x": SECRET}}, "odd.x")
def model_with_odd_defaults(odd: Odd) -> Any:
    return {"odd": odd.y is NOT_GIVEN}


# Other kinds of records


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Node:
    value: int
    next: Node | None = None
    blob: bytes = b""
    tags: list[str] = field(default_factory=list)


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Options(TypedDict, total=False):
    depth: Annotated[int, Field(ge=1)]
    follow: bool


class Coordinates(NamedTuple):
    lat: float
    lon: float = 0.0


UserId = NewType("UserId", int)
JsonValue = TypeAliasType("JsonValue", "dict[str, JsonValue] | list[JsonValue] | str | int | None")


@case({"point": {"x": 1}}, {"point": Point(1)}, {"point": {"x": SECRET}}, "point.x")
def record(point: Point) -> Any:
    return locals()


@case(
    {"node": {"value": 1, "next": {"value": 2, "blob": "aGk="}}},
    {"node": Node(1, Node(2, blob=b"hi"))},
    {"node": {"value": 1, "next": {"value": SECRET}}},
    "node.next.value",
)
def recursive_record(node: Node) -> Any:
    return locals()


@case({"movie": {"title": "M"}}, {"movie": {"title": "M"}}, {"movie": {"year": 1931}}, "movie.title")
def take_typed_dict(movie: Movie) -> Any:
    return locals()


@case({"at": [1.5]}, {"at": Coordinates(1.5)}, {"at": [SECRET]}, "at.0")
def take_named_tuple(at: Coordinates) -> Any:
    return locals()


@case({"user": 7}, {"user": 7}, {"user": SECRET}, "user")
def new_type(user: UserId) -> Any:
    return locals()


@case({"value": {"a": [None, "x"]}}, {"value": {"a": [None, "x"]}}, {"value": 1.5}, "value")
def recursive_alias(value: JsonValue) -> Any:
    return locals()


@case({"items": [1, "a"]}, {"items": [1, "a"]}, {"items": SECRET}, "items")
def generic_function(items: list[T]) -> list[T]:
    return locals()  # type: ignore[return-value]


# Kinds of parameters


@case({"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": SECRET, "b": 2}, "a")
def positional_only(a: int, b: int = 5, /) -> Any:
    return locals()


@case({"b": 2}, {"a": 5, "b": 2, "c": 7}, {"b": SECRET}, "b")
def positional_only_with_a_gap(a: int = 5, b: int = 6, /, c: int = 7) -> Any:
    return locals()


@case({"b": 2}, {"a": 1, "b": 2}, {"a": 1}, "b")
def keyword_only(*, a: int = 1, b: int) -> Any:
    return locals()


@case({"names": ["x", "y"]}, {"a": 1, "names": ("x", "y")}, {"names": ["x", 1]}, "names.1")
def star(a: int = 1, *names: str) -> Any:
    return locals()


@case({"a": 2}, {"a": 2, "rest": (), "b": 3}, {"a": 2, "rest": SECRET}, "rest")
def star_without_any(a: int, *rest: Any, b: int = 3) -> Any:
    return locals()


@case({"a": 1, "x": 2, "others": 3}, {"a": 1, "others": {"x": 2, "others": 3}}, {"a": 1, "x": SECRET}, "x")
def double_star(a: int, **others: int) -> Any:
    return locals()


@case({"q": 1, "z": [2]}, {"kwargs": {"q": 1, "z": [2]}}, {"q": {1, 2}, "z": object()}, "z", schema_knows=False)
def only_double_star(**kwargs: Any) -> Any:
    return locals()


@case({"a": 1, "depth": 2}, {"a": 1, "options": {"depth": 2}}, {"a": 1, "depth": 0}, "depth")
def take_unpacked(a: int, **options: Unpack[Options]) -> Any:
    return locals()


@case({"title": "M"}, {"movie": {"title": "M"}}, {"year": 1931}, "title")
def take_unpacked_and_required(**movie: Unpack[Movie]) -> Any:
    return locals()


@case(
    {"a": 1, "b": 2, "rest": [3], "c": 4, "d": 5},
    {"a": 1, "b": 2, "rest": (3,), "c": 4, "others": {"d": 5}},
    {"a": 1, "b": 2, "c": 4, "d": SECRET},
    "d",
)
def every_kind(a: int, /, b: int, *rest: int, c: int, **others: int) -> Any:
    return locals()


# Docstrings


@case({"city": "a", "days": 2}, {"city": "a", "days": 2}, {"city": "a", "days": SECRET}, "days")
def google_style(city: str, days: int = 1) -> Any:
    """Forecast the weather.

    It knows cities only:
    no villages.

    Args:
        city (str): The city's name,
            in English.
        days: How many days.

    Returns:
        The forecast.
    """
    return locals()


@case({"city": "a", "days": 2}, {"city": "a", "days": 2}, {"city": "a", "days": SECRET}, "days")
def numpy_style(city: str, days: int = 1) -> Any:
    """Forecast the weather.

    It knows cities only:
    no villages.

    Parameters
    ----------
    city : str
        The city's name,
        in English.
    days : int, optional
        How many days.

    Returns
    -------
    str
        The forecast.
    """
    return locals()


@case({"city": "a", "days": 2}, {"city": "a", "days": 2}, {"city": "a", "days": SECRET}, "days")
def rest_style(city: str, days: int = 1) -> Any:
    """Forecast the weather.

    It knows cities only:
    no villages.

    :param str city: The city's name,
        in English.
    :param days: How many days.
    :returns: The forecast.
    """
    return locals()


@case({"city": "a", "days": 2}, {"city": "a", "days": 2}, {"city": "a", "days": SECRET}, "days")
def epydoc_style(city: str, days: int = 1) -> Any:
    """Forecast the weather.

    It knows cities only:
    no villages.

    @param city: The city's name,
        in English.
    @param days: How many days.
    @return: The forecast.
    """
    return locals()


# Context


@dataclass
class Deps:
    url: str


CONTEXT: ToolContext[Any] = ToolContext(deps=Deps("db"), call_id="c1")


@case({"q": "x"}, {"q": "x", "context": CONTEXT}, {"q": "x", "context": SECRET}, "context")
def context_last(q: str, context: ToolContext) -> Any:
    return locals()


@case({"q": "x"}, {"context": CONTEXT, "q": "x"}, {"q": 1}, "q")
def context_first(context: ToolContext[Deps], /, q: str) -> Any:
    return locals()


@case({}, {"context": CONTEXT}, {"q": SECRET}, "q")
def context_or_none(*, context: ToolContext[Deps] | None = None) -> Any:
    return locals()


Running = TypeAliasType("Running", ToolContext[Deps])


@case({}, {"context": CONTEXT}, {"q": SECRET}, "q")
def context_by_another_name(context: Running) -> Any:
    return locals()


@case({}, {"context": CONTEXT}, {"q": SECRET}, "q")
def context_among_notes(context: Annotated[Optional[ToolContext[Deps]], "not shown"] = None) -> Any:  # noqa: UP045
    """Do.

    Args:
        context: Not shown.
    """
    return locals()


# Callables that are no plain functions


class Weather:
    def __init__(self, unit: str) -> None:
        self.unit = unit

    @tool
    def lookup(self, city: str, context: ToolContext[Deps]) -> Any:
        """Look up a city."""
        return {"unit": self.unit, "city": city, "url": context.deps.url}

    async def alookup(self, city: str) -> Any:
        return {"unit": self.unit, "city": city}

    @tool
    @classmethod
    def units(cls, count: int) -> Any:
        return {"class": cls.__name__, "count": count}

    @staticmethod
    @tool
    def convert(degrees: float) -> Any:
        return {"degrees": degrees}

    def __call__(self, city: str) -> Any:
        """Look up a city, too."""
        return {"unit": self.unit, "city": city}


def _convert_case(function: FunctionTool[..., Any], given: Any, expected: Any, wrong: Any, blamed: str) -> None:
    CASES.append(Case(function, given, expected, wrong, blamed, schema_knows=True))


_convert_case(
    Weather("C").lookup, {"city": "a"}, {"unit": "C", "city": "a", "url": "db"}, {"city": "a", "self": SECRET}, "self"
)
_convert_case(tool(Weather("F").alookup), {"city": "a"}, {"unit": "F", "city": "a"}, {"city": 1}, "city")
_convert_case(Weather.units, {"count": 1}, {"class": "Weather", "count": 1}, {"count": SECRET}, "count")
_convert_case(Weather.convert, {"degrees": 1}, {"degrees": 1.0}, {"degrees": SECRET}, "degrees")
_convert_case(tool(Weather("K")), {"city": "a"}, {"unit": "K", "city": "a"}, {"city": 1}, "city")


def query(sql: str, *, key: str, limit: int = 10) -> Any:
    """Ask the database.

    Args:
        sql: The question.
        key: The caller.
    """
    return locals()


_convert_case(
    tool(functools.partial(query, key="k-123")),
    {"sql": "x"},
    {"sql": "x", "key": "k-123", "limit": 10},
    {"sql": "x", "key": SECRET},
    "key",
)
_convert_case(
    tool(functools.partial(functools.partial(query, "x"), limit=3), name="partial_of_partial"),
    {"key": "k"},
    {"sql": "x", "key": "k", "limit": 3},
    {},
    "key",
)
_nameless: Callable[..., Any] = lambda a, b=2: {"a": a, "b": b}  # noqa: E731
_convert_case(tool(_nameless, name="lambda"), {"a": [1]}, {"a": [1], "b": 2}, {}, "a")


@case({"n": 2}, {"n": 2}, {"n": SECRET}, "n")
async def asynchronous(n: int) -> Any:
    return locals()


def twice(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return [function(*args, **kwargs)] * 2

    return wrapper


@case({"n": 2}, [{"n": 2, "m": 1}] * 2, {"n": SECRET}, "n")
@twice
def take_wrapped(n: int, m: int = 1) -> Any:
    """Twice."""
    return locals()


def _local() -> FunctionTool[..., Any]:
    class Local(BaseModel):
        n: int

    @case({"value": {"n": 1}}, {"n": 1}, {"value": {"n": SECRET}}, "value.n")
    def take_annotated_with_a_local_class(value: Local | None = None) -> Any:
        return {"n": value.n if value else None}

    return take_annotated_with_a_local_class


_local()
