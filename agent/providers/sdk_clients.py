"""SDK clients: detection of the vendor, and codecs for requests that a client sends.

An official SDK's client has its own address, key, proxies and headers, so its codec writes relative URLs without
credentials. Clients are recognized by class name; no SDK is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import urlsplit

from .. import errors
from ..types import AgentConfig
from .base import Provider
from .codec import CodecBase, secrets_in

_CREDENTIALS = (
    "api_key", "auth_token", "access_token", "aws_secret_key", "aws_session_token", "_azure_ad_token", "token",
)  # fmt: skip
"""Attributes of clients that hold secrets, which errors must not quote."""
_UNCOUNTED_BASE = "BaseBedrockClient"
"""Base class of clients without an endpoint for counting tokens."""


@dataclass(frozen=True, slots=True)
class SdkClientKind:
    """Properties of an SDK client's class."""

    path: Literal["post", "genai"]
    """How the client sends a ready-made body; see `agent.transports.sdk_clients`."""
    apis: tuple[str, ...]
    """Wire formats that the client can send."""
    blocking: bool
    awaiting: bool
    list_headers: tuple[str, ...] = ()
    """Headers that hold lists: the client's default entries are merged with ours."""
    name: str = ""


_OPENAI = ("openai-chat", "openai-responses")
_ANTHROPIC = ("anthropic",)
_BETAS = ("anthropic-beta",)
_GEMINI = ("gemini",)

_KINDS = {
    ("openai", "SyncAPIClient"): SdkClientKind("post", _OPENAI, True, False),
    ("openai", "AsyncAPIClient"): SdkClientKind("post", _OPENAI, False, True),
    ("anthropic", "SyncAPIClient"): SdkClientKind("post", _ANTHROPIC, True, False, _BETAS),
    ("anthropic", "AsyncAPIClient"): SdkClientKind("post", _ANTHROPIC, False, True, _BETAS),
    ("google.genai", "Client"): SdkClientKind("genai", _GEMINI, True, True),
    ("google.genai", "AsyncClient"): SdkClientKind("genai", _GEMINI, False, True),
}
"""By package and base class."""


def identify_client(client: Any) -> SdkClientKind:
    """Identify a client by its class or one of its base classes."""
    for base in type(client).__mro__:
        for (package, name), kind in _KINDS.items():
            if base.__name__ == name and f"{base.__module__}.".startswith(f"{package}."):
                return replace(kind, name=type(client).__name__)
    raise errors.ConfigurationError(
        f"Unsupported client: {type(client).__name__}.",
        field="client",
        fix="Pass a client of openai, anthropic or google-genai, or use transport= to send bytes yourself.",
    )


def build_client_codec(
    client: Any, kind: SdkClientKind, make: Callable[[AgentConfig], Provider], config: AgentConfig
) -> Any:
    """Build the configured provider's codec for requests that the client sends.

    Args:
        client: The client.
        kind: The result of `identify_client`.
        make: The provider's factory.
        config: The agent's configuration, without key and address.
    """
    if config.api_key is not None or config.base_url is not None:
        raise errors.ConfigurationError(
            "client= cannot be combined with api_key= or base_url=.",
            field="client",
            fix="Pass api_key and base_url to the client.",
        )
    # The client's address decides which API and which dialect the provider uses.
    usual = make(config.with_overrides(base_url=_base_url(client, kind), api_key="client", allow_insecure=True))
    if usual.api not in kind.apis:
        raise errors.ConfigurationError(
            f"The provider {config.provider!r} uses {usual.api}, which a client of type {kind.name} does not support.",
            field="client",
            fix=f"Use a provider for {' or '.join(kind.apis)}, or another client.",
        )
    if not isinstance(usual, CodecBase):
        raise errors.ConfigurationError(
            f"The provider {config.provider!r} does not support SDK clients.",
            field="client",
            fix="Use a built-in provider with client=, or pass transport=.",
        )
    codec = usual.with_client(client, _merge_headers(config.headers.reveal(), client, kind))
    codec._secrets = tuple(dict.fromkeys((*codec._secrets, *_secrets_of(client))))
    if _has_base(client, _UNCOUNTED_BASE):
        codec.capabilities = codec.capabilities.model_copy(update={"token_counting": False})
    return codec


def _has_base(client: Any, name: str) -> bool:
    return any(base.__name__ == name for base in type(client).__mro__)


def _merge_headers(headers: Mapping[str, str], client: Any, kind: SdkClientKind) -> dict[str, str]:
    """The agent's headers. Those with lists begin with the client's default entries."""
    merged = {name.lower(): value for name, value in headers.items()}
    for name, value in _default_headers(client).items():
        if name.lower() in kind.list_headers:
            merged[name.lower()] = ",".join(filter(None, (value, merged.get(name.lower()))))
    return merged


def _default_headers(client: Any) -> dict[str, str]:
    headers = _attributes(client).get("_custom_headers") or {}
    return {name: value for name, value in headers.items() if isinstance(value, str)}


def _base_url(client: Any, kind: SdkClientKind) -> str:
    """The client's base URL without credentials; a placeholder for Azure behind a gateway, and for Google."""
    if kind.path == "genai":
        return "https://sdk-client.example"
    url = urlsplit(str(client.base_url))
    if _has_base(client, "BaseAzureClient"):
        return f"https://sdk-client.openai.azure.com{url.path}".rstrip("/")
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}".rstrip("/")


def _secrets_of(client: Any) -> tuple[str, ...]:
    """Read secrets from plain attributes. A property could warn or fetch a token."""
    holders = [_attributes(client), _attributes(_attributes(client).get("_api_client"))]
    holders += [_attributes(holder.get(name)) for holder in holders for name in ("credentials", "_credentials")]
    values = (holder.get(name) for holder in holders for name in _CREDENTIALS)
    return (*{value for value in values if isinstance(value, str) and value}, *secrets_in(_default_headers(client)))


def _attributes(holder: Any) -> dict[str, Any]:
    return getattr(holder, "__dict__", {})
