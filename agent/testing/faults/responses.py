"""Faults of status codes, error bodies, bodies of the wrong type, malformed JSON and retry hints."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from email.utils import formatdate
from typing import Any, Literal, TypeAlias

from ... import errors
from ...engine.wire import Answer, WireRequest
from ...providers import find_server_dialect, server_dialects
from ...providers.server_dialect import InboundRequest, ServerDialect
from ...types import AgentRequest
from .fault import BOTH, JSON, SSE, STREAM, WHOLE, Fault, FaultContext, Form, fault, read_event_data, reset_error

ErrorKind: TypeAlias = Literal[
    "api-key", "bad-request", "content-filter", "context-length", "model", "overloaded", "permission", "quota",
    "rate-limit", "server-error",
]  # fmt: skip

_ERRORS: Mapping[ErrorKind, errors.AgentError] = {
    "api-key": errors.AuthenticationError("API key not valid. Please pass a valid API key."),
    "bad-request": errors.BadRequestError("Invalid type for 'messages[0]'."),
    "content-filter": errors.ContentFilterError("Output blocked by content filtering policy"),
    "context-length": errors.ContextLengthError("prompt is too long: 210000 tokens > 200000 maximum"),
    "model": errors.ModelNotFoundError("The model does not exist."),
    "overloaded": errors.OverloadedError("The model is overloaded. Please try again later."),
    "permission": errors.AuthenticationError("The API key does not have permission to use this.", status_code=403),
    "quota": errors.QuotaExceededError("You exceeded your current quota: your credit balance is too low."),
    "rate-limit": errors.RateLimitError("This request would exceed the rate limit.", retry_after=2.0),
    "server-error": errors.ProviderError("The server had an error while processing your request.", status_code=500),
}


def _encode_error(request: WireRequest, kind: ErrorKind, status: int | None = None) -> Answer:
    """Return an error in the wire format of the request; `status` replaces the vendor's."""
    error = _ERRORS[kind]
    vendor_status, body = _server_dialect(request).encode_error(error)
    headers = {} if error.retry_after is None else {"retry-after": f"{error.retry_after:g}"}
    return Answer([body], status=status or vendor_status, headers={**JSON, **headers})


def _encode_status(request: WireRequest, status: int, message: str, headers: Mapping[str, str]) -> Answer:
    body = _server_dialect(request).encode_error(errors.ProviderError(message, status_code=status))[1]
    return Answer([body], status=status, headers={**JSON, **headers})


def encode_error_event(request: WireRequest, kind: ErrorKind) -> bytes:
    inbound = InboundRequest(AgentRequest(), "", stream=True, settings={"sse": True})
    return _server_dialect(request).encoder(inbound).fail(_ERRORS[kind])


def _server_dialect(request: WireRequest) -> ServerDialect:
    return find_server_dialect(request.url) or server_dialects()[0]


HTML = (
    b"<!DOCTYPE html><html><head><title>Welcome</title></head><body><p>Please accept our terms to use this network."
    b"</p></body></html>"
)
_JSON, _STREAM, _HTML, _TEXT = "application/json", "text/event-stream", "text/html", "text/plain"

# Status 200 with another body.


def _body(name: str, description: str, body: bytes, content_type: str = _JSON) -> Fault:
    def apply(context: FaultContext) -> Answer:
        return context.respond(*([body] if body else []), headers={"content-type": content_type})

    return Fault(name, description, "body", apply, replaces=True)


def _error_with_200(name: str, kind: ErrorKind) -> Fault:
    description = f"The vendor's error ({kind}) with status 200."
    return Fault(name, description, "body", lambda context: _encode_error(context.request, kind, 200), replaces=True)


