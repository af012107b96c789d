"""Routing strategies: each ranks targets for one request.

A strategy only ranks. Filters have already excluded targets that cannot be asked, and the retry policy decides what
follows a failure. Ranking has no side effects, so that `Router.explain` can rank without sending anything.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import inf, log
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from .. import errors
from ..engine.locks import ForkSafe
from ..types import AgentRequest, RouteResult, RoutingStrategy
from .request_profile import RequestProfile
from .targets import Target

CAPACITY = 4096
"""Conversations that are remembered; the least recent one is forgotten first."""
CACHE_SECONDS = 300.0
"""Seconds for which vendors keep a prompt cached."""
PIN_SECONDS = 3600.0
"""Seconds after its last answer in which a conversation stays at its target."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Latest answer of a conversation."""

    target: str
    tokens: int
    at: float


class Memory(ForkSafe):
    """Bounded memory of one router. Losing an entry may cost a cache miss, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = 0.0
        """The latest turn that was taken, for strategies with turns."""
        self._placements: OrderedDict[bytes, Placement] = OrderedDict()

    def record_answer(self, key: bytes, target: str, tokens: int, now: float) -> None:
        """Remember that a target answered a conversation, with so many tokens of prompt."""
        with self._lock:
            self._placements[key] = Placement(target, tokens, now)
            self._placements.move_to_end(key)
            if len(self._placements) > CAPACITY:
                self._placements.popitem(last=False)

    def record_failure(self, key: bytes, target: str) -> None:
        """Forget a conversation's target after it failed."""
        with self._lock:
            placement = self._placements.get(key)
            if placement is not None and placement.target == target:
                del self._placements[key]

    def pinned(self, key: bytes, now: float) -> str | None:
        """Name of the target where a conversation stays; None if there is none."""
        placement = self._placements.get(key)
        return None if placement is None or now > placement.at + PIN_SECONDS else placement.target

    def cached_at(self, key: bytes, target: str, now: float) -> int:
        """Tokens of a conversation that are probably in the cache of a target's vendor."""
        placement = self._placements.get(key)
        if placement is None or placement.target != target or now > placement.at + CACHE_SECONDS:
            return 0
        return placement.tokens


_EXPLORATION_SHARE = 0.05
"""Share of requests by which `fastest` measures other targets."""
_LOWEST_SUCCESS_RATE = 0.05


class RankedTarget(NamedTuple):
    """A target in its place, with the reason."""

    target: Target
    reason: str
    score: float | None = None
    """Number by which the strategy ranks, if it uses one; less is better."""


Rank: TypeAlias = Callable[[RequestProfile, Sequence[Target], Memory], list[RankedTarget]]
"""Orders targets, best first. Targets that it leaves out are not asked."""

StrategyFunction: TypeAlias = Callable[[AgentRequest, Sequence[Target]], Any]
"""A custom strategy: takes the request and the available targets, and returns one or several, or a RouteResult."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """Ranks targets for a request, and states what the router must supply for that.

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
    """Whether targets take turns: `target.turn` advances when a target is asked first."""
    needs_memory: bool = False
    """Whether the memory must hold where each conversation was answered."""


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
    """Rank in the given order."""
    return [RankedTarget(target, "in order") for target in targets]


@strategy("round_robin", needs_turns=True)
def round_robin(profile: RequestProfile, targets: Sequence[Target], memory: Memory) -> list[RankedTarget]:
    """Rank by turn, in proportion to the weights."""
    ranked = [RankedTarget(target, "its turn", max(target.turn, memory.turn)) for target in targets]
    return sorted(ranked, key=_by_score)


@strategy("fastest", needs_random=True)
def fastest(profile: RequestProfile, targets: Sequence[Target], memory: Memory) -> list[RankedTarget]:
    """Rank by response time, counting failures as lost time.

    A target without recent observations counts as average, and a single request now and then measures it.
    """
    now = profile.now
    known = {id(target): _seconds(target, profile) for target in targets}
    observed = [seconds for seconds in known.values() if seconds is not None]
    average = sum(observed) / len(observed) if observed else 0.0
    ranked = []
    for target in targets:
        seconds = known[id(target)]
        ranked.append(
            RankedTarget(target, "its pace is not known", average)
            if seconds is None
            else RankedTarget(target, f"answers in {seconds:.2f} s", seconds)
        )
    ranked.sort(key=_score)
    stalest = min(targets, key=lambda target: target.timings.last_seen(), default=None)
    if stalest is None or not observed or stalest.in_flight:
        return ranked
    share = _EXPLORATION_SHARE if stalest.timings.known(now) else 4 * _EXPLORATION_SHARE
    if profile.random < share:
        ranked.sort(key=lambda one: one.target is not stalest)
        ranked[0] = ranked[0]._replace(reason="to find out how fast it is")
    return ranked


