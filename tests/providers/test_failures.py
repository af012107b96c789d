"""What a vendor's failure means, from bodies and headers as vendors really send them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent import errors
from agent.providers.failures import read_complaint, reply_failure
from agent.providers.hints import MAX_HINT, duration, retry_after
from agent.wire import Reply


def failed(status: int, body: Any = None, headers: dict[str, str] | None = None) -> errors.AgentError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return reply_failure(Reply(status, headers or {}, data), provider="p", model="m", secrets=("sk-secret",))


def openai(message: str, code: str | None = None, kind: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        # Out of money, in many words. Waiting does not help.
        (429, openai("You exceeded your current quota, please check your plan", "insufficient_quota"), "Quota"),
        (429, openai("You exceeded your current quota, please check your plan"), "Quota"),
        (402, openai("Insufficient credits"), "Quota"),
        (402, b"", "Quota"),
        (400, openai("x", "billing_hard_limit_reached"), "Quota"),
        (429, openai("spend limit", kind="enforced_spend_limit_reached"), "Quota"),
        (403, openai("x", "insufficient_quota"), "Quota"),
        # Too fast. Waiting helps.
        (429, openai("Rate limit reached for gpt-4o on tokens per min (TPM)", "rate_limit_exceeded"), "RateLimit"),
        (
            429,
            openai("Request too large for gpt-4o: Limit 30000 TPM, Requested 40000", "rate_limit_exceeded"),
            "RateLimit",
        ),
        (429, b"", "RateLimit"),
        (429, openai("slow down", "slow_down"), "RateLimit"),
        # Too long.
        (
            400,
            openai("This model's maximum context length is 8192 tokens.", "context_length_exceeded"),
            "ContextLength",
        ),
        (400, openai("This model's maximum context length is 8192 tokens."), "ContextLength"),
        (400, openai("prompt is too long: 250000 tokens > 200000 maximum"), "ContextLength"),
        (400, openai("The input token count (1200000) exceeds the maximum number of tokens allowed"), "ContextLength"),
        (400, openai("input is too long for requested model"), "ContextLength"),
        (400, openai("the request exceeds the available context size. try increasing it"), "ContextLength"),
        (400, openai("input length and max_tokens exceed context limit: 1 + 2 > 3"), "ContextLength"),
        (413, b"", "ContextLength"),
        (413, {"error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}}, "ContextLength"),
        # Long, but not too long for the model.
        (400, openai("Invalid 'user': string too long. Expected a string with maximum length 64"), "BadRequest"),
        # Wrong.
        (400, openai("Unsupported parameter: 'stop'", "unsupported_parameter"), "BadRequest"),
        (422, {"detail": [{"loc": ["body", "messages"], "msg": "field required"}]}, "BadRequest"),
        (405, b"Method Not Allowed", "BadRequest"),
        # Not ours.
        (401, openai("Incorrect API key provided", "invalid_api_key"), "Authentication"),
        (403, openai("Country, region, or territory not supported"), "Authentication"),
        (401, {"detail": "Invalid API Key"}, "Authentication"),
        (404, openai("The model `x` does not exist", "model_not_found"), "ModelNotFound"),
        (400, openai("decommissioned", "model_decommissioned"), "ModelNotFound"),
        (410, b"", "ModelNotFound"),
        (400, openai("filtered", "content_filter"), "ContentFilter"),
        (400, openai("filtered", "content_policy_violation"), "ContentFilter"),
        # Theirs.
        (500, openai("The server had an error"), "Provider"),
        (502, b"<html><body>Bad Gateway</body></html>", "Provider"),
        (503, b"", "Overloaded"),
        (529, {"error": {"type": "overloaded_error", "message": "Overloaded"}}, "Overloaded"),
        (500, openai("Overloaded", "overloaded_error"), "Overloaded"),
        (520, b"", "Provider"),
        (408, b"", "Provider"),
        (409, b"", "Provider"),
    ],
)
def test_a_failure_is_what_its_body_says(status: int, body: Any, kind: str) -> None:
    error = failed(status, body)
    assert type(error).__name__ == f"{kind}{'ExceededError' if kind == 'Quota' else 'Error'}"
    helps = kind in ("RateLimit", "Overloaded", "Provider")
    assert error.retryable is helps
    assert error.status_code == status
    assert error.message


def test_the_vendor_may_overrule_the_table() -> None:
    assert failed(500, b"", {"x-should-retry": "false"}).retryable is False
    assert failed(400, b"", {"x-should-retry": "true"}).retryable is True


def test_a_redirect_is_refused_and_its_goal_not_even_mentioned() -> None:
    error = failed(307, b"", {"location": "https://evil.example/"})
    assert isinstance(error, errors.ProtocolError)
    assert not error.retryable
    assert "evil" not in str(error)


def test_a_page_of_html_is_summarised() -> None:
    error = failed(502, b"<html><head><title>502 Bad Gateway</title></head><body><h1>Bad Gateway</h1></body></html>")
    assert error.message == "502 Bad Gateway Bad Gateway"


def test_secrets_are_cut_out_of_what_is_kept() -> None:
    error = failed(401, openai("Incorrect API key provided: sk-secret."))
    assert error.message == "Incorrect API key provided: ***."
    assert error.body is not None
    assert "sk-secret" not in error.body


def test_no_more_than_two_kilobytes_are_kept() -> None:
    error = failed(500, openai("x" * 100_000))
    assert error.body is not None
    assert len(error.body) <= 2048


@pytest.mark.parametrize("body", [None, 3, "x", [], {}, {"ok": True}, [3]])
def test_what_is_no_complaint_is_not_read_as_one(body: Any) -> None:
    assert read_complaint(body) is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "300"}, 0.3),
        ({"retry-after-ms": "300", "retry-after": "9"}, 0.3),
        ({"retry-after-ms": "0", "retry-after": "1"}, 1.0),
        ({"retry-after": "1"}, 1.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:10 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 10.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:27:00 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"retry-after": "2026-10-21T07:28:05+00:00", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 5.0),
        ({"retry-after": "99999999999"}, MAX_HINT),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
        ({"x-ratelimit-reset-requests": "6m0s", "x-ratelimit-remaining-requests": "0"}, 360.0),
        ({"x-ratelimit-reset-tokens": "120ms", "x-ratelimit-remaining-tokens": "0"}, 0.12),
        ({"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "100"}, None),
        (
            {
                "anthropic-ratelimit-tokens-reset": "2026-10-21T07:28:30Z",
                "anthropic-ratelimit-tokens-remaining": "0",
                "date": "Wed, 21 Oct 2026 07:28:00 GMT",
            },
            30.0,
        ),
    ],
    ids=str,
)
def test_hints_in_headers_are_understood(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        ("Please try again in 20s.", 20.0),
        ("Please retry in 36.4s.", 36.4),
        ("Rate limited. Try again in 250ms", 0.25),
        ("try again in 2 minutes", 120.0),
        ("retry after 5 seconds", 5.0),
        ("try again in 300 milliseconds", 0.3),
        ("Please try again later", None),
        ("20s", None),
    ],
)
def test_hints_in_messages_are_understood(message: str, seconds: float | None) -> None:
    assert retry_after({}, None, message) == seconds


def test_a_detail_that_says_how_long_counts_before_the_message() -> None:
    body = {"error": {"details": [{"@type": "x"}, {"@type": "RetryInfo", "retryDelay": "36.43s"}]}}
    assert retry_after({}, body, "Please retry in 1s") == 36.43
    assert failed(429, {"error": {**body["error"], "message": "slow"}}).retry_after == 36.43


def test_an_empty_purse_has_no_waiting_time() -> None:
    assert failed(429, openai("x", "insufficient_quota"), {"retry-after": "3"}).retry_after is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("1h2m3s", 3723.0), ("1.5", 1.5), ("7ms", 0.007), ("x", None), ("", None), ("3s later", None)]
)
def test_durations_are_read(text: str, seconds: float | None) -> None:
    assert duration(text) == seconds
