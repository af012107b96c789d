"""Faults of streams and their events, of timing and of size."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ... import errors
from ...engine.wire import Answer, Piece
from .fault import (
    BOTH,
    FOREVER,
    JSON,
    LAST_CHUNK,
    SSE,
    STREAM,
    WHOLE,
    Exchange,
    Fault,
    RawFault,
    disconnect_error,
    encode_chunks,
    fault,
    stall,
)
from .responses import HTML, ErrorKind, encode_error_event

# Streams without a complete terminal event.


def _end(
    name: str, description: str, select: Callable[[Exchange], Sequence[bytes]], *, replaces: bool = False
) -> Fault:
    """Return a fault that ends a stream regularly after these bytes."""
    return Fault(
        name, description, "events", lambda exchange: exchange.respond(*select(exchange)), STREAM, replaces=replaces
    )


ENDS = (
    _end("no-terminal-event", "All events but the terminal event.", lambda exchange: exchange.events[:-1]),
    _end("ends-in-the-middle", "Half of the events.", lambda exchange: exchange.first_half),
    _end("ends-after-first-event", "The first event.", lambda exchange: exchange.events[:1]),
    _end("ends-inside-an-event", "Half of an event at the end.", lambda exchange: exchange.half_event),
    _end(
        "ends-inside-a-character",
        "The first byte of a two-byte character at the end.",
        lambda exchange: [*exchange.first_half, b'data: {"x": "\xc3'],
    ),
    _end(
        "terminal-event-unfinished",
        "The terminal event without its blank line.",
        lambda exchange: [exchange.body.rstrip(b"\n")],
    ),
    _end("only-comments", "Comments only.", lambda _: [b": hello\n\n", b": still here\n\n"], replaces=True),
    _end("only-blank-lines", "Blank lines only.", lambda _: [b"\n" * 64], replaces=True),
    _end("html-in-the-middle", "Half of the events, then a gateway's page.", lambda x: [*x.first_half, HTML]),
)

# Invalid events.


def _insert(name: str, description: str, data: bytes) -> Fault:
    """Return a fault that inserts an event in the middle."""

    def apply(exchange: Exchange) -> Answer:
        return exchange.respond(*exchange.first_half, b"data: " + data + b"\n\n", *exchange.second_half)

    return Fault(name, f"In the middle, an event with {description}.", "events", apply, STREAM)


INVALID_EVENTS = (
    _insert("event-null", "null", b"null"),
    _insert("event-list", "a list", b"[1, 2]"),
    _insert("event-number", "a number", b"17"),
    _insert("event-string", "a string", b'"hello"'),
    _insert("event-invalid-type", "a number as its type", b'{"type": 7}'),
    _insert("event-text", "plain text", b"please wait"),
    _insert("event-html", "an HTML page", HTML),
)


def _error_event(name: str, kind: ErrorKind, *, first: bool) -> Fault:
    """Return a fault that ends a stream with the vendor's error."""

    def apply(exchange: Exchange) -> Answer:
        error = encode_error_event(exchange.request, kind)
        return exchange.respond(error) if first else exchange.respond(*exchange.first_half, error)

    position = "The first event" if first else "An event in the middle"
    return Fault(name, f"{position} is the vendor's error ({kind}).", "events", apply, STREAM, replaces=first)


ERROR_EVENTS = (
    _error_event("overloaded-event-first", "overloaded", first=True),
    _error_event("rate-limit-event-first", "rate-limit", first=True),
    _error_event("quota-event-first", "quota", first=True),
    _error_event("server-error-event-first", "server-error", first=True),
    _error_event("overloaded-event", "overloaded", first=False),
    _error_event("rate-limit-event", "rate-limit", first=False),
    _error_event("server-error-event", "server-error", first=False),
)

# Unusual but valid streams.


def _harmless(name: str, description: str, change: Callable[[Exchange], Sequence[bytes]]) -> Fault:
    return Fault(
        name, description, "harmless", lambda exchange: exchange.respond(*change(exchange)), STREAM, harmless=STREAM
    )


