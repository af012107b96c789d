"""A vendor's failure as one of our errors: the same questions for every vendor, asked in one place.

What was refused, whether sending it again can help, and how long to wait: from the status, the vendor's own code, the
message and the headers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import errors
from ..types import redact
from ..wire import Reply, parse_json
from .hints import retry_after

BODY_KEPT = 2048
"""How much of a failed answer an error keeps."""

_CONTEXT_CODES = frozenset(
    ("context_length_exceeded", "too_many_prompt_tokens", "request_too_large", "model_context_window_exceeded")
)
_CONTEXT = re.compile(
    r"maximum context length is|exceeds? the context window|prompt is too long|input is too long"
    r"|exceeds? (?:the )?context limit|input token count .*exceeds the maximum number of tokens"
    r"|too many tokens|too large for model with \d+ maximum context length"
    r"|exceeds the available context size|exceeds the limit of \d+|total length of all messages is too long",
    re.I | re.S,
)
_NOT_CONTEXT = re.compile(r"string too long|rate limit|per minute|\bTPM\b", re.I)
_QUOTA_CODES = frozenset(
    (
        "insufficient_quota",
        "credit_balance_exhausted",
        "enforced_spend_limit_reached",
        "billing_not_active",
        "billing_hard_limit_reached",
        "quota_exceeded",
        "insufficient_credits",
    )
)
_QUOTA = re.compile(
    r"exceeded your current quota|credit balance is too low|insufficient (?:credit|balance|quota|funds)"
    r"|out of credits|spend(?:ing)? limit|usage limit|billing",
    re.I,
)
_FILTER_CODES = frozenset(("content_filter", "content_policy_violation", "responsible_ai_policy_violation"))
_MODEL_CODES = frozenset(("model_not_found", "DeploymentNotFound", "model_not_available", "model_decommissioned"))
_KEY_CODES = frozenset(("invalid_api_key", "invalid_authentication", "authentication_error"))
_OVERLOADED_CODES = frozenset(("overloaded_error", "overloaded", "server_overloaded", "engine_overloaded"))
_RATE_CODES = frozenset(("rate_limit_exceeded", "rate_limit_error", "RateLimitReached", "slow_down"))
_REQUEST_ID_HEADERS = ("x-request-id", "request-id", "apim-request-id", "x-amzn-requestid", "x-goog-request-id")
_RETRYABLE_STATUSES = frozenset((408, 409, 425, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529))


@dataclass(frozen=True, slots=True)
class Complaint:
    """What a vendor says is wrong, once its spelling is taken away."""

    message: str
    kind: str | None = None
    code: str | None = None


def request_id(headers: Mapping[str, str]) -> str | None:
    return next((headers[name] for name in _REQUEST_ID_HEADERS if name in headers), None)


def shown(data: bytes, secrets: tuple[str, ...]) -> str:
    """The start of an answer, fit to be kept with an error."""
    return redact(data[: 4 * BODY_KEPT].decode("utf-8", "replace"), secrets)[:BODY_KEPT]


def read_complaint(body: Any) -> Complaint | None:
    """The complaint in an answer, or None if it holds none that we can read."""
    if isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, dict):
        return None
    error = body.get("error")
    if isinstance(error, dict):
        return _complaint(error)
    if isinstance(error, str) and error:
        return Complaint(error, code=_text(body.get("code")))
    if isinstance(body.get("message"), str) or isinstance(body.get("detail"), str):
        return _complaint(body)
    if body.get("detail"):
        return Complaint(str(body["detail"])[:BODY_KEPT])
    return None


def _complaint(error: Mapping[str, Any]) -> Complaint:
    message = error.get("message") or error.get("detail") or "the vendor reports an error"
    return Complaint(str(message), kind=_text(error.get("type")), code=_text(error.get("code")))


def _text(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)


def reply_failure(
    reply: Reply, *, provider: str, model: str | None, secrets: tuple[str, ...] = ()
) -> errors.AgentError:
    """The error for an answer whose status says that it failed."""
    try:
        body = parse_json(reply.body)
    except ValueError:
        body = None
    complaint = read_complaint(body)
    if 300 <= reply.status < 400:
        return errors.ProtocolError(
            f"{provider} answered with a redirect, and redirects are not followed: they would carry the key along",
            provider=provider,
            model=model,
            status_code=reply.status,
            request_id=request_id(reply.headers),
            retryable=False,
        )
    if complaint is None:
        summary = " ".join(re.sub(r"<[^>]*>", " ", shown(reply.body, secrets)).split())[:200]
        complaint = Complaint(summary or f"HTTP status {reply.status} without an explanation")
    return failure(
        complaint,
        status=reply.status,
        headers=reply.headers,
        body=body,
        data=reply.body,
        provider=provider,
        model=model,
        secrets=secrets,
    )


def failure(
    complaint: Complaint,
    *,
    status: int,
    headers: Mapping[str, str],
    provider: str,
    model: str | None,
    body: Any = None,
    data: bytes | None = None,
    secrets: tuple[str, ...] = (),
) -> errors.AgentError:
    """The error for a complaint, whether it came with a failing status or inside a successful one."""
    effective = status if status >= 400 else _status_in(complaint)
    kind = _classify(complaint, effective)
    wait = retry_after(headers, body, complaint.message)
    return kind(
        redact(complaint.message, secrets),
        provider=provider,
        model=model,
        status_code=status,
        request_id=request_id(headers),
        code=complaint.code or complaint.kind,
        retryable=_retryable(kind, effective, headers),
        retry_after=None if kind is errors.QuotaExceededError else wait,
        body=None if data is None else shown(data, secrets),
    )


def _status_in(complaint: Complaint) -> int:
    """Some vendors put the status they mean into the code."""
    code = complaint.code or ""
    return int(code) if code.isdigit() and 400 <= int(code) < 600 else 0


def _classify(complaint: Complaint, status: int) -> type[errors.AgentError]:
    names = {complaint.code, complaint.kind}
    message = complaint.message
    if names & _QUOTA_CODES or status == 402:
        return errors.QuotaExceededError
    if status == 429:
        return errors.QuotaExceededError if _QUOTA.search(message) else errors.RateLimitError
    if names & _CONTEXT_CODES or (_CONTEXT.search(message) and not _NOT_CONTEXT.search(message)):
        return errors.ContextLengthError
    if names & _FILTER_CODES:
        return errors.ContentFilterError
    if status in (401, 403) or names & _KEY_CODES:
        return errors.AuthenticationError
    if names & _MODEL_CODES or status in (404, 410):
        return errors.ModelNotFoundError
    if names & _RATE_CODES:
        return errors.RateLimitError
    if status in (503, 529) or names & _OVERLOADED_CODES:
        return errors.OverloadedError
    if status == 413:
        return errors.ContextLengthError
    if 400 <= status < 500 and status not in _RETRYABLE_STATUSES:
        return errors.BadRequestError
    if complaint.kind == "invalid_request_error":
        return errors.BadRequestError
    return errors.ProviderError


def _retryable(kind: type[errors.AgentError], status: int, headers: Mapping[str, str]) -> bool:
    told = headers.get("x-should-retry")
    if told in ("true", "false"):
        return told == "true"
    if kind in (errors.RateLimitError, errors.OverloadedError):
        return True
    if kind is errors.ProviderError:
        return status == 0 or status in _RETRYABLE_STATUSES or status >= 500
    return False
