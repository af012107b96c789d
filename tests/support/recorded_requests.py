"""Recorded requests, decoded by the server dialects."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pydantic import ValidationError

from agent.providers import find_server_dialect
from agent.types import AgentRequest, Message, TextContent, ThinkingContent, ToolCall, ToolResult, ToolSpec
from tests.support.corpus import APIS, Exchange, exchanges

_KEPT_ELSEWHERE = {
    "previous_response_id",
    "conversation",
    "prompt",
    "container",
    "mcp_servers",
    "cachedContent",
    "web_search_options",
    "plugins",
    "functions",
}
"""Settings by which a request holds more than can be seen in it."""


def read_request(exchange: Exchange) -> AgentRequest:
    """A recorded request in our types, as the server side of its wire format reads it."""
    server = find_server_dialect(exchange.path)
    assert server is not None, exchange.path
    request = server.decode_request(exchange.path, json.dumps(exchange.request).encode()).request
    provider = {"openai.chat": exchange.provider, "openai.responses": "openai"}.get(exchange.api, server.api)
    messages = [_at_home(message, provider) for message in request.messages]
    return request.model_copy(update={"messages": tuple(messages)})


def _at_home(message: Message, provider: str) -> Message:
    """A message whose opaque parts were made by that provider."""
    if isinstance(message.content, str):
        return message
    parts = [
        part if part.origin is None else part.model_copy(update={"origin": part.origin.copy_with(provider=provider)})
        for part in message.content
    ]
    return message.model_copy(update={"content": tuple(parts)})


def text_requests() -> Iterator[tuple[Exchange, AgentRequest, int]]:
    """Recorded requests of text and tools alone, and how many tokens the vendor counted in them."""
    for api in APIS:
        for exchange in exchanges(api):
            usage = exchange.expected.get("usage") or {}
            counted = usage.get("prompt_incl_cache") or usage.get("prompt")
            if exchange.expected["kind"] != "message" or not exchange.request or not counted:
                continue
            try:
                request = read_request(exchange)
            except ValidationError:
                continue  # our types reject it
            if _is_text(request):
                yield exchange, request, counted


def _is_text(request: AgentRequest) -> bool:
    if not all(isinstance(tool, ToolSpec) for tool in request.tools) or not _KEPT_ELSEWHERE.isdisjoint(request.extra):
        return False
    for part in (part for message in request.to_messages() for part in message.parts):
        if isinstance(part, ToolResult):
            if not isinstance(part.content, str) and not all(isinstance(one, TextContent) for one in part.content):
                return False
        elif not isinstance(part, TextContent | ThinkingContent | ToolCall):
            return False
    return True
