"""A model inside this process: no key, no server. Text, a stream, and an object that fits its schema.

Needs `agent local install` once; without it, it says so. Nothing is sent anywhere, so it runs offline.
"""

from __future__ import annotations

from enum import Enum

from pydantic import BaseModel

from agent import Agent, errors


class Colour(Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


class Thing(BaseModel):
    name: str
    colour: Colour


def main() -> None:
    agent = Agent("local:smollm2", temperature=0.0, max_tokens=24)
    try:
        print(agent.complete("Write one sentence about the sea.").text)
    except errors.ConfigurationError as error:
        print(f"{error.message} {error.fix}")
        return
    for text in agent.stream("Count from one to five.").text_stream():
        print(text, end="", flush=True)
    print()
    print(repr(agent.json("Grass is green. Describe grass.", schema=Thing).output))


if __name__ == "__main__":
    main()
