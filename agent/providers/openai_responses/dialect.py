"""Dialects of the Responses API: the differences between vendors, as data."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...types import ProviderCapabilities
from .models import MODELS, ModelFeatures

API = "openai-responses"
SCHEMA_DIALECT = "openai"
MAX_NAME_LENGTH = 64
"""Of a tool name."""
CUSTOM = "custom"
"""`provider_data["type"]` of a call whose tool takes text instead of JSON."""


def _capabilities() -> ProviderCapabilities:
    return ProviderCapabilities(
        streaming=True,
        tools=True,
        structured_output=True,
        json_mode=True,
        vision=True,
        system_messages=True,
        native_schema_output=True,
        thinking=True,
        documents=True,
        token_counting=True,
    )


@dataclass(frozen=True, slots=True)
class Dialect:
    """The Responses API as one vendor implements it. The defaults are OpenAI's."""

    model_provider: str = "openai"
    """The provider under which `agent.models` lists these models."""
    models: tuple[ModelFeatures, ...] = MODELS
    key_header: str = "authorization"
    """Header for the key; `authorization` has `Bearer` before it."""
    api_version: str | None = None
    """Sent as `api-version` in the query."""
    encrypted_reasoning: bool = True
    """Returns reasoning in encrypted form, so that nothing needs to be stored at the vendor."""
    cache_settings: bool = True
    """Accepts a cache key, and settings for how long prompts are cached."""
    metadata: bool = True
    min_output_tokens: int = 16
    """The lowest output limit that the vendor accepts."""
    counts_tokens: bool = True
    capabilities: ProviderCapabilities = field(default_factory=_capabilities)


OPENAI = Dialect()