HARMLESS = (
    _harmless("comments", "Comments between events.", lambda x: [b": ping\n\n" + event for event in x.events]),
    _harmless("bom", "A byte order mark at the start.", lambda exchange: [b"\xef\xbb\xbf" + exchange.body]),
    _harmless("crlf", "Lines that end with CR LF.", lambda exchange: [exchange.body.replace(b"\n", b"\r\n")]),
    _harmless("cr", "Lines that end with CR.", lambda exchange: [exchange.body.replace(b"\n", b"\r")]),
    _harmless(
        "no-space-after-colon",
        "No space after `data:`.",
        lambda exchange: [re.sub(rb"(?m)^(data|event): ", rb"\1:", exchange.body)],
    ),
    _harmless(
        "ids-and-retry-fields",
        "The fields `id` and `retry`.",
        lambda exchange: [b"retry: 3000\n\n", *(b"id: 7\n" + event for event in exchange.events)],
    ),
    _harmless(
        "unknown-fields",
        "Unknown fields of server-sent events.",
        lambda exchange: [b"colour: red\nnothing\n" + event for event in exchange.events],
    ),
    _harmless(
        "blank-lines",
        "Additional blank lines.",
        lambda exchange: [b"\n\n", *(event + b"\n\n\n" for event in exchange.events)],
    ),
    _harmless(
        "data-in-several-lines",
        "Events with several `data` lines.",
        lambda exchange: [re.sub(rb"(?m)^data: \{", b"data: {\ndata: ", exchange.body)],
    ),
    _harmless("byte-by-byte", "Single bytes.", lambda exchange: [bytes([byte]) for byte in exchange.body]),
    _harmless("all-at-once", "All events in one piece.", lambda exchange: [exchange.body]),
    _harmless("terminal-event-twice", "The terminal event twice.", lambda x: [x.body, x.events[-1]]),
    _harmless("comments-after-terminal-event", "A comment after the end.", lambda x: [x.body, b": bye\n\n"]),
    # Where the end of the bytes is the only end of a stream, these two are not harmless.
    _harmless("events-after-terminal-event", "The first event again, after the end.", lambda x: [x.body, x.events[0]]),
    _harmless("garbage-after-terminal-event", "An HTML page after the end.", lambda exchange: [exchange.body, HTML]),
)

# Timing.

_INTERVAL = 0.02
_MANY = 100_000


def _trickle(data: bytes) -> list[Piece]:
    return [Piece(data, _INTERVAL)] * _MANY


@fault("time", replaces=True, slow=True)
def stall_before_headers(exchange: Exchange) -> Answer:
    """Silence instead of a response."""
    return Answer(after=FOREVER)


@fault("time", replaces=True, slow=True)
def stall_in_headers(exchange: Exchange) -> Answer:
    """Half of the headers, then silence."""
    return RawFault((b"HTTP/1.1 200 OK\r\ncontent-ty", Piece(b"", FOREVER)), received=Answer(after=FOREVER))


@fault("time", slow=True)
def stall_after_headers(exchange: Exchange) -> Answer:
    """The headers, then silence."""
    return stall(exchange.respond())


@fault("time", slow=True)
def stall_in_the_middle(exchange: Exchange) -> Answer:
    """Half of the response, then silence."""
    return stall(exchange.respond(*exchange.first_half))


@fault("time", forms=STREAM, slow=True)
def stall_before_terminal_event(exchange: Exchange) -> Answer:
    """All events but the terminal event, then silence."""
    return stall(exchange.respond(*exchange.events[:-1]))


@fault("time", forms=WHOLE, slow=True)
def stall_before_last_chunk(exchange: Exchange) -> Answer:
    """The whole body, then silence instead of the last chunk."""
    return stall(exchange.respond(exchange.body))


@fault("harmless", forms=STREAM, harmless=STREAM, slow=True)
def stall_after_terminal_event(exchange: Exchange) -> Answer:
    """All events, then silence instead of the last chunk. Harmless only for formats with a terminal event."""
    return stall(exchange.respond(exchange.body))


@fault("time", forms=STREAM, slow=True)
def stall_with_comments(exchange: Exchange) -> Answer:
    """Half of the response, then only comments: the connection is alive, the response is not."""
    return exchange.respond(*exchange.first_half, *_trickle(b": ping\n\n"))


@fault("time", forms=STREAM, replaces=True, slow=True)
def comments_forever(exchange: Exchange) -> Answer:
    """Comments without end."""
    return exchange.respond(*_trickle(b": ping\n\n"))


@fault("time", forms=STREAM, slow=True)
def stall_with_blank_lines(exchange: Exchange) -> Answer:
    """Half of the response, then only blank lines."""
    return exchange.respond(*exchange.first_half, *_trickle(b"\n"))


@fault("time", forms=STREAM, slow=True)
def stall_inside_an_event(exchange: Exchange) -> Answer:
    """Half of the response, then an event that never ends."""
    return exchange.respond(*exchange.first_half, b"data: ", *_trickle(b" "))


