"""Tools that do not end by themselves, and tools that ask agents."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from agent.testing import scripted_agent
from agent.tools import ToolContext, tool
from agent.types import ToolCall
from tests.loop.tables import LATE, LIMIT, Table, released

TABLE = Table()
fails, returns = TABLE.fails, TABLE.returns


# It does not end


@fails(LATE)
def sleeps() -> None:
    time.sleep(0.7)


@fails(LATE)
def waits_for_ever() -> None:
    released.wait()


@fails(LATE)
def is_busy_for_ever() -> None:
    while not released.is_set():
        sum(range(100))


@fails(LATE)
def waits_for_a_lock_of_its_own() -> None:
    lock = threading.Lock()
    lock.acquire()
    while not released.is_set():
        lock.acquire(timeout=0.05)


@fails(LATE)
async def sleeps_async() -> None:
    await asyncio.sleep(60)


@fails(LATE)
async def waits_for_nothing_async() -> None:
    await asyncio.get_running_loop().create_future()


@fails(LATE)
async def swallows_its_cancellation_once() -> str:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        return "not so fast"
    return "never"


@fails(LATE)
async def swallows_every_cancellation() -> None:
    while not released.is_set():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


@fails(LATE)
async def swallows_everything() -> None:
    while not released.is_set():
        with suppress(BaseException):
            await asyncio.sleep(60)


@fails(LATE)
async def raises_when_it_is_cancelled() -> None:
    try:
        await asyncio.sleep(60)
    finally:
        raise ValueError("how dare you")


@fails(LATE)
async def exits_when_it_is_cancelled() -> None:
    try:
        await asyncio.sleep(60)
    finally:
        sys.exit(7)


@fails(LATE)
async def cleans_up_slowly() -> None:
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.1)


@fails(LATE)
async def holds_its_loop_for_a_while() -> None:
    while not released.is_set():
        time.sleep(0.01)
        await asyncio.sleep(0)


@fails(LATE)
def starts_a_loop_that_never_ends() -> None:
    async def main() -> None:
        while not released.is_set():
            await asyncio.sleep(0.01)

    asyncio.run(main())


@fails(LATE)
async def waits_in_a_thread_for_ever() -> None:
    thread = threading.Thread(target=released.wait, daemon=True)
    thread.start()
    while thread.is_alive():
        await asyncio.sleep(0.01)


@fails("The tool timed out after 0.02 seconds; it may have taken effect.", timeout=0.02)
def has_hardly_any_time() -> None:
    released.wait()


@fails(LATE)
def returns_what_never_comes() -> Awaitable[None]:
    return asyncio.sleep(60)


@fails(re.compile(f"{re.escape(LATE)}|ValueError: once more"), retries=5, timeout=LIMIT)
def hangs_when_it_is_tried_again(context: ToolContext[Any]) -> None:
    if len(asked) < 2 and not asked.append(context.call_id):  # type: ignore[func-returns-value]
        raise ValueError("once more")
    released.wait()


asked: list[str] = []


# It uses agents


@returns("Hello!")
def asks_an_agent() -> str:
    return str(scripted_agent("Hello!").run("Hi").text)


@returns("Hello!")
async def blocks_on_an_agent() -> str:
    return str(scripted_agent("Hello!").run("Hi").text)


@returns("Hello!")
def asks_an_agent_in_a_loop_of_its_own() -> str:
    return str(asyncio.run(scripted_agent("Hello!").arun("Hi")).text)


@returns("depth 0")
def asks_agents_that_ask_agents() -> str:
    def deeper(depth: int) -> str:
        if depth == 0:
            return "depth 0"

        def inner() -> str:
            return deeper(depth - 1)

        agent = scripted_agent(ToolCall(id="same_id", name="inner", arguments={}), lambda body: _last_result(body))
        return str(agent.run("Go deeper.", tools=[tool(inner)]).text)

    return deeper(3)


def _last_result(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


@fails(re.compile(f"TimeoutError: the call's deadline passed.*|{re.escape(LATE)}"), timeout=LIMIT)
def asks_an_agent_that_never_answers() -> str:
    return str(scripted_agent("A long story.", delay=60.0).run_stream("Hi").collect().text)


@fails(re.compile("ToolExecutionError: .*|BudgetExceededError: .*"))
def asks_an_agent_that_goes_in_circles() -> str:
    def do_nothing() -> str:
        return "nothing"

    agent = scripted_agent(*[ToolCall(id="c", name="nothing", arguments={})] * 9)
    return str(agent.run("Hi", tools=[tool(do_nothing)]).text)
