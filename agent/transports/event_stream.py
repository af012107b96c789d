"""AWS event streams, pushed as bytes and re-framed as the server-sent events that they carry.

Bedrock wraps each event of a vendor's stream into a binary message: two lengths and a checksum, headers, a payload and
another checksum. Unwrapped, the stream is what the vendor itself would have sent, and its codec can read it.
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
    """`feed(bytes)` returns the events that are complete, as server-sent ones. A broken message is a ProtocolError."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        held = self._held
        held += chunk
        unwrapped: list[bytes] = []
        start = 0
        while len(held) - start >= _PRELUDE:
            total = _checked_length(bytes(held[start : start + _PRELUDE]))
            if len(held) - start < total:
                break
            unwrapped.append(_unwrapped(bytes(held[start : start + total])))
            start += total
        del held[:start]
        return b"".join(unwrapped)


def _checked_length(prelude: bytes) -> int:
    total, headers, checksum = (int.from_bytes(prelude[at : at + 4], "big") for at in (0, 4, 8))
    if zlib.crc32(prelude[:8]) != checksum or total < _PRELUDE + headers + _CHECKSUM:
        raise errors.ProtocolError("a message of the event stream is broken")
    if total > 2 * MAX_EVENT_BYTES:  # base64 makes its content longer
        raise errors.ProtocolError(f"a message of the event stream is longer than {2 * MAX_EVENT_BYTES} bytes")
    return total


def _unwrapped(message: bytes) -> bytes:
    if zlib.crc32(message[:-_CHECKSUM]) != int.from_bytes(message[-_CHECKSUM:], "big"):
        raise errors.ProtocolError("a message of the event stream is broken")
    end_of_headers = _PRELUDE + int.from_bytes(message[4:8], "big")
    try:
        headers = _headers(message[_PRELUDE:end_of_headers])
        payload = message[end_of_headers:-_CHECKSUM]
        if headers.get(":message-type", "event") != "event":
            return _server_sent(_complaint(headers, payload))
        event = parse_json(payload)
        return _server_sent(base64.b64decode(event["bytes"])) if "bytes" in event else b""
    except (ValueError, TypeError, IndexError):
        raise errors.ProtocolError("a message of the event stream cannot be read") from None


def _headers(data: bytes) -> dict[str, str]:
    """The headers that are text; those of other types are passed over."""
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


def _complaint(headers: Mapping[str, str], payload: bytes) -> bytes:
    """An exception or error, in the words of the stream around it."""
    kind = headers.get(":exception-type") or headers.get(":error-code") or "error"
    kind = kind[:1].upper() + kind[1:] if kind.endswith("Exception") else kind  # as it is spelt outside of streams
    message = headers.get(":error-message")
    if message is None:
        try:
            said = parse_json(payload)
            message = str(said.get("message") or said.get("Message") or kind)
        except (ValueError, AttributeError):
            message = payload.decode("utf-8", "replace") or kind
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()


def _server_sent(data: bytes) -> bytes:
    return b"data: %b\n\n" % data.replace(b"\n", b"\ndata: ")
