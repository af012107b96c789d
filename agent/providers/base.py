"""What a vendor's codec looks like. A codec is pure: it holds credentials and an address, and translates.

Requests go in and wire requests come out; replies and bytes go in and responses and events come out. It knows no time,
no sockets and no retries, so every rule about a vendor can be tested without any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from ..errors import AgentError
from ..types import AgentConfig, AgentRequest, AgentResponse, ProviderCapabilities, StreamEvent
from ..wire import Reply, WireRequest


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
