"""No public async call keeps the event loop busy: with large data, or as the first of a process."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic, thread_time
from typing import Any

import pytest

from agent import Agent, Router
from agent.engine.wire import Answer, WireRequest
from agent.sessions import AgentSession
from agent.testing import LoopbackServer
from agent.types import HedgeConfig, Message
from tests.engine.play import END, SSE, agent_at, stream_or_whole, token, whole
from tests.support.cases import examples

pytestmark = pytest.mark.timing

LIMIT = 0.05
"""Seconds of CPU time between two turns of the loop."""
WALL_LIMIT = 0.25
"""Seconds on the clock: other processes of the machine count, too."""
SCHEMA = {"type": "object", "properties": {"rows": {"type": "array", "items": {"type": "integer"}}}}
FORMS: dict[str, Callable[[Any, Any], Awaitable[Any]]] = {
    "acomplete": lambda agent, request: agent.acomplete(request),
    "astream": lambda agent, request: agent.astream(request).collect(),
    "ajson": lambda agent, request: agent.ajson(request, schema=SCHEMA),
    "astream_json": lambda agent, request: agent.astream_json(request, schema=SCHEMA).collect(),
    "arun": lambda agent, request: agent.arun(request, tools=[look_up]),
    "arun_stream": lambda agent, request: agent.arun_stream(request, tools=[look_up]).collect(),
    "arun_json": lambda agent, request: agent.arun(request, schema=SCHEMA),
    "abatch": lambda agent, request: agent.abatch([request] * 2),
    "abatch_stream": lambda agent, request: agent.abatch_stream([request] * 2).collect(),
    "acount_tokens": lambda agent, request: agent.acount_tokens(request, exact=False),
}


async def look_up(key: str = "") -> str:
    """Look something up."""
    return "found " * 10_000


def answer(request: WireRequest) -> Answer:
    """A response of up to 1 MB, or a stream of up to 2,000 events."""
    rows = json.dumps({"rows": list(range(30_000))})
    text = rows if b"json" in request.body else "words of the answer " * 50_000
    if b'"stream":true' in request.body.replace(b" ", b""):
        pieces = [token(text[start : start + 100]) for start in range(0, min(len(text), 200_000), 100)]
        return Answer([*pieces, END], headers=SSE)
    return whole(text)


async def measure(work: Callable[[], Awaitable[Any]]) -> tuple[float, float]:
    """The longest time on the clock and of the CPU between two turns of the loop."""
    wall = cpu = 0.0

    async def watch() -> None:
        nonlocal wall, cpu
        while True:
            began, used = monotonic(), thread_time()
            await asyncio.sleep(0.001)
            wall, cpu = max(wall, monotonic() - began - 0.001), max(cpu, thread_time() - used)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.01)
    wall = cpu = 0.0
    await work()
    await asyncio.sleep(0.005)
    watching.cancel()
    return wall, cpu


STORED = {"asubmit", "aretrieve", "acancel", "asubmit_batch"}
"""Methods for stored responses and batch jobs: the exchange is that of `acomplete`."""


def test_every_async_method_of_a_client_is_measured() -> None:
    for client in (Agent, Router, AgentSession):
        names = {name for name in dir(client) if inspect.iscoroutinefunction(getattr(client, name))}
        assert {name for name in names if not name.startswith("_")} <= {*FORMS, *STORED, "aclose"}, client


@pytest.mark.parametrize(
    ("client", "form"),
    [
        *(("agent", form) for form in FORMS),
        *(("router", form) for form in ("acomplete", "astream", "ajson", "abatch")),
        *(("session", form) for form in ("acomplete", "astream", "ajson", "arun", "arun_stream")),
    ],
)
def test_large_requests_and_responses_leave_the_event_loop_responsive(
    client: str, form: str, rng: random.Random
) -> None:
    with LoopbackServer(answer) as server:
        agent = agent_at(server)
        router = Router([agent, agent.with_config(model="other")], race=2, hedge=HedgeConfig(delay=0.01, max_share=1))
        clients: dict[str, Any] = {"agent": agent, "router": router, "session": agent.session()}
        texts = ["word " * rng.randrange(400) for _ in range(300)]
        history = [Message.assistant(text) if n % 2 else Message.user(text) for n, text in enumerate(texts)]
        large = "\n".join(texts) if client == "session" else [*history, Message.user("hi")]

        async def main() -> tuple[float, float]:
            await FORMS[form](clients[client], "hi")  # imports what it needs
            return await measure(lambda: FORMS[form](clients[client], large))

        measured = [asyncio.run(main()) for _ in range(examples(1, 10))]
    wall, cpu = (max(one) for one in zip(*measured, strict=True))
    print(f"{client} {form}: {1000 * cpu:.0f} ms of CPU, {1000 * wall:.0f} ms")
    assert cpu <= LIMIT
    assert wall <= WALL_LIMIT


@pytest.mark.parametrize("form", ["acomplete", "astream", "ajson", "arun", "abatch", "https", "httpx"])
def test_the_first_call_of_a_process_imports_in_a_thread(form: str) -> None:
    with LoopbackServer(stream_or_whole if form != "ajson" else lambda request: whole("{}")) as server:
        code = f"""
import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic, thread_time
from typing import Any
from agent import Agent

{inspect.getsource(measure)}
{inspect.getsource(look_up)}
agent = Agent("openai-chat:m", api_key="k", base_url="{server.url}/v1", max_retries=0)
calls = {{
    "acomplete": lambda: agent.acomplete("hi"),
    "astream": lambda: agent.astream("hi").collect(),
    "ajson": lambda: agent.ajson("hi", schema={{"type": "object"}}),
    "arun": lambda: agent.arun("hi", tools=[look_up]),
    "abatch": lambda: agent.abatch(["hi"]),
    "https": lambda: asyncio.gather(
        Agent("openai:m", base_url="https://localhost:1/v1", max_retries=0).acomplete("hi"), return_exceptions=True
    ),
    "httpx": lambda: Agent("openai-chat:m", base_url="{server.url}/v1", transport="httpx").acomplete("hi"),
}}
print(asyncio.run(measure(calls["{form}"]))[1])
"""
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2]
        )
    assert float(done.stdout) <= LIMIT, done.stderr
