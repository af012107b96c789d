"""Flow of a routed call: ask targets until one answers or no attempt is left.

It is a `Call` like an agent's, so the same middleware can wrap both.
"""

from __future__ import annotations

import math
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
from ..types import AgentRequest, AgentResponse, Attempt, Candidate, Message, StreamEvent, TextContent, Value
from ..types.routing import candidates_table
from .failure_policy import NextStep
from .request_profile import NO_RANDOM, RequestProfile
from .state import RouterSettings, RoutingState, Shadow, list_candidates
from .strategies import RankedTarget
from .targets import Admission, Target

_FASTER = "another was faster"


@dataclass(slots=True)
class _Leg:
    """One target in a race."""

    admission: Admission
    context: Context


def send_to(target: Target, request: AgentRequest, context: Context, *, streaming: bool) -> Flow[AgentResponse]:
    """Send a request to a target, with the target's own defaults."""
    return (yield from target.call(streaming=streaming)(target.callee.apply_defaults(request), context))


def race(
    state: RoutingState, request: AgentRequest, admission: Admission, spares: list[RankedTarget]
) -> Flow[AgentResponse | None]:
    """Ask an admitted target as `ask_one` does, and others beside it as the settings say."""
    racers, delay = state.settings.racers, _hedge_delay(state, admission) if spares else None
    if racers == 1 and delay is None:
        return (yield from ask_one(state, request, admission))
    legs: dict[Branch, _Leg] = {}
    response: AgentResponse
    try:
        yield from _start(state, request, admission, legs)
        if racers > 1:
            yield from _join(state, request, spares, legs, racers - 1)
        while True:
            try:
                news = yield from Wait(list(legs), delay)
            except errors.TimeoutError as late:
                _record_timeout(state, legs, late, (yield from Now()))
                raise
            match news:
                case None:
                    delay = None
                    if state.settings.hedges.withdraw((yield from Now())):
                        yield from _join(state, request, spares, legs, 1)
                case Failed(branch, error):
                    leg = legs.pop(branch)
                    if not isinstance(error, errors.AgentError):
                        leg.admission.abandon()
                        raise error
                    step = state.record_failure(leg.admission, error, (yield from Now()), leg.context)
                    if step is NextStep.STOP:
                        yield from _cancel_losers(state, legs)
                        raise error
                    if not legs:
                        return None
                case Finished(branch, value):
                    leg = legs.pop(branch)
                    state.record_success(leg.admission, value, (yield from Now()), leg.context)
                    yield from _cancel_losers(state, legs)
                    response = value
                    return response
                case Paused(branch, rest):
                    leg = legs.pop(branch)
                    if leg.context.on_target is not None:
                        leg.context.on_target(leg.admission.target.agent)
                    yield from _cancel_losers(state, legs)
                    legs[branch] = leg  # settled below, or abandoned at the end
                    try:
                        response = yield from rest
                    except errors.AgentError as broken:
                        step = state.record_failure(leg.admission, broken, (yield from Now()), leg.context)
                        if step is NextStep.STOP:
                            raise
                        return None
                    state.record_success(leg.admission, response, leg.context.ended, leg.context)
                    return response
                case Emitted():
                    raise AssertionError("a whole answer has no events, and a stream pauses at its first")
    finally:
        for leg in legs.values():
            leg.admission.abandon()


def ask_one(state: RoutingState, request: AgentRequest, admission: Admission) -> Flow[AgentResponse | None]:
    """Ask an admitted target, and record the outcome. None if it failed and another may be asked."""
    context = state.context
    context.reason = admission.reason
    try:
        try:
            response = yield from _call(state, request, admission.target, context)
        except errors.AgentError as error:
            if state.record_failure(admission, error, (yield from Now()), context) is NextStep.STOP:
                raise
            return None
        state.record_success(admission, response, context.ended, context)
        return response
    finally:
        admission.abandon()


def _call(state: RoutingState, request: AgentRequest, target: Target, context: Context) -> Flow[AgentResponse]:
    if context.on_target is not None:
        context.on_target(target.agent)
    asked = state.profile.asked(target) if request is state.request else target.callee.apply_defaults(request)
    return target.call(streaming=state.streaming)(asked, context)


def _start(state: RoutingState, request: AgentRequest, admission: Admission, legs: dict[Branch, _Leg]) -> Flow[None]:
    context = state.context.branch()
    context.reason = admission.reason
    context.waited, state.context.waited = state.context.waited, None

    def leg() -> Flow[AgentResponse]:  # a request that cannot be encoded fails in the branch, and the others continue
        return (yield from _call(state, request, admission.target, context))

    legs[(yield from Spawn(leg(), pause=state.streaming))] = _Leg(admission, context)


