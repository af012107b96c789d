"""Amazon Bedrock: the Converse and ConverseStream operations."""

from __future__ import annotations

from ...wire_formats import WireFormat
from ..base import ProviderFactory
from .codec import BedrockCodec
from .models import API

__all__ = ["API", "WIRE_FORMAT", "BedrockCodec", "provider"]

WIRE_FORMAT = WireFormat(API, price_list="aws", facts=("anthropic", "nova"))


def provider(name: str) -> ProviderFactory:
    """Return the provider factory for a name."""
    return lambda config: BedrockCodec.from_config(config, name)
