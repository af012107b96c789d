"""Answers that take too long, and answers that are too large. Clients without limits hang, or die."""

from __future__ import annotations

from ... import errors
from ...wire import Answer, Piece
from .fault import (
    BOTH,
    FOREVER,
    JSON,
    LAST_CHUNK,
    SSE,
    STREAM,
    WHOLE,
    BrokenWire,
    Exchange,
    chunks,
    fault,
    lost,
    silent,
)

_TICK = 0.02
_MANY = 100_000

# Too long


@fault("time", replaces=True, slow=True)
def stall_before_headers(exchange: Exchange) -> Answer:
    """Silence in the place of an answer."""
    return Answer(after=FOREVER)


@fault("time", replaces=True, slow=True)
def stall_in_headers(exchange: Exchange) -> Answer:
    """Half of a head, and then silence."""
    return BrokenWire((b"HTTP/1.1 200 OK\r\ncontent-ty", Piece(b"", FOREVER)), seen=Answer(after=FOREVER))


@fault("time", slow=True)
def stall_after_headers(exchange: Exchange) -> Answer:
    """The head, and then silence."""
    return silent(exchange.saying())


@fault("time", slow=True)
def stall_in_the_middle(exchange: Exchange) -> Answer:
    """Half of the answer, and then silence."""
    return silent(exchange.saying(*exchange.first_half))


@fault("time", forms=STREAM, slow=True)
def stall_before_terminal_event(exchange: Exchange) -> Answer:
    """Everything but the terminal event, and then silence."""
    return silent(exchange.saying(*exchange.events[:-1]))


@fault("time", forms=WHOLE, slow=True)
def stall_before_last_chunk(exchange: Exchange) -> Answer:
    """The whole body, and then silence in the place of its end."""
    return silent(exchange.saying(exchange.body))


@fault("time", forms=STREAM, slow=True)
def stall_behind_comments(exchange: Exchange) -> Answer:
    """Half of the answer, and then nothing but comments: the connection lives, the answer does not."""
    return exchange.saying(*exchange.first_half, *[Piece(b": ping\n\n", _TICK)] * _MANY)


@fault("time", forms=STREAM, replaces=True, slow=True)
def comments_for_ever(exchange: Exchange) -> Answer:
    """Nothing but comments."""
    return exchange.saying(*[Piece(b": ping\n\n", _TICK)] * _MANY)


@fault("time", forms=STREAM, slow=True)
def stall_behind_blank_lines(exchange: Exchange) -> Answer:
    """Half of the answer, and then nothing but blank lines."""
    return exchange.saying(*exchange.first_half, *[Piece(b"\n", _TICK)] * _MANY)


@fault("time", forms=STREAM, slow=True)
def stall_inside_an_event(exchange: Exchange) -> Answer:
    """Half of the answer, and then an event that grows and never ends."""
    return exchange.saying(*exchange.first_half, b"data: ", *[Piece(b" ", _TICK)] * _MANY)


@fault("time", replaces=True, slow=True)
def head_by_drops(exchange: Exchange) -> Answer:
    """A head that comes byte by byte and never ends."""
    drops = [Piece(b"y", _TICK)] * _MANY
    return BrokenWire((b"HTTP/1.1 200 OK\r\nx-slow: ", *drops), seen=Answer(after=FOREVER))


@fault("time", slow=True)
def body_by_drops(exchange: Exchange) -> Answer:
    """A body that comes byte by byte, so that no single wait is long."""
    body = exchange.body
    return exchange.saying(*(Piece(body[at : at + 1], _TICK) for at in range(len(body))))


