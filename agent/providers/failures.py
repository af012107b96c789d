"""Error mapping: a vendor's error reply becomes a typed error.

Status, code, message and headers decide the class of the error, whether it is retryable and its `retry_after`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import errors
from ..engine.wire import Reply, parse_json
from ..models import find_similar_models
from ..types.secrets import redact_start
from .rate_limit_hints import retry_after

MAX_BODY_LENGTH = 2048
"""Characters of an error body that the error keeps."""
_MAX_MESSAGE_LENGTH = 4096
_MAX_CODE_LENGTH = 200


def _codes(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CONTEXT_CODES = _codes("""
    context_length_exceeded too_many_prompt_tokens request_too_large model_context_window_exceeded
    exceed_context_size_error request_body_too_large_after_decoding
""")
_CONTEXT = (
    r"(?is)maximum (?:context|prompt) length is|exceeds? the context window|prompt (?:is )?too long|input is too long"
    r"|exceeds? (?:the )?context limit|input token count .*exceeds the maximum number of tokens"
    r"|too many (?:input |prompt )?tokens|too large for model with \d+ maximum context length"
    r"|exceeds the available context size|total length of all messages is too long"
    r"|(?:tokens?|prompt|context)\b[^.\n]{0,60}exceeds the limit of \d+"
    r"|context (?:length|size|window) (?:has been )?exceed|(?:greater|longer) than the (?:context|maximum model) length"
    r"|context length of only \d+|exceeded model token limit|model max length exceeded"
    r"|range of input length should be|tokens \+ .max_new_tokens. must be"
    r"|exceeds? the (?:model's )?(?:maximum )?(?:context|input) (?:length|size|window)"
    r"|reduce the length of the messages|prompt (?:length )?exceeds? (?:the )?(?:max|model)"
    r"|tokens in the prompt exceeds|input length .{0,40}exceeds"
)
_NOT_CONTEXT = r"(?i)string too long|rate limit|per (?:minute|day|hour)|\bTPM\b|please wait"

_QUOTA_CODES = _codes("""
    insufficient_quota credit_balance_exhausted enforced_spend_limit_reached billing_not_active
    billing_hard_limit_reached billing_error quota_exceeded insufficient_credits insufficient_balance
    exceeded_current_quota_error credit_limit payment_required ServiceQuotaExceededException
    AllocationQuota.FreeTierOnly Arrearage
""")
_QUOTA = (
    r"(?is)exceeded your current quota|credit balance is too low|insufficient (?:credits?|balance|quota|funds)"
    r"|out of credits|not enough credits?|credits? (?:are |is |have been )?(?:exhausted|depleted|used up)"
    r"|used (?:up )?(?:all|your)\b.{0,60}\b(?:credits?|allocation|quota)|do(?:es)?n['\u2019]t have any credits"
    r"|exceeded your monthly included credits|credit limit exceeded|key limit exceeded|requires more credits"
    r"|spend(?:ing)? limit|usage limits?\b|out of call volume quota|free tier .{0,40}exhausted"
    r"|billing (?:hard limit|is not active)|check your plan and billing"
)
"""Exhausted credit, at vendors without a code for it. Waiting does not help."""
_MONTHLY = r"(?i)(?:/|per) month\b"
"""A monthly limit is a quota, not a rate limit."""
_ZERO_LIMIT = r"\blimit: 0\b(?!\.)"
"""Google's message for a model that the plan does not include. It comes with a retry delay nonetheless."""

_RATE_CODES = _codes("""
    rate_limit_exceeded rate_limit_error rate_limit_reached_error ramp_limit_exceeded rate_limited RateLimitReached
    slow_down tokens requests ThrottlingException Throttling.RateQuota REQUEST_LIMIT_EXCEEDED
    too_many_requests_error
""")
_FILTER_CODES = _codes("""
    content_filter content_policy_violation responsible_ai_policy_violation ResponsibleAIPolicyViolation
    data_inspection_failed DataInspectionFailed bio_policy misalignment_policy_violation
    image_content_policy_violation
""")
_FILTER = r"(?i)content violates usage guidelines|input was flagged|content exists risk"
_MODEL_CODES = _codes("""
    model_not_found DeploymentNotFound model_not_available model_decommissioned not_found_error
""")
_MODEL = r"(?i)provided model identifier is invalid"
_REQUEST_CODES = _codes("""
    invalid_request_error invalid_prompt invalid_image invalid_image_format invalid_base64_image invalid_image_url
    invalid_image_mode image_too_large image_too_small image_parse_error image_file_too_large image_file_not_found
    unsupported_image_media_type empty_image_file failed_to_download_image data_residency_mismatch
    ValidationException
""")
"""Codes of invalid requests, also in replies with status 200."""
_KEY_CODES = _codes("""
    invalid_api_key invalid_authentication authentication_error permission_error API_KEY_INVALID
""")
_OVERLOADED_CODES = _codes("""
    overloaded_error overloaded server_overloaded engine_overloaded engine_overloaded_error queue_exceeded
    ServiceUnavailableException ModelNotReadyException
""")
_REQUEST_ID_HEADERS = ("x-request-id", "request-id", "apim-request-id", "x-amzn-requestid", "x-goog-request-id")
_RETRYABLE_STATUSES = frozenset((408, 409, 424, 425, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529))

