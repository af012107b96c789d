"""Get a validated object instead of text.

Runs offline. For a real model: AGENT_MODEL=openai-chat:gpt-4o OPENAI_API_KEY=... python examples/structured_output.py
"""

from __future__ import annotations

import os

from pydantic import BaseModel

from agent import Agent, errors
from agent.testing import scripted_agent


class Recipe(BaseModel):
    title: str
    minutes: int
    ingredients: list[str]


def make_agent() -> Agent:
    model = os.environ.get("AGENT_MODEL")
    toast = Recipe(title="Toast", minutes=3, ingredients=["bread", "butter"])
    # Invalid output is retried twice before it raises an error.
    return Agent(model) if model else scripted_agent(toast, *['{"title": "Tea", "minutes": "a few"}'] * 3)


def main() -> None:
    agent = make_agent()
    for question in ("A recipe for toast, please.", "A recipe for tea, please."):
        try:
            recipe = agent.json(question, schema=Recipe).output
            assert isinstance(recipe, Recipe)
            print(f"{recipe.title}: {recipe.minutes} min, {', '.join(recipe.ingredients)}")
        except errors.SchemaValidationError as error:
            print(f"The model wrote something else: {error.text}")


if __name__ == "__main__":
    main()
