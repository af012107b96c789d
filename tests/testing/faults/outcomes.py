"""Expected outcome of every fault, written by hand: error class and whether it is retryable.

Two columns, for whole answers and for streams; `None` where a fault cannot happen. `ok` marks what must not be noticed.
Nothing here is worked out by the code that is tested.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent import errors


@dataclass(frozen=True)
class Failure:
    """An error of exactly this class. For a stream that had begun, `cause` is what broke it."""

    kind: type[errors.AgentError]
    retryable: bool
    cause: type[errors.AgentError] | None = None


def interrupt(cause: type[errors.AgentError]) -> Failure:
    """A stream that broke after its first text, which is never retried automatically."""
    return Failure(errors.StreamInterrupted, retryable=False, cause=cause)


ok = "ok"
lost = Failure(errors.ConnectionError, retryable=True)
never_there = Failure(errors.ConnectionError, retryable=False)
late = Failure(errors.TimeoutError, retryable=True)
nonsense = Failure(errors.ProtocolError, retryable=True)
refused_nonsense = Failure(errors.ProtocolError, retryable=False)
pool = Failure(errors.PoolExhaustedError, retryable=False)
failing = Failure(errors.ProviderError, retryable=True)
failing_for_good = Failure(errors.ProviderError, retryable=False)
busy = Failure(errors.OverloadedError, retryable=True)
rate = Failure(errors.RateLimitError, retryable=True)
credit = Failure(errors.QuotaExceededError, retryable=False)
wrong = Failure(errors.BadRequestError, retryable=False)
wrong_but_again = Failure(errors.BadRequestError, retryable=True)
too_long = Failure(errors.ContextLengthError, retryable=False)
filtered = Failure(errors.ContentFilterError, retryable=False)
key = Failure(errors.AuthenticationError, retryable=False)
missing = Failure(errors.ModelNotFoundError, retryable=False)
cut = interrupt(errors.ConnectionError)
spoilt = interrupt(errors.ProtocolError)
stalled = interrupt(errors.TimeoutError)

Expected = Failure | str | None

ROWS: tuple[tuple[Expected, Expected, str], ...] = (
    # The client's own troubles
    (lost, lost, "dns-failure connection-refused tls-handshake-failed write-failed"),
    (late, late, "connect-timeout"),
    (never_there, never_there, "certificate-untrusted proxy-refused"),
    (pool, pool, "pool-exhausted"),
    # Connections that break
    (lost, lost, "reset-before-headers disconnect-before-headers disconnect-in-status-line disconnect-in-headers"),
    (lost, lost, "disconnect-after-continue reset-after-headers disconnect-after-headers cut-after-first-byte"),
    (lost, cut, "cut-in-the-middle cut-before-the-last-byte cut-inside-a-character chunks-unfinished"),
    (lost, cut, "body-shorter-than-announced chunk-longer-than-size chunk-shorter-than-size"),
    (lost, None, "last-chunk-missing"),
    (None, lost, "cut-after-first-event"),
    (None, cut, "cut-inside-an-event cut-before-terminal-event"),
    (None, ok, "reset-after-terminal-event"),
    (nonsense, spoilt, "body-longer-than-announced http-1-0-cut"),
    # Invalid HTTP
    (lost, lost, "bad-status-line another-protocol tls-alert http-2-frames http-0-9 protocol-switch"),
    (lost, lost, "header-too-long too-many-headers header-without-colon header-with-nul conflicting-lengths"),
    (lost, lost, "length-not-a-number length-negative transfer-encoding-unknown"),
    (lost, lost, "chunk-size-not-a-number chunk-size-too-large"),
    (nonsense, spoilt, "gzip-cut"),
    (nonsense, nonsense, "gzip-mislabeled"),
    (refused_nonsense, refused_nonsense, "encoding-unknown encoding-twice"),
    (ok, ok, "gzip-unrequested deflate-unrequested http-1-0 early-hints chunks-with-extensions chunks-of-one-byte"),
    (ok, ok, "headers-uppercase"),
    # Statuses, in the vendors' words
    (rate, rate, "rate-limit"),
    (credit, credit, "quota-exceeded"),
    (busy, busy, "overloaded"),
    (failing, failing, "server-error"),
    (wrong, wrong, "bad-request"),
    (too_long, too_long, "context-length-exceeded"),
    (filtered, filtered, "content-filtered"),
    (key, key, "api-key-invalid permission-denied"),
    (missing, missing, "model-not-found"),
    # Statuses by themselves
    (failing, failing, "status-204 status-206 status-408 status-409 status-425 status-500 status-501 status-502"),
    (failing, failing, "status-504 status-520 status-521 status-522 status-523 status-524 status-599"),
    (wrong, wrong, "status-400 status-405 status-415 status-421 status-422 status-431 status-451"),
    (key, key, "status-401 status-403"),
    (credit, credit, "status-402"),
    (missing, missing, "status-404 status-410"),
    (never_there, never_there, "status-407"),
    (too_long, too_long, "status-413"),
    (rate, rate, "status-429"),
    (busy, busy, "status-503 status-529"),
    (refused_nonsense, refused_nonsense, "redirect-300 redirect-301 redirect-302 redirect-303 redirect-304"),
    (refused_nonsense, refused_nonsense, "redirect-307 redirect-308"),
    # Gateways
    (failing, failing, "bad-gateway-page gateway-timeout-text server-error-null server-error-truncated"),
    (failing, failing, "server-error-nested server-error-invalid"),
    (lost, failing, "server-error-cut"),
    (busy, busy, "unavailable-without-body"),
    (key, key, "forbidden-page"),
    (wrong, wrong, "bad-request-without-body"),
    (rate, rate, "too-many-requests-page"),
    # When to come back
    (rate, rate, "retry-after-seconds retry-after-fraction retry-after-milliseconds retry-after-date"),
    (rate, rate, "retry-after-message retry-after-reset retry-after-negative retry-after-nan"),
    (rate, rate, "retry-after-nonsense retry-after-a-year"),
    (busy, busy, "unavailable-retry-after overloaded-529-retry-after"),
    (failing_for_good, failing_for_good, "should-not-retry"),
    (wrong_but_again, wrong_but_again, "should-retry"),
    # Something else with status 200
    (nonsense, nonsense, "empty-body empty-stream null empty-object empty-list a-number a-string a-boolean"),
    (nonsense, nonsense, "html-page html-page-as-json html-page-as-stream plain-text foreign-json binary"),
    (failing, failing, "error-as-text error-as-list server-error-with-200"),
    (rate, rate, "rate-limit-with-200"),
    (credit, credit, "quota-exceeded-with-200"),
    (None, nonsense, "ndjson-stream json-instead-of-stream events-as-list"),
    (nonsense, None, "stream-instead-of-json"),
    # JSON with something wrong in it
    (nonsense, spoilt, "json-truncated json-with-trailing-text json-twice json-with-single-quotes json-without-quotes"),
    (nonsense, spoilt, "json-with-trailing-comma json-in-utf-16 json-with-nan json-with-infinity"),
    (nonsense, spoilt, "json-with-minus-infinity json-with-control-character"),
    (nonsense, spoilt, "json-with-huge-integer json-nested-70-deep json-nested-200000-deep"),
    (nonsense, spoilt, "json-with-numbers-for-strings json-with-strings-for-containers"),
    (nonsense, None, "json-with-nulls"),
    (ok, ok, "json-with-lone-surrogate json-not-utf-8 unknown-keys content-type-wrong content-type-missing"),
    # Events
    (None, spoilt, "no-terminal-event ends-in-the-middle ends-inside-an-event ends-inside-a-character"),
    (None, spoilt, "terminal-event-unfinished html-in-the-middle event-null event-list event-number event-string"),
    (None, spoilt, "event-invalid-type event-text event-html"),
    (None, nonsense, "ends-after-first-event only-comments only-blank-lines"),
    (None, busy, "overloaded-event-first"),
    (None, rate, "rate-limit-event-first"),
    (None, credit, "quota-event-first"),
    (None, failing, "server-error-event-first"),
    (None, interrupt(errors.OverloadedError), "overloaded-event"),
    (None, interrupt(errors.RateLimitError), "rate-limit-event"),
    (None, interrupt(errors.ProviderError), "server-error-event"),
    (None, ok, "comments bom crlf cr no-space-after-colon ids-and-retry-fields unknown-fields blank-lines"),
    (None, ok, "data-in-several-lines byte-by-byte all-at-once terminal-event-twice"),
    (None, ok, "comments-after-terminal-event events-after-terminal-event garbage-after-terminal-event"),
    # Time
    (late, late, "stall-before-headers stall-in-headers stall-after-headers headers-byte-by-byte body-byte-by-byte"),
    (late, stalled, "stall-in-the-middle"),
    (late, None, "stall-before-last-chunk"),
    (None, late, "comments-forever"),
    (None, stalled, "stall-before-terminal-event stall-with-comments stall-with-blank-lines"),
    (None, stalled, "stall-inside-an-event endless-stream"),
    (None, ok, "stall-after-terminal-event"),
    (ok, ok, "short-delays"),
    # Size
    (refused_nonsense, lost, "length-too-large"),
    (refused_nonsense, refused_nonsense, "gzip-bomb"),
    (refused_nonsense, nonsense, "line-without-end"),
    (refused_nonsense, spoilt, "line-without-end-in-the-middle"),
    (refused_nonsense, failing, "server-error-too-large"),
    (refused_nonsense, None, "body-too-large"),
    (None, nonsense, "event-without-end"),
    (None, refused_nonsense, "comments-without-end empty-comments-without-end blank-lines-without-end"),
    (nonsense, None, "json-with-many-lists"),
    (None, spoilt, "event-with-many-lists"),
    (nonsense, nonsense, "many-chunks"),
)

EXPECTED: dict[str, dict[str, Expected]] = {
    name: {"whole": whole, "stream": stream} for whole, stream, names in ROWS for name in names.split()
}

# Gemini's first event has words in it, and its streams have no end but that of the bytes.
# A stream of Chat Completions is complete with a finish reason and a clean end.
OF_ITS_OWN: dict[tuple[str, ...], Expected] = {
    ("openai-chat", "json-with-numbers-for-strings", "stream"): ok,
    ("openai-responses", "json-with-numbers-for-strings", "whole"): ok,
    ("openai-chat", "no-terminal-event"): ok,
    ("openai-chat", "terminal-event-unfinished"): ok,
    ("gemini", "cut-after-first-event"): cut,
    ("gemini", "ends-after-first-event"): spoilt,
    ("gemini", "reset-after-terminal-event"): cut,
    ("gemini", "stall-after-terminal-event"): stalled,
    ("gemini", "garbage-after-terminal-event"): spoilt,
}

RETRY_AFTER: dict[str, float | None] = {
    "rate-limit": 2.0,
    "rate-limit-with-200": 2.0,
    "retry-after-seconds": 7.0,
    "retry-after-fraction": 1.5,
    "retry-after-milliseconds": 0.25,
    "retry-after-date": 30.0,
    "retry-after-message": 36.4,
    "retry-after-reset": 360.0,
    "retry-after-negative": None,
    "retry-after-nan": None,
    "retry-after-nonsense": None,
    "retry-after-a-year": 86400.0,
    "unavailable-retry-after": 3.0,
    "overloaded-529-retry-after": 3.0,
    "status-429": None,
    "status-503": None,
}
"""Seconds the vendor asks for, where a fault is about that."""


def find_expected(codec: str, fault: str, form: str) -> Failure | str:
    found = OF_ITS_OWN.get((codec, fault, form)) or OF_ITS_OWN.get((codec, fault)) or EXPECTED[fault][form]
    assert found is not None
    return found