_STATUS = r"(?a)[45]\d\d"
_MARKUP = r"(?is)<(script|style)\b.*?</\1\s*>|<[^>]*>"
_MESSAGE_KEYS = ("message", "detail", "Message")
_NO_MESSAGE = "the vendor reports an error"


class ErrorDetails(NamedTuple):
    """A vendor's error, independent of its wire format."""

    message: str
    type: str | None = None
    code: str | None = None
    other_codes: frozenset[str] = frozenset()
    upstream: str = ""
    """Message of the vendor behind a gateway."""
    has_retry_delay: bool = False

    @property
    def text(self) -> str:
        """The messages to search for patterns, limited in length."""
        return f"{self.message[:_MAX_MESSAGE_LENGTH]}\n{self.upstream[:_MAX_MESSAGE_LENGTH]}"


def request_id(headers: Mapping[str, str]) -> str | None:
    for name in _REQUEST_ID_HEADERS:
        if name in headers:
            return headers[name]
    return None


def redact_body(data: bytes, secrets: tuple[str, ...]) -> str:
    """Return the start of a body without secrets, for an error."""
    return redact_start(data.decode("utf-8", "replace"), secrets, MAX_BODY_LENGTH)


def read_error_details(body: Any) -> ErrorDetails | None:
    """Read the error in a JSON body, or None if it has none in a known form."""
    if isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, dict):
        return None
    error = body.get("error")
    if isinstance(error, list) and error:
        error = error[0]
    if isinstance(error, dict):
        return _read_error(_unwrap(error))
    if isinstance(error, str) and error:
        return ErrorDetails(error, code=_text(body.get("code")))
    if any(isinstance(body.get(key), str) for key in _MESSAGE_KEYS):
        return _read_error(body)
    if body.get("detail"):
        return ErrorDetails(str(body["detail"]))
    listed = body.get("errors")
    if isinstance(listed, list) and listed and isinstance(listed[0], dict):
        return _read_error(listed[0])
    status = body.get("base_resp")  # MiniMax's, present in successful replies, too
    if isinstance(status, dict) and status.get("status_code"):
        return ErrorDetails(str(status.get("status_msg") or _NO_MESSAGE), code=_text(status["status_code"]))
    return None


def _unwrap(error: Mapping[str, Any]) -> Mapping[str, Any]:
    """Gateways may wrap the upstream vendor's error."""
    for key in ("error", "message"):
        inner = error.get(key)
        if isinstance(inner, dict) and any(isinstance(inner.get(name), str) for name in _MESSAGE_KEYS):
            return inner
    return error


def _read_error(error: Mapping[str, Any]) -> ErrorDetails:
    message = next((error[key] for key in _MESSAGE_KEYS if error.get(key)), _NO_MESSAGE)
    details, inner, metadata = error.get("details"), error.get("innererror"), error.get("metadata")
    entries = [entry for entry in details if isinstance(entry, dict)] if isinstance(details, list) else []
    # Google's ErrorInfo: {"error": {"details": [{"reason": "API_KEY_INVALID"}]}}, with the status of a bad request.
    type = error.get("type") or next((entry["reason"] for entry in entries if entry.get("reason")), None)
    codes = (
        str(error.get("__type") or "").rpartition("#")[2],  # Amazon's, after a namespace
        details.get("error_code") if isinstance(details, dict) else None,
        inner.get("code") if isinstance(inner, dict) else None,
    )
    upstream = metadata.get("raw") if isinstance(metadata, dict) else None
    return ErrorDetails(
        str(message),
        type=_text(type),
        code=_text(error.get("code") or error.get("error_code")),
        other_codes=frozenset(code for code in codes if isinstance(code, str) and code),
        upstream=upstream if isinstance(upstream, str) else "",
        has_retry_delay=any(entry.get("retryDelay") for entry in entries),
    )


def _text(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)


