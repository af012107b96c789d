"""Helpers of the Anthropic codec's tests: requests and their encoded bodies."""

from __future__ import annotations

import json
from typing import Any

from agent.engine.wire import WireRequest
from agent.providers.anthropic import AnthropicCodec
from agent.providers.base import ApiAddress
from agent.types import (
    AgentRequest,
    ContentPart,
    Message,
    Origin,
    Role,
    Secret,
    ThinkingContent,
    ToolCall,
    ToolResult,
    ToolSpec,
)

SONNET = "claude-sonnet-4-5"
HOME = Origin(provider="anthropic", api="anthropic", model=SONNET)
ELSEWHERE = Origin(provider="openai", api="openai-responses", model="gpt-5")
CODEC = AnthropicCodec(ApiAddress("https://api.anthropic.com", Secret("sk-ant-test")))
WEATHER = ToolSpec(
    name="get_weather",
    description="Weather for a city",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
CALL = ToolCall(id="toolu_1", name="get_weather", arguments={"city": "Bern"})
RESULT = Message(Role.TOOL, [ToolResult(tool_call_id="toolu_1", content="7 C")])
THOUGHT = ThinkingContent(thinking="Hm.", signature="sig", origin=HOME)
PIXEL = b"\x89PNG\r\n"


def wire_of(*messages: Message, stream: bool = False, codec: AnthropicCodec = CODEC, **fields: Any) -> WireRequest:
    return codec.encode(AgentRequest(**{"model": SONNET, "messages": messages, **fields}), stream=stream)


def body_of(*messages: Message, **fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(wire_of(*messages, **fields).body)
    return body


def encode(**fields: Any) -> dict[str, Any]:
    """The body of a plain question with these settings."""
    return body_of(Message.user("Hi"), **fields)


def warnings_of(*messages: Message, **fields: Any) -> tuple[str, ...]:
    return wire_of(*(messages or (Message.user("Hi"),)), **fields).warnings


def turns(*messages: Message, **fields: Any) -> list[tuple[str, list[Any]]]:
    written = body_of(*messages, **fields)["messages"]
    return [(message["role"], message["content"]) for message in written]


def block_of(part: ContentPart, **fields: Any) -> dict[str, Any]:
    """How a user's part is written."""
    block: dict[str, Any] = body_of(Message.user([part]), **fields)["messages"][0]["content"][0]
    return block


def encode_assistant(*parts: ContentPart, **fields: Any) -> list[dict[str, Any]]:
    """How an assistant's parts are written."""
    blocks: list[dict[str, Any]] = turns(Message.user("Hi"), Message.assistant(parts), Message.user("Go on"), **fields)[
        1
    ][1]
    return blocks


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}
