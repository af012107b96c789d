"""Classification of vendors' 429 replies and similar errors: rate limit or quota."""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

import pytest

from agent import errors
from agent.engine.wire import Reply
from agent.providers.failures import error_from_reply

Kind = Literal["quota", "rate", "overloaded"]
KINDS: dict[Kind, type[errors.AgentError]] = {
    "quota": errors.QuotaExceededError,
    "rate": errors.RateLimitError,
    "overloaded": errors.OverloadedError,
}


class Case(NamedTuple):
    vendor: str
    kind: Kind
    status: int
    body: Any
    headers: dict[str, str] = {}
    wait: float | None = None

    @property
    def name(self) -> str:
        return f"{self.vendor}-{self.status}-{self.kind}"


def openai(message: str, code: Any = None, kind: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def anthropic(kind: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message, **more}, "request_id": "req_1"}


def google(message: str, quota: str | None = None, delay: str | None = None) -> dict[str, Any]:
    details: list[dict[str, Any]] = [{"@type": "type.googleapis.com/google.rpc.Help", "links": []}]
    if quota is not None:
        violation = {"quotaMetric": "generativelanguage.googleapis.com/x", "quotaId": quota, "quotaValue": "50"}
        details.append({"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]})
    if delay is not None:
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay})
    return {"error": {"code": 429, "message": message, "status": "RESOURCE_EXHAUSTED", "details": details}}


def openrouter(code: int, message: str, **metadata: Any) -> dict[str, Any]:
    return {"error": {"message": message, "code": code, "metadata": metadata}, "user_id": "user_1"}


PLAN = "You exceeded your current quota, please check your plan and billing details."
GOOGLE_PLAN = (
    f"{PLAN} For more information on this error, head to: https://ai.google.dev/gemini-api/docs/rate-limits.\n"
    "* Quota exceeded for metric: generativelanguage.googleapis.com/generate_content_free_tier_requests, limit: "
)

