"""Requests and expected responses of all contestants, as plain data.

Server and workers import this module with the standard library only. Data of few tasks is built on first use, because
the start of a process is measured, too.
"""

from __future__ import annotations

from typing import Any

APIS = ("openai-chat", "openai-responses", "anthropic", "gemini")
MODELS = {
    "openai-chat": "gpt-4o",
    "openai-responses": "gpt-4o",
    "anthropic": "claude-sonnet-5",
    "gemini": "gemini-2.5-flash",
}
"""Models that every library knows; unknown ones would skip work, such as the look-up of prices."""

KEY = "sk-benchmark"
SYSTEM = "You are a helpful assistant who answers in a few plain sentences."
QUESTION = "Tell me the capital of France, and what it is known for."
MAX_TOKENS = 1024
"""Required by Anthropic's API."""

ANSWER = (
    "The capital of France is Paris. It lies on the Seine, in the north of the country, and is known for its museums, "
    "above all the Louvre; for the Eiffel Tower, built for the world's fair of 1889; for Notre-Dame, whose nave was "
    "begun in 1163; and for its cafés, where much of what was later called modern art was first argued about."
)
USAGE = (27, 74)
"""Tokens of prompt and answer."""

_WORDS = (
    "The", " sea", " is", " calm", " today", ",", " and", " the", " harbour", " smells", " of", " salt", ".", " Boats",
    " come", " in", " one", " by", " one", ";", " their", " nets", " are", " full", ",", " their", " crews", " are",
    " tired", ".",
)  # fmt: skip


def pieces(count: int) -> list[str]:
    """The text of a stream, as a model's tokens cut it."""
    return [_WORDS[number % len(_WORDS)] for number in range(count)]


def stream_usage(count: int) -> tuple[int, int]:
    return USAGE[0], count


CITIES = ("Paris", "Oslo", "Lima", "Cairo")
WEATHER_TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather in a city, now.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The name of the city."},
            "unit": {"type": "string", "description": "The unit of temperatures."},
        },
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}
LOOP_QUESTION = "Compare the weather in Paris, Oslo, Lima and Cairo."
LOOP_ANSWER = "It is 21 degrees and sunny in all four cities: Paris, Oslo, Lima and Cairo."
TURNS = len(CITIES) + 1


def weather_arguments(city: str) -> dict[str, str]:
    return {"city": city, "unit": "celsius"}


def weather(city: str, unit: str) -> str:
    """Result of the tool."""
    if unit != "celsius":
        raise ValueError(f"the model asked for {unit}")
    return f"{city}: 21 degrees {unit}, sunny"


HISTORY = 200
"""Messages of a long conversation: instructions, then the user and the model in turn; the user comes last."""
TOOLS = 20


def long_history() -> list[dict[str, str]]:
    """Build a long conversation."""
    messages = [{"role": "system", "content": SYSTEM}]
    for number in range(1, HISTORY):
        if number % 2:
            text = f"Question {number}: did we say that about item {number // 2} of the list, and does it still hold?"
        else:
            text = (
                f"Answer {number}: we said that item {number // 2} depends on the ones before it. It still holds, as "
                "far as the notes go; the numbers were checked twice, and no one has objected since then. If the "
                "list changes again, then this one should be looked at first."
            )
        messages.append({"role": "user" if number % 2 else "assistant", "content": text})
    return messages


NEXT_QUESTION = "Thank you. And what would you look at next, if the list changed again tomorrow?"


def many_tools() -> list[dict[str, Any]]:
    """Build tools with name, description and JSON schema."""
    kinds = ("list", "find", "open", "close", "merge")
    things = ("tickets", "customers", "invoices", "reports")
    return [
        {
            "name": f"{kind}_{thing}",
            "description": f"{kind.capitalize()} {thing} of the company, by the criteria that are given.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": f"Text to look for in {thing}."},
                    "limit": {"type": "integer", "description": "How many at most.", "minimum": 1},
                    "order": {"type": "string", "enum": ["newest", "oldest", "best"], "description": "Which first."},
                    "tags": {"type": "array", "items": {"type": "string"}, "description": "Only with these tags."},
                },
                "required": ["query", "limit"],
            },
        }
        for kind in kinds
        for thing in things
    ]


Output = tuple[str, tuple[int, int] | None]
"""Text and usage of a response; the usage is None if the library does not report it."""


def get_output(scenario: str) -> tuple[str, tuple[int, int] | None]:
    """Text and usage that the server sends in a scenario."""
    if scenario.startswith("stream-"):
        count = int(scenario.removeprefix("stream-"))
        return "".join(pieces(count)), stream_usage(count)
    if scenario == "loop":
        return LOOP_ANSWER, None
    return ANSWER, USAGE
