"""A vendor's failure as one of our errors: the same questions for every vendor, asked in one place.

What was refused, whether sending it again can help, and how long to wait: from the status, the vendor's own code, the
message and the headers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .. import errors
from ..engine.wire import Reply, parse_json
from ..types import redact
from .rate_limit_hints import retry_after

BODY_KEPT = 2048
"""How much of a failed answer an error keeps."""
_WORDS_READ = 4096
_CODE_KEPT = 200

_CONTEXT_CODES = frozenset(
    (
        "context_length_exceeded",
        "too_many_prompt_tokens",
        "request_too_large",
        "model_context_window_exceeded",
        "exceed_context_size_error",
        "request_body_too_large_after_decoding",
    )
)
_CONTEXT = re.compile(
    r"maximum (?:context|prompt) length is|exceeds? the context window|prompt (?:is )?too long|input is too long"
    r"|exceeds? (?:the )?context limit|input token count .*exceeds the maximum number of tokens"
    r"|too many (?:input |prompt )?tokens|too large for model with \d+ maximum context length"
    r"|exceeds the available context size|total length of all messages is too long"
    r"|(?:tokens?|prompt|context)\b[^.\n]{0,60}exceeds the limit of \d+"
    r"|context (?:length|size|window) (?:has been )?exceed|(?:greater|longer) than the (?:context|maximum model) length"
    r"|context length of only \d+|exceeded model token limit|model max length exceeded"
    r"|range of input length should be|tokens \+ .max_new_tokens. must be"
    r"|exceeds? the (?:model's )?(?:maximum )?(?:context|input) (?:length|size|window)"
    r"|reduce the length of the messages|prompt (?:length )?exceeds? (?:the )?(?:max|model)"
    r"|tokens in the prompt exceeds|input length .{0,40}exceeds",
    re.I | re.S,
)
_NOT_CONTEXT = re.compile(r"string too long|rate limit|per (?:minute|day|hour)|\bTPM\b|please wait", re.I)

_QUOTA_CODES = frozenset(
    (
        "insufficient_quota",
        "credit_balance_exhausted",
        "enforced_spend_limit_reached",
        "billing_not_active",
        "billing_hard_limit_reached",
        "billing_error",
        "quota_exceeded",
        "insufficient_credits",
        "insufficient_balance",
        "exceeded_current_quota_error",
        "credit_limit",
        "payment_required",
        "ServiceQuotaExceededException",
        "AllocationQuota.FreeTierOnly",
        "Arrearage",
    )
)
_QUOTA = re.compile(
    r"exceeded your current quota|credit balance is too low|insufficient (?:credits?|balance|quota|funds)"
    r"|out of credits|not enough credits?|credits? (?:are |is |have been )?(?:exhausted|depleted|used up)"
    r"|used (?:up )?(?:all|your)\b.{0,60}\b(?:credits?|allocation|quota)|do(?:es)?n['\u2019]t have any credits"
    r"|exceeded your monthly included credits|credit limit exceeded|key limit exceeded|requires more credits"
    r"|spend(?:ing)? limit|usage limits?\b|out of call volume quota|free tier .{0,40}exhausted"
    r"|billing (?:hard limit|is not active)|check your plan and billing",
    re.I | re.S,
)
"""Out of money, in the words of those who have no code for it. Waiting does not help."""
_FOR_LONG = re.compile(r"(?:/|per) month\b", re.I)
"""A limit of this kind is money, not speed."""
_NO_QUOTA_AT_ALL = re.compile(r"\blimit: 0\b(?!\.)")
"""Google's way of saying that a plan does not include a model; it names a time to retry all the same."""

