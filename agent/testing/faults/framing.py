"""Answers that are not quite HTTP, and bodies in an encoding that does not hold."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

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
    BrokenWire,
    Exchange,
    chunk,
    chunks,
    fault,
    lost,
    silent,
)


def _instead(data: bytes) -> BrokenWire:
    """Bytes in the place of an answer."""
    return BrokenWire((data,), seen=Answer(failure=lost()))


@fault("framing", replaces=True)
def bad_status_line(exchange: Exchange) -> Answer:
    """A status that is no number."""
    return _instead(b"HTTP/1.1 two hundred\r\n\r\n")


@fault("framing", replaces=True)
def another_protocol(exchange: Exchange) -> Answer:
    """The greeting of a server that speaks something else."""
    return _instead(b"SSH-2.0-OpenSSH_9.6\r\n")


@fault("framing", replaces=True)
def tls_alert(exchange: Exchange) -> Answer:
    """What a server sends that expected TLS."""
    return _instead(b"\x15\x03\x01\x00\x02\x02\x46")


@fault("framing", replaces=True)
def http_2_frames(exchange: Exchange) -> Answer:
    """What a server sends that speaks HTTP/2 only."""
    return _instead(b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64")


@fault("framing")
def no_head_at_all(exchange: Exchange) -> Answer:
    """The body alone, as in the oldest HTTP."""
    return _instead(exchange.body)


@fault("framing", replaces=True)
def switching_protocols(exchange: Exchange) -> Answer:
    """An agreement to something that nobody has asked for."""
    seen = Answer(failure=lost())
    return exchange.raw(status="101 Switching Protocols", headers={"upgrade": "websocket"}, seen=seen)


@fault("framing", replaces=True)
def header_too_long(exchange: Exchange) -> Answer:
    """A header of 300 KB."""
    return exchange.raw(b"{}", headers={"x-long": "y" * 300_000})


@fault("framing", replaces=True)
def too_many_headers(exchange: Exchange) -> Answer:
    """Ten thousand headers."""
    return exchange.raw(b"{}", headers={f"x-{number}": "y" * 20 for number in range(10_000)})


@fault("framing")
def header_without_colon(exchange: Exchange) -> Answer:
    """A line among the headers that is none."""
    return _instead(b"HTTP/1.1 200 OK\r\nthere is no colon here\r\n\r\n" + exchange.body)


@fault("framing")
def header_with_nul(exchange: Exchange) -> Answer:
    """A header with a NUL in its value."""
    return _instead(b"HTTP/1.1 200 OK\r\nx-odd: a\x00b\r\n\r\n" + exchange.body)


@fault("framing")
def two_lengths(exchange: Exchange) -> Answer:
    """Two announcements of the length that contradict each other."""
    size = len(exchange.body)
    lengths = f"content-length: {size}\r\ncontent-length: {size + 1}\r\n\r\n".encode()
    return _instead(b"HTTP/1.1 200 OK\r\n" + lengths + exchange.body)


@fault("framing")
def length_not_a_number(exchange: Exchange) -> Answer:
    """A length that cannot be read."""
    return exchange.raw(exchange.body, headers={"content-length": "many"})


@fault("framing")
def length_negative(exchange: Exchange) -> Answer:
    """A length below zero."""
    return exchange.raw(exchange.body, headers={"content-length": "-1"})


@fault("framing")
def transfer_encoding_unknown(exchange: Exchange) -> Answer:
    """A way of transfer that HTTP/1.1 does not know."""
    return exchange.raw(exchange.body, headers={"transfer-encoding": "carrier-pigeon"})


@fault("framing")
def chunk_size_not_a_number(exchange: Exchange) -> Answer:
    """The first chunk does not say how long it is."""
    return exchange.chunked(b"zz\r\n" + exchange.body + b"\r\n" + LAST_CHUNK, seen=exchange.saying(lost()))


@fault("framing")
def chunk_size_too_large(exchange: Exchange) -> Answer:
    """A chunk of more bytes than there are on Earth."""
    return exchange.chunked(b"f" * 40 + b"\r\n" + exchange.body, seen=exchange.saying(lost()))


@fault("framing")
def chunk_longer_than_it_says(exchange: Exchange) -> Answer:
    """In the middle, a chunk goes on after its end."""
    half, rest = exchange.first_half, b"".join(exchange.second_half)
    wrong = b"%x\r\n%b\r\n" % (len(rest) // 2, rest)
    seen = exchange.saying(*half, rest[: len(rest) // 2 - 1], lost())
    return exchange.chunked(*chunks(half), wrong, LAST_CHUNK, seen=seen)


@fault("framing")
def chunk_shorter_than_it_says(exchange: Exchange) -> Answer:
    """In the middle, a chunk ends too early, so that the last chunk is taken for a part of it."""
    half = exchange.first_half
    wrong = b"fffff\r\n%b\r\n" % exchange.second_half[0]
    return exchange.chunked(*chunks(half), wrong, LAST_CHUNK, seen=exchange.saying(*half, lost()))


# Encodings


def _packed(parts: Sequence[bytes]) -> list[bytes]:
    """gzip, complete up to each part, as a server sends it that compresses a stream."""
    packer = zlib.compressobj(wbits=31)
    packed = [packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH) for part in parts]
    return [*packed, packer.flush()]


def _encoded(exchange: Exchange, encoding: str, parts: Sequence[bytes], seen: Answer) -> BrokenWire:
    return exchange.chunked(*chunks(parts), LAST_CHUNK, headers={"content-encoding": encoding}, seen=seen)


def _unreadable(exchange: Exchange, *before: bytes, retryable: bool = True) -> Answer:
    return exchange.saying(*before, errors.ProtocolError("the encoding is broken", retryable=retryable))


@fault("framing")
def gzip_cut(exchange: Exchange) -> Answer:
    """Compressed, though nobody asked for it, and only half of it; the HTTP around it is whole."""
    half = exchange.first_half
    return _encoded(exchange, "gzip", _packed(half)[:-1], _unreadable(exchange, *half))


@fault("framing")
def gzip_in_name_only(exchange: Exchange) -> Answer:
    """Said to be compressed, and plain."""
    return _encoded(exchange, "gzip", exchange.events, _unreadable(exchange))


@fault("framing")
def encoding_unknown(exchange: Exchange) -> Answer:
    """Compressed in a way that was not offered."""
    return _encoded(exchange, "br", [exchange.body], Answer(failure=_refused_encoding()))


@fault("framing")
def encoded_twice(exchange: Exchange) -> Answer:
    """Compressed, and compressed again."""
    twice = _packed([b"".join(_packed([exchange.body]))])
    return _encoded(exchange, "gzip, gzip", twice, Answer(failure=_refused_encoding()))


@fault("size", replaces=True, heavy=True)
def gzip_bomb(exchange: Exchange) -> Answer:
    """200 MB of spaces in 200 KB."""
    packer = zlib.compressobj(9, wbits=31)
    head = packer.flush(zlib.Z_FULL_FLUSH)
    megabyte = packer.compress(b" " * 1_000_000) + packer.flush(zlib.Z_FULL_FLUSH)
    return _encoded(exchange, "gzip", [head, *[megabyte] * 200], _unreadable(exchange, retryable=False))


def _refused_encoding() -> errors.ProtocolError:
    return errors.ProtocolError("the answer came in an encoding that was not asked for", retryable=False)


# What is only unusual


@fault("harmless", harmless=frozenset(("whole", "stream")))
def gzip_unasked(exchange: Exchange) -> Answer:
    """Compressed, though nobody asked for it."""
    return _encoded(exchange, "gzip", _packed(exchange.events), exchange.saying(exchange.body))


@fault("harmless", harmless=frozenset(("whole", "stream")))
def deflate_unasked(exchange: Exchange) -> Answer:
    """Compressed in the other way, though nobody asked for it."""
    return _encoded(exchange, "deflate", [zlib.compress(exchange.body)], exchange.saying(exchange.body))


@fault("harmless", harmless=frozenset(("whole", "stream")))
def http_1_0(exchange: Exchange) -> Answer:
    """A body that ends with its connection."""
    return exchange.raw(exchange.body, version="1.0", seen=exchange.saying(exchange.body))


@fault("harmless", harmless=frozenset(("whole", "stream")))
def early_hints(exchange: Exchange) -> Answer:
    """Something to read before the answer comes."""
    good = exchange.chunked(*chunks(exchange.events), LAST_CHUNK, seen=exchange.saying(exchange.body))
    return _before(b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n", good)


@fault("harmless", harmless=frozenset(("whole", "stream")))
def chunks_with_extensions(exchange: Exchange) -> Answer:
    """Chunks with names, and a trailer behind the last."""
    named = [b"%x;name=value\r\n%b\r\n" % (len(event), event) for event in exchange.events]
    return exchange.chunked(*named, b"0\r\nx-checksum: 7\r\n\r\n", seen=exchange.saying(exchange.body))


@fault("harmless", harmless=frozenset(("whole", "stream")))
def chunks_of_one_byte(exchange: Exchange) -> Answer:
    """Every byte in a chunk of its own."""
    body = exchange.body
    singles = b"".join(chunk(body[at : at + 1]) for at in range(len(body)))
    return exchange.chunked(singles, LAST_CHUNK, seen=exchange.saying(*(body[at : at + 1] for at in range(len(body)))))


@fault("harmless", harmless=frozenset(("whole", "stream")))
def headers_spelt_oddly(exchange: Exchange) -> Answer:
    """Header names in capitals, values in blanks."""
    headers: Mapping[str, str] = {name.upper(): f"   {value}  " for name, value in exchange.headers.items()}
    good = Answer([exchange.body], headers=headers)
    return Exchange(exchange.request, good).raw(
        exchange.body, headers={"Content-LENGTH": str(len(exchange.body))}, seen=exchange.saying(exchange.body)
    )


def _before(data: bytes, answer: BrokenWire) -> BrokenWire:
    return BrokenWire((data, *answer.pieces), seen=answer.seen)


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
