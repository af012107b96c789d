"""Streams: the same events for any chunk sizes, and an error for a truncated stream."""

from __future__ import annotations

import random
import re

import pytest

from agent import errors
from agent.engine.wire import Answer
from tests.support.cases import FULL, examples, for_each, sample
from tests.support.corpus import APIS, Exchange, codec_for, exchanges, vendor
from tests.support.recording_checks import event_boundaries, events_of, outcome, split_bytes

STREAMS = [exchange for api in APIS for exchange in exchanges(api) if exchange.stream is not None]


@for_each("exchange", STREAMS, by=vendor)
def test_events_do_not_depend_on_how_the_stream_is_cut_into_chunks(exchange: Exchange, rng: random.Random) -> None:
    data = exchange.stream or b""
    whole = events_of(exchange, [data])
    assert events_of(exchange, split_bytes(data, iter(lambda: 1, 0))) == whole
    for largest in (3, 17, 300) if FULL else (rng.choice((3, 17, 300)),):
        sizes = (rng.randint(1, largest) for _ in iter(int, 1))
        assert events_of(exchange, split_bytes(data, sizes)) == whole
    assert (
        events_of(exchange, split_bytes(data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"), iter(lambda: 7, 0)))
        == whole
    )


def cut_cleanly(exchange: Exchange, cut: int) -> None:
    answer = Answer([(exchange.stream or b"")[:cut]] if cut else [])
    result = outcome(codec_for(exchange), exchange, answer)
    assert result != "success", f"cut cleanly at byte {cut}"


def cut_abruptly(exchange: Exchange, cut: int) -> None:
    answer = Answer([(exchange.stream or b"")[:cut], errors.ConnectionError("reset")])
    result = outcome(codec_for(exchange), exchange, answer)
    assert result != "success", f"cut abruptly at byte {cut}"


def essential(exchange: Exchange) -> int:
    """How many bytes of a stream there are before nothing is missing any more.

    Nothing is missing once the terminal event has come, whatever may still follow: the sentinel of Chat Completions,
    `message_stop`, `response.completed` and its kind, or the chunk with Gemini's finish reason. The LF of a final CRLF
    ends nothing. Chat Completions are complete if the bytes end after the finish reason, and after a whole event.
    """
    data = exchange.stream or b""
    if exchange.api != "openai.chat":
        last = list(re.finditer(TERMINAL[exchange.api], data))[-1].start()
        data = data[: next(boundary for boundary in event_boundaries(data) if boundary > last)]
    elif finishes := list(re.finditer(rb'"finish_reason": ?"', data)):
        choices = len(set(re.findall(rb'"choices": ?\[\{"index": ?(\d)', data)))
        last = finishes[max(choices, 1) - 1].start()
        data = data[: next(boundary for boundary in event_boundaries(data) if boundary > last)].rstrip()
    return len(data) - 1 if data.endswith(b"\r\n") else len(data)


TERMINAL = {
    "openai.responses": rb'"type": ?"(?:response\.(?:completed|incomplete|failed)|error)"',
    "anthropic.messages": rb'"type": ?"message_stop"',
    "gemini.generate": rb'"finishReason"',
}


@for_each("exchange", STREAMS, by=vendor)
def test_a_stream_cut_off_between_events_or_anywhere_is_never_a_success(exchange: Exchange, rng: random.Random) -> None:
    end = essential(exchange)
    for boundary in sample((one for one in event_boundaries(exchange.stream or b"") if one < end), 8):
        cut_cleanly(exchange, boundary)
        cut_abruptly(exchange, boundary)
    for cut in rng.sample(range(end), min(examples(12, 200), end)):
        rng.choice((cut_cleanly, cut_abruptly))(exchange, cut)


@for_each("exchange", STREAMS, by=vendor)
def test_a_stream_is_not_done_at_any_byte_before_its_last(exchange: Exchange) -> None:
    """Every byte at little cost: where the decoder is not done, the flow cannot return a response."""
    data, end = exchange.stream or b"", essential(exchange)
    decoder = codec_for(exchange).decoder({}, exchange.agent_request)
    for position in range(end - 1):
        decoder.feed(data[position : position + 1])
        assert not decoder.done, position


@for_each("exchange", [exchange for exchange in STREAMS if exchange.api == "openai.chat"], by=vendor)
def test_a_stream_that_ends_after_its_finish_reason_is_complete_between_events_only(
    exchange: Exchange, rng: random.Random
) -> None:
    data, end = exchange.stream or b"", essential(exchange)
    if exchange.expected["kind"] == "stream_error":
        return
    boundaries = [0, *event_boundaries(data), len(data)]
    late = range(max(boundary for boundary in boundaries if boundary < end), len(data) + 1)
    for cut in (end, *late[-20:], *rng.sample(late, min(examples(12, 200), len(late)))):
        begin = max(boundary for boundary in boundaries if boundary <= cut)
        event = data[begin : next((boundary for boundary in boundaries if boundary > begin), None)].strip()
        piece = data[begin:cut].strip()
        decoder = codec_for(exchange).decoder({}, exchange.agent_request)
        decoder.feed(data[:cut])
        decoder.end()
        assert decoder.done == (cut >= end and (piece in (b"", event) or piece.startswith(b":"))), cut


@pytest.mark.soak
@for_each("exchange", STREAMS, by=vendor)
def test_a_stream_cut_off_at_every_byte_is_never_a_success(exchange: Exchange) -> None:
    for cut in range(essential(exchange)):
        cut_cleanly(exchange, cut)
        cut_abruptly(exchange, cut)


@for_each("exchange", STREAMS, by=vendor)
def test_an_uncut_stream_is_a_success_unless_the_vendor_failed(exchange: Exchange) -> None:
    codec, data = codec_for(exchange), exchange.stream or b""
    if exchange.expected["kind"] != "stream_error":
        assert outcome(codec, exchange, Answer([data])) == "success"
    elif exchange.expected["text"] or exchange.expected["thinking"]:
        assert outcome(codec, exchange, Answer([data])) == "StreamInterrupted"
    else:  # nothing had come, so the call has simply failed, and may be repeated
        assert outcome(codec, exchange, Answer([data])) == "QuotaExceededError"
