"""Clients that the caller brings: which vendor's they are, and the codec for what they carry.

A client of an official SDK has its own address, key, proxies and headers. Its codec therefore knows none of them: it
writes paths, which the client completes. Clients are told apart by the names of their classes, so no SDK is imported.
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

SdkPath = Literal["post", "genai"]
"""The way a client sends bodies that it did not write itself; `agent.transports.sdk_clients` knows how."""

_STAND_IN = "https://brought-client.example"
_CREDENTIALS = (
    "api_key",
    "auth_token",
    "access_token",
    "aws_secret_key",
    "aws_session_token",
    "_azure_ad_token",
    "token",
)
"""Attributes of clients that hold secrets: no error may quote them."""

_COUNTS_NOTHING = ("BaseBedrockClient",)
"""Clients of clouds that have no endpoint for counting tokens."""


@dataclass(frozen=True, slots=True)
class SdkClientKind:
    """What a client is."""

    path: SdkPath
    apis: tuple[str, ...]
    """The wire formats it can carry."""
    blocking: bool
    awaiting: bool
    listing: tuple[str, ...] = ()
    """Headers that hold lists: what the client sends in them by default is sent along with what we send."""
    name: str = ""


_OPENAI = ("openai-chat", "openai-responses")
_ANTHROPIC = ("anthropic",)
_BETAS = ("anthropic-beta",)
_GEMINI = ("gemini",)

_KINDS = {
    ("openai", "SyncAPIClient"): SdkClientKind("post", _OPENAI, blocking=True, awaiting=False),
    ("openai", "AsyncAPIClient"): SdkClientKind("post", _OPENAI, blocking=False, awaiting=True),
    ("anthropic", "SyncAPIClient"): SdkClientKind("post", _ANTHROPIC, blocking=True, awaiting=False, listing=_BETAS),
    ("anthropic", "AsyncAPIClient"): SdkClientKind("post", _ANTHROPIC, blocking=False, awaiting=True, listing=_BETAS),
    ("google.genai", "Client"): SdkClientKind("genai", _GEMINI, blocking=True, awaiting=True),
    ("google.genai", "AsyncClient"): SdkClientKind("genai", _GEMINI, blocking=False, awaiting=True),
}
"""By package and class; subclasses, such as those for clouds, are what their base is."""


def identify_client(client: Any) -> SdkClientKind:
    """What a client is, by its class or one of its bases."""
    for base in type(client).__mro__:
        for (package, name), kind in _KINDS.items():
            if base.__name__ == name and f"{base.__module__}.".startswith(f"{package}."):
                return replace(kind, name=type(client).__name__)
    raise errors.ConfigurationError(
        f"A {type(client).__name__} is no client that requests can be sent through.",
        field="client",
        fix="Bring a client of openai, anthropic or google-genai; for your own way to send bytes, pass transport=.",
    )


def build_client_codec(
    client: Any, kind: SdkClientKind, make: Callable[[AgentConfig], Provider], config: AgentConfig
) -> Any:
    """The codec of the configured provider, without an address and without a key.

    Args:
        client: The client that was brought.
        kind: What `identify_client` found it to be.
        make: The provider's factory.
        config: The agent's configuration; key and address are the client's.
    """
    if config.api_key is not None or config.base_url is not None:
        raise errors.ConfigurationError(
            "A client is given, and so is a key or an address; the client has its own.",
            field="client",
            fix="Give api_key and base_url to the client, and leave them out here.",
        )
    # The provider decides as if it were to reach that address itself: which API, which vendor's accent.
    usual = make(config.with_overrides(base_url=_address_of(client, kind), api_key="brought", allow_insecure=True))
    if usual.api not in kind.apis:
        raise errors.ConfigurationError(
            f"The provider {config.provider!r} speaks {usual.api}, and a client of type {kind.name} does not.",
            field="client",
            fix=f"Use a provider that speaks {' or '.join(kind.apis)}, or bring another client.",
        )
    if not isinstance(usual, CodecBase):
        raise errors.ConfigurationError(
            f"The provider {config.provider!r} cannot do without an address of its own.",
            field="client",
            fix="Use one of the built-in providers with a client.",
        )
    codec = usual.with_client(client, _joined(config.headers.reveal(), client, kind))
    codec._secrets = tuple(dict.fromkeys((*codec._secrets, *_secrets_of(client))))
    if any(base.__name__ in _COUNTS_NOTHING for base in type(client).__mro__):
        codec.capabilities = codec.capabilities.model_copy(update={"token_counting": False})
    return codec


def _joined(headers: Mapping[str, str], client: Any, kind: SdkClientKind) -> dict[str, str]:
    """The agent's headers; in those that hold lists, first the client's own entries."""
    found = {name.lower(): value for name, value in headers.items()}
    for name, value in _default_headers(client).items():
        if name.lower() in kind.listing:
            found[name.lower()] = ",".join(filter(None, (value, found.get(name.lower()))))
    return found


def _default_headers(client: Any) -> dict[str, str]:
    """What the client was told to send with every request."""
    given = _attributes(client).get("_custom_headers") or {}
    return {name: value for name, value in given.items() if isinstance(value, str)}


def _address_of(client: Any, kind: SdkClientKind) -> str:
    if kind.path == "genai":
        return _STAND_IN
    found = urlsplit(str(client.base_url))
    if any(base.__name__ == "BaseAzureClient" for base in type(client).__mro__):
        # Behind whatever address, it is Azure.
        return f"https://brought.openai.azure.com{found.path}".rstrip("/")
    return f"{found.scheme}://{found.netloc.rpartition('@')[2]}{found.path}".rstrip("/")


def _secrets_of(client: Any) -> tuple[str, ...]:
    """Plain attributes only: a property may warn, or go and fetch a token."""
    holders = [_attributes(client), _attributes(_attributes(client).get("_api_client"))]
    holders += [_attributes(holder.get(name)) for holder in holders for name in ("credentials", "_credentials")]
    values = (holder.get(name) for holder in holders for name in _CREDENTIALS)
    return (*{value for value in values if isinstance(value, str) and value}, *secrets_in(_default_headers(client)))


def _attributes(holder: Any) -> dict[str, Any]:
    return getattr(holder, "__dict__", {})
