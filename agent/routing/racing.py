"""Asking one target, or several at once: as a race, or because the first is slow. The first to say something wins.

Who loses is cancelled, awaited, and written into the route with what it has probably cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from .. import errors
from ..attempts import OpenAttempt, total
from ..context import Context
from ..flow import Branch, Cancel, Emitted, Failed, Finished, Flow, Now, Paused, Spawn, Wait
from ..types import AgentRequest, AgentResponse, Attempt
from .rules import Move
from .strategies import Ranked
from .targets import Admission, Target
from .trip import Trip

_FASTER = "another was faster"


@dataclass(slots=True)
class _Leg:
    """One target in a race."""

    admission: Admission
    context: Context


def asked_of(target: Target, request: AgentRequest, context: Context, *, streaming: bool) -> Flow[AgentResponse]:
    """One call of one target, with the request as it would ask it itself."""
    return (yield from target.call(streaming=streaming)(target.callee.as_asked(request), context))


def race(trip: Trip, request: AgentRequest, admission: Admission, spares: list[Ranked]) -> Flow[AgentResponse | None]:
    """Ask an admitted target, as `alone` does; beside it those that the router's settings say."""
    racers, delay = trip.routes.racers, _delay(trip, admission) if spares else None
    if racers == 1 and delay is None:
        return (yield from alone(trip, request, admission))
    legs: dict[Branch, _Leg] = {}
    response: AgentResponse
    try:
        yield from _start(trip, request, admission, legs)
        if racers > 1:
            yield from _join(trip, request, spares, legs, racers - 1)
        while True:
            try:
                news = yield from Wait(list(legs), delay)
            except errors.TimeoutError as late:
                _too_late(trip, legs, late, (yield from Now()))
                raise
            match news:
                case None:
                    delay = None
                    if trip.routes.hedges.withdraw((yield from Now())):
                        yield from _join(trip, request, spares, legs, 1)
                case Failed(branch, error):
                    leg = legs.pop(branch)
                    if not isinstance(error, errors.AgentError):
                        leg.admission.abandon()
                        raise error
                    move = trip.failed(leg.admission, error, (yield from Now()), leg.context)
                    if move is Move.STOP:
                        yield from _end(trip, legs)
                        raise error
                    if not legs:
                        return None
                case Finished(branch, value):
                    leg = legs.pop(branch)
                    trip.succeeded(leg.admission, value, (yield from Now()), leg.context)
                    yield from _end(trip, legs)
                    response = value
                    return response
                case Paused(branch, rest):
                    leg = legs.pop(branch)
                    if leg.context.asking is not None:
                        leg.context.asking(leg.admission.target.agent)
                    yield from _end(trip, legs)
                    legs[branch] = leg  # settled below, or given back at the end
                    try:
                        response = yield from rest
                    except errors.AgentError as broken:
                        if trip.failed(leg.admission, broken, (yield from Now()), leg.context) is Move.STOP:
                            raise
                        return None
                    trip.succeeded(leg.admission, response, leg.context.ended, leg.context)
                    return response
                case Emitted():
                    raise AssertionError("a whole answer has no events, and a stream pauses at its first")
    finally:
        for leg in legs.values():
            leg.admission.abandon()


def alone(trip: Trip, request: AgentRequest, admission: Admission) -> Flow[AgentResponse | None]:
    """Ask one target, and note what becomes of it. None if it failed and another may be asked."""
    context = trip.context
    context.reason = admission.why
    try:
        try:
            response = yield from _call(trip, request, admission.target, context)
        except errors.AgentError as error:
            if trip.failed(admission, error, (yield from Now()), context) is Move.STOP:
                raise
            return None
        trip.succeeded(admission, response, context.ended, context)
        return response
    finally:
        admission.abandon()


def _call(trip: Trip, request: AgentRequest, target: Target, context: Context) -> Flow[AgentResponse]:
    if context.asking is not None:
        context.asking(target.agent)
    asked = trip.question.asked(target) if request is trip.request else target.callee.as_asked(request)
    return target.call(streaming=trip.streaming)(asked, context)


def _start(trip: Trip, request: AgentRequest, admission: Admission, legs: dict[Branch, _Leg]) -> Flow[None]:
    context = trip.context.beside()
    context.reason = admission.why
    context.waited, trip.context.waited = trip.context.waited, None

    def leg() -> Flow[AgentResponse]:  # what is wrong with the request is found out in there, where others go on
        return (yield from _call(trip, request, admission.target, context))

    legs[(yield from Spawn(leg(), pause=trip.streaming))] = _Leg(admission, context)


def _join(trip: Trip, request: AgentRequest, spares: list[Ranked], legs: dict[Branch, _Leg], most: int) -> Flow[None]:
    """Ask others beside those that are being asked."""
    why = "in the race" if trip.routes.racers > 1 else "the first was slow"
    for one in spares:
        if most == 0 or trip.stopped() is not None:
            return
        admission = trip.admit(one.target, (yield from Now()), why=why)
        if admission is not None:
            most -= 1
            yield from _start(trip, request, admission, legs)


def _end(trip: Trip, legs: dict[Branch, _Leg]) -> Flow[None]:
    """Cancel the losers, wait until they are gone, and record what they have probably cost."""
    if not legs:
        return
    yield from Cancel(list(legs))
    now = yield from Now()
    for leg in legs.values():
        log = leg.context.log
        log.close(partial(_cancelled, now - trip.context.started))
        log.revise(_discarded)
        usage, cost = total(log.finished)
        leg.admission.cancelled(now, usage, cost)
    legs.clear()


def _cancelled(ended: float, attempt: OpenAttempt) -> Attempt:
    usage, cost = attempt.estimate()
    elapsed = (ended - attempt.started) * 1000
    return attempt.closed("Cancelled", _FASTER, latency_ms=elapsed, usage=usage, cost=cost)


def _discarded(attempt: Attempt) -> Attempt:
    """An answer that came at the same moment as the winner's: it is paid for, and not used."""
    if attempt.error is not None:
        return attempt
    return attempt.changed(error="Cancelled", message=_FASTER)


def _too_late(trip: Trip, legs: dict[Branch, _Leg], error: errors.TimeoutError, now: float) -> None:
    """The deadline has passed while all were still being waited for."""
    ended, name = now - trip.context.started, type(error).__name__
    for leg in legs.values():
        trip.failed(leg.admission, error, now, leg.context)
        leg.context.log.close(
            lambda attempt: attempt.closed(name, error.message, latency_ms=(ended - attempt.started) * 1000)
        )
    legs.clear()


def _delay(trip: Trip, admission: Admission) -> float | None:
    """How long the first may take before a second is asked; None if it is not."""
    hedge = trip.routes.hedge
    if hedge is None:
        return None
    if hedge.after is not None:
        return hedge.after
    learned = admission.target.timings.patience(admission.started, streaming=trip.streaming)
    return hedge.until_learned if learned is None else learned
