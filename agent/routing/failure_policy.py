"""Failure policy: what may follow a failure, whether the target is to blame, and how long it rests."""

from __future__ import annotations

import math
from enum import Enum

from .. import errors
from ..types import RetryConfig
from .targets import Target

QUOTA_PAUSE = 300.0
"""Cooldown of a key without credit, if the vendor names no time."""
RATE_PAUSE = 1.0
"""Cooldown after a rate limit error, if the vendor names no time."""
SLOW = 5.0
"""Seconds after which a target is blamed for a passed deadline, if its response time is unknown."""


class NextStep(Enum):
    """What may follow a failure."""

    STOP = "stop"
    """Nothing: the error is raised."""
    FALLBACK = "fallback"
    """Other targets, but not this one."""
    RETRY = "retry"
    """Other targets, and this one after a wait."""


def next_step(error: errors.AgentError, retry: RetryConfig, *, reroute_filtered: bool, can_restart: bool) -> NextStep:
    """Return what may follow a failure.

    Args:
        reroute_filtered: Whether another target may be asked after a content filter refused the request.
        can_restart: Whether a stream that broke after its first event may begin again.
    """
    match error:
        case errors.TimeoutError(deadline=True) | errors.StreamInterrupted(deadline=True) | errors.Aborted():
            return NextStep.STOP
        case errors.StreamInterrupted():
            return NextStep.RETRY if can_restart else NextStep.STOP
        case _ if error.committed:
            return NextStep.STOP
        case errors.PoolExhaustedError():
            return NextStep.STOP  # the overload is local
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
    """Whether the breaker counts the error as a failure of the target; None if that is unknown."""
    match error:
        case errors.RateLimitError() | errors.PoolExhaustedError():
            return None
        case errors.TimeoutError(deadline=True) | errors.StreamInterrupted(deadline=True):
            # A target that never answers must not hide behind deadlines that are shorter than its timeout.
            usual = target.timings.patience(now, streaming=False) or target.timings.patience(now, streaming=True)
            return True if elapsed >= (SLOW if usual is None else usual) else None
        case errors.StreamInterrupted():
            return True
        case errors.RoutingError():
            return None  # a nested router has its own breakers
        case _:
            return True if error.retryable else None


def start_cooldown(error: errors.AgentError, target: Target, now: float) -> None:
    """Start the cooldown that an error asks for, of a target or of everything behind its key."""
    hint = error.retry_after
    match error:
        case errors.RateLimitError():
            why = "it was asked too fast" if hint is None else f"it asked for {hint:g} s of rest"
            target.health.cooldown.extend(now + (RATE_PAUSE if hint is None else hint), why)
        case errors.OverloadedError() if hint is not None:
            target.health.cooldown.extend(now + hint, f"it asked for {hint:g} s of rest")
        case errors.QuotaExceededError():
            target.health.key_cooldown.extend(
                now + (QUOTA_PAUSE if hint is None else hint), "its account is out of credit"
            )
        case errors.AuthenticationError():
            # A fetched key may be available next time; a refused key is refused again.
            target.health.key_cooldown.extend(math.inf if hint is None else now + hint, "its key was refused")
        case errors.ModelNotFoundError():
            target.health.cooldown.extend(math.inf, "the vendor does not know its model")
        case _:
            pass


def has_larger_window(failed: Target, other: Target) -> bool:
    """Whether a request that was too long for one target may fit another."""
    if other.problem is not None:
        return False  # its window is unknown
    return other.window is not None and failed.window is not None and other.window > failed.window
