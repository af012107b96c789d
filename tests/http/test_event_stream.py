"""AWS event streams: the same messages as botocore, however the bytes are cut or damaged."""

from __future__ import annotations

import random
import zlib

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from agent.http.event_stream import EventStreamDecoder, EventStreamMessage, encode_message
from agent.http.sse import EventTooLong, FramingError

_ODD_HEADERS = b"\x01a\x00\x01b\x01\x01c\x02\x07\x01d\x03\x00\x07\x01e\x04\x00\x00\x00\x07\x01f\x05" + bytes(8)
_ODD_HEADERS += b"\x01g\x06\x00\x02xy\x01h\x07\x00\x03\xc3\xbc!\x01i\x08" + bytes(8) + b"\x01j\x09" + bytes(16)
MESSAGES = [
    ({":event-type": "messageStart", ":message-type": "event"}, b'{"role":"assistant"}'),
    ({":event-type": "contentBlockDelta"}, '{"delta":{"text":"fünf\\n\\n\\r\\n"}}'.encode()),
    ({}, b""),
    ({":message-type": "exception", ":exception-type": "throttlingException"}, b"\n\n" * 20),
]
DATA = b"".join(encode_message(headers, payload) for headers, payload in MESSAGES)


def decode(*chunks: bytes) -> list[EventStreamMessage]:
    decoder = EventStreamDecoder()
    return [message for chunk in chunks for message in decoder.feed(chunk)]


def decode_with_botocore(data: bytes) -> list[tuple[dict[str, object], bytes]]:
    buffer = EventStreamBuffer()
    buffer.add_data(data)
    return [(event.headers, event.payload) for event in buffer]


def test_a_stream_has_the_same_messages_wherever_it_is_cut() -> None:
    assert decode(DATA) == MESSAGES == decode_with_botocore(DATA)
    assert decode(*(bytes([byte]) for byte in DATA)) == MESSAGES
    for at in range(len(DATA)):
        assert decode(DATA[:at], DATA[at:]) == MESSAGES
        assert decode(DATA[:at]) == decode_with_botocore(DATA[:at])  # an incomplete message is no message


@given(st.lists(st.tuples(st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=50), max_size=4),
                          st.binary(max_size=300)), max_size=5), st.randoms())  # fmt: skip
def test_any_messages_are_read_as_they_were_written(
    messages: list[tuple[dict[str, str], bytes]], rng: random.Random
) -> None:
    data = b"".join(encode_message(headers, payload) for headers, payload in messages)
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(3))
    chunks = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert decode(*chunks) == messages == decode_with_botocore(data)


def test_headers_of_every_type_are_passed_over() -> None:
    data = bytearray(encode_message({"x" * (len(_ODD_HEADERS) - 4): ""}, b"{}"))
    head = 12 + len(_ODD_HEADERS)
    message = _with_checksums(bytes(data[:12]) + _ODD_HEADERS + bytes(data[head:]))
    assert decode(message) == [({"h": "ü!"}, b"{}")]
    assert decode_with_botocore(message)[0][0]["h"] == "ü!"


def test_a_changed_byte_is_noticed_as_botocore_notices_it() -> None:
    message = encode_message(*MESSAGES[0])
    for at in range(len(message)):
        damaged = bytearray(message)
        damaged[at] ^= 0x04
        with pytest.raises(FramingError):
            decode(bytes(damaged))
        with pytest.raises(Exception, match=r"(?i)checksum|length"):
            decode_with_botocore(bytes(damaged))


@pytest.mark.parametrize("headers", [b"\x01a\x0a", b"\x01a", b"\x05a", b"\x01a\x07\x00\x09x", b"\x01a\x07\x00\x01\xff"])
def test_broken_headers_are_an_error(headers: bytes) -> None:
    prelude = (16 + len(headers)).to_bytes(4, "big") + len(headers).to_bytes(4, "big")
    with pytest.raises(FramingError, match="headers"):
        decode(_with_checksums(prelude + bytes(4) + headers + bytes(4)))


def test_a_long_message_is_refused_before_it_is_buffered() -> None:
    with pytest.raises(EventTooLong, match="longer than 100 bytes"):
        EventStreamDecoder(100).feed(encode_message({}, b"x" * 200)[:12])
    decoder = EventStreamDecoder()
    assert sum(len(decoder.feed(encode_message({}, b"x" * 1000))) for _ in range(100)) == 100


def _with_checksums(message: bytes) -> bytes:
    head = message[:8] + zlib.crc32(message[:8]).to_bytes(4, "big") + message[12:-4]
    return head + zlib.crc32(head).to_bytes(4, "big")