@strategy("cheapest", needs_memory=True)
def cheapest(profile: RequestProfile, targets: Sequence[Target], memory: Memory) -> list[RankedTarget]:
    """Rank by the expected cost of this request: its tokens, the cached part of the prompt, and the usual answer."""
    ranked = []
    for target in targets:
        cached = memory.cached_at(profile.key, target.name, profile.now)
        dollars = target.price(profile.request, cached=cached, tokens=profile.tokens(target).tokens)
        if dollars is None:
            ranked.append(RankedTarget(target, "its price is not known", inf))
        else:
            known = f", {cached:,} tokens cached" if cached else ""
            ranked.append(RankedTarget(target, f"about ${dollars:.6f}{known}", dollars))
    return sorted(ranked, key=_score)


@strategy("capability")
def capability(profile: RequestProfile, targets: Sequence[Target], memory: Memory) -> list[RankedTarget]:
    """Rank by how many of the capabilities that the request could use are missing."""
    ranked = []
    for target in targets:
        missing = [wish for wish in sorted(profile.wishes) if not getattr(target.capabilities, wish)]
        reason = f"lacks {', '.join(missing)}" if missing else "has all it takes"
        ranked.append(RankedTarget(target, reason, float(len(missing))))
    return sorted(ranked, key=_score)


@strategy("least_busy")
def least_busy(profile: RequestProfile, targets: Sequence[Target], memory: Memory) -> list[RankedTarget]:
    """Rank by requests in flight, relative to the weight."""
    ranked = [RankedTarget(target, "the least under way", target.in_flight / target.weight) for target in targets]
    return sorted(ranked, key=_by_score)


@strategy("sticky", needs_memory=True)
def sticky(profile: RequestProfile, targets: Sequence[Target], memory: Memory) -> list[RankedTarget]:
    """Rank the conversation's target first, so that the vendor's prompt cache stays warm.

    The first target is a hash of the conversation, so that other processes choose the same. If it fails, the
    conversation moves, and stays where it went.
    """
    pinned = memory.pinned(profile.key, profile.now)
    ranked = [
        RankedTarget(target, "the conversation's place", -inf)
        if target.name == pinned
        else RankedTarget(target, "by the conversation", _distance(profile.key, target))
        for target in targets
    ]
    return sorted(ranked, key=_score)


def read_strategy(given: Any) -> Strategy:
    """Return the strategy for a name, a Strategy, or a function."""
    if isinstance(given, Strategy):
        return given
    if isinstance(given, str):
        known = STRATEGIES.get(given)
        if known is None:
            raise errors.ConfigurationError(
                f"There is no routing strategy {given!r}.",
                field="strategy",
                fix=f"Use one of {', '.join(STRATEGIES)}, or pass a Strategy or a function.",
            )
        return known
    if not callable(given) or inspect.iscoroutinefunction(given):
        raise errors.ConfigurationError(
            f"A routing strategy is a name, a Strategy or a plain function, not {type(given).__name__}.",
            field="strategy",
            fix="Pass a function of the request and the targets that returns targets.",
        )
    return _custom(given)


def _custom(choose: StrategyFunction) -> Strategy:
    def rank(profile: RequestProfile, targets: Sequence[Target], memory: Memory) -> list[RankedTarget]:
        ranked: list[RankedTarget] = []
        for chosen in _as_list(choose(profile.request, targets)):
            agent, reason = (chosen.agent, chosen.reason) if isinstance(chosen, RouteResult) else (chosen, None)
            target = _find_target(agent, targets)
            if all(target is not one.target for one in ranked):
                ranked.append(RankedTarget(target, reason or "chosen"))
        return ranked

    return Strategy(RoutingStrategy.CUSTOM, rank)


def _as_list(chosen: Any) -> Iterable[Any]:
    if chosen is None:
        return ()
    return chosen if isinstance(chosen, list | tuple) else [chosen]


def _find_target(chosen: Any, targets: Sequence[Target]) -> Target:
    """Return the target that is given as itself, as its agent, or by name."""
    for target in targets:
        if chosen is target or chosen is target.agent or (isinstance(chosen, str) and chosen == target.name):
            return target
    raise errors.ConfigurationError(
        f"The routing strategy chose {chosen!r}, which is none of the targets it was given.",
        field="strategy",
        fix="Return some of the targets, of their agents, or of their names.",
    )


_by_score = itemgetter(2)
"""Sort key for targets that all have a score."""


def _score(ranked: RankedTarget) -> float:
    return inf if ranked.score is None else ranked.score


def _seconds(target: Target, profile: RequestProfile) -> float | None:
    seconds = target.timings.expected(profile.now, streaming=profile.streaming)
    if seconds is None:
        return None
    return seconds / max(_LOWEST_SUCCESS_RATE, 1 - target.health.breaker.failure_rate)


def _distance(key: bytes, target: Target) -> float:
    """Weighted rendezvous hashing: the target with the least distance gets the conversation."""
    drawn = int.from_bytes(blake2b(target.name.encode(), key=key, digest_size=8).digest(), "big")
    return -log((drawn + 1) / (2**64 + 2)) / target.weight
