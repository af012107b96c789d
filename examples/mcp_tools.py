"""Use the tools of an MCP server in an agent, and serve your own tools.

Runs offline with a local server and a scripted model. Other servers are used in the same way:
MCPServer.stdio("npx", ["-y", "some-server"]) or MCPServer.http("https://…/mcp").
"""

from __future__ import annotations

import asyncio

from agent import tool
from agent.mcp import MCPServer, serve, serve_http
from agent.testing import scripted_agent
from agent.types import ToolCall


@tool(risk="read")
def get_weather(city: str) -> str:
    """The weather in a city, now."""
    return f"{city}: 21 degrees, sunny"


def run_agent(server: MCPServer) -> None:
    call = ToolCall(id="call_1", name="weather_get_weather", arguments={"city": "Paris"})
    agent = scripted_agent(call, "It is sunny in Paris.", tools=server.tools)
    for message in agent.run("What is the weather in Paris?").messages:
        print(f"{message.role}: {message.text or message.tool_calls}")


async def call_concurrently(url: str) -> None:
    async with MCPServer.http(url) as server:
        calls = (server.acall("get_weather", {"city": city}) for city in ("Paris", "Rome", "Oslo"))
        for result in await asyncio.gather(*calls):
            print(result.text)


def main() -> None:
    with MCPServer.in_process(serve(get_weather), prefix="weather_") as server:
        run_agent(server)
    with serve_http(get_weather) as listener:
        asyncio.run(call_concurrently(listener.url))


if __name__ == "__main__":
    main()
