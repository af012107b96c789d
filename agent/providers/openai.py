"""OpenAI itself: which of its APIs a configuration means.

At OpenAI and Azure it is the Responses API. Whoever else calls itself compatible means Chat Completions by that.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from ..types import AgentConfig
from .base import Provider, ProviderFactory
from .openai_chat import provider as chat_provider
from .openai_chat.codec import with_openai_base_url
from .openai_responses import ResponsesCodec

_HOSTS_WITH_RESPONSES = re.compile(r"(?:[a-z0-9-]+\.)?api\.openai\.com|[a-z0-9-]+\.openai\.azure\.com", re.I)
_HOSTS_OF_MANY_APIS = re.compile(r"[a-z0-9-]+\.(?:services\.ai|cognitiveservices)\.azure\.com", re.I)
"""Azure's addresses for everything; OpenAI's APIs have a path of their own there."""


def provider(name: str) -> ProviderFactory:
    return lambda config: _chosen(name, config)


def _chosen(name: str, config: AgentConfig) -> Provider:
    config = with_openai_base_url(config)
    if config.base_url is None or has_responses(config.base_url):
        return ResponsesCodec.from_config(config, name=name)
    return chat_provider(name)(config)


def has_responses(base_url: str) -> bool:
    """Whether the Responses API is at home at an address."""
    address = urlsplit(base_url)
    host, path = address.hostname or "", f"{address.path.rstrip('/')}/"
    if _HOSTS_WITH_RESPONSES.fullmatch(host):
        return "/deployments/" not in path  # the address of one deployment has only Chat Completions
    return bool(_HOSTS_OF_MANY_APIS.fullmatch(host)) and path.startswith("/openai/v1/")
