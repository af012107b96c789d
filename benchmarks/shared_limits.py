"""Shared limits on Redis, compared with LiteLLM's router.

Measures the CPU time of a call, and how many calls four processes send under a limit for 100.

python -m benchmarks.shared_limits
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from agent import Agent, Router, Target
from agent.routing.redis_state import RedisState
from agent.types import SpendLimit
from benchmarks import environments, workload
from benchmarks.contestants import ROOT
from benchmarks.environments import Environment
from benchmarks.routing import Immediate
from benchmarks.server import run_server
from benchmarks.workers.shared_limits import MAX_TOKENS
from tests.support.redis_server import ExternalServer, open_server

ENVIRONMENT = "litellm-redis"
PROCESSES = 4
REQUESTS = 75
"""Requests of each process for a limit of `ALLOWED` in all."""
ALLOWED = 100
FLIGHTS = 16
COST = (workload.USAGE[0] * 2.5 + workload.USAGE[1] * 10) / 1e6
"""Dollars of a response of gpt-4o."""
ROUNDS = 8
ADDED = 150.0
"""CPU microseconds that Redis may add to a call with one in flight."""
_QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "CRITICAL", "NO_PROXY": "127.0.0.1"}
_NO_LIMIT: dict[str, Any] = {"rpm": None, "tpm": None, "budget": None, "max_wait": 0.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "no limits": {},
    "rpm and tpm": {"rpm": 10**9, "tpm": 10**12},
    "spend limit": {"budget": 1e6},
}
"""Limits that are never reached, for the CPU time."""
LIMITS: dict[str, dict[str, Any]] = {
    "budget": {"budget": (ALLOWED + 0.5) * COST, "max_wait": 30.0},
    "rpm": {"rpm": ALLOWED},
}


def make_limited_router(state: Any) -> Router:
    """Return a router with all limits, on a transport that responds immediately."""
    transport: Any = Immediate()
    agent = Agent("openai-chat:gpt-4o", api_key="sk-test", transport=transport)
    target = Target(agent, name="gpt", rpm=10**7, tpm=10**10, concurrency=1000)
    return Router([target], name=os.urandom(4).hex(), state=state, spend=SpendLimit(dollars=1e6))


def overhead(url: str, blocks: int = 200, calls: int = 10) -> dict[str, tuple[float, float]]:
    """Return the CPU microseconds that Redis adds to a call, and those of a call with local limits.

    Local and shared routers take turns; the least of all blocks counts. The background thread is included.
    """
    local, shared = make_limited_router(None), make_limited_router(RedisState(url, timeout=5.0))

    async def call_async(router: Router) -> float:
        started = time.process_time_ns()
        for _ in range(calls):
            await router.acomplete(workload.QUESTION, max_tokens=MAX_TOKENS)
        return (time.process_time_ns() - started) / calls / 1000

    def call_sync(router: Router) -> float:
        started = time.process_time_ns()
        for _ in range(calls):
            router.complete(workload.QUESTION, max_tokens=MAX_TOKENS)
        return (time.process_time_ns() - started) / calls / 1000

    async def alternate() -> list[tuple[float, float]]:
        return [(await call_async(local), await call_async(shared)) for _ in range(blocks)]

    costs = {
        "sync": [(call_sync(local), call_sync(shared)) for _ in range(blocks)],
        "async": asyncio.run(alternate()),
    }
    least = {form: [min(column) for column in zip(*pairs, strict=True)] for form, pairs in costs.items()}
    return {form: (with_redis - alone, alone) for form, (alone, with_redis) in least.items()}


class Worker:
    """Process with routers of one library."""

    def __init__(self, library: str, python: Path) -> None:
        command = [str(python), "-m", "benchmarks.workers.shared_limits", library]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **_QUIET},
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def order(self, **order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def read(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("result "):
                return json.loads(line.removeprefix("result "))
        raise RuntimeError("the worker ended without a result")

    def ask(self, **order: Any) -> Any:
        self.order(**order)
        return self.read()


@contextmanager
def run_workers(library: str, python: Path, count: int) -> Iterator[Sequence[Worker]]:
    workers = [Worker(library, python) for _ in range(count)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.wait()


def measure_cpu(pythons: dict[str, Path], server: str, redis: str, rounds: int) -> list[dict[str, Any]]:
    """Return the CPU time of a call with and without Redis. All variants take turns."""
    cells: dict[tuple[str, str, str], float] = {}
    with ExitStack() as stack:
        workers = {
            library: stack.enter_context(run_workers(library, python, 1))[0] for library, python in pythons.items()
        }
        keys = [
            (library, variant, place) for library in workers for variant in VARIANTS for place in ("memory", "redis")
        ]
        for library, variant, place in keys:
            order = {**_NO_LIMIT, **VARIANTS[variant], "server": f"{server}/whole"}
            where = redis if place == "redis" else None
            name = f"{variant}, {place}"
            workers[library].ask(task="open", name=name, redis=where, **order)
            workers[library].ask(task="cpu", name=name, blocks=1, calls=20)  # warm up
        for _ in range(rounds):
            for key in keys:
                library, variant, place = key
                cost = workers[library].ask(task="cpu", name=f"{variant}, {place}", blocks=3, calls=10)
                cells[key] = min(cost, cells.get(key, cost))
    return [
        {"library": library, "limits": variant, "state": place, "microseconds": round(cost)}
        for (library, variant, place), cost in cells.items()
    ]


def count_sent(library: str, python: Path, server: str, redis: str, limit: str) -> dict[str, Any]:
    """Return how many of the requests of four processes were answered, for a limit of 100."""
    name = f"{library} {limit} {time.time_ns()}"
    order = {**_NO_LIMIT, **LIMITS[limit], "server": f"{server}/slow", "redis": redis, "name": name}
    with run_workers(library, python, PROCESSES) as workers:
        for worker in workers:
            worker.ask(task="open", **order)
        if limit == "rpm" and time.time() % 60 > 40:
            time.sleep(60 - time.time() % 60)  # LiteLLM counts minutes of the clock
        for worker in workers:
            worker.order(task="count", name=name, requests=REQUESTS, flights=FLIGHTS)
        counts = [worker.read() for worker in workers]
    sent = sum(count.pop("ok", 0) for count in counts)
    refused = sum(sum(count.values()) for count in counts)
    return {"library": library, "limit": limit, "sent": sent, "refused": refused}


def clear(server: ExternalServer) -> None:
    """LiteLLM has no names for its keys."""
    with server.client() as client:
        client.flushall()


def measure(places: dict[str, Environment], rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure all libraries whose environment is there."""
    pythons = {"agent": Path(sys.executable)}
    litellm = places[ENVIRONMENT]
    if litellm.python is not None:
        pythons["litellm"] = litellm.python
    redis = open_server()
    try:
        with run_server() as server:
            cpu = measure_cpu(pythons, server, redis.url, rounds)
            sent = []
            for limit in LIMITS:
                for library, python in pythons.items():
                    clear(redis)
                    sent.append(count_sent(library, python, server, redis.url, limit))
        added = overhead(redis.url)
    finally:
        redis.close()
    return {
        "added": {form: [round(more), round(alone)] for form, (more, alone) in added.items()},
        "cpu": cpu, "sent": sent, "requests": PROCESSES * REQUESTS, "allowed": ALLOWED, "absent": litellm.reason,
    }  # fmt: skip


