"""The Responses API, which OpenAI defined, and Azure, xAI, OpenRouter and others speak, too.

Differences between vendors and between models are data: `Traits` and `Family`. Nothing is stored at the vendor unless
the caller asks for it.
"""

from __future__ import annotations

from ...wire_formats import WireFormat
from ..base import ProviderFactory
from ..openai_chat.address import settled
from .codec import BASE_URL, ResponsesCodec
from .traits import API, FAMILIES, OPENAI, Family, Traits

__all__ = ["API", "FAMILIES", "OPENAI", "WIRE_FORMAT", "Family", "ResponsesCodec", "Traits", "factory", "provider"]

WIRE_FORMAT = WireFormat(API, price_list="openai", facts=("openai",), rules="agent.testing.rules:ResponsesRules")


def provider(name: str) -> ProviderFactory:
    """The factory for the Responses API at OpenAI, or wherever `base_url` points, under the given name."""
    return lambda config: factory(name)(settled(config))


def factory(
    name: str,
    traits: Traits = OPENAI,
    *,
    base_url: str | None = BASE_URL,
    key_variables: tuple[str, ...] = ("OPENAI_API_KEY",),
    base_url_variables: tuple[str, ...] = ("OPENAI_BASE_URL",),
    key_required: bool = True,
) -> ProviderFactory:
    """The factory for any vendor of this API; keys, addresses and ways as given."""
    return lambda config: ResponsesCodec.from_config(
        config,
        name=name,
        traits=traits,
        base_url=base_url,
        key_variables=key_variables,
        base_url_variables=base_url_variables,
        key_required=key_required,
    )
