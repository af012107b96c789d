"""Let the model call your functions until it has its answer.

Runs offline. For a real model: AGENT_MODEL=openai-chat:gpt-4o OPENAI_API_KEY=... python examples/tools.py
"""

from __future__ import annotations

import os

from agent import Agent, ToolCall, tool
from agent.testing import scripted_agent


@tool
def get_weather(city: str) -> str:
    """The weather in a city, now."""
    return f"{city}: 21 degrees, sunny"


def make_agent() -> Agent:
    model = os.environ.get("AGENT_MODEL")
    if model:
        return Agent(model, tools=[get_weather])
    calls = [
        ToolCall(id="call_1", name="get_weather", arguments={"city": "Paris"}),
        ToolCall(id="call_2", name="get_weather", arguments={"city": "Rome"}),
    ]
    return scripted_agent(calls, "Both are sunny, at 21 degrees.", tools=[get_weather])


def main() -> None:
    run = make_agent().run_stream("How is the weather in Paris and in Rome?")
    for event in run:
        if event.type == "tool_execution_start":
            print(f"the model calls {event.tool_name}({dict(event.args or {})})")
    print(run.result.text)
    print(f"{run.result.turns} turns, {run.result.usage.total_tokens if run.result.usage else 0} tokens")


if __name__ == "__main__":
    main()
