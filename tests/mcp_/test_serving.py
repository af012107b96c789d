"""Served tools, called by the official SDK's client in process, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import httpx2
import mcp_types
import pytest
from mcp import Client, MCPError, StdioServerParameters

from agent import errors
from agent.mcp import MCPServer, as_mcp_server, serve, serve_http
from agent.mcp.__main__ import import_tools, main
from agent.tools import Tool, tool
from tests.mcp_ import our_tools
from tests.mcp_.conftest import HERE, until

ROOT = HERE.parent.parent
PROGRAM = [sys.executable, "-m", "agent.mcp"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve_http(our_tools.TOOLS, name="ours") as listener:
        yield listener.url


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "flood", "version": "1"}},
}


@pytest.mark.timing
def test_the_number_of_sessions_is_limited_and_unused_ones_expire() -> None:
    with (
        serve_http(our_tools.add, max_sessions=3, session_timeout=1.0) as listener,
        httpx2.Client(headers={"Accept": "application/json, text/event-stream"}) as client,
    ):
        opened = [client.post(listener.url, json=INITIALIZE) for _ in range(6)]
        assert [response.status_code for response in opened] == [200] * 3 + [503] * 3
        until(lambda: client.post(listener.url, json=INITIALIZE).status_code == 200, 5.0)
        session = {"mcp-session-id": opened[0].headers["mcp-session-id"]}
        assert (
            client.post(listener.url, json={**INITIALIZE, "method": "tools/list"}, headers=session).status_code == 404
        )


@asynccontextmanager
async def client_of(reach: str, mode: str = "auto", url: str = "") -> AsyncIterator[Client]:
    match reach:
        case "in process":
            async with Client(as_mcp_server(our_tools.TOOLS, name="ours"), mode=mode) as client:
                yield client
        case "http":
            async with Client(url, mode=mode) as client:
                yield client
        case _:
            command = StdioServerParameters(
                command=sys.executable,
                args=["-m", "agent.mcp", "tests.mcp_.our_tools:TOOLS", "--name", "ours"],
                cwd=ROOT,
            )
            async with Client(command, mode=mode) as client:
                yield client


@pytest.mark.parametrize(
    ("reach", "mode"),
    [("in process", "auto"), ("in process", "legacy"), ("http", "auto"), ("http", "legacy"), ("stdio", "auto")],
)
def test_the_official_client_lists_and_calls_our_tools(reach: str, mode: str, url: str) -> None:
    async def use() -> None:
        async with client_of(reach, mode, url) as client:
            assert client.server_info is not None
            assert client.server_info.name == "ours"
            listed = {each.name: each for each in (await client.list_tools()).tools}
            assert list(listed) == ["add", "weather", "refuse", "crash", "draw", "sleepy", "patient", "plain"]
            assert listed["add"].description == "Adds two numbers."
            assert listed["add"].input_schema["properties"]["a"] == {"type": "integer", "description": "The first."}
            assert (await client.call_tool("add", {"a": 2, "b": 3})).content == [mcp_types.TextContent(text="5")]
            weather = await client.call_tool("weather", {"city": "Paris"})
            assert weather.structured_content == {"city": "Paris", "degrees": 21}
            assert (await client.call_tool("plain", {"words": "loud"})).content == [mcp_types.TextContent(text="LOUD")]
            wrong = await client.call_tool("add", {"a": "two"})
            assert wrong.is_error
            assert "a: Input should be a valid integer" in str(wrong.content)
            assert "b: Field required" in str(wrong.content)
            with pytest.raises(MCPError, match="no tool 'shell'"):
                await client.call_tool("shell", {"command": "ls"})

    asyncio.run(use())


def call(name: str, arguments: dict[str, Any] | None = None, **options: Any) -> mcp_types.CallToolResult:
    async def use() -> mcp_types.CallToolResult:
        async with client_of("in process") as client:
            return await client.call_tool(name, arguments or {}, **options)

    return asyncio.run(use())


def test_errors_are_results_with_reasons_and_without_tracebacks_or_directories() -> None:
    assert call("refuse").content == [mcp_types.TextContent(text="Not on Sundays.")]
    crashed = call("crash")
    assert crashed.is_error
    assert "FileNotFoundError" in str(crashed.content)
    assert "plan.txt" in str(crashed.content)
    assert "/srv" not in str(crashed.content)
    assert "Traceback" not in str(crashed.content)


def test_results_of_every_kind_are_written() -> None:
    assert [block.type for block in call("draw").content] == [
        "image",
        "resource_link",
        "audio",
        "resource",
        "resource_link",
        "text",
        "text",
    ]


@pytest.mark.timing
def test_a_tool_that_hangs_is_left_behind_when_its_time_is_up_and_its_reports_are_progress() -> None:
    told: list[Any] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)

    our_tools.HAPPENED.clear()
    started = monotonic()
    result = call("sleepy", progress_callback=progress)
    assert monotonic() - started < 1.5
    assert result.is_error
    assert "within 0.1 s" in str(result.content)
    assert told == ["falling asleep"]
    until(lambda: our_tools.HAPPENED == ["given up: True"])


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("reach", ["in process", "http"])
def test_a_client_that_gives_up_cancels_the_tool(reach: str, mode: str, url: str) -> None:
    our_tools.HAPPENED.clear()

    async def use() -> None:
        async with client_of(reach, mode, url) as client:
            calling = asyncio.create_task(client.call_tool("patient", {}))
            await asyncio.to_thread(until, lambda: our_tools.HAPPENED == ["patient began"])
            calling.cancel()
            await asyncio.to_thread(until, lambda: our_tools.HAPPENED[1:] == ["patient cancelled"])
            assert (await client.call_tool("add", {"a": 1, "b": 1})).content == [mcp_types.TextContent(text="2")]

    asyncio.run(use())


def test_tools_that_run_code_are_shown_only_if_that_is_said() -> None:
    assert serve(our_tools.TOOLS).excluded == ("shell",)
    with pytest.raises(errors.ConfigurationError, match="allow_exec=True"):
        serve(our_tools.shell)
    with MCPServer.in_process(serve(our_tools.TOOLS, allow_exec=True), only=["shell"]) as server:
        assert [tool.risk for tool in server.tools] == ["exec"]
        assert server.call("shell", {"command": "ls"}).text == "ran ls"


def test_risks_survive_the_way_to_a_client_that_trusts_us() -> None:
    def risks(**settings: Any) -> dict[str, tuple[str, bool]]:
        with MCPServer.in_process(serve(our_tools.TOOLS, allow_exec=True), **settings) as server:
            return {tool.name: (tool.risk, tool.idempotent) for tool in server.tools}

    trusted, untrusted = risks(), risks(trust=False)
    assert trusted["add"] == ("read", True)
    assert trusted["weather"] == ("write", False)
    assert trusted["draw"] == ("network", True)
    assert trusted["shell"] == ("exec", False)
    assert untrusted["add"] == ("write", False)
    assert untrusted["draw"] == ("network", False)
    assert untrusted["shell"] == ("exec", False)
    assert set(risks(risk="read").values()) >= {("read", True), ("read", False)}


def test_an_agent_is_a_tool_that_takes_a_task() -> None:
    with MCPServer.in_process(serve(our_tools.assistant)) as server:
        assert server.call("ask", {"task": "Who are you?"}).text == "I am the agent."
    assert [tool.name for tool in import_tools("tests.mcp_.our_tools:assistant")] == ["assistant"]


def test_too_many_calls_at_once_are_refused() -> None:
    our_tools.HAPPENED.clear()
    with MCPServer.in_process(serve(our_tools.patient, max_calls=1)) as server:

        async def use() -> str:
            first = asyncio.create_task(server.acall("patient"))
            await asyncio.to_thread(until, lambda: our_tools.HAPPENED)
            refused = await server.acall("patient")
            first.cancel()
            return refused.text

        assert "Too many concurrent calls" in asyncio.run(use())


def test_a_tool_is_run_again_as_often_as_it_says() -> None:
    runs: list[int] = []

    @tool(retries=2)
    def flaky() -> str:
        runs.append(1)
        if len(runs) < 3:
            raise OSError("not yet")
        return "now"

    with MCPServer.in_process(serve(flaky)) as server:
        assert server.call("flaky").text == "now"


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ([our_tools.add, our_tools.add, tool(our_tools.plain, name="add")], "same name: add"),
        ([Tool("idea", "Only described.")], "has no function to run"),
        ([3], "int is not a tool"),
    ],
)
def test_what_cannot_be_served_is_refused(tools: Any, says: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=says):
        serve(tools)


# HTTP


def test_only_this_machine_is_served_unless_told_otherwise() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.com"):
        with pytest.raises(errors.ConfigurationError, match="Any machine that reaches"):
            serve_http(our_tools.add, host)
    with pytest.raises(errors.ConfigurationError, match="shorter than 16"):
        serve_http(our_tools.add, token="short")
    with serve_http(our_tools.add, "0.0.0.0", token="t" * 20) as listener:
        assert httpx2.post(f"http://127.0.0.1:{listener.port}/mcp").status_code == 401


def test_a_token_opens_the_door_and_nothing_else_does() -> None:
    with serve_http(our_tools.add, token="t" * 20) as listener:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {'t' * 20}"}):
            with pytest.raises(errors.AuthenticationError):
                MCPServer.http(listener.url, headers).open()
        with MCPServer.http(listener.url, {"Authorization": f"Bearer {'t' * 20}"}) as server:
            assert server.call("add", {"a": 1, "b": 2}).text == "3"


def test_a_web_page_of_another_host_cannot_reach_it(url: str) -> None:
    hello = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accept = {"accept": "application/json, text/event-stream"}
    for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
        assert httpx2.post(url, json=hello, headers={**accept, **headers}).status_code in (403, 421)


def test_a_port_in_use_is_an_error_that_names_it() -> None:
    with serve_http(our_tools.add) as listener:
        with pytest.raises(errors.ConfigurationError, match=f":{listener.port}: Address already in use"):
            serve_http(our_tools.add, port=listener.port)
        assert repr(listener) == f"HttpListener('http://127.0.0.1:{listener.port}/mcp')"
        threading.Thread(target=listener.close).start()
        listener.wait()


def test_fifty_calls_over_http_from_eight_threads(url: str) -> None:
    with MCPServer.http(url) as server, ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda number: server.call("add", {"a": number, "b": 1}).text, range(50))
        assert list(answers) == [str(number + 1) for number in range(50)]


# The program


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "Write module:attribute"),
        (["no_such_module:x"], "no module 'no_such_module'"),
        (["tests.mcp_.our_tools:nope"], "has no nope"),
        (["tests.mcp_.our_tools:shell"], "allow_exec"),
        (["json:dumps.__name__"], "str is not a tool"),
    ],
)
def test_the_program_says_what_is_wrong(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert says in capsys.readouterr().err


def test_the_program_ends_when_it_is_interrupted() -> None:
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    }
    with subprocess.Popen(
        [*PROGRAM, "tests.mcp_.our_tools:TOOLS"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(json.dumps(hello) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.wait(3)
        assert process.stderr.read() == "Excluded, because they execute code: shell. See --allow-exec.\n"
        assert json.loads(answer)["result"]["serverInfo"]["name"] == "agent"
        assert process.returncode == 0
