"""Hostile schemas of servers: calls end within their timeout, and nothing else is blocked."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

import mcp_types as types
import pytest
from mcp.server import Server

from agent import errors
from agent.mcp import MCPServer
from tests.schemas.test_validation import HOSTILE, SENTENCE, deep, ladder

SLOW = {"pattern": r"^(?=(\w+\s?)*$)"}


def hostile(
    input_schema: dict[str, Any], output_schema: dict[str, Any] | None = None, value: Any = None
) -> Server[Any]:
    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        act = types.Tool(name="act", input_schema={"type": "object", **input_schema}, output_schema=output_schema)
        harmless = types.Tool(name="harmless", input_schema={"type": "object"})
        return types.ListToolsResult(tools=[act, harmless])

    async def call_tool(context: Any, params: Any) -> types.CallToolResult:
        return types.CallToolResult(content=[], structured_content=value)

    return Server("hostile", on_list_tools=list_tools, on_call_tool=call_tool)


@pytest.mark.timing
@pytest.mark.parametrize("place", ["arguments", "result"])
@pytest.mark.parametrize(("schema", "value"), [(SLOW, SENTENCE), (ladder(30), 1)], ids=["pattern", "references"])
def test_a_call_that_cannot_be_validated_in_time_fails_alone(schema: dict[str, Any], value: Any, place: str) -> None:
    definitions = schema.get("$defs", {})
    around = {"type": "object", "properties": {"x": schema}, "$defs": definitions}
    server = hostile(around) if place == "arguments" else hostile({}, around, {"x": value})

    async def main() -> tuple[float, Any]:
        async with MCPServer.in_process(server) as opened:
            await opened.acall("harmless")
            slow = asyncio.create_task(opened.acall("act", {"x": value}, timeout=0.5))
            longest = 0.0
            while not slow.done():
                began = monotonic()
                await opened.acall("harmless")
                longest = max(longest, monotonic() - began)
            return longest, (await asyncio.gather(slow, return_exceptions=True))[0]

    began = monotonic()
    longest, error = asyncio.run(main())
    assert isinstance(error, ValueError if place == "arguments" else errors.TimeoutError)
    assert monotonic() - began < 0.5 + 2.0
    assert longest < 0.1 * 4


@pytest.mark.parametrize("schema", [deep(80), HOSTILE["wide"][0], HOSTILE["long names"][0]])
def test_a_tool_with_too_large_a_schema_is_refused_before_any_call(schema: dict[str, Any]) -> None:
    with MCPServer.in_process(hostile(schema)) as server:
        with pytest.raises(errors.ConfigurationError, match="too large") as caught:
            _ = server.tools
        assert "without=['act']" in caught.value.fix  # type: ignore[operator]
    with MCPServer.in_process(hostile(schema), without=["act"]) as server:
        assert [tool.name for tool in server.tools] == ["harmless"]


def test_results_are_validated_as_the_sdk_does() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    for value, problem in (({"x": "a"}, "Invalid structured content .* 'a' is not of type"), (None, "did not return")):
        with (
            MCPServer.in_process(hostile({}, schema, value)) as server,
            pytest.raises(errors.ProtocolError, match=problem),
        ):
            server.call("act")
    with MCPServer.in_process(hostile({}, schema, {"x": 1})) as server:
        assert server.call("act").structured == {"x": 1}
