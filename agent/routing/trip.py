"""One request on its way through a router: who is asked, who is asked next, and when it is over.

A trip decides; it sends nothing. It holds what is known of one request, and is forgotten with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from .. import errors
from ..context import Context
from ..types import AgentRequest, AgentResponse, Candidate, RetryConfig
from ..types.policies import HedgeConfig, OnPartial
from .budgets import RequestBudget, Reservation, SpendLedger, hedge_budget
from .filters import LeftOut, resting, too_dear, unfit
from .memory import Memory
from .questions import Question
from .rules import Move, blame, move_after, park, takes_larger
from .strategies import Ranked, Strategy
from .targets import Admission, Target, learn_from_headers

FRESH = 15.0
"""Seconds after a target began to fail in which a call waits for another one to recover."""
SOON = 1.0
"""Seconds that are rather waited than spent on a target nobody trusts."""


@dataclass(frozen=True, slots=True)
class Shadow:
    """A target that is asked beside the others, for comparison. Its answer reaches nobody but `heard`."""

    target: Target
    share: float
    heard: Callable[[Any], object] | None = None
    seconds: float = 120.0


@dataclass(slots=True)
class Routes:
    """How a router is set, and what it remembers."""

    targets: tuple[Target, ...]
    strategy: Strategy
    retry: RetryConfig
    on_partial: OnPartial = "raise"
    filtered_elsewhere: bool = False
    max_wait: float = 60.0
    racers: int = 1
    hedge: HedgeConfig | None = None
    shadows: tuple[Shadow, ...] = ()
    takes_turns: bool = False
    """Whether the strategy goes by turns."""
    leaves_to_chance: bool = False
    """Whether the strategy wants a random number."""
    remembers: bool = False
    """Whether the strategy goes by conversations."""
    only: frozenset[str] | None = None
    """Names of targets, or of their models, that may be asked; None for all."""
    memory: Memory = field(default_factory=Memory)
    retries: RequestBudget = field(default_factory=RequestBudget)
    hedges: RequestBudget = field(default_factory=lambda: hedge_budget(0.05))
    ledger: SpendLedger = field(default_factory=lambda: SpendLedger(()))
    _smallest_window: float | None = None
    levelled: bool = field(init=False)
    """Whether some targets come after others, whatever the strategy says."""
    at_once: bool = field(init=False)
    """Whether several targets may be asked at the same time."""

    def __post_init__(self) -> None:
        self.levelled = len({target.level for target in self.targets}) > 1
        self.at_once = self.racers > 1 or self.hedge is not None

    @property
    def smallest_window(self) -> float:
        """Tokens that all targets can take, as far as is known."""
        if self._smallest_window is None:
            if any(target.problem is not None for target in self.targets):
                return 0.0  # look closer: somebody cannot be asked at all
            self._smallest_window = min(target.window or math.inf for target in self.targets)
        return self._smallest_window


class _Failure(NamedTuple):
    """How often a target failed this request, and how last."""

    times: int
    error: errors.AgentError


class Trip:
    """The state of one request."""

    __slots__ = (
        "_admitted",
        "_closed",
        "_failures",
        "_healthy_only",
        "context",
        "errors",
        "failed_at",
        "question",
        "request",
        "routes",
        "streaming",
    )

    def __init__(self, routes: Routes, request: AgentRequest, context: Context, question: Question) -> None:
        self.routes = routes
        self.request = request
        self.context = context
        self.question = question
        self.streaming = question.streaming
        self.errors: list[errors.AgentError] = []
        self._closed: dict[Target, str] = {}
        """Targets that are not asked again for this request, and why."""
        self._failures: dict[Target, _Failure] = {}
        self._admitted = 0
        """Attempts made for this request, by this router."""
        self._healthy_only = False
        """Whether only healthy targets may be asked: the first one had an open breaker."""
        self.failed_at = 0.0
        """When the last attempt failed, if one did."""

    # Who

    def order(self, now: float) -> tuple[list[Ranked], list[tuple[Target, LeftOut]]]:
        """Those that can be asked now and were not asked yet, best first; and the others, with the reason."""
        routes, question, failures = self.routes, self.question, self._failures
        ready: list[Target] = []
        others: list[tuple[Target, LeftOut]] = []
        open_to_all = routes.only is None and not routes.ledger.limits and not self._closed
        plain = open_to_all and question.fits_any(routes.smallest_window)
        all_at_ease = True
        for target in routes.targets:
            if target in failures:
                continue
            # The common case, quickly: a plain question, and a target that is in no trouble.
            if plain and target.at_ease(now, question):
                ready.append(target)
                continue
            all_at_ease = False
            out = self._left_out(target, question, routes.ledger, now)
            if out is None:
                ready.append(target)
            else:
                others.append((target, out))
        ranked = self._ranked(ready, others)
        if self._admitted:
            ranked.sort(key=_by_reliability)
        elif not all_at_ease:
            ranked.sort(key=lambda one: _comes_last(one.target, now))
        context = self.context
        if context.candidates is None:
            # The first decision, which is what was known when the request came. Without this trip: the answer keeps it.
            context.candidates = partial(considered, ranked, others, now)
        return ranked, others

    def _left_out(self, target: Target, question: Question, ledger: SpendLedger, now: float) -> LeftOut | None:
        if self._closed and (why := self._closed.get(target)) is not None:
            return LeftOut(why)
        only = self.routes.only
        if only is not None and only.isdisjoint(target.known_as):
            return LeftOut("it was not asked for")
        return (
            unfit(question, target)
            or resting(target, question, now)
            or (too_dear(target, question, ledger, now) if ledger.limits else None)
        )

    def _ranked(self, ready: list[Target], others: list[tuple[Target, LeftOut]]) -> list[Ranked]:
        """Level by level, each by the strategy."""
        if not ready:
            return []
        strategy, memory, question = self.routes.strategy, self.routes.memory, self.question
        if not self.routes.levelled:
            ranked = strategy(question, ready, memory)
        else:
            levels = sorted({target.level for target in ready})
            ranked = [
                one
                for level in levels
                for one in strategy(question, [target for target in ready if target.level == level], memory)
            ]
        if len(ranked) < len(ready):
            chosen = {one.target for one in ranked}
            others += [(target, LeftOut("it was not chosen")) for target in ready if target not in chosen]
        return ranked

    def ready(self, now: float) -> tuple[Admission, list[Ranked]] | None:
        """The first one to ask, admitted, and who could be asked beside; None if that takes a closer look."""
        if self.context.tries.made or self._failures:
            return None
        ranked, _ = self.order(now)
        for place, one in enumerate(ranked):
            admission = self.admit(one.target, now, why=one.reason)
            if admission is not None:
                return admission, ranked[place + 1 :]
        return None

    def unhealthy_fallbacks(self, others: Sequence[tuple[Target, LeftOut]]) -> list[Target]:
        """Return targets with an open breaker to try when nothing else can be asked, least recently asked first."""
        if not self._admitted and any(
            out.seconds is not None and out.seconds <= SOON for _, out in others if not out.health
        ):
            return []
        unhealthy = [one.target for one in self._ranked([target for target, out in others if out.health], [])]
        return sorted(unhealthy, key=lambda target: target.health.breaker.asked_at)

    def is_charged(self, target: Target) -> bool:
        """Whether the retry budget pays for asking a target next.

        It pays for requests to targets that are failing, or have failed this request. The first request of a call, and
        a switch to a healthy target, are free.
        """
        return self._admitted > 0 and (target in self._failures or not target.health.breaker.healthy)

    def afford(self, now: float) -> bool:
        """Take a charged request from the retry budget; False if there is none left."""
        return not self._healthy_only and self.routes.retries.withdraw(now)

    def waits(self, others: Sequence[tuple[Target, LeftOut]], now: float, chance: float) -> list[tuple[float, Target]]:
        """Those who could be asked later, and in how many seconds, the soonest first.

        For a target that nobody trusts is not waited: when it may be tried again, somebody else will.
        """
        retry = self.routes.retry
        spread = chance * retry.first_throttle if retry.jitter else 0.0  # or all who wait would come back at once
        found = [
            (out.seconds + spread, target)
            for target, out in others
            if out.seconds is not None and not out.health and target not in self._closed
        ]
        for target in self.routes.targets:
            failure = self._failures.get(target)
            if failure is None or target in self._closed or failure.times > retry.max_retries:
                continue
            out = resting(target, self.question, now)
            if out is None or (out.seconds is not None and not out.health):
                delay = retry.get_delay(attempt=failure.times, error=failure.error, rand=chance)
                found.append((max(delay, 0.0 if out is None else out.seconds or 0.0), target))
        return sorted(found, key=lambda one: one[0])

    def was_asked(self, target: Target) -> bool:
        return target in self._failures

    def stopped(self) -> str | None:
        """Why there is no further attempt; None if there may be one."""
        made = self.context.tries.made
        return f"{made} attempts were made" if made > self.routes.retry.max_retries else None

    def recovery_wait(self, now: float, chance: float) -> float | None:
        """Seconds to wait for another target to recover when no healthy one is left; None not to wait.

        Other calls find out which target has recovered. In a lasting outage there is nothing to wait for.
        """
        candidates = [target for target in self.routes.targets if target not in self._closed]
        breakers = [target.health.breaker for target in candidates]
        fresh = any(b.failing_since is None or now - b.failing_since < FRESH for b in breakers)
        if self._admitted == 0 or not fresh or all(target in self._failures for target in candidates):
            return None
        return self.routes.retry.first_throttle * (0.5 + 0.5 * chance)

    @property
    def is_last(self) -> bool:
        """Whether one more attempt is left."""
        return self.context.tries.made == self.routes.retry.max_retries

    # Asking

    def admit(self, target: Target, now: float, *, why: str, panic: bool = False) -> Admission | None:
        """Reserve capacity at a target; None if it is taken, or if no attempt is left."""
        if self.stopped() is not None:
            return None
        rates = target.rates
        entry = rates.begin(0 if rates.unlimited else self._tokens(target), now)
        if entry is None:
            return None
        reservation: Reservation | None = None
        ledger = self.routes.ledger
        if ledger.limits:
            dollars = target.most_dollars(self.question.asked(target))
            reserved = ledger.reserve(dollars or 0.0, self.request.metadata, now)
            if not isinstance(reserved, Reservation):
                target.rates.end(entry, 0)
                return None
            reservation = reserved
        permit = target.health.breaker.take(now, panic=panic)
        if permit is None:
            target.rates.end(entry, 0)
            if reservation is not None:
                ledger.settle(reservation, 0.0)
            return None
        if self.routes.takes_turns and not self._failures:
            self._took_turn(target)
        if not self._admitted:
            self._healthy_only = permit.kind in ("probe", "panic")
        self._admitted += 1
        if not target.nested:  # a router counts the attempts that it makes itself
            self.context.tries.made += 1
        return Admission(target, permit, entry, now, why, ledger if reservation is not None else None, reservation)

    def _tokens(self, target: Target) -> int:
        rates = target.rates
        if not rates.limits_tokens:
            return 0
        most = self.question.most_taken
        if rates.has_plenty(most):
            return most  # too many, and what the vendor says next puts it right
        return self.question.tokens(target).tokens + (self.request.max_tokens or 0)

    def _took_turn(self, target: Target) -> None:
        """It is the first to be asked: its next turn comes later, and nobody who was away gets turns in a row."""
        memory = self.routes.memory
        memory.turn = max(target.turn, memory.turn)
        target.turn = memory.turn + 1.0 / target.weight

    # Afterwards

    def succeeded(self, admission: Admission, response: Any, now: float, context: Context) -> None:
        admission.succeeded(response, now, context.first_event)
        learn_from_headers(admission.target, context.headers, now)
        if self.routes.remembers:
            prompt = 0 if response.usage is None else response.usage.prompt_tokens
            self.routes.memory.answered(self.question.key, admission.target.name, prompt, now)

    def failed(self, admission: Admission, error: errors.AgentError, now: float, context: Context) -> Move:
        """Note a failure; what may follow."""
        target = admission.target
        self.failed_at = now
        partial = error.partial if isinstance(error, errors.StreamInterrupted) else None
        admission.failed(now, blamed=blame(error, target, now - admission.started, now), partial=partial)
        park(error, target, now)
        learn_from_headers(target, context.headers, now)
        if self.routes.remembers:
            self.routes.memory.left(self.question.key, target.name)
        return self.note(target, error)

    def note(self, target: Target, error: errors.AgentError) -> Move:
        """Remember a failure for the rest of this request."""
        self.errors.append(error)
        if isinstance(error, errors.ConfigurationError):
            self.context.tries.made -= not target.nested  # nothing was sent
        before = self._failures.get(target)
        self._failures[target] = _Failure(1 if before is None else before.times + 1, error)
        move = move_after(
            error,
            self.routes.retry,
            filtered_elsewhere=self.routes.filtered_elsewhere,
            restarts=self.routes.on_partial != "raise",
        )
        # Its frames hold this trip, which must not hold it: a cycle would keep the request until the collector comes.
        if move is Move.STOP:
            self.errors.clear()  # it is raised as it is, and nobody asks what came before
            self._failures.clear()
        else:
            error.with_traceback(None)
        if move is not Move.AGAIN:
            self._closed[target] = f"it failed: {type(error).__name__}"
        if isinstance(error, errors.ContextLengthError):
            for other in self.routes.targets:
                if other is not target and other not in self._closed and not takes_larger(target, other):
                    self._closed[other] = "its window is not known to be larger"
        return move

    def may_leave(self, response: AgentResponse) -> bool:
        """Whether an answer that a filter has spoilt may be asked of another; noted if so."""
        routes = self.routes
        if not routes.filtered_elsewhere or (self.streaming and routes.on_partial == "raise"):
            return False
        answered_by = self.context.attempts[-1].target
        why = errors.ContentFilterError(f"the answer ended with {response.stop_reason}", provider=response.provider)
        for target in self.routes.targets:
            if target.name == answered_by:
                self.note(target, why)
        return True

    # What is told

    def exhausted(self, why: str, others: Sequence[tuple[Target, LeftOut]] = ()) -> errors.AgentError:
        """The error for a request that nobody answered."""
        waits = [out.seconds for _, out in others if out.seconds is not None and math.isfinite(out.seconds)]
        hints = [error.retry_after for error in self.errors if error.retry_after is not None]
        retryable = any(error.retryable for error in self.errors) or bool(waits)
        if not self.errors and others and all(out.money for _, out in others):
            reasons = "; ".join(f"{target.name}: {out.reason}" for target, out in others)
            return errors.BudgetExceededError(f"The request would exceed a spend limit: {reasons}.")
        told = [f"{target.name}: {out.reason}" for target, out in others if target not in self._failures]
        failed = [f"{error.provider}: {type(error).__name__}: {error.message}" for error in self.errors]
        return errors.RoutingError(
            f"No target answered ({why}): {'; '.join(failed + told) or 'there is none'}.",
            errors=self.errors,
            retryable=retryable,
            retry_after=min([*waits, *hints], default=None),
        )


def _comes_last(target: Target, now: float) -> bool:
    """Whether an unhealthy target is asked after healthy ones. A probe or a trial takes the target's usual place."""
    breaker = target.health.breaker
    return not breaker.healthy and not breaker.is_due(now)


def _by_reliability(ranked: Ranked) -> tuple[bool, float, int]:
    """Sort key of the targets after a failure: reliable ones first, in steps of ten percent.

    Requests that fail at the same moment spread over targets about which nothing is known.
    """
    target = ranked.target
    breaker = target.health.breaker
    return not breaker.healthy, round(breaker.estimated_failure_rate, 1), target.in_flight if breaker.unproven else 0


def considered(ranked: Sequence[Ranked], others: Sequence[tuple[Target, LeftOut]], now: float) -> tuple[Candidate, ...]:
    """A decision as it is told: those that could be asked, best first, and the others."""
    return (
        *(_candidate(one.target, now, one.reason, place, one.score) for place, one in enumerate(ranked, 1)),
        *(_candidate(target, now, out.reason) for target, out in others),
    )


def _candidate(
    target: Target, now: float, reason: str, place: int | None = None, score: float | None = None
) -> Candidate:
    return Candidate(
        target=target.name,
        provider=target.provider,
        model=target.model,
        place=place,
        reason=reason,
        score=score if score is not None and math.isfinite(score) else None,
        health=target.health.breaker.state(now),
    )
