"""What happens once per run, around everything else: the record of attempts, and the last word of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import errors
from ..context import Call, Context
from ..flow import Emit, Flow, Now
from ..types import AgentRequest, AgentResponse, Attempt, Route, StreamEvent


def recorded(call: Call, *, streaming: bool) -> Call:
    """Put the attempts on the response, or on the error. A stream that fails says so in an event before it raises."""

    def outer(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        context.started = yield from Now()
        try:
            response = yield from call(request, context)
        except errors.AgentError as error:
            error.attempts = _route(context)
            if streaming:
                yield Emit([StreamEvent.error_event(str(error))])
            raise
        ended = yield from Now()
        changes: dict[str, Any] = {"route": _route(context), "latency_ms": (ended - context.started) * 1000}
        if len(context.attempts) > 1:
            changes |= _bill(response, context.attempts)
        return response.changed(**changes)

    return outer


def _route(context: Context) -> Route:
    attempts = context.attempts
    if len(attempts) > 1:  # those that were made side by side were noted as they ended
        attempts = sorted(attempts, key=lambda attempt: attempt.started or 0.0)
    return Route(attempts, context.candidates or ())


def _bill(response: AgentResponse, attempts: Sequence[Attempt]) -> dict[str, Any]:
    """What the whole call used and cost: the sum of its attempts, also of those that broke off or came too late."""
    charged = [attempt for attempt in attempts if attempt.usage is not None]
    if len(charged) < 2:
        return {}
    usage = charged[0].usage
    for attempt in charged[1:]:
        usage = usage + attempt.usage if usage is not None and attempt.usage is not None else usage
    # Of a sum with an unknown part nothing is known but that it is larger.
    costs = [attempt.cost for attempt in charged]
    cost = None if None in costs else sum(cost for cost in costs if cost is not None)
    return {"usage": usage, "cost_estimate": cost, "cost_source": None if cost is None else response.cost_source}
