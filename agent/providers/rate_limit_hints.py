"""How long a vendor asks us to wait, in all the ways vendors say it.

The order is by trustworthiness: what is meant for this request before what describes a quota. Nothing negative,
infinite or unreadable is believed; the next way of saying it is looked at instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

MAX_HINT = 24 * 3600.0
"""A longer hint is treated as this; who waits decides how much of it to honour."""

_A_WINDOW = 60.0
"""Seconds that a limit lasts if the vendor does not say how long."""
_NUMBER = re.compile(r"\s*(?:\d{1,300}(?:\.\d*)?|\.\d+)\s*", re.A)
_UNIT = r"(?:milliseconds?|msecs?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)"
_DURATION = rf"(?:\d+(?:\.\d+)?\s?{_UNIT}\b[\s,]*(?:and )?|\d+(?:\.\d+)?{_UNIT})+"
_IN_MESSAGE = re.compile(rf"\b(?:retry|retrying|try again|wait)\b[^.\d\n]{{0,40}}?({_DURATION})", re.I)
_IN_JSON_TEXT = re.compile(r'\\?"retryDelay\\?"\s*:\s*\\?"(\d+(?:\.\d+)?s)')
"""Google's RetryInfo, as a gateway quotes it."""
_PIECE = re.compile(rf"(\d+(?:\.\d+)?)\s?({_UNIT})", re.I)
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_FIRST_EPOCH = 1e9
"""Numbers from here on are no durations but times: seconds since 1970, or milliseconds."""
_FIRST_EPOCH_IN_MILLISECONDS = 1e11


def retry_after(headers: Mapping[str, str], body: Any = None, message: str = "") -> float | None:
    """Seconds to wait, or None if the vendor did not say."""
    hint = next((hint for hint in _hints(headers, body, message) if hint is not None), None)
    return None if hint is None else min(hint, MAX_HINT)


class RemainingLimit:
    """What a vendor has said is left of a limit, and when: until when that holds is worked out when it matters."""

    __slots__ = ("_headers", "_reset", "_said", "_until", "left")

    def __init__(self, left: float, said: float, headers: Mapping[str, str], reset: str) -> None:
        self.left = left
        self._said = said
        self._headers = headers
        self._reset = reset
        """The name of the header that says how long."""
        self._until: float | None = None

    @property
    def until(self) -> float:
        if self._until is None:
            headers = self._headers
            self._until = self._said + (_wait(headers.get(self._reset), headers.get("date")) or _A_WINDOW)
        return self._until


RemainingLimits: TypeAlias = tuple[RemainingLimit | None, RemainingLimit | None]
"""What may still be asked, in requests and in tokens. None: the vendor did not say."""


def make_limit_reader(names: Iterable[str]) -> Callable[[Mapping[str, str], float], RemainingLimits] | None:
    """What reads what is left from headers of these names that came at a time; None if they say nothing about it.

    A vendor's answers all have the same headers, so they are looked through once. Where there are several limits of a
    kind, the one with the least left counts.
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
    """In order of trust; later ones are worked out only if they are needed."""
    yield _milliseconds(headers.get("retry-after-ms"))
    yield _wait(headers.get("retry-after"), headers.get("date"))
    error = _error_in(body)
    yield _retry_info(error)
    yield _in_message(message)
    yield _reset(headers, headers.get("date"))
    yield _reset(_quoted_headers(error), headers.get("date"))


def _number(text: str | None) -> float | None:
    if not text:
        return None
    plain = text.isascii() and text.isdigit() and len(text) < 20  # as most are
    return float(text) if plain or _NUMBER.fullmatch(text) else None


def _milliseconds(text: str | None) -> float | None:
    value = _number(text)
    # Zero beside a Retry-After of whole seconds is a default, not an invitation.
    return value / 1000 if value else None


def _wait(text: str | None, sent_at: str | None) -> float | None:
    """Seconds until what a header names: a number of seconds, a duration, or a time."""
    if not text:
        return None
    value = duration(text)
    if value is None:
        when = _date(text)
    elif value < _FIRST_EPOCH:
        return value
    else:
        when = _since_1970(value)
    if when is None:
        return value
    now = _date(sent_at) or datetime.now(UTC)  # the server's own clock, if it told us
    seconds = (when - now).total_seconds()
    return seconds if seconds >= 0 else None


def _since_1970(value: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(value / 1000 if value >= _FIRST_EPOCH_IN_MILLISECONDS else value, UTC)
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


def _error_in(body: Any) -> Mapping[str, Any]:
    if isinstance(body, list) and body:
        body = body[0]  # how Google fails a stream that was not asked for as events
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}


def _retry_info(error: Mapping[str, Any]) -> float | None:
    """Google's RetryInfo: {"error": {"details": [{"retryDelay": "36.4s"}]}}."""
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and isinstance(delay := detail.get("retryDelay"), str):
            return duration(delay)
    return None


def _in_message(message: str) -> float | None:
    found = _IN_MESSAGE.search(message)
    if found is not None:
        return _added_up(found[1])
    quoted = _IN_JSON_TEXT.search(message)
    return None if quoted is None else duration(quoted[1])


def _reset(headers: Mapping[str, str], sent_at: str | None) -> float | None:
    """The latest reset among the limits that are used up."""
    waits: list[float] = []
    for name, value in headers.items():
        if not ("ratelimit" in name and "reset" in name):
            continue
        remaining = headers.get(name.replace("reset", "remaining"))
        if remaining is not None and _number(remaining) != 0:
            continue
        wait = _wait(value, sent_at)
        if wait is not None:
            waits.append(wait)
    return max(waits, default=None)


def _quoted_headers(error: Mapping[str, Any]) -> Mapping[str, str]:
    """The headers of the vendor behind a gateway, which some quote in the body."""
    metadata = error.get("metadata")
    quoted = metadata.get("headers") if isinstance(metadata, dict) else None
    if not isinstance(quoted, dict):
        return {}
    return {str(name).lower(): str(value) for name, value in quoted.items()}


def duration(text: str) -> float | None:
    """Seconds in "6m0s", "120ms", "36.43s" or "1.5"."""
    plain = _number(text)
    if plain is not None:
        return plain
    if _PIECE.sub("", text).strip():
        return None
    return _added_up(text)


def _added_up(text: str) -> float | None:
    pieces = _PIECE.findall(text)
    if not pieces:
        return None
    return sum(float(number) * _seconds_in(unit.lower()) for number, unit in pieces)


def _seconds_in(unit: str) -> float:
    if unit.startswith(("ms", "milli")):
        return 0.001
    return _SECONDS[unit[0]]
