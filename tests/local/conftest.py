"""Fixtures: an embedded model, loaded once, with sync and async calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from agent import Agent, local
from agent.types import AgentResponse, StreamEvent

STATUS = local.status()


class Face:
    """One of the two ways to call an agent."""

    def __init__(self, name: str) -> None:
        self.name = name

    def complete(self, agent: Agent, request: Any, **fields: Any) -> AgentResponse:
        if self.name == "sync":
            return agent.complete(request, **fields)
        return asyncio.run(agent.acomplete(request, **fields))

    def json(self, agent: Agent, request: Any, **fields: Any) -> AgentResponse:
        if self.name == "sync":
            return agent.json(request, **fields)
        return asyncio.run(agent.ajson(request, **fields))

    def stream(self, agent: Agent, request: Any, **fields: Any) -> tuple[Sequence[StreamEvent], AgentResponse]:
        if self.name == "sync":
            with agent.stream(request, **fields) as stream:
                events = list(stream)
            return events, stream.response

        async def stream_text() -> tuple[Sequence[StreamEvent], AgentResponse]:
            stream = agent.astream(request, **fields)
            return [event async for event in stream], stream.response

        return asyncio.run(stream_text())


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


@pytest.fixture(scope="module")
def embedded() -> Iterator[Agent]:
    """The embedded model; tests that need it are skipped where it cannot run."""
    if not STATUS.ready:
        pytest.skip(f"{STATUS.problem} {STATUS.fix}")
    yield Agent("local:smollm2")
    local.unload()
