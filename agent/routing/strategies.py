"""Routing strategies: each ranks the available targets for one request.

Filters exclude unavailable targets before a strategy runs. Ranking has no side effects, so that `Router.explain` can
use it.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import inf, log
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from .. import errors
from ..engine.locks import ForkSafe
from ..types import AgentRequest, RouteResult, RoutingStrategy
from ..types.option_errors import find_similar
from .request_profile import RequestProfile
from .targets import Target

MEMORY_CAPACITY = 4096
"""Maximum number of remembered conversations."""
CACHE_SECONDS = 300.0
"""Seconds for which vendors cache prompts."""
PIN_SECONDS = 3600.0
"""Seconds since its last response for which a conversation stays at its target."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Target of the latest response of a conversation, with the tokens of its prompt."""

    target: str
    tokens: int
    at: float


class Memory(ForkSafe):
    """Bounded memory of a router: the latest turn, and the target of each conversation."""

    def __init__(self) -> None:
        super().__init__()
        self.turn: float = 0.0
        """Latest turn, for strategies with turns."""
        self._placements: OrderedDict[bytes, Placement] = OrderedDict()

    def record_response(self, key: bytes, target: str, tokens: int, now: float) -> None:
        """Store the target of a conversation and the tokens of its prompt."""
        with self._lock:
            self._placements[key] = Placement(target, tokens, now)
            self._placements.move_to_end(key)
            if len(self._placements) > MEMORY_CAPACITY:
                self._placements.popitem(last=False)

    def record_failure(self, key: bytes, target: str) -> None:
        """Remove the target of a conversation after it failed."""
        with self._lock:
            placement = self._placements.get(key)
            if placement is not None and placement.target == target:
                del self._placements[key]

    def find_target(self, key: bytes, now: float) -> str | None:
        """Name of the target of a conversation; None if there is none."""
        placement = self._placements.get(key)
        return None if placement is None or now > placement.at + PIN_SECONDS else placement.target

    def count_cached_tokens(self, key: bytes, target: str, now: float) -> int:
        """Tokens of a conversation that the vendor of a target has probably cached."""
        placement = self._placements.get(key)
        if placement is None or placement.target != target or now > placement.at + CACHE_SECONDS:
            return 0
        return placement.tokens


_EXPLORATION_SHARE = 0.05
"""Share of requests with which `fastest` measures other targets."""
_LOWEST_SUCCESS_RATE = 0.05


class RankedTarget(NamedTuple):
    """A ranked target with the reason for its rank."""

    target: Target
    reason: str
    score: float | None = None
    """Number by which the strategy ranks; less is better."""


Rank: TypeAlias = Callable[[RequestProfile, Sequence[Target], Memory], list[RankedTarget]]
"""Ranks targets, best first. Targets that it leaves out are not used."""

StrategyFunction: TypeAlias = Callable[[AgentRequest, Sequence[Target]], Any]
"""Custom strategy: a function of the request and the available targets that returns targets or a RouteResult."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A ranking function, with the inputs that it needs from the router.

    ```python
    from agent import Router
    from agent.routing.strategies import RankedTarget, Strategy

    def shuffle(profile, targets, memory):
        first = int(profile.random * len(targets)) % len(targets)
        return [RankedTarget(target, "at random") for target in (*targets[first:], *targets[:first])]

    router = Router(["scripted:a", "scripted:b"], strategy=Strategy("shuffle", shuffle, needs_random=True))
    ```
    """

    name: str
    rank: Rank
    needs_random: bool = False
    """Whether `profile.random` must be a random number."""
    needs_turns: bool = False
    """Whether targets take turns: `target.turn` advances when a target gets the first attempt."""
    needs_memory: bool = False
    """Whether the memory must hold the target of each conversation."""


STRATEGIES: dict[str, Strategy] = {}
"""Built-in strategies by name."""


