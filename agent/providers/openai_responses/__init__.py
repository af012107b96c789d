"""The Responses API of OpenAI and compatible vendors, such as Azure, xAI and OpenRouter.

A `Dialect` describes a vendor's differences as data, `ModelFeatures` those of models. Nothing is stored at the vendor
unless the caller asks for it.
"""

from __future__ import annotations

from ...wire_formats import WireFormat
from ..base import ProviderFactory
from ..openai_chat.codec import with_openai_base_url
from .codec import BASE_URL, ResponsesCodec
from .dialect import API, MODELS, OPENAI, Dialect, ModelFeatures

__all__ = [
    "API",
    "MODELS",
    "OPENAI",
    "WIRE_FORMAT",
    "Dialect",
    "ModelFeatures",
    "ResponsesCodec",
    "factory",
    "provider",
]

WIRE_FORMAT = WireFormat(API, price_list="openai", facts=("openai",), rules="agent.testing.rules:ResponsesRules")


def provider(name: str) -> ProviderFactory:
    """Factory for OpenAI's API under the given name, or for a compatible server at a base_url."""
    return lambda config: factory(name)(with_openai_base_url(config))


def factory(
    name: str,
    dialect: Dialect = OPENAI,
    *,
    base_url: str | None = BASE_URL,
    key_variables: tuple[str, ...] = ("OPENAI_API_KEY",),
    base_url_variables: tuple[str, ...] = ("OPENAI_BASE_URL",),
    key_required: bool = True,
) -> ProviderFactory:
    """Factory for a vendor of this API."""
    return lambda config: ResponsesCodec.from_config(
        config,
        name=name,
        dialect=dialect,
        base_url=base_url,
        key_variables=key_variables,
        base_url_variables=base_url_variables,
        key_required=key_required,
    )