BODIES = (
    _body("empty-body", "An empty body, declared as JSON.", b""),
    _body("empty-stream", "An empty body, declared as a stream.", b"", _STREAM),
    _body("null", "The JSON value null.", b"null"),
    _body("empty-object", "An empty JSON object.", b"{}"),
    _body("empty-list", "An empty JSON list.", b"[]"),
    _body("a-number", "A JSON number.", b"42"),
    _body("a-string", "A JSON string.", b'"hello"'),
    _body("a-boolean", "The JSON value true.", b"true"),
    _body("html-page", "An HTML page, such as a login form.", HTML, "text/html; charset=utf-8"),
    _body("html-page-as-json", "An HTML page, declared as JSON.", HTML),
    _body("html-page-as-stream", "An HTML page, declared as a stream.", HTML, _STREAM),
    _body("plain-text", "A sentence.", b"Service is warming up.", _TEXT),
    _body("foreign-json", "The JSON of another service.", b'{"status": "ok", "items": [1, 2, 3]}'),
    _body("error-as-text", "An error that is a string.", b'{"error": "something went wrong"}'),
    _body("error-as-list", "An error in a list.", b'[{"error": {"code": 500, "message": "broken"}}]'),
    _body("binary", "Bytes that are not text.", bytes(range(256)), "application/octet-stream"),
    _error_with_200("server-error-with-200", "server-error"),
    _error_with_200("rate-limit-with-200", "rate-limit"),
    _error_with_200("quota-exceeded-with-200", "quota"),
)


@fault("body", forms=STREAM)
def ndjson_stream(context: FaultContext) -> Answer:
    """A stream of JSON lines instead of server-sent events."""
    lines = b'{"delta": "Hello"}\n{"delta": " there"}\n'
    return context.respond(lines, headers={"content-type": "application/x-ndjson"})


@fault("body", forms=WHOLE)
def stream_instead_of_json(context: FaultContext) -> Answer:
    """A stream that was not requested."""
    return context.respond(b"data: " + context.body + b"\n\ndata: [DONE]\n\n", headers=SSE)


@fault("body", forms=STREAM)
def json_instead_of_stream(context: FaultContext) -> Answer:
    """One JSON value instead of a stream."""
    return context.respond(read_event_data(context.events[0]), headers=JSON)


@fault("body", forms=STREAM)
def events_as_list(context: FaultContext) -> Answer:
    """A JSON list of events, as Gemini sends without `alt=sse`."""
    payloads = [payload for event in context.events if (payload := read_event_data(event))[:1] == b"{"]
    return context.respond(b"[" + b",\n".join(payloads) + b"]", headers=JSON)


# Malformed or unexpected JSON, in a whole body or in an event in the middle of a stream.

Change: TypeAlias = Callable[[bytes], bytes]


def _json(
    name: str,
    description: str,
    change: Change,
    forms: frozenset[Form] = BOTH,
    *,
    harmless: frozenset[Form] = frozenset(),
) -> Fault:
    def apply(context: FaultContext) -> Answer:
        if not context.is_stream:
            return context.respond(change(context.body))
        half, (following, *rest) = context.first_half, context.second_half
        return context.respond(*half, b"data: " + change(read_event_data(following)) + b"\n\n", *rest)

    return Fault(name, description, "json", apply, forms, harmless)


def _add_key(value: bytes) -> Change:
    """Add an unknown key. A value that cannot be parsed invalidates the whole body."""
    return lambda body: body.rstrip()[:-1] + b', "x_added": ' + value + b"}"


def _map_object(change: Callable[[dict[str, Any]], Any]) -> Change:
    def apply(body: bytes) -> bytes:
        value = json.loads(body) if body[:1] == b"{" else {}  # some events are not JSON
        return json.dumps(change(value)).encode()

    return apply


