"""What a vendor's codec looks like. A codec is pure: it holds credentials and an address, and translates.

Requests go in and wire requests come out; replies and bytes go in and responses and events come out. It knows no time,
no sockets and no retries, so every rule about a vendor can be tested without any.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeAlias
from urllib.parse import urlsplit

from .. import errors
from ..engine.wire import Reply, WireRequest
from ..errors import AgentError
from ..types import AgentConfig, AgentRequest, AgentResponse, ProviderCapabilities, Secret, StreamEvent
from ..types._base import validate_with


class StreamDecoder(Protocol):
    """Is pushed the bytes of one stream.

    `feed` never raises: events that came before a failure must not be lost with it. What went wrong is in `failure`.
    """

    failure: AgentError | None

    @property
    def done(self) -> bool:
        """Whether the stream's terminal event has come: only then is it complete."""
        ...

    def feed(self, chunk: bytes) -> list[StreamEvent]: ...

    def end(self) -> list[StreamEvent]:
        """The bytes have ended. The last events of a vendor whose terminal event is the end itself."""
        ...

    def response(self) -> AgentResponse:
        """The fold of all events. Asked only of a stream that is done."""
        ...

    def partial(self) -> AgentResponse:
        """What has come so far."""
        ...


class Provider(Protocol):
    """One vendor at one address."""

    @property
    def name(self) -> str: ...

    @property
    def api(self) -> str:
        """The wire format, which several vendors may share."""
        ...

    @property
    def transport(self) -> str:
        """The transport that carries its requests unless the caller brings one."""
        ...

    @property
    def capabilities(self) -> ProviderCapabilities: ...

    @property
    def schema_dialect(self) -> str | None:
        """The subset of JSON schema this API takes, as `agent.schemas` calls it; None if it takes any or none."""
        ...

    def encode(self, request: AgentRequest, *, stream: bool) -> WireRequest: ...

    def decode(self, reply: Reply, request: AgentRequest) -> AgentResponse: ...

    def decode_error(self, reply: Reply, request: AgentRequest) -> AgentError: ...

    def decoder(self, headers: Mapping[str, str], request: AgentRequest) -> StreamDecoder: ...


class LimitsSchemas(Protocol):
    """A provider of which some models take no output schema beside tools; without this, all are taken to."""

    def schema_with_tools(self, model: str) -> bool: ...


class CountsTokens(Protocol):
    """A provider whose vendor counts the tokens of a request exactly, without answering it."""

    def encode_count(self, request: AgentRequest) -> WireRequest: ...

    def decode_count(self, reply: Reply, request: AgentRequest) -> int: ...


ProviderFactory: TypeAlias = Callable[[AgentConfig], Provider]
"""Makes a provider from a configuration, its credentials resolved."""


class ApiAddress(NamedTuple):
    """Where requests go and with what key."""

    base_url: str
    key: Secret | None


NO_ADDRESS = ApiAddress("", None)
"""Of a codec whose requests a client completes, with an address and a key of its own."""


def resolve_address(
    config: AgentConfig,
    *,
    default_base_url: str | None,
    key_variables: tuple[str, ...],
    base_url_variables: tuple[str, ...] = (),
    key_required: bool = True,
) -> ApiAddress:
    """The configuration's key and address, else the environment's, else the vendor's usual address."""
    if config.base_url is None and (found := _first_set(base_url_variables)) is not None:
        config = validate_with(lambda: config.with_overrides(base_url=found))
    base_url = config.base_url or default_base_url
    if base_url is None:
        raise errors.ConfigurationError(
            f"The provider {config.provider!r} has no address of its own.",
            field="base_url",
            fix="Pass base_url=, such as http://localhost:8000/v1.",
        )
    base_url = base_url.rstrip("/")
    key = config.api_key if config.api_key is not None else _key_from(config, key_variables)
    local = is_loopback(base_url)
    if key is None and key_required and not local:
        names = " or ".join(key_variables) or "no variable"
        raise errors.AuthenticationError(
            f"There is no key for {config.provider!r}: set the environment variable {names}, or pass api_key=.",
            provider=config.provider,
        )
    if key is not None and urlsplit(base_url).scheme != "https" and not local and not config.allow_insecure:
        raise errors.ConfigurationError(
            "The key would travel unencrypted: base_url is plain http and not on this machine.",
            field="base_url",
            fix="Use https, or pass allow_insecure=True if the network is yours.",
        )
    return ApiAddress(base_url, key)


def _key_from(config: AgentConfig, variables: tuple[str, ...]) -> Secret | None:
    text = _first_set(variables)
    # Validated as if it had been passed in: a key with a line break must not reach a header.
    return None if text is None else validate_with(lambda: config.with_overrides(api_key=text.strip())).api_key


def _first_set(variables: tuple[str, ...]) -> str | None:
    return next((value for name in variables if (value := os.environ.get(name, "").strip())), None)


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