_RATE_CODES = frozenset(
    (
        "rate_limit_exceeded",
        "rate_limit_error",
        "rate_limit_reached_error",
        "ramp_limit_exceeded",
        "rate_limited",
        "RateLimitReached",
        "slow_down",
        "tokens",
        "requests",
        "ThrottlingException",
        "Throttling.RateQuota",
        "REQUEST_LIMIT_EXCEEDED",
        "too_many_requests_error",
    )
)
_FILTER_CODES = frozenset(
    (
        "content_filter",
        "content_policy_violation",
        "responsible_ai_policy_violation",
        "ResponsibleAIPolicyViolation",
        "data_inspection_failed",
        "DataInspectionFailed",
        "bio_policy",
        "misalignment_policy_violation",
        "image_content_policy_violation",
    )
)
_FILTER = re.compile(r"content violates usage guidelines|input was flagged|content exists risk", re.I)
_MODEL_CODES = frozenset(
    ("model_not_found", "DeploymentNotFound", "model_not_available", "model_decommissioned", "not_found_error")
)
_REQUEST_CODES = frozenset(
    (
        "invalid_request_error",
        "invalid_prompt",
        "invalid_image",
        "invalid_image_format",
        "invalid_base64_image",
        "invalid_image_url",
        "invalid_image_mode",
        "image_too_large",
        "image_too_small",
        "image_parse_error",
        "image_file_too_large",
        "image_file_not_found",
        "unsupported_image_media_type",
        "empty_image_file",
        "failed_to_download_image",
        "data_residency_mismatch",
        "ValidationException",
    )
)
"""A wrong request, also where it is reported inside a success."""
_KEY_CODES = frozenset(
    ("invalid_api_key", "invalid_authentication", "authentication_error", "permission_error", "API_KEY_INVALID")
)
_OVERLOADED_CODES = frozenset(
    (
        "overloaded_error",
        "overloaded",
        "server_overloaded",
        "engine_overloaded",
        "engine_overloaded_error",
        "queue_exceeded",
        "ServiceUnavailableException",
    )
)
_REQUEST_ID_HEADERS = ("x-request-id", "request-id", "apim-request-id", "x-amzn-requestid", "x-goog-request-id")
_RETRYABLE_STATUSES = frozenset((408, 409, 425, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529))


_STATUS = re.compile(r"[45]\d\d", re.A)
_MARKUP = re.compile(r"<(script|style)\b.*?</\1\s*>|<[^>]*>", re.I | re.S)
_MESSAGES = ("message", "detail", "Message")
"""Where the words are."""
_UNEXPLAINED = "the vendor reports an error"


class ErrorDetails(NamedTuple):
    """What a vendor says is wrong, once its spelling is taken away."""

    message: str
    kind: str | None = None
    code: str | None = None
    names: frozenset[str] = frozenset()
    """Everything else in it that names a kind of failure."""
    behind: str = ""
    """The words of the vendor behind a gateway."""
    retry_told: bool = False
    """It says itself when to try again."""

    @property
    def words(self) -> str:
        """What is searched for a meaning. A page of megabytes is not."""
        return f"{self.message[:_WORDS_READ]}\n{self.behind[:_WORDS_READ]}"


def request_id(headers: Mapping[str, str]) -> str | None:
    return next((headers[name] for name in _REQUEST_ID_HEADERS if name in headers), None)


def redact_body(data: bytes, secrets: tuple[str, ...]) -> str:
    """The start of an answer, fit to be kept with an error."""
    return redact(data[: 4 * BODY_KEPT].decode("utf-8", "replace"), secrets)[:BODY_KEPT]


def read_error_details(body: Any) -> ErrorDetails | None:
    """The complaint in an answer, or None if it holds none that we can read."""
    if isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, dict):
        return None
    error = body.get("error")
    if isinstance(error, list) and error:
        error = error[0]
    if isinstance(error, dict):
        return _complaint(_innermost(error))
    if isinstance(error, str) and error:
        return ErrorDetails(error, code=_text(body.get("code")))
    if any(isinstance(body.get(key), str) for key in _MESSAGES):
        return _complaint(body)
    if body.get("detail"):
        return ErrorDetails(str(body["detail"])[:BODY_KEPT])
    listed = body.get("errors")
    if isinstance(listed, list) and listed and isinstance(listed[0], dict):
        return _complaint(listed[0])
    told = body.get("base_resp")  # MiniMax's, which is there in a success, too
    if isinstance(told, dict) and told.get("status_code"):
        return ErrorDetails(str(told.get("status_msg") or _UNEXPLAINED), code=_text(told["status_code"]))
    return None


def _innermost(error: Mapping[str, Any]) -> Mapping[str, Any]:
    """A gateway may wrap the error of the vendor behind it into one of its own."""
    for key in ("error", "message"):
        inner = error.get(key)
        if isinstance(inner, dict) and any(isinstance(inner.get(name), str) for name in _MESSAGES):
            return inner
    return error


def _complaint(error: Mapping[str, Any]) -> ErrorDetails:
    message = next((error[key] for key in _MESSAGES if error.get(key)), _UNEXPLAINED)
    details = error.get("details")
    entries = [entry for entry in details if isinstance(entry, dict)] if isinstance(details, list) else []
    # Google's ErrorInfo: {"error": {"details": [{"reason": "API_KEY_INVALID"}]}}, with the status of a bad request.
    kind = error.get("type") or next((entry["reason"] for entry in entries if entry.get("reason")), None)
    return ErrorDetails(
        str(message),
        kind=_text(kind),
        code=_text(error.get("code") or error.get("error_code")),
        names=frozenset(_names(error, details)),
        behind=_behind(error),
        retry_told=any(entry.get("retryDelay") for entry in entries),
    )


