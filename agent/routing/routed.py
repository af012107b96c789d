"""The flow of a routed call: ask, and on failure ask on, until somebody answers or nothing more may be tried.

It has the form of every other flow, from a request to a response, so whatever wraps the call of an agent wraps this.
"""

from __future__ import annotations

import math

from .. import errors
from ..context import Call, Context
from ..flow import Detach, Emit, Flow, Now, Random, Sleep
from ..types import AgentRequest, AgentResponse, Message, StreamEvent, TextContent
from .questions import NO_CHANCE, Question
from .racing import alone, asked_of, race
from .strategies import Ranked
from .targets import Admission, Target
from .trip import Routes, Shadow, Trip

_GO_ON = (
    "Your answer was cut off in transmission. Continue it from exactly where it stopped: repeat nothing, and do not "
    "mention the interruption."
)
_FILTERED = frozenset(("content_filter", "refusal"))
_POLL = 0.05
"""Seconds after which to look again whether a target is free, if nobody can say when it will be."""


def routed(routes: Routes, *, streaming: bool) -> Call:
    """Ask the targets of a router, as its settings say.

    At most `retry.max_retries` attempts follow the first, wherever they go, and together with all other requests of the
    router they keep to its budget. What has been emitted is never silently followed by another model's words: a broken
    stream is an error, or begins again after an event that says so.
    """

    def call(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        first = context.tries.made == 0
        now = context.started if first and not context.attempts else (yield from Now())
        chance = (yield from Random()) if routes.leaves_to_chance else NO_CHANCE
        trip = Trip(routes, request, context, Question(request, streaming, now, chance))
        if first:
            routes.retries.deposit()
            if routes.hedge is not None:
                routes.hedges.deposit()
        for shadow in routes.shadows:
            if shadow.share >= 1 or (yield from Random()) < shadow.share:
                yield from Detach(_shadowed(shadow, request), shadow.seconds)
        kept = ""  # what broken attempts had said, for one that goes on from there
        void: str | None = None  # why what has been emitted does not count
        filtered: AgentResponse | None = None
        while True:
            try:
                admission, spares = trip.ready(now) or (yield from _next(trip, now))
            except errors.AgentError as error:
                if filtered is not None:
                    return filtered
                error.committed = error.committed or void is not None
                raise
            asked = request
            if void is not None:
                yield Emit(_announced(void, kept))
                asked = _going_on(request, kept) if kept else request
            ask = race(trip, asked, admission, spares) if routes.at_once else alone(trip, asked, admission)
            response = yield from ask
            if response is None:
                now, failure = trip.failed_at, trip.errors[-1]
                if isinstance(failure, errors.StreamInterrupted):
                    void = failure.message
                    kept += _kept(trip, failure)
                continue
            if response.stop_reason in _FILTERED and trip.may_leave(response):
                filtered = _joined(kept, response)
                kept, void = "", "the answer was filtered" if streaming else None
                now = yield from Now()
                continue
            return _joined(kept, response) if kept else response

    return call


def _next(trip: Trip, now: float) -> Flow[tuple[Admission, list[Ranked]]]:
    """Choose and admit the next target, and return the other candidates. Waits if need be; raises if there is none."""
    since, paid, patient = now, False, True
    context = trip.context

    def may_ask(target: Target) -> bool:
        nonlocal paid
        if not trip.is_charged(target):
            return True
        if patient and trip.is_last:
            return False  # a healthy target may be back in a moment
        paid = paid or trip.afford(now)
        return paid

    def fits(seconds: float) -> bool:
        return now + seconds - since <= trip.routes.max_wait and now + seconds < context.deadline

    while True:
        stopped = trip.stopped()
        if stopped is not None:
            raise trip.exhausted(stopped, ())
        ranked, others = trip.order(now)
        for place, one in enumerate(ranked):
            if not may_ask(one.target):
                break  # healthy targets come first
            admission = trip.admit(one.target, now, why=one.reason)
            if admission is not None:
                return admission, ranked[place + 1 :]
        for target in trip.unhealthy_fallbacks(others):
            if not may_ask(target):
                break
            admission = trip.admit(target, now, why="no target is healthy", panic=True)
            if admission is not None:
                return admission, []
        chance = yield from Random()
        if patient:
            patient = False
            wait = trip.recovery_wait(now, chance)
            if wait is not None and fits(wait):
                yield from Sleep(wait)
                now = yield from Now()
                context.waited = now - since
            continue
        waits = trip.waits(others, now, chance)
        if not waits:
            raise trip.exhausted("nobody is left to ask", others)
        seconds, target = waits[0]
        if seconds == math.inf:
            seconds = _POLL
        if not fits(seconds):
            raise trip.exhausted(f"the next could be asked in {seconds:.1f} s", others)
        if not may_ask(target):
            raise trip.exhausted("the retry budget is used up", others)
        yield from Sleep(seconds)
        now = yield from Now()
        context.waited = now - since
        if trip.was_asked(target) and (admission := trip.admit(target, now, why="again")) is not None:
            return admission, []


def _kept(trip: Trip, error: errors.StreamInterrupted) -> str:
    """The words to go on from. A value that must fit a schema has to come from one attempt."""
    if trip.routes.on_partial != "continue" or trip.request.output_schema is not None or error.partial is None:
        return ""
    return error.partial.text or ""


def _going_on(request: AgentRequest, kept: str) -> AgentRequest:
    return request.with_messages(Message.assistant(kept), Message.user(_GO_ON))


def _announced(why: str, kept: str) -> list[StreamEvent]:
    """What was emitted is void; of it, the words that are gone on from are said again."""
    restart = StreamEvent.restart_event(why)
    return [restart, StreamEvent.text_delta(kept)] if kept else [restart]


def _joined(kept: str, response: AgentResponse) -> AgentResponse:
    if not kept:
        return response
    warning = f"the first {len(kept)} characters come from an attempt that broke off"
    return response.model_copy(
        update={
            "content": (TextContent(text=kept), *response.content),
            "warnings": (*response.warnings, warning),
        }
    )


def _shadowed(shadow: Shadow, request: AgentRequest) -> Flow[None]:
    """Ask for comparison. Whatever comes of it is told to whoever listens, and to nobody else."""
    outcome: AgentResponse | errors.AgentError
    try:
        outcome = yield from asked_of(shadow.target, request, Context(), streaming=False)
    except errors.AgentError as error:
        outcome = error
    if shadow.heard is not None:
        shadow.heard(outcome)
