"""What a middleware is, and what it is told about the call it stands around.

This module holds the shape alone. In which order middleware is asked, and what becomes of its answers, is decided in
`agent.middleware.flow`; nothing here knows vendors, retries or drivers.
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
"""What a method of a middleware returns: a value or None; or an awaitable, or a flow, that comes to one."""

ANSWERED_BY = "answered by "
"""How the reason of an attempt begins that a middleware answered, and for which nothing was sent."""

_NEVER_SENT = ("ConfigurationError", "UnsupportedFeatureError")
"""Errors of attempts that ended before anything was sent."""


@dataclass(slots=True)
class Facts:
    """What all middleware around one call shares."""

    streaming: bool
    target: str
    request: AgentRequest
    fingerprint: Callable[[AgentRequest], str] | None = None
    started: float = 0.0
    counting: bool = False
    run: Any = None
    context: Context = field(default_factory=Context)
    made_before: int = 0
    """How many attempts were on record when the call began."""
    every_target: bool = True
    """Whether all attempts since then are its own, or only those at its target."""
    emitted: bool = False
    """Whether events have gone out through all of the middleware."""


class CallInfo:
    """One call, as one middleware sees it. Everything but `state` is the same for all middleware around the call.

    Args:
        streaming: Whether the answer arrives as events.
        target: `provider:model`, or the name that the agent or router has.
        request: As it was asked, before any middleware changed it.
        fingerprint: Digests a request.
        run: What the call is a part of.
    """

    __slots__ = ("_facts", "_reached", "state")

    def __init__(
        self,
        *,
        streaming: bool,
        target: str,
        request: AgentRequest,
        fingerprint: Callable[[AgentRequest], str] | None = None,
        run: Any = None,
    ) -> None:
        self._facts = Facts(streaming, target, request, fingerprint, run=run)
        self._reached = request
        self.state: dict[str, Any] = {}
        """What this middleware wants to remember until the call is over. No other middleware sees it."""

    @classmethod
    def of(cls, facts: Facts, reached: AgentRequest | None = None) -> CallInfo:
        """A view with a state of its own. `reached` is the request as it has come to this middleware."""
        info = cls.__new__(cls)
        info._facts = facts
        info._reached = facts.request if reached is None else reached
        info.state = {}
        return info

    def beside(self) -> CallInfo:
        """The same call for another middleware."""
        return CallInfo.of(self._facts, self._reached)

    @property
    def streaming(self) -> bool:
        """Whether the answer arrives as events."""
        return self._facts.streaming

    @property
    def counting(self) -> bool:
        """Whether only the tokens of the request are counted. Then no other method than `before` is called, and an
        answer that it gives is not taken for one."""
        return self._facts.counting

    @property
    def target(self) -> str:
        """`provider:model`; of a router, and of an agent inside one, its name."""
        return self._facts.target

    @property
    def request(self) -> AgentRequest:
        """The request as it was asked, before any middleware changed it."""
        return self._facts.request

    @property
    def started(self) -> float:
        """When the call began, on the clock of `agent.engine.flow.Now`."""
        return self._facts.started

    @property
    def deadline(self) -> float:
        """When it must be over, on the same clock; infinity if it need not."""
        return self._facts.context.deadline

    @property
    def attempts(self) -> Sequence[Attempt]:
        """What has been sent for this call so far, with its usage and cost, failures included."""
        facts = self._facts
        return [
            attempt
            for attempt in facts.context.attempts[facts.made_before :]
            if (facts.every_target or attempt.target == facts.target)
            and attempt.error not in _NEVER_SENT
            and not (attempt.reason or "").startswith(ANSWERED_BY)
        ]

    @property
    def run(self) -> Any:
        """What the call is a part of, such as a turn of a tool loop; None if it stands alone."""
        return self._facts.run

    @run.setter
    def run(self, run: Any) -> None:
        self._facts.run = run

    def fingerprint(self, request: AgentRequest | None = None) -> str:
        """The same for requests that are sent as the same bytes to the same address: SHA-256, in hexadecimal.

        Headers and keys are no part of it, and neither is whether the answer is streamed. Of a router it covers the
        request and who could be asked.

        Args:
            request: By default the request as it has come to this middleware.
        """
        if self._facts.fingerprint is None:
            raise ConfigurationError(f"A call of {self.target} has no fingerprint.", field="fingerprint")
        return self._facts.fingerprint(self._reached if request is None else request)

    @override
    def __repr__(self) -> str:
        return f"CallInfo({self.target!r}, streaming={self.streaming})"


class Middleware:
    """Stands around calls. A subclass has any of the four methods; what it does not have costs nothing.

    Each method may be a plain function, which is called inline and must be quick; an async function; or a generator
    that yields effects of `agent.engine.flow`, such as `yield from Sleep(1.0)`. Returning None changes nothing.

    One middleware may serve many calls at once, in several threads: what belongs to one call is kept in `call.state`.
    """

    def before(self, request: AgentRequest, call: CallInfo) -> Hook[AgentRequest | AgentResponse]:
        """The request is about to be asked. Another request takes its place; a response is the answer, and nobody is
        asked."""
        return None

    def after(self, response: AgentResponse, call: CallInfo) -> Hook[AgentResponse]:
        """The answer has come. Another response takes its place."""
        return None

    def on_event(self, event: Any, call: CallInfo) -> Hook[StreamEvent | Sequence[StreamEvent]]:
        """An event of a stream. Another event, or a list or tuple of them, takes its place; an empty one drops it.

        A tool loop shows its own events here, too: whoever does not know a class of events returns None.
        """
        return None

    def on_error(self, error: Exception, call: CallInfo) -> Hook[AgentResponse | Exception]:
        """The call has failed. A response is the answer instead, unless events have been handed out; another error is
        raised instead."""
        return None


_BOOKKEEPING = {"id", "timestamp", "parent_id", "usage", "error_message"}
"""What a message says about itself that no vendor is told."""
_NOT_ASKED = {"api_key", "headers", "timeout", "connect_timeout", "first_byte_timeout", "idle_timeout", "deadline"}
"""Settings of an agent that decide how it is asked, not what."""


def fingerprint_wire(provider: str, wire: WireRequest, schema: str) -> str:
    """Of a request as it would be sent: its address and its body. Beside them, what its output shall become."""
    return _digest(("wire", provider, wire.url, wire.body, schema))


def fingerprint_request(request: AgentRequest, targets: Iterable[str]) -> str:
    """Of a request that any of these could be asked."""
    return _digest(("routed", canonical_json(request), describe_schema(request.output_schema), *targets))


def canonical_json(request: AgentRequest) -> str:
    """A request as JSON that is the same for equal questions, however long they may take."""
    exclude: Any = {"deadline": True, "messages": {"__all__": _BOOKKEEPING}}
    plain = json.loads(request.model_dump_json(exclude_none=True, exclude=exclude))
    return json.dumps(plain, sort_keys=True, separators=(",", ":"))


def describe_agent(config: AgentConfig, tools: Iterable[Any]) -> str:
    """What an agent adds to every request."""
    offered = canonical_json(AgentRequest(tools=tuple(tools)))
    return f"{config.model_dump_json(exclude_none=True, exclude=_NOT_ASKED)} {offered}"


def describe_schema(schema: Any) -> str:
    """What an output shall become: nothing, JSON, or a value of a type, which says more than its schema does."""
    if schema is None:
        return ""
    if isinstance(schema, Mapping):
        return "json"
    return f"{schema.__module__}.{schema.__qualname__}" if isinstance(schema, type) else repr(schema)


def _digest(parts: Iterable[str | bytes]) -> str:
    digest = sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(data))  # or parts that are cut elsewhere would look the same
        digest.update(data)
    return digest.hexdigest()
