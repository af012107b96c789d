"""A program with a hanging tool: `python -m tests.loop.hung_program run waits 1 x`."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from agent.loop.results import RunResult
from agent.testing import scripted_agent
from agent.tools import tool
from agent.types import ToolCall
from tests.loop import isolated_tools


def say(what: str) -> None:
    print(what, time.monotonic(), flush=True)


def sleeps(place: str) -> None:
    say("begun")
    time.sleep(60)


def waits(place: str) -> None:
    say("begun")
    threading.Event().wait()


def is_busy(place: str) -> None:
    say("begun")
    while True:
        pass


async def sleeps_async(place: str) -> None:
    say("begun")
    await asyncio.sleep(60)


async def swallows(place: str) -> None:
    say("begun")
    while True:
        with suppress(BaseException):
            await asyncio.sleep(60)


async def blocks(place: str) -> None:
    """It blocks the event loop, which other tools share."""
    say("begun")
    time.sleep(60)


TOOLS: dict[str, Callable[..., Any]] = {
    made.__name__: made for made in (sleeps, waits, is_busy, sleeps_async, swallows, blocks)
}


def main(way: str, name: str, seconds: float, place: str) -> None:
    made = tool(isolated_tools.hangs, timeout=seconds) if name == "process" else tool(TOOLS[name], timeout=seconds)
    agent = scripted_agent(ToolCall(id="c1", name=made.name, arguments={"place": place}), "Done.", tools=[made])
    result = _ran(agent, way)
    assert result.text == "Done."
    say("returned")


def _ran(agent: Any, way: str) -> RunResult:
    async def collect() -> Any:
        return await (agent.arun("Go.") if way == "arun" else agent.arun_stream("Go.").collect())

    found: RunResult
    if way == "run":
        found = agent.run("Go.")
    elif way == "run_stream":
        found = agent.run_stream("Go.").collect()
    else:
        found = asyncio.run(_and_say(collect()))
    return found


async def _and_say(work: Any) -> Any:
    result = await work
    say("run returned")
    return result


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4])
