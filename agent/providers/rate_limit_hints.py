"""Rate limit hints in headers and error bodies: retry-after delays and remaining limits.

Sources are tried in order of reliability: those about this request before those about a quota. Negative, infinite and
unreadable values are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

MAX_HINT = 24 * 3600.0
"""Upper bound of hints, in seconds."""

_DEFAULT_WINDOW = 60.0
"""Seconds until a limit resets if the vendor sends no reset."""
_NUMBER = r"(?a)\s*(?:\d{1,300}(?:\.\d*)?|\.\d+)\s*"
_UNIT = r"(?:milliseconds?|msecs?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)"
_DURATION = rf"(?:\d+(?:\.\d+)?\s?{_UNIT}\b[\s,]*(?:and )?|\d+(?:\.\d+)?{_UNIT})+"
_IN_MESSAGE = rf"(?i)\b(?:retry|retrying|try again|wait)\b[^.\d\n]{{0,40}}?({_DURATION})"
_IN_JSON_TEXT = r'\\?"retryDelay\\?"\s*:\s*\\?"(\d+(?:\.\d+)?s)'
"""Google's RetryInfo, quoted by a gateway."""
_PIECE = rf"(?i)(\d+(?:\.\d+)?)\s?({_UNIT})"
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_MIN_EPOCH = 1e9
"""Numbers above this are Unix times, in seconds or milliseconds; smaller ones are durations."""
_MIN_EPOCH_MILLISECONDS = 1e11


def retry_after(headers: Mapping[str, str], body: Any = None, message: str = "") -> float | None:
    """Return the seconds to wait before a retry, or None without a hint."""
    return next((min(hint, MAX_HINT) for hint in _hints(headers, body, message) if hint is not None), None)


class RemainingLimit:
    """Remaining quota of a rate limit; its reset time is computed on demand."""

    __slots__ = ("_headers", "_received", "_reset", "_until", "left")

    def __init__(self, left: float, received: float, headers: Mapping[str, str], reset: str) -> None:
        self.left: float = left
        self._received = received
        self._headers = headers
        self._reset = reset
        """Name of the reset header."""
        self._until: float | None = None

    @classmethod
    def until_time(cls, left: float, until: float) -> RemainingLimit:
        """Return a limit with a known reset time."""
        limit = cls(left, until, {}, "")
        limit._until = until
        return limit

    @property
    def until(self) -> float:
        if self._until is None:
            headers = self._headers
            self._until = self._received + (
                _seconds_until(headers.get(self._reset), headers.get("date")) or _DEFAULT_WINDOW
            )
        return self._until


RemainingLimits: TypeAlias = tuple[RemainingLimit | None, RemainingLimit | None]
"""Remaining requests and tokens; None where the vendor sends no limit."""


def make_limit_reader(names: Iterable[str]) -> Callable[[Mapping[str, str], float], RemainingLimits] | None:
    """Build a reader of remaining limits for these header names; None if they contain no limits.

    A vendor's responses share their header names, so the names are searched once. Of several limits of a kind, the
    lowest remaining one is used.
    """
    limits = [
        (name, name.replace("remaining", "reset"), "token" in name)
        for name in names
        if "ratelimit" in name and "remaining" in name
    ]

    def read(headers: Mapping[str, str], now: float) -> RemainingLimits:
        requests: RemainingLimit | None = None
        tokens: RemainingLimit | None = None
        for name, reset, of_tokens in limits:
            left = _number(headers[name])
            if left is None:
                continue
            if of_tokens:
                if tokens is None or left < tokens.left:
                    tokens = RemainingLimit(left, now, headers, reset)
            elif requests is None or left < requests.left:
                requests = RemainingLimit(left, now, headers, reset)
        return requests, tokens

    return read if limits else None


def _hints(headers: Mapping[str, str], body: Any, message: str) -> Iterator[float | None]:
    """Yield hints in order of reliability."""
    yield _milliseconds(headers.get("retry-after-ms"))
    yield _seconds_until(headers.get("retry-after"), headers.get("date"))
    error = _error_of(body)
    yield _google_retry_delay(error)
    yield _delay_in_message(message)
    yield _latest_reset(headers, headers.get("date"))
    yield _latest_reset(_upstream_headers(error), headers.get("date"))


def _number(text: str | None) -> float | None:
    if not text:
        return None
    plain = text.isascii() and text.isdigit() and len(text) < 20  # the fast path
    return float(text) if plain or re.fullmatch(_NUMBER, text) else None


def _milliseconds(text: str | None) -> float | None:
    value = _number(text)
    # Zero is a default next to a Retry-After in whole seconds.
    return value / 1000 if value else None


def _seconds_until(text: str | None, sent_at: str | None) -> float | None:
    """Seconds until the time in a header, which holds seconds, a duration, or a time."""
    if not text:
        return None
    value = duration(text)
    if value is None:
        when = _date(text)
    elif value < _MIN_EPOCH:
        return value
    else:
        when = _from_epoch(value)
    if when is None:
        return value
    now = _date(sent_at) or datetime.now(UTC)  # the server's clock, if it sends one
    seconds = (when - now).total_seconds()
    return seconds if seconds >= 0 else None


def _from_epoch(value: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(value / 1000 if value >= _MIN_EPOCH_MILLISECONDS else value, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _date(text: str | None) -> datetime | None:
    if not text:
        return None
    from email.utils import parsedate_to_datetime  # lazy: slow to import, and few vendors send dates

    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            when = parse(text)
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
        return when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return None


def _error_of(body: Any) -> Mapping[str, Any]:
    if isinstance(body, list) and body:
        body = body[0]  # Google's errors in streams without server-sent events
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}


def _google_retry_delay(error: Mapping[str, Any]) -> float | None:
    """Google's RetryInfo: {"error": {"details": [{"retryDelay": "36.4s"}]}}."""
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and isinstance(delay := detail.get("retryDelay"), str):
            return duration(delay)
    return None


def _delay_in_message(message: str) -> float | None:
    match = re.search(_IN_MESSAGE, message)
    if match is not None:
        return _sum_durations(match[1])
    quoted = re.search(_IN_JSON_TEXT, message)
    return None if quoted is None else duration(quoted[1])


def _latest_reset(headers: Mapping[str, str], sent_at: str | None) -> float | None:
    """The latest reset among exhausted limits."""
    waits: list[float] = []
    for name, value in headers.items():
        if not ("ratelimit" in name and "reset" in name):
            continue
        remaining = headers.get(name.replace("reset", "remaining"))
        if remaining is not None and _number(remaining) != 0:
            continue
        wait = _seconds_until(value, sent_at)
        if wait is not None:
            waits.append(wait)
    return max(waits, default=None)


def _upstream_headers(error: Mapping[str, Any]) -> Mapping[str, str]:
    """Headers of the vendor behind a gateway, which some gateways quote in the body."""
    metadata = error.get("metadata")
    headers = metadata.get("headers") if isinstance(metadata, dict) else None
    return {str(name).lower(): str(value) for name, value in headers.items()} if isinstance(headers, dict) else {}


def duration(text: str) -> float | None:
    """Parse a duration such as "6m0s", "120ms", "36.43s" or "1.5" as seconds."""
    plain = _number(text)
    if plain is not None:
        return plain
    if re.sub(_PIECE, "", text).strip():
        return None
    return _sum_durations(text)


def _sum_durations(text: str) -> float | None:
    pieces = [(float(number), unit.lower()) for number, unit in re.findall(_PIECE, text)]
    if not pieces:
        return None
    return sum(n * (0.001 if unit.startswith(("ms", "milli")) else _SECONDS[unit[0]]) for n, unit in pieces)
