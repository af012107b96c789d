"""Tools as a user's checker sees them: this file is checked and never run.

A `type: ignore` here is a promise that the line is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_type

from agent import Agent
from agent.tools.base import Tool, ToolContext
from agent.tools.functions import as_tool, tool
from agent.tools.registry import ToolRegistry
from agent.types import AgentRequest, ToolSpec


@dataclass
class Deps:
    url: str


@tool
def add(a: int, b: int = 1) -> int:
    return a + b


@tool(name="ask", risk="network", timeout=3.0, retries=1, idempotent=True)
async def fetch(url: str, *, context: ToolContext[Deps]) -> str:
    return context.deps.url + url


def call_decorated_functions() -> None:
    assert_type(add(1, b=2), int)
    assert_type(add(1), int)
    add("1")  # type: ignore[arg-type]
    add(1, c=2)  # type: ignore[call-arg]
    add()  # type: ignore[call-arg]
    count: Callable[[int, int], int] = add
    assert_type(count(1, 2), int)


async def async_functions_are_awaited_as_before(context: ToolContext[Deps]) -> None:
    coroutine: Coroutine[Any, Any, str] = fetch("x", context=context)
    assert_type(await coroutine, str)
    await fetch("x")  # type: ignore[call-arg]


def functions_can_be_decorated_by_a_call() -> None:
    def subtract(a: int, b: int) -> int:
        return a - b

    made = tool(subtract, name="minus")
    assert_type(made(1, 2), int)
    made(1)  # type: ignore[call-arg]
    assert_type(tool(partial(subtract, 1))(2), int)
    tool(subtract, risk="reading")  # type: ignore[call-overload]
    tool(subtract, retires=3)  # type: ignore[call-overload]
    tool(5)  # type: ignore[call-overload]


class Counter:
    @tool
    def count(self, times: int) -> str:
        return "x" * times

    @tool(risk="read")
    async def wait(self) -> None: ...

    @classmethod
    @tool
    def create(cls, n: int) -> int:
        return n


async def methods_are_taken_from_their_instances(counter: Counter) -> None:
    assert_type(counter.count(3), str)
    counter.count("3")  # type: ignore[arg-type]
    counter.count(counter, 3)  # type: ignore[call-arg, arg-type]
    assert_type(Counter.count(counter, 3), str)
    await counter.wait()
    tools: list[Tool] = [counter.count, add, fetch]
    Agent("scripted:m", tools=tools)
    AgentRequest(input="x", tools=[counter.count, add.spec])


def registries_are_sequences_of_tools(registry: ToolRegistry) -> None:
    @registry.tool
    def add_one(a: int) -> int:
        return a

    @registry.tool(risk="read")
    def two(a: str) -> str:
        return a

    @registry.register
    def three(a: float) -> float:
        return a

    assert_type(add_one(1), int)
    assert_type(two("x"), str)
    assert_type(three(1.0), float)
    assert_type(registry["add_one"], Tool)
    assert_type(registry[0], Tool)
    assert_type(registry.get("add_one"), Tool | None)
    assert_type(registry.names, list[str])
    assert_type(registry.specs(), list[ToolSpec])
    assert_type(registry.by_risk("read", "exec"), ToolRegistry)
    registry.by_risk("reading")  # type: ignore[arg-type]
    assert_type(registry.register(add)(1), int)
    assert_type(registry.register({"name": "x"}), Tool)
    assert "add_one" in registry
    AgentRequest(input="x", tools=registry)
    Agent("scripted:m", tools=registry)
    for each in registry:
        assert_type(each, Tool)
    assert_type(as_tool(len), Tool)
