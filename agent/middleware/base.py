"""Base class of middleware, the description of a call that it receives, and request fingerprints.

`agent.middleware.flow` decides in which order middleware runs and what its return values mean.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, TypeAlias, TypeVar

from typing_extensions import override

from ..engine.context import Context
from ..engine.flow import Flow
from ..engine.wire import WireRequest
from ..errors import ConfigurationError, printable
from ..types import AgentConfig, AgentRequest, AgentResponse, Attempt, StreamEvent

T = TypeVar("T")
Hook: TypeAlias = T | Awaitable[T | None] | Flow[T | None] | None
"""Return type of a middleware method: a value or None, directly, or from an awaitable or a flow."""

ANSWERED_BY = "answered by "
"""Prefix of the reason of an attempt that a middleware answered without sending anything."""

_NEVER_SENT = ("ConfigurationError", "UnsupportedFeatureError")
"""Errors of attempts that ended before anything was sent."""


@dataclass(slots=True, kw_only=True, repr=False)
class CallInfo:
    """Describes one call to one middleware. Only `state` differs between the middleware of a call."""

    streaming: bool
    """Whether the response is streamed."""
    target: str
    """`provider:model`; the name of a router, or of an agent inside one."""
    request: AgentRequest
    """The request before any middleware changed it."""
    hash_request: Callable[[AgentRequest], str] | None = None
    """Returns the fingerprint of a request."""
    run: Any = None  # Any: a RunTurn, or what a custom driver sets
    """The run that the call belongs to, such as a turn of a tool loop; None outside of runs."""
    counting: bool = False
    """Whether the call only counts tokens. Then only `before` runs, and its responses are ignored."""
    started: float = 0.0
    """Start of the call, on the clock of `agent.engine.flow.Now`."""
    context: Context = field(default_factory=Context)
    """The state of the call in the engine."""
    first_attempt: int = 0
    """Index of the call's first attempt in the context's record."""
    every_target: bool = True
    """Whether attempts at any target belong to the call, or only those at its own."""
    emitted: bool = False
    """Whether events have passed through all middleware to the caller."""
    incoming: AgentRequest | None = None
    """The request as this middleware received it."""
    state: dict[str, Any] = field(default_factory=dict)
    """State of this middleware for this call. No other middleware sees it."""

    def for_middleware(self, incoming: AgentRequest | None = None) -> CallInfo:
        """Return the info for one middleware, with its own state."""
        return replace(self, incoming=incoming, state={})

    @property
    def deadline(self) -> float:
        """Deadline of the call on the same clock; infinity if there is none."""
        return self.context.deadline

    @property
    def attempts(self) -> Sequence[Attempt]:
        """Requests sent for this call so far, with usage and cost, including failures."""
        return [
            attempt
            for attempt in self.context.attempts[self.first_attempt :]
            if (self.every_target or attempt.target == self.target)
            and attempt.error not in _NEVER_SENT
            and not (attempt.reason or "").startswith(ANSWERED_BY)
        ]

    def fingerprint(self, request: AgentRequest | None = None) -> str:
        """Return a SHA-256 hex digest that is equal for requests with the same URL and body.

        Headers, keys and streaming do not change it. For a router it covers the request and the possible targets.

        Args:
            request: By default the request as this middleware received it.
        """
        if self.hash_request is None:
            raise ConfigurationError(
                f"The call of {self.target} has no fingerprint.",
                field="fingerprint",
                fix="Use fingerprints in calls, not in events of runs or token counts.",
            )
        return self.hash_request(request or self.incoming or self.request)

    @override
    @printable
    def __repr__(self) -> str:
        return f"CallInfo({self.target!r}, streaming={self.streaming})"


class Middleware:
    """Base class of middleware: override any of the four methods.

    Methods that are not overridden cost nothing.

    A method may be a plain function, which runs inline and must not block; an async function; or a generator that
    yields effects of `agent.engine.flow`, such as `yield from Sleep(1.0)`. Returning None changes nothing.

    One object may serve many calls at once, in several threads. Keep the state of a call in `call.state`.
    """

    def before(self, request: AgentRequest, call: CallInfo) -> Hook[AgentRequest | AgentResponse]:
        """Run before anything is sent. Return another request, or a response to send nothing."""
        return None

    def after(self, response: AgentResponse, call: CallInfo) -> Hook[AgentResponse]:
        """Run after a response. Return another response to replace it."""
        return None

    def on_event(  # Any: a StreamEvent, or an event of a run
        self, event: Any, call: CallInfo
    ) -> Hook[StreamEvent | Sequence[StreamEvent]]:
        """Run for each event of a stream. Return another event, or a list of events to replace it.

        An empty list drops the event. Runs of a tool loop pass their own events, too: return None for unknown classes.
        """
        return None

    def on_error(self, error: Exception, call: CallInfo) -> Hook[AgentResponse | Exception]:
        """Run after the call failed. Return a response to use instead, or another error to raise.

        A response is ignored if the caller has already received events.
        """
        return None


_MESSAGE_METADATA = {"id", "timestamp", "parent_id", "usage", "error_message"}
"""Fields of messages that are not sent to vendors."""
_TRANSPORT_SETTINGS = {
    "api_key", "headers", "timeout", "connect_timeout", "first_byte_timeout", "idle_timeout", "deadline"
}  # fmt: skip
"""Settings of an agent that do not change the content of a request."""


def fingerprint_wire(provider: str, wire: WireRequest, schema: str) -> str:
    """Fingerprint of an encoded request: its URL, its body, and the schema of its output."""
    return _hash_parts(("wire", provider, wire.url, wire.body, schema))


def fingerprint_request(request: AgentRequest, targets: Iterable[str]) -> str:
    """Fingerprint of a request to a router with these targets."""
    return _hash_parts(("routed", canonical_json(request), describe_schema(request.output_schema), *targets))


def canonical_json(request: AgentRequest) -> str:
    """Encode a request as JSON that is equal for equal content, without deadlines and message metadata."""
    exclude: Any = {"deadline": True, "messages": {"__all__": _MESSAGE_METADATA}}
    data = json.loads(request.model_dump_json(exclude_none=True, exclude=exclude))
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def describe_agent(config: AgentConfig, tools: Iterable[Any]) -> str:
    """Describe the defaults that an agent adds to every request."""
    tools_json = canonical_json(AgentRequest(tools=tuple(tools)))
    return f"{config.model_dump_json(exclude_none=True, exclude=_TRANSPORT_SETTINGS)} {tools_json}"


def describe_schema(schema: Any) -> str:
    """Describe the output type of a request. A type says more than its JSON schema does."""
    if schema is None:
        return ""
    if isinstance(schema, Mapping):
        return "json"
    return f"{schema.__module__}.{schema.__qualname__}" if isinstance(schema, type) else repr(schema)


def _hash_parts(parts: Iterable[str | bytes]) -> str:
    digest = sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(data))  # the length keeps different splits of the same text apart
        digest.update(data)
    return digest.hexdigest()
