"""Send a prompt, and continue the conversation.

Runs offline. For a real model: AGENT_MODEL=openai-chat:gpt-4o OPENAI_API_KEY=... python examples/complete.py
"""

from __future__ import annotations

import os

from agent import Agent, Message
from agent.testing import scripted_agent


def make_agent() -> Agent:
    model = os.environ.get("AGENT_MODEL")
    return Agent(model) if model else scripted_agent("Paris.", "The Seine.")


def main() -> None:
    agent = make_agent().with_config(default_system="Answer in one or two words.", temperature=0.0)

    first = agent.complete("What is the capital of France?")
    print(first.text)

    history = [Message.user("What is the capital of France?"), first.message]
    second = agent.complete([*history, Message.user("Which river runs through it?")])
    print(second.text)

    for response in (first, second):
        print(f"{response.provider}:{response.model} {response.stop_reason} {response.usage}")


if __name__ == "__main__":
    main()