CASES = [
    Case("openai", "quota", 429, openai(PLAN, "insufficient_quota", "insufficient_quota")),
    Case("openai", "quota", 429, openai(PLAN)),
    Case("openai", "quota", 400, openai("Billing hard limit has been reached", "billing_hard_limit_reached")),
    Case("openai", "quota", 429, openai("Your account is not active.", "billing_not_active", "billing_not_active")),
    Case("openai", "quota", 403, openai("Your project has reached its spending limit for this month.")),
    Case(
        "openai",
        "rate",
        429,
        openai(
            "Rate limit reached for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Used 29000, "
            "Requested 2000. Please try again in 6m0s. Visit https://platform.openai.com/account/rate-limits.",
            "rate_limit_exceeded",
            "tokens",
        ),
        wait=360.0,
    ),
    Case(
        "openai",
        "rate",
        429,
        openai(
            "Rate limit reached for gpt-3.5-turbo on requests per min (RPM): Limit 3. Please try again in 20s. "
            "You can add a payment method at https://platform.openai.com/account/billing.",
            "rate_limit_exceeded",
            "requests",
        ),
        wait=20.0,
    ),
    Case(
        "openai",
        "rate",
        429,
        openai(
            "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40000. The input or output "
            "tokens must be reduced in order to run successfully.",
            "rate_limit_exceeded",
            "tokens",
        ),
    ),
    Case("openai", "rate", 429, openai("Rate limit reached on requests per day (RPD)", "rate_limit_exceeded")),
    Case("openai", "rate", 429, openai("Slow down: your traffic rose too quickly.", "slow_down", "requests")),
    Case("openai", "rate", 503, openai("Slow Down", "slow_down")),
    Case("openai", "overloaded", 503, openai("That model is currently overloaded", kind="server_error")),
    Case("openai", "overloaded", 429, openai("The engine is currently overloaded.", "engine_overloaded")),
    Case("anthropic", "rate", 429, anthropic("rate_limit_error", "Number of request tokens has exceeded your limit")),
    Case(
        "anthropic",
        "rate",
        429,
        anthropic("rate_limit_error", "This request would exceed your organization's rate limit of 40,000 tokens"),
        {"retry-after": "13"},
        13.0,
    ),
    Case(
        "anthropic", "rate", 429, anthropic("rate_limit_error", "Slow", details={"error_code": "ramp_limit_exceeded"})
    ),
    Case(
        "anthropic",
        "quota",
        400,
        anthropic(
            "invalid_request_error",
            "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade.",
        ),
    ),
    Case(
        "anthropic",
        "quota",
        400,
        anthropic(
            "invalid_request_error",
            "You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC.",
        ),
    ),
    Case(
        "anthropic",
        "quota",
        429,
        anthropic("rate_limit_error", "Spent", details={"error_code": "enforced_spend_limit_reached"}),
    ),
    Case("anthropic", "quota", 402, anthropic("billing_error", "Your organization has been disabled.")),
    Case("anthropic", "overloaded", 529, anthropic("overloaded_error", "Overloaded")),
    Case("google", "rate", 429, google(GOOGLE_PLAN + "10", "RequestsPerMinutePerProject-FreeTier", "36s"), wait=36.0),
    Case("google", "rate", 429, google(GOOGLE_PLAN + "50", "RequestsPerDayPerProject-FreeTier", "36.43s"), wait=36.43),
    Case("google", "quota", 429, google(GOOGLE_PLAN + "50", "RequestsPerDayPerProject-FreeTier")),
    Case("google", "quota", 429, google(GOOGLE_PLAN + "0, model: gemini-3-pro", "RequestsPerDay-FreeTier", "36s")),
    Case("google", "quota", 429, google("Your prepayment credits are depleted. Please go to AI Studio to manage.")),
    Case("google", "rate", 429, google("Resource has been exhausted (e.g. check quota).")),
    Case("google", "rate", 429, google("Resource exhausted. Please try again later.")),
    Case("google", "overloaded", 503, {"error": {"code": 503, "message": "The model is overloaded.", "status": "x"}}),
    Case("mistral", "rate", 429, {"object": "error", "message": "Rate limit exceeded", "type": "rate_limited"}),
    Case("mistral", "rate", 429, {"message": "Requests rate limit exceeded"}),
    Case("mistral", "rate", 429, {"message": "Service tier capacity exceeded for this model.", "code": "3505"}),
    Case("mistral", "quota", 401, {"detail": "Inactive subscription or usage limit reached"}),
    Case(
        "groq",
        "rate",
        429,
        openai(
            "Rate limit reached for model `llama-3.3-70b` in organization `o1` on tokens per day (TPD): Limit 99999, "
            "Used 99336, Requested 1000. Please try again in 4m50.304s. Need more tokens? Upgrade to Dev Tier today at "
            "https://console.groq.com/settings/billing",
            "rate_limit_exceeded",
            "tokens",
        ),
        wait=290.304,
    ),
    Case("deepseek", "quota", 402, openai("Insufficient Balance", "invalid_request_error", "unknown_error")),
    Case("deepseek", "rate", 429, openai("Rate limit reached", "rate_limit_reached_error")),
    Case("openrouter", "quota", 402, openrouter(402, "Insufficient credits. Add more at the credits page")),
    Case("openrouter", "quota", 402, openrouter(402, "This request requires more credits, or fewer max_tokens.")),
    Case("openrouter", "quota", 403, openrouter(403, "Key limit exceeded (total limit). Manage it at settings/keys")),
    Case("openrouter", "rate", 429, openrouter(429, "Provider returned error", raw="x is temporarily rate-limited")),
    Case("openrouter", "quota", 429, openrouter(429, "Provider returned error", raw=json.dumps(openai(PLAN)))),
    Case(
        "openrouter",
        "rate",
        429,
        openrouter(
            429,
            "Rate limit exceeded: free-models-per-min. ",
            headers={"X-RateLimit-Limit": "20", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1792567680000"},
        ),
        {"date": "Wed, 21 Oct 2026 07:27:20 GMT"},
        40.0,
    ),
    Case(
        "xai",
        "quota",
        403,
        {
            "code": "The caller does not have permission to execute the specified operation",
            "error": "Your newly created team doesn't have any credits yet. You can purchase credits on the console.",
        },
    ),
    Case(
        "xai",
        "quota",
        429,
        {
            "code": "Some resource has been exhausted",
            "error": "Your team 1 has either used all available credits or reached its monthly spending limit.",
        },
    ),
    Case("xai", "rate", 429, {"code": "Some resource has been exhausted", "error": "Too many requests for team 1"}),
    Case(
        "together",
        "rate",
        429,
        openai("You have reached the rate limit specific to this model", kind="model_rate_limit"),
    ),
    Case("together", "quota", 402, openai("Credit limit exceeded, please add credits", kind="credit_limit")),
    Case("together", "quota", 403, openai("Credit limit exceeded, please navigate to billing", kind="credit_limit")),
    Case("perplexity", "quota", 401, openai(PLAN, 401, "insufficient_quota")),
    Case("perplexity", "rate", 429, openai("Request rate limit exceeded, please try again later.", 429)),
    Case(
        "azure",
        "rate",
        429,
        openai(
            "Requests to the ChatCompletions_Create Operation under Azure OpenAI API version 2024-02-01 have exceeded "
            "token rate limit of your current OpenAI S0 pricing tier. Please retry after 56 seconds. Please go here: "
            "https://aka.ms/oai/quotaincrease if you would like to further increase the default rate limit.",
            "429",
        ),
        wait=56.0,
    ),
    Case("azure", "rate", 429, openai("Your requests to grok have exceeded rate limit.", "RateLimitReached")),
    Case("azure", "quota", 403, openai("Out of call volume quota. Quota will be replenished in 2.12:10:03", "403")),
    Case("azure", "quota", 429, openai("You exceeded your current quota", "insufficient_quota")),
    Case("bedrock", "rate", 429, {"message": "Too many requests, please wait before trying again."}),
    Case("bedrock", "rate", 429, {"message": "Too many tokens, please wait before trying again."}),
    Case("bedrock", "rate", 400, {"__type": "com.amazon.bedrock#ThrottlingException", "message": "Rate exceeded"}),
    Case("bedrock", "quota", 400, {"__type": "ServiceQuotaExceededException", "message": "Exceeds the service quota"}),
    Case(
        "bedrock",
        "quota",
        400,
        {"message": "Your request exceeds a quota of your account."},
        headers={"x-amzn-errortype": "ServiceQuotaExceededException:http://internal.amazon.com/coral/"},
    ),
    Case(
        "cloudflare",
        "quota",
        429,
        {
            "success": False,
            "result": None,
            "errors": [
                {"code": 4006, "message": "AiError: you have used up your daily free allocation of 10,000 neurons"}
            ],
        },
    ),
    Case("cloudflare", "rate", 429, {"success": False, "errors": [{"code": 3040, "message": "Capacity exceeded"}]}),
    Case(
        "moonshot",
        "quota",
        429,
        openai(
            "Your account is suspended, please check your plan and billing details", kind="exceeded_current_quota_error"
        ),
    ),
    Case(
        "moonshot",
        "rate",
        429,
        openai(
            "Your account request reached organization max RPM: 3, please try again after 1 seconds",
            kind="rate_limit_reached_error",
        ),
        wait=1.0,
    ),
    Case("moonshot", "overloaded", 429, openai("The engine is currently overloaded", kind="engine_overloaded_error")),
    Case("zai", "quota", 429, openai("Insufficient balance or no resource package. Please recharge.", "1113")),
    Case("zai", "rate", 429, openai("High concurrency usage of this API, please reduce concurrency", "1302")),
    Case("zai", "quota", 429, openai("Usage limit reached for 5 hour. Your limit will reset at 12:00", "1308")),
    Case("alibaba", "rate", 429, openai("Requests rate limit exceeded, try again later", "Throttling.RateQuota")),
    Case(
        "alibaba", "quota", 403, openai("The free tier of the model has been exhausted", "AllocationQuota.FreeTierOnly")
    ),
    Case("alibaba", "quota", 400, openai("Access denied, your account is not in good standing", "Arrearage")),
    Case(
        "cerebras",
        "rate",
        429,
        {
            "message": "Tokens per minute limit exceeded - too many tokens processed.",
            "type": "too_many_tokens_error",
            "param": "quota",
            "code": "token_quota_exceeded",
        },
        {"x-ratelimit-remaining-tokens-minute": "0", "x-ratelimit-reset-tokens-minute": "41.38"},
        41.38,
    ),
    Case("cerebras", "overloaded", 429, {"message": "We're experiencing high traffic!", "code": "queue_exceeded"}),
    Case(
        "fireworks", "quota", 412, openai("Account x is suspended, possibly due to reaching the monthly spending limit")
    ),
    Case("huggingface", "quota", 402, {"error": "You have exceeded your monthly included credits. Subscribe to PRO"}),
    Case(
        "github-models",
        "rate",
        429,
        openai(
            "Rate limit of 50 per 86400s exceeded for UserByModelByDay. Please wait 35872 seconds before retrying.",
            "RateLimitReached",
        ),
        wait=35872.0,
    ),
    Case(
        "databricks",
        "rate",
        429,
        {"error_code": "REQUEST_LIMIT_EXCEEDED", "message": "Exceeded workspace input tokens per minute rate limit"},
    ),
    Case("cohere", "rate", 429, {"message": "You are using a Trial key, which is limited to 10 API calls / minute."}),
    Case("cohere", "quota", 429, {"message": "You are using a Trial key, which is limited to 1000 API calls / month."}),
    Case("nvidia", "rate", 429, {"status": 429, "title": "Too Many Requests"}),
    Case("ollama", "quota", 429, {"error": "you've reached your hourly usage limit, please upgrade to continue"}),
    Case(
        "vercel", "quota", 402, openai("Insufficient funds. Please add credits to continue.", kind="insufficient_funds")
    ),
    Case("proxy", "rate", 429, b"<html><h1>429 Too Many Requests</h1></html>"),
    Case("proxy", "quota", 402, b""),
]


def map_error(case: Case) -> errors.AgentError:
    data = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
    return error_from_reply(Reply(case.status, case.headers, data), provider=case.vendor, model="m")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_out_of_money_is_told_from_too_fast(case: Case) -> None:
    error = map_error(case)
    assert type(error) is KINDS[case.kind]
    assert error.retryable is (case.kind != "quota")
    assert error.retry_after == (None if case.wait is None else pytest.approx(case.wait))


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 80
    assert len({case.vendor for case in CASES}) >= 20


TOO_LONG = [
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    "This endpoint's maximum context length is 200000 tokens. However, you requested about 2500021 tokens",
    "prompt is too long: 3333404 tokens > 200000 maximum",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "input is too long for requested model",
    "Input is too long for requested model.",
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "the request exceeds the available context size. try increasing the context size",
    "The total length of all messages is too long.",
    "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "Please reduce the length of the messages or completion.",
    "Too many tokens: the input has 9001 tokens",
    "The prompt length exceeds the model's limit of 131072 tokens, which exceeds the limit of 131072",
    "inputs tokens exceeds the model's maximum context length",
    "prompt token count of 135060 exceeds the limit of 128000",
    "This model's maximum prompt length is 131072 but the request contains 136973 tokens.",
    "Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)",
    "model max length exceeded, max length:8192",
    "Trying to keep the first 15857 tokens when context the overflows. However, the model is loaded with context "
    "length of only 4096 tokens, which is not enough.",
    "The number of tokens to keep from the initial prompt is greater than the context length.",
    "invalid params, context window exceeds limit (2013)",
    "prompt too long; exceeded max context length by 1000 tokens",
    "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
    "Range of input length should be [1, 30720]",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8192. Given: 9000 `inputs` tokens",
]
NOT_TOO_LONG = [
    "Invalid 'user': string too long. Expected a string with maximum length 64, but got length 100",
    "Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40",
    "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40000",
    "Unsupported parameter: 'stop' is not supported with this model.",
    "max_tokens is too large: 99999. This model supports at most 4096 completion tokens",
    "Too many tokens per day, please wait before trying again.",
    "Image exceeds 5 MB maximum",
    "The number of tools exceeds the limit of 128",
]


@pytest.mark.parametrize("message", TOO_LONG)
def test_a_conversation_that_is_too_long_is_known_by_many_words(message: str) -> None:
    error = map_error(Case("p", "quota", 400, openai(message)))
    assert type(error) is errors.ContextLengthError
    assert not error.retryable


@pytest.mark.parametrize("message", NOT_TOO_LONG)
def test_other_things_may_be_too_long_as_well(message: str) -> None:
    assert type(map_error(Case("p", "quota", 400, openai(message)))) is errors.BadRequestError


def test_a_gateway_quotes_the_vendor_behind_it() -> None:
    raw = '{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 3 tokens > 2"}}'
    assert (
        type(map_error(Case("p", "quota", 400, openrouter(400, "Provider returned error", raw=raw))))
        is errors.ContextLengthError
    )
    quoted = '{"error": {"details": [{"@type": "RetryInfo", "retryDelay": "36.5s"}]}}'
    assert map_error(Case("p", "rate", 429, openrouter(429, "Provider returned error", raw=quoted))).retry_after == 36.5


def test_a_filter_speaks_with_many_statuses() -> None:
    for status, body in (
        (400, openai("The response was filtered", "content_filter")),
        (400, {"error": {"message": "x", "code": "x", "innererror": {"code": "ResponsibleAIPolicyViolation"}}}),
        (403, openrouter(403, "claude requires moderation. Your input was flagged for: violence")),
        (403, {"code": "x", "error": "Content violates usage guidelines."}),
        (400, openai("Content Exists Risk", "invalid_request_error")),
    ):
        assert type(map_error(Case("p", "quota", status, body))) is errors.ContentFilterError


def test_megabytes_of_words_are_not_searched() -> None:
    error = map_error(Case("p", "rate", 429, openai("input token count " * 500_000)))
    assert type(error) is errors.RateLimitError