def strategy(
    name: str, *, needs_random: bool = False, needs_turns: bool = False, needs_memory: bool = False
) -> Callable[[Rank], Strategy]:
    """Register a built-in strategy."""

    def register(rank: Rank) -> Strategy:
        STRATEGIES[name] = Strategy(name, rank, needs_random, needs_turns, needs_memory)
        return STRATEGIES[name]

    return register


@strategy("fallback")
def fallback(profile: RequestProfile, targets: Sequence[Target], memory: Memory) -> list[RankedTarget]:
    """Rank in the order of the list."""
    return [RankedTarget(target, "in order") for target in targets]


@strategy("round_robin", needs_turns=True)
def round_robin(profile: RequestProfile, targets: Sequence[Target], memory: Memory) -> list[RankedTarget]:
    """Rank by turn, in proportion to the weights."""
    ranked = [RankedTarget(target, "its turn", max(target.turn, memory.turn)) for target in targets]
    return sorted(ranked, key=_by_score)


@strategy("fastest", needs_random=True)
def fastest(profile: RequestProfile, targets: Sequence[Target], memory: Memory) -> list[RankedTarget]:
    """Rank by response time divided by success rate.

    Targets without recent observations count as average. A small share of requests explores them, one at a time.
    """
    now = profile.now
    estimates = [(target, _estimate_seconds(target, profile)) for target in targets]
    observed = [seconds for _, seconds in estimates if seconds is not None]
    average = sum(observed) / len(observed) if observed else 0.0
    ranked = [
        RankedTarget(target, "unknown response time", average)
        if seconds is None
        else RankedTarget(target, f"responds in {seconds:.2f} s", seconds)
        for target, seconds in estimates
    ]
    ranked.sort(key=_by_score)
    stalest = min(targets, key=lambda target: target.timings.last_observed(), default=None)
    if stalest is None or not observed or stalest.in_flight:
        return ranked
    share = _EXPLORATION_SHARE if stalest.timings.has_recent(now) else 4 * _EXPLORATION_SHARE
    if profile.random < share:
        ranked.sort(key=lambda one: one.target is not stalest)
        ranked[0] = ranked[0]._replace(reason="exploration of its response time")
    return ranked


@strategy("cheapest", needs_memory=True)
def cheapest(profile: RequestProfile, targets: Sequence[Target], memory: Memory) -> list[RankedTarget]:
    """Rank by expected cost: prompt tokens, cached tokens, and the usual length of responses."""
    ranked = []
    for target in targets:
        cached = memory.count_cached_tokens(profile.key, target.name, profile.now)
        dollars = target.price(profile.request, cached=cached, tokens=profile.tokens(target).tokens)
        if dollars is None:
            ranked.append(RankedTarget(target, "unknown price", inf))
        else:
            suffix = f", {cached:,} tokens cached" if cached else ""
            ranked.append(RankedTarget(target, f"about ${dollars:.6f}{suffix}", dollars))
    return sorted(ranked, key=_by_score)


@strategy("capability")
def capability(profile: RequestProfile, targets: Sequence[Target], memory: Memory) -> list[RankedTarget]:
    """Rank by the number of missing capabilities that the request could use."""
    ranked = []
    for target in targets:
        missing = [name for name in sorted(profile.useful_capabilities) if not getattr(target.capabilities, name)]
        reason = f"lacks {', '.join(missing)}" if missing else "has all capabilities"
        ranked.append(RankedTarget(target, reason, float(len(missing))))
    return sorted(ranked, key=_by_score)


@strategy("least_busy")
def least_busy(profile: RequestProfile, targets: Sequence[Target], memory: Memory) -> list[RankedTarget]:
    """Rank by requests in flight, relative to the weight."""
    ranked = [RankedTarget(target, "fewest requests in flight", target.in_flight / target.weight) for target in targets]
    return sorted(ranked, key=_by_score)


