"""Recorded requests read back into ours: what a caller would have asked for."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from agent.types import AgentRequest, TextContent, ThinkingContent, ToolCall, ToolResult, ToolSpec
from tests.corpus import APIS, Exchange, exchanges
from tests.providers import reading_anthropic, reading_gemini, reading_openai_chat, reading_openai_responses

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
    """A recorded request in our types."""
    body = exchange.request or {}
    match exchange.api:
        case "openai.chat":
            return reading_openai_chat.read_request(body, exchange.provider, exchange.model)
        case "openai.responses":
            return reading_openai_responses.read_request(body, exchange.model)
        case "anthropic.messages":
            return reading_anthropic.read_request(body, exchange.model)
        case _:
            return reading_gemini.read_request(body, exchange.model)


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
                continue  # what our types refuse has no place here
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