@fault("time", forms=STREAM, slow=True)
def never_ending(exchange: Exchange) -> Answer:
    """A stream that says the same words again and again."""
    events = exchange.events
    words = events[len(events) // 2 - 1]
    return exchange.saying(*exchange.first_half, *[Piece(words, _TICK)] * _MANY)


@fault("harmless", harmless=BOTH)
def unhurried(exchange: Exchange) -> Answer:
    """A moment of thought, and short breaks between the pieces."""
    answer = exchange.saying(*(Piece(event, 0.002) for event in exchange.events))
    answer.after = 0.03
    return answer


@fault("harmless", forms=STREAM, harmless=STREAM, slow=True)
def stall_after_terminal_event(exchange: Exchange) -> Answer:
    """Everything, and then silence in the place of the last chunk. Where the end of the bytes is the only end, it
    is missing."""
    return silent(exchange.saying(exchange.body))


# Too large


@fault("size", replaces=True, heavy=True)
def line_without_end(exchange: Exchange) -> Answer:
    """64 MB without a line break."""
    return exchange.saying(b"data: ", *[b"x" * 1_048_576] * 64)


@fault("size", heavy=True)
def line_without_end_in_the_middle(exchange: Exchange) -> Answer:
    """Half of the answer, and then 64 MB without a line break."""
    return exchange.saying(*exchange.first_half, b"data: ", *[b"x" * 1_048_576] * 64)


@fault("size", forms=STREAM, replaces=True, heavy=True)
def lines_without_end(exchange: Exchange) -> Answer:
    """64 MB of short lines that all belong to one event."""
    return exchange.saying(*[b"data: x\n" * 8192] * 1024)


@fault("size", forms=STREAM, replaces=True, heavy=True)
def comments_without_end(exchange: Exchange) -> Answer:
    """70 MB of comments."""
    return exchange.saying(*[b": " + b"x" * 500_000 + b"\n\n"] * 140)


@fault("size", forms=STREAM, replaces=True, heavy=True)
def comments_by_the_million(exchange: Exchange) -> Answer:
    """70 MB of comments of one byte."""
    return exchange.saying(*[b":\n\n" * 100_000] * 240)


@fault("size", forms=STREAM, replaces=True, heavy=True)
def blank_lines_without_end(exchange: Exchange) -> Answer:
    """70 MB of blank lines."""
    return exchange.saying(*[b"\n" * 500_000] * 140)


@fault("size", forms=WHOLE, replaces=True, heavy=True)
def body_too_large(exchange: Exchange) -> Answer:
    """40 MB of text in valid JSON."""
    return exchange.saying(b'{"text": "', *[b"x" * 1_000_000] * 40, b'"}', headers=JSON)


@fault("size", replaces=True)
def length_too_large(exchange: Exchange) -> Answer:
    """The head announces 99 GB, and the connection is closed."""
    too_large = errors.ProtocolError("the answer is too large", retryable=False)
    seen = exchange.saying(lost() if exchange.streamed else too_large)  # of a stream, what comes is counted
    return exchange.raw(headers={"content-length": "99999999999"}, seen=seen)


@fault("size", forms=WHOLE, replaces=True, heavy=True)
def json_of_a_million_lists(exchange: Exchange) -> Answer:
    """30 MB of JSON that is nothing but empty lists: ten million values to build."""
    return exchange.saying(b"[[]", *[b",[]" * 100_000] * 100, b"]", headers=JSON)


@fault("size", forms=STREAM, heavy=True)
def event_of_a_million_lists(exchange: Exchange) -> Answer:
    """Half of the answer, and then an event of 15 MB that is nothing but empty lists."""
    return exchange.saying(*exchange.first_half, b'data: {"x": [[]', *[b",[]" * 100_000] * 50, b"]}\n\n")


@fault("size", replaces=True, heavy=True)
def chunks_by_the_thousand(exchange: Exchange) -> Answer:
    """A body in 100,000 chunks of one byte, of which not one is JSON."""
    headers = SSE if exchange.streamed else JSON
    ones = b"".join(chunks([b"x"] * 1000))
    return exchange.chunked(*[ones] * 100, LAST_CHUNK, headers=headers, seen=exchange.saying(b"x" * 100_000))
