"""Ways to put targets in order. A strategy is one function: of a question and its targets, to them in order.

It only orders. Who cannot be asked has been left out before, and what happens when the first one fails is not its
business. It changes nothing either, so that asking who would be asked asks nobody.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from math import inf, log
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from .. import errors
from ..types import AgentRequest, RouteResult, RoutingStrategy
from .memory import Memory
from .questions import Question
from .targets import Target

_EXPLORED = 0.05
"""The part of the requests by which `fastest` finds out how fast the others are by now."""
_HARDLY = 0.05


class Ranked(NamedTuple):
    """A target in its place."""

    target: Target
    reason: str
    score: float | None = None


Strategy: TypeAlias = Callable[[Question, Sequence[Target], Memory], list[Ranked]]
Custom: TypeAlias = Callable[[AgentRequest, Sequence[Target]], Any]
"""Yours: of a request and the targets that could take it, to one or several of them, or a RouteResult."""


def fallback(question: Question, targets: Sequence[Target], memory: Memory) -> list[Ranked]:
    """In the order they were given."""
    return [target.in_order or _in_order(target) for target in targets]


def _in_order(target: Target) -> Ranked:
    """Always the same, and so made once."""
    target.in_order = ranked = Ranked(target, "in order")
    return ranked


def round_robin(question: Question, targets: Sequence[Target], memory: Memory) -> list[Ranked]:
    """In turns, as often as their weights say."""
    ranked = [Ranked(target, "its turn", max(target.turn, memory.turn)) for target in targets]
    return sorted(ranked, key=_by_score)


def least_busy(question: Question, targets: Sequence[Target], memory: Memory) -> list[Ranked]:
    """By requests under way, for their weight."""
    scored = [Ranked(target, "the least under way", target.in_flight / target.weight) for target in targets]
    return sorted(scored, key=_by_score)


def fastest(question: Question, targets: Sequence[Target], memory: Memory) -> list[Ranked]:
    """By the time an answer has taken, failures counted as time lost.

    A target that nobody has heard of for a while is not taken for fast: it counts as average, and now and then a single
    request finds out.
    """
    now = question.now
    known = {id(target): _seconds(target, question) for target in targets}
    heard = [seconds for seconds in known.values() if seconds is not None]
    average = sum(heard) / len(heard) if heard else 0.0
    ranked = []
    for target in targets:
        seconds = known[id(target)]
        ranked.append(
            Ranked(target, "its pace is not known", average)
            if seconds is None
            else Ranked(target, f"answers in {seconds:.2f} s", seconds)
        )
    ranked.sort(key=_score)
    stalest = min(targets, key=lambda target: target.timings.last_seen(), default=None)
    unheard = stalest is not None and not stalest.timings.known(now)
    if stalest is not None and heard and stalest.in_flight == 0 and question.chance < (4 if unheard else 1) * _EXPLORED:
        ranked.sort(key=lambda one: one.target is not stalest)
        ranked[0] = ranked[0]._replace(reason="to find out how fast it is")
    return ranked


def cheapest(question: Question, targets: Sequence[Target], memory: Memory) -> list[Ranked]:
    """By what this request will cost: its tokens, what the vendor has in its cache, and the usual answer."""
    ranked = []
    for target in targets:
        cached = memory.cached_at(question.key, target.name, question.now)
        dollars = target.price(question.request, cached=cached, tokens=question.tokens(target).tokens)
        if dollars is None:
            ranked.append(Ranked(target, "its price is not known", inf))
        else:
            known = f", {cached:,} tokens cached" if cached else ""
            ranked.append(Ranked(target, f"about ${dollars:.6f}{known}", dollars))
    return sorted(ranked, key=_score)


def capability(question: Question, targets: Sequence[Target], memory: Memory) -> list[Ranked]:
    """Those first that have all the request could use: tools, sight, schemas, thinking, and room for it."""
    ranked = []
    for target in targets:
        missing = [wish for wish in sorted(question.wishes) if not getattr(target.capabilities, wish)]
        reason = f"lacks {', '.join(missing)}" if missing else "has all it takes"
        ranked.append(Ranked(target, reason, float(len(missing))))
    return sorted(ranked, key=_score)


def sticky(question: Question, targets: Sequence[Target], memory: Memory) -> list[Ranked]:
    """The same target for all turns of a conversation, so that the vendor's cache of it stays warm.

    Where it is is worked out from the conversation, so other processes find the same; if that target fails, the
    conversation moves, and stays where it went.
    """
    pinned = memory.pinned(question.key, question.now)
    ranked = [
        Ranked(target, "the conversation's place", -inf)
        if target.name == pinned
        else Ranked(target, "by the conversation", _distance(question.key, target))
        for target in targets
    ]
    return sorted(ranked, key=_score)


STRATEGIES: dict[str, Strategy] = {
    RoutingStrategy.FALLBACK: fallback,
    RoutingStrategy.ROUND_ROBIN: round_robin,
    RoutingStrategy.FASTEST: fastest,
    RoutingStrategy.CHEAPEST: cheapest,
    RoutingStrategy.CAPABILITY: capability,
    RoutingStrategy.LEAST_BUSY: least_busy,
    RoutingStrategy.STICKY: sticky,
}


def read_strategy(strategy: Any) -> Strategy:
    """A strategy by name, or a function of the caller's."""
    if isinstance(strategy, str):
        known = STRATEGIES.get(strategy)
        if known is None:
            raise errors.ConfigurationError(
                f"There is no routing strategy {strategy!r}.",
                field="strategy",
                fix=f"Use one of {', '.join(STRATEGIES)}, or pass a function.",
            )
        return known
    if not callable(strategy) or inspect.iscoroutinefunction(strategy):
        raise errors.ConfigurationError(
            f"A routing strategy is a name or a plain function, not {type(strategy).__name__}.",
            field="strategy",
            fix="Pass a function of the request and the targets that returns targets.",
        )
    return _custom(strategy)


