"""Agents, tools and journals for tests of paused runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from agent import Agent, Router, errors, tool
from agent.loop import Ask, PausedRun, RunResult
from agent.testing import scripted_agent
from agent.types import ToolCall

Run = Callable[..., RunResult]
NOBODY = errors.BadRequestError("no request is expected")
WAYS = ["run", "arun", "run_stream", "arun_stream"]


def run_by(way: str, asked_of: Any, request: Any = "Go.", **options: Any) -> RunResult:
    """Run an agent, a router or a session in one of four ways."""

    async def collect() -> RunResult:
        result: RunResult = await asked_of.arun_stream(request, **options).collect()
        return result

    match way:
        case "run":
            result: RunResult = asked_of.run(request, **options)
            return result
        case "arun":
            awaited: RunResult = asyncio.run(asked_of.arun(request, **options))
            return awaited
        case "run_stream":
            streamed: RunResult = asked_of.run_stream(request, **options).collect()
            return streamed
        case _:
            return asyncio.run(collect())


def call(id: str, name: str = "pay", /, **arguments: Any) -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)


def pays(*ids: str) -> list[ToolCall]:
    """Calls that pay the number in their id."""
    return [call(id, amount=int(id[-1])) for id in ids]


def reload(result: RunResult) -> PausedRun:
    """The paused run after it was stored as JSON."""
    assert result.paused is not None
    assert result.stop_reason == "pause"
    return PausedRun.from_json(result.paused.to_json())


def results(result: RunResult) -> list[str]:
    return [message.text for message in result.messages if message.role == "tool"]


def ids(paused: PausedRun) -> list[str]:
    return [one.id for one in paused.pending]


class Till:
    """A tool that remembers what was paid."""

    def __init__(self) -> None:
        self.paid: list[int] = []

        @tool
        def pay(amount: int) -> str:
            """Pays."""
            self.paid.append(amount)
            return f"paid {amount}"

        self.pay = pay


def ask_about(*ids: str) -> Callable[[ToolCall, Any], Any]:
    """A hook that pauses these calls; without ids, all."""
    return lambda call, context: Ask(f"{call.id}?") if not ids or call.id in ids else None


def pause(till: Till, *calls: ToolCall, ask: Any = None, **options: Any) -> RunResult:
    """Run until the first pause; all calls wait unless `ask` says otherwise."""
    return scripted_agent(list(calls)).run("Go.", tools=[till.pay], before_tool_call=ask or ask_about(), **options)


def as_router(agent: Agent) -> Router:
    return Router([agent])
