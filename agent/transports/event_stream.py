"""Decoder for AWS event streams, which converts them to the server-sent events that they carry.

Bedrock wraps each event of a vendor's stream into a binary message: two lengths and a checksum, headers, a payload and
another checksum. The payloads are the events of the vendor's own API, which its codec decodes.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping

from .. import errors
from ..engine.wire import MAX_EVENT_BYTES, parse_json

CONTENT_TYPE = "application/vnd.amazon.eventstream"
_PRELUDE = 12
_CHECKSUM = 4
_STRING = 7
_FIXED_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Bytes of a header's value by its type: booleans, integers, timestamps, UUIDs."""


def is_event_stream(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").partition(";")[0].strip().lower() == CONTENT_TYPE


class EventStreamDecoder:
    """Converts messages to server-sent events. An invalid message is a ProtocolError."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        buffer = self._buffer
        buffer += chunk
        events: list[bytes] = []
        start = 0
        while len(buffer) - start >= _PRELUDE:
            total = _parse_length(bytes(buffer[start : start + _PRELUDE]))
            if len(buffer) - start < total:
                break
            events.append(_decode_message(bytes(buffer[start : start + total])))
            start += total
        del buffer[:start]
        return b"".join(events)


def _parse_length(prelude: bytes) -> int:
    total, headers, checksum = (int.from_bytes(prelude[at : at + 4], "big") for at in (0, 4, 8))
    if zlib.crc32(prelude[:8]) != checksum or total < _PRELUDE + headers + _CHECKSUM:
        raise errors.ProtocolError("an event-stream message has a wrong checksum or length")
    if total > 2 * MAX_EVENT_BYTES:  # base64 makes its content longer
        raise errors.ProtocolError(f"an event-stream message is longer than {2 * MAX_EVENT_BYTES} bytes")
    return total


def _decode_message(message: bytes) -> bytes:
    if zlib.crc32(message[:-_CHECKSUM]) != int.from_bytes(message[-_CHECKSUM:], "big"):
        raise errors.ProtocolError("an event-stream message has a wrong checksum or length")
    end_of_headers = _PRELUDE + int.from_bytes(message[4:8], "big")
    try:
        headers = _parse_headers(message[_PRELUDE:end_of_headers])
        payload = message[end_of_headers:-_CHECKSUM]
        if headers.get(":message-type", "event") != "event":
            return _encode_event(_encode_error(headers, payload))
        event = parse_json(payload)
        return _encode_event(base64.b64decode(event["bytes"])) if "bytes" in event else b""
    except (ValueError, TypeError, IndexError):
        raise errors.ProtocolError("an event-stream message cannot be decoded") from None


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
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        if kind == _STRING:
            headers[name] = data[at + 2 : end].decode()
        at = end
    return headers


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
