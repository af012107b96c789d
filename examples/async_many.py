"""Many questions at once, with a limit on how many are in flight.

Runs offline. For a real model: AGENT_MODEL=openai-chat:gpt-4o OPENAI_API_KEY=... python examples/async_many.py
"""

from __future__ import annotations

import asyncio
import os

from agent import Agent, errors

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")


async def ask(agent: Agent, question: str, gate: asyncio.Semaphore) -> str:
    async with gate:
        try:
            response = await agent.acomplete(question, deadline=60.0)
        except errors.AgentError as error:
            return f"failed: {error}"
        return response.text or ""


async def main() -> None:
    agent = Agent(os.environ.get("AGENT_MODEL", "scripted:echo"))
    gate = asyncio.Semaphore(4)
    answers = await asyncio.gather(*(ask(agent, f"Translate {word} into French.", gate) for word in WORDS))
    for word, answer in zip(WORDS, answers, strict=True):
        print(f"{word}: {answer}")

    print("streamed: ", end="")
    async for piece in agent.astream("And now count to three.").text_stream():
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    asyncio.run(main())