def _custom(choose: Custom) -> Strategy:
    def ordered(question: Question, targets: Sequence[Target], memory: Memory) -> list[Ranked]:
        ranked: list[Ranked] = []
        for chosen in _as_list(choose(question.request, targets)):
            agent, reason = (chosen.agent, chosen.reason) if isinstance(chosen, RouteResult) else (chosen, None)
            target = _meant(agent, targets)
            if all(target is not one.target for one in ranked):
                ranked.append(Ranked(target, reason or "chosen"))
        return ranked

    return ordered


def _as_list(chosen: Any) -> Iterable[Any]:
    if chosen is None:
        return ()
    return chosen if isinstance(chosen, list | tuple) else [chosen]


def _meant(chosen: Any, targets: Sequence[Target]) -> Target:
    """Targets are named by themselves, by their agents, or by name."""
    for target in targets:
        if chosen is target or chosen is target.agent or (isinstance(chosen, str) and chosen == target.name):
            return target
    raise errors.ConfigurationError(
        f"The routing strategy chose {chosen!r}, which is none of the targets it was given.",
        field="strategy",
        fix="Return some of the targets, of their agents, or of their names.",
    )


_by_score = itemgetter(2)
"""Of those who all have a score."""


def _score(ranked: Ranked) -> float:
    return inf if ranked.score is None else ranked.score


def _seconds(target: Target, question: Question) -> float | None:
    seconds = target.timings.expected(question.now, streaming=question.streaming)
    if seconds is None:
        return None
    return seconds / max(_HARDLY, 1 - target.health.breaker.failure_rate)


def _distance(key: bytes, target: Target) -> float:
    """Rendezvous hashing: each target draws a number for the conversation, and weights bend the odds."""
    drawn = int.from_bytes(blake2b(target.name.encode(), key=key, digest_size=8).digest(), "big")
    return -log((drawn + 1) / (2**64 + 2)) / target.weight