def _strings_to_numbers(value: Any) -> Any:
    """Replace strings by numbers, except type names: decoders skip events of unknown types."""
    if isinstance(value, dict):
        return {
            key: item if key in ("type", "object", "status") else _strings_to_numbers(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_strings_to_numbers(item) for item in value]
    return 7 if isinstance(value, str) else value


def _containers_to_strings(value: dict[str, Any]) -> dict[str, Any]:
    return {key: "text" if isinstance(item, dict | list) else item for key, item in value.items()}


MALFORMED_JSON = (
    _json("json-truncated", "Half of a JSON value.", lambda body: body[: len(body) // 2]),
    _json("json-with-trailing-text", "JSON followed by text.", lambda body: body + b" and so on"),
    _json("json-twice", "The same JSON twice.", lambda body: body + body),
    _json("json-with-single-quotes", "Single quotes.", lambda body: body.replace(b'"', b"'")),
    _json("json-without-quotes", "Keys without quotes.", lambda body: b"{id: 1}"),
    _json("json-with-trailing-comma", "A trailing comma.", lambda body: body.rstrip()[:-1] + b",}"),
    _json("json-in-utf-16", "JSON in UTF-16.", lambda body: body.decode().encode("utf-16-be")),
    _json("json-not-utf-8", "A byte that is not UTF-8.", _add_key(b'"caf\xe9"'), harmless=BOTH),
    _json("json-with-nan", "The number NaN.", _add_key(b"NaN")),
    _json("json-with-infinity", "The number Infinity.", _add_key(b"Infinity")),
    _json("json-with-minus-infinity", "The number -Infinity.", _add_key(b"-Infinity")),
    _json("json-with-lone-surrogate", "An escaped lone surrogate.", _add_key(b'"\\ud83d"'), harmless=BOTH),
    _json("json-with-control-character", "A control character in a string.", _add_key(b'"a\x01b"')),
    _json("json-with-huge-integer", "An integer of 5,000 digits.", _add_key(b"9" * 5000)),
    _json("json-nested-70-deep", "Slightly too many levels.", _add_key(b"[" * 70 + b"1" + b"]" * 70)),
    _json("json-nested-200000-deep", "200,000 levels.", lambda body: b"[" * 200_000),
    _json("json-with-numbers-for-strings", "Numbers instead of strings.", _map_object(_strings_to_numbers)),
    _json("json-with-strings-for-containers", "Strings for lists and objects.", _map_object(_containers_to_strings)),
    _json("json-with-nulls", "Null for every value.", _map_object(lambda value: dict.fromkeys(value)), WHOLE),
)


@fault("harmless", harmless=BOTH)
def unknown_keys(context: FaultContext) -> Answer:
    """Unknown keys in every JSON value."""
    change = _add_key(b'{"a": [1, null]}')
    if not context.is_stream:
        return context.respond(change(context.body))
    events = []
    for event in context.events:
        payload = read_event_data(event)
        events.append(event.replace(payload, change(payload)) if payload[:1] == b"{" else event)
    return context.respond(*events)


@fault("harmless", harmless=BOTH)
def content_type_wrong(context: FaultContext) -> Answer:
    """A valid body with the wrong content type."""
    return context.respond(context.body, headers={"content-type": _TEXT})


@fault("harmless", harmless=BOTH)
def content_type_missing(context: FaultContext) -> Answer:
    """A valid body without a content type."""
    return context.respond(context.body, headers={"x-nothing": "1"})


# Errors in the vendor's format.


def _vendor_error(name: str, kind: ErrorKind) -> Fault:
    description = f"The vendor's error ({kind})."
    return Fault(name, description, "status", lambda context: _encode_error(context.request, kind), replaces=True)


VENDOR_ERRORS = (
    _vendor_error("rate-limit", "rate-limit"),
    _vendor_error("quota-exceeded", "quota"),
    _vendor_error("overloaded", "overloaded"),
    _vendor_error("server-error", "server-error"),
    _vendor_error("bad-request", "bad-request"),
    _vendor_error("context-length-exceeded", "context-length"),
    _vendor_error("content-filtered", "content-filter"),
    _vendor_error("api-key-invalid", "api-key"),
    _vendor_error("permission-denied", "permission"),
    _vendor_error("model-not-found", "model"),
)

# Status codes.

_STATUSES: Mapping[int, str] = {
    204: "No Content",
    206: "Partial Content",
    400: "Bad Request",
    401: "Unauthorized",
    402: "Payment Required",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    410: "Gone",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    421: "Misdirected Request",
    422: "Unprocessable Content",
    425: "Too Early",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    451: "Unavailable For Legal Reasons",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    520: "Web Server Returned an Unknown Error",
    521: "Web Server Is Down",
    522: "Connection Timed Out",
    523: "Origin Is Unreachable",
    524: "A Timeout Occurred",
    529: "Site Is Overloaded",
    599: "Network Connect Timeout",
}


def _status(status: int, reason: str) -> Fault:
    def apply(context: FaultContext) -> Answer:
        if status == 204:  # never has a body
            return Answer(status=status, headers={"content-length": "0"})
        return _encode_status(context.request, status, reason, {})

    return Fault(f"status-{status}", f"{reason}.", "status", apply, replaces=True)


def _redirect(status: int) -> Fault:
    description = "A redirect to another address. A client that follows it leaks the key."
    headers = {"location": "http://127.0.0.1:9/elsewhere", "content-length": "0"}
    return Fault(
        f"redirect-{status}", description, "status", lambda _: Answer(status=status, headers=headers), replaces=True
    )


STATUSES = tuple(_status(status, reason) for status, reason in _STATUSES.items())
REDIRECTS = tuple(_redirect(status) for status in (300, 301, 302, 303, 304, 307, 308))


@fault("status", replaces=True)
def status_407(context: FaultContext) -> Answer:
    """Proxy Authentication Required: the status of a proxy, not of the vendor."""
    received = Answer(failure=errors.ConnectionError("proxy authentication required (407)", retryable=False))
    status, headers = "407 Proxy Authentication Required", {"content-length": "0"}
    return context.respond_raw(status=status, headers=headers, received=received)


# Errors of gateways in front of the vendor.


def _gateway(name: str, status: int, content: str, body: bytes, content_type: str = _JSON) -> Fault:
    answer = Answer([body] if body else [], status=status, headers={"content-type": content_type})
    return Fault(name, f"{status} with {content}.", "status", lambda _: answer, replaces=True)


GATEWAYS = (
    _gateway("bad-gateway-page", 502, "an HTML page", HTML, _HTML),
    _gateway("unavailable-without-body", 503, "an empty body", b""),
    _gateway("gateway-timeout-text", 504, "a line of text", b"upstream request timeout", _TEXT),
    _gateway("server-error-null", 500, "null", b"null"),
    _gateway("server-error-truncated", 500, "half of a JSON value", b'{"error": {"mess'),
    _gateway("server-error-nested", 500, "too many levels of JSON", b"[" * 100_000),
    _gateway("server-error-invalid", 500, "an error of the wrong type", b'{"error": [[7]]}'),
    _gateway("forbidden-page", 403, "the page of a firewall", HTML, _HTML),
    _gateway("bad-request-without-body", 400, "an empty body", b""),
    _gateway("too-many-requests-page", 429, "an HTML page", HTML, _HTML),
)


@fault("status", replaces=True)
def server_error_cut(context: FaultContext) -> Answer:
    """500 with a reset within the body."""
    return Answer([b'{"error": {"message": "the ', reset_error()], status=500, headers=JSON)


@fault("size", replaces=True, heavy=True)
def server_error_too_large(context: FaultContext) -> Answer:
    """500 with 40 MB of text."""
    return Answer([b"x" * 1_000_000] * 40, status=500, headers={"content-type": _TEXT})


# Retry hints.

_DATE = 1_800_000_000
"""The server's clock."""


def _retry_hint(
    name: str, description: str, headers: Mapping[str, str], message: str = "Slow down.", status: int = 429
) -> Fault:
    def apply(context: FaultContext) -> Answer:
        return _encode_status(context.request, status, message, headers)

    return Fault(name, description, "status", apply, replaces=True)


RETRY_HINTS = (
    _retry_hint("retry-after-seconds", "Retry-After in seconds.", {"retry-after": "7"}),
    _retry_hint("retry-after-fraction", "Retry-After with a fraction.", {"retry-after": "1.5"}),
    _retry_hint("retry-after-milliseconds", "Retry-After-Ms.", {"retry-after-ms": "250", "retry-after": "1"}),
    _retry_hint(
        "retry-after-date",
        "Retry-After as a date, relative to the server's Date.",
        {"retry-after": formatdate(_DATE + 30, usegmt=True), "date": formatdate(_DATE, usegmt=True)},
    ),
    _retry_hint("retry-after-message", "A delay in the message only.", {}, "Please retry in 36.4s."),
    _retry_hint(
        "retry-after-reset",
        "The reset time of an exhausted limit.",
        {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"},
    ),
    _retry_hint("retry-after-negative", "A negative Retry-After, which is ignored.", {"retry-after": "-5"}),
    _retry_hint("retry-after-nan", "Retry-After: NaN, which is ignored.", {"retry-after": "NaN"}),
    _retry_hint("retry-after-nonsense", "Retry-After: soon, which is ignored.", {"retry-after": "soon"}),
    _retry_hint("retry-after-a-year", "Retry-After of a year.", {"retry-after": "31536000"}),
    _retry_hint("unavailable-retry-after", "503 with Retry-After.", {"retry-after": "3"}, status=503),
    _retry_hint("overloaded-529-retry-after", "529 with Retry-After.", {"retry-after": "3"}, status=529),
    _retry_hint("should-not-retry", "500 with X-Should-Retry: false.", {"x-should-retry": "false"}, status=500),
    _retry_hint("should-retry", "400 with X-Should-Retry: true.", {"x-should-retry": "true"}, status=400),
)
