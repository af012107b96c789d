"""Run a batch of a thousand requests with retries and failures.

Runs offline. For a real model: AGENT_MODEL=openai-chat:gpt-4o OPENAI_API_KEY=... python examples/batch.py 20
"""

from __future__ import annotations

import os
import sys

from agent import Agent
from agent.batch import BatchProgress
from agent.testing import Chaos, ScriptedTransport, VendorScript


def make_agent() -> Agent:
    if model := os.environ.get("AGENT_MODEL"):
        return Agent(model)
    flaky = Chaos(VendorScript(), ["status-503", "status-400"], share=0.1, seed=7)  # a tenth of the answers break
    return Agent("openai-chat:m", api_key="unused", transport=ScriptedTransport(flaky))


def show(progress: BatchProgress) -> None:
    if progress.done % 250 == 0:
        print(f"{progress.done} of {progress.total} done, {progress.failed} failed")


def main(count: int = 1000) -> None:
    questions = [f"Translate {number} into French." for number in range(count)]
    result = make_agent().batch(questions, concurrency=30, on_progress=show)

    again = sum(len(item.attempts) > 1 for item in result if item.ok)
    print(f"{len(result) - len(result.failed)} answers, {again} of them after a retry")
    for item in result.failed[:2]:
        print(f"  question {item.index}: {type(item.error).__name__}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
