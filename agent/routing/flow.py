"""Flow of a routed call: fallback between targets, races, hedges and shadow traffic.

A routed call is a `Call` like that of an agent, so the same middleware can wrap both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic

from typing_extensions import override

from .. import errors
from ..engine.context import Call, Context, OpenAttempt, sum_attempts
from ..engine.flow import (
    Branch,
    Cancel,
    Detach,
    Emit,
    Emitted,
    Failed,
    Finished,
    Flow,
    Now,
    Paused,
    Random,
    Sleep,
    Spawn,
    Wait,
)
from ..errors import printable
from ..types import AgentRequest, AgentResponse, Attempt, Candidate, Message, StreamEvent, TextContent, Value
from ..types.routing import candidates_table
from .failure_policy import NextStep
from .request_profile import NO_RANDOM, Exclusion, RequestProfile
from .state import RouterSettings, RoutingState, Shadow, list_candidates
from .strategies import RankedTarget
from .targets import Admission, Target

_CONTINUE_PROMPT = (
    "Your answer was cut off in transmission. Continue it from exactly where it stopped: repeat nothing, and do not "
    "mention the interruption."
)
_FILTER_STOP_REASONS = frozenset(("content_filter", "refusal"))
_POLL_SECONDS = 0.05
"""First interval for checking a target that is at its concurrency limit, or whose money is held. It doubles."""
_LONGEST_POLL = 1.0
_LOST_RACE = "another target was faster"


def route_call(settings: RouterSettings, *, streaming: bool) -> Call:
    """Return a call that tries the targets of a router.

    At most `retry.max_retries` attempts follow the first one, at any targets; the retry budget limits requests to
    failing targets. Text of different attempts is never mixed silently: a broken stream is an error, or starts again
    after a restart event.
    """

    def call(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        is_outermost = context.attempt_count.value == 0
        now = context.started if is_outermost and not context.attempts else (yield from Now())
        random = (yield from Random()) if settings.strategy.needs_random else NO_RANDOM
        state = RoutingState(settings, request, context, RequestProfile(request, streaming, now, random))
        if is_outermost:
            settings.retry_budget.deposit()
            if settings.hedge is not None:
                settings.hedge_budget.deposit()
        for shadow in settings.shadows:
            if shadow.share >= 1 or (yield from Random()) < shadow.share:
                yield from Detach(_send_to_shadow(shadow, request), shadow.timeout)
        partial_text = ""  # text of broken attempts that the next attempt continues
        restart_reason: str | None = None  # set if the events emitted so far are void
        filtered: AgentResponse | None = None
        while True:
            try:
                admission, alternatives = state.admit_first(now) or (yield from _admit_next(state, now))
            except errors.AgentError as error:
                if filtered is not None:
                    return filtered
                error.committed = error.committed or restart_reason is not None
                raise
            attempt_request = request
            if restart_reason is not None:
                yield Emit([StreamEvent.restart_event(restart_reason)])  # voids the events so far
                if partial_text:
                    yield Emit([StreamEvent.text_delta(partial_text)])
                    continuation = (Message.assistant(partial_text), Message.user(_CONTINUE_PROMPT))
                    attempt_request = request.with_messages(*continuation)
            if settings.is_concurrent:
                attempt = _race_targets(state, attempt_request, admission, alternatives)
            else:
                attempt = _try_target(state, attempt_request, admission)
            response = yield from attempt
            if response is None:
                now, failure = state.failed_at, state.errors[-1]
                if isinstance(failure, errors.StreamInterrupted):
                    restart_reason = failure.message
                    partial_text += _text_to_continue(state, failure)
                continue
            if response.stop_reason in _FILTER_STOP_REASONS and state.can_reroute_filtered(response):
                filtered = _prepend_text(partial_text, response)
                partial_text, restart_reason = "", "the answer was filtered" if streaming else None
                now = yield from Now()
                continue
            return _prepend_text(partial_text, response)

    return call


def _admit_next(state: RoutingState, now: float) -> Flow[tuple[Admission, list[RankedTarget]]]:
    """Admit the next target and return the alternatives. Waits if necessary; raises if there is none."""
    start, has_paid, may_wait_for_recovery, poll = now, False, True, _POLL_SECONDS
    context = state.context

    def can_try(target: Target) -> bool:
        nonlocal has_paid
        if not state.is_charged(target):
            return True
        if may_wait_for_recovery and state.is_last_attempt:
            return False  # a healthy target may recover during the wait
        has_paid = has_paid or state.withdraw_retry(now)
        return has_paid

    def can_wait(seconds: float) -> bool:
        return now + seconds - start <= state.settings.max_wait and now + seconds < context.deadline

    while True:
        stop_reason = state.stop_reason()
        if stop_reason is not None:
            raise state.routing_error(stop_reason)
        ranked, excluded = state.rank_targets(now)
        admission, index = yield from _admit_ranked(state, ranked, now, can_try, excluded)
        if admission is not None:
            return admission, ranked[index + 1 :]
        panicking = [RankedTarget(target, "no target is healthy") for target in state.list_panic_targets(excluded)]
        admission, _ = yield from _admit_ranked(state, panicking, now, can_try, excluded, panic=True)
        if admission is not None:
            return admission, []
        random = yield from Random()
        if may_wait_for_recovery:
            may_wait_for_recovery = False
            recovery = state.recovery_wait(now, random)
            if recovery is not None and can_wait(recovery):
                yield from Sleep(recovery)
                now = yield from Now()
                context.waited = now - start
            continue
        waits = state.list_waits(excluded, now, random)
        if not waits:
            raise state.routing_error("no target is left", excluded)
        seconds, target = waits[0]
        if seconds == math.inf:
            seconds = poll * (0.5 + 0.5 * random)
            poll = min(2 * poll, _LONGEST_POLL)
        if not can_wait(seconds):
            raise state.routing_error(f"the next target is available in {seconds:.1f} s", excluded)
        if not can_try(target):
            raise state.routing_error("the retry budget is used up", excluded)
        yield from Sleep(seconds)
        now = yield from Now()
        context.waited = now - start
        if state.has_failed(target):
            admission, _ = yield from _admit_ranked(
                state, [RankedTarget(target, "retry")], now, lambda _: True, excluded
            )
            if admission is not None:
                return admission, []


def _admit_ranked(
    state: RoutingState,
    ranked: Sequence[RankedTarget],
    now: float,
    can_try: Callable[[Target], bool],
    excluded: list[tuple[Target, Exclusion]],
    *,
    panic: bool = False,
) -> Flow[tuple[Admission | None, int]]:
    """Admit the first target that is at no limit, with its index. A shared state checks several at once."""
    shared, index = state.settings.shared, 0
    while index < len(ranked) and can_try(ranked[index].target):  # healthy targets are ranked first
        end = index + 1
        if shared is None:
            admission = state.admit(ranked[index].target, now, reason=ranked[index].reason, panic=panic)
            position = 0
            if admission is None:
                excluded.append((ranked[index].target, Exclusion("another call took its capacity", _POLL_SECONDS)))
        else:
            while end < len(ranked) and not state.is_charged(ranked[end].target):
                end += 1
            admission, position, refused = yield from shared.admit(state, ranked[index:end], now, panic=panic)
            excluded += refused
        if admission is not None:
            return admission, index + position
        index = end
    return None, 0


def _text_to_continue(state: RoutingState, error: errors.StreamInterrupted) -> str:
    """Return the text that the next attempt continues. Structured output always comes from one attempt."""
    if state.settings.on_partial != "continue" or state.request.output_schema is not None or error.partial is None:
        return ""
    return error.partial.text or ""


def _prepend_text(partial_text: str, response: AgentResponse) -> AgentResponse:
    if not partial_text:
        return response
    warning = f"the first {len(partial_text)} characters come from an attempt that broke off"
    return response.model_copy(
        update={
            "content": (TextContent(text=partial_text), *response.content),
            "warnings": (*response.warnings, warning),
        }
    )


def _send_to_shadow(shadow: Shadow, request: AgentRequest) -> Flow[None]:
    """Send shadow traffic and pass on its outcome."""
    outcome: AgentResponse | errors.AgentError
    target = shadow.target
    try:
        outcome = yield from target.call(streaming=False)(target.callee.apply_defaults(request), Context())
    except errors.AgentError as error:
        outcome = error
    if shadow.on_result is not None:
        shadow.on_result(outcome)


# Attempts, races and hedges


def _try_target(state: RoutingState, request: AgentRequest, admission: Admission) -> Flow[AgentResponse | None]:
    """Make one attempt and record its outcome. Returns None if it failed and another may follow."""
    context = state.context
    context.reason = admission.reason
    try:
        try:
            response = yield from _start_call(state, request, admission.target, context)
        except errors.AgentError as error:
            if state.record_failure(admission, error, (yield from Now()), context) is NextStep.STOP:
                raise
            return None
        state.record_success(admission, response, context.ended, context)
        return response
    finally:
        admission.abandon()


def _start_call(state: RoutingState, request: AgentRequest, target: Target, context: Context) -> Flow[AgentResponse]:
    if context.on_target is not None:
        context.on_target(target.agent)
    if request is state.request:
        request = state.profile.request_for(target)
    else:
        request = target.callee.apply_defaults(request)
    return target.call(streaming=state.streaming)(request, context)


@dataclass(slots=True)
class _Runner:
    """One attempt in a race."""

    admission: Admission
    context: Context


def _race_targets(
    state: RoutingState, request: AgentRequest, admission: Admission, alternatives: list[RankedTarget]
) -> Flow[AgentResponse | None]:
    """Like `_try_target`, with concurrent attempts at other targets: a race, or a hedge after a delay.

    The first response wins. The other attempts are cancelled, awaited and recorded with their probable cost.
    """
    racers, delay = state.settings.racers, _hedge_delay(state, admission) if alternatives else None
    if racers == 1 and delay is None:
        return (yield from _try_target(state, request, admission))
    runners: dict[Branch, _Runner] = {}
    response: AgentResponse
    try:
        yield from _start_runner(state, request, admission, runners)
        if racers > 1:
            yield from _start_more(state, request, alternatives, runners, racers - 1)
        while True:
            try:
                progress = yield from Wait(list(runners), delay)
            except errors.TimeoutError as timeout:
                _record_timeout(state, runners, timeout, (yield from Now()))
                raise
            match progress:
                case None:
                    delay = None
                    if state.settings.hedge_budget.withdraw((yield from Now())):
                        yield from _start_more(state, request, alternatives, runners, 1)
                case Failed(branch, error):
                    runner = runners.pop(branch)
                    if not isinstance(error, errors.AgentError):
                        runner.admission.abandon()
                        raise error
                    step = state.record_failure(runner.admission, error, (yield from Now()), runner.context)
                    if step is NextStep.STOP:
                        yield from _cancel_losers(state, runners)
                        raise error
                    if not runners:
                        return None
                case Finished(branch, value):
                    runner = runners.pop(branch)
                    state.record_success(runner.admission, value, (yield from Now()), runner.context)
                    yield from _cancel_losers(state, runners)
                    response = value
                    return response
                case Paused(branch, rest):
                    runner = runners.pop(branch)
                    if runner.context.on_target is not None:
                        runner.context.on_target(runner.admission.target.agent)
                    yield from _cancel_losers(state, runners)
                    runners[branch] = runner  # settled below, or abandoned in `finally`
                    try:
                        response = yield from rest
                    except errors.AgentError as error:
                        step = state.record_failure(runner.admission, error, (yield from Now()), runner.context)
                        if step is NextStep.STOP:
                            raise
                        return None
                    state.record_success(runner.admission, response, runner.context.ended, runner.context)
                    return response
                case Emitted():
                    raise AssertionError("a branch of a race emitted an event without pausing")
    finally:
        for runner in runners.values():
            runner.admission.abandon()


def _start_runner(
    state: RoutingState, request: AgentRequest, admission: Admission, runners: dict[Branch, _Runner]
) -> Flow[None]:
    context = state.context.branch()
    context.reason = admission.reason
    context.waited, state.context.waited = state.context.waited, None

    def run() -> Flow[AgentResponse]:  # a generator, so that encoding errors are raised in the branch
        return (yield from _start_call(state, request, admission.target, context))

    runners[(yield from Spawn(run(), pause=state.streaming))] = _Runner(admission, context)


def _start_more(
    state: RoutingState,
    request: AgentRequest,
    alternatives: list[RankedTarget],
    runners: dict[Branch, _Runner],
    most: int,
) -> Flow[None]:
    """Start attempts at more targets. After a failure, and in a hedge, only healthy targets are used."""
    is_race = state.settings.racers > 1
    for one in alternatives:
        if most == 0 or state.stop_reason() is not None:
            return
        if state.is_charged(one.target) and (state.errors or not is_race):
            continue
        reason = "in the race" if is_race else "hedge: the first target was slow"
        candidate, now = one._replace(reason=reason), (yield from Now())
        admission, _ = yield from _admit_ranked(state, [candidate], now, lambda _: True, [])
        if admission is not None:
            most -= 1
            yield from _start_runner(state, request, admission, runners)


def _cancel_losers(state: RoutingState, runners: dict[Branch, _Runner]) -> Flow[None]:
    """Cancel the remaining attempts, wait for them, and record their probable cost."""
    if not runners:
        return
    yield from Cancel(list(runners))
    now = yield from Now()
    for runner in runners.values():
        log = runner.context.log
        log.close(partial(_record_cancelled, now - state.context.origin))
        log.revise(_record_discarded)
        usage, cost = sum_attempts(log.finished)
        runner.admission.settle_cancelled(now, usage, cost)
    runners.clear()


def _record_cancelled(ended: float, attempt: OpenAttempt) -> Attempt:
    usage, cost = attempt.estimate()
    elapsed = (ended - attempt.started) * 1000
    return attempt.close("Cancelled", _LOST_RACE, latency_ms=elapsed, usage=usage, cost=cost)


def _record_discarded(attempt: Attempt) -> Attempt:
    """Relabel a response that arrived at the same moment as the winner's. Its cost stays."""
    return attempt if attempt.error is not None else attempt.copy_with(error="Cancelled", message=_LOST_RACE)


