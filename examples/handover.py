"""Continue a conversation with other vendors, including tools and reasoning.

Runs offline: a local server implements the APIs of all vendors.
"""

from __future__ import annotations

from agent import Agent, Message, ToolCall, ToolSpec
from agent.testing import LoopbackServer, VendorScript
from agent.types import TextContent, ThinkingContent

WEATHER = ToolSpec(
    name="get_weather",
    description="The weather in a city, now.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
SCRIPT = VendorScript(
    [
        ThinkingContent(thinking="I need the weather."),
        ToolCall(id="call_1", name="get_weather", arguments={"city": "Paris"}),
    ],
    [ThinkingContent(thinking="Sunny, so no umbrella."), TextContent(text="21 degrees and sunny: no umbrella.")],
    "For Lyon I would have to ask again.",
)


def main() -> None:
    with LoopbackServer(SCRIPT) as server:
        first = Agent("anthropic:claude-sonnet-5", base_url=server.url, api_key="unused", tools=[WEATHER])
        second = Agent("gemini:gemini-3.5-flash", base_url=server.url, api_key="unused", tools=[WEATHER])
        third = Agent("openai-responses:gpt-5.6", base_url=f"{server.url}/v1", api_key="unused", tools=[WEATHER])

        messages = [Message.user("Do I need an umbrella in Paris?")]
        response = first.complete(messages)
        messages.append(response.message)
        messages += [Message.tool("21 degrees, sunny", tool_call_id=call.id) for call in response.tool_calls]
        for agent, question in ((second, None), (third, "And in Lyon?")):
            messages += [Message.user(question)] if question else []
            response = agent.complete(messages)
            messages.append(response.message)
            print(f"{response.provider}: {response.text}")
            for warning in response.warnings:
                print(f"  {warning}")


if __name__ == "__main__":
    main()
