"""`ToolRegistry`."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

from agent import Agent
from agent.errors import ConfigurationError
from agent.tools.base import Tool
from agent.tools.functions import as_tool, tool
from agent.tools.registry import ToolRegistry
from agent.types import AgentRequest, ToolSpec
from tests.tools import signature_cases as cases


@tool(risk="read")
def look() -> str:
    """Look."""
    return "seen"


@tool(risk="network")
def ask() -> str:
    return "answered"


def erase() -> str:
    return "gone"


def test_tools_are_found_by_name_and_by_place_in_the_order_they_came() -> None:
    registry = ToolRegistry(look, ask, erase)
    assert registry.names == ["look", "ask", "erase"]
    assert list(registry) == [look, ask, tool(erase)]
    assert registry["ask"] is registry[1] is registry.get("ask") is ask
    assert registry[-1].name == "erase"
    assert registry[:2] == [look, ask]
    assert registry.get("nothing") is None
    assert registry.get("nothing", 5) == 5
    assert "look" in registry
    assert look in registry
    assert "nothing" not in registry
    assert 5 not in registry
    assert len(registry) == 3
    assert not ToolRegistry()
    assert repr(registry) == "ToolRegistry(look, ask, erase)"
    assert [spec.name for spec in registry.specs()] == registry.names
    assert all(isinstance(spec, ToolSpec) for spec in registry.specs())


def test_whatever_describes_a_tool_can_be_registered() -> None:
    described = {"name": "described", "input_schema": {"type": "object"}}
    registry = ToolRegistry(look, erase, described, ToolSpec(name="spec", function=erase), cases.Weather("C").lookup)
    assert registry.names == ["look", "erase", "described", "spec", "lookup"]
    assert all(isinstance(each, Tool) for each in registry)
    with pytest.raises(ConfigurationError, match="int"):
        registry.register(5)


def test_decorators_register() -> None:
    registry = ToolRegistry()

    @registry.tool
    def first(n: int) -> int:
        return n

    @registry.tool(risk="read", name="second")
    def second(n: int) -> int:
        return n

    @registry.register
    def third(n: int) -> int:
        return n

    assert list(registry) == [first, second, third]
    assert registry.names == ["first", "second", "third"]
    assert (second.risk, first(1), second(2), third(3)) == ("read", 1, 2, 3)


def test_a_name_is_taken_once_unless_it_is_replaced() -> None:
    registry = ToolRegistry(look, ask)
    with pytest.raises(
        ConfigurationError, match=r"The registry already has a tool 'look'\. Rename one, or pass replace=True"
    ):
        registry.register(tool(erase, name="look"))
    assert registry["look"] is look
    second = registry.register(tool(erase, name="look"), replace=True)
    assert registry["look"] is second
    assert registry.names == ["look", "ask"], "in the place of the one it replaces"


def test_a_removed_tool_is_gone() -> None:
    registry = ToolRegistry(look, ask)
    assert registry.remove("look") is look
    assert registry.names == ["ask"]
    for gone in (registry.remove, registry.__getitem__, registry.subset):
        with pytest.raises(ConfigurationError, match=r"Unknown tool: 'look'\. Registered tools: ask\."):
            gone("look")


def test_parts_of_a_registry_are_registries_of_their_own() -> None:
    registry = ToolRegistry(look, ask, erase)
    assert registry.subset("erase", "look").names == ["erase", "look"]
    assert registry.by_risk("read").names == ["look"]
    assert registry.by_risk("read", "network").names == ["look", "ask"]
    registry.subset("look").register(tool(erase, name="new"))
    assert "new" not in registry


def test_a_registry_stands_wherever_tools_are_asked_for() -> None:
    registry = ToolRegistry(look, ask)
    for offered in (
        AgentRequest(input="hi", tools=registry).tools,
        Agent("scripted:m", tools=registry).tools,
    ):
        assert [as_tool(each) for each in offered] == [look, ask]
    assert Agent("scripted:m").complete("hi", tools=registry).text == "You said: hi"
    assert not Agent("scripted:m", tools=ToolRegistry()).tools


def test_a_method_without_its_instance_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="lookup"):
        ToolRegistry(cases.Weather.lookup)


def test_a_registry_travels_with_its_tools() -> None:
    registry = ToolRegistry(cases.recursive, cases.literal)
    again = pickle.loads(pickle.dumps(registry))
    assert list(again) == list(registry)
    again.register(look)
    assert "look" not in registry


def test_who_reads_is_not_disturbed_by_who_writes() -> None:
    registry = ToolRegistry(look)
    done = threading.Event()
    failures: list[BaseException] = []
    made = [tool(erase, name=f"t{n}") for n in range(100)]

    def read() -> None:
        try:
            while not done.is_set():
                assert [each.name for each in registry][0] == "look"  # noqa: RUF015  # all of it is read
        except BaseException as failure:
            failures.append(failure)

    def write(some: list[Any]) -> None:
        for each in some:
            registry.register(each)

    readers = [threading.Thread(target=read) for _ in range(2)]
    writers = [threading.Thread(target=write, args=(made[n::4],)) for n in range(4)]
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    assert failures == []
    assert set(registry.names) == {"look", *(f"t{n}" for n in range(100))}
