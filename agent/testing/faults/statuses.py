"""Answers that say no: every status that vendors and gateways use, and their ways to ask for patience."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import formatdate

from ... import errors
from ...wire import Answer
from .bodies import HTML
from .error_bodies import Reason, error_answer, plain_error_body
from .fault import JSON, Exchange, Fault, fault, reset

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
