"""Incremental decoder and encoder for AWS event streams (`vnd.amazon.eventstream`).

A message consists of two lengths and their checksum, headers, a payload and a checksum of everything before it. Chunks
may be cut anywhere; the messages are the same.

SDK clients for Bedrock return each event of a vendor's stream inside a message. `EventStreamConverter` turns them into
the server-sent events of the vendor's own API, which its codec decodes.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from .. import errors
from ..engine.wire import MAX_EVENT_BYTES, parse_json
from .sse import EventTooLong, FramingError

CONTENT_TYPE = "application/vnd.amazon.eventstream"
_PRELUDE = 12
_CHECKSUM = 4
_BYTES, _STRING = 6, 7
_FIXED_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Bytes of a header's value by its type: booleans, integers, timestamps, UUIDs."""


class EventStreamMessage(NamedTuple):
    """One message of an event stream."""

    headers: Mapping[str, str]
    """The headers that are strings."""
    payload: bytes


class EventStreamDecoder:
    """Splits a byte stream into messages. `feed` returns each complete message, and raises FramingError."""

    __slots__ = ("_buffer", "limit")

    def __init__(self, max_message_bytes: int = MAX_EVENT_BYTES) -> None:
        self.limit: int = max_message_bytes
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[EventStreamMessage]:
        buffer = self._buffer
        buffer += chunk
        messages: list[EventStreamMessage] = []
        start = 0
        while len(buffer) - start >= _PRELUDE:
            total = self._parse_length(bytes(buffer[start : start + _PRELUDE]))
            if len(buffer) - start < total:
                break
            messages.append(_decode_message(bytes(buffer[start : start + total])))
            start += total
        del buffer[:start]
        return messages

    def _parse_length(self, prelude: bytes) -> int:
        total, headers, checksum = (int.from_bytes(prelude[at : at + 4], "big") for at in (0, 4, 8))
        if zlib.crc32(prelude[:8]) != checksum or total < _PRELUDE + headers + _CHECKSUM:
            raise FramingError("an event-stream message has a wrong checksum or length")
        if total > self.limit:
            raise EventTooLong(f"an event-stream message is longer than {self.limit} bytes")
        return total


def _decode_message(message: bytes) -> EventStreamMessage:
    if zlib.crc32(message[:-_CHECKSUM]) != int.from_bytes(message[-_CHECKSUM:], "big"):
        raise FramingError("an event-stream message has a wrong checksum or length")
    end_of_headers = _PRELUDE + int.from_bytes(message[4:8], "big")
    try:
        headers = _parse_headers(message[_PRELUDE:end_of_headers])
    except (ValueError, IndexError):
        raise FramingError("the headers of an event-stream message cannot be decoded") from None
    return EventStreamMessage(headers, message[end_of_headers:-_CHECKSUM])


def _parse_headers(data: bytes) -> dict[str, str]:
    """Parse string headers and skip those of other types."""
    headers: dict[str, str] = {}
    at = 0
    while at < len(data):
        end_of_name = at + 1 + data[at]
        name, kind = data[at + 1 : end_of_name].decode(), data[end_of_name]
        at = end_of_name + 1
        if kind in _FIXED_SIZES:
            at += _FIXED_SIZES[kind]
            continue
        if kind not in (_BYTES, _STRING):
            raise ValueError("unknown header type")
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        if kind == _STRING:
            headers[name] = data[at + 2 : end].decode()
        at = end
    if at > len(data):
        raise ValueError("a header is longer than its message")
    return headers


def encode_message(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Encode a message with string headers."""
    packed = b"".join(
        b"%c%b%c%b%b" % (len(name), name, _STRING, len(value).to_bytes(2, "big"), value)
        for name, value in ((name.encode(), value.encode()) for name, value in headers.items())
    )
    total = _PRELUDE + len(packed) + len(payload) + _CHECKSUM
    prelude = total.to_bytes(4, "big") + len(packed).to_bytes(4, "big")
    message = prelude + zlib.crc32(prelude).to_bytes(4, "big") + packed + payload
    return message + zlib.crc32(message).to_bytes(4, "big")


def is_event_stream(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").partition(";")[0].strip().lower() == CONTENT_TYPE


class EventStreamConverter:
    """Converts messages to server-sent events. An invalid message is a ProtocolError."""

    __slots__ = ("_messages",)

    def __init__(self) -> None:
        self._messages = EventStreamDecoder(2 * MAX_EVENT_BYTES)  # base64 makes the content longer

    def feed(self, chunk: bytes) -> bytes:
        try:
            return b"".join(map(_convert_message, self._messages.feed(chunk)))
        except FramingError as error:
            raise errors.ProtocolError(str(error)) from None


def _convert_message(message: EventStreamMessage) -> bytes:
    try:
        if message.headers.get(":message-type", "event") != "event":
            return _encode_event(_encode_error(*message))
        event = parse_json(message.payload)
        return _encode_event(base64.b64decode(event["bytes"])) if "bytes" in event else b""
    except (ValueError, TypeError):
        raise errors.ProtocolError("an event-stream message cannot be decoded") from None


def _encode_error(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Encode an exception or error message as an error event of the vendor's stream."""
    kind = headers.get(":exception-type") or headers.get(":error-code") or "error"
    kind = kind[:1].upper() + kind[1:] if kind.endswith("Exception") else kind  # as in non-streaming responses
    message = headers.get(":error-message")
    if message is None:
        try:
            error = parse_json(payload)
            message = str(error.get("message") or error.get("Message") or kind)
        except (ValueError, AttributeError):
            message = payload.decode("utf-8", "replace") or kind
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()


def _encode_event(data: bytes) -> bytes:
    return b"data: %b\n\n" % data.replace(b"\n", b"\ndata: ")
