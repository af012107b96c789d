"""Which limit ended an effect, said the same way by every driver."""

from __future__ import annotations

import math

from .. import errors
from ..wire import Body, Limits

GRACE = 0.5
"""Seconds that cancelled user code gets to end before it is left alone."""
SLACK = 0.002
"""Clocks and timers may fire this much early."""


def until_reply(limits: Limits, now: float, deadline: float, *, whole: bool) -> float:
    """When waiting for a reply must end: its headers, or the `whole` of it."""
    until = deadline
    if limits.total is not None:
        until = min(until, now + limits.total)
    if not whole and limits.first_byte is not None:
        until = min(until, now + limits.first_byte)
    return until


def exchange_end(limits: Limits, now: float) -> float:
    """When an exchange begun now has used up its total."""
    return math.inf if limits.total is None else now + limits.total


def reply_expired(limits: Limits, deadline: float, now: float, *, whole: bool) -> errors.TimeoutError:
    if now >= deadline - SLACK:
        return deadline_passed("waiting for the answer")
    if not whole and limits.first_byte is not None and (limits.total is None or limits.first_byte < limits.total):
        return errors.TimeoutError(f"no first byte within {limits.first_byte:g} s (first_byte_timeout)")
    return errors.TimeoutError(f"no complete answer within {limits.total:g} s (timeout)")


def read_expired(body: Body, idle: float | None, deadline: float, now: float) -> errors.TimeoutError:
    if now >= deadline - SLACK:
        return deadline_passed("reading the answer")
    if now >= body.until - SLACK or idle is None:
        return errors.TimeoutError("the stream was not complete in time (timeout)")
    return errors.TimeoutError(f"no meaningful event for {idle:g} s (idle_timeout)")


def deadline_passed(what: str) -> errors.TimeoutError:
    return errors.TimeoutError(f"the call's deadline passed while {what}", deadline=True)
