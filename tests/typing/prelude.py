"""Names that the programs in `accepted.txt` and `rejected.txt` share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, assert_never, assert_type

from pydantic import BaseModel, JsonValue, TypeAdapter
from typing_extensions import override

from agent import Agent, AgentConfig, AgentResponse, Hooks, Message, Router, RunResult, Target, Tool, ToolContext, tool
from agent.batch import BatchItem, BatchResult
from agent.calls.streams import AsyncJsonStream, AsyncResponseStream, JsonStream, ResponseStream
from agent.loop import AgentEvent, AgentLoop, AsyncRunStream, PausedRun, RunStream
from agent.middleware import CallInfo, Middleware
from agent.sessions import AgentSession
from agent.testing import scripted_agent
from agent.types import AgentRequest, AnyStreamEvent, Usage

__all__ = [
    "Agent",
    "AgentConfig",
    "AgentEvent",
    "AgentLoop",
    "AgentRequest",
    "AgentResponse",
    "AgentSession",
    "Any",
    "AnyStreamEvent",
    "AsyncIterator",
    "AsyncJsonStream",
    "AsyncResponseStream",
    "AsyncRunStream",
    "BaseModel",
    "BatchItem",
    "BatchResult",
    "CallInfo",
    "Callable",
    "City",
    "Db",
    "Hooks",
    "Iterator",
    "JsonStream",
    "JsonValue",
    "Literal",
    "Mapping",
    "Message",
    "Middleware",
    "PausedRun",
    "ResponseStream",
    "Router",
    "RunResult",
    "RunStream",
    "Sequence",
    "Target",
    "Tool",
    "ToolContext",
    "TypeAdapter",
    "Usage",
    "add",
    "agent",
    "assert_never",
    "assert_type",
    "needs_db",
    "override",
    "plain",
    "router",
    "scripted_agent",
    "session",
    "tool",
]


class City(BaseModel):
    name: str
    people: int = 0


class Db:
    def query(self, text: str) -> str:
        return text


@tool
def add(a: int, b: int = 1) -> int:
    return a + b


@tool
def needs_db(context: ToolContext[Db], text: str) -> str:
    return context.deps.query(text)


def plain(city: str) -> str:
    return city


agent = Agent("scripted:echo")
router = Router([agent, "scripted:other"])
session = agent.session()
