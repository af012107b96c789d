"""How fast may be asked: requests and tokens in any minute, waited for in the flow and so in virtual time, too.

A place in the queue is a time at which to send. It is taken at once and slept towards, so that whoever came first goes
first, and those who wait do not all come back at the same moment.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from .. import errors
from ..flow import Flow, Now, Sleep
from ..locks import Locked
from ..tokens import estimate_prompt
from ..types import AgentRequest, AgentResponse
from .base import CallInfo, Middleware

WINDOW = 60.0


@dataclass(slots=True, eq=False)
class _Place:
    """When a request is sent, and with how many tokens it counts."""

    at: float
    tokens: int


class Throttle(Locked, Middleware):
    """Holds calls back so that in no 60 seconds there are more than allowed, whoever shares it.

    A wait that does not fit before the deadline, or is longer than `max_wait`, is not begun: `RateLimitError` says at
    once how long it would have been, and nothing is sent.

    Args:
        rpm: Requests in any 60 seconds.
        tpm: Tokens in any 60 seconds, prompts and answers. A prompt counts as estimated, and its answer as
            `max_tokens`, until the answer says what it was. A request that alone exceeds it waits until it is alone.
        max_wait: Seconds that a call may be held back.
    """

    def __init__(self, *, rpm: int | None = None, tpm: int | None = None, max_wait: float = math.inf) -> None:
        super().__init__()
        for name, limit in (("rpm", rpm), ("tpm", tpm)):
            if limit is not None and limit < 1:
                raise errors.ConfigurationError(
                    f"{name} is {limit}.", field=name, fix="Use 1 or more, or leave it out."
                )
        if rpm is None and tpm is None:
            raise errors.ConfigurationError("Nothing is limited.", field="rpm", fix="Pass rpm= or tpm=.")
        self._rpm, self._tpm, self._max_wait = rpm, tpm, max_wait
        self._places: deque[_Place] = deque()
        """Of the last minute and of those who wait, in order of time."""

    @override
    def __reduce__(self) -> Any:
        return _rebuild, (self._rpm, self._tpm, self._max_wait)

    @override
    def before(self, request: AgentRequest, call: CallInfo) -> Flow[None]:
        if call.counting:
            return
        tokens = 0 if self._tpm is None else estimate_prompt(request).tokens + (request.max_tokens or 0)
        now = yield from Now()
        latest = min(now + self._max_wait, call.deadline)
        place = self._take(tokens, now, latest)
        if place.at <= now:
            call.state["place"] = place
            return
        try:
            yield from Sleep(place.at - now)
        except BaseException:  # who leaves the queue leaves no gap; closing counts, too
            self._give_back(place)
            raise
        call.state["place"] = place

    @override
    def after(self, response: AgentResponse, call: CallInfo) -> None:
        self._settle(call)

    @override
    def on_error(self, error: Exception, call: CallInfo) -> None:
        self._settle(call)

    def _settle(self, call: CallInfo) -> None:
        """What the call came to: nothing if nothing was sent, and more than one request if it was repeated."""
        place: _Place = call.state["place"]
        attempts = call.attempts
        if not attempts:
            self._give_back(place)
            return
        used = [attempt.usage.total_tokens for attempt in attempts if attempt.usage is not None]
        with self._lock:
            if used:
                place.tokens = sum(used)
            if len(attempts) > 1 and place in self._places:
                again = [_Place(place.at, 0)] * (len(attempts) - 1)
                self._places = deque(sorted((*self._places, *again), key=lambda one: one.at))

    def _take(self, tokens: int, now: float, latest: float) -> _Place:
        with self._lock:
            while self._places and self._places[0].at <= now - WINDOW:
                self._places.popleft()
            at = self._earliest(tokens, now)
            if at > now and at >= latest:
                raise self._refusal(at - now)
            place = _Place(at, tokens)
            self._places.append(place)
            return place

    def _earliest(self, tokens: int, now: float) -> float:
        """When a request of so many tokens may be sent, after everybody who came before."""
        places = self._places
        at = max(now, places[-1].at) if places else now
        if self._rpm is not None and len(places) >= self._rpm:
            at = max(at, places[-self._rpm].at + WINDOW)
        if self._tpm is not None:
            over = tokens - self._tpm + sum(place.tokens for place in places)
            for place in places:  # a request that is too large by itself waits for all of them
                if over <= 0:
                    break
                over -= place.tokens
                at = max(at, place.at + WINDOW)
        return at

    def _give_back(self, place: _Place) -> None:
        with self._lock:
            if place in self._places:
                self._places.remove(place)

    def _refusal(self, seconds: float) -> errors.RateLimitError:
        limits = " and ".join(
            f"{limit} {what} a minute"
            for limit, what in ((self._rpm, "requests"), (self._tpm, "tokens"))
            if limit is not None
        )
        return errors.RateLimitError(
            f"Nothing was sent: with {limits}, the next request could be sent in {seconds:.1f} s.", retry_after=seconds
        )


def _rebuild(rpm: int | None, tpm: int | None, max_wait: float) -> Throttle:
    return Throttle(rpm=rpm, tpm=tpm, max_wait=max_wait)
