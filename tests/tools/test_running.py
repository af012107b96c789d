"""Starting, cancelling and abandoning single tool calls."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from inspect import isawaitable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typing_extensions import override

from agent.errors import ConfigurationError
from agent.graph import DAG
from agent.testing import scripted_agent
from agent.toolkit import Toolkit, TruncationConfig
from agent.tools import AgentToolResult, Signal, Tool, ToolContext, ToolError, execution, isolation, tool
from agent.tools.base import ArgumentsError
from agent.tools.execution import CancellableAwaitable, RunningCall, run_tool
from agent.tools.isolation import ChildProcess
from agent.types import TextContent, ToolCall, ToolResultContent, ToolUseContent
from tests.loop import isolated_tools


def child() -> ChildProcess:
    return ChildProcess(isolated_tools.exits, ToolContext(), 1.0, 1_000)


# Signals


def test_a_signal_is_heard_by_all_who_wait_for_it() -> None:
    signal = Signal()

    async def main() -> list[bool]:
        waiting = [asyncio.create_task(signal.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        assert not signal.is_set()
        threading.Thread(target=signal.set).start()
        heard = await asyncio.gather(*waiting)
        return [*heard, await signal.wait()]

    assert asyncio.run(main()) == [True] * 4
    assert signal.block(0)


def test_a_signal_does_not_mind_who_has_stopped_waiting() -> None:
    signal = Signal()

    async def main() -> None:
        waiting = asyncio.create_task(signal.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    loop = asyncio.new_event_loop()
    left = loop.create_task(signal.wait())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    signal.set()  # its loop has ended
    assert signal.is_set()
    left._log_destroy_pending = False  # type: ignore[attr-defined]  # that is the point


# Processes


def test_a_process_that_is_given_up_before_it_begins_is_not_started() -> None:
    running = RunningCall(Signal())
    running.cancel()
    given_up = running.attach_process(child())
    with pytest.raises(ToolError, match="cancelled before it started"):
        given_up.run(report=print)
    given_up.kill()


def test_a_process_that_is_looking_for_its_tool_starts_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "is_loading", True)
    with pytest.raises(ConfigurationError, match="in a tool process runs it") as caught:
        child()
    assert "__main__" in str(caught.value)


# Threads


def test_a_coroutine_that_comes_when_nobody_waits_any_more_is_closed() -> None:
    @tool
    def hands_out() -> Any:
        running.cancel()
        return asyncio.sleep(60)

    running = RunningCall(Signal())
    flow = run_tool(running, hands_out, hands_out.check({}), ToolContext(), 1.0, 1_000)
    invoke: Any = next(flow)
    with pytest.raises(ToolError, match="cancelled"):
        copy_context().run(invoke.function, report=print)  # as drivers do it
    flow.close()


# Coroutines


async def _stays(closed: list[str]) -> None:
    try:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
    except GeneratorExit:
        closed.append("closed")
        raise


def start_awaiting(awaitable: CancellableAwaitable, *, cancelled: bool) -> Any:
    """Its steps, the first of which were made in a loop that has ended since."""

    async def begin() -> Any:
        steps = awaitable.__await__()
        steps.send(None)
        if cancelled:
            steps.throw(asyncio.CancelledError())
        return steps

    return asyncio.run(begin())


def test_a_coroutine_is_closed_with_whoever_awaits_it() -> None:
    closed: list[str] = []
    awaitable = CancellableAwaitable(_stays(closed), lambda: False)
    start_awaiting(awaitable, cancelled=False).close()
    assert closed == ["closed"]
    assert awaitable.closed


def test_a_coroutine_that_was_given_up_is_not_run_again_when_its_loop_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(execution, "_keep_alive_forever", kept.append)
    closed: list[str] = []
    awaitable = CancellableAwaitable(_stays(closed), lambda: True)
    start_awaiting(awaitable, cancelled=True).close()
    assert awaitable.closed
    assert closed == []
    assert [each.__name__ for each in kept] == ["_as_coroutine", "_stays", "sleep"]
    kept[0].close()


# Tools that implement `__call__`

WEATHER: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LIMITS = TruncationConfig(max_chars=40, max_lines=1000)


class Weather:
    """An object that describes itself, without a base class."""

    name = "weather"
    description = "Weather of a city."
    input_schema = WEATHER
    _truncation_config = LIMITS

    async def __call__(self, input: dict[str, Any]) -> TextContent:
        return TextContent(f"sunny in {input['city']}")


@dataclass
class WeatherTool(Tool):
    """A subclass of `Tool` with `__call__`."""

    _truncation_config: ClassVar[TruncationConfig] = LIMITS
    name: str = "weather"
    parameters: dict[str, Any] = field(default_factory=lambda: WEATHER)

    @override
    async def __call__(self, input: Any) -> Any:
        return f"sunny in {input['city']}"


@dataclass
class BlockingWeatherTool(WeatherTool):
    @override
    def __call__(self, input: Any) -> Any:
        return [TextContent(f"sunny in {input['city']}")]


@dataclass
class RunningWeatherTool(Tool):
    """A subclass of `Tool` with `run`."""

    _truncation_config: ClassVar[TruncationConfig] = LIMITS
    name: str = "weather"
    parameters: dict[str, Any] = field(default_factory=lambda: WEATHER)

    @override
    def run(self, arguments: Any, context: ToolContext[Any]) -> Any:
        return f"sunny in {arguments['city']}"


KINDS = [Weather, WeatherTool, BlockingWeatherTool, RunningWeatherTool]


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_with_call_is_executed_by_the_loop(kind: Any) -> None:
    def run(city: str) -> str:
        agent = scripted_agent(ToolCall("1", "weather", {"city": city}), "Done.")
        return agent.run("Weather?", tools=[kind()]).messages[2].text

    assert run("Paris") == "sunny in Paris"
    assert "[… 69 of 109 characters (0 lines) are omitted.]" in run("P" * 100)  # in every run
    agent = scripted_agent(ToolCall("1", "weather", {"town": "Paris"}), "Done.", tools=[kind()])
    assert "city" in agent.run("Weather?").messages[2].text


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_with_call_is_awaited_with_its_input(kind: Any) -> None:
    result = asyncio.run(ensure_awaited(kind()({"city": "Paris"})))
    content: Any = result.content if isinstance(result, AgentToolResult) else result
    assert ToolResultContent("1", content).text == "sunny in Paris"


async def ensure_awaited(value: Any) -> Any:
    return await value if isawaitable(value) else value


def test_tools_of_a_toolkit_are_awaited_with_their_input(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")

    async def main() -> None:
        with Toolkit(tmp_path) as kit:
            call = ToolUseContent("1", "Read", {"file_path": "a.txt"})
            read = await kit.read(call.input)
            assert "hello" in ToolResultContent(call.id, read.content, read.is_error).text
            done = await kit.todo_write({"todos": [{"content": "Test", "status": "completed"}]})
            assert done.details["todos"][0]["content"] == "Test"
            with pytest.raises(ArgumentsError):
                await kit.read({"nonsense": 1})

    asyncio.run(main())


def test_a_described_object_can_be_part_of_a_graph() -> None:
    dag = DAG().tools(Weather()).user("Weather?")
    assert dag.get_tools()[0]["name"] == "weather"
    agent = scripted_agent(ToolCall("1", "weather", {"city": "Paris"}), "Done.")
    assert agent.run(dag).messages[1].text == "sunny in Paris"
