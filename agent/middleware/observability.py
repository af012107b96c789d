"""Observability of calls: `Logging` writes log lines, `Metrics` counts per target.

Logs contain no text of prompts or responses unless `prompts=True`. Metrics stay in the process; a callback can export
each call to a metrics library.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from ..engine.context import TurnRef, sum_attempts
from ..engine.flow import Flow, Now
from ..engine.locks import ForkSafe
from ..errors import AgentError
from ..types import AgentResponse, Usage
from .base import CallInfo, Middleware
from .patterns import find_keys

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+")
"""Characters that break lines, control terminals or change the direction of text."""
_MAX_TEXT = 500


class Logging(Middleware):
    """Logs one line per call or failure with the standard library's `logging`.

    Args:
        logger: A logger or its name.
        level: Log level of successful calls.
        error_level: Log level of failed calls.
        prompts: Whether to log the end of the request and the beginning of the response, without API keys.
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
        fields = self._common_fields(call, (yield from Now()))
        usage = response.usage
        if usage is not None:
            fields["tokens"] = f"{usage.prompt_tokens}+{usage.completion_tokens}"
        if response.cost_estimate is not None:
            fields["cost"] = f"${response.cost_estimate:.6f}"
        fields |= {"stop": response.stop_reason, "request_id": response.request_id}
        if self._prompts:
            fields |= {
                "prompt": repr(_truncate(_last_prompt(call), keep_end=True)),
                "answer": repr(_truncate(response.text or "")),
            }
        self._write(call, self._level, "answered", fields)

    @override
    def on_error(self, error: Exception, call: CallInfo) -> Flow[None]:
        if not self._logger.isEnabledFor(self._error_level):
            return
        fields = self._common_fields(call, (yield from Now()))
        fields["error"] = type(error).__name__
        if isinstance(error, AgentError):
            fields |= {"status": error.status_code, "code": error.code, "request_id": error.request_id}
            fields["message"] = repr(_truncate(error.message))  # messages of other errors may quote private data
        if self._prompts:
            fields["prompt"] = repr(_truncate(_last_prompt(call), keep_end=True))
        self._write(call, self._error_level, "failed", fields)

    def _common_fields(self, call: CallInfo, now: float) -> dict[str, Any]:
        fields: dict[str, Any] = {"seconds": f"{now - call.started:.3f}", "attempts": len(call.attempts)}
        if call.run is not None:
            fields["run"] = f"{call.run.id}/{call.run.turn}" if isinstance(call.run, TurnRef) else call.run
        return fields

    def _write(self, call: CallInfo, level: int, outcome: str, fields: dict[str, Any]) -> None:
        kind = "stream" if call.streaming else "call"
        text = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
        self._logger.log(level, "%s", _sanitize(f"{call.target} {kind} {outcome} {text}"))


def _last_prompt(call: CallInfo) -> str:
    request = call.request
    if request.input is not None:
        return request.input
    return request.messages[-1].text if request.messages else ""


def _truncate(text: str, *, keep_end: bool = False) -> str:
    masked = _mask_keys(text)
    if len(masked) <= _MAX_TEXT:
        return masked
    return f"…{masked[-_MAX_TEXT:]}" if keep_end else f"{masked[:_MAX_TEXT]}…"


def _mask_keys(text: str) -> str:
    for start, end in reversed(list(find_keys(text))):
        text = f"{text[:start]}***{text[end:]}"
    return text


def _sanitize(text: str) -> str:
    """Mask keys, and replace control characters and lone surrogates."""
    return _CONTROL.sub(" ", _mask_keys(text)).encode("utf-8", "replace").decode()


SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0)
TOKENS = (100.0, 250.0, 500.0, 1_000.0, 2_500.0, 5_000.0, 10_000.0, 25_000.0, 50_000.0, 100_000.0)
DOLLARS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class CallMetrics:
    """Metrics of one finished call."""

    target: str
    streaming: bool
    seconds: float
    """Duration of the call."""
    first_event: float | None = None
    """Seconds until the first event of a stream."""
    attempts: int = 0
    """Requests sent; 0 if a middleware answered the call."""
    usage: Usage | None = None
    """Usage of all attempts."""
    cost: float | None = None
    """US dollars; None if the price of an attempt is unknown."""
    stop_reason: str | None = None
    error: str | None = None
    """Class name of the error, if the call failed."""
    run: Any = None


