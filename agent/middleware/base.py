"""Base class of middleware, the description of a call that it receives, and request fingerprints.

`agent.middleware.flow` decides in which order middleware runs and what its return values mean.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypeAlias, TypeVar

from typing_extensions import override

from ..engine.context import Context
from ..engine.flow import Flow
from ..engine.wire import WireRequest
from ..errors import ConfigurationError
from ..types import AgentConfig, AgentRequest, AgentResponse, Attempt, StreamEvent

T = TypeVar("T")
Hook: TypeAlias = T | Awaitable[T | None] | Flow[T | None] | None
"""Return type of a middleware method: a value or None, directly, or from an awaitable or a flow."""

ANSWERED_BY = "answered by "
"""Prefix of the reason of an attempt that a middleware answered without sending anything."""

_NEVER_SENT = ("ConfigurationError", "UnsupportedFeatureError")
"""Errors of attempts that ended before anything was sent."""


@dataclass(slots=True)
class CallFacts:
    """State of one call that all its middleware shares."""

    streaming: bool
    target: str
    request: AgentRequest
    fingerprint: Callable[[AgentRequest], str] | None = None
    started: float = 0.0
    counting: bool = False
    run: Any = None
    context: Context = field(default_factory=Context)
    first_attempt: int = 0
    """Index of the call's first attempt in the context's record."""
    every_target: bool = True
    """Whether attempts at any target belong to the call, or only those at its own."""
    emitted: bool = False
    """Whether events have passed through all middleware to the caller."""


class CallInfo:
    """Describes one call to one middleware. Only `state` differs between the middleware of a call.

    Args:
        streaming: Whether the response is streamed.
        target: `provider:model`, or the name of the agent or router.
        request: The request before any middleware changed it.
        fingerprint: Returns the fingerprint of a request.
        run: The run that the call belongs to.
    """

    __slots__ = ("_facts", "_incoming", "state")

    def __init__(
        self,
        *,
        streaming: bool,
        target: str,
        request: AgentRequest,
        fingerprint: Callable[[AgentRequest], str] | None = None,
        run: Any = None,  # Any: a RunTurn, or what a custom driver sets
    ) -> None:
        self._facts = CallFacts(streaming, target, request, fingerprint, run=run)
        self._incoming = request
        self.state: dict[str, Any] = {}
        """State of this middleware for this call. No other middleware sees it."""

    @classmethod
    def from_facts(cls, facts: CallFacts, incoming: AgentRequest) -> CallInfo:
        """Return the info for one middleware, which receives the request as `incoming`."""
        info = cls.__new__(cls)
        info._facts = facts
        info._incoming = incoming
        info.state = {}
        return info

    def with_own_state(self) -> CallInfo:
        """Return the info of the same call for another middleware."""
        return CallInfo.from_facts(self._facts, self._incoming)

    @property
    def streaming(self) -> bool:
        """Whether the response is streamed."""
        return self._facts.streaming

    @property
    def counting(self) -> bool:
        """Whether the call only counts tokens. Then only `before` runs, and its responses are ignored."""
        return self._facts.counting

    @property
    def target(self) -> str:
        """`provider:model`; the name of a router, or of an agent inside one."""
        return self._facts.target

    @property
    def request(self) -> AgentRequest:
        """The request before any middleware changed it."""
        return self._facts.request

    @property
    def started(self) -> float:
        """Start of the call, on the clock of `agent.engine.flow.Now`."""
        return self._facts.started

    @property
    def deadline(self) -> float:
        """Deadline of the call on the same clock; infinity if there is none."""
        return self._facts.context.deadline

    @property
    def attempts(self) -> Sequence[Attempt]:
        """Requests sent for this call so far, with usage and cost, including failures."""
        facts = self._facts
        return [
            attempt
            for attempt in facts.context.attempts[facts.first_attempt :]
            if (facts.every_target or attempt.target == facts.target)
            and attempt.error not in _NEVER_SENT
            and not (attempt.reason or "").startswith(ANSWERED_BY)
        ]

    @property
    def run(self) -> Any:  # Any: a RunTurn, or what a custom driver sets
        """The run that the call belongs to, such as a turn of a tool loop; None outside of runs."""
        return self._facts.run

    @run.setter
    def run(self, run: Any) -> None:  # Any: a RunTurn, or what a custom driver sets
        self._facts.run = run

    def fingerprint(self, request: AgentRequest | None = None) -> str:
        """Return a SHA-256 hex digest that is equal for requests with the same URL and body.

        Headers, keys and streaming do not change it. For a router it covers the request and the possible targets.

        Args:
            request: By default the request as this middleware received it.
        """
        if self._facts.fingerprint is None:
            raise ConfigurationError(
                f"The call of {self.target} has no fingerprint.",
                field="fingerprint",
                fix="Use fingerprints in calls, not in events of runs or token counts.",
            )
        return self._facts.fingerprint(self._incoming if request is None else request)

    @override
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
