"""Who is left out before any strategy is asked, and why: those who cannot, may not, or should not be asked now."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from .budgets import SpendLedger
from .questions import Question
from .targets import Target

_WORDS = {"tools": "call tools", "vision": "take images", "documents": "take documents", "audio": "take audio"}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why a target is not asked now, and when it could be. None: waiting does not change it."""

    reason: str
    seconds: float | None = None
    health: bool = False
    """Whether it is only mistrusted: if all are, one is asked all the same."""
    money: bool = False
    """Whether a spend limit forbids it."""


def unfit(question: Question, target: Target) -> LeftOut | None:
    """What the target cannot do for this request, now or ever."""
    if (problem := target.problem) is not None:
        return LeftOut(problem)
    if question.needs:
        capable = target.capabilities
        for need in question.needs:
            if not getattr(capable, need):
                return LeftOut(f"it cannot {_WORDS[need]}")
    window = target.window
    if window is None:
        return None
    answer = question.request.max_tokens or 0
    if question.at_most + answer <= window:
        return None
    count = question.tokens(target)
    if count.low + min(answer, target.capabilities.max_output_tokens or answer) > window:
        return LeftOut(f"its window is {window:,} tokens, and the request has about {count.tokens:,}")
    return None


def resting(target: Target, question: Question, now: float) -> LeftOut | None:
    """Why it should not be asked now: it is parked, over its limits, or its breaker is open."""
    health = target.health
    if target.at_ease(now, question):
        return None
    seconds, why = health.parked(now)
    if seconds > 0:
        return LeftOut(why, seconds if seconds < inf else None)
    tokens = question.tokens(target).tokens if target.rates.limits_tokens else 0
    wait = target.rates.seconds_until(tokens, now)
    if wait > 0:
        return LeftOut("it is at its rate limit", wait)
    if not health.breaker.admits(now):
        return LeftOut("its breaker is open", health.breaker.seconds_shut(now), health=True)
    return None


def too_dear(target: Target, question: Question, ledger: SpendLedger, now: float) -> LeftOut | None:
    """Whether a spend limit forbids it."""
    dollars = target.most_dollars(question.asked(target))
    if dollars is None:
        unknown = LeftOut("what it would cost is not known, and there is a spend limit", money=True)
        return unknown if ledger.refuses_unpriced else None
    refusal = ledger.refusal(dollars, question.request.metadata, now)
    if refusal is None:
        return None
    return LeftOut(f"it may cost ${dollars:.6f}, and {refusal}", refusal.seconds, money=True)
