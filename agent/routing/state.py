"""Router settings, and the state of one routed request: attempts, failures, next step.

The state decides and sends nothing. The flow acts on its decisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from .. import errors
from ..engine.context import Context
from ..types import AgentRequest, AgentResponse, Candidate, RetryConfig
from ..types.routing import HedgeConfig, OnPartial
from .failure_policy import NextStep, blames_target, has_larger_window, next_step, start_cooldown
from .limits import RequestBudget, Reservation, SpendLedger, hedge_budget
from .request_profile import Exclusion, RequestProfile, exclude_incapable, exclude_too_expensive, exclude_unavailable
from .strategies import Memory, RankedTarget, Strategy
from .targets import Admission, Target, learn_from_headers

FRESH_OUTAGE = 15.0
"""Seconds after a target began to fail in which a call waits for another one to recover."""
SHORT_WAIT = 1.0
"""Seconds that a call rather waits than asks an unhealthy target."""

Excluded: TypeAlias = Sequence[tuple[Target, Exclusion]]
"""Targets that are not asked now, with the reason."""


@dataclass(frozen=True, slots=True)
class Shadow:
    """A target that gets a share of the requests for comparison. Its outcome is passed to `on_result` only."""

    target: Target
    share: float
    on_result: Callable[[Any], object] | None = None
    seconds: float = 120.0


@dataclass(slots=True)
class RouterSettings:
    """Router settings and the state shared by its requests."""

    targets: tuple[Target, ...]
    strategy: Strategy
    retry: RetryConfig
    on_partial: OnPartial = "raise"
    reroute_filtered: bool = False
    max_wait: float = 60.0
    racers: int = 1
    hedge: HedgeConfig | None = None
    shadows: tuple[Shadow, ...] = ()
    only: frozenset[str] | None = None
    """Names of targets, or of their models, that may be asked; None for all."""
    memory: Memory = field(default_factory=Memory)
    retries: RequestBudget = field(default_factory=RequestBudget)
    hedges: RequestBudget = field(default_factory=lambda: hedge_budget(0.05))
    ledger: SpendLedger = field(default_factory=lambda: SpendLedger(()))
    _smallest_window: float | None = None
    has_levels: bool = field(init=False)
    """Whether some targets come after others, whatever the strategy."""
    is_concurrent: bool = field(init=False)
    """Whether several targets may be asked at the same time."""

    def __post_init__(self) -> None:
        self.has_levels = len({target.level for target in self.targets}) > 1
        self.is_concurrent = self.racers > 1 or self.hedge is not None

    @property
    def smallest_window(self) -> float:
        """Tokens that fit into every target's context window; 0 if a target cannot be asked."""
        if self._smallest_window is None:
            if any(target.problem is not None for target in self.targets):
                return 0.0
            self._smallest_window = min(target.window or math.inf for target in self.targets)
        return self._smallest_window


class _Failure(NamedTuple):
    """Number of failures of a target for this request, and the latest one."""

    times: int
    error: errors.AgentError


