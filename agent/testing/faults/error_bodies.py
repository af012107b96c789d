"""Errors as each API reports them: status, headers and body, or the event that breaks off a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from ... import errors
from ...providers import server_at, server_dialects
from ...providers.server_dialect import Inbound, ServerDialect
from ...types import AgentRequest
from ...wire import Answer, WireRequest
from .fault import JSON

Reason: TypeAlias = Literal[
    "bad-request", "context", "credit", "failing", "filter", "key", "missing", "overloaded", "permission", "rate"
]

_ERRORS: Mapping[Reason, errors.AgentError] = {
    "bad-request": errors.BadRequestError("Invalid type for 'messages[0]'."),
    "context": errors.ContextLengthError("prompt is too long: 210000 tokens > 200000 maximum"),
    "credit": errors.QuotaExceededError("You exceeded your current quota: your credit balance is too low."),
    "failing": errors.ProviderError("The server had an error while processing your request.", status_code=500),
    "filter": errors.ContentFilterError("Output blocked by content filtering policy"),
    "key": errors.AuthenticationError("API key not valid. Please pass a valid API key."),
    "missing": errors.ModelNotFoundError("The model does not exist."),
    "overloaded": errors.OverloadedError("The model is overloaded. Please try again later."),
    "permission": errors.AuthenticationError("The API key does not have permission to use this.", status_code=403),
    "rate": errors.RateLimitError("This request would exceed the rate limit.", retry_after=2.0),
}


def error_answer(request: WireRequest, reason: Reason, status: int | None = None) -> Answer:
    """The answer with which the API that a request was sent to reports an error; `status` replaces its own."""
    error = _ERRORS[reason]
    usual, body = _server(request).encode_error(error)
    headers = {} if error.retry_after is None else {"retry-after": f"{error.retry_after:g}"}
    return Answer([body], status=status or usual, headers={**JSON, **headers})


def plain_error_body(request: WireRequest, status: int, message: str) -> bytes:
    """The body for a status that says enough by itself."""
    return _server(request).encode_error(errors.ProviderError(message, status_code=status))[1]


def error_event(request: WireRequest, reason: Reason) -> bytes:
    """The event that breaks off a stream."""
    inbound = Inbound(AgentRequest(), "", stream=True, settings={"sse": True})
    return _server(request).encoder(inbound).fail(_ERRORS[reason])


def _server(request: WireRequest) -> ServerDialect:
    return server_at(request.url) or server_dialects()[0]