def _join(
    state: RoutingState, request: AgentRequest, spares: list[RankedTarget], legs: dict[Branch, _Leg], most: int
) -> Flow[None]:
    """Ask more targets beside those that are being asked. After a failure, and in a hedge, only healthy ones."""
    is_race = state.settings.racers > 1
    for one in spares:
        if most == 0 or state.stop_reason() is not None:
            return
        if state.is_charged(one.target) and (state.errors or not is_race):
            continue
        reason = "in the race" if is_race else "the first was slow"
        admission = state.admit(one.target, (yield from Now()), reason=reason)
        if admission is not None:
            most -= 1
            yield from _start(state, request, admission, legs)


def _cancel_losers(state: RoutingState, legs: dict[Branch, _Leg]) -> Flow[None]:
    """Cancel the losers, wait for them, and record their probable cost."""
    if not legs:
        return
    yield from Cancel(list(legs))
    now = yield from Now()
    for leg in legs.values():
        log = leg.context.log
        log.close(partial(_cancelled, now - state.context.started))
        log.revise(_discarded)
        usage, cost = sum_attempts(log.finished)
        leg.admission.cancelled(now, usage, cost)
    legs.clear()


def _cancelled(ended: float, attempt: OpenAttempt) -> Attempt:
    usage, cost = attempt.estimate()
    elapsed = (ended - attempt.started) * 1000
    return attempt.close("Cancelled", _FASTER, latency_ms=elapsed, usage=usage, cost=cost)


def _discarded(attempt: Attempt) -> Attempt:
    """Relabel an answer that came at the same moment as the winner's: it is paid for, and not used."""
    if attempt.error is not None:
        return attempt
    return attempt.copy_with(error="Cancelled", message=_FASTER)


def _record_timeout(state: RoutingState, legs: dict[Branch, _Leg], error: errors.TimeoutError, now: float) -> None:
    """Record that the deadline passed while all were in flight."""
    ended, name = now - state.context.started, type(error).__name__
    for leg in legs.values():
        state.record_failure(leg.admission, error, now, leg.context)
        leg.context.log.close(
            lambda attempt: attempt.close(name, error.message, latency_ms=(ended - attempt.started) * 1000)
        )
    legs.clear()


def _hedge_delay(state: RoutingState, admission: Admission) -> float | None:
    """Seconds until a hedged request is sent; None without hedging."""
    hedge = state.settings.hedge
    if hedge is None:
        return None
    if hedge.after is not None:
        return hedge.after
    learned = admission.target.timings.patience(admission.started, streaming=state.streaming)
    return hedge.until_learned if learned is None else learned


_CONTINUE = (
    "Your answer was cut off in transmission. Continue it from exactly where it stopped: repeat nothing, and do not "
    "mention the interruption."
)
_FILTERED = frozenset(("content_filter", "refusal"))
_POLL_SECONDS = 0.05
"""Seconds between looks at a target whose capacity depends on requests in flight."""


