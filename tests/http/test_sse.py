"""Server-sent events decode the same however the network cuts them."""

from __future__ import annotations

import random
import time

import pytest

from agent.http.sse import EventTooLong, SseDecoder
from tests.support.cases import examples
from tests.support.corpus import HAS_RECORDINGS, exchanges

EVERY_FORM = (
    b": a comment\n\n"
    b"data: one\n\n"
    b"event: named\nid: 7\nretry: 10\ndata:two\n\n"
    b": ping\n\n: ping\n\n"
    b"data: three\ndata: lines\ndata:  of data\n\n"
    b"data\n\n"
    b"data: \xc3\xa9\xf0\x9f\x8d\x93\n\n"
    b"unknown: field\n\n\n\n"
    b"data: last\n\n"
)
PAYLOADS = [
    b"one",
    b"two",
    b"three\nlines\n of data",
    b"",
    "é🍓".encode(),
    b"last",
]
LINE_ENDS = {"LF": b"\n", "CRLF": b"\r\n", "CR": b"\r"}


def decode(*chunks: bytes) -> list[bytes]:
    decoder = SseDecoder()
    return [payload for chunk in chunks for payload in decoder.feed(chunk)]


def decode_bytewise(data: bytes) -> list[bytes]:
    return [data[position : position + 1] for position in range(len(data))]


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"], ids=["plain", "BOM"])
@pytest.mark.parametrize("line_end", LINE_ENDS.values(), ids=LINE_ENDS)
def test_every_form_of_event_is_read_at_every_two_cuts(line_end: bytes, bom: bytes) -> None:
    data = bom + EVERY_FORM.replace(b"\n", line_end)
    assert decode(data) == PAYLOADS
    assert decode(*decode_bytewise(data)) == PAYLOADS
    for first in range(len(data) + 1):
        for second in range(first, len(data) + 1):
            assert decode(data[:first], data[first:second], data[second:]) == PAYLOADS, (first, second)


def test_an_event_without_its_blank_line_is_pending_and_not_returned() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: begun\n") == []
    assert decoder.pending
    assert decoder.feed(b"\n") == [b"begun"]
    assert not decoder.pending


@pytest.mark.parametrize("line_end", LINE_ENDS.values(), ids=LINE_ENDS)
@pytest.mark.parametrize("piece", [b"x" * 100, b"\ndata: " + b"x" * 50, b"\ndata:"], ids=["line", "lines", "empty"])
def test_an_endless_event_is_refused_before_it_fills_the_memory(piece: bytes, line_end: bytes) -> None:
    decoder = SseDecoder(max_event_bytes=1000)
    decoder.feed(b"data: ")
    with pytest.raises(EventTooLong):
        for _ in range(1000):
            decoder.feed(piece.replace(b"\n", line_end))


def test_a_whole_event_beyond_the_limit_is_refused_however_it_comes() -> None:
    event = b"data: " + b"x" * 2000 + b"\n\n"
    for chunks in ([event], [event[:700], event[700:]], [b"data: ok\n\n" + event, b""]):
        decoder = SseDecoder(max_event_bytes=1000)
        with pytest.raises(EventTooLong):
            for chunk in chunks:
                decoder.feed(chunk)


@pytest.mark.parametrize("rest", [b"", b"\n", b"\n\n\n", b": bye", b": bye\n", b"\n: one\n: two"])
def test_blank_lines_and_comments_at_the_end_are_no_unfinished_event(rest: bytes) -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\n\n" + rest) == [b"a"]
    assert not decoder.pending


@pytest.mark.parametrize("rest", [b"d", b"data: b", b"data: b\n", b": bye\ndata: b", b"\ndata"])
def test_an_event_that_was_begun_is_pending(rest: bytes) -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\n\n" + rest) == [b"a"]
    assert decoder.pending


def test_an_event_of_very_many_lines_takes_time_in_proportion() -> None:
    """Ten times the lines must not take a hundred times as long."""

    def seconds(lines: int) -> float:
        decoder, started = SseDecoder(64 * 1024 * 1024), time.process_time()
        for _ in range(lines // 500):
            assert decoder.feed(b"data: x\n" * 500) == []
        assert decoder.feed(b"\n") == [b"\n".join([b"x"] * lines)]
        return time.process_time() - started

    assert min(seconds(400_000) for _ in range(3)) < 30 * min(seconds(40_000) for _ in range(3))


def test_what_was_too_long_is_not_kept() -> None:
    decoder = SseDecoder(1000)
    with pytest.raises(EventTooLong):
        decoder.feed(b"data: " + b"x" * 2000)
    assert not decoder.pending


def test_recorded_streams_decode_the_same_wherever_they_are_split(rng: random.Random) -> None:
    streams = [exchange.stream for exchange in exchanges("openai.chat") if exchange.stream is not None]
    assert len(streams) >= (95 if HAS_RECORDINGS else 4)
    tried = 0
    for stream in streams:
        whole = decode(stream)
        assert whole
        assert decode(*decode_bytewise(stream)) == whole
        points = rng.sample(range(1, len(stream)), min(examples(150, 1200), len(stream) - 1))
        for point in points:
            assert decode(stream[:point], stream[point:]) == whole, point
            tried += 1
        for line_end in LINE_ENDS.values():
            spelled = stream.replace(b"\r\n", b"\n").replace(b"\n", line_end)
            assert decode(*decode_bytewise(b"\xef\xbb\xbf" + spelled)) == whole
            for point in rng.sample(range(len(spelled)), examples(4, 20)):
                assert decode(spelled[:point], spelled[point:]) == whole
    assert tried >= (examples(10_000, 100_000) if HAS_RECORDINGS else 500)
