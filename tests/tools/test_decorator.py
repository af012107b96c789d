"""The `@tool` decorator and `as_tool`."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from agent import Agent
from agent.errors import ConfigurationError
from agent.tools.base import AgentTool, ArgumentsError, Tool, ToolContext
from agent.tools.functions import FunctionTool, as_tool, tool
from agent.types import AgentRequest, ToolSpec
from tests.tools import signature_cases as cases


def run(made: Tool, context: ToolContext[Any] | None = None, **arguments: Any) -> Any:
    return made.run(made.check(arguments), context or ToolContext())


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


# Decorating


@pytest.mark.parametrize(
    "made", [tool(add), tool()(add), tool(name="add")(add), tool(add, name="add")], ids=["bare", "()", "named", "call"]
)
def test_all_ways_to_write_it_make_the_same_tool(made: FunctionTool[[int, int], int]) -> None:
    assert made == tool(add)
    assert (made.name, made.description) == ("add", "Add two numbers.")
    assert run(made, a=2) == 3


def test_a_decorated_function_is_still_that_function() -> None:
    made = tool(add)
    assert made(1, b=2) == 3
    assert inspect.signature(made) == inspect.signature(add)
    assert (made.__name__, made.__doc__, made.__wrapped__) == ("add", add.__doc__, add)  # type: ignore[attr-defined]
    assert repr(made) == "FunctionTool('add')"


def test_what_is_said_about_a_tool_is_kept() -> None:
    made = tool(
        add,
        name="sum",
        description="Sums.",
        timeout=2.5,
        retries=3,
        risk="read",
        idempotent=True,
        isolation="process",
        sequential=True,
        strict=True,
    )
    assert (made.name, made.description, made.timeout, made.retries) == ("sum", "Sums.", 2.5, 3)
    assert (made.risk, made.idempotent, made.isolation, made.sequential) == ("read", True, "process", True)
    assert made.spec == ToolSpec(
        name="sum", description="Sums.", parameters=made.parameters, strict=True, function=made, is_async=False
    )
    assert tool(made, timeout=9).timeout == 9
    assert tool(made, timeout=9).name == "sum"
    assert tool(made) is made


@pytest.mark.parametrize(
    ("settings", "field", "message"),
    [
        ({"risk": "reading"}, "risk", "Use one of read, write, network, exec."),
        ({"isolation": "container"}, "isolation", "Use one of thread, process."),
        ({"timeout": 0}, "timeout", "more than 0"),
        ({"timeout": float("nan")}, "timeout", "more than 0"),
        ({"retries": -1}, "retries", "0 or more"),
        ({"name": "my tool"}, "name", "letters, digits"),
        ({"name": "x" * 129}, "name", "at most 128"),
        ({"description": 5}, "description", "valid string"),
    ],
)
def test_a_setting_that_means_nothing_is_found_where_the_tool_is_written(
    settings: Any, field: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        tool(add, **settings)
    assert caught.value.field == field


def test_a_function_without_a_usable_name_needs_one() -> None:
    with pytest.raises(ConfigurationError, match=r"'<lambda>' is not a valid tool name.*@tool\(name="):
        tool(lambda: None)

    def größe() -> None: ...

    with pytest.raises(ConfigurationError, match="'größe'"):
        tool(größe)
    assert tool(größe, name="size").name == "size"


@dataclass
class Dice(Tool):
    name: str = "dice"


@pytest.mark.parametrize(
    ("given", "fix"),
    [(Dice, r"Create an instance: Dice\(\)"), (dict, "Write a function"), (5, "Pass a function"), ("x", "Pass")],
)
def test_what_is_no_function_cannot_be_decorated(given: Any, fix: str) -> None:
    with pytest.raises(ConfigurationError, match=fix):
        tool(given)


def test_a_builtin_can_be_a_tool() -> None:
    made = tool(math.sqrt)
    assert made.parameters["required"] == ["x"]
    assert run(made, x=9) == 3.0


# Running


def test_the_context_is_filled_in_for_the_run_and_absent_from_plain_calls() -> None:
    @tool
    def identify(greeting: str, context: ToolContext[str] | None = None) -> str:
        return f"{greeting}, {context.deps if context else 'none'}"

    assert run(identify, ToolContext(deps="Ann"), greeting="Hi") == "Hi, Ann"
    assert identify("Hi") == "Hi, none"
    with pytest.raises(ArgumentsError, match="context: unknown parameter; valid parameters: greeting"):
        identify.check({"greeting": "Hi", "context": {"deps": "Eve"}})


async def _async() -> str:
    return "async"


class _AsyncCallable:
    async def __call__(self) -> str:
        return "async"

    async def method(self) -> str:
        return "async"


@tool
async def async_tool() -> str:
    return "async"


@pytest.mark.parametrize(
    "function",
    [
        _async,
        functools.partial(_async),
        functools.partial(functools.partial(_async)),
        _AsyncCallable(),
        functools.partial(_AsyncCallable()),
        _AsyncCallable().method,
        functools.partial(async_tool),
    ],
    ids=["function", "partial", "partial of partial", "object", "partial of object", "method", "partial of tool"],
)
def test_whether_a_tool_is_async_is_known_beforehand(function: Callable[[], Any]) -> None:
    made = tool(function, name="x")
    assert made.is_async
    assert made.spec.is_async
    assert asyncio.run(run(made)) == "async"
    assert not tool(functools.partial(add, 1)).is_async


# Methods


class Counter:
    __slots__ = ("by", "total")

    def __init__(self, by: int = 1) -> None:
        self.by, self.total = by, 0

    @tool(risk="read")
    def count(self, times: int) -> int:
        """Count on."""
        self.total += self.by * times
        return self.total

    @classmethod
    @tool
    def inside(cls, n: int) -> str:
        return f"{cls.__name__} {n}"

    @tool
    @classmethod
    def outside(cls, n: int) -> str:
        return f"{cls.__name__} {n}"

    @staticmethod
    @tool
    def static(n: int) -> int:
        return n

    @tool
    @staticmethod
    def also_static(n: int) -> int:
        return n

    shared = tool(add)


class Louder(Counter):
    pass


def test_a_method_is_taken_from_its_instance() -> None:
    one, ten = Counter(), Counter(10)
    assert run(one.count, times=2) == 2
    assert run(ten.count, times=2) == 20
    assert one.count(times=1) == 3
    assert Counter.count(one, 1) == 4
    assert one.count.parameters["properties"].keys() == {"times"}
    assert (one.count.name, one.count.description, one.count.risk) == ("count", "Count on.", "read")
    assert one.count == one.count
    assert one.count != ten.count
    assert len({one.count, one.count}) == 1


def test_what_is_copied_has_tools_of_its_own() -> None:
    one = Counter()
    run(one.count, times=5)
    other = copy.copy(one)
    run(other.count, times=1)
    assert (one.total, other.total) == (5, 6)


def test_a_method_without_its_instance_is_refused_before_a_model_hears_of_it() -> None:
    for refused in (
        lambda: Counter.count.spec,
        lambda: AgentRequest(input="x", tools=[Counter.count]),
        lambda: Counter.count.run(Counter.count.check({"times": 1}), ToolContext()),
        lambda: as_tool(Counter.count).spec,
    ):
        with pytest.raises(ValueError, match=r"'count' is an unbound method.*Use it on an instance: instance\.count"):
            refused()


@pytest.mark.parametrize("name", ["inside", "outside"])
@pytest.mark.parametrize("owner", [Counter, Counter(), Louder, Louder()], ids=["class", "object", "heir", "heir's"])
def test_a_class_method_gets_its_class(owner: Any, name: str) -> None:
    made = as_tool(getattr(owner, name))
    assert made.parameters["properties"].keys() == {"n"}
    assert run(made, n=1) == f"{(owner if isinstance(owner, type) else type(owner)).__name__} 1"


def test_static_methods_and_borrowed_tools_get_nobody() -> None:
    for owner in (Counter, Counter()):
        assert run(owner.static, n=1) == run(owner.also_static, n=1) == 1
        assert run(owner.shared, a=1) == 2


# Everything else


def test_a_tool_is_taken_as_it_is_wherever_it_is_found() -> None:
    made = tool(add)
    assert as_tool(made) is made
    assert as_tool(made.spec) is made
    (offered,) = AgentRequest(input="x", tools=[made]).tools
    assert as_tool(offered) is made
    brought = AgentTool(name="x", execute=lambda: 1)
    assert as_tool(brought) is brought


def test_a_function_is_decorated() -> None:
    assert as_tool(add) == tool(add)


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def test_a_described_function_gets_what_the_description_admits() -> None:
    spec = ToolSpec(name="add", description="Adds.", parameters=SCHEMA, function=add, cache="short", extra={"x": 1})
    made = as_tool(spec)
    assert made.can_run
    assert not made.is_async
    assert run(made, a=2) == 3
    with pytest.raises(ArgumentsError, match="a"):
        made.check({"a": "two"})
    assert made.spec == spec.model_copy(update={"function": made}), "with the settings that only a spec has"
    assert made.spec.function is made
    assert made.spec is made.spec
    renamed = tool(made, name="plus", timeout=5)
    assert (renamed.spec.name, renamed.spec.cache, renamed.timeout) == ("plus", "short", 5)


def test_a_described_async_function_is_awaited() -> None:
    async def double(a: int) -> int:
        return 2 * a

    made = as_tool(ToolSpec(name="double", parameters=SCHEMA, function=double))
    assert made.is_async
    assert made.spec.is_async
    assert asyncio.run(run(made, a=2)) == 4


OPENAI = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}
ANTHROPIC = {"name": "add", "description": "Adds.", "input_schema": SCHEMA}


@pytest.mark.parametrize("given", [OPENAI, ANTHROPIC, ToolSpec(name="add", description="Adds.", parameters=SCHEMA)])
def test_a_mere_description_can_be_checked_but_not_run(given: Any) -> None:
    made = as_tool(given)
    assert (made.name, made.description, made.parameters) == ("add", "Adds.", SCHEMA)
    assert not made.can_run
    assert made.check({"a": 1}) == {"a": 1}
    with pytest.raises(ConfigurationError, match="no implementation"):
        run(made, a=1)


def test_an_object_with_a_spec_is_what_the_spec_says() -> None:
    class Has:
        spec = ToolSpec(name="add", parameters=SCHEMA, function=add)

    assert run(as_tool(Has()), a=1) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"type": "web_search"}, "executed by the vendor"),
        ({}, "tools"),
        ({"name": "a b", "input_schema": {}}, "name"),
        (5, "int is not a tool"),
        (ToolSpec(name="x", function=5), "ToolSpec is not a tool"),
        (Dice, r"Dice\(\)"),
    ],
)
def test_what_describes_no_tool_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        as_tool(given)


# Elsewhere


def pickle_round_trip(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def test_a_tool_travels_by_name() -> None:
    made = cases.recursive
    assert made.reference() == "tests.tools.signature_cases:recursive"
    assert pickle_round_trip(made) is made
    assert pickle_round_trip(made.spec).function is made
    assert len(pickle.dumps(made)) < 200


def test_a_tool_with_other_settings_travels_with_them() -> None:
    for made in (replace(cases.recursive, timeout=5), tool(cases.query, name="ask", timeout=5)):
        again = pickle_round_trip(made)
        assert again == made
        assert again.timeout == 5
    assert replace(cases.recursive, timeout=5).reference() == cases.recursive.reference()
    assert tool(cases.query).reference() is None, "there is a function at that name, and no tool"


def test_a_method_travels_with_its_instance() -> None:
    made = cases.Weather("C").lookup
    again = pickle_round_trip(made)
    assert again("Rome", ToolContext(deps=cases.Deps("x"))) == {"unit": "C", "city": "Rome", "url": "x"}
    assert made.reference() is None
    assert cases.Weather.units.reference() == "tests.tools.signature_cases:Weather.units"


def test_what_has_no_name_to_be_found_by_cannot_travel() -> None:
    def local(x: int) -> int:
        return x

    for made in (tool(local), tool(lambda: 1, name="x"), tool(functools.partial(add, 1), name="y")):
        assert made.reference() is None
        with pytest.raises(TypeError, match=rf"The tool '{made.name}' cannot be pickled.*top level of a module"):
            pickle.dumps(made)


def test_copies_of_what_holds_a_tool_hold_the_same_tool() -> None:
    made = tool(lambda: 1, name="x")
    spec = made.spec
    assert copy.deepcopy(spec).function is made
    assert copy.copy(made) is copy.deepcopy(made) is made
    assert hash(spec) == hash(copy.deepcopy(spec))


def test_an_agent_offers_what_functions_say() -> None:
    agent = Agent("scripted:m", tools=[tool(add), Counter().count])
    assert [as_tool(offered).name for offered in agent.tools] == ["add", "count"]
