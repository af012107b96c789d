"""How long to wait: every way in which vendors say it, and what none of them may mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.providers.rate_limit_hints import MAX_HINT, duration, retry_after

DATE = "Wed, 21 Oct 2026 07:28:00 GMT"
EPOCH = 1792567680
"""The same time."""


def limit(kind: str, reset: str, remaining: str = "0") -> dict[str, str]:
    return {f"x-ratelimit-reset{kind}": reset, f"x-ratelimit-remaining{kind}": remaining, "date": DATE}


def anthropic(kind: str, reset: str, remaining: str = "0") -> dict[str, str]:
    return {
        f"anthropic-ratelimit-{kind}-reset": reset,
        f"anthropic-ratelimit-{kind}-remaining": remaining,
        "date": DATE,
    }


HEADERS: list[tuple[dict[str, str], float | None]] = [
    # Milliseconds come first.
    ({"retry-after-ms": "300"}, 0.3),
    ({"retry-after-ms": "1500.5"}, 1.5005),
    ({"retry-after-ms": "300", "retry-after": "9"}, 0.3),
    ({"retry-after-ms": "0", "retry-after": "1"}, 1.0),
    ({"retry-after-ms": "soon", "retry-after": "2"}, 2.0),
    ({"retry-after-ms": "-5", "retry-after": "2"}, 2.0),
    ({"retry-after-ms": "nan", "retry-after": "2"}, 2.0),
    ({"retry-after-ms": "inf"}, None),
    ({"retry-after-ms": "99999999999999"}, MAX_HINT),
    # Seconds.
    ({"retry-after": "1"}, 1.0),
    ({"retry-after": " 7 "}, 7.0),
    ({"retry-after": "1.5"}, 1.5),
    ({"retry-after": ".5"}, 0.5),
    ({"retry-after": "0"}, 0.0),
    ({"retry-after": "86400"}, 86400.0),
    ({"retry-after": "86401"}, MAX_HINT),
    ({"retry-after": "99999999999"}, MAX_HINT),
    ({"retry-after": "9" * 400}, None),
    ({"retry-after": "30s"}, 30.0),
    ({"retry-after": "1m30s"}, 90.0),
    ({"retry-after": "-5"}, None),
    ({"retry-after": "nan"}, None),
    ({"retry-after": "NaN"}, None),
    ({"retry-after": "inf"}, None),
    ({"retry-after": "-inf"}, None),
    ({"retry-after": "1e3"}, None),
    ({"retry-after": "1_000"}, None),
    ({"retry-after": "0x10"}, None),
    ({"retry-after": "soon"}, None),
    ({"retry-after": ""}, None),
    ({"retry-after": "30, 60"}, None),
    ({}, None),
    # A time, by the server's own clock.
    ({"retry-after": "Wed, 21 Oct 2026 07:28:10 GMT", "date": DATE}, 10.0),
    ({"retry-after": "Wed, 21 Oct 2026 09:28:10 +0200", "date": DATE}, 10.0),
    ({"retry-after": "Wednesday, 21-Oct-26 07:28:10 GMT", "date": DATE}, 10.0),
    ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT", "date": DATE}, 0.0),
    ({"retry-after": "Wed, 21 Oct 2026 07:27:00 GMT", "date": DATE}, None),
    ({"retry-after": "2026-10-21T07:28:05+00:00", "date": DATE}, 5.0),
    ({"retry-after": "2026-10-21T07:28:05Z", "date": DATE}, 5.0),
    ({"retry-after": "2026-10-21T07:28:05", "date": DATE}, 5.0),
    ({"retry-after": str(EPOCH + 30), "date": DATE}, 30.0),
    ({"retry-after": str(EPOCH * 1000 + 2500), "date": DATE}, 2.5),
    ({"retry-after": str(EPOCH - 30), "date": DATE}, None),
    ({"retry-after": "Thu, 99 Foo 2026", "date": DATE}, None),
    ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT", "date": DATE}, MAX_HINT),
    ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT", "date": "rubbish"}, MAX_HINT),
    # When limits are renewed; only those that are used up count, and of these the latest.
    (limit("-requests", "6m0s"), 360.0),
    (limit("-requests", "1s"), 1.0),
    (limit("-requests", "2m59.56s"), 179.56),
    (limit("-tokens", "120ms"), 0.12),
    (limit("-tokens", "1h2m3s"), 3723.0),
    (limit("-tokens", "7.66s"), 7.66),
    (limit("-tokens", "6m0s", "100"), None),
    (limit("-tokens", "0s", "149999990"), None),
    (limit("-tokens-minute", "41.38"), 41.38),
    (limit("-requests-day", "33011.382867"), 33011.382867),
    (limit("", "12"), 12.0),
    (limit("", str(EPOCH + 45)), 45.0),
    (limit("", str(EPOCH * 1000 + 45_000)), 45.0),
    (limit("", "2026-10-21T07:28:30Z"), 30.0),
    (limit("", "2d"), MAX_HINT),
    (limit("", "never"), None),
    (limit("", "-3"), None),
    ({"x-ratelimit-reset": "9"}, 9.0),
    ({"ratelimit-reset": "30", "ratelimit-remaining": "0"}, 30.0),
    ({"ratelimit-reset": "30", "ratelimit-remaining": "1"}, None),
    ({**limit("-tokens", "5s"), **limit("-requests", "9s")}, 9.0),
    ({**limit("-tokens", "5s"), **limit("-requests", "9s", "1")}, 5.0),
    (anthropic("tokens", "2026-10-21T07:28:30Z"), 30.0),
    (anthropic("requests", "2026-10-21T07:28:01+00:00"), 1.0),
    (anthropic("input-tokens", "2026-10-21T07:29:00Z"), 60.0),
    (anthropic("output-tokens", "2026-10-21T07:28:30Z", "100"), None),
    (anthropic("tokens", "2026-10-21T07:27:30Z"), None),
    ({**anthropic("tokens", "2026-10-21T07:28:30Z"), "retry-after": "13"}, 13.0),
    ({**limit("-tokens", "5s"), "retry-after-ms": "700"}, 0.7),
]

MESSAGES: list[tuple[str, float | None]] = [
    ("Please try again in 20s.", 20.0),
    ("Please try again in 20ms.", 0.02),
    ("Please try again in 6m0s.", 360.0),
    ("Please try again in 7m12.5s. Visit https://example.com", 432.5),
    ("Please try again in 1h2m3s.", 3723.0),
    ("Please retry in 36.4s.", 36.4),
    ("Please retry in 48.939935699s.", 48.939935699),
    ("Rate limited. Try again in 250ms", 0.25),
    ("try again in 2 minutes", 120.0),
    ("try again in 1 minute", 60.0),
    ("try again in 1 minute and 30 seconds", 90.0),
    ("try again in 1 hour, 5 minutes", 3900.0),
    ("try again in about 3 hours", 10800.0),
    ("retry after 5 seconds", 5.0),
    ("Please retry after 56 seconds.", 56.0),
    ("Retry your request after 60 seconds", 60.0),
    ("please try again after 1 seconds", 1.0),
    ("Please wait 35872 seconds before retrying.", 35872.0),
    ("Please wait for 10 sec", 10.0),
    ("try again in 300 milliseconds", 0.3),
    ("try again in 5 min", 300.0),
    ("Try again in 3 days", MAX_HINT),
    ('{"error": {"details": [{"retryDelay": "36s"}]}}', 36.0),
    ('{\\"retryDelay\\": \\"12.5s\\"}', 12.5),
    ("Please try again later", None),
    ("Please retry shortly, or add your own key", None),
    ("retry 3 times", None),
    ("20s", None),
    ("Try again later. It took 20s", None),
    ("Limit 30000, Requested 40000", None),
    ("", None),
]


def google(delay: Any) -> dict[str, Any]:
    return {"error": {"details": [{"@type": "x"}, 3, {"@type": "RetryInfo", "retryDelay": delay}]}}


BODIES: list[tuple[Any, float | None]] = [
    (google("36s"), 36.0),
    (google("36.43s"), 36.43),
    (google("0.5s"), 0.5),
    (google("0s"), 0.0),
    (google("100000s"), MAX_HINT),
    (google("soon"), None),
    (google("-3s"), None),
    (google(36), None),
    (google(None), None),
    ([google("36s")], 36.0),
    ({"error": {"details": "36s"}}, None),
    ({"error": "36s"}, None),
    ({"error": {"metadata": {"headers": {"X-RateLimit-Reset": str(EPOCH * 1000 + 9000)}}}}, 9.0),
    ({"error": {"metadata": {"headers": {"X-RateLimit-Reset": "5", "X-RateLimit-Remaining": "1"}}}}, None),
    ({"error": {"metadata": {"headers": "none"}}}, None),
    ([], None),
    (None, None),
    (3, None),
]


@pytest.mark.parametrize(("headers", "seconds"), HEADERS, ids=str)
def test_hints_in_headers_are_understood(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(("message", "seconds"), MESSAGES)
def test_hints_in_messages_are_understood(message: str, seconds: float | None) -> None:
    assert retry_after({}, None, message) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(("body", "seconds"), BODIES, ids=str)
def test_hints_in_bodies_are_understood(body: Any, seconds: float | None) -> None:
    assert retry_after({"date": DATE}, body) == seconds


def test_what_is_meant_for_this_request_counts_before_what_describes_a_limit() -> None:
    headers = {"retry-after-ms": "1000", "retry-after": "2", **limit("-tokens", "5s")}
    body, message = google("3s"), "Please retry in 4s"
    assert retry_after(headers, body, message) == 1.0
    del headers["retry-after-ms"]
    assert retry_after(headers, body, message) == 2.0
    del headers["retry-after"]
    assert retry_after(headers, body, message) == 3.0
    assert retry_after(headers, None, message) == 4.0
    assert retry_after(headers, None, "") == 5.0
    assert retry_after({}, None, "") is None


@given(text=st.text(max_size=40) | st.floats().map(str) | st.integers().map(str))
def test_whatever_a_header_says_is_a_time_to_wait_or_nothing(text: str) -> None:
    for headers in ({"retry-after": text}, {"retry-after-ms": text}, limit("", text), anthropic("tokens", text)):
        seconds = retry_after(headers, None, f"try again in {text}s")
        assert seconds is None or 0 <= seconds <= MAX_HINT


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1h2m3s", 3723.0), ("1.5", 1.5), ("7ms", 0.007), ("x", None), ("", None), ("3s later", None), ("5 s", 5.0)],
)
def test_durations_are_read(text: str, seconds: float | None) -> None:
    assert duration(text) == (None if seconds is None else pytest.approx(seconds))


def test_there_are_enough_of_them() -> None:
    assert len(HEADERS) + len(MESSAGES) + len(BODIES) >= 120
