"""Conversion of AWS event streams to the server-sent events that they carry.

SDK clients for Bedrock return each event of a vendor's stream inside a binary message. The payloads are the events of
the vendor's own API, which its codec decodes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from .. import errors
from ..engine.wire import MAX_EVENT_BYTES, parse_json
from ..http.event_stream import CONTENT_TYPE, EventStreamDecoder, EventStreamMessage
from ..http.sse import FramingError


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
