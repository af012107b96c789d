"""Anthropic's Messages API, which compatible vendors also serve."""

from __future__ import annotations

from ...wire_formats import WireFormat
from ..base import ProviderFactory
from .codec import AnthropicCodec
from .models import API, SCHEMA_DIALECT

__all__ = ["API", "WIRE_FORMAT", "AnthropicCodec", "provider"]

WIRE_FORMAT = WireFormat(
    API, price_list="anthropic", schema_dialect=SCHEMA_DIALECT, rules="agent.testing.rules.anthropic:AnthropicRules"
)


def provider(name: str) -> ProviderFactory:
    """Return the provider factory for a name."""
    return lambda config: AnthropicCodec.from_config(config, name)
