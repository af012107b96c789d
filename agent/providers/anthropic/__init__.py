"""Anthropic's Messages API, which some other vendors offer, too."""

from __future__ import annotations

from ..base import ProviderFactory
from .codec import AnthropicCodec
from .models import API

__all__ = ["API", "AnthropicCodec", "provider"]


def provider(name: str) -> ProviderFactory:
    """Factory for the API under the given name."""
    return lambda config: AnthropicCodec.from_config(config, name)
