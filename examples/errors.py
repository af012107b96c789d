"""Typed errors, retries and deadlines.

Runs offline. For a real model: AGENT_MODEL=openai-chat:gpt-4o OPENAI_API_KEY=... python examples/errors.py
"""

from __future__ import annotations

import os

from agent import Agent, RetryConfig, errors
from agent.testing import scripted_agent


def make_agent() -> Agent:
    model = os.environ.get("AGENT_MODEL")
    retry = RetryConfig(max_retries=2, initial_delay=0.05)
    if model:
        return Agent(model, retry=retry)
    return scripted_agent(
        errors.OverloadedError("try later"),  # retried
        "Hello!",
        errors.QuotaExceededError("out of credit"),  # not retried: waiting does not help
        errors.RateLimitError("slow down", retry_after=60),  # not waited for: the deadline would pass
        retry=retry,
    )


def main() -> None:
    agent = make_agent()
    for question in ("Hello?", "Still there?", "And now?"):
        try:
            response = agent.complete(question, deadline=5.0)
            print(f"{response.text} (after {len(response.route)} attempts)")
        except errors.RateLimitError as error:
            print(f"Too fast; the vendor asks to wait {error.retry_after:g} s.")
        except errors.AgentError as error:
            print(f"{type(error).__name__}: {error.message} (retryable: {error.retryable})")


if __name__ == "__main__":
    main()
