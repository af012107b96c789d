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
    Fault,
    FaultContext,
    RawFault,
    disconnect_error,
    encode_chunks,
    fault,
    stall,
)
from .responses import HTML, ErrorKind, encode_error_event

# Streams without a complete terminal event.


def _end(
    name: str, description: str, select: Callable[[FaultContext], Sequence[bytes]], *, replaces: bool = False
) -> Fault:
    """Return a fault that ends a stream regularly after these bytes."""
    return Fault(
        name, description, "events", lambda context: context.respond(*select(context)), STREAM, replaces=replaces
    )


ENDS = (
    _end("no-terminal-event", "All events but the terminal event.", lambda context: context.events[:-1]),
    _end("ends-in-the-middle", "Half of the events.", lambda context: context.first_half),
    _end("ends-after-first-event", "The first event.", lambda context: context.events[:1]),
    _end("ends-inside-an-event", "Half of an event at the end.", lambda context: context.half_event),
    _end(
        "ends-inside-a-character",
        "The first byte of a two-byte character at the end.",
        lambda context: [*context.first_half, b'data: {"x": "\xc3'],
    ),
    _end(
        "terminal-event-unfinished",
        "The terminal event without its blank line.",
        lambda context: [context.body.rstrip(b"\n")],
    ),
    _end("only-comments", "Comments only.", lambda _: [b": hello\n\n", b": still here\n\n"], replaces=True),
    _end("only-blank-lines", "Blank lines only.", lambda _: [b"\n" * 64], replaces=True),
    _end("html-in-the-middle", "Half of the events, then a gateway's page.", lambda x: [*x.first_half, HTML]),
)

# Invalid events.


def _insert(name: str, description: str, data: bytes) -> Fault:
    """Return a fault that inserts an event in the middle."""

    def apply(context: FaultContext) -> Answer:
        return context.respond(*context.first_half, b"data: " + data + b"\n\n", *context.second_half)

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

    def apply(context: FaultContext) -> Answer:
        error = encode_error_event(context.request, kind)
        return context.respond(error) if first else context.respond(*context.first_half, error)

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


def _harmless(name: str, description: str, change: Callable[[FaultContext], Sequence[bytes]]) -> Fault:
    return Fault(
        name, description, "harmless", lambda context: context.respond(*change(context)), STREAM, harmless=STREAM
    )


HARMLESS = (
    _harmless("comments", "Comments between events.", lambda x: [b": ping\n\n" + event for event in x.events]),
    _harmless("bom", "A byte order mark at the start.", lambda context: [b"\xef\xbb\xbf" + context.body]),
    _harmless("crlf", "Lines that end with CR LF.", lambda context: [context.body.replace(b"\n", b"\r\n")]),
    _harmless("cr", "Lines that end with CR.", lambda context: [context.body.replace(b"\n", b"\r")]),
    _harmless(
        "no-space-after-colon",
        "No space after `data:`.",
        lambda context: [re.sub(rb"(?m)^(data|event): ", rb"\1:", context.body)],
    ),
    _harmless(
        "ids-and-retry-fields",
        "The fields `id` and `retry`.",
        lambda context: [b"retry: 3000\n\n", *(b"id: 7\n" + event for event in context.events)],
    ),
    _harmless(
        "unknown-fields",
        "Unknown fields of server-sent events.",
        lambda context: [b"colour: red\nnothing\n" + event for event in context.events],
    ),
    _harmless(
        "blank-lines",
        "Additional blank lines.",
        lambda context: [b"\n\n", *(event + b"\n\n\n" for event in context.events)],
    ),
    _harmless(
        "data-in-several-lines",
        "Events with several `data` lines.",
        lambda context: [re.sub(rb"(?m)^data: \{", b"data: {\ndata: ", context.body)],
    ),
    _harmless("byte-by-byte", "Single bytes.", lambda context: [bytes([byte]) for byte in context.body]),
    _harmless("all-at-once", "All events in one piece.", lambda context: [context.body]),
    _harmless("terminal-event-twice", "The terminal event twice.", lambda x: [x.body, x.events[-1]]),
    _harmless("comments-after-terminal-event", "A comment after the end.", lambda x: [x.body, b": bye\n\n"]),
    # Where the end of the bytes is the only end of a stream, these two are not harmless.
    _harmless("events-after-terminal-event", "The first event again, after the end.", lambda x: [x.body, x.events[0]]),
    _harmless("garbage-after-terminal-event", "An HTML page after the end.", lambda context: [context.body, HTML]),
)

# Timing.

_INTERVAL = 0.02
_MANY = 100_000


def _trickle(data: bytes) -> list[Piece]:
    return [Piece(data, _INTERVAL)] * _MANY


@fault("time", replaces=True, slow=True)
def stall_before_headers(context: FaultContext) -> Answer:
    """Silence instead of a response."""
    return Answer(after=FOREVER)


@fault("time", replaces=True, slow=True)
def stall_in_headers(context: FaultContext) -> Answer:
    """Half of the headers, then silence."""
    return RawFault((b"HTTP/1.1 200 OK\r\ncontent-ty", Piece(b"", FOREVER)), received=Answer(after=FOREVER))


@fault("time", slow=True)
def stall_after_headers(context: FaultContext) -> Answer:
    """The headers, then silence."""
    return stall(context.respond())


@fault("time", slow=True)
def stall_in_the_middle(context: FaultContext) -> Answer:
    """Half of the response, then silence."""
    return stall(context.respond(*context.first_half))


@fault("time", forms=STREAM, slow=True)
def stall_before_terminal_event(context: FaultContext) -> Answer:
    """All events but the terminal event, then silence."""
    return stall(context.respond(*context.events[:-1]))


