"""Programs that fork, are interrupted, or end with open servers leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, NamedTuple

import mcp_types
import pytest
from mcp.server import Server

from agent import errors
from agent.mcp import MCPServer
from agent.mcp.credentials import Redactor
from agent.mcp.errors import ConnectionLog
from agent.mcp.session import MCPSession
from tests.mcp_.conftest import HERE, until
from tests.mcp_.test_stdio import PLAIN, act, alive, plain

PROGRAM = f"""
import os, sys, threading
sys.path.insert(0, {str(HERE)!r})
import official_server
from agent.mcp import MCPServer
from agent.mcp.credentials import Redactor
from agent.mcp.errors import ConnectionLog
from agent.mcp.session import MCPSession

def pid():
    return server.call("act", {{"do": "pid"}}).text

server = MCPServer.stdio(sys.executable, [{PLAIN!r}]).open()
mine = pid()
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, pid().encode())
    sys.exit(0)  # with a server that is open, and another that is the parent's
os.wait()
print(mine, os.read(read, 100).decode(), pid(), flush=True)

other = MCPServer.in_process(official_server.make()).open()
for name, arguments in (("block", {{"seconds": 60}}), ("hang", {{"label": "x"}})):
    other._session.submit(lambda client, name=name, given=arguments: client.call_tool(name, given), "hanging")
while "x began" not in str(other.call("events").structured):
    pass
print("two calls hang", flush=True)
"""


class Ended(NamedTuple):
    pids: list[int]
    rest: str
    complaints: str
    seconds: float


@pytest.fixture(scope="module")
def ended() -> Ended:
    """Run a program that leaves its servers open, and measure the time from its last line to its end."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE.parent.parent,
    )
    assert process.stdout is not None
    first, last = process.stdout.readline(), process.stdout.readline()
    started = monotonic()
    _, complaints = process.communicate(timeout=20)
    return Ended([int(word) for word in first.split()], last, complaints, monotonic() - started)


def test_a_program_that_forgets_to_close_ends_soon_although_calls_hang(ended: Ended) -> None:
    assert (ended.rest, ended.complaints) == ("two calls hang\n", "")
    assert ended.seconds < 10.0


def test_it_takes_the_children_along(ended: Ended) -> None:
    until(lambda: not any(map(alive, ended.pids)))


def test_a_forked_child_makes_a_connection_of_its_own_and_leaves_the_parents_alone(ended: Ended) -> None:
    mine, of_the_fork, mine_afterwards = ended.pids
    assert mine == mine_afterwards
    assert mine != of_the_fork


def server_that(handle: Callable[[Any, Any], Awaitable[mcp_types.CallToolResult]]) -> MCPServer:
    """A low-level server of the SDK, whose only tool is what `handle` does, on the session's own loop."""

    async def list_tools(context: Any, params: Any) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(tools=[mcp_types.Tool(name="act", input_schema={"type": "object"})])

    return MCPServer.in_process(Server("low level", on_list_tools=list_tools, on_call_tool=handle))


def test_a_server_in_this_process_that_blocks_its_loop_does_not_block_its_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agent.mcp.client._GRACE_PERIOD", 0.1)

    async def block(context: Any, params: Any) -> mcp_types.CallToolResult:
        time.sleep(0.4)
        return mcp_types.CallToolResult(content=[])

    with server_that(block) as server:
        started = monotonic()
        with pytest.raises(errors.TimeoutError, match=r"within 0\.1 s"):
            server.call("act", timeout=0.1)
        assert monotonic() - started < 0.5

        async def main() -> None:
            async with asyncio.timeout(0.1):
                await server.acall("act")

        with pytest.raises(TimeoutError):
            asyncio.run(main())


def test_a_server_in_this_process_that_calls_itself_is_told_instead_of_waiting_forever() -> None:
    async def ask_itself(context: Any, params: Any) -> mcp_types.CallToolResult:
        try:
            server.call("act")
        except errors.ConfigurationError as error:
            return mcp_types.CallToolResult(content=[mcp_types.TextContent(text=str(error))])
        raise AssertionError

    with server_that(ask_itself) as server:
        assert "wait for itself" in server.call("act").text


def test_a_server_that_nobody_holds_any_more_is_ended() -> None:
    server = plain().open()
    pid = int(act(server, "pid"))
    del server
    gc.collect()
    until(lambda: not alive(pid))


def test_a_session_that_is_stopped_at_once_ends_at_once() -> None:
    for _ in range(20):
        session = MCPSession(
            lambda log, on_end: Server("never used"), ConnectionLog("never used", Redactor()), 30.0, "auto"
        )
        session.stop("on second thoughts")
        session.ended.result(2.0)
        session.join()


def test_an_interrupted_call_is_cancelled_at_the_server() -> None:
    with plain() as server:
        interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            act(server, "silence")
        interrupt.join()
        until(lambda: server.call("act", {"do": "cancelled?"}).structured["cancelled"] == ["caller cancelled"])
