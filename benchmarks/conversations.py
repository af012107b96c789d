"""CPU time and memory of growing conversations: graphs, and sessions of many turns.

    python -m benchmarks.conversations

A turn of an old session may only cost more than one of a young session because it sends more bytes. Its CPU time is
reported per kilobyte, next to the time of `json.dumps` for the same conversation.
"""

from __future__ import annotations

import gc
import json
import math
import tracemalloc
from collections import deque
from statistics import median
from time import process_time
from typing import Any

from agent import Agent
from agent.graph import DAG
from agent.testing import Answer, ScriptedTransport
from agent.types import Message


def append_ratio(count: int) -> float:
    """Ratio of the time of an append in the last tenth to that in the first, by medians of ten blocks."""
    message = Message.user("Hello")
    dag = DAG()
    times: list[float] = []
    gc.collect()
    gc.disable()  # garbage collection takes longer with more objects
    try:
        for _ in range(100):
            started = process_time()
            for _ in range(count // 100):
                dag = dag.add(message)
            times.append(process_time() - started)
    finally:
        gc.enable()
    return median(times[-10:]) / median(times[:10])


def bytes_per_node(count: int) -> float:
    """Memory of one node of a chain, without its message."""
    message = Message.user("Hello")
    dag = DAG()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(count):
            dag = dag.add(message)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(dag.heads) == 1
    return (after - before) / count


_REPLY = json.dumps(
    {
        "id": "r",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Yes, indeed."}}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
    }
).encode()


def session_costs(turns: int, at: tuple[int, ...], store: Any = None) -> dict[int, tuple[float, int]]:
    """Least CPU microseconds of a turn, and the bytes that it sends, by age.

    Without a store there are four young sessions before the old one, and the least of all counts: they warm the process
    up, and a few milliseconds are too short to measure once.
    """
    sizes: list[int] = []

    def network(request: Any) -> Answer:
        sizes.append(len(request.body))
        return Answer([_REPLY], headers={"content-type": "application/json"})

    agent = Agent("openai-chat:m", api_key="k", transport=ScriptedTransport(network))
    costs: dict[int, tuple[float, int]] = {}
    for length in (turns,) if store is not None else (*[min(turns, 100)] * 4, turns):
        session = agent.session(store=store)
        latest: deque[float] = deque(maxlen=10)
        for number in range(1, length + 1):
            started = process_time()
            session.complete(f"This is question {number} of a long conversation, as long as most are.")
            latest.append(process_time() - started)
            if number in at:
                before, _ = costs.get(number, (math.inf, 0))
                costs[number] = min(before, min(latest) * 1e6), sizes[-1]
    return costs


def json_cost(turns: int) -> float:
    """Least CPU microseconds of `json.dumps` for the turns."""
    messages = [
        {"role": "assistant" if number % 2 else "user", "content": f"This is message {number} of a long conversation."}
        for number in range(2 * turns)
    ]

    def measure_once() -> float:
        started = process_time()
        json.dumps({"model": "m", "messages": messages}).encode()
        return process_time() - started

    return min(measure_once() for _ in range(5)) * 1e6


def main() -> None:
    print(f"append, last tenth of 1,000,000 over the first: {append_ratio(1_000_000):.2f}")
    print(f"bytes per node: {bytes_per_node(100_000):.0f}")
    print("a session's turn: age, CPU µs, bytes sent, µs per KB over a young turn's cost, and as a ratio to json.dumps")
    costs = session_costs(10_000, (10, 100, 1_000, 5_000, 10_000))
    first = costs[10][0]
    for age, (cost, size) in costs.items():
        print(f"{age:>7} {cost:>9.0f} {size:>9} {(cost - first) / (size / 1024):>8.2f} {cost / json_cost(age):>8.2f}")


if __name__ == "__main__":
    main()