@dataclass(slots=True)
class Histogram:
    """Counts of values in buckets: one per upper bound, and a last one for all larger values."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    count: int = 0
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, value: float | None) -> None:
        """Count a value; None is ignored."""
        if value is not None:
            self.counts[bisect_left(self.bounds, value)] += 1
            self.count += 1
            self.sum += value

    def quantile(self, part: float) -> float | None:
        """Upper bound of this part of the values; infinity above all bounds, None without values."""
        cumulative = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            cumulative += count
            if self.count and cumulative >= part * self.count:
                return bound
        return None


@dataclass(slots=True)
class TargetMetrics:
    """Metrics of one target."""

    calls: int = 0
    streams: int = 0
    """Number of calls that were streamed."""
    unsent: int = 0
    """Number of calls that sent nothing, because a middleware answered or refused them."""
    attempts: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    """Failed calls by class name of the error."""
    stop_reasons: dict[str, int] = field(default_factory=dict)
    seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    first_event: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    prompt_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    completion_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    cost: Histogram = field(default_factory=lambda: Histogram(DOLLARS))

    def add(self, metrics: CallMetrics) -> None:
        """Count a finished call."""
        self.calls += 1
        self.streams += metrics.streaming
        self.unsent += metrics.attempts == 0
        self.attempts += metrics.attempts
        for counts, name in ((self.failures, metrics.error), (self.stop_reasons, metrics.stop_reason)):
            if name is not None:
                counts[name] = counts.get(name, 0) + 1
        self.seconds.add(metrics.seconds)
        self.first_event.add(metrics.first_event)
        self.cost.add(metrics.cost)
        if metrics.usage is not None:
            self.prompt_tokens.add(metrics.usage.prompt_tokens)
            self.completion_tokens.add(metrics.usage.completion_tokens)


class Metrics(ForkSafe, Middleware):
    """Counts calls, failures, tokens, cost and durations per target.

    Args:
        on_call: Called in any thread after each call; must not block. Its exceptions are logged and ignored.
    """

    def __init__(self, on_call: Callable[[CallMetrics], object] | None = None) -> None:
        super().__init__()
        self._on_call = on_call
        self._targets: defaultdict[str, TargetMetrics] = defaultdict(TargetMetrics)

    @override
    def __reduce__(self) -> Any:
        return Metrics, (self._on_call,)

    def snapshot(self) -> dict[str, TargetMetrics]:
        """Return the metrics so far, by target."""
        with self._lock:
            return deepcopy(dict(self._targets))

    def reset(self) -> dict[str, TargetMetrics]:
        """Return the metrics so far, and start at zero again."""
        with self._lock:
            targets, self._targets = self._targets, defaultdict(TargetMetrics)
        return dict(targets)

    @override
    def on_event(self, event: Any, call: CallInfo) -> Flow[None] | None:  # Any: an event of a stream or a run
        return None if "first" in call.state else self._note_first_event(call)

    def _note_first_event(self, call: CallInfo) -> Flow[None]:
        call.state["first"] = yield from Now()

    @override
    def after(self, response: AgentResponse, call: CallInfo) -> Flow[None]:
        self._add(call, (yield from Now()), stop_reason=response.stop_reason)

    @override
    def on_error(self, error: Exception, call: CallInfo) -> Flow[None]:
        self._add(call, (yield from Now()), error=type(error).__name__)

    def _add(self, call: CallInfo, now: float, **outcome: Any) -> None:
        first = call.state.get("first")
        attempts = call.attempts
        usage, cost = sum_attempts(attempts)
        metrics = CallMetrics(
            target=call.target,
            streaming=call.streaming,
            seconds=now - call.started,
            first_event=None if first is None else first - call.started,
            attempts=len(attempts),
            usage=usage,
            cost=cost,
            run=call.run,
            **outcome,
        )
        with self._lock:
            self._targets[call.target].add(metrics)
        if self._on_call is not None:
            try:
                self._on_call(metrics)
            except Exception:
                logging.getLogger("agent").exception("on_call of Metrics failed")
