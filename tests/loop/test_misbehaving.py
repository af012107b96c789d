"""Misbehaving tools: the run continues, other calls are unaffected, the history stays valid."""

from __future__ import annotations

import asyncio
import decimal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from agent import errors, tool
from agent.testing import scripted_agent
from agent.tools import ToolContext, execution
from agent.tools import execution as running
from agent.types import DocumentContent, ImageContent, ToolResult
from tests.loop import bad_tools, odd_results, slow_tools
from tests.loop.result_checks import OF_PROGRAMMERS, WAYS, call, check_conversation, ran, results_of
from tests.loop.tables import LIMIT, MOST, Misbehaviour, released

TABLES = (bad_tools.TABLE, slow_tools.TABLE, odd_results.TABLE)
HANGING = [case for table in TABLES for case in table.rows if case.hangs]
ALONE = ("is_busy_for_ever", "swallows_every_cancellation", "reports_without_end", "reports_without_end_async")
"""Those that keep the others from running, or their task from ending."""


@tool(timeout=5.0)
def add(a: int, b: int) -> int:
    """Well-behaved."""
    time.sleep(0.01)
    return a + b


@tool(timeout=5.0)
async def multiply(a: int, b: int) -> int:
    """Well-behaved, too."""
    await asyncio.sleep(0.01)
    return a * b


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Threads of tools that hang are let go after each test, and all of them end."""
    released.clear()
    slow_tools.asked.clear()
    before, hung = set(threading.enumerate()), running.count_abandoned_threads()
    with decimal.localcontext():  # one of them changes it
        yield
    released.set()
    end = time.monotonic() + 5
    while running.count_abandoned_threads() > hung or {
        t.name for t in set(threading.enumerate()) - before if t.name.startswith("agent-")
    }:
        assert time.monotonic() < end, [thread.name for thread in threading.enumerate()]
        time.sleep(0.002)


def test_there_are_enough_of_them() -> None:
    assert len({case.name for table in TABLES for case in table.rows}) >= 140


def execute_cases(way: str, cases: Sequence[Misbehaviour], **loop: Any) -> float:
    """Call all in one turn among well-behaved tools, check the results, and return the duration."""
    tools = [add, *(case.tool for case in cases), multiply]
    agent = scripted_agent(
        [
            call("c1", "add", a=2, b=3),
            *(call(case.name, case.name) for case in cases),
            call("c2", "multiply", a=2, b=3),
        ],
        call("c3", "add", a=4, b=5),
        "Done.",
        tools=tools,
    )
    began = time.monotonic()
    result = ran(way, agent, max_tool_calls_per_iteration=len(tools), **loop)
    seconds = time.monotonic() - began
    assert result.text == "Done."
    results = results_of(result.messages)
    assert [results[id].text for id in ("c1", "c2", "c3")] == ["5", "6", "9"]
    assert [wrong for case in cases if (wrong := misread(case, results[case.name])) is not None] == []
    check_conversation(result.messages, tools)
    return seconds


def misread(case: Misbehaviour, told: ToolResult) -> str | None:
    """Describe the problems of a tool result."""
    as_expected = told.text == case.told if isinstance(case.told, str) else case.told.fullmatch(told.text)
    if not as_expected or told.is_error is not case.failed:
        return f"{case.name}: {told.is_error} {told.text[:500]}"
    if case.failed and OF_PROGRAMMERS.search(told.text):
        return f"{case.name} shows what it should not: {told.text}"
    return f"{case.name} shows too much" if len(told.text.encode()) > MOST + 100 else None


@pytest.mark.parametrize("way", ["run", "arun_stream"])
def test_whatever_tools_raise_and_touch(way: str) -> None:
    execute_cases(way, [case for table in TABLES[:2] for case in table.rows if not case.hangs])


@pytest.mark.parametrize("way", ["run", "arun_stream"])
def test_whatever_tools_return(way: str) -> None:
    execute_cases(way, odd_results.TABLE.rows, parallel_tool_execution=False)  # or they would all be in memory at once


@pytest.mark.timing
@pytest.mark.parametrize("way", WAYS)
def test_tools_that_hang_beside_each_other_take_no_longer_than_one(way: str) -> None:
    assert execute_cases(way, [case for case in HANGING if case.name not in ALONE]) < LIMIT + 1.0


@pytest.mark.timing
@pytest.mark.parametrize("way", ["run", "arun"])
@pytest.mark.parametrize("name", ALONE)
def test_tools_that_hang_alone_are_left_in_time(name: str, way: str) -> None:
    assert execute_cases(way, [case for case in HANGING if case.name == name]) < LIMIT + 1.0


@pytest.mark.timing
@pytest.mark.parametrize("way", ["run", "arun"])
def test_a_tool_that_reports_without_end_does_not_hold_up_others(way: str) -> None:
    @tool(timeout=0.5)
    def floods(context: ToolContext[Any]) -> None:
        while not released.is_set():
            context.report("still here")

    @tool(timeout=0.2)
    def is_quick() -> str:
        return "here"

    calls = [call("c1", "floods"), *(call(f"q{number}", "is_quick") for number in range(5))]
    began = time.monotonic()
    result = ran(way, scripted_agent(calls, "Done.", tools=[floods, is_quick]))
    assert time.monotonic() - began < 5.0
    results = results_of(result.messages)
    assert [results[f"q{number}"].text for number in range(5)] == ["here"] * 5
    assert "timed out after 0.5 seconds" in results["c1"].text


def test_a_tool_that_ended_in_time_is_not_late_because_somebody_listens_slowly() -> None:
    @tool(timeout=0.3)
    def reports(context: ToolContext[Any]) -> str:
        for number in range(5):
            context.report(str(number))
        return "in time"

    agent = scripted_agent(call("c1", "reports"), "Done.", tools=[reports])
    stream = agent.run_stream("Go.")
    for event in stream:
        if event.type == "tool_execution_update":
            time.sleep(0.1)
    assert results_of(stream.result.messages)["c1"].text == "in time"


def test_of_endless_reports_as_many_are_shown_as_anybody_could_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "MAX_REPORTS", 100)
    shown: list[Any] = []
    report = running.ProgressReporter(shown.append, 5)
    for number in range(10_000):
        report(f"report {number}")
    assert 100 <= len(shown) < 10_000
    assert shown[0] == "repor"


# Limits


@pytest.mark.parametrize("way", ["run", "arun"])
def test_when_too_many_threads_hang_no_more_are_started(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "MAX_ABANDONED", 2)

    @tool(timeout=0.05)
    def hangs() -> None:
        released.wait()

    calls = [[call("c1", "hangs"), call("c2", "hangs")], [call("c3", "hangs"), call("c4", "multiply", a=2, b=3)]]
    result = ran(way, scripted_agent(*calls, "Done.", tools=[hangs, multiply]))
    results = results_of(result.messages)
    assert running.count_abandoned_threads() == 2
    assert results["c3"].text == "The tool was not started: 2 earlier calls hang in threads."
    assert results["c4"].text == "6", "those that need no thread are not concerned"
    released.set()
    while running.count_abandoned_threads():
        time.sleep(0.001)
    again = ran(way, scripted_agent(call("c5", "add", a=1, b=1), "Done.", tools=[add]))
    assert results_of(again.messages)["c5"].text == "2"


@pytest.mark.parametrize("way", WAYS)
def test_a_keyboard_interrupt_in_a_tool_ends_the_run(way: str) -> None:
    @tool
    def interrupts() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ran(way, scripted_agent(call("c1", "interrupts"), "Done.", tools=[interrupts]))


@pytest.mark.parametrize("way", ["run", "arun"])
def test_a_run_that_must_not_fail_ends_with_the_words_of_the_tool(way: str) -> None:
    agent = scripted_agent(call("c1", "exits"), tools=[tool(bad_tools.exits)])
    with pytest.raises(errors.ToolExecutionError, match="tried to exit the program") as caught:
        ran(way, agent, stop_on_error=True)
    assert caught.value.tool_call_id == "c1"


# Cleanup


@pytest.mark.parametrize("way", ["run", "arun"])
def test_a_tool_that_is_given_up_is_told_so(way: str) -> None:
    told: list[bool] = []

    @tool(timeout=0.05)
    def listens(context: ToolContext[Any]) -> None:
        told.append(context.signal.block(5.0))

    ran(way, scripted_agent(call("c1", "listens"), "Done.", tools=[listens]))
    while not told:
        time.sleep(0.001)
    assert told == [True]


@pytest.mark.parametrize("way", ["run", "arun"])
def test_an_agent_that_a_tool_asks_does_not_go_on_when_the_tool_is_given_up(way: str) -> None:
    ended: list[str] = []

    @tool(timeout=0.1)
    def asks() -> None:
        try:
            scripted_agent("A long story.", delay=60.0).run_stream("Hi").collect()
        except errors.TimeoutError as error:
            ended.append(str(error))

    ran(way, scripted_agent(call("c1", "asks"), "Done.", tools=[asks]))
    end = time.monotonic() + 5
    while not ended and time.monotonic() < end:
        time.sleep(0.001)
    assert "deadline" in ended[0]


def test_a_coroutine_that_swallows_every_cancellation_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "CANCELLATION_GRACE", 0.05)
    closed: list[bool] = []

    @tool(timeout=0.05)
    async def stays() -> None:
        try:
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    continue
        finally:
            closed.append(True)

    async def main() -> None:
        before = asyncio.all_tasks()
        await scripted_agent(call("c1", "stays"), "Done.", tools=[stays]).arun("Go.")
        assert closed == [True]
        assert asyncio.all_tasks() == before

    asyncio.run(main())


def test_a_coroutine_may_clean_up_when_it_is_cancelled() -> None:
    steps: list[str] = []

    @tool(timeout=0.05)
    async def tidies() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            steps.append("tidy")

    ran("arun", scripted_agent(call("c1", "tidies"), "Done.", tools=[tidies]))
    assert steps == ["tidy"]


# Values beside the text


@pytest.mark.parametrize("way", ["run", "arun"])
def test_values_and_pictures_are_kept_beside_their_words(way: str) -> None:
    def result_of(name: str) -> ToolResult:
        tools = [case.tool for case in odd_results.TABLE.rows if case.name == name]
        found = ran(way, scripted_agent(call("c1", name), "Done.", tools=tools))
        return results_of(found.messages)["c1"]

    assert result_of("returns_no_numbers").result == ["NaN", "Infinity", "-Infinity"]
    assert result_of("returns_a_huge_list").result is None
    assert result_of("returns_huge_details").details is None
    assert result_of("returns_details_that_are_no_json").details == {
        "lock": "<unlocked _thread.lock object>",
        "me": [1, "[circular reference]"],
        "nan": "NaN",
    }
    kinds = [type(part) for part in result_of("returns_many_large_pictures").content if not isinstance(part, str)]
    assert kinds.count(ImageContent) == 2
    assert DocumentContent not in [type(part) for part in result_of("returns_a_document_that_is_too_long").content]
