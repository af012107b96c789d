"""Error mapping: classes, messages and fields of errors from vendor replies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent import errors
from agent.engine.wire import Reply
from agent.providers.base import ApiAddress
from agent.providers.failures import error_from_reply, read_error_details
from agent.providers.openai_chat import OPENAI, ChatCodec
from agent.providers.rate_limit_hints import retry_after
from agent.types import AgentRequest


def map_error(status: int, body: Any = None, headers: dict[str, str] | None = None) -> errors.AgentError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return error_from_reply(Reply(status, headers or {}, data), provider="p", model="m", secrets=("sk-secret",))


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
    error = map_error(status, body)
    assert type(error).__name__ == f"{kind}{'ExceededError' if kind == 'Quota' else 'Error'}"
    helps = kind in ("RateLimit", "Overloaded", "Provider")
    assert error.retryable is helps
    assert error.status_code == status
    assert error.message


def test_the_vendor_may_overrule_the_table() -> None:
    assert map_error(500, b"", {"x-should-retry": "false"}).retryable is False
    assert map_error(400, b"", {"x-should-retry": "true"}).retryable is True


def test_a_redirect_is_refused_and_its_goal_not_even_mentioned() -> None:
    error = map_error(307, b"", {"location": "https://evil.example/"})
    assert isinstance(error, errors.ProtocolError)
    assert not error.retryable
    assert "evil" not in str(error)


def test_a_page_of_html_is_summarised() -> None:
    error = map_error(502, b"<html><head><title>502 Bad Gateway</title></head><body><h1>Bad Gateway</h1></body></html>")
    assert error.message == "502 Bad Gateway Bad Gateway"


def test_secrets_are_cut_out_of_what_is_kept() -> None:
    error = map_error(401, openai("Incorrect API key provided: sk-secret."))
    assert error.message == "Incorrect API key provided: ***."
    assert error.body is not None
    assert "sk-secret" not in error.body


def test_no_more_than_two_kilobytes_are_kept() -> None:
    error = map_error(500, openai("x" * 100_000))
    assert error.body is not None
    assert len(error.body) <= 2048


@pytest.mark.parametrize("body", [None, 3, "x", [], {}, {"ok": True}, [3]])
def test_what_is_no_complaint_is_not_read_as_one(body: Any) -> None:
    assert read_error_details(body) is None


def test_a_detail_that_says_how_long_counts_before_the_message() -> None:
    body = {"error": {"details": [{"@type": "x"}, {"@type": "RetryInfo", "retryDelay": "36.43s"}]}}
    assert retry_after({}, body, "Please retry in 1s") == 36.43
    assert map_error(429, {"error": {**body["error"], "message": "slow"}}).retry_after == 36.43


def test_an_empty_purse_has_no_waiting_time() -> None:
    assert map_error(429, openai("x", "insufficient_quota"), {"retry-after": "3"}).retry_after is None


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ({"error": {"error": {"message": "gone", "code": "model_not_found"}}}, "ModelNotFound", "gone"),
        ({"error": {"message": {"message": "gone", "code": "model_not_found"}}}, "ModelNotFound", "gone"),
        ({"error": [{"message": "gone", "code": "model_not_found"}]}, "ModelNotFound", "gone"),
        (
            {"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}},
            "QuotaExceeded",
            "insufficient balance",
        ),
        ({"Message": "no", "__type": "ThrottlingException"}, "RateLimit", "no"),
        ({"error": ["no"]}, "BadRequest", "no"),
        ({"error": {}}, "BadRequest", "the vendor reports an error"),
        ([], "BadRequest", "[]"),
        ("no", "BadRequest", '"no"'),
        (b"\xff\xfe", "BadRequest", "\ufffd\ufffd"),
        (
            b"<html><style>p {color: red}</style><script>var a = 1 < 2</script><p>Bad <b>luck</b></p></html>",
            "BadRequest",
            "Bad luck",
        ),
    ],
)
def test_a_failure_is_read_in_whatever_shape_it_comes(body: Any, kind: str, message: str) -> None:
    error = map_error(400, body)
    assert (type(error).__name__, error.message) == (f"{kind}Error", message)


def test_a_code_that_is_no_status_is_only_a_code() -> None:
    for code in ("²", "9" * 5000, "٤٠٠", 10**40, "4000", -1, True):
        error = map_error(200, {"error": {"message": "no", "code": code}})
        assert type(error) is errors.ProviderError
        assert error.code is not None
        assert len(error.code) <= 200
    assert isinstance(map_error(200, {"error": {"message": "no", "code": "503"}}), errors.OverloadedError)


def test_a_failure_of_megabytes_is_not_kept_whole() -> None:
    error = map_error(400, {"error": {"message": "word " * 1_000_000}})
    assert len(error.message) <= 4096
    assert len(error.body or "") <= 2048


def test_a_key_is_quoted_nowhere() -> None:
    error = map_error(401, {"error": {"message": "wrong: sk-secret", "code": "key sk-secret", "type": "sk-secret"}})
    assert "sk-secret" not in f"{error} {error!r} {vars(error)}"
    error = map_error(401, {"error": {"message": "wrong", "type": "sk-secret"}})
    assert "sk-secret" not in f"{error} {error!r} {vars(error)}"


def test_keys_that_callers_pass_as_headers_are_quoted_nowhere() -> None:
    headers = {"Helicone-Auth": "Bearer hc-secret-1", "X-Api-Key": "xk-secret-2", "x-team": "blue-team"}
    codec = ChatCodec(OPENAI, ApiAddress("https://example.com", None), headers)
    body = json.dumps({"error": {"message": "no: hc-secret-1 xk-secret-2 blue-team"}}).encode()
    error = codec.decode_error(Reply(400, {}, body), AgentRequest(input="hi", model="m"))
    assert error.message == "no: *** *** blue-team"
    assert "secret" not in str(vars(error))


@pytest.mark.parametrize(
    ("status", "told", "retryable"),
    [(400, "true", True), (400, "TRUE", True), (429, "false", False), (500, " False ", False), (500, "maybe", True)],
)
def test_the_vendors_word_on_retrying_counts_more_than_the_status(status: int, told: str, retryable: bool) -> None:
    assert map_error(status, {"error": {"message": "no"}}, {"x-should-retry": told}).retryable is retryable
