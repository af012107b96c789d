"""Targets of every wire format, and their encoded requests."""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any

from agent.errors import AgentError
from agent.providers import Provider, load_provider
from agent.types import AgentConfig, AgentRequest

TARGETS = (
    "openai-chat:gpt-5",
    "openai-chat:gpt-5.6",
    "openai-chat:gpt-4o",
    "openai-responses:gpt-5",
    "openai-responses:gpt-5.6",
    "anthropic:claude-sonnet-4-5",
    "anthropic:claude-opus-4-6",
    "gemini:gemini-2.5-pro",
    "gemini:gemini-3.5-flash",
    "vertex:gemini-2.5-pro",
    "deepseek:deepseek-chat",
    "mistral:mistral-large-latest",
    "openrouter:anthropic/claude-sonnet-4.5",
)


@cache
def codec_of(target: str) -> Provider:
    provider = target.partition(":")[0]
    return load_provider(provider)(AgentConfig(provider=provider, model=model_of(target), api_key="sk-0123456789"))


def model_of(target: str) -> str:
    return target.partition(":")[2]


def encode_request(target: str, request: AgentRequest, *, stream: bool = False) -> tuple[Any, ...]:
    """Encode a request for a target; return the wire request, or the error."""
    try:
        wire = codec_of(target).encode(request, stream=stream)
    except AgentError as error:
        return type(error), str(error)
    return wire.url, wire.headers, wire.body, wire.warnings


def copy_request(request: AgentRequest) -> AgentRequest:
    """Return an equal request of new objects."""
    copy: AgentRequest = pickle.loads(pickle.dumps(request))
    return copy
