"""Answers that say no: every status that vendors and gateways use, and their ways to ask for patience."""

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
from .fault import BOTH, JSON, SSE, STREAM, WHOLE, Exchange, Fault, Form, Kind, fault, payload_of, reset

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
    inbound = InboundRequest(AgentRequest(), "", stream=True, settings={"sse": True})
    return _server(request).encoder(inbound).fail(_ERRORS[reason])


def _server(request: WireRequest) -> ServerDialect:
    return find_server_dialect(request.url) or server_dialects()[0]


HTML = (
    b"<!DOCTYPE html><html><head><title>Welcome</title></head><body><p>Please accept our terms to use this network."
    b"</p></body></html>"
)

# Something else with status 200.


def _instead(name: str, about: str, body: bytes, content_type: str = "application/json") -> Fault:
    def apply(exchange: Exchange) -> Answer:
        return exchange.saying(*([body] if body else []), headers={"content-type": content_type})

    return Fault(name=name, about=about, kind="body", apply=apply, replaces=True)


INSTEAD = (
    _instead("empty-body", "Nothing, under a head that promises an answer.", b""),
    _instead("empty-stream", "Nothing, under a head that promises events.", b"", "text/event-stream"),
    _instead("null", "The JSON value null.", b"null"),
    _instead("empty-object", "An object without anything in it.", b"{}"),
    _instead("empty-list", "A list without anything in it.", b"[]"),
    _instead("a-number", "A number.", b"42"),
    _instead("a-string", "A string.", b'"hello"'),
    _instead("a-boolean", "The JSON value true.", b"true"),
    _instead("html-page", "A page, such as the one that asks for a login.", HTML, "text/html; charset=utf-8"),
    _instead("html-page-as-json", "A page, labelled as JSON.", HTML),
    _instead("html-page-as-stream", "A page, labelled as a stream of events.", HTML, "text/event-stream"),
    _instead("plain-text", "A sentence.", b"Service is warming up.", "text/plain"),
    _instead("another-shape", "JSON of some other service.", b'{"status": "ok", "items": [1, 2, 3]}'),
    _instead("error-as-text", "An error that is only a text.", b'{"error": "something went wrong"}'),
    _instead("error-as-list", "An error within a list.", b'[{"error": {"code": 500, "message": "broken"}}]'),
    _instead("binary", "Bytes that are no text.", bytes(range(256)), "application/octet-stream"),
)


@fault("body", replaces=True)
def failure_with_200(exchange: Exchange) -> Answer:
    """The vendor's own words for a failure, with the status of a success."""
    return error_answer(exchange.request, "failing", 200)


@fault("body", replaces=True)
def rate_limit_with_200(exchange: Exchange) -> Answer:
    """The vendor's own words for too many requests, with the status of a success."""
    return error_answer(exchange.request, "rate", 200)


@fault("body", replaces=True)
def credit_gone_with_200(exchange: Exchange) -> Answer:
    """The vendor's own words for an empty account, with the status of a success."""
    return error_answer(exchange.request, "credit", 200)


@fault("body", forms=STREAM)
def answer_of_another_api(exchange: Exchange) -> Answer:
    """A stream in a format that nobody speaks."""
    return exchange.saying(
        b'{"delta": "Hello"}\n{"delta": " there"}\n', headers={"content-type": "application/x-ndjson"}
    )


@fault("body", forms=WHOLE)
def stream_instead(exchange: Exchange) -> Answer:
    """A stream of events where one answer was asked for."""
    return exchange.saying(b"data: " + exchange.body + b"\n\ndata: [DONE]\n\n", headers=SSE)


@fault("body", forms=STREAM)
def whole_instead(exchange: Exchange) -> Answer:
    """One JSON value where a stream of events was asked for."""
    return exchange.saying(payload_of(exchange.events[0]), headers=JSON)


