"""The Chat Completions API of OpenAI and many compatible vendors.

A `Dialect` describes a vendor's differences as data. The codec decodes all known variants and encodes the dialect's.
"""

from __future__ import annotations

from dataclasses import replace

from ...types import AgentConfig
from ...wire_formats import WireFormat
from ..base import ProviderFactory
from .codec import ChatCodec, openai_api_path, with_openai_base_url
from .dialect import API, OPENAI, SCHEMA_DIALECT, UNKNOWN, Dialect

__all__ = ["API", "OPENAI", "WIRE_FORMAT", "ChatCodec", "Dialect", "provider"]

WIRE_FORMAT = WireFormat(
    API,
    price_list="openai",
    facts=("openai",),
    schema_dialect=SCHEMA_DIALECT,
    rules="agent.testing.rules.openai_chat:ChatRules",
)


def provider(name: str) -> ProviderFactory:
    """Factory for OpenAI's API under the given name, or for a compatible server at a base_url."""

    def make(config: AgentConfig) -> ChatCodec:
        config = with_openai_base_url(config)
        is_openai = config.base_url is None or openai_api_path(config.base_url) is not None
        return ChatCodec.from_config(config, replace(OPENAI if is_openai else UNKNOWN, name=name))

    return make
