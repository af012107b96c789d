"""Asking one target, or several at once: a race, or a hedge because the first is slow.

The first to answer wins. Losers are cancelled, awaited, and recorded in the route with their probable cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from .. import errors
from ..engine.context import Context, OpenAttempt, total
from ..engine.flow import Branch, Cancel, Emitted, Failed, Finished, Flow, Now, Paused, Spawn, Wait
from ..types import AgentRequest, AgentResponse, Attempt
from .failure_policy import NextStep
from .state import RoutingState
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
                    if leg.context.asking is not None:
                        leg.context.asking(leg.admission.target.agent)
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
    if context.asking is not None:
        context.asking(target.agent)
    asked = state.profile.asked(target) if request is state.request else target.callee.apply_defaults(request)
    return target.call(streaming=state.streaming)(asked, context)


def _start(state: RoutingState, request: AgentRequest, admission: Admission, legs: dict[Branch, _Leg]) -> Flow[None]:
    context = state.context.beside()
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
        usage, cost = total(log.finished)
        leg.admission.cancelled(now, usage, cost)
    legs.clear()


def _cancelled(ended: float, attempt: OpenAttempt) -> Attempt:
    usage, cost = attempt.estimate()
    elapsed = (ended - attempt.started) * 1000
    return attempt.closed("Cancelled", _FASTER, latency_ms=elapsed, usage=usage, cost=cost)


def _discarded(attempt: Attempt) -> Attempt:
    """Relabel an answer that came at the same moment as the winner's: it is paid for, and not used."""
    if attempt.error is not None:
        return attempt
    return attempt.changed(error="Cancelled", message=_FASTER)


def _record_timeout(state: RoutingState, legs: dict[Branch, _Leg], error: errors.TimeoutError, now: float) -> None:
    """Record that the deadline passed while all were in flight."""
    ended, name = now - state.context.started, type(error).__name__
    for leg in legs.values():
        state.record_failure(leg.admission, error, now, leg.context)
        leg.context.log.close(
            lambda attempt: attempt.closed(name, error.message, latency_ms=(ended - attempt.started) * 1000)
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