@fault("body", forms=STREAM)
def events_as_list(exchange: Exchange) -> Answer:
    """The events as one JSON list, as one vendor sends them that was not asked for server-sent events."""
    payloads = [payload for event in exchange.events if (payload := payload_of(event))[:1] == b"{"]
    return exchange.saying(b"[" + b",\n".join(payloads) + b"]", headers=JSON)


# JSON with something wrong in it: the body of a whole answer, or an event in the middle of a stream.


def _json_fault(name: str, about: str, spoil: Callable[[bytes], bytes], forms: frozenset[Form] = BOTH) -> Fault:
    kind: Kind = "json"

    def apply(exchange: Exchange) -> Answer:
        if not exchange.streamed:
            return exchange.saying(spoil(exchange.body))
        half, (following, *rest) = exchange.first_half, exchange.second_half
        return exchange.saying(*half, b"data: " + spoil(payload_of(following)) + b"\n\n", *rest)

    return Fault(name=name, about=about, kind=kind, apply=apply, forms=forms)


def _with_member(value: bytes) -> Callable[[bytes], bytes]:
    """Adds a member that no API knows: a value that cannot be read spoils everything around it."""
    return lambda good: good.rstrip()[:-1] + b', "x_added": ' + value + b"}"


def _numbers_for_texts(value: Any) -> Any:
    """What kind of thing an object is stays as it was: of an unknown kind, nothing is known to be wrong."""
    if isinstance(value, dict):
        return {
            key: item if key in ("type", "object", "status") else _numbers_for_texts(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_numbers_for_texts(item) for item in value]
    return 7 if isinstance(value, str) else value


def _texts_for_containers(value: dict[str, Any]) -> dict[str, Any]:
    return {key: "text" if isinstance(item, dict | list) else item for key, item in value.items()}


def _rewritten(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    def spoil(good: bytes) -> bytes:
        value = json.loads(good) if good[:1] == b"{" else {}  # some events are no JSON
        return json.dumps(change(value)).encode()

    return spoil


SPOILT = (
    _json_fault("json-truncated", "Half of a JSON value.", lambda good: good[: len(good) // 2]),
    _json_fault("json-with-rest", "JSON, and then something else.", lambda good: good + b" and so on"),
    _json_fault("json-twice", "The same JSON twice.", lambda good: good + good),
    _json_fault("json-with-single-quotes", "JSON as some languages print it.", lambda good: good.replace(b'"', b"'")),
    _json_fault("json-without-quotes", "Keys without quotes.", lambda good: b"{id: 1}"),
    _json_fault("json-with-comma", "A comma too many.", lambda good: good.rstrip()[:-1] + b",}"),
    _json_fault("json-in-utf-16", "JSON in an encoding of two bytes.", lambda good: good.decode().encode("utf-16-be")),
    _json_fault("json-not-utf-8", "A byte that is no character.", _with_member(b'"caf\xe9"')),
    _json_fault("json-with-nan", "A number that is none.", _with_member(b"NaN")),
    _json_fault("json-with-infinity", "A number without end.", _with_member(b"Infinity")),
    _json_fault("json-with-minus-infinity", "The other number without end.", _with_member(b"-Infinity")),
    _json_fault("json-with-lone-surrogate", "Half of a character, escaped.", _with_member(b'"\\ud83d"')),
    _json_fault("json-with-control-character", "A line break within a text.", _with_member(b'"a\x01b"')),
    _json_fault("json-with-huge-integer", "An integer of 5,000 digits.", _with_member(b"9" * 5000)),
    _json_fault("json-nested-70-deep", "A little deeper than is taken.", _with_member(b"[" * 70 + b"1" + b"]" * 70)),
    _json_fault("json-nested-200000-deep", "So deep that parsers fall over.", lambda good: b"[" * 200_000),
    _json_fault("json-with-numbers-for-texts", "Numbers where texts belong.", _rewritten(_numbers_for_texts)),
    _json_fault(
        "json-with-texts-for-lists", "Texts where lists and objects belong.", _rewritten(_texts_for_containers)
    ),
    _json_fault(
        "json-with-nulls", "Null in the place of everything.", _rewritten(lambda good: dict.fromkeys(good)), WHOLE
    ),
)

HARMLESS = (
    Fault(
        name="unknown-members",
        about="Members that no API has had so far.",
        kind="harmless",
        apply=lambda exchange: _everywhere(exchange, _with_member(b'{"a": [1, null]}')),
        harmless=BOTH,
    ),
    Fault(
        name="label-wrong",
        about="The right answer, labelled as something else.",
        kind="harmless",
        apply=lambda exchange: exchange.saying(exchange.body, headers={"content-type": "text/plain"}),
        harmless=BOTH,
    ),
    Fault(
        name="label-missing",
        about="The right answer, not labelled at all.",
        kind="harmless",
        apply=lambda exchange: exchange.saying(exchange.body, headers={"x-nothing": "1"}),
        harmless=BOTH,
    ),
)


def _everywhere(exchange: Exchange, change: Callable[[bytes], bytes]) -> Answer:
    if not exchange.streamed:
        return exchange.saying(change(exchange.body))
    changed = []
    for event in exchange.events:
        payload = payload_of(event)
        changed.append(event.replace(payload, change(payload)) if payload[:1] == b"{" else event)
    return exchange.saying(*changed)


# In the words of each vendor.


def _refusal(name: str, about: str, reason: Reason) -> Fault:
    def apply(exchange: Exchange) -> Answer:
        return error_answer(exchange.request, reason)

    return Fault(name=name, about=about, kind="status", apply=apply, replaces=True)


REFUSALS = (
    _refusal("rate-limit", "Too many requests, in the vendor's words, with a time to wait.", "rate"),
    _refusal(
        "credit-gone", "The account is empty, in the vendor's words. Some use the status of a rate limit.", "credit"
    ),
    _refusal("overloaded", "No capacity, in the vendor's words.", "overloaded"),
    _refusal("server-error", "An error of the server, in the vendor's words.", "failing"),
    _refusal("bad-request", "A request that is wrong, in the vendor's words.", "bad-request"),
    _refusal("context-too-long", "A prompt that is too long, in the vendor's words.", "context"),
    _refusal("content-filtered", "A prompt that the filter refuses, in the vendor's words.", "filter"),
    _refusal("key-refused", "A key that is not valid, in the vendor's words.", "key"),
    _refusal("not-permitted", "A key that may not do this, in the vendor's words.", "permission"),
    _refusal("model-missing", "A model that does not exist, in the vendor's words.", "missing"),
)

# Every status by itself.

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


def _status(status: int, words: str) -> Fault:
    def apply(exchange: Exchange) -> Answer:
        if status == 204:  # has no body, by definition
            return Answer(status=status, headers={"content-length": "0"})
        return Answer([plain_error_body(exchange.request, status, words)], status=status, headers=JSON)

    return Fault(name=f"status-{status}", about=f"{words}.", kind="status", apply=apply, replaces=True)


STATUSES = tuple(_status(status, words) for status, words in _STATUSES.items())


@fault("status", replaces=True)
def status_407(exchange: Exchange) -> Answer:
    """Proxy Authentication Required: it is a proxy that says so, and not the vendor."""
    seen = Answer(failure=errors.ConnectionError("the proxy wants to be told who asks", retryable=False))
    return exchange.raw(status="407 Proxy Authentication Required", headers={"content-length": "0"}, seen=seen)


def _redirect(status: int) -> Fault:
    def apply(exchange: Exchange) -> Answer:
        return Answer(status=status, headers={"location": "http://127.0.0.1:9/elsewhere", "content-length": "0"})

    about = "Go to another address. Who follows takes the key along."
    return Fault(name=f"redirect-{status}", about=about, kind="status", apply=apply, replaces=True)


REDIRECTS = tuple(_redirect(status) for status in (300, 301, 302, 303, 304, 307, 308))

# Without the vendor's words: what a gateway says before the request reaches anybody.


def _gateway(name: str, about: str, status: int, body: bytes, content_type: str) -> Fault:
    def apply(exchange: Exchange) -> Answer:
        headers = {"content-type": content_type}
        return Answer([body] if body else [], status=status, headers=headers)

    return Fault(name=name, about=about, kind="status", apply=apply, replaces=True)


GATEWAYS = (
    _gateway("bad-gateway-page", "502 with a page.", 502, HTML, "text/html"),
    _gateway("unavailable-and-silent", "503 without a body.", 503, b"", "application/json"),
    _gateway("gateway-timeout-text", "504 with a line of text.", 504, b"upstream request timeout", "text/plain"),
    _gateway("server-error-null", "500 with null.", 500, b"null", "application/json"),
    _gateway("server-error-truncated", "500 with half of a JSON value.", 500, b'{"error": {"mess', "application/json"),
    _gateway("server-error-nested", "500 with JSON that is too deep.", 500, b"[" * 100_000, "application/json"),
    _gateway("server-error-odd", "500 with an error of the wrong type.", 500, b'{"error": [[7]]}', "application/json"),
    _gateway("forbidden-page", "403 with a page of a firewall.", 403, HTML, "text/html"),
    _gateway("bad-request-silent", "400 without a body.", 400, b"", "application/json"),
    _gateway("too-many-requests-page", "429 with a page.", 429, HTML, "text/html"),
)


@fault("status", replaces=True)
def server_error_cut(exchange: Exchange) -> Answer:
    """500, and a reset within its body."""
    return Answer([b'{"error": {"message": "the ', reset()], status=500, headers=JSON)


@fault("size", replaces=True, heavy=True)
def server_error_endless(exchange: Exchange) -> Answer:
    """500, and 40 MB of explanation."""
    return Answer([b"x" * 1_000_000] * 40, status=500, headers={"content-type": "text/plain"})


# When to come back.

_AT = 1_800_000_000
"""Some moment; the server's own clock says so, too."""


def _patience(
    name: str, about: str, headers: Mapping[str, str], message: str = "Slow down.", status: int = 429
) -> Fault:
    def apply(exchange: Exchange) -> Answer:
        body = plain_error_body(exchange.request, status, message)
        return Answer([body], status=status, headers={**JSON, **headers})

    return Fault(name=name, about=about, kind="status", apply=apply, replaces=True)


PATIENCE = (
    _patience("retry-after-seconds", "Retry-After in seconds.", {"retry-after": "7"}),
    _patience("retry-after-fraction", "Retry-After with a fraction.", {"retry-after": "1.5"}),
    _patience("retry-after-milliseconds", "In milliseconds.", {"retry-after-ms": "250", "retry-after": "1"}),
    _patience(
        "retry-after-date",
        "Retry-After as a date, on the server's own clock.",
        {"retry-after": formatdate(_AT + 30, usegmt=True), "date": formatdate(_AT, usegmt=True)},
    ),
    _patience("retry-after-message", "Said in the message only.", {}, "Please retry in 36.4s."),
    _patience(
        "retry-after-reset",
        "Said by the limit that is used up.",
        {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"},
    ),
    _patience("retry-after-negative", "Below zero, and so not believed.", {"retry-after": "-5"}),
    _patience("retry-after-nan", "No number, and so not believed.", {"retry-after": "NaN"}),
    _patience("retry-after-nonsense", "A word, and so not believed.", {"retry-after": "soon"}),
    _patience("retry-after-a-year", "A year.", {"retry-after": "31536000"}),
    _patience("unavailable-retry-after", "503 with Retry-After.", {"retry-after": "3"}, status=503),
    _patience("overloaded-529-retry-after", "529 with Retry-After.", {"retry-after": "3"}, status=529),
    _patience("should-not-retry", "500, and the vendor says not to retry.", {"x-should-retry": "false"}, status=500),
    _patience("should-retry", "400, and the vendor says to retry.", {"x-should-retry": "true"}, status=400),
)