def error_from_reply(
    reply: Reply, *, provider: str, model: str | None, secrets: tuple[str, ...] = ()
) -> errors.AgentError:
    """Map a reply with an error status to an error."""
    try:
        body = parse_json(reply.body)
    except ValueError:
        body = None
    details = read_error_details(body)
    if 300 <= reply.status < 400:
        return errors.ProtocolError(
            f"{provider} answered with a redirect, which is not followed: it would expose the key",
            provider=provider,
            model=model,
            status_code=reply.status,
            request_id=request_id(reply.headers),
            retryable=False,
        )
    if details is None:
        summary = " ".join(re.sub(_MARKUP, " ", redact_body(reply.body, secrets)).split())[:200]
        details = ErrorDetails(summary or f"HTTP status {reply.status} without a message")
    return error_from_details(
        details,
        status=reply.status,
        headers=reply.headers,
        body=body,
        data=reply.body,
        provider=provider,
        model=model,
        secrets=secrets,
    )


def error_from_details(
    details: ErrorDetails,
    *,
    status: int,
    headers: Mapping[str, str],
    provider: str,
    model: str | None,
    body: Any = None,
    data: bytes | None = None,
    secrets: tuple[str, ...] = (),
) -> errors.AgentError:
    """Map error details to an error, from a reply with an error status or inside a successful one."""
    if status < 400:  # some vendors put the status into the code
        effective = int(details.code) if details.code is not None and re.fullmatch(_STATUS, details.code) else 0
    else:
        effective = status
    amazon = headers.get("x-amzn-errortype", "").partition(":")[0]
    error_class = _classify(details, effective, {details.code, details.type, *details.other_codes, amazon})
    code = details.code or details.type or amazon or next(iter(details.other_codes), None)
    return error_class(
        redact_start(details.message, secrets, _MAX_MESSAGE_LENGTH),
        provider=provider,
        model=model,
        status_code=status,
        request_id=request_id(headers),
        code=None if code is None else redact_start(code, secrets, _MAX_CODE_LENGTH),
        retryable=_is_retryable(error_class, effective, headers),
        retry_after=None if error_class is errors.QuotaExceededError else retry_after(headers, body, details.text),
        body=None if data is None else redact_body(data, secrets),
        fix=_suggest_fix(error_class, provider, model),
    )


def _suggest_fix(error_class: type[errors.AgentError], provider: str, model: str | None) -> str | None:
    if error_class is errors.AuthenticationError:
        return f"Check the API key for {provider} and its permissions."
    if error_class is not errors.ModelNotFoundError:
        return None
    similar = [name for name in find_similar_models(model or "", provider) if name != model]
    if similar:
        return f"Did you mean {' or '.join(similar)}?"
    return "Check the name of the model, and base_url; the vendor's console lists the models of your key."


def _classify(details: ErrorDetails, status: int, codes: set[str | None]) -> type[errors.AgentError]:
    text = details.text
    if codes & _QUOTA_CODES or status == 402:
        return errors.QuotaExceededError
    if codes & _OVERLOADED_CODES:
        return errors.OverloadedError
    if status == 429:
        return _classify_429(details, codes, text)
    if status < 500 and re.search(_QUOTA, text) and not codes & _RATE_CODES:
        return errors.QuotaExceededError
    if codes & _CONTEXT_CODES or (re.search(_CONTEXT, text) and not re.search(_NOT_CONTEXT, text)):
        return errors.ContextLengthError
    if codes & _FILTER_CODES or re.search(_FILTER, text):
        return errors.ContentFilterError
    if status in (401, 403) or codes & _KEY_CODES:
        return errors.AuthenticationError
    if codes & _MODEL_CODES or status in (404, 410) or re.search(_MODEL, text):
        return errors.ModelNotFoundError
    if codes & _RATE_CODES:
        return errors.RateLimitError
    if status in (503, 529):
        return errors.OverloadedError
    if status == 413:
        return errors.ContextLengthError
    if 400 <= status < 500 and status not in _RETRYABLE_STATUSES:
        return errors.BadRequestError
    if codes & _REQUEST_CODES:
        return errors.BadRequestError
    return errors.ProviderError


def _classify_429(details: ErrorDetails, codes: set[str | None], text: str) -> type[errors.AgentError]:
    """Distinguish a rate limit from an exhausted quota.

    Codes and retry delays take precedence over the message: messages about rate limits mention quotas and billing, and
    quotas called daily have been seen to recover within a minute.
    """
    if re.search(_ZERO_LIMIT, text):
        return errors.QuotaExceededError
    if details.has_retry_delay or codes & _RATE_CODES:
        return errors.RateLimitError
    return errors.QuotaExceededError if re.search(_QUOTA, text) or re.search(_MONTHLY, text) else errors.RateLimitError


def _is_retryable(error_class: type[errors.AgentError], status: int, headers: Mapping[str, str]) -> bool:
    hint = headers.get("x-should-retry", "").strip().lower()
    if hint in ("true", "false"):
        return hint == "true"
    if error_class in (errors.RateLimitError, errors.OverloadedError):
        return True
    if error_class is errors.ProviderError:
        return status == 0 or status in _RETRYABLE_STATUSES or status >= 500
    return False