@fault("time", forms=WHOLE, slow=True)
def stall_before_last_chunk(context: FaultContext) -> Answer:
    """The whole body, then silence instead of the last chunk."""
    return stall(context.respond(context.body))


@fault("harmless", forms=STREAM, harmless=STREAM, slow=True)
def stall_after_terminal_event(context: FaultContext) -> Answer:
    """All events, then silence instead of the last chunk. Harmless only for formats with a terminal event."""
    return stall(context.respond(context.body))


@fault("time", forms=STREAM, slow=True)
def stall_with_comments(context: FaultContext) -> Answer:
    """Half of the response, then only comments: the connection is alive, the response is not."""
    return context.respond(*context.first_half, *_trickle(b": ping\n\n"))


@fault("time", forms=STREAM, replaces=True, slow=True)
def comments_forever(context: FaultContext) -> Answer:
    """Comments without end."""
    return context.respond(*_trickle(b": ping\n\n"))


@fault("time", forms=STREAM, slow=True)
def stall_with_blank_lines(context: FaultContext) -> Answer:
    """Half of the response, then only blank lines."""
    return context.respond(*context.first_half, *_trickle(b"\n"))


@fault("time", forms=STREAM, slow=True)
def stall_inside_an_event(context: FaultContext) -> Answer:
    """Half of the response, then an event that never ends."""
    return context.respond(*context.first_half, b"data: ", *_trickle(b" "))


@fault("time", replaces=True, slow=True)
def headers_byte_by_byte(context: FaultContext) -> Answer:
    """Headers that arrive byte by byte and never end."""
    return RawFault((b"HTTP/1.1 200 OK\r\nx-slow: ", *_trickle(b"y")), received=Answer(after=FOREVER))


@fault("time", slow=True)
def body_byte_by_byte(context: FaultContext) -> Answer:
    """A body that arrives byte by byte, so no idle timeout expires."""
    return context.respond(*(Piece(bytes([byte]), _INTERVAL) for byte in context.body))


@fault("time", forms=STREAM, slow=True)
def endless_stream(context: FaultContext) -> Answer:
    """A stream that repeats one event."""
    return context.respond(*context.first_half, *_trickle(context.first_half[-1]))


@fault("harmless", harmless=BOTH)
def short_delays(context: FaultContext) -> Answer:
    """Short delays before the response and between its pieces."""
    answer = context.respond(*(Piece(event, 0.002) for event in context.events))
    answer.after = 0.03
    return answer


# Size.


@fault("size", replaces=True, heavy=True)
def line_without_end(context: FaultContext) -> Answer:
    """64 MB without a line break."""
    return context.respond(b"data: ", *[b"x" * 1_048_576] * 64)


@fault("size", heavy=True)
def line_without_end_in_the_middle(context: FaultContext) -> Answer:
    """Half of the response, then 64 MB without a line break."""
    return context.respond(*context.first_half, b"data: ", *[b"x" * 1_048_576] * 64)


@fault("size", forms=STREAM, replaces=True, heavy=True)
def event_without_end(context: FaultContext) -> Answer:
    """One event with 64 MB of short lines."""
    return context.respond(*[b"data: x\n" * 8192] * 1024)


@fault("size", forms=STREAM, replaces=True, heavy=True)
def comments_without_end(context: FaultContext) -> Answer:
    """70 MB of comments."""
    return context.respond(*[b": " + b"x" * 500_000 + b"\n\n"] * 140)


@fault("size", forms=STREAM, replaces=True, heavy=True)
def empty_comments_without_end(context: FaultContext) -> Answer:
    """70 MB of empty comments."""
    return context.respond(*[b":\n\n" * 100_000] * 240)


@fault("size", forms=STREAM, replaces=True, heavy=True)
def blank_lines_without_end(context: FaultContext) -> Answer:
    """70 MB of blank lines."""
    return context.respond(*[b"\n" * 500_000] * 140)


@fault("size", forms=WHOLE, replaces=True, heavy=True)
def body_too_large(context: FaultContext) -> Answer:
    """Valid JSON with 40 MB of text."""
    return context.respond(b'{"text": "', *[b"x" * 1_000_000] * 40, b'"}', headers=JSON)


@fault("size", replaces=True)
def length_too_large(context: FaultContext) -> Answer:
    """The headers announce 99 GB, then the connection is closed."""
    too_large = errors.ProtocolError("the response is too large", retryable=False)
    # The length of a stream is checked as it arrives.
    received = context.respond(disconnect_error() if context.is_stream else too_large)
    return context.respond_raw(headers={"content-length": "99999999999"}, received=received)


@fault("size", forms=WHOLE, replaces=True, heavy=True)
def json_with_many_lists(context: FaultContext) -> Answer:
    """30 MB of JSON with ten million empty lists."""
    return context.respond(b"[[]", *[b",[]" * 100_000] * 100, b"]", headers=JSON)


@fault("size", forms=STREAM, heavy=True)
def event_with_many_lists(context: FaultContext) -> Answer:
    """Half of the response, then an event of 15 MB with five million empty lists."""
    return context.respond(*context.first_half, b'data: {"x": [[]', *[b",[]" * 100_000] * 50, b"]}\n\n")


@fault("size", replaces=True, heavy=True)
def many_chunks(context: FaultContext) -> Answer:
    """A body of 100,000 one-byte chunks that is not JSON."""
    headers = SSE if context.is_stream else JSON
    thousand = b"".join(encode_chunks([b"x"] * 1000))
    received = context.respond(b"x" * 100_000)
    return context.respond_chunked(*[thousand] * 100, LAST_CHUNK, headers=headers, received=received)
