"""Streams: the same events for any chunk sizes, and an error for a truncated stream."""

from __future__ import annotations

import random
import re

import pytest

from agent import errors
from agent.engine.wire import Answer
from tests.support.cases import FULL, examples, for_each, sample
from tests.support.corpus import APIS, Exchange, codec_for, dialect_of, exchanges, vendor
from tests.support.recording_checks import event_boundaries, events_of, outcome, split_bytes

STREAMS = [exchange for api in APIS for exchange in exchanges(api) if exchange.stream is not None]


def lacks_sentinel(exchange: Exchange) -> bool:
    return exchange.api == "openai.chat" and not dialect_of(exchange.provider).done_sentinel


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
    ends nothing. And where a vendor is known to leave out the sentinel, an answer that has its finish reason and its
    usage is complete.
    """
    data = exchange.stream or b""
    if exchange.api != "openai.chat":
        last = list(re.finditer(TERMINAL[exchange.api], data))[-1].start()
        data = data[: next(boundary for boundary in event_boundaries(data) if boundary > last)]
    elif lacks_sentinel(exchange):
        finish = next(found.start() for found in re.finditer(rb'"finish_reason": ?"', data))
        usage = next(found.start() for found in re.finditer(rb'"usage": ?\{"', data))
        complete = max(finish, usage)
        data = data[: next(boundary for boundary in event_boundaries(data) if boundary > complete)]
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


@for_each("exchange", [exchange for exchange in STREAMS if lacks_sentinel(exchange)], by=vendor)
def test_without_a_sentinel_a_stream_cut_off_in_its_last_events_is_not_a_success(exchange: Exchange) -> None:
    data, end = exchange.stream or b"", essential(exchange)
    boundaries = [boundary for boundary in event_boundaries(data) if boundary < end]
    for cut in range(boundaries[-1], end):
        decoder = codec_for(exchange).decoder({}, exchange.agent_request)
        decoder.feed(data[:cut])
        decoder.end()
        assert not decoder.done, cut


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