class RoutingState:
    """State of one routed request: attempts, failures, next step."""

    __slots__ = (
        "_admitted",
        "_closed",
        "_failures",
        "_healthy_only",
        "context",
        "errors",
        "failed_at",
        "profile",
        "request",
        "settings",
        "streaming",
    )

    def __init__(
        self, settings: RouterSettings, request: AgentRequest, context: Context, profile: RequestProfile
    ) -> None:
        self.settings = settings
        self.request = request
        self.context = context
        self.profile = profile
        self.streaming = profile.streaming
        self.errors: list[errors.AgentError] = []
        self.failed_at = 0.0
        """Time of the latest failure."""
        self._closed: dict[Target, str] = {}
        """Targets that are not asked again for this request, and why."""
        self._failures: dict[Target, _Failure] = {}
        self._admitted = 0
        """Attempts that this router has made for the request."""
        self._healthy_only = False
        """Whether only healthy targets may follow, because the breaker of the first one was open."""

    # Choosing

    def order(self, now: float) -> tuple[list[RankedTarget], list[tuple[Target, Exclusion]]]:
        """Return the targets that can be asked now and were not asked yet, best first, and the excluded ones."""
        settings, profile = self.settings, self.profile
        ready: list[Target] = []
        excluded: list[tuple[Target, Exclusion]] = []
        unrestricted = settings.only is None and not settings.ledger.limits and not self._closed
        plain = unrestricted and profile.fits_window(settings.smallest_window)
        all_available = True
        for target in settings.targets:
            if target in self._failures:
                continue
            if plain and target.is_available(now, profile):  # the common case, quickly
                ready.append(target)
                continue
            all_available = False
            exclusion = self._exclude(target, now)
            if exclusion is None:
                ready.append(target)
            else:
                excluded.append((target, exclusion))
        ranked = self._rank(ready, excluded)
        if self._admitted:
            ranked.sort(key=_by_reliability)
        elif not all_available:
            ranked.sort(key=lambda one: _comes_last(one.target, now))
        context = self.context
        if context.candidates is None:  # the first decision; the response keeps it, and so it must not refer to self
            context.candidates = partial(list_candidates, ranked, excluded, now)
        return ranked, excluded

    def _exclude(self, target: Target, now: float) -> Exclusion | None:
        if self._closed and (reason := self._closed.get(target)) is not None:
            return Exclusion(reason)
        only, ledger = self.settings.only, self.settings.ledger
        if only is not None and only.isdisjoint(target.known_as):
            return Exclusion("it was not asked for")
        return (
            exclude_incapable(self.profile, target)
            or exclude_unavailable(target, self.profile, now)
            or (exclude_too_expensive(target, self.profile, ledger, now) if ledger.limits else None)
        )

    def _rank(self, ready: list[Target], excluded: list[tuple[Target, Exclusion]]) -> list[RankedTarget]:
        """Rank each level by the strategy."""
        if not ready:
            return []
        rank, memory, profile = self.settings.strategy.rank, self.settings.memory, self.profile
        if not self.settings.has_levels:
            ranked = rank(profile, ready, memory)
        else:
            levels = sorted({target.level for target in ready})
            ranked = [
                one
                for level in levels
                for one in rank(profile, [target for target in ready if target.level == level], memory)
            ]
        if len(ranked) < len(ready):
            chosen = {one.target for one in ranked}
            excluded += [(target, Exclusion("it was not chosen")) for target in ready if target not in chosen]
        return ranked

    def admit_first(self, now: float) -> tuple[Admission, list[RankedTarget]] | None:
        """Admit the best target for the first attempt, and return the other candidates; None if that is not enough."""
        if self.context.attempt_count.value or self._failures:
            return None
        ranked, _ = self.order(now)
        for place, one in enumerate(ranked):
            admission = self.admit(one.target, now, reason=one.reason)
            if admission is not None:
                return admission, ranked[place + 1 :]
        return None

    def unhealthy_fallbacks(self, excluded: Excluded) -> list[Target]:
        """Return unhealthy targets to try when none is healthy, least recently asked first."""
        short = any(
            exclusion.seconds is not None and exclusion.seconds <= SHORT_WAIT
            for _, exclusion in excluded
            if not exclusion.health
        )
        if short and not self._admitted:
            return []
        unhealthy = [one.target for one in self._rank([target for target, why in excluded if why.health], [])]
        return sorted(unhealthy, key=lambda target: target.health.breaker.asked_at)

    def is_charged(self, target: Target) -> bool:
        """Whether the retry budget pays for asking a target next.

        It pays for requests to targets that are failing, or have failed this request. The first attempt of a call, and
        a switch to a healthy target, are free.
        """
        return self._admitted > 0 and (target in self._failures or not target.health.breaker.healthy)

    def withdraw_retry(self, now: float) -> bool:
        """Take a charged attempt from the retry budget; False if there is none left."""
        return not self._healthy_only and self.settings.retries.withdraw(now)

    def list_waits(self, excluded: Excluded, now: float, random: float) -> list[tuple[float, Target]]:
        """Return targets that can be asked later, and in how many seconds, the soonest first.

        A call does not wait for an open breaker: other calls probe it.
        """
        retry = self.settings.retry
        spread = random * retry.first_throttle if retry.jitter else 0.0  # or all waiting calls would return at once
        waits = [
            (exclusion.seconds + spread, target)
            for target, exclusion in excluded
            if exclusion.seconds is not None and not exclusion.health and target not in self._closed
        ]
        for target, failure in self._failures.items():
            if target in self._closed or failure.times > retry.max_retries:
                continue
            exclusion = exclude_unavailable(target, self.profile, now)
            if exclusion is None or (exclusion.seconds is not None and not exclusion.health):
                delay = retry.get_delay(attempt=failure.times, error=failure.error, rand=random)
                waits.append((max(delay, 0.0 if exclusion is None else exclusion.seconds or 0.0), target))
        return sorted(waits, key=lambda wait: wait[0])

    def recovery_wait(self, now: float, random: float) -> float | None:
        """Seconds to wait for another target to recover when no healthy one is left; None not to wait.

        Other calls find out which target has recovered. In a lasting outage there is nothing to wait for.
        """
        candidates = [target for target in self.settings.targets if target not in self._closed]
        since = [target.health.breaker.failing_since for target in candidates]
        fresh = any(began is None or now - began < FRESH_OUTAGE for began in since)
        if self._admitted == 0 or not fresh or all(target in self._failures for target in candidates):
            return None
        return self.settings.retry.first_throttle * (0.5 + 0.5 * random)

    def has_failed(self, target: Target) -> bool:
        """Whether the target has failed this request."""
        return target in self._failures

    def stop_reason(self) -> str | None:
        """Why no further attempt is allowed; None if one is."""
        made = self.context.attempt_count.value
        return f"{made} attempts were made" if made > self.settings.retry.max_retries else None

    @property
    def is_last_attempt(self) -> bool:
        """Whether exactly one more attempt is allowed."""
        return self.context.attempt_count.value == self.settings.retry.max_retries

    # Asking

    def admit(self, target: Target, now: float, *, reason: str, panic: bool = False) -> Admission | None:
        """Reserve capacity at a target; None if it is taken, or if no attempt is left."""
        if self.stop_reason() is not None:
            return None
        limiter = target.limiter
        entry = limiter.acquire(0 if limiter.unlimited else self._expected_tokens(target), now)
        if entry is None:
            return None
        reservation: Reservation | None = None
        ledger = self.settings.ledger
        if ledger.limits:
            dollars = target.most_dollars(self.profile.asked(target))
            reserved = ledger.reserve(dollars or 0.0, self.request.metadata, now)
            if not isinstance(reserved, Reservation):
                limiter.release(entry, 0)
                return None
            reservation = reserved
        permit = target.health.breaker.take(now, panic=panic)
        if permit is None:
            limiter.release(entry, 0)
            if reservation is not None:
                ledger.settle(reservation, 0.0)
            return None
        if self.settings.strategy.needs_turns and not self._failures:
            self._advance_turn(target)
        if not self._admitted:
            self._healthy_only = permit.kind in ("probe", "panic")
        self._admitted += 1
        if not target.is_router:  # a nested router counts its own attempts
            self.context.attempt_count.value += 1
        return Admission(target, permit, entry, now, reason, ledger if reservation is not None else None, reservation)

    def _expected_tokens(self, target: Target) -> int:
        limiter = target.limiter
        if not limiter.limits_tokens:
            return 0
        most = self.profile.most_tokens
        if limiter.has_plenty(most):
            return most  # too many, and corrected by the vendor's next headers
        return self.profile.tokens(target).tokens + (self.request.max_tokens or 0)

    def _advance_turn(self, target: Target) -> None:
        """Set a target's next turn. A target that was away does not catch up on missed turns."""
        memory = self.settings.memory
        memory.turn = max(target.turn, memory.turn)
        target.turn = memory.turn + 1.0 / target.weight

    # Outcomes

    def record_success(self, admission: Admission, response: AgentResponse, now: float, context: Context) -> None:
        """Settle the admission of a request that was answered."""
        admission.succeeded(response, now, context.first_event)
        learn_from_headers(admission.target, context.headers, now)
        if self.settings.strategy.needs_memory:
            prompt = 0 if response.usage is None else response.usage.prompt_tokens
            self.settings.memory.record_answer(self.profile.key, admission.target.name, prompt, now)

    def record_failure(self, admission: Admission, error: errors.AgentError, now: float, context: Context) -> NextStep:
        """Settle the admission of a request that failed, and return what may follow."""
        target = admission.target
        self.failed_at = now
        partial = error.partial if isinstance(error, errors.StreamInterrupted) else None
        admission.failed(now, blamed=blames_target(error, target, now - admission.started, now), partial=partial)
        start_cooldown(error, target, now)
        learn_from_headers(target, context.headers, now)
        if self.settings.strategy.needs_memory:
            self.settings.memory.record_failure(self.profile.key, target.name)
        return self._note_failure(target, error)

    def _note_failure(self, target: Target, error: errors.AgentError) -> NextStep:
        self.errors.append(error)
        if isinstance(error, errors.ConfigurationError):
            self.context.attempt_count.value -= not target.is_router  # nothing was sent
        before = self._failures.get(target)
        self._failures[target] = _Failure(1 if before is None else before.times + 1, error)
        step = next_step(
            error,
            self.settings.retry,
            reroute_filtered=self.settings.reroute_filtered,
            can_restart=self.settings.on_partial != "raise",
        )
        # The frames of an error refer to this state. A reference back would be a cycle, and keep the request alive.
        if step is NextStep.STOP:
            self.errors.clear()
            self._failures.clear()
        else:
            error.with_traceback(None)
        if step is not NextStep.RETRY:
            self._closed[target] = f"it failed: {type(error).__name__}"
        if isinstance(error, errors.ContextLengthError):
            for other in self.settings.targets:
                if other is not target and other not in self._closed and not has_larger_window(target, other):
                    self._closed[other] = "its window is not known to be larger"
        return step

    def can_reroute_filtered(self, response: AgentResponse) -> bool:
        """Whether a filtered response may be replaced by another target's. If so, records it as a failure."""
        settings = self.settings
        if not settings.reroute_filtered or (self.streaming and settings.on_partial == "raise"):
            return False
        attempts = reversed(self.context.attempts)
        answered_by = next((attempt.target for attempt in attempts if attempt.error is None), None)
        error = errors.ContentFilterError(f"the answer ended with {response.stop_reason}", provider=response.provider)
        for target in settings.targets:
            if target.name == answered_by:
                self._note_failure(target, error)
        return True

    def exhausted(self, why: str, excluded: Excluded = ()) -> errors.AgentError:
        """Return the error for a request that no target answered."""
        waits = [out.seconds for _, out in excluded if out.seconds is not None and math.isfinite(out.seconds)]
        hints = [error.retry_after for error in self.errors if error.retry_after is not None]
        retryable = any(error.retryable for error in self.errors) or bool(waits)
        if not self.errors and excluded and all(exclusion.money for _, exclusion in excluded):
            reasons = "; ".join(f"{target.name}: {exclusion.reason}" for target, exclusion in excluded)
            return errors.BudgetExceededError(f"The request would exceed a spend limit: {reasons}.")
        failed = [f"{error.provider}: {type(error).__name__}: {error.message}" for error in self.errors]
        skipped = [f"{target.name}: {out.reason}" for target, out in excluded if target not in self._failures]
        return errors.RoutingError(
            f"No target answered ({why}): {'; '.join(failed + skipped) or 'there is none'}.",
            errors=self.errors,
            retryable=retryable,
            retry_after=min([*waits, *hints], default=None),
        )


def _comes_last(target: Target, now: float) -> bool:
    """Whether an unhealthy target is asked after healthy ones. A probe or a trial takes the target's usual place."""
    breaker = target.health.breaker
    return not breaker.healthy and not breaker.is_due(now)


def _by_reliability(ranked: RankedTarget) -> tuple[bool, float, int]:
    """Sort key of the targets after a failure: reliable ones first, in steps of ten percent.

    Requests that fail at the same moment spread over targets about which nothing is known.
    """
    target = ranked.target
    breaker = target.health.breaker
    return not breaker.healthy, round(breaker.estimated_failure_rate, 1), target.in_flight if breaker.unproven else 0


def list_candidates(ranked: Sequence[RankedTarget], excluded: Excluded, now: float) -> tuple[Candidate, ...]:
    """Return the targets that could be asked, best first, and the excluded ones, for a route."""
    return (
        *(_candidate(one.target, now, one.reason, place, one.score) for place, one in enumerate(ranked, 1)),
        *(_candidate(target, now, exclusion.reason) for target, exclusion in excluded),
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
