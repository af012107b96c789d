"""Try one model call again when that can help. Retry wraps a call, never a loop of calls, so no tool runs twice."""

from __future__ import annotations

from .. import errors
from ..context import Call, Context
from ..flow import Flow, Now, Random, Sleep
from ..types import AgentRequest, AgentResponse, RetryConfig

LONGEST_WAIT = 120.0
"""Seconds. A vendor that asks for more patience gets none: the caller is told, and can decide."""


def retry(call: Call, config: RetryConfig) -> Call:
    """Repeat after retryable failures, waiting as the configuration and the vendor say.

    A wait that is too long, or does not fit before the deadline, is not begun: the failure is raised at once. Once
    events of an attempt have been handed out there is no second one, since its text would be added to the first one's.
    """
    if config.max_retries == 0:
        return call

    def retried(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        attempt = 0
        while True:
            attempt += 1
            try:
                return (yield from call(request, context))
            except errors.AgentError as error:
                if error.committed or not config.should_retry(error, attempt=attempt):
                    raise
                wait = config.get_delay(attempt=attempt, error=error, rand=(yield from Random()))
                if wait > max(config.max_delay, LONGEST_WAIT) or (yield from Now()) + wait >= context.deadline:
                    raise
            yield from Sleep(wait)
            context.waited = wait

    return retried
