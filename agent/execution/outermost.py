"""What happens once per run, around everything else: the record of attempts, and the last word of a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from .. import errors
from ..attempts import OpenAttempt, total
from ..context import Call, Context
from ..flow import Emit, Flow, Now
from ..tokens import Received
from ..types import AgentRequest, AgentResponse, Attempt, Route, StreamEvent
from ..types.cost import Cost

Settle: TypeAlias = Callable[[AgentResponse, Received], AgentResponse]
"""Estimates the usage and cost of a partial response."""

_LEFT = "the stream ended before its answer did"


def recorded(call: Call, *, streaming: bool) -> Call:
    """Put the attempts on the response, or on the error. A stream that fails says so in an event before it raises."""

    def outer(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        context.started = yield from Now()
        try:
            response = yield from call(request, context)
        except errors.AgentError as error:
            error.attempts = _route(context)
            if isinstance(error, errors.StreamInterrupted) and error.partial is not None:
                error.partial = _with_route(error.partial, error.attempts)
            if streaming:
                yield Emit([StreamEvent.error_event(str(error))])
            raise
        ended = yield from Now()
        return _with_route(response, _route(context), latency_ms=(ended - context.started) * 1000)

    return outer


def settle_stream(context: Context, settle: Settle) -> Settle:
    """Settle a stream that was left, aborted or broken: close its open attempts, and put the route on its response."""

    def settled(partial: AgentResponse, received: Received) -> AgentResponse:
        heard = settle(partial, received)
        answering = bool(partial.model or partial.content)  # not after a restart whose attempt has said nothing yet
        alone = context.log.open_attempts == 1

        def close(attempt: OpenAttempt) -> Attempt:
            if answering and alone:
                closed = attempt.closed("Cancelled", _LEFT, usage=heard.usage)
                return closed.with_cost(Cost.lazy(lambda: (heard.cost_estimate, None)))
            usage, cost = attempt.estimate()
            return attempt.closed("Cancelled", _LEFT, usage=usage, cost=cost)

        context.log.close(close)
        return _with_route(heard, _route(context))

    return settled


def _route(context: Context) -> Route:
    return Route(context.attempts, context.candidates or ())


def _with_route(response: AgentResponse, route: Route, **changes: Any) -> AgentResponse:
    """The response with its attempts. Its usage and cost are the sums of theirs, also of those that failed."""
    if len(route) > 1:
        usage, cost = total(route)
        if usage is not None:
            source = None if cost is None else response.cost_source
            changes |= {"usage": usage, "cost_estimate": cost, "cost_source": source}
    return response.changed(route=route, **changes)
