"""Protocols of providers and stream decoders, and the address and key of an API.

A provider is pure: it encodes requests and decodes responses, without sockets, clocks or retries.
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
    """Incremental decoder of one stream: bytes in, events out.

    `feed` never raises, so events before a failure are not lost; the error is in `failure`.
    """

    failure: AgentError | None

    @property
    def done(self) -> bool:
        """Whether the terminal event has arrived. A stream without it is incomplete."""
        ...

    def feed(self, chunk: bytes) -> list[StreamEvent]: ...

    def end(self) -> list[StreamEvent]:
        """Decode the end of the bytes, which is the terminal event of some vendors."""
        ...

    def response(self) -> AgentResponse:
        """The fold of all events. Valid only if the stream is done."""
        ...

    def partial(self) -> AgentResponse:
        """The fold of the events so far."""
        ...


class Provider(Protocol):
    """One vendor at one address."""

    @property
    def name(self) -> str: ...

    @property
    def api(self) -> str:
        """Name of the wire format, which several vendors may share."""
        ...

    @property
    def transport(self) -> str:
        """Name of the default transport."""
        ...

    @property
    def capabilities(self) -> ProviderCapabilities: ...

    @property
    def schema_dialect(self) -> str | None:
        """JSON Schema subset of this API, by its name in `agent.schemas`; None if it accepts any or none."""
        ...

    def encode(self, request: AgentRequest, *, stream: bool) -> WireRequest: ...

    def decode(self, reply: Reply, request: AgentRequest) -> AgentResponse: ...

    def decode_error(self, reply: Reply, request: AgentRequest) -> AgentError: ...

    def decoder(self, headers: Mapping[str, str], request: AgentRequest) -> StreamDecoder: ...


class LimitsSchemas(Protocol):
    """A provider with models that accept no output schema together with tools."""

    def schema_with_tools(self, model: str) -> bool: ...


class RedactsSecrets(Protocol):
    """A provider whose requests contain secrets, which errors must not show."""

    def redact(self, text: str) -> str: ...


class CountsTokens(Protocol):
    """A provider with an endpoint that counts the tokens of a request without answering it."""

    def encode_count(self, request: AgentRequest) -> WireRequest: ...

    def decode_count(self, reply: Reply, request: AgentRequest) -> int: ...


class StoresResponses(Protocol):
    """A provider whose responses can be requested by id."""

    def encode_retrieve(self, response_id: str, request: AgentRequest) -> WireRequest: ...

    def encode_cancel(self, response_id: str) -> WireRequest: ...


ProviderFactory: TypeAlias = Callable[[AgentConfig], Provider]
"""Creates a provider from a configuration whose credentials are resolved."""


class ApiAddress(NamedTuple):
    """Base URL and key of an API."""

    base_url: str
    key: Secret | None

    @property
    def secrets(self) -> tuple[str, ...]:
        """The key, which errors must not quote, if there is one."""
        return () if self.key is None else (self.key.get_secret_value(),)

    def credentials(self, header: str = "authorization", prefix: str = "Bearer ") -> dict[str, str]:
        """Return the header with the key, if there is one."""
        return {} if self.key is None else {header: prefix + self.key.get_secret_value()}


NO_ADDRESS = ApiAddress("", None)
"""For codecs behind an SDK client, which adds its own address and key."""


def resolve_address(
    config: AgentConfig,
    *,
    default_base_url: str | None,
    key_variables: tuple[str, ...],
    base_url_variables: tuple[str, ...] = (),
    key_required: bool = True,
) -> ApiAddress:
    """Resolve key and base URL: configuration, then environment, then the default base URL."""
    if config.base_url is None and (value := first_variable(base_url_variables)) is not None:
        config = with_base_url(config, value)
    base_url = config.base_url or default_base_url
    if base_url is None:
        raise errors.ConfigurationError(
            f"The provider {config.provider!r} has no default base_url.",
            field="base_url",
            fix="Pass base_url=, such as http://localhost:8000/v1.",
        )
    base_url = base_url.rstrip("/")
    key = config.api_key
    if key is None and (text := first_variable(key_variables)) is not None:
        # Validated like an argument: a key with a line break must not reach a header.
        key = validate_with(lambda: config.with_overrides(api_key=text)).api_key
    local = is_loopback(base_url)
    if key is None and key_required and not local:
        names = " or ".join(key_variables) or "no variable"
        raise errors.AuthenticationError(
            f"There is no key for {config.provider!r}.",
            provider=config.provider,
            fix=f"Set the environment variable {names}, or pass api_key=.",
        )
    if key is not None and urlsplit(base_url).scheme != "https" and not local and not config.allow_insecure:
        raise errors.ConfigurationError(
            "The key would be sent unencrypted: base_url is plain http and not a loopback address.",
            field="base_url",
            fix="Use https, or pass allow_insecure=True if the network is yours.",
        )
    return ApiAddress(base_url, key)


def with_base_url(config: AgentConfig, base_url: str) -> AgentConfig:
    """Return the configuration with a base URL from the environment, validate_with like an argument."""
    return validate_with(lambda: config.with_overrides(base_url=base_url))


def make_capabilities(**differences: bool) -> ProviderCapabilities:
    """Return the capabilities of most vendors, with differences."""
    names = ("streaming", "tools", "structured_output", "json_mode", "vision", "native_schema_output", "thinking")
    return ProviderCapabilities(**{**dict.fromkeys(names, True), **differences})


def first_variable(names: tuple[str, ...]) -> str | None:
    """The value of the first environment variable that is set and not blank."""
    return next((value for name in names if (value := os.environ.get(name, "").strip())), None)


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
