"""What happens once per run, around everything else: the record of attempts, and the last word of a stream."""

from __future__ import annotations

from .. import errors
from ..context import Call, Context
from ..flow import Emit, Flow, Now
from ..types import AgentRequest, AgentResponse, StreamEvent


def recorded(call: Call, *, streaming: bool) -> Call:
    """Put the attempts on the response, or on the error. A stream that fails says so in an event before it raises."""

    def outer(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        context.started = yield from Now()
        try:
            response = yield from call(request, context)
        except errors.AgentError as error:
            error.attempts = tuple(context.attempts)
            if streaming:
                yield Emit([StreamEvent.error_event(str(error))])
            raise
        ended = yield from Now()
        return response.model_copy(
            update={"route": tuple(context.attempts), "latency_ms": (ended - context.started) * 1000}
        )

    return outer
