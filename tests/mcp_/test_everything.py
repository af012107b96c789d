"""The loop against the reference server `server-everything` of the MCP project.

It is a program for Node, and `make peers` installs it into .tools; without it these tests are skipped.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.loop import Deny, RunResult
from agent.mcp import MCPServer
from agent.testing import scripted_agent
from agent.types import ImageContent, ToolCall

ROOT = Path(__file__).parents[2]
EVERYTHING = ROOT / ".tools" / "node_modules" / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"


def node() -> str:
    found = shutil.which("node")
    if found is None or not EVERYTHING.exists():
        pytest.skip("server-everything is not installed; `make peers` installs it where there is npm")
    return found


@pytest.fixture(scope="module", autouse=True)  # before the check that a test leaves nothing behind
def everything_url() -> Iterator[str]:
    """Its streamable HTTP side, on a free port."""
    program = node()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [program, str(EVERYTHING), "streamableHttp"],
        env={**os.environ, "PORT": str(port)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    timer = threading.Timer(30, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            if "listening on port" in line.lower():
                break
        else:
            raise AssertionError("server-everything did not start")
        timer.cancel()
        threading.Thread(target=process.stdout.read, daemon=True).start()  # or it blocks when the pipe is full
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        timer.cancel()
        process.kill()
        process.wait(10)
        process.stdout.close()


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest) -> Iterator[MCPServer]:
    if request.param == "stdio":
        made = MCPServer.stdio(node(), [str(EVERYTHING), "stdio"])
    else:
        made = MCPServer.http(request.getfixturevalue("everything_url"))
    with made as connected:
        yield connected


def call(id: str, name: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)


CALLS = [
    call("c1", "echo", message="hello"),
    call("c2", "get-sum", a=2, b=40),
    call("c3", "get-structured-content", location="Chicago"),
    call("c4", "get-tiny-image"),
    call("c5", "get-sum", a="two"),
]


def check(result: RunResult) -> None:
    assert result.text == "Done."
    echo, total, weather, picture, wrong = (message.parts[0] for message in result.messages if message.role == "tool")
    assert (echo.text, total.text) == ("Echo: hello", "The sum of 2 and 40 is 42.")
    assert "temperature" in weather.details["structured"]  # type: ignore[union-attr]
    assert any(isinstance(part, ImageContent) for part in picture.content)  # type: ignore[union-attr]
    assert wrong.is_error  # type: ignore[union-attr]
    assert "a" in (wrong.text or "")


def test_parallel_calls_of_a_blocking_run(server: MCPServer) -> None:
    check(scripted_agent(CALLS, "Done.").run("Go.", tools=server.tools))


def test_parallel_calls_of_an_async_run(server: MCPServer) -> None:
    check(asyncio.run(scripted_agent(CALLS, "Done.").arun("Go.", tools=server.tools)))


def test_progress_is_shown_while_a_long_operation_runs(server: MCPServer) -> None:
    long = call("c1", "trigger-long-running-operation", duration=0.4, steps=4)
    run = scripted_agent(long, "Done.").run_stream("Go.", tools=server.tools)
    updates = [event for event in run if event.type == "tool_execution_update"]
    assert len(updates) >= 2
    assert "completed" in run.result.messages[2].text


@pytest.mark.timing
def test_an_operation_that_takes_too_long_is_given_up_and_the_session_survives(server: MCPServer) -> None:
    long = call("c1", "trigger-long-running-operation", duration=30, steps=3)
    agent = scripted_agent(long, call("c2", "echo", message="still here"), "Done.")
    result = agent.run("Go.", tools=server.tools, loop={"timeout_per_tool": 0.3})
    late, echo = (message.text for message in result.messages if message.role == "tool")
    assert "0.3 seconds" in late
    assert echo == "Echo: still here"


def test_calls_are_approved_as_any_others(server: MCPServer) -> None:
    agent = scripted_agent([call("c1", "echo", message="no"), call("c2", "get-sum", a=1, b=1)], "Done.")

    def before(called: ToolCall, context: Any) -> Deny | None:
        return Deny("Not now.") if called.name == "echo" else None

    result = agent.run("Go.", tools=server.tools, before_tool_call=before)
    assert [message.text for message in result.messages if message.role == "tool"] == [
        "Not now.",
        "The sum of 1 and 1 is 2.",
    ]


def test_keys_of_ours_do_not_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-of-ours")
    with MCPServer.stdio(node(), [str(EVERYTHING), "stdio"]) as server:
        assert "sk-canary" not in str(server.call("get-env", {}))
