"""Router settings, and the state of one routed request.

The state makes decisions; the flow sends requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from .. import errors
from ..engine.context import Context
from ..types import AgentRequest, AgentResponse, Candidate, RetryConfig
from ..types.routing import HedgeConfig, OnPartial
from .failure_policy import NextStep, blames_target, has_larger_window, next_step, start_cooldown
from .limits import RequestBudget, Reservation, SpendLedger, make_hedge_budget
from .request_profile import Exclusion, RequestProfile, exclude_incapable, exclude_too_expensive, exclude_unavailable
from .strategies import Memory, RankedTarget, Strategy
from .targets import Admission, CostEstimate, Target, update_rate_limits

if TYPE_CHECKING:
    from .shared_state import Lease, SharedState

NEW_OUTAGE = 15.0
"""Seconds since a target started to fail in which a call may wait for another one to recover."""
SHORT_WAIT = 1.0
"""Seconds that a call waits rather than trying an unhealthy target."""

Excluded: TypeAlias = Sequence[tuple[Target, Exclusion]]
"""Excluded targets with the reason."""


@dataclass(frozen=True, slots=True)
class Shadow:
    """Shadow traffic: a target that receives a share of the requests for comparison."""

    target: Target
    share: float
    on_result: Callable[[Any], object] | None = None
    timeout: float = 120.0


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
    """Names of the targets, or of their models, that may be used; None for all."""
    memory: Memory = field(default_factory=Memory)
    retry_budget: RequestBudget = field(default_factory=RequestBudget)
    hedge_budget: RequestBudget = field(default_factory=lambda: make_hedge_budget(0.05))
    ledger: SpendLedger = field(default_factory=lambda: SpendLedger(()))
    shared: SharedState | None = None
    """Limits and health shared with other processes; None if there are none."""
    has_levels: bool = field(init=False)
    """Whether targets have different levels."""
    is_concurrent: bool = field(init=False)
    """Whether races or hedges may send concurrent attempts."""

    def __post_init__(self) -> None:
        self.has_levels = len({target.level for target in self.targets}) > 1
        self.is_concurrent = self.racers > 1 or self.hedge is not None


class _Failures(NamedTuple):
    """Failures of one target for this request."""

    times: int
    latest: errors.AgentError


class RoutingState:
    """Attempts and failures of one routed request, and the decisions that follow from them."""

    def __init__(
        self, settings: RouterSettings, request: AgentRequest, context: Context, profile: RequestProfile
    ) -> None:
        self.settings: RouterSettings = settings
        self.request: AgentRequest = request
        self.context: Context = context
        self.profile: RequestProfile = profile
        self.streaming: bool = profile.streaming
        self.errors: list[errors.AgentError] = []
        self.failed_at: float = 0.0
        """Time of the latest failure."""
        self._closed: dict[Target, str] = {}
        """Targets that get no further attempt for this request, and why."""
        self._failures: dict[Target, _Failures] = {}
        self._admitted = 0
        """Attempts of this router for the request."""
        self._healthy_only = False
        """Whether only healthy targets may follow, because the first attempt was a probe."""

    def rank_targets(self, now: float) -> tuple[list[RankedTarget], list[tuple[Target, Exclusion]]]:
        """Return the available targets that have not failed, best first, and the excluded ones."""
        settings = self.settings
        ready: list[Target] = []
        excluded: list[tuple[Target, Exclusion]] = []
        for target in settings.targets:
            if target in self._failures:
                continue
            exclusion = self._exclude(target, now)
            if exclusion is None:
                ready.append(target)
            else:
                excluded.append((target, exclusion))
        ranked = self._rank(ready, excluded)
        if self._admitted:
            ranked.sort(key=_by_reliability)
        else:
            ranked.sort(key=lambda one: _is_last_resort(one.target, now))
        context = self.context
        if context.candidates is None:  # kept by the response, and so without a reference to self
            context.candidates = partial(list_candidates, ranked, excluded, now)
        return ranked, excluded

    def _exclude(self, target: Target, now: float) -> Exclusion | None:
        if self._closed and (reason := self._closed.get(target)) is not None:
            return Exclusion(reason)
        only, ledger = self.settings.only, self.settings.ledger
        if only is not None and only.isdisjoint(target.aliases):
            return Exclusion("not in only=")
        return (
            exclude_incapable(self.profile, target)
            or exclude_unavailable(target, self.profile, now)
            or (self._exclude_too_expensive(target, now) if ledger.limits else None)
        )

    def _exclude_too_expensive(self, target: Target, now: float) -> Exclusion | None:
        shared = self.settings.shared
        is_shared = shared is not None and shared.replaces_ledger()
        return exclude_too_expensive(target, self.profile, self.settings.ledger, now, is_shared=is_shared)

    def _rank(self, ready: list[Target], excluded: list[tuple[Target, Exclusion]]) -> list[RankedTarget]:
        """Rank each level of targets by the strategy."""
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
            excluded += [(target, Exclusion("not chosen by the strategy")) for target in ready if target not in chosen]
        return ranked

    def admit_first(self, now: float) -> tuple[Admission, list[RankedTarget]] | None:
        """Admit the best target for the first attempt, and return the alternatives; None if that fails."""
        if self.context.attempt_count.value or self._failures:
            return None
        shared = self.settings.shared
        if shared is not None and shared.is_exact:
            return None
        ranked, _ = self.rank_targets(now)
        for index, one in enumerate(ranked):
            if shared is not None and shared.has_claim(one.target, now):
                return None
            admission = self.admit(one.target, now, reason=one.reason)
            if admission is not None:
                return admission, ranked[index + 1 :]
        return None

    def list_panic_targets(self, excluded: Excluded) -> list[Target]:
        """Return the unhealthy targets to try when none is healthy, least recently used first."""
        is_short_wait = any(
            exclusion.seconds is not None and exclusion.seconds <= SHORT_WAIT
            for _, exclusion in excluded
            if not exclusion.health
        )
        if is_short_wait and not self._admitted:
            return []
        unhealthy = [target for target, exclusion in excluded if exclusion.health]
        ranked = [one.target for one in self._rank(unhealthy, [])]
        return sorted(ranked, key=lambda target: target.health.breaker.last_used)

    def is_charged(self, target: Target) -> bool:
        """Whether an attempt at a target is charged to the retry budget.

        Attempts at unhealthy targets, and retries at a target that failed this request, are charged. The first attempt
        of a call, and a fallback to a healthy target, are free.
        """
        return self._admitted > 0 and (target in self._failures or not target.health.breaker.is_healthy)

    def withdraw_retry(self, now: float) -> bool:
        """Charge an attempt to the retry budget; False if it is used up."""
        return not self._healthy_only and self.settings.retry_budget.withdraw(now)

    def list_waits(self, excluded: Excluded, now: float, random: float) -> list[tuple[float, Target]]:
        """Return the targets that become available, with the seconds until then, soonest first.

        Calls do not wait for open circuit breakers, which other calls probe.
        """
        retry = self.settings.retry
        spread = random * retry.first_throttle if retry.jitter else 0.0  # waiting calls must not return at once
        waits = [
            (exclusion.seconds + spread, target)
            for target, exclusion in excluded
            if exclusion.seconds is not None and not exclusion.health and target not in self._closed
        ]
        for target, failures in self._failures.items():
            if target in self._closed or failures.times > retry.max_retries:
                continue
            exclusion = exclude_unavailable(target, self.profile, now)
            if exclusion is None or (exclusion.seconds is not None and not exclusion.health):
                delay = retry.get_delay(attempt=failures.times, error=failures.latest, rand=random)
                waits.append((max(delay, 0.0 if exclusion is None else exclusion.seconds or 0.0), target))
        return sorted(waits, key=lambda wait: wait[0])

    def recovery_wait(self, now: float, random: float) -> float | None:
        """Seconds to wait for another target to recover if no healthy one is left; None not to wait.

        Probes of other calls detect the recovery. In a long outage, waiting is useless.
        """
        candidates = [target for target in self.settings.targets if target not in self._closed]
        since = [target.health.breaker.failing_since for target in candidates]
        is_new = any(start is None or now - start < NEW_OUTAGE for start in since)
        if self._admitted == 0 or not is_new or all(target in self._failures for target in candidates):
            return None
        return self.settings.retry.first_throttle * (0.5 + 0.5 * random)

    def has_failed(self, target: Target) -> bool:
        return target in self._failures

    def stop_reason(self) -> str | None:
        """Why no further attempt is allowed; None if one is."""
        made = self.context.attempt_count.value
        return f"{made} attempts were made" if made > self.settings.retry.max_retries else None

    @property
    def is_last_attempt(self) -> bool:
        """Whether exactly one more attempt is allowed."""
        return self.context.attempt_count.value == self.settings.retry.max_retries

    def admit(
        self,
        target: Target,
        now: float,
        *,
        reason: str,
        panic: bool = False,
        lease: Lease | None = None,
        is_admitted: bool = False,
        may_probe: bool = True,
    ) -> Admission | None:
        """Reserve capacity for an attempt; None if the target or the call is at a limit.

        If a shared state has admitted the attempt, limits are only counted.
        """
        if self.stop_reason() is not None:
            return None
        limiter = target.limiter
        entry = limiter.acquire(self.count_tokens(target), now, is_admitted=is_admitted)
        if entry is None:
            return None
        ledger, reservation = self.settings.ledger, Reservation()
        if ledger.limits and not is_admitted:
            cost = self.profile.estimate_cost(target) or CostEstimate(0.0, 0.0)
            reserved = ledger.reserve(cost.expected, cost.maximum, self.request.metadata, now)
            if not isinstance(reserved, Reservation):
                limiter.release(entry, 0)
                return None
            reservation = reserved
        permit = target.health.breaker.take_permit(now, panic=panic, may_probe=may_probe)
        if permit is None:
            limiter.release(entry, 0)
            ledger.settle(reservation, 0.0)
            return None
        if self.settings.strategy.needs_turns and not self._failures:
            self._advance_turn(target)
        if not self._admitted:
            self._healthy_only = permit.kind in ("probe", "panic")
        self._admitted += 1
        if not target.is_router:  # a nested router counts its own attempts
            self.context.attempt_count.value += 1
        return Admission(target, permit, entry, now, reason, ledger, reservation, lease)

    def count_tokens(self, target: Target) -> int:
        if not target.limiter.limits_tokens:
            return 0
        return self.profile.tokens(target).tokens + (self.request.max_tokens or 0)

    def _advance_turn(self, target: Target) -> None:
        """Set the next turn of a target. Targets do not catch up on turns that they missed."""
        memory = self.settings.memory
        memory.turn = max(target.turn, memory.turn)
        target.turn = memory.turn + 1.0 / target.weight

    def record_success(self, admission: Admission, response: AgentResponse, now: float, context: Context) -> None:
        """Settle the admission of a successful attempt."""
        was_open = admission.target.health.breaker.opened_at
        admission.settle_success(response, now, context.first_event)
        has_limits = update_rate_limits(admission.target, context.headers, now)
        if (shared := self.settings.shared) is not None:
            self._report_success(shared, admission, response, now, context, was_open)
            if has_limits:
                shared.record_vendor_limits(admission.target, now)
        if self.settings.strategy.needs_memory:
            prompt = 0 if response.usage is None else response.usage.prompt_tokens
            self.settings.memory.record_response(self.profile.key, admission.target.name, prompt, now)

    def record_failure(self, admission: Admission, error: errors.AgentError, now: float, context: Context) -> NextStep:
        """Settle the admission of a failed attempt, and return the next step."""
        target = admission.target
        was_open = target.health.breaker.opened_at
        self.failed_at = now
        partial = error.partial if isinstance(error, errors.StreamInterrupted) else None
        blamed = blames_target(error, target, now - admission.started, now)
        admission.settle_failure(now, blamed=blamed, partial=partial)
        start_cooldown(error, target, now)
        has_limits = update_rate_limits(target, context.headers, now)
        if self.settings.strategy.needs_memory:
            self.settings.memory.record_failure(self.profile.key, target.name)
        if (shared := self.settings.shared) is not None:
            shared.record_failure(target, was_open, now, blamed=blamed)
            if has_limits:
                shared.record_vendor_limits(target, now)
            if self.settings.strategy.needs_memory:
                shared.record_placement(self.profile.key, target, None)
        return self._note_failure(target, error)

    def _report_success(
        self,
        shared: SharedState,
        admission: Admission,
        response: AgentResponse,
        now: float,
        context: Context,
        was_open: float | None,
    ) -> None:
        """Report the outcome of an attempt to other processes."""
        usage, first = response.usage, context.first_event
        shared.record_success(
            admission.target,
            was_open,
            now,
            (
                now - admission.started,
                None if first is None else first - admission.started,
                0 if usage is None else usage.completion_tokens,
            ),
        )
        if self.settings.strategy.needs_memory:
            shared.record_placement(self.profile.key, admission.target, 0 if usage is None else usage.prompt_tokens)

    def _note_failure(self, target: Target, error: errors.AgentError) -> NextStep:
        self.errors.append(error)
        if isinstance(error, errors.ConfigurationError):
            self.context.attempt_count.value -= not target.is_router  # nothing was sent
        earlier = self._failures.get(target)
        self._failures[target] = _Failures(1 if earlier is None else earlier.times + 1, error)
        step = next_step(
            error,
            self.settings.retry,
            reroute_filtered=self.settings.reroute_filtered,
            can_restart=self.settings.on_partial != "raise",
        )
        # The traceback of the error refers to this state; a reference back would create a cycle.
        if step is NextStep.STOP:
            self.errors.clear()
            self._failures.clear()
        else:
            error.with_traceback(None)
        if step is not NextStep.RETRY:
            self._closed[target] = f"failed with {type(error).__name__}"
        if isinstance(error, errors.ContextLengthError):
            for other in self.settings.targets:
                if other is not target and other not in self._closed and not has_larger_window(target, other):
                    self._closed[other] = "context window not known to be larger"
        return step

    def can_reroute_filtered(self, response: AgentResponse) -> bool:
        """Whether another target may replace a filtered response. If so, the response counts as a failure."""
        settings = self.settings
        if not settings.reroute_filtered or (self.streaming and settings.on_partial == "raise"):
            return False
        attempts = reversed(self.context.attempts)
        name = next((attempt.target for attempt in attempts if attempt.error is None), None)
        error = errors.ContentFilterError(f"the answer ended with {response.stop_reason}", provider=response.provider)
        for target in settings.targets:
            if target.name == name:
                self._note_failure(target, error)
        return True

    def routing_error(self, why: str, excluded: Excluded = ()) -> errors.AgentError:
        """Return the error for a request that no target could answer."""
        waits = [
            exclusion.seconds
            for _, exclusion in excluded
            if exclusion.seconds is not None and math.isfinite(exclusion.seconds)
        ]
        hints = [error.retry_after for error in self.errors if error.retry_after is not None]
        retryable = any(error.retryable for error in self.errors) or bool(waits)
        if not self.errors and excluded and all(exclusion.money for _, exclusion in excluded):
            reasons = "; ".join(f"{target.name}: {exclusion.reason}" for target, exclusion in excluded)
            return errors.BudgetExceededError(f"The request would exceed a spend limit: {reasons}.")
        failed = [
            f"{target.name}: {type(error).__name__}{f' ({times} times)' if times > 1 else ''}: "
            f"{error.message.removeprefix(f'{error.provider}: ')}"
            for target, (times, error) in self._failures.items()
        ]
        skipped = [
            f"{target.name}: {exclusion.reason}" for target, exclusion in excluded if target not in self._failures
        ] or [f"{target.name}: {target.problem}" for target in self.settings.targets if target.problem is not None]
        return errors.RoutingError(
            f"No target answered ({why}): {'; '.join(failed + skipped) or 'there is none'}.",
            errors=self.errors,
            retryable=retryable,
            retry_after=min([*waits, *hints], default=None),
        )


def _is_last_resort(target: Target, now: float) -> bool:
    """Whether a target is ranked last: unhealthy, and not due for a probe or trial."""
    breaker = target.health.breaker
    return not breaker.is_healthy and not breaker.is_due(now)


def _by_reliability(ranked: RankedTarget) -> tuple[bool, float, int]:
    """Sort key after a failure: failure rate in steps of 10 %, then load of targets without outcomes."""
    breaker = ranked.target.health.breaker
    load = ranked.target.in_flight if breaker.is_unproven else 0
    return not breaker.is_healthy, round(breaker.estimated_failure_rate, 1), load


def list_candidates(ranked: Sequence[RankedTarget], excluded: Excluded, now: float) -> tuple[Candidate, ...]:
    """Describe ranked and excluded targets for a route."""
    return (
        *(_describe_candidate(one.target, now, one.reason, place, one.score) for place, one in enumerate(ranked, 1)),
        *(_describe_candidate(target, now, exclusion.reason) for target, exclusion in excluded),
    )


def _describe_health(target: Target, now: float) -> str:
    state = target.health.breaker.state(now)
    if state == "closed":
        return "no key" if isinstance(target.failure, errors.AuthenticationError) else "ok"
    return state


def _describe_candidate(
    target: Target, now: float, reason: str, place: int | None = None, score: float | None = None
) -> Candidate:
    return Candidate(
        target=target.name,
        provider=target.provider,
        model=target.model,
        place=place,
        reason=reason,
        score=score if score is not None and math.isfinite(score) else None,
        health=_describe_health(target, now),
    )


def count_racers(race: bool | int, targets: int) -> int:
    """Number of concurrent attempts in a race."""
    if race is True:
        return targets
    if race is False:
        return 1
    if race < 2:
        raise errors.ConfigurationError(f"race is {race}.", field="race", fix="Use True, or 2 or more targets.")
    return min(race, targets)
