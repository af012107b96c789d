"""The Responses API of OpenAI and compatible vendors, such as Azure, xAI and OpenRouter.

The vendor stores nothing unless the request sets `store`.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from ...types import AgentConfig
from ...wire_formats import WireFormat
from ..base import Provider, ProviderFactory
from ..openai_chat import provider as chat_provider
from ..openai_chat.codec import with_openai_base_url
from .codec import ResponsesCodec
from .models import API

__all__ = ["API", "WIRE_FORMAT", "ResponsesCodec", "provider"]

WIRE_FORMAT = WireFormat(
    API, price_list="openai", facts=("openai",), rules="agent.testing.rules.openai_responses:ResponsesRules"
)

_HOSTS = re.compile(r"(?:[a-z0-9-]+\.)?api\.openai\.com|[a-z0-9-]+\.openai\.azure\.com", re.I)
"""Hosts that serve the Responses API."""
_SHARED_HOSTS = re.compile(r"[a-z0-9-]+\.(?:services\.ai|cognitiveservices)\.azure\.com", re.I)
"""Azure hosts that serve several APIs, OpenAI's below a path of its own."""


def provider(name: str) -> ProviderFactory:
    """Factory for OpenAI's API under the given name, or for a compatible server at a base_url.

    The provider `openai` uses Chat Completions if the base_url is a host that is not known to serve the Responses API.
    """

    def make(config: AgentConfig) -> Provider:
        config = with_openai_base_url(config)
        if name == "openai" and config.base_url is not None and not _has_responses_api(config.base_url):
            return chat_provider(name)(config)
        return ResponsesCodec.from_config(config, name)

    return make


def _has_responses_api(base_url: str) -> bool:
    address = urlsplit(base_url)
    host, path = address.hostname or "", f"{address.path.rstrip('/')}/"
    if _HOSTS.fullmatch(host):
        return "/deployments/" not in path  # the address of one deployment serves only Chat Completions
    return bool(_SHARED_HOSTS.fullmatch(host)) and path.startswith("/openai/v1/")
