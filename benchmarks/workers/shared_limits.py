"""Worker of `benchmarks.shared_limits`: a router of this package or of LiteLLM, with state in Redis.

Reads orders as lines of JSON, and writes one result for each.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from benchmarks import workload

Call = Callable[[], Awaitable[Any]]
MAX_TOKENS = workload.USAGE[1]
"""As many as the response has, so that the largest cost is the actual one."""


def make_agent_call(order: dict[str, Any]) -> Call:
    """A router of this package; `state` is None for limits of the process."""
    from agent import Agent, Router, Target
    from agent.types import SpendLimit

    agent = Agent(
        f"openai-chat:{workload.MODELS['openai-chat']}", base_url=f"{order['server']}/v1", api_key=workload.KEY
    )
    limits = {"rpm": order["rpm"], "tpm": order["tpm"]}
    spend = () if order["budget"] is None else SpendLimit(dollars=order["budget"])
    router = Router(
        [Target(agent, name="gpt", **limits)],
        name=order["name"],
        state=order["redis"],
        spend=spend,
        max_wait=order["max_wait"],
    )
    return lambda: router.acomplete(workload.QUESTION, max_tokens=MAX_TOKENS)


def make_litellm_call(order: dict[str, Any]) -> Call:
    """LiteLLM's router, with its routing by usage if there are rates, and its budgets of providers."""
    library: Any = import_module("litellm")
    library.telemetry, library.suppress_debug_info = False, True
    options: dict[str, Any] = {"num_retries": 0, "disable_cooldowns": True}
    if order["redis"] is not None:
        address = urlsplit(order["redis"])
        options |= {"redis_host": address.hostname, "redis_port": address.port, "cache_responses": False}
    if order["budget"] is not None:
        options["provider_budget_config"] = {"openai": {"budget_limit": order["budget"], "time_period": "1d"}}
    if order["rpm"]:
        options["routing_strategy"] = "usage-based-routing-v2"
    rates = {name: order[name] for name in ("rpm", "tpm") if order[name]}
    router = library.Router(
        model_list=[
            {
                "model_name": "gpt",
                "litellm_params": {
                    "model": f"openai/{workload.MODELS['openai-chat']}",
                    "api_base": f"{order['server']}/v1",
                    "api_key": workload.KEY,
                    **rates,
                },
            }
        ],
        **options,
    )
    messages = [{"role": "user", "content": workload.QUESTION}]
    return lambda: router.acompletion(model="gpt", messages=messages, max_tokens=MAX_TOKENS)


async def measure_cpu(call: Call, blocks: int, calls: int) -> float:
    """Return the CPU microseconds of a call with one in flight: the least of all blocks."""
    measured = []
    for _ in range(blocks):
        started = time.process_time_ns()
        for _ in range(calls):
            await call()
        measured.append((time.process_time_ns() - started) / calls / 1000)
    return min(measured)


async def count_answers(call: Call, requests: int, flights: int) -> dict[str, int]:
    """Send requests, and count the responses and the kinds of errors."""
    counts: dict[str, int] = {}
    numbers = iter(range(requests))

    async def work() -> None:
        for _ in numbers:
            try:
                await call()
                outcome = "ok"
            except Exception as error:
                outcome = type(error).__name__
            counts[outcome] = counts.get(outcome, 0) + 1

    await asyncio.gather(*(work() for _ in range(flights)))
    return counts


async def main() -> None:
    make = {"agent": make_agent_call, "litellm": make_litellm_call}[sys.argv[1]]
    calls: dict[str, Call] = {}
    for line in iter(sys.stdin.readline, ""):
        order = json.loads(line)
        match order["task"]:
            case "open":
                calls[order["name"]] = make(order)
                result: Any = "ready"
            case "cpu":
                result = await measure_cpu(calls[order["name"]], order["blocks"], order["calls"])
            case _:
                result = await count_answers(calls[order["name"]], order["requests"], order["flights"])
        print("result", json.dumps(result), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
