"""Tools of servers on the official SDK: in process, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest

from agent import errors
from agent.mcp import MCPServer, MCPTool
from agent.testing import scripted_agent
from agent.tools import AgentToolResult, ArgumentsError, Tool, ToolContext, ToolError
from agent.types import AudioContent, DocumentContent, ImageContent, TextContent, ToolCall
from tests.mcp_.conftest import until
from tests.mcp_.official_server import PIXEL


def tool_of(server: MCPServer, name: str) -> MCPTool:
    tool = next(tool for tool in server.tools if isinstance(tool, MCPTool) and tool.original == name)
    assert isinstance(tool, MCPTool)
    return tool


def test_tools_are_described_as_the_server_describes_them(server: MCPServer) -> None:
    tool = tool_of(server, "add")
    assert tool.description == "Adds two numbers."
    assert tool.spec.parameters["required"] == ["a", "b"]
    assert tool.is_async
    assert server.instructions == "Be kind to it."


def test_a_blocking_caller_gets_the_result(server: MCPServer) -> None:
    result = server.call("add", {"a": 2, "b": 3})
    assert (result.text, result.structured, result.is_error) == ("5", {"result": 5}, False)


def test_an_async_caller_gets_the_result_and_its_loop_goes_on(server: MCPServer) -> None:
    async def main() -> tuple[str, int]:
        ticks = 0
        calling = asyncio.create_task(server.acall("block", {"seconds": 0.1}))
        while not calling.done():
            ticks += 1
            await asyncio.sleep(0.01)
        return (await calling).text, ticks

    text, ticks = asyncio.run(main())
    assert text == "unblocked"
    assert ticks > 2


def test_one_server_serves_one_event_loop_after_another(server: MCPServer) -> None:
    for number in range(3):
        assert asyncio.run(server.acall("add", {"a": number, "b": 1})).text == str(number + 1)


def test_the_loop_of_an_agent_calls_the_tools_both_ways(server: MCPServer) -> None:
    script = (ToolCall(id="1", name="add", arguments={"a": 2, "b": 3}), "It is 5.")
    assert [message.text for message in scripted_agent(*script).run("2 + 3?", tools=server.tools).messages][2] == "5"
    awaited = asyncio.run(scripted_agent(*script).arun("2 + 3?", tools=server.tools))
    assert awaited.messages[2].text == "5"


@pytest.mark.timing
def test_parallel_calls_run_beside_each_other(server: MCPServer) -> None:
    async def main() -> float:
        started = monotonic()
        await asyncio.gather(*(server.acall("block", {"seconds": 0.1}) for _ in range(5)))
        return monotonic() - started

    assert asyncio.run(main()) < 0.45


def test_fifty_calls_from_eight_threads_each_get_their_own_answer(server: MCPServer) -> None:
    def call(number: int) -> str:
        return server.call("add", {"a": number, "b": 1000}).text

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(call, range(50))) == [str(number + 1000) for number in range(50)]


def test_progress_is_reported_in_order_before_the_result(server: MCPServer) -> None:
    heard: list[AgentToolResult] = []
    assert server.call("count", {"n": 3}, report=heard.append).text == "counted to 3"
    assert [report.content for report in heard] == ["at 1", "at 2", "at 3"]
    assert heard[1].details == {"progress": 2, "total": 3, "message": "at 2"}


def test_progress_reaches_the_events_of_a_run(server: MCPServer) -> None:
    agent = scripted_agent(ToolCall(id="1", name="count", arguments={"n": 2}), "done")
    updates = [event for event in agent.run_stream("Count.", tools=server.tools) if "Update" in type(event).__name__]
    assert "at 2" in str(updates)


def began(server: MCPServer, label: str) -> Any:
    return lambda: f"{label} began" in server.call("events").structured["result"]


def was_cancelled(server: MCPServer, label: str) -> Any:
    return lambda: f"{label} CancelledError" in server.call("events").structured["result"]


def test_a_cancelled_coroutine_cancels_the_call_at_the_server_and_the_session_survives(server: MCPServer) -> None:
    async def main() -> None:
        calling = asyncio.create_task(server.acall("hang", {"label": "coroutine"}))
        await asyncio.to_thread(until, began(server, "coroutine"))
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling

    asyncio.run(main())
    until(was_cancelled(server, "coroutine"))


def test_a_signal_gives_the_call_up_at_the_server_and_the_session_survives(server: MCPServer) -> None:
    context: ToolContext[Any] = ToolContext()

    async def main() -> None:
        calling = asyncio.create_task(tool_of(server, "hang").run({"label": "signal"}, context))
        await asyncio.to_thread(until, began(server, "signal"))
        threading.Thread(target=context.signal.set).start()
        with pytest.raises(ToolError, match="cancelled"):
            await calling

    asyncio.run(main())
    until(was_cancelled(server, "signal"))


@pytest.mark.timing
def test_a_call_that_takes_too_long_is_ended_at_the_server_and_the_session_survives(server: MCPServer) -> None:
    started = monotonic()
    with pytest.raises(errors.TimeoutError, match=r"within 0\.1 s while calling hang"):
        server.call("hang", {"label": "timeout"}, timeout=0.1)
    assert monotonic() - started < 1.0
    until(was_cancelled(server, "timeout"))


def test_a_run_that_gives_a_tool_up_tells_the_server(server: MCPServer) -> None:
    agent = scripted_agent(ToolCall(id="1", name="hang", arguments={"label": "run"}), "I gave up.")
    tool_of(server, "hang").timeout = 0.1
    assert agent.run("Hang.", tools=server.tools).text == "I gave up."
    tool_of(server, "hang").timeout = None
    until(was_cancelled(server, "run"))


def test_results_of_every_kind_become_parts(server: MCPServer) -> None:
    result = server.call("media")
    text, image, audio, note, document, archive, link = list(result.content)
    assert text == TextContent(text="a pixel")
    assert image == ImageContent(image_data=PIXEL, media_type="image/png")
    assert audio == AudioContent(data=b"RIFF", media_type="audio/wav")
    assert note == TextContent(text="a note")
    assert document == DocumentContent(data=b"%PDF", media_type="application/pdf", title="pdf://1")
    assert isinstance(archive, TextContent)
    assert "application/zip" in archive.text
    assert link == TextContent(text="more: https://example.com/more")
    assert result.details["blobs"] == [{"uri": "zip://1", "media_type": "application/zip", "data": "UEsDBA=="}]


def test_a_tool_that_fails_says_so_in_its_result(server: MCPServer) -> None:
    result = server.call("fail")
    assert result.is_error
    assert "fail" in result.text


def test_arguments_are_checked_before_they_are_sent(server: MCPServer) -> None:
    with pytest.raises(ArgumentsError, match="b"):
        server.call("add", {"a": 1})
    with pytest.raises(ToolError, match="JSON"):
        server.call("hang", {"label": "\ud800"})


def test_a_server_that_asks_for_the_users_password_is_refused(server: MCPServer) -> None:
    with pytest.raises(ToolError, match=r"not supported|no back-channel"):
        server.call("ask")


def test_a_tool_that_is_added_later_appears_and_the_others_stay_the_same_objects(server: MCPServer) -> None:
    before: list[Tool] = server.tools
    name = server.call("grow").text
    until(lambda: name in [tool.name for tool in server.tools])
    assert all(old is new for old, new in zip(before, server.tools, strict=False))
    assert server.call(name, {"a": 1, "b": 1}).text == "2"


def test_odd_names_are_changed_for_the_model_and_kept_for_the_server(server: MCPServer) -> None:
    names = {tool.original: tool.name for tool in server.tools if isinstance(tool, MCPTool)}
    assert names["add"] == "add"
    assert names["näh/e"] == "n_h_e"
    assert names["files.read"] != names["files:read"]
    assert max(map(len, names.values())) == 64
    for name in (names["files:read"], "files:read", names["n" * 100]):
        assert server.call(name, {"a": 1, "b": 2}).text == "3"


def test_resources_and_prompts_can_be_read(server: MCPServer) -> None:
    assert [resource.uri for resource in server.resources()] == ["note://greeting"]
    assert server.read_resource("note://greeting") == [TextContent(text="hello")]
    assert [prompt.name for prompt in server.prompts()] == ["review"]
    assert server.get_prompt("review", {"code": "x = 1"})[0].text == "Review this: x = 1"
    with pytest.raises(errors.ProviderError, match="note://none"):
        server.read_resource("note://none")

    async def main() -> list[Any]:
        return [
            len(await server.aresources()),
            await server.aread_resource("note://greeting"),
            len(await server.aprompts()),
            (await server.aget_prompt("review", {"code": "y"}))[0].text,
        ]

    assert asyncio.run(main()) == [1, [TextContent(text="hello")], 1, "Review this: y"]


def test_a_tool_that_is_not_there_is_named_with_those_that_are(server: MCPServer) -> None:
    with pytest.raises(errors.ConfigurationError, match=r"no tool 'nope'.*add, where"):
        server.call("nope")
