"""Around each size limit, the result does not depend on how the bytes are cut."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from itertools import pairwise

import pytest

from agent.errors import ProtocolError
from agent.http.parser import (
    MAX_CHUNK_LINE_BYTES,
    MAX_HEAD_BYTES,
    MAX_INTERIM_RESPONSES,
    BadResponse,
    BodyBuffer,
    Decompressor,
    ResponseParser,
)
from agent.http.sse import EventTooLong, SseDecoder
from tests.support.cases import examples

Outcome = tuple[str, bytes]
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
EVENT_LIMIT = 3000


def parse(pieces: list[bytes]) -> Outcome:
    parser, body, headed = ResponseParser(), b"", False
    try:
        for piece in pieces:
            if headed:
                body += parser.feed(piece)
            elif headed := parser.feed_head(piece):
                body += parser.feed_rest()
        if parser.failure is not None:
            raise parser.failure
    except BadResponse:
        return "refused", body
    return "complete" if parser.complete else "incomplete", body


def decode(pieces: list[bytes]) -> Outcome:
    decoder, payloads = SseDecoder(EVENT_LIMIT), list[bytes]()
    try:
        for piece in [*pieces, b""]:
            payloads += decoder.feed(piece)
    except EventTooLong:
        return "refused", b"|".join(payloads)
    return "incomplete" if decoder.pending else "complete", b"|".join(payloads)


def decompress(pieces: list[bytes]) -> Outcome:
    decompressor, body = Decompressor("gzip"), b""
    try:
        for piece in pieces:
            body += decompressor.feed(piece)
        body += decompressor.finish()
    except ProtocolError:
        return "refused", b""
    return "complete", body


def collect(pieces: list[bytes]) -> Outcome:
    buffer = BodyBuffer({}, 1000)
    try:
        for piece in pieces:
            buffer.add(piece)
    except ProtocolError:
        return "refused", b""
    return "complete", buffer.join()


def pad(start: bytes, end: bytes, size: int) -> bytes:
    """Fill up to this size."""
    return start + b"x" * (size - len(start) - len(end)) + end


def compress(size: int) -> bytes:
    """Exactly 64 kB at the highest ratio, and then `size` bytes more."""
    packer = zlib.compressobj(9, wbits=31)
    return packer.compress(b" " * (64 * 1024 + size)) + packer.flush()


Read = Callable[[list[bytes]], Outcome]
LIMITS: dict[str, tuple[Read, int, Callable[[int], bytes]]] = {
    "head": (parse, MAX_HEAD_BYTES, lambda size: pad(OK + b"x: ", b"\r\ncontent-length: 2\r\n\r\n", size) + b"hi"),
    "interim head": (
        parse,
        MAX_HEAD_BYTES,
        lambda size: pad(b"HTTP/1.1 103 Hints\r\nx: ", b"\r\n\r\n", size) + OK + b"content-length: 2\r\n\r\nhi",
    ),
    "interim responses": (
        parse,
        MAX_INTERIM_RESPONSES,
        lambda count: b"HTTP/1.1 100 Continue\r\n\r\n" * count + OK + b"content-length: 2\r\n\r\nhi",
    ),
    "trailer": (parse, MAX_HEAD_BYTES, lambda size: CHUNKED + b"2\r\nhi\r\n0\r\n" + pad(b"x: ", b"\r\n\r\n", size)),
    "chunk line": (
        parse,
        MAX_CHUNK_LINE_BYTES,
        lambda size: CHUNKED + b"1\r\na\r\n" + pad(b"2;", b"\r\n", size) + b"hi\r\n0\r\n\r\n",
    ),
    "last chunk line": (parse, MAX_CHUNK_LINE_BYTES, lambda size: CHUNKED + pad(b"0;", b"\r\n", size) + b"\r\n"),
    "chunk digits": (parse, 20, lambda size: CHUNKED + b"2".rjust(size, b"0") + b"\r\nhi\r\n0\r\n\r\n"),
    "length digits": (parse, 20, lambda size: OK + b"content-length: " + b"2".rjust(size, b"0") + b"\r\n\r\nhi"),
    "event": (decode, EVENT_LIMIT, lambda size: b"data: a\n\n" + pad(b"data: ", b"", size) + b"\n\ndata: b\n\n"),
    "event with CRLF": (decode, EVENT_LIMIT, lambda size: pad(b"data: ", b"", size) + b"\r\n\r\ndata: b\r\n\r\n"),
    "named event": (
        decode,
        EVENT_LIMIT,
        lambda size: (
            b": " + b"c" * 5000 + b"\nevent: " + b"n" * 5000 + b"\n" + pad(b"data:", b"", size) + b"\nid: 1\n\n"
        ),
    ),
    "event of lines": (
        decode,
        EVENT_LIMIT,
        lambda size: b"data: x\n" * 20 + pad(b"data: ", b"", size - 20 * 47) + b"\n\ndata: b\n\n",
    ),
    "ratio": (decompress, 0, compress),
    "body": (collect, 1000, bytes),
}


def cuts(data: bytes, rng: random.Random) -> list[list[int]]:
    """Every byte near the end, in halves and pieces of a socket, and at random."""
    near = list(range(max(1, len(data) - 60), len(data)))
    rough = list(range(0, len(data), 1460))
    return [
        near,
        [*rough, *near],
        *([at] for at in near),
        *([at, at + 1] for at in near[:-1]),
        *(
            sorted(rng.choices(range(1, len(data)), k=rng.randrange(1, 20))) if len(data) > 1 else []
            for _ in range(examples(20, 3000))
        ),
        *([list(range(1, len(data)))] if len(data) < 20_000 or examples(0, 1) else []),
    ]


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_exact_however_the_bytes_are_cut(name: str, rng: random.Random) -> None:
    read, limit, build = LIMITS[name]
    for size in (limit - 1, limit, limit + 1):
        data = build(size)
        expected = read([data])
        assert (expected[0] == "refused") == (size > limit), (size, expected[0])
        for at in cuts(data, rng):
            edges = [0, *sorted(set(at) - {0}), len(data)]
            found = read([data[start:stop] for start, stop in pairwise(edges)])
            assert found == expected, (size, at[:10], found[0])
