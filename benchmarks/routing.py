"""CPU microseconds that a router of three targets adds to a call.

Agent and router take turns in small blocks; the least of all blocks counts, since noise only ever adds.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from agent import Agent, Router
from agent.engine.wire import Reply
from agent.types.routing import StrategyName
from benchmarks.rows import OTHER_LIMITS, ROUTER

LIMIT = OTHER_LIMITS[ROUTER]
BLOCKS = 200
CALLS = 40
ANSWER = (
    b'{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"stop",'
    b'"message":{"role":"assistant","content":"hello"}}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}'
)


class Immediate:
    """Transport that responds immediately."""

    def send(self, request: Any, limits: Any, live: Any) -> Reply:
        return Reply(200, {"content-type": "application/json"}, ANSWER)

    async def asend(self, request: Any, limits: Any) -> Reply:
        return self.send(request, limits, None)


def agent(model: str) -> Agent:
    transport: Any = Immediate()
    return Agent(f"openai-chat:{model}", api_key="sk-test", transport=transport)


def microseconds(caller: Agent | Router) -> float:
    started = time.process_time_ns()
    for _ in range(CALLS):
        caller.complete("hello there")
    return (time.process_time_ns() - started) / CALLS / 1000


def overhead(strategy: StrategyName = "fallback", blocks: int = BLOCKS) -> tuple[float, float]:
    """Return the overhead of a router, and the time of a call of one of its agents."""
    alone = agent("gpt-4o")
    router = Router([agent("gpt-4o"), agent("gpt-4o-mini"), agent("gpt-4.1")], strategy=strategy)
    for caller in (alone, router):
        microseconds(caller)
    plain, routed = [], []
    for _ in range(blocks):
        plain.append(microseconds(alone))
        routed.append(microseconds(router))
    return min(routed) - min(plain), min(plain)


def main() -> int:
    measured: tuple[StrategyName, ...] = ("fallback", "round_robin", "least_busy", "fastest")
    added = {strategy: overhead(strategy) for strategy in measured}
    for strategy, (more, plain) in added.items():
        limit = f" (limit {LIMIT:g})" if strategy == "fallback" else ""
        print(f"router of three, {strategy}: {more:.1f} µs on top of {plain:.1f} µs{limit}")
    return int(added["fallback"][0] > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