def route_call(settings: RouterSettings, *, streaming: bool) -> Call:
    """Return a call that asks the targets of a router.

    At most `retry.max_retries` attempts follow the first, wherever they go; the retry budget limits requests to failing
    targets. Text that was emitted is never silently followed by another model's: a broken stream is an error, or
    begins again after a restart event.
    """

    def call(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        first = context.attempt_count.value == 0
        now = context.started if first and not context.attempts else (yield from Now())
        random = (yield from Random()) if settings.strategy.needs_random else NO_RANDOM
        state = RoutingState(settings, request, context, RequestProfile(request, streaming, now, random))
        if first:
            settings.retries.deposit()
            if settings.hedge is not None:
                settings.hedges.deposit()
        for shadow in settings.shadows:
            if shadow.share >= 1 or (yield from Random()) < shadow.share:
                yield from Detach(_send_to_shadow(shadow, request), shadow.seconds)
        kept = ""  # text of broken attempts that the next one continues
        void: str | None = None  # why the events emitted so far do not count
        filtered: AgentResponse | None = None
        while True:
            try:
                admission, spares = state.admit_first(now) or (yield from _admit_next(state, now))
            except errors.AgentError as error:
                if filtered is not None:
                    return filtered
                error.committed = error.committed or void is not None
                raise
            asked = request
            if void is not None:
                yield Emit(_restart_events(void, kept))
                asked = _continuation(request, kept) if kept else request
            concurrent = settings.is_concurrent
            ask = race(state, asked, admission, spares) if concurrent else ask_one(state, asked, admission)
            response = yield from ask
            if response is None:
                now, failure = state.failed_at, state.errors[-1]
                if isinstance(failure, errors.StreamInterrupted):
                    void = failure.message
                    kept += _text_to_continue(state, failure)
                continue
            if response.stop_reason in _FILTERED and state.can_reroute_filtered(response):
                filtered = _join_text(kept, response)
                kept, void = "", "the answer was filtered" if streaming else None
                now = yield from Now()
                continue
            return _join_text(kept, response) if kept else response

    return call


def _admit_next(state: RoutingState, now: float) -> Flow[tuple[Admission, list[RankedTarget]]]:
    """Admit the next target, and return it with the other candidates. Waits if need be; raises if there is none."""
    began, paid, patient = now, False, True
    context = state.context

    def may_ask(target: Target) -> bool:
        nonlocal paid
        if not state.is_charged(target):
            return True
        if patient and state.is_last_attempt:
            return False  # a healthy target may be back in a moment
        paid = paid or state.withdraw_retry(now)
        return paid

    def can_wait(seconds: float) -> bool:
        return now + seconds - began <= state.settings.max_wait and now + seconds < context.deadline

    while True:
        stopped = state.stop_reason()
        if stopped is not None:
            raise state.exhausted(stopped)
        ranked, excluded = state.order(now)
        for place, one in enumerate(ranked):
            if not may_ask(one.target):
                break  # healthy targets come first
            admission = state.admit(one.target, now, reason=one.reason)
            if admission is not None:
                return admission, ranked[place + 1 :]
        for target in state.unhealthy_fallbacks(excluded):
            if not may_ask(target):
                break
            admission = state.admit(target, now, reason="no target is healthy", panic=True)
            if admission is not None:
                return admission, []
        random = yield from Random()
        if patient:
            patient = False
            recovery = state.recovery_wait(now, random)
            if recovery is not None and can_wait(recovery):
                yield from Sleep(recovery)
                now = yield from Now()
                context.waited = now - began
            continue
        waits = state.list_waits(excluded, now, random)
        if not waits:
            raise state.exhausted("no target is left", excluded)
        seconds, target = waits[0]
        if seconds == math.inf:
            seconds = _POLL_SECONDS
        if not can_wait(seconds):
            raise state.exhausted(f"the next could be asked in {seconds:.1f} s", excluded)
        if not may_ask(target):
            raise state.exhausted("the retry budget is used up", excluded)
        yield from Sleep(seconds)
        now = yield from Now()
        context.waited = now - began
        if state.has_failed(target) and (admission := state.admit(target, now, reason="again")) is not None:
            return admission, []


def _text_to_continue(state: RoutingState, error: errors.StreamInterrupted) -> str:
    """Return the text that the next attempt continues. Output that must fit a schema comes from one attempt."""
    if state.settings.on_partial != "continue" or state.request.output_schema is not None or error.partial is None:
        return ""
    return error.partial.text or ""


def _continuation(request: AgentRequest, kept: str) -> AgentRequest:
    return request.with_messages(Message.assistant(kept), Message.user(_CONTINUE))


def _restart_events(why: str, kept: str) -> list[StreamEvent]:
    """Announce that the events so far are void, and repeat the text that is continued."""
    restart = StreamEvent.restart_event(why)
    return [restart, StreamEvent.text_delta(kept)] if kept else [restart]


def _join_text(kept: str, response: AgentResponse) -> AgentResponse:
    if not kept:
        return response
    warning = f"the first {len(kept)} characters come from an attempt that broke off"
    return response.model_copy(
        update={
            "content": (TextContent(text=kept), *response.content),
            "warnings": (*response.warnings, warning),
        }
    )


def _send_to_shadow(shadow: Shadow, request: AgentRequest) -> Flow[None]:
    """Send a request for comparison, and pass on its outcome."""
    outcome: AgentResponse | errors.AgentError
    try:
        outcome = yield from send_to(shadow.target, request, Context(), streaming=False)
    except errors.AgentError as error:
        outcome = error
    if shadow.on_result is not None:
        shadow.on_result(outcome)


class Explanation(Value, frozen=True):
    """Targets of a router, ranked or excluded for one request. Prints as a table."""

    candidates: tuple[Candidate, ...]
    """Targets in the order in which they would be asked, then the excluded ones."""
    needs: tuple[str, ...] = ()
    """Capabilities that the request requires."""

    @property
    def order(self) -> list[str]:
        """Names of the targets that would be asked, best first."""
        return [one.target for one in self.candidates if one.place is not None]

    @property
    def excluded(self) -> dict[str, str]:
        """Names of the excluded targets, with the reason."""
        return {one.target: one.reason or "" for one in self.candidates if one.place is None}

    @override
    def __str__(self) -> str:
        needs = f"needs: {', '.join(self.needs)}\n\n" if self.needs else ""
        return needs + candidates_table(self.candidates)


def explain_routing(settings: RouterSettings, request: AgentRequest, *, streaming: bool) -> Explanation:
    """Rank the targets for a request."""
    now = monotonic()
    profile = RequestProfile(request, streaming, now, NO_RANDOM)
    ranked, excluded = RoutingState(settings, request, Context(), profile).order(now)
    return Explanation(candidates=list_candidates(ranked, excluded, now), needs=tuple(sorted(profile.needs)))