def format_tables(result: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    libraries = list(dict.fromkeys(cell["library"] for cell in result["cpu"]))
    costs = {(cell["library"], cell["limits"], cell["state"]): cell["microseconds"] for cell in result["cpu"]}
    lines = [
        "| CPU µs of an async call | " + " | ".join(f"{name}, memory | {name}, Redis" for name in libraries) + " |",
        "|---|" + "---:|---:|" * len(libraries),
    ]
    for variant in VARIANTS:
        cells = [f"{costs[name, variant, place]:,}" for name in libraries for place in ("memory", "redis")]
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    lines.append("")
    for form, (more, alone) in result["added"].items():
        lines.append(f"Redis adds {more} µs to one {form} call with all limits and no network, which takes {alone} µs.")
    lines += [
        "",
        f"| Sent by four processes, of {result['requests']} | limit | " + " | ".join(libraries) + " |",
        "|---|---:|" + "---:|" * len(libraries),
    ]
    sent = {(cell["library"], cell["limit"]): cell["sent"] for cell in result["sent"]}
    for limit, title in (("budget", f"a budget for {result['allowed']}"), ("rpm", "requests per minute")):
        lines.append(f"| {title} | {result['allowed']} | {' | '.join(str(sent[name, limit]) for name in libraries)} |")
    return "\n".join(lines)


def main() -> int:
    result = measure(environments.prepare_all([ENVIRONMENT]))
    print(format_tables(result))
    if result["absent"]:
        print(f"LiteLLM cannot be installed: {result['absent']}")
    return int(any(cell["library"] == "agent" and cell["sent"] > ALLOWED for cell in result["sent"]))


if __name__ == "__main__":
    sys.exit(main())
