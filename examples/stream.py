"""Print an answer while it arrives, then look at the whole response.

Runs offline. For a real model: AGENT_MODEL=openai-chat:gpt-4o OPENAI_API_KEY=... python examples/stream.py
"""

from __future__ import annotations

import os

from agent import Agent
from agent.testing import scripted_agent


def make_agent() -> Agent:
    model = os.environ.get("AGENT_MODEL")
    return Agent(model) if model else scripted_agent("A fox, a wall, a bunch of grapes: sour, it says.", delay=0.02)


def main() -> None:
    agent = make_agent()
    with agent.stream("Tell me a fable in one sentence.") as stream:
        for event in stream:
            if event.type == "text_delta":
                print(event.text, end="", flush=True)
    print()
    print(f"stop_reason: {stream.response.stop_reason}")
    print(f"usage: {stream.response.usage}")


if __name__ == "__main__":
    main()
