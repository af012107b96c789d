"""Anthropic's Messages API, which a few other vendors speak, too.

How its models differ is data, in `family`. The conversation is brought into turns in `turns`, written block by block
in `blocks`, surrounded with settings in `settings`, and put together in `body`.
"""

from __future__ import annotations

from ..base import ProviderFactory
from .codec import AnthropicCodec
from .family import API

__all__ = ["API", "AnthropicCodec", "provider"]


def provider(name: str) -> ProviderFactory:
    """The factory for the API under the given name."""
    return lambda config: AnthropicCodec.from_config(config, name)