def _names(error: Mapping[str, Any], details: Any) -> Iterator[str]:
    inner = error.get("innererror")
    found = (
        str(error.get("__type") or "").rpartition("#")[2],  # Amazon's, with a namespace before it
        details.get("error_code") if isinstance(details, dict) else None,
        inner.get("code") if isinstance(inner, dict) else None,
    )
    return (name for name in found if isinstance(name, str) and name)


def _behind(error: Mapping[str, Any]) -> str:
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return raw if isinstance(raw, str) else ""


def _text(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)


def error_from_reply(
    reply: Reply, *, provider: str, model: str | None, secrets: tuple[str, ...] = ()
) -> errors.AgentError:
    """The error for an answer whose status says that it failed."""
    try:
        body = parse_json(reply.body)
    except ValueError:
        body = None
    complaint = read_error_details(body)
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
        summary = " ".join(_MARKUP.sub(" ", redact_body(reply.body, secrets)).split())[:200]
        complaint = ErrorDetails(summary or f"HTTP status {reply.status} without an explanation")
    return error_from_details(
        complaint,
        status=reply.status,
        headers=reply.headers,
        body=body,
        data=reply.body,
        provider=provider,
        model=model,
        secrets=secrets,
    )


def error_from_details(
    complaint: ErrorDetails,
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
    named = headers.get("x-amzn-errortype", "").partition(":")[0]  # Amazon's other place for the kind of a failure
    kind = _classify(complaint, effective, {complaint.code, complaint.kind, *complaint.names, named})
    wait = retry_after(headers, body, complaint.words)
    code = complaint.code or complaint.kind
    return kind(
        redact(complaint.message[: 2 * _WORDS_READ], secrets)[:_WORDS_READ],
        provider=provider,
        model=model,
        status_code=status,
        request_id=request_id(headers),
        code=None if code is None else redact(code[:_WORDS_READ], secrets)[:_CODE_KEPT],
        retryable=_retryable(kind, effective, headers),
        retry_after=None if kind is errors.QuotaExceededError else wait,
        body=None if data is None else redact_body(data, secrets),
    )


def _status_in(complaint: ErrorDetails) -> int:
    """Some vendors put the status they mean into the code."""
    code = complaint.code or ""
    return int(code) if _STATUS.fullmatch(code) else 0


def _classify(complaint: ErrorDetails, status: int, names: set[str | None]) -> type[errors.AgentError]:
    words = complaint.words
    if names & _QUOTA_CODES or status == 402:
        return errors.QuotaExceededError
    if names & _OVERLOADED_CODES:
        return errors.OverloadedError
    if status == 429:
        return _too_much(complaint, names, words)
    if status < 500 and _QUOTA.search(words) and not names & _RATE_CODES:
        return errors.QuotaExceededError
    if names & _CONTEXT_CODES or (_CONTEXT.search(words) and not _NOT_CONTEXT.search(words)):
        return errors.ContextLengthError
    if names & _FILTER_CODES or _FILTER.search(words):
        return errors.ContentFilterError
    if status in (401, 403) or names & _KEY_CODES:
        return errors.AuthenticationError
    if names & _MODEL_CODES or status in (404, 410):
        return errors.ModelNotFoundError
    if names & _RATE_CODES:
        return errors.RateLimitError
    if status in (503, 529):
        return errors.OverloadedError
    if status == 413:
        return errors.ContextLengthError
    if 400 <= status < 500 and status not in _RETRYABLE_STATUSES:
        return errors.BadRequestError
    if names & _REQUEST_CODES:
        return errors.BadRequestError
    return errors.ProviderError


def _too_much(complaint: ErrorDetails, names: set[str | None], words: str) -> type[errors.AgentError]:
    """Too fast, or out of money: the same status for both.

    A vendor's code, or its word on when to retry, is believed before its prose: messages about rates mention quotas and
    billing, and a quota that is named after a day has been seen to come back within a minute.
    """
    if _NO_QUOTA_AT_ALL.search(words):
        return errors.QuotaExceededError
    if complaint.retry_told or names & _RATE_CODES:
        return errors.RateLimitError
    spent = _QUOTA.search(words) or _FOR_LONG.search(words)
    return errors.QuotaExceededError if spent else errors.RateLimitError


def _retryable(kind: type[errors.AgentError], status: int, headers: Mapping[str, str]) -> bool:
    told = headers.get("x-should-retry", "").strip().lower()
    if told in ("true", "false"):
        return told == "true"
    if kind in (errors.RateLimitError, errors.OverloadedError):
        return True
    if kind is errors.ProviderError:
        return status == 0 or status in _RETRYABLE_STATUSES or status >= 500
    return False
