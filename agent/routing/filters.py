"""Filters that exclude targets before the strategy runs."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from .budgets import SpendLedger
from .request_profile import RequestProfile
from .targets import Target

_NEEDS = {"tools": "call tools", "vision": "take images", "documents": "take documents", "audio": "take audio"}


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why a target is not asked now."""

    reason: str
    seconds: float | None = None
    """Seconds until it can be asked; None if waiting does not help."""
    health: bool = False
    """Whether only its open breaker excludes it. If that holds for all targets, the request is sent to one of them."""
    money: bool = False
    """Whether a spend limit excludes it."""


def exclude_incapable(profile: RequestProfile, target: Target) -> Exclusion | None:
    """Exclude a target that cannot serve the request."""
    if (problem := target.problem) is not None:
        return Exclusion(problem)
    if profile.needs:
        capable = target.capabilities
        for need in profile.needs:
            if not getattr(capable, need):
                return Exclusion(f"it cannot {_NEEDS[need]}")
    window = target.window
    if window is None:
        return None
    answer = profile.request.max_tokens or 0
    if profile.most_prompt_tokens + answer <= window:
        return None
    count = profile.tokens(target)
    if count.low + min(answer, target.capabilities.max_output_tokens or answer) > window:
        return Exclusion(f"its window is {window:,} tokens, and the request has about {count.tokens:,}")
    return None


def exclude_unavailable(target: Target, profile: RequestProfile, now: float) -> Exclusion | None:
    """Exclude a target that is cooling down, at a rate limit, or has an open breaker."""
    health = target.health
    if target.is_available(now, profile):
        return None
    seconds, why = health.rest(now)
    if seconds > 0:
        return Exclusion(why, seconds if seconds < inf else None)
    tokens = profile.tokens(target).tokens if target.limiter.limits_tokens else 0
    wait = target.limiter.wait_seconds(tokens, now)
    if wait > 0:
        return Exclusion("it is at its rate limit", wait)
    if not health.breaker.admits(now):
        return Exclusion("its breaker is open", health.breaker.seconds_shut(now), health=True)
    return None


def exclude_too_expensive(target: Target, profile: RequestProfile, ledger: SpendLedger, now: float) -> Exclusion | None:
    """Exclude a target whose price would exceed a spend limit."""
    dollars = target.most_dollars(profile.asked(target))
    if dollars is None:
        unknown = Exclusion("what it would cost is not known, and there is a spend limit", money=True)
        return unknown if ledger.refuses_unpriced else None
    refusal = ledger.refusal(dollars, profile.request.metadata, now)
    if refusal is None:
        return None
    return Exclusion(f"it may cost ${dollars:.6f}, and {refusal}", refusal.seconds, money=True)
