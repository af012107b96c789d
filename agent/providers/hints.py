"""How long a vendor asks us to wait, in all the ways vendors say it.

The order is by trustworthiness: what is meant for this request before what describes a quota. Nothing negative,
infinite or unreadable is believed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

MAX_HINT = 24 * 3600.0
"""A longer hint is treated as this; who waits decides how much of it to honour."""

_IN_MESSAGE = re.compile(
    r"(?:retry|try again) (?:in|after) (\d+(?:\.\d+)?) ?(ms|s|m|(?:millisecond|second|minute)s?)\b", re.I
)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "millisecond": 0.001, "second": 1.0, "minute": 60.0}


def retry_after(headers: Mapping[str, str], body: Any = None, message: str = "") -> float | None:
    """Seconds to wait, or None if the vendor did not say."""
    hints = (
        _milliseconds(headers.get("retry-after-ms")),
        _seconds_or_date(headers.get("retry-after"), headers.get("date")),
        _retry_info(body),
        _in_message(message),
        _reset(headers),
    )
    return next((min(hint, MAX_HINT) for hint in hints if hint is not None), None)


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _milliseconds(text: str | None) -> float | None:
    value = _number(text)
    # Zero beside a Retry-After of whole seconds is a default, not an invitation.
    return value / 1000 if value else None


def _seconds_or_date(text: str | None, sent_at: str | None) -> float | None:
    value = _number(text)
    if value is not None or not text:
        return value
    when = _date(text)
    if when is None:
        return None
    now = _date(sent_at) or datetime.now(UTC)  # the server's own clock, if it told us
    seconds = (when - now).total_seconds()
    return seconds if seconds >= 0 else None


def _date(text: str | None) -> datetime | None:
    if not text:
        return None
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            when = parse(text)
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
        return when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return None


def _retry_info(body: Any) -> float | None:
    """Google's RetryInfo: {"error": {"details": [{"retryDelay": "36.4s"}]}}."""
    error = body.get("error") if isinstance(body, dict) else None
    details = error.get("details") if isinstance(error, dict) else None
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and isinstance(delay := detail.get("retryDelay"), str):
            return duration(delay)
    return None


def _in_message(message: str) -> float | None:
    found = _IN_MESSAGE.search(message)
    if found is None:
        return None
    unit = found[2].lower()
    return float(found[1]) * _UNITS[unit if unit in _UNITS else unit.removesuffix("s")]


def _reset(headers: Mapping[str, str]) -> float | None:
    """The latest reset among the limits that are used up."""
    waits: list[float] = []
    for name, value in headers.items():
        if name.startswith("x-ratelimit-reset"):
            remaining = headers.get(name.replace("reset", "remaining"))
            wait = duration(value)
        elif name.startswith("anthropic-ratelimit-") and name.endswith("-reset"):
            remaining = headers.get(name.replace("-reset", "-remaining"))
            wait = _seconds_or_date(value, headers.get("date"))
        else:
            continue
        if wait is not None and remaining is not None and _number(remaining) == 0:
            waits.append(wait)
    return max(waits, default=None)


def duration(text: str) -> float | None:
    """Seconds in "6m0s", "120ms", "36.43s" or "1.5"."""
    plain = _number(text)
    if plain is not None:
        return plain
    pieces = _DURATION.findall(text)
    if not pieces or "".join(number + unit for number, unit in pieces) != text.strip():
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in pieces)
