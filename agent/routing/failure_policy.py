"""Failure policy of a router: next step of a request, breaker outcome and cooldown after an error."""

from __future__ import annotations

import math
from enum import Enum

from .. import errors
from ..types import RetryConfig
from .targets import Target

QUOTA_COOLDOWN = 300.0
"""Cooldown in seconds of a key without credit, if the vendor sends no hint."""
RATE_LIMIT_COOLDOWN = 1.0
"""Cooldown in seconds after a rate limit error, if the vendor sends no hint."""
SLOW_SECONDS = 5.0
"""Seconds after which a missed deadline counts as a failure of a target with unknown response time."""


class NextStep(Enum):
    """Next step after a failure."""

    STOP = "stop"
    """Raise the error."""
    FALLBACK = "fallback"
    """Try other targets, but not this one."""
    RETRY = "retry"
    """Try other targets, and this one after a backoff."""


def next_step(error: errors.AgentError, retry: RetryConfig, *, reroute_filtered: bool, can_restart: bool) -> NextStep:
    """Return the next step after a failure.

    Args:
        reroute_filtered: Whether another target may be tried after a content filter refused the request.
        can_restart: Whether a stream that broke after its first event may start again.
    """
    match error:
        case errors.TimeoutError(deadline=True) | errors.StreamInterrupted(deadline=True) | errors.Aborted():
            return NextStep.STOP
        case errors.StreamInterrupted():
            return NextStep.RETRY if can_restart else NextStep.STOP
        case _ if error.committed:
            return NextStep.STOP
        case errors.PoolExhaustedError():
            return NextStep.STOP  # the limit is local
        case errors.ContextLengthError():
            return NextStep.FALLBACK
        case errors.BadRequestError():
            return NextStep.STOP  # the same request would fail everywhere
        case errors.ContentFilterError():
            return NextStep.FALLBACK if reroute_filtered else NextStep.STOP
        case errors.QuotaExceededError():
            return NextStep.FALLBACK
        case _ if error.retryable or isinstance(error, tuple(retry.retryable_errors)):
            return NextStep.RETRY
        case _:
            return NextStep.FALLBACK


def blames_target(error: errors.AgentError, target: Target, elapsed: float, now: float) -> bool | None:
    """Whether the circuit breaker counts the error as a failure of the target; None if it ignores it."""
    match error:
        case errors.RateLimitError() | errors.PoolExhaustedError():
            return None
        case errors.TimeoutError(deadline=True) | errors.StreamInterrupted(deadline=True):
            # Deadlines that are shorter than the timeout must not hide a target that never responds.
            timings = target.timings
            slow = timings.slow_threshold(now, streaming=False) or timings.slow_threshold(now, streaming=True)
            return True if elapsed >= (SLOW_SECONDS if slow is None else slow) else None
        case errors.StreamInterrupted():
            return True
        case errors.RoutingError():
            return None  # a nested router has its own circuit breakers
        case _:
            return True if error.retryable else None


def start_cooldown(error: errors.AgentError, target: Target, now: float) -> None:
    """Start the cooldown of a target, or of its API key, that follows from an error."""
    hint = error.retry_after
    match error:
        case errors.RateLimitError():
            reason = "rate limited" if hint is None else f"rate limited for {hint:g} s"
            target.health.cooldown.extend(now + (RATE_LIMIT_COOLDOWN if hint is None else hint), reason)
        case errors.OverloadedError() if hint is not None:
            target.health.cooldown.extend(now + hint, f"overloaded for {hint:g} s")
        case errors.QuotaExceededError():
            seconds = QUOTA_COOLDOWN if hint is None else hint
            target.health.key_cooldown.extend(now + seconds, "account out of credit")
        case errors.AuthenticationError():
            # With a hint, the key could not be fetched; without, the vendor rejected it.
            target.health.key_cooldown.extend(math.inf if hint is None else now + hint, "API key rejected")
        case errors.ModelNotFoundError():
            target.health.cooldown.extend(math.inf, "model unknown to the vendor")
        case _:
            pass


def has_larger_window(failed: Target, other: Target) -> bool:
    """Whether a request that exceeded the context window of one target may fit that of another."""
    if other.problem is not None:
        return False  # an unusable target has no known window
    return other.window is not None and failed.window is not None and other.window > failed.window
