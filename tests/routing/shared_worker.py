"""Worker process for tests of shared router state: sends requests and prints a report."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from typing import Any

from agent import Agent, Router, Target, errors
from agent.engine.wire import Reply
from agent.models import ModelFacts, Prices, register_model
from agent.routing.redis_state import RedisState
from agent.types.routing import BreakerConfig, SpendLimit

MAX_TOKENS = 70
DOLLARS_PER_TOKEN = 0.001


class Vendor:
    """Answers after some seconds with up to `most` tokens, and remembers when and how many."""

    def __init__(self, seconds: float, most: int) -> None:
        self.seconds, self.most = seconds, most
        self.tokens = 0
        self.sent: list[float] = []
        self.fails = False

    def _answer(self) -> Reply:
        tokens = random.randint(1, self.most)
        self.tokens += tokens
        body = {
            "id": "x", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
            "usage": {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens},
        }  # fmt: skip
        return Reply(503 if self.fails else 200, {"content-type": "application/json"}, json.dumps(body).encode())

    def send(self, request: Any, limits: Any, timeout: Any) -> Reply:
        self.sent.append(time.time())
        time.sleep(self.seconds)
        return self._answer()

    async def asend(self, request: Any, limits: Any) -> Reply:
        self.sent.append(time.time())
        await asyncio.sleep(self.seconds)
        return self._answer()


def make_router(vendor: Any, state: Any, name: str, *, rates: dict[str, int] | None = None, **options: Any) -> Router:
    prices = Prices(input=0.0, output=DOLLARS_PER_TOKEN * 1e6)
    register_model(ModelFacts(provider="openai-chat", model="shared", prices=prices, max_output=MAX_TOKENS))
    agent = Agent("openai-chat:shared", api_key="sk-test", transport=vendor)
    return Router([Target(agent, name="shared", **(rates or {}))], name=name, state=state, **options)


def main(settings: dict[str, Any]) -> None:
    vendor = Vendor(settings.get("seconds", 0.0), settings.get("most", 20))
    state = RedisState(settings["url"], **settings.get("state", {}))
    options: dict[str, Any] = {"max_wait": settings.get("max_wait", 60.0), "rates": settings.get("rates")}
    if "budget" in settings:
        options["spend"] = SpendLimit(dollars=settings["budget"])
    if settings.get("probes"):
        vendor.fails = True
        options["breaker"] = BreakerConfig(window=2, min_samples=2, cooldown=settings["probes"])
    router = make_router(vendor, state, settings["name"], **options)
    outcomes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    slowest = 0.0
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.process_time()

    async def call() -> None:
        nonlocal slowest
        begun = time.perf_counter()
        try:
            response = await router.acomplete("hello", max_tokens=MAX_TOKENS)
            outcomes["ok"] += 1
            reasons[response.route[-1].reason or ""] += 1
        except errors.AgentError as error:
            outcomes[type(error).__name__] += 1
        slowest = max(slowest, time.perf_counter() - begun)

    async def work(numbers: Any) -> None:
        for _ in numbers:
            await call()

    async def probe() -> None:
        """Open the breaker, hear of the others, and call when a probe is due."""
        for _ in range(2):
            await call()
        for _ in range(3):
            await asyncio.sleep(0.2)
            await asyncio.to_thread(router.flush)
        await asyncio.sleep(settings["probes"] + 0.5)
        vendor.fails, vendor.seconds = False, 1.0
        await call()

    async def run() -> None:
        if settings.get("probes"):
            await probe()
            return
        numbers = iter(range(settings["requests"]))
        await asyncio.gather(*(work(numbers) for _ in range(settings["flights"])))

    if settings.get("dies"):
        vendor.seconds = 3600.0
    asyncio.run(run())
    router.flush()
    print(json.dumps({
        "sent": vendor.sent, "tokens": vendor.tokens, "outcomes": outcomes, "slowest": slowest,
        "cpu": time.process_time() - started, "reasons": reasons,
    }))  # fmt: skip


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
