"""Streams of chat completions: the same events for every way of cutting them into chunks, and never a false success
for a stream that was cut off.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator

import pytest

from agent import errors
from agent.answers import Answer
from agent.context import Context
from agent.drivers.simulated import Simulation
from agent.execution.call import Target, stream
from agent.providers.openai_chat import ChatCodec
from agent.types import StreamEvent, fold
from agent.wire import Limits
from tests.conftest import WIRE
from tests.corpus import Exchange, chat_codec, dialect_of, exchanges

pytestmark = pytest.mark.skipif(not WIRE.exists(), reason="no recordings: set AGENT_WIRE_CORPUS")

STREAMS = [exchange for exchange in exchanges("openai.chat") if exchange.stream is not None] if WIRE.exists() else []


def events_of(exchange: Exchange, chunks: Iterable[bytes]) -> list[StreamEvent]:
    decoder = chat_codec(exchange.provider).decoder({}, exchange.agent_request)
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    events += decoder.end()
    if decoder.done:
        assert fold(events) == decoder.response()
    return events


def pieces(data: bytes, sizes: Iterator[int]) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        size = next(sizes)
        yield data[start : start + size]
        start += size


@pytest.mark.parametrize("exchange", STREAMS, ids=lambda exchange: exchange.name)
def test_events_do_not_depend_on_how_the_stream_is_cut_into_chunks(exchange: Exchange, rng: random.Random) -> None:
    data = exchange.stream or b""
    whole = events_of(exchange, [data])
    assert events_of(exchange, pieces(data, iter(lambda: 1, 0))) == whole
    for largest in (3, 17, 300):
        sizes = (rng.randint(1, largest) for _ in iter(int, 1))
        assert events_of(exchange, pieces(data, sizes)) == whole
    assert (
        events_of(exchange, pieces(data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"), iter(lambda: 7, 0))) == whole
    )


def outcome(codec: ChatCodec, exchange: Exchange, answer: Answer) -> str:
    """The name of what a stream ended with, through the flow that callers get."""
    call = stream(Target(codec, Limits(), idle=60.0))
    simulation = Simulation(lambda request: answer)
    try:
        simulation.run(call(exchange.agent_request, Context()))
    except errors.AgentError as error:
        return type(error).__name__
    finally:
        assert simulation.open_bodies == 0
    return "success"


def cut_cleanly(exchange: Exchange, cut: int) -> None:
    answer = Answer([(exchange.stream or b"")[:cut]] if cut else [])
    result = outcome(chat_codec(exchange.provider), exchange, answer)
    assert result != "success", f"cut cleanly at byte {cut}"


def cut_abruptly(exchange: Exchange, cut: int) -> None:
    answer = Answer([(exchange.stream or b"")[:cut], errors.ConnectionError("reset")])
    result = outcome(chat_codec(exchange.provider), exchange, answer)
    assert result != "success", f"cut abruptly at byte {cut}"


def event_boundaries(data: bytes) -> list[int]:
    blank = b"\r\n\r\n" if b"\r\n\r\n" in data else b"\n\n"
    ends = [0]
    while (found := data.find(blank, ends[-1])) >= 0:
        ends.append(found + len(blank))
    return ends


def essential(exchange: Exchange) -> int:
    """How many bytes of a stream there are before nothing is missing any more.

    The LF of a final CRLF ends nothing. And where a vendor is known to leave out the sentinel, an answer that has its
    finish reason and its usage is complete, whatever may still follow.
    """
    data = exchange.stream or b""
    if not dialect_of(exchange.provider).done_sentinel:
        finish = next(found.start() for found in re.finditer(rb'"finish_reason": ?"', data))
        usage = next(found.start() for found in re.finditer(rb'"usage": ?\{"', data))
        complete = max(finish, usage)
        data = data[: next(boundary for boundary in event_boundaries(data) if boundary > complete)]
    return len(data) - 1 if data.endswith(b"\r\n") else len(data)


@pytest.mark.parametrize("exchange", STREAMS, ids=lambda exchange: exchange.name)
def test_a_stream_cut_off_between_events_or_anywhere_is_never_a_success(exchange: Exchange, rng: random.Random) -> None:
    end = essential(exchange)
    for boundary in event_boundaries(exchange.stream or b""):
        if boundary < end:
            cut_cleanly(exchange, boundary)
            cut_abruptly(exchange, boundary)
    for cut in rng.sample(range(end), min(200, end)):
        rng.choice((cut_cleanly, cut_abruptly))(exchange, cut)


@pytest.mark.parametrize("exchange", STREAMS, ids=lambda exchange: exchange.name)
def test_a_stream_is_not_done_at_any_byte_before_its_last(exchange: Exchange) -> None:
    """Every byte at little cost: where the decoder is not done, the flow cannot return a response."""
    data, end = exchange.stream or b"", essential(exchange)
    decoder = chat_codec(exchange.provider).decoder({}, exchange.agent_request)
    for position in range(end - 1):
        decoder.feed(data[position : position + 1])
        assert not decoder.done, position


@pytest.mark.parametrize(
    "exchange",
    [exchange for exchange in STREAMS if not dialect_of(exchange.provider).done_sentinel],
    ids=lambda exchange: exchange.name,
)
def test_without_a_sentinel_a_stream_cut_off_in_its_last_events_is_not_a_success(exchange: Exchange) -> None:
    data, end = exchange.stream or b"", essential(exchange)
    boundaries = [boundary for boundary in event_boundaries(data) if boundary < end]
    for cut in range(boundaries[-1], end):
        decoder = chat_codec(exchange.provider).decoder({}, exchange.agent_request)
        decoder.feed(data[:cut])
        decoder.end()
        assert not decoder.done, cut


@pytest.mark.soak
@pytest.mark.parametrize("exchange", STREAMS, ids=lambda exchange: exchange.name)
def test_a_stream_cut_off_at_every_byte_is_never_a_success(exchange: Exchange) -> None:
    for cut in range(essential(exchange)):
        cut_cleanly(exchange, cut)
        cut_abruptly(exchange, cut)


@pytest.mark.parametrize("exchange", STREAMS, ids=lambda exchange: exchange.name)
def test_an_uncut_stream_is_a_success_unless_the_vendor_failed(exchange: Exchange) -> None:
    codec, data = chat_codec(exchange.provider), exchange.stream or b""
    failed = exchange.expected["kind"] == "stream_error"
    assert outcome(codec, exchange, Answer([data])) == ("StreamInterrupted" if failed else "success")