@fault("time", replaces=True, slow=True)
def headers_byte_by_byte(exchange: Exchange) -> Answer:
    """Headers that arrive byte by byte and never end."""
    return RawFault((b"HTTP/1.1 200 OK\r\nx-slow: ", *_trickle(b"y")), received=Answer(after=FOREVER))


@fault("time", slow=True)
def body_byte_by_byte(exchange: Exchange) -> Answer:
    """A body that arrives byte by byte, so no idle timeout expires."""
    return exchange.respond(*(Piece(bytes([byte]), _INTERVAL) for byte in exchange.body))


@fault("time", forms=STREAM, slow=True)
def endless_stream(exchange: Exchange) -> Answer:
    """A stream that repeats one event."""
    return exchange.respond(*exchange.first_half, *_trickle(exchange.first_half[-1]))


@fault("harmless", harmless=BOTH)
def short_delays(exchange: Exchange) -> Answer:
    """Short delays before the response and between its pieces."""
    answer = exchange.respond(*(Piece(event, 0.002) for event in exchange.events))
    answer.after = 0.03
    return answer


# Size.


@fault("size", replaces=True, heavy=True)
def line_without_end(exchange: Exchange) -> Answer:
    """64 MB without a line break."""
    return exchange.respond(b"data: ", *[b"x" * 1_048_576] * 64)


@fault("size", heavy=True)
def line_without_end_in_the_middle(exchange: Exchange) -> Answer:
    """Half of the response, then 64 MB without a line break."""
    return exchange.respond(*exchange.first_half, b"data: ", *[b"x" * 1_048_576] * 64)


@fault("size", forms=STREAM, replaces=True, heavy=True)
def event_without_end(exchange: Exchange) -> Answer:
    """One event with 64 MB of short lines."""
    return exchange.respond(*[b"data: x\n" * 8192] * 1024)


@fault("size", forms=STREAM, replaces=True, heavy=True)
def comments_without_end(exchange: Exchange) -> Answer:
    """70 MB of comments."""
    return exchange.respond(*[b": " + b"x" * 500_000 + b"\n\n"] * 140)


@fault("size", forms=STREAM, replaces=True, heavy=True)
def empty_comments_without_end(exchange: Exchange) -> Answer:
    """70 MB of empty comments."""
    return exchange.respond(*[b":\n\n" * 100_000] * 240)


@fault("size", forms=STREAM, replaces=True, heavy=True)
def blank_lines_without_end(exchange: Exchange) -> Answer:
    """70 MB of blank lines."""
    return exchange.respond(*[b"\n" * 500_000] * 140)


@fault("size", forms=WHOLE, replaces=True, heavy=True)
def body_too_large(exchange: Exchange) -> Answer:
    """Valid JSON with 40 MB of text."""
    return exchange.respond(b'{"text": "', *[b"x" * 1_000_000] * 40, b'"}', headers=JSON)


@fault("size", replaces=True)
def length_too_large(exchange: Exchange) -> Answer:
    """The headers announce 99 GB, then the connection is closed."""
    too_large = errors.ProtocolError("the response is too large", retryable=False)
    # The length of a stream is checked as it arrives.
    received = exchange.respond(disconnect_error() if exchange.is_stream else too_large)
    return exchange.respond_raw(headers={"content-length": "99999999999"}, received=received)


@fault("size", forms=WHOLE, replaces=True, heavy=True)
def json_with_many_lists(exchange: Exchange) -> Answer:
    """30 MB of JSON with ten million empty lists."""
    return exchange.respond(b"[[]", *[b",[]" * 100_000] * 100, b"]", headers=JSON)


@fault("size", forms=STREAM, heavy=True)
def event_with_many_lists(exchange: Exchange) -> Answer:
    """Half of the response, then an event of 15 MB with five million empty lists."""
    return exchange.respond(*exchange.first_half, b'data: {"x": [[]', *[b",[]" * 100_000] * 50, b"]}\n\n")


@fault("size", replaces=True, heavy=True)
def many_chunks(exchange: Exchange) -> Answer:
    """A body of 100,000 one-byte chunks that is not JSON."""
    headers = SSE if exchange.is_stream else JSON
    thousand = b"".join(encode_chunks([b"x"] * 1000))
    received = exchange.respond(b"x" * 100_000)
    return exchange.respond_chunked(*[thousand] * 100, LAST_CHUNK, headers=headers, received=received)
