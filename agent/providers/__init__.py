"""Registry of providers by name. Modules are imported on first use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .. import errors
from .._missing_names import reject_names
from ..types.option_errors import find_similar
from ..wire_formats import WIRE_FORMATS
from .base import Provider, ProviderFactory, StreamDecoder

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from ..types import AgentConfig
    from .function import ModelFunction
    from .openai_chat import Dialect
    from .server_dialect import ServerDialect

__all__ = [
    "Provider",
    "ProviderFactory",
    "StreamDecoder",
    "find_server_dialect",
    "list_providers",
    "load_provider",
    "register_provider",
    "server_dialects",
]

if not TYPE_CHECKING:
    __getattr__ = reject_names(__name__, __all__)

ENTRY_POINTS = "agent.providers"

_COMPATIBLE = (
    "alibaba avian azure baseten cerebras cloudflare crusoe databricks deepinfra deepseek fireworks gemini-chat "
    "github-models gpustack groq huggingface hyperbolic llamacpp lmstudio minimax mistral moonshot nebius novita "
    "nvidia ollama openrouter perplexity sambanova siliconflow snowflake together vercel vllm xai zai"
)
"""OpenAI-compatible vendors, each a row in `compatible`."""

_BUILT_IN = {
    **dict.fromkeys(_COMPATIBLE.split(), "compatible"),
    "openai": "openai_responses",
    "vertex": "gemini",
    "local": "local",
    "scripted": "scripted",
}
"""Modules with a `provider(name)` function, by provider name. Wire formats are in `WIRE_FORMATS`."""

_OTHER_NAMES = {
    "aws": "bedrock",
    "azure-ai": "azure",
    "azure-openai": "azure",
    "bedrock-converse": "bedrock",
    "claude": "anthropic",
    "cloudflare-workers-ai": "cloudflare",
    "dashscope": "alibaba",
    "fireworks-ai": "fireworks",
    "google": "gemini",
    "google-genai": "gemini",
    "google-gla": "gemini",
    "google-vertex": "vertex",
    "google-vertexai": "vertex",
    "grok": "xai",
    "hf": "huggingface",
    "hosted-vllm": "vllm",
    "kimi": "moonshot",
    "moonshotai": "moonshot",
    "nvidia-nim": "nvidia",
    "ollama-chat": "ollama",
    "qwen": "alibaba",
    "together-ai": "together",
    "vertex-ai": "vertex",
    "vercel-ai-gateway": "vercel",
    "x-ai": "xai",
    "z-ai": "zai",
    "zhipu": "zai",
}
"""Providers by their names in other libraries, with hyphens for underscores."""

_registered: dict[str, ProviderFactory] = {}


def register_provider(
    name: str, provider: ProviderFactory | Dialect | None = None, *, function: ModelFunction | None = None
) -> None:
    """Add a provider under a name, or replace one.

    Args:
        name: The part before the colon in `name:model`.
        provider: A `Dialect` for a vendor of Chat Completions, or a factory from a configuration to a codec.
        function: A Python function that acts as the model, instead of a provider. It receives the `AgentRequest` and
            returns text, an `AgentResponse`, parts, or a value that is serialized as JSON; or it yields text, parts or
            events. It may be async.
    """
    if not name or ":" in name or name != name.strip():
        raise errors.ConfigurationError(
            f"Invalid provider name: {name!r}.", field="name", fix="Use a short name without colons or spaces."
        )
    if (provider is None) is (function is None):
        raise errors.ConfigurationError(
            f"The provider {name!r} needs either a provider or a function.",
            field="function",
            fix="Pass a Dialect, a factory, or function=.",
        )
    _registered[name] = _factory(name, provider) if function is None else _function(name, function)


def _factory(name: str, provider: Any) -> ProviderFactory:
    if not callable(provider):
        from .openai_chat import ChatCodec, Dialect  # lazy: vendors are loaded on first use

        if isinstance(provider, Dialect):
            dialect = replace(provider, name=name)
            return lambda config: ChatCodec.from_config(config, dialect)
        raise errors.ConfigurationError(
            f"The provider {name!r} is a {type(provider).__name__}.",
            field="provider",
            fix="Use a Dialect, a factory, or a function that takes the request.",
        )
    factory: ProviderFactory = provider
    return factory


def _function(name: str, function: ModelFunction) -> ProviderFactory:
    from .function import function_provider  # lazy: only functions as models need it

    return function_provider(function, name)


def list_providers() -> list[str]:
    """Return the names of all providers."""
    return sorted({*WIRE_FORMATS, *_BUILT_IN, *_registered, *(point.name for point in _entry_points())})


def load_provider(name: str) -> ProviderFactory:
    """Return the factory of a provider.

    Raises:
        ConfigurationError: The name is unknown.
    """
    if (registered := _registered.get(name)) is not None:
        return registered
    module = f"{__name__}.{_BUILT_IN[name]}" if name in _BUILT_IN else WIRE_FORMATS.get(name)
    if module is not None:
        provider: Callable[[str], ProviderFactory] = import_module(module).provider
        return provider(name)
    for point in _entry_points():
        if point.name == name:
            from .function import is_model_function  # lazy: only functions as models need it

            loaded = point.load()
            return _function(name, loaded) if callable(loaded) and is_model_function(loaded) else _factory(name, loaded)
    raise errors.ConfigurationError(
        f"There is no provider named {name!r}.",
        field="provider",
        fix=suggest_provider(name)
        or f"Use one of {', '.join(list_providers())}, or add yours with register_provider().",
    )


def suggest_provider(name: str) -> str | None:
    """Return the fix for a misspelled provider, or one with its name in another library."""
    known = list_providers()
    spelled = name.strip().lower().replace("_", "-")
    named = spelled if spelled in known else _OTHER_NAMES.get(spelled)
    similar = [named] if named is not None else find_similar(spelled, known, 3)
    return f"Did you mean {' or '.join(similar)}?" if similar else None


def provider_for_client(client: Any, make: ProviderFactory, config: AgentConfig) -> Provider:
    """Return a provider whose requests an SDK client sends."""
    from .sdk_clients import build_client_codec, identify_client  # lazy: only SDK clients need it

    provider: Provider = build_client_codec(client, identify_client(client), make, config)
    return provider


@cache
def server_dialects() -> tuple[ServerDialect, ...]:
    """Return the server side of every wire format."""
    return tuple(import_module(f"{package}.server").SERVER for package in WIRE_FORMATS.values())


def find_server_dialect(url: str) -> ServerDialect | None:
    """Find the server side of the wire format that a URL's path belongs to."""
    return next((server for server in server_dialects() if server.match_endpoint(url) is not None), None)


def _entry_points() -> list[EntryPoint]:
    from importlib.metadata import entry_points  # lazy: slow to import

    return list(entry_points(group=ENTRY_POINTS))
