"""What a failure means: where the request may go from there, and whether the target is to blame."""

from __future__ import annotations

import math
from enum import Enum

from .. import errors
from ..types import RetryConfig
from .targets import Target

QUOTA_PAUSE = 300.0
"""Seconds that a key without credit is left alone if the vendor does not say how long."""
RATE_PAUSE = 1.0
"""The same for one that is asked too fast."""
SLOW = 5.0
"""Seconds after which a target is to blame for a deadline that passed, if nothing is known about its pace."""


class Move(Enum):
    """What may follow."""

    STOP = "stop"
    """Nothing: the caller is told."""
    ELSEWHERE = "elsewhere"
    """Other targets, but not this one."""
    AGAIN = "again"
    """Other targets, and this one after a wait."""


def move_after(error: errors.AgentError, retry: RetryConfig, *, filtered_elsewhere: bool, restarts: bool) -> Move:
    """What may follow a failure.

    Args:
        filtered_elsewhere: Whether what one vendor's filter refuses may be asked of another.
        restarts: Whether a stream that broke after its first event may begin again.
    """
    match error:
        case errors.TimeoutError(deadline=True) | errors.StreamInterrupted(deadline=True) | errors.Aborted():
            return Move.STOP
        case errors.StreamInterrupted():
            return Move.AGAIN if restarts else Move.STOP
        case _ if error.committed:
            return Move.STOP
        case errors.PoolExhaustedError():
            return Move.STOP  # it is we who have too much to do
        case errors.ContextLengthError():
            return Move.ELSEWHERE
        case errors.BadRequestError():
            return Move.STOP  # the same request would be wrong everywhere
        case errors.ContentFilterError():
            return Move.ELSEWHERE if filtered_elsewhere else Move.STOP
        case errors.QuotaExceededError():
            return Move.ELSEWHERE
        case _ if error.retryable or isinstance(error, tuple(retry.retryable_errors)):
            return Move.AGAIN
        case _:
            return Move.ELSEWHERE


def blame(error: errors.AgentError, target: Target, elapsed: float, now: float) -> bool | None:
    """Whether it is the target's fault, as its breaker counts faults; None if that cannot be said."""
    match error:
        case errors.RateLimitError() | errors.PoolExhaustedError():
            return None
        case errors.TimeoutError(deadline=True) | errors.StreamInterrupted(deadline=True):
            # A target that swallows requests must not hide behind deadlines that are shorter than its time-out.
            usual = target.timings.patience(now, streaming=False) or target.timings.patience(now, streaming=True)
            return True if elapsed >= (SLOW if usual is None else usual) else None
        case errors.StreamInterrupted():
            return True
        case errors.RoutingError():
            return None  # a router inside has breakers of its own
        case _:
            return True if error.retryable else None


def park(error: errors.AgentError, target: Target, now: float) -> None:
    """Leave a target, or everything behind its key, alone for as long as the failure says."""
    hint = error.retry_after
    match error:
        case errors.RateLimitError():
            why = "it was asked too fast" if hint is None else f"it asked for {hint:g} s of rest"
            target.health.parking.until(now + (RATE_PAUSE if hint is None else hint), why)
        case errors.OverloadedError() if hint is not None:
            target.health.parking.until(now + hint, f"it asked for {hint:g} s of rest")
        case errors.QuotaExceededError():
            target.health.key.until(now + (QUOTA_PAUSE if hint is None else hint), "its account is out of credit")
        case errors.AuthenticationError():
            # A key that is fetched may be there the next time; one that was refused will be refused again.
            target.health.key.until(math.inf if hint is None else now + hint, "its key was refused")
        case errors.ModelNotFoundError():
            target.health.parking.until(math.inf, "the vendor does not know its model")
        case _:
            pass


def takes_larger(failed: Target, other: Target) -> bool:
    """Whether a request that was too long for one target may go to another: only where there is more room."""
    if other.problem is not None:
        return False  # nothing is known of one that cannot be asked at all
    return other.window is not None and failed.window is not None and other.window > failed.window
