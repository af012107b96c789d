"""Try one model call again when that can help. Retry wraps a call, never a loop of calls, so no tool runs twice."""

from __future__ import annotations

from typing import Protocol

from .. import errors
from ..context import Call, Context
from ..flow import Flow, Now, Random, Sleep
from ..types import AgentRequest, AgentResponse, RetryConfig

LONGEST_WAIT = 120.0
"""Seconds. A vendor that asks for more patience gets none: the caller is told, and can decide."""


class Budget(Protocol):
    """What all calls of one caller may be repeated together."""

    def deposit(self) -> None: ...

    def withdraw(self, now: float) -> bool: ...


def retry(call: Call, config: RetryConfig, budget: Budget) -> Call:
    """Repeat after retryable failures, waiting as the configuration and the vendor say, within the budget.

    A wait that is too long, or does not fit before the deadline, is not begun: the failure is raised at once. Once
    events of an attempt have been handed out there is no second one, since its text would be added to the first one's.
    """
    if config.max_retries == 0:
        return call

    def retried(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        attempt = 0
        budget.deposit()
        while True:
            attempt += 1
            try:
                return (yield from call(request, context))
            except errors.AgentError as error:
                if error.committed or not config.should_retry(error, attempt=attempt):
                    raise
                wait = config.get_delay(attempt=attempt, error=error, rand=(yield from Random()))
                now = yield from Now()
                if wait > max(config.max_delay, LONGEST_WAIT) or now + wait >= context.deadline:
                    raise
                if not budget.withdraw(now):
                    raise
            yield from Sleep(wait)
            context.waited = wait

    return retried
