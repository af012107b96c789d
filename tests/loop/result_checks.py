"""How tools are tried in a run, and whether its conversation is one that all four vendors would take."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

from agent import Agent
from agent.loop.results import RunResult
from agent.types import AgentRequest, Message, Role, ToolCall, ToolResult
from tests.loop.stories import check_history
from tests.loop.tables import MOST

WAYS = ("run", "arun", "run_stream", "arun_stream")
OF_PROGRAMMERS = re.compile(r"Traceback|(?<![\w:/.])/\w+/|[A-Z]:\\|0x[0-9a-f]{6}")
"""Patterns a model must not see: tracebacks, absolute paths, memory addresses."""


def call(id: str, name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)


def ran(way: str, agent: Agent, **loop: Any) -> RunResult:
    """A run, in one of the four ways to make one."""
    options: dict[str, Any] = {"loop": {"max_output_bytes": MOST, **loop}}
    match way:
        case "run":
            return agent.run("Go.", **options)
        case "run_stream":
            return agent.run_stream("Go.", **options).collect()
        case "arun":
            return asyncio.run(agent.arun("Go.", **options))
        case _:

            async def collect() -> RunResult:
                return await agent.arun_stream("Go.", **options).collect()

            return asyncio.run(collect())


def results_of(messages: Sequence[Message]) -> dict[str, ToolResult]:
    """The results in a conversation, by the ids of their calls."""
    parts = [part for message in messages if message.role is Role.TOOL for part in message.parts]
    return {part.tool_call_id: part for part in parts if isinstance(part, ToolResult)}


def check_conversation(messages: Sequence[Message], tools: Sequence[Any]) -> None:
    """Every call is answered in order; it survives being stored; and every vendor takes it."""
    check_history(list(messages))
    stored = [Message.from_dict(json.loads(json.dumps(message.to_dict(), allow_nan=False))) for message in messages]
    assert stored == list(messages)
    specs = [tool.spec for tool in tools]
    for judge, model in _judges():
        judge(AgentRequest(model=model, messages=stored, tools=specs, input="Go on."))


def _judges() -> Any:
    """The official SDKs' types, and what the APIs demand beyond these. They take seconds to load."""
    from tests.providers import (
        test_anthropic_oracle,
        test_gemini_oracle,
        test_openai_chat_oracle,
        test_openai_responses_oracle,
    )

    return (
        (test_openai_chat_oracle.judge, "gpt-5"),
        (test_openai_responses_oracle.judge, "gpt-5"),
        (test_anthropic_oracle.encode_checked, "claude-sonnet-4-5"),
        (test_gemini_oracle.encode_checked, "gemini-2.5-pro"),
    )