@strategy("sticky", needs_memory=True)
def sticky(profile: RequestProfile, targets: Sequence[Target], memory: Memory) -> list[RankedTarget]:
    """Rank the target of the conversation first, to hit the vendor's prompt cache.

    A hash of the conversation selects its first target, in all processes. After a failure, the conversation stays at
    the fallback target.
    """
    pinned = memory.find_target(profile.key, profile.now)
    ranked = [
        RankedTarget(target, "target of the conversation", -inf)
        if target.name == pinned
        else RankedTarget(target, "hash of the conversation", _distance(profile.key, target))
        for target in targets
    ]
    return sorted(ranked, key=_by_score)


_OTHER_NAMES = {
    "cost_based": "cheapest",
    "latency_based": "fastest",
    "lowest_cost": "cheapest",
    "lowest_latency": "fastest",
    "ordered": "fallback",
    "priority": "fallback",
    "simple_shuffle": "round_robin",
    "usage_based": "least_busy",
    "weighted": "round_robin",
}
"""Strategies by their names in other libraries."""


def read_strategy(strategy: Any) -> Strategy:
    """Return the strategy for a name, a Strategy, or a function."""
    if isinstance(strategy, Strategy):
        return strategy
    if isinstance(strategy, str):
        builtin = STRATEGIES.get(strategy)
        if builtin is None:
            name = strategy.strip().lower().replace("-", "_").removesuffix("_routing")
            similar = [_OTHER_NAMES[name]] if name in _OTHER_NAMES else find_similar(name, STRATEGIES)
            guess = f"Did you mean {similar[0]}? " if similar else ""
            raise errors.ConfigurationError(
                f"Unknown routing strategy {strategy!r}.",
                field="strategy",
                fix=f"{guess}Use one of {', '.join(STRATEGIES)}, or pass a Strategy or a function.",
            )
        return builtin
    if not callable(strategy) or inspect.iscoroutinefunction(strategy):
        raise errors.ConfigurationError(
            f"A routing strategy is a name, a Strategy or a plain function, not {type(strategy).__name__}.",
            field="strategy",
            fix="Pass a function of the request and the targets that returns targets.",
        )
    return _wrap_function(strategy)


def _wrap_function(choose: StrategyFunction) -> Strategy:
    def rank(profile: RequestProfile, targets: Sequence[Target], memory: Memory) -> list[RankedTarget]:
        ranked: list[RankedTarget] = []
        result = choose(profile.request, targets)
        for chosen in result if isinstance(result, list | tuple) else () if result is None else [result]:
            agent, reason = (chosen.agent, chosen.reason) if isinstance(chosen, RouteResult) else (chosen, None)
            target = _find_target(agent, targets)
            if all(target is not one.target for one in ranked):
                ranked.append(RankedTarget(target, reason or "chosen"))
        return ranked

    return Strategy(RoutingStrategy.CUSTOM, rank)


def _find_target(chosen: Any, targets: Sequence[Target]) -> Target:
    """Return the target for a target, an agent or a name."""
    for target in targets:
        if chosen is target or chosen is target.agent or (isinstance(chosen, str) and chosen == target.name):
            return target
    raise errors.ConfigurationError(
        f"The routing strategy returned {chosen!r}, which is not an available target.",
        field="strategy",
        fix="Return targets, their agents or their names.",
    )


_by_score = itemgetter(2)
"""Sort key of ranked targets with scores."""


def _estimate_seconds(target: Target, profile: RequestProfile) -> float | None:
    seconds = target.timings.estimate_seconds(profile.now, streaming=profile.streaming)
    if seconds is None:
        return None
    return seconds / max(_LOWEST_SUCCESS_RATE, 1 - target.health.breaker.failure_rate)


def _distance(key: bytes, target: Target) -> float:
    """Weighted rendezvous hashing: the target with the least distance gets the conversation."""
    draw = int.from_bytes(blake2b(target.name.encode(), key=key, digest_size=8).digest(), "big")
    return -log((draw + 1) / (2**64 + 2)) / target.weight
