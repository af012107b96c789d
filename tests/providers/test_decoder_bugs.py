"""Decoder bugs raise in tests. In production they look like malformed data."""

from __future__ import annotations

from typing import Any

import pytest
from typing_extensions import override

from agent.engine.wire import parse_json
from agent.errors import ProtocolError
from agent.providers.codec import DecoderBase
from agent.types import AgentRequest, StreamEvent


class Buggy(DecoderBase):
    """Reads an attribute that it does not have, like the remains of a feature that was removed."""

    @override
    def _decode_event(self, payload: bytes, events: list[StreamEvent]) -> None:
        events.append(self._removed)  # type: ignore[attr-defined]


class Sound(DecoderBase):
    @override
    def _decode_event(self, payload: bytes, events: list[StreamEvent]) -> None:
        data: Any = parse_json(payload)
        events.append(StreamEvent.text_delta(data["text"].strip()))


def decoder_of(kind: type[DecoderBase]) -> DecoderBase:
    return kind("acme", {}, AgentRequest(input="hi"), ())


@pytest.mark.malformed
def test_a_bug_is_raised_even_where_a_test_feeds_malformed_data() -> None:
    with pytest.raises(AttributeError, match="_removed"):
        decoder_of(Buggy).feed(b"data: {}\n\n")


@pytest.mark.parametrize("data", [b"{}", b"[]", b'{"text": 1}'], ids=["key", "type", "attribute"])
def test_data_that_a_decoder_cannot_read_is_raised_where_a_test_expects_none(data: bytes) -> None:
    with pytest.raises((KeyError, TypeError, AttributeError)):
        decoder_of(Sound).feed(b"data: %b\n\n" % data)


@pytest.mark.malformed
@pytest.mark.parametrize("data", [b"{}", b"[]", b'{"text": 1}'], ids=["key", "type", "attribute"])
def test_malformed_data_is_a_broken_protocol(data: bytes) -> None:
    decoder = decoder_of(Sound)
    assert decoder.feed(b"data: %b\n\n" % data) == []
    assert isinstance(decoder.failure, ProtocolError)
