"""Numbers about calls: how many, how long, how large, how dear, and how they failed, for each target.

They stay in the process until somebody asks for a snapshot, or listens to each call. No metrics library is needed; a
callback of a few lines feeds any.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from ..engine.context import RunTurn
from ..engine.flow import Flow, Now
from ..engine.locks import ForkSafe
from ..errors import AgentError
from ..types import AgentResponse, Usage
from .base import CallInfo, Middleware
from .patterns import keys

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0)
TOKENS = (100.0, 250.0, 500.0, 1_000.0, 2_500.0, 5_000.0, 10_000.0, 25_000.0, 50_000.0, 100_000.0)
DOLLARS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class CallMetrics:
    """One call that is over."""

    target: str
    streaming: bool
    seconds: float
    """From its start to its end."""
    first_event: float | None = None
    """Seconds until a stream brought its first event."""
    attempts: int = 0
    """Requests that were sent; 0 if a middleware knew the answer."""
    usage: Usage | None = None
    """Of all attempts."""
    cost: float | None = None
    """US dollars, of the attempts whose price is known."""
    stop_reason: str | None = None
    error: str | None = None
    """The class of the error, if it failed."""
    run: Any = None


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many values were at most as large as each bound, and how many larger than all of them."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """One for each bound, and one for what is larger. Each value is counted once."""
    count: int = 0
    sum: float = 0.0

    def quantile(self, part: float) -> float | None:
        """The bound that this part of the values does not exceed; infinity if there is none, None without values."""
        seen = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            if self.count and seen >= part * self.count:
                return bound
        return None


@dataclass(frozen=True, slots=True)
class TargetMetrics:
    """What is known of one target."""

    calls: int
    streams: int
    """Of the calls."""
    unsent: int
    """Of the calls, those that were answered or refused without anything being sent."""
    attempts: int
    failures: Mapping[str, int]
    """By class of error."""
    stop_reasons: Mapping[str, int]
    seconds: Histogram
    first_event: Histogram
    prompt_tokens: Histogram
    completion_tokens: Histogram
    cost: Histogram


@dataclass(slots=True)
class _Counts:
    """A histogram while it grows."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    count: int = 0
    sum: float = 0.0

    def add(self, value: float | None) -> None:
        if value is None:
            return
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)
        self.counts[bisect_left(self.bounds, value)] += 1
        self.count += 1
        self.sum += value

    def frozen(self) -> Histogram:
        return Histogram(self.bounds, tuple(self.counts or [0] * (len(self.bounds) + 1)), self.count, self.sum)


class _Target:
    """Numbers of one target while they grow."""

    def __init__(self) -> None:
        self.calls = self.streams = self.unsent = self.attempts = 0
        self.failures: dict[str, int] = {}
        self.stop_reasons: dict[str, int] = {}
        self.seconds, self.first_event = _Counts(SECONDS), _Counts(SECONDS)
        self.prompt_tokens, self.completion_tokens = _Counts(TOKENS), _Counts(TOKENS)
        self.cost = _Counts(DOLLARS)

    def add(self, record: CallMetrics) -> None:
        self.calls += 1
        self.streams += record.streaming
        self.unsent += record.attempts == 0
        self.attempts += record.attempts
        for counts, name in ((self.failures, record.error), (self.stop_reasons, record.stop_reason)):
            if name is not None:
                counts[name] = counts.get(name, 0) + 1
        self.seconds.add(record.seconds)
        self.first_event.add(record.first_event)
        self.cost.add(record.cost)
        if record.usage is not None:
            self.prompt_tokens.add(record.usage.prompt_tokens)
            self.completion_tokens.add(record.usage.completion_tokens)

    def frozen(self) -> TargetMetrics:
        return TargetMetrics(
            self.calls,
            self.streams,
            self.unsent,
            self.attempts,
            dict(self.failures),
            dict(self.stop_reasons),
            self.seconds.frozen(),
            self.first_event.frozen(),
            self.prompt_tokens.frozen(),
            self.completion_tokens.frozen(),
            self.cost.frozen(),
        )


