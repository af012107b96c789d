"""Offer a tool, execute the call yourself, and send the result.

Runs offline. For a real model: AGENT_MODEL=openai-chat:gpt-4o OPENAI_API_KEY=... python examples/manual_tools.py
"""

from __future__ import annotations

import os

from agent import Agent, Message, ToolCall, ToolSpec
from agent.testing import scripted_agent

WEATHER = ToolSpec(
    name="get_weather",
    description="The weather in a city, now.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


def get_weather(city: str) -> str:
    return f"{city}: 21 degrees, sunny"


def make_agent() -> Agent:
    model = os.environ.get("AGENT_MODEL")
    if model:
        return Agent(model, tools=[WEATHER])
    call = ToolCall(id="call_1", name="get_weather", arguments={"city": "Paris"})
    return scripted_agent(call, "It is 21 degrees and sunny in Paris.", tools=[WEATHER])


def main() -> None:
    agent = make_agent()
    messages = [Message.user("What is the weather in Paris?")]
    response = agent.complete(messages)
    while response.has_tool_calls:
        messages.append(response.message)
        for call in response.tool_calls:
            print(f"the model calls {call.name}({dict(call.arguments)})")
            messages.append(Message.tool(get_weather(**call.arguments), tool_call_id=call.id, name=call.name))
        response = agent.complete(messages)
    print(response.text)


if __name__ == "__main__":
    main()
