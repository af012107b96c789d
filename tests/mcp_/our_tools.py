"""Tools that the tests serve."""

from __future__ import annotations

import asyncio
from typing import Any

from agent.testing import scripted_agent
from agent.tools import AgentToolResult, ToolContext, ToolError, tool
from agent.types import AudioContent, DocumentContent, ImageContent

HAPPENED: list[str] = []


@tool(risk="read")
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: The first.
    """
    print("this must not reach the client")
    return a + b


@tool
def weather(city: str) -> dict[str, Any]:
    """The weather in a city."""
    return {"city": city, "degrees": 21}


@tool
def refuse() -> None:
    raise ToolError("Not on Sundays.")


@tool
def crash() -> None:
    raise FileNotFoundError(2, "No such file", "/srv/somebody/private/plan.txt")


@tool(risk="network", idempotent=True)
def draw() -> AgentToolResult:
    """One of each."""
    parts: list[Any] = [
        ImageContent(image_data=b"\x89PNG", media_type="image/png"),
        ImageContent(image_url="https://example.com/a.png"),
        AudioContent(data=b"RIFF", media_type="audio/wav"),
        DocumentContent(data=b"%PDF", media_type="application/pdf"),
        DocumentContent(url="https://example.com/a.pdf"),
        DocumentContent(text="plain"),
        {"type": "text", "text": "words"},
    ]
    return AgentToolResult(parts, details={"only": "for a user interface"})


@tool(timeout=0.1)
def sleepy(context: ToolContext[Any]) -> str:
    """Hangs, in a thread, until it is given up."""
    context.report("falling asleep")
    HAPPENED.append(f"given up: {context.signal.block(5)}")
    return "awake"


@tool
async def patient() -> str:
    """Hangs, on a loop."""
    HAPPENED.append("patient began")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        HAPPENED.append("patient cancelled")
        raise
    return "done"


@tool(risk="exec")
def shell(command: str) -> str:
    """Runs anything."""
    return f"ran {command}"


def plain(words: str = "nothing") -> str:
    """A function without a decorator."""
    return words.upper()


TOOLS = [add, weather, refuse, crash, draw, sleepy, patient, shell, plain]
assistant = scripted_agent("I am the agent.", "I am still the agent.", "Again.")