def _record_timeout(
    state: RoutingState, runners: dict[Branch, _Runner], error: errors.TimeoutError, now: float
) -> None:
    """Record that the deadline passed while all attempts were in flight."""
    ended, name = now - state.context.origin, type(error).__name__
    for runner in runners.values():
        state.record_failure(runner.admission, error, now, runner.context)
        runner.context.log.close(
            lambda attempt: attempt.close(name, error.message, latency_ms=(ended - attempt.started) * 1000)
        )
    runners.clear()


def _hedge_delay(state: RoutingState, admission: Admission) -> float | None:
    """Seconds until a hedged request is sent; None without hedging."""
    hedge = state.settings.hedge
    if hedge is None:
        return None
    if hedge.delay is not None:
        return hedge.delay
    learned = admission.target.timings.slow_threshold(admission.started, streaming=state.streaming)
    return hedge.initial_delay if learned is None else learned


# Explanations


class Explanation(Value, frozen=True):
    """Targets of a router, ranked or excluded for one request. Prints as a table."""

    candidates: tuple[Candidate, ...]
    """Ranked targets, best first, then the excluded ones."""
    needs: tuple[str, ...] = ()
    """Capabilities that the request requires."""

    @property
    def order(self) -> list[str]:
        """Names of the ranked targets, best first."""
        return [one.target for one in self.candidates if one.place is not None]

    @property
    def excluded(self) -> dict[str, str]:
        """Names of the excluded targets, with the reason."""
        return {one.target: one.reason or "" for one in self.candidates if one.place is None}

    @override
    @printable
    def __str__(self) -> str:
        needs = f"needs: {', '.join(self.needs)}\n\n" if self.needs else ""
        return needs + candidates_table(self.candidates)


def explain_routing(settings: RouterSettings, request: AgentRequest, *, streaming: bool) -> Explanation:
    """Rank the targets for a request."""
    now = monotonic()
    profile = RequestProfile(request, streaming, now, NO_RANDOM)
    ranked, excluded = RoutingState(settings, request, Context(), profile).rank_targets(now)
    return Explanation(candidates=list_candidates(ranked, excluded, now), needs=tuple(sorted(profile.needs)))
