"""Tools in processes of their own: whatever these do, the run goes on, and nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent import Agent, errors, tool
from agent.testing import scripted_agent
from agent.tools import Tool
from agent.types import ToolCall
from tests.loop import isolated_tools
from tests.loop.processes import is_gone, needs_proc, no_zombies, pids_in, soon
from tests.loop.result_checks import OF_PROGRAMMERS, check_conversation, ran, results_of
from tests.loop.tables import CUT, MOST

DYING: dict[Tool, str] = {
    isolated_tools.dies_at_once: "The tool's process exited with status 3.",
    isolated_tools.dies_with_last_words: "The tool's process exited with status 4. no more memory in core.c",
    isolated_tools.kills_itself: "The tool's process was killed by SIGKILL.",
    isolated_tools.crashes: "The tool's process was killed by SIGSEGV.",
    isolated_tools.exits: "The tool tried to exit the program.",
    isolated_tools.raises: "ValueError: in file.txt",
    isolated_tools.raises_no_exception: "The tool failed with Doom.",
    isolated_tools.writes_everywhere: ("The tool's process sent an invalid message."),
    isolated_tools.asks_the_user: "EOFError: EOF when reading a line",
}
ANSWERING: dict[Tool, str] = {
    isolated_tools.answers_async: "answers_async_id",
    isolated_tools.prints_garbage: "clean",
    isolated_tools.returns_too_much: "x" * MOST + CUT,
    isolated_tools.returns_a_circle: '[1,"[circular reference]"]',
    isolated_tools.reports_odd_things: "done",
    isolated_tools.shows_its_surroundings: '{"path":"of its own","stdin":"","leader":true}',
}


@tool
def add(a: int, b: int) -> int:
    """In this process."""
    return a + b


def a_call(tool: Tool, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"{tool.name}_id", name=tool.name, arguments=arguments)


def agent_with(*calls: ToolCall, tools: Sequence[Tool]) -> Agent:
    return scripted_agent(calls, "Done.", tools=tools)


@pytest.mark.parametrize(("way", "expected", "failed"), [("run", DYING, True), ("arun", ANSWERING, False)])
def test_whatever_a_process_does_is_told_in_its_result(
    way: str, expected: dict[Tool, str], failed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "of its own")
    tools: list[Tool] = [add, *expected]
    result = ran(way, agent_with(a_call(add, a=2, b=3), *map(a_call, expected), tools=tools))
    assert result.text == "Done."
    results = results_of(result.messages)
    assert results["add_id"].text == "5"
    for each, words in expected.items():
        told = results[f"{each.name}_id"]
        assert (told.text, told.is_error) == (words, failed), each.name
        assert not failed or not OF_PROGRAMMERS.search(told.text)
    check_conversation(result.messages, tools)
    assert no_zombies()


def test_what_is_reported_there_is_seen_here() -> None:
    agent = agent_with(a_call(isolated_tools.reports_odd_things), tools=[isolated_tools.reports_odd_things])
    seen = [event.partial_result for event in agent.run_stream("Go.") if event.type == "tool_execution_update"]
    assert [partial.content for partial in seen if partial is not None and partial.content] == [
        [{"type": "text", "text": "text"}],
        [{"type": "text", "text": "NaN"}],
        [{"type": "text", "text": "<Unprintable>"}],
        [{"type": "text", "text": "half"}],
    ]
    assert [partial.details for partial in seen if partial is not None and partial.details] == [
        [1, "[circular reference]"],
        {"done": 0.5},
    ]


@needs_proc
def test_what_a_tool_started_ends_with_it(tmp_path: Path) -> None:
    leaves = isolated_tools.leaves_a_child_behind
    result = ran("arun", agent_with(a_call(leaves, place=str(tmp_path / "pids")), tools=[leaves]))
    assert results_of(result.messages)["leaves_a_child_behind_id"].text == "done"
    assert soon(lambda: is_gone(*pids_in(tmp_path / "pids")))


@needs_proc
@pytest.mark.timing
def test_a_process_that_hangs_is_killed_when_its_time_is_up(tmp_path: Path) -> None:
    hanging = tool(isolated_tools.hangs, timeout=1.2)
    began = time.monotonic()
    calls = [a_call(hanging, place=str(tmp_path / "pids")), a_call(add, a=2, b=3)]
    result = ran("run", agent_with(*calls, tools=[hanging, add]))
    assert time.monotonic() - began < 2.2
    results = results_of(result.messages)
    assert results["hangs_id"].text.startswith("The tool timed out after 1.2 seconds")
    assert results["add_id"].text == "5"
    assert soon(lambda: is_gone(*pids_in(tmp_path / "pids")))
    assert no_zombies()


@needs_proc
@pytest.mark.timing
def test_a_child_that_escapes_and_holds_the_pipes_delays_nothing(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    hanging, place = isolated_tools.hangs_and_holds_on, tmp_path / "pids"
    stream = agent_with(a_call(hanging, place=str(place)), tools=[hanging]).run_stream("Go.")
    asked: list[float] = []

    def abort() -> None:
        pids_in(place)
        asked.append(time.monotonic())
        stream.abort()

    threading.Thread(target=abort).start()
    for _ in stream:
        pass
    assert time.monotonic() - asked[0] < 1.0
    assert isinstance(stream.error, errors.Aborted)
    leader, escaped = pids_in(place)
    assert soon(lambda: is_gone(leader))
    os.kill(escaped, signal.SIGKILL)
    assert soon(lambda: not any("agent-" in thread.name for thread in set(threading.enumerate()) - before))


@needs_proc
@pytest.mark.timing
def test_a_process_ends_with_the_task_that_waits_for_it(tmp_path: Path) -> None:
    hanging, place = isolated_tools.hangs, tmp_path / "pids"

    async def main() -> float:
        task = asyncio.create_task(agent_with(a_call(hanging, place=str(place)), tools=[hanging]).arun("Go."))
        while not place.exists():
            await asyncio.sleep(0.005)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - began

    assert asyncio.run(main()) < 1.0
    assert soon(lambda: is_gone(*pids_in(place)))
    assert no_zombies()


def test_a_tool_that_cannot_be_imported_says_so() -> None:
    def inner() -> None:
        raise AssertionError("it is not run here")

    local = tool(inner, isolation="process")
    nameless = tool(lambda: 1, name="nameless", isolation="process")
    result = ran(
        "run", agent_with(a_call(local), a_call(nameless), a_call(add, a=2, b=3), tools=[local, nameless, add])
    )
    results = results_of(result.messages)
    assert "cannot be imported by name" in results["inner_id"].text
    assert "cannot be imported by name" in results["nameless_id"].text
    assert results["add_id"].text == "5"


PROGRAM = """
import sys
from agent import Agent, errors, tool
from agent.testing import scripted_agent
from agent.types import ToolCall

@tool(isolation="process", timeout=10.0)
def double(number: int) -> int:
    return 2 * number

agent = scripted_agent(ToolCall(id="c1", name="double", arguments={"number": 4}), "Done.", tools=[double])
print(agent.run("Go.").messages[2].parts[0].text)
"""


def test_a_tool_of_the_program_itself_is_found_there(tmp_path: Path) -> None:
    """A program without a main guard runs again in the tool's process, but starts no further ones."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=30, env=environment, cwd=tmp_path
    )
    assert done.stdout == "8\n", done.stderr