class Metrics(ForkSafe, Middleware):
    """Counts calls.

    Args:
        on_call: Told of each call when it is over; quick, and for any thread. What it raises is logged and goes no
            further.
    """

    def __init__(self, on_call: Callable[[CallMetrics], object] | None = None) -> None:
        super().__init__()
        self._on_call = on_call
        self._targets: dict[str, _Target] = {}

    @override
    def __reduce__(self) -> Any:
        return Metrics, (self._on_call,)

    def snapshot(self) -> dict[str, TargetMetrics]:
        """The numbers so far, by target."""
        with self._lock:
            return {name: target.frozen() for name, target in self._targets.items()}

    def reset(self) -> dict[str, TargetMetrics]:
        """The numbers so far; from now on they begin at zero."""
        with self._lock:
            found, self._targets = self._targets, {}
        return {name: target.frozen() for name, target in found.items()}

    @override
    def on_event(self, event: Any, call: CallInfo) -> Flow[None] | None:
        return None if "first" in call.state else self._first(call)

    def _first(self, call: CallInfo) -> Flow[None]:
        call.state["first"] = yield from Now()

    @override
    def after(self, response: AgentResponse, call: CallInfo) -> Flow[None]:
        self._add(self._record(call, (yield from Now()), stop_reason=response.stop_reason))

    @override
    def on_error(self, error: Exception, call: CallInfo) -> Flow[None]:
        self._add(self._record(call, (yield from Now()), error=type(error).__name__))

    def _record(self, call: CallInfo, now: float, **outcome: Any) -> CallMetrics:
        first = call.state.get("first")
        attempts = call.attempts
        used = [attempt.usage for attempt in attempts if attempt.usage is not None]
        costs = [attempt.cost for attempt in attempts if attempt.cost is not None]
        return CallMetrics(
            target=call.target,
            streaming=call.streaming,
            seconds=now - call.started,
            first_event=None if first is None else first - call.started,
            attempts=len(attempts),
            usage=_summed(used),
            cost=sum(costs) if costs else None,
            run=call.run,
            **outcome,
        )

    def _add(self, record: CallMetrics) -> None:
        with self._lock:
            target = self._targets.get(record.target)
            if target is None:
                target = self._targets[record.target] = _Target()
            target.add(record)
        if self._on_call is not None:
            try:
                self._on_call(record)
            except Exception:
                logging.getLogger("agent").exception("a listener of Metrics failed")


def _summed(used: Sequence[Usage]) -> Usage | None:
    total: Usage | None = None
    for usage in used:
        total = usage if total is None else total + usage
    return total


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+")
"""What could break a line, colour a terminal, or turn the direction of a text."""
_MOST = 500


class Logging(Middleware):
    """Logs calls.

    Args:
        logger: A logger, or the name of one.
        level: Of calls that were answered.
        error_level: Of those that failed.
        prompts: Whether the last words of the request and the first ones of the answer are logged, too.
    """

    def __init__(
        self,
        logger: logging.Logger | str = "agent",
        *,
        level: int = logging.INFO,
        error_level: int = logging.WARNING,
        prompts: bool = False,
    ) -> None:
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._level, self._error_level, self._prompts = level, error_level, prompts

    @override
    def after(self, response: AgentResponse, call: CallInfo) -> Flow[None]:
        if not self._logger.isEnabledFor(self._level):
            return
        facts = self._facts(call, (yield from Now()))
        usage = response.usage
        if usage is not None:
            facts["tokens"] = f"{usage.prompt_tokens}+{usage.completion_tokens}"
        if response.cost_estimate is not None:
            facts["cost"] = f"${response.cost_estimate:.6f}"
        facts |= {"stop": response.stop_reason, "request_id": response.request_id}
        if self._prompts:
            facts |= {
                "asked": repr(_shortened(_asked(call), last=True)),
                "answer": repr(_shortened(response.text or "")),
            }
        self._write(call, self._level, "answered", facts)

    @override
    def on_error(self, error: Exception, call: CallInfo) -> Flow[None]:
        if not self._logger.isEnabledFor(self._error_level):
            return
        facts = self._facts(call, (yield from Now()))
        facts["error"] = type(error).__name__
        if isinstance(error, AgentError):
            facts |= {"status": error.status_code, "code": error.code, "request_id": error.request_id}
            # Of other errors the words may be anybody's, and quote anything.
            facts["message"] = repr(_shortened(error.message))
        if self._prompts:
            facts["asked"] = repr(_shortened(_asked(call), last=True))
        self._write(call, self._error_level, "failed", facts)

    def _facts(self, call: CallInfo, now: float) -> dict[str, Any]:
        facts: dict[str, Any] = {"seconds": f"{now - call.started:.3f}", "attempts": len(call.attempts)}
        if call.run is not None:
            facts["run"] = f"{call.run.id}/{call.run.turn}" if isinstance(call.run, RunTurn) else call.run
        return facts

    def _write(self, call: CallInfo, level: int, outcome: str, facts: dict[str, Any]) -> None:
        kind = "stream" if call.streaming else "call"
        told = " ".join(f"{name}={value}" for name, value in facts.items() if value is not None)
        self._logger.log(level, "%s", _plain(f"{call.target} {kind} {outcome} {told}"))


def _asked(call: CallInfo) -> str:
    """The last words of the request, as the caller asked it."""
    request = call.request
    if request.input is not None:
        return request.input
    return request.messages[-1].text if request.messages else ""


def _shortened(text: str, *, last: bool = False) -> str:
    hidden = _without_keys(text)
    if len(hidden) <= _MOST:
        return hidden
    return f"…{hidden[-_MOST:]}" if last else f"{hidden[:_MOST]}…"


def _without_keys(text: str) -> str:
    for start, end in reversed(list(keys(text))):
        text = f"{text[:start]}***{text[end:]}"
    return text


def _plain(text: str) -> str:
    """The text on one line, in characters that every log can hold, and without keys."""
    return _CONTROL.sub(" ", _without_keys(text)).encode("utf-8", "replace").decode()
