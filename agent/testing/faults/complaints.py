"""How each API says no: the status, the headers and the body with which a vendor's server refuses a request, and the
event with which it breaks off a stream. One class for each way of writing it down.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic_core import to_json
from typing_extensions import override

from ...wire import Answer, WireRequest
from .fault import JSON

Reason: TypeAlias = Literal[
    "bad-request", "context", "credit", "failing", "filter", "key", "missing", "overloaded", "permission", "rate"
]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A vendor's no."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    def answer(self, status: int | None = None, headers: Mapping[str, str] | None = None) -> Answer:
        """The HTTP answer; `status` and `headers` stand in the place of its own."""
        said = self.headers if headers is None else headers
        return Answer([to_json(self.body)], status=status or self.status, headers={**JSON, **said})


class Complaints(ABC):
    """One API's ways to say no."""

    @abstractmethod
    def refusal(self, reason: Reason) -> Refusal: ...

    @abstractmethod
    def plain(self, status: int, message: str) -> Mapping[str, Any]:
        """The body for a status that says enough by itself."""

    def event(self, reason: Reason) -> bytes:
        """The event that breaks off a stream."""
        return b"data: " + to_json(self.refusal(reason).body) + b"\n\n"


class OpenAiComplaints(Complaints):
    """Chat Completions."""

    _SAID: ClassVar[Mapping[Reason, tuple[int, str, str, str | None]]] = {
        "bad-request": (400, "Invalid type for 'messages[0]'.", "invalid_request_error", "invalid_type"),
        "context": (
            400,
            "This model's maximum context length is 128000 tokens. However, your messages resulted in 130001 tokens.",
            "invalid_request_error",
            "context_length_exceeded",
        ),
        "credit": (429, "You exceeded your current quota.", "insufficient_quota", "insufficient_quota"),
        "failing": (500, "The server had an error while processing your request.", "server_error", None),
        "filter": (400, "The prompt was refused by the filter.", "invalid_request_error", "content_filter"),
        "key": (401, "Incorrect API key provided.", "invalid_request_error", "invalid_api_key"),
        "missing": (404, "The model does not exist.", "invalid_request_error", "model_not_found"),
        "overloaded": (503, "The engine is currently overloaded.", "server_error", "server_overloaded"),
        "permission": (403, "Country, region, or territory not supported.", "request_forbidden", None),
        "rate": (429, "Rate limit reached for requests per min.", "requests", "rate_limit_exceeded"),
    }

    @override
    def refusal(self, reason: Reason) -> Refusal:
        status, message, kind, code = self._SAID[reason]
        body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
        return Refusal(status, body, {"retry-after": "2"} if reason == "rate" else {})

    @override
    def plain(self, status: int, message: str) -> Mapping[str, Any]:
        return {"error": {"message": message, "type": "error", "param": None, "code": None}}


class ResponsesComplaints(OpenAiComplaints):
    """The Responses API: as Chat Completions, but for what breaks off a stream."""

    @override
    def event(self, reason: Reason) -> bytes:
        _, message, kind, code = self._SAID[reason]
        said = {"type": "error", "code": code or kind, "message": message, "param": None, "sequence_number": 99}
        return b"event: error\ndata: " + to_json(said) + b"\n\n"


class AnthropicComplaints(Complaints):
    """The Messages API."""

    _SAID: ClassVar[Mapping[Reason, tuple[int, str, str]]] = {
        "bad-request": (400, "messages.0: all messages must have content", "invalid_request_error"),
        "context": (400, "prompt is too long: 210000 tokens > 200000 maximum", "invalid_request_error"),
        "credit": (400, "Your credit balance is too low to access the API.", "invalid_request_error"),
        "failing": (500, "Internal server error", "api_error"),
        "filter": (400, "Output blocked by content filtering policy", "content_filter"),
        "key": (401, "invalid x-api-key", "authentication_error"),
        "missing": (404, "model: no-such-model", "not_found_error"),
        "overloaded": (529, "Overloaded", "overloaded_error"),
        "permission": (403, "Your API key does not have permission to use this.", "permission_error"),
        "rate": (429, "This request would exceed your rate limit.", "rate_limit_error"),
    }

    @override
    def refusal(self, reason: Reason) -> Refusal:
        status, message, kind = self._SAID[reason]
        body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_refused"}
        return Refusal(status, body, {"retry-after": "2"} if reason == "rate" else {})

    @override
    def plain(self, status: int, message: str) -> Mapping[str, Any]:
        return {"type": "error", "error": {"type": "api_error", "message": message}}

    @override
    def event(self, reason: Reason) -> bytes:
        return b"event: error\n" + super().event(reason)


class GeminiComplaints(Complaints):
    """generateContent."""

    _SAID: ClassVar[Mapping[Reason, tuple[int, str, str]]] = {
        "bad-request": (400, "Invalid JSON payload received.", "INVALID_ARGUMENT"),
        "context": (
            400,
            "The input token count (1200001) exceeds the maximum number of tokens allowed (1048576).",
            "INVALID_ARGUMENT",
        ),
        "credit": (429, "Your prepayment credits are depleted.", "RESOURCE_EXHAUSTED"),
        "failing": (500, "An internal error has occurred.", "INTERNAL"),
        "filter": (400, "The input was flagged.", "INVALID_ARGUMENT"),
        "key": (400, "API key not valid. Please pass a valid API key.", "INVALID_ARGUMENT"),
        "missing": (404, "models/no-such-model is not found for API version v1beta.", "NOT_FOUND"),
        "overloaded": (503, "The model is overloaded. Please try again later.", "UNAVAILABLE"),
        "permission": (403, "The caller does not have permission", "PERMISSION_DENIED"),
        "rate": (429, "Resource has been exhausted (e.g. check quota).", "RESOURCE_EXHAUSTED"),
    }

    @override
    def refusal(self, reason: Reason) -> Refusal:
        status, message, name = self._SAID[reason]
        details: list[dict[str, Any]] = []
        if reason == "rate":
            details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "2s"})
        if reason == "key":
            details.append({"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"})
        error = {"code": status, "message": message, "status": name, "details": details}
        return Refusal(status, {"error": error})

    @override
    def plain(self, status: int, message: str) -> Mapping[str, Any]:
        return {"error": {"code": status, "message": message, "status": "UNKNOWN"}}


_CHAT = OpenAiComplaints()
_BY_PATH: tuple[tuple[str, Complaints], ...] = (
    ("/messages", AnthropicComplaints()),
    ("/responses", ResponsesComplaints()),
    (":generateContent", GeminiComplaints()),
    (":streamGenerateContent", GeminiComplaints()),
)


def complaints_for(request: WireRequest) -> Complaints:
    """The words of the API that a request was sent to; those of Chat Completions where nothing tells."""
    path = urlsplit(request.url).path
    return next((complaints for ending, complaints in _BY_PATH if path.endswith(ending)), _CHAT)
