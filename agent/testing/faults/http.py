"""Faults of connections, HTTP/1.1 framing and content encodings."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

from ... import errors
from ...engine.wire import Answer
from .fault import (
    BOTH,
    LAST_CHUNK,
    STREAM,
    WHOLE,
    Fault,
    FaultContext,
    Form,
    Kind,
    RawFault,
    disconnect_error,
    encode_chunks,
    fault,
    reset_error,
)

_HEAD = b"HTTP/1.1 200 OK\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

# Failures of the client. A server can only show them as a reset; around a transport, they are raised.


def _client(
    name: str, description: str, message: str, error: type[errors.AgentError] = errors.ConnectionError, **options: Any
) -> Fault:
    return Fault(name, description, "client", lambda _: Answer(failure=error(message, **options)), replaces=True)


CLIENT = (
    _client("dns-failure", "The host name cannot be resolved.", "the host name is unknown"),
    _client("connection-refused", "The connection is refused.", "the connection was refused"),
    _client("connect-timeout", "Connecting times out.", "connecting timed out", errors.TimeoutError),
    _client("tls-handshake-failed", "The TLS handshake fails.", "the TLS handshake failed"),
    _client(
        "certificate-untrusted",
        "The server's certificate cannot be verified. A retry does not help.",
        "the certificate cannot be verified",
        retryable=False,
    ),
    _client("pool-exhausted", "The connection pool is exhausted.", "no connection is free", errors.PoolExhaustedError),
    _client("write-failed", "The connection breaks while the request is sent.", "the request could not be sent"),
    _client("proxy-refused", "The proxy rejects the connection.", "the proxy rejected the connection", retryable=False),
)


# Connections that break.


def _raw(name: str, description: str, data: bytes, kind: Kind = "framing") -> Fault:
    """Return a fault that sends these bytes instead of a response."""

    def apply(context: FaultContext) -> Answer:
        return RawFault((data,), received=Answer(failure=disconnect_error()))

    return Fault(name, description, kind, apply, replaces=True)


def _cut(
    name: str, description: str, select: Callable[[FaultContext], Sequence[bytes]], forms: frozenset[Form] = BOTH
) -> Fault:
    """Return a fault that sends a part of the body, then a reset."""
    return Fault(name, description, "connection", lambda context: context.respond_cut(*select(context)), forms)


CONNECTIONS = (
    _raw("disconnect-before-headers", "The connection is closed before the response.", b"", "connection"),
    _raw("disconnect-in-status-line", "The connection is closed within the status line.", b"HTTP/1.1 20", "connection"),
    _raw("disconnect-in-headers", "The connection is closed within a header.", _HEAD + b"content-ty", "connection"),
    _raw("disconnect-after-continue", "The connection is closed after 100 Continue.", _CONTINUE, "connection"),
    _cut("reset-after-headers", "The headers, then a reset.", lambda context: []),
    _cut("cut-after-first-byte", "One byte of the body, then a reset.", lambda context: [context.body[:1]]),
    _cut("cut-in-the-middle", "Half of the body, then a reset.", lambda context: context.first_half),
    _cut("cut-before-the-last-byte", "All but the last byte, then a reset.", lambda context: [context.body[:-1]]),
    _cut("cut-after-first-event", "The first event, then a reset.", lambda context: context.events[:1], STREAM),
    _cut("cut-inside-an-event", "Half of an event, then a reset.", lambda context: context.half_event, STREAM),
    _cut("cut-before-terminal-event", "No terminal event, but a reset.", lambda context: context.events[:-1], STREAM),
)


@fault("connection", replaces=True)
def reset_before_headers(context: FaultContext) -> Answer:
    """A reset instead of a response."""
    return Answer(failure=reset_error())


@fault("connection", forms=STREAM, harmless=STREAM)
def reset_after_terminal_event(context: FaultContext) -> Answer:
    """A complete stream, with a reset instead of the last chunk."""
    return context.respond_cut(context.body)


@fault("connection")
def disconnect_after_headers(context: FaultContext) -> Answer:
    """The headers announce a body, then the connection is closed."""
    headers = {"content-length": str(len(context.body))}
    return context.respond_raw(headers=headers, received=context.respond(disconnect_error()))


@fault("connection")
def cut_inside_a_character(context: FaultContext) -> Answer:
    """Half of the body and the first byte of a two-byte character, then a reset."""
    return context.respond_cut(*context.first_half, b'data: {"x": "\xc3' if context.is_stream else b"\xc3")


@fault("connection")
def chunks_unfinished(context: FaultContext) -> Answer:
    """Half of the chunks, then the connection is closed."""
    half = context.first_half
    return context.respond_chunked(*encode_chunks(half), received=context.respond(*half, disconnect_error()))


@fault("connection", forms=WHOLE)
def last_chunk_missing(context: FaultContext) -> Answer:
    """The whole body without the last chunk. A client cannot know that the body is complete."""
    body = context.body
    return context.respond_chunked(*encode_chunks([body]), received=context.respond(body, disconnect_error()))


@fault("connection")
def body_shorter_than_announced(context: FaultContext) -> Answer:
    """Half of the announced bytes, then the connection is closed."""
    half, headers = context.first_half, {"content-length": str(len(context.body))}
    return context.respond_raw(*half, headers=headers, received=context.respond(*half, disconnect_error()))


@fault("connection")
def body_longer_than_announced(context: FaultContext) -> Answer:
    """The headers announce half of the bytes, so the rest is not part of the response."""
    half = context.first_half
    headers = {"content-length": str(len(b"".join(half)))}
    return context.respond_raw(*context.events, headers=headers, received=context.respond(*half))


@fault("connection")
def http_1_0_cut(context: FaultContext) -> Answer:
    """Half of a body that ends with its connection, so the end looks regular."""
    half = context.first_half
    return context.respond_raw(*half, version="1.0", received=context.respond(*half))


# Invalid HTTP.

FRAMING = (
    _raw("bad-status-line", "A status that is not a number.", b"HTTP/1.1 two hundred\r\n\r\n"),
    _raw("another-protocol", "The greeting of an SSH server.", b"SSH-2.0-OpenSSH_9.6\r\n"),
    _raw("tls-alert", "The alert of a server that expects TLS.", b"\x15\x03\x01\x00\x02\x02\x46"),
    _raw(
        "http-2-frames",
        "The settings frame of a server that supports only HTTP/2.",
        b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64",
    ),
)


def _head(name: str, description: str, head: bytes | Callable[[bytes], bytes]) -> Fault:
    """Return a fault that sends the body behind a malformed head."""

    def apply(context: FaultContext) -> Answer:
        body = context.body
        data = (head if isinstance(head, bytes) else head(body)) + body
        return RawFault((data,), received=Answer(failure=disconnect_error()))

    return Fault(name, description, "framing", apply)


def _encode_two_lengths(body: bytes) -> bytes:
    return _HEAD + b"content-length: %d\r\ncontent-length: %d\r\n\r\n" % (len(body), len(body) + 1)


HEADS = (
    _head("http-0-9", "A body without a head, as in HTTP/0.9.", b""),
    _head("header-without-colon", "A header line without a colon.", _HEAD + b"there is no colon here\r\n\r\n"),
    _head("header-with-nul", "A NUL in the value of a header.", _HEAD + b"x-odd: a\x00b\r\n\r\n"),
    _head("conflicting-lengths", "Two different content lengths.", _encode_two_lengths),
)


def _header(name: str, description: str, header: str, value: str) -> Fault:
    """Return a fault that adds an invalid header."""
    return Fault(
        name, description, "framing", lambda context: context.respond_raw(context.body, headers={header: value})
    )


HEADERS = (
    _header("length-not-a-number", "A content length that is not a number.", "content-length", "many"),
    _header("length-negative", "A negative content length.", "content-length", "-1"),
    _header("transfer-encoding-unknown", "An unknown transfer encoding.", "transfer-encoding", "carrier-pigeon"),
)


@fault("framing", replaces=True)
def protocol_switch(context: FaultContext) -> Answer:
    """101 Switching Protocols, which was not requested."""
    return context.respond_raw(status="101 Switching Protocols", headers={"upgrade": "websocket"})


@fault("framing", replaces=True)
def header_too_long(context: FaultContext) -> Answer:
    """A header of 300 KB."""
    return context.respond_raw(b"{}", headers={"x-long": "y" * 300_000})


@fault("framing", replaces=True)
def too_many_headers(context: FaultContext) -> Answer:
    """Ten thousand headers."""
    return context.respond_raw(b"{}", headers={f"x-{number}": "y" * 20 for number in range(10_000)})


@fault("framing")
def chunk_size_not_a_number(context: FaultContext) -> Answer:
    """A chunk size that is not a number."""
    data = b"zz\r\n" + context.body + b"\r\n" + LAST_CHUNK
    return context.respond_chunked(data, received=context.respond(disconnect_error()))


@fault("framing")
def chunk_size_too_large(context: FaultContext) -> Answer:
    """A chunk size of 40 digits."""
    data = b"f" * 40 + b"\r\n" + context.body
    return context.respond_chunked(data, received=context.respond(disconnect_error()))


@fault("framing")
def chunk_longer_than_size(context: FaultContext) -> Answer:
    """In the middle, a chunk continues after its end."""
    half, rest = context.first_half, b"".join(context.second_half)
    wrong = b"%x\r\n%b\r\n" % (len(rest) // 2, rest)
    received = context.respond(*half, rest[: len(rest) // 2 - 1], disconnect_error())
    return context.respond_chunked(*encode_chunks(half), wrong, LAST_CHUNK, received=received)


@fault("framing")
def chunk_shorter_than_size(context: FaultContext) -> Answer:
    """In the middle, a chunk ends too early, so the last chunk counts as a part of it."""
    half = context.first_half
    wrong = b"fffff\r\n%b\r\n" % context.second_half[0]
    received = context.respond(*half, disconnect_error())
    return context.respond_chunked(*encode_chunks(half), wrong, LAST_CHUNK, received=received)


# Content encodings.


def _compress(pieces: Sequence[bytes]) -> list[bytes]:
    """Compress with gzip, flushed after each piece, as servers compress streams."""
    compressor = zlib.compressobj(wbits=31)
    compressed = [compressor.compress(piece) + compressor.flush(zlib.Z_SYNC_FLUSH) for piece in pieces]
    return [*compressed, compressor.flush()]


def _respond_encoded(context: FaultContext, encoding: str, pieces: Sequence[bytes], received: Answer) -> RawFault:
    headers = {"content-encoding": encoding}
    return context.respond_chunked(*encode_chunks(pieces), LAST_CHUNK, headers=headers, received=received)


def _decode_failure(context: FaultContext, *before: bytes, retryable: bool = True) -> Answer:
    return context.respond(*before, errors.ProtocolError("the content cannot be decoded", retryable=retryable))


def _encoding_rejected() -> Answer:
    error = errors.ProtocolError("the response has a content encoding that was not requested", retryable=False)
    return Answer(failure=error)


@fault("framing")
def gzip_cut(context: FaultContext) -> Answer:
    """Half of a compressed body, which was not requested, in valid chunks."""
    half = context.first_half
    return _respond_encoded(context, "gzip", _compress(half)[:-1], _decode_failure(context, *half))


@fault("framing")
def gzip_mislabeled(context: FaultContext) -> Answer:
    """A plain body that is declared as gzip."""
    return _respond_encoded(context, "gzip", context.events, _decode_failure(context))


@fault("framing")
def encoding_unknown(context: FaultContext) -> Answer:
    """A content encoding that the client does not accept."""
    return _respond_encoded(context, "br", [context.body], _encoding_rejected())


@fault("framing")
def encoding_twice(context: FaultContext) -> Answer:
    """A body that is compressed twice."""
    twice = _compress([b"".join(_compress([context.body]))])
    return _respond_encoded(context, "gzip, gzip", twice, _encoding_rejected())


@fault("size", replaces=True, heavy=True)
def gzip_bomb(context: FaultContext) -> Answer:
    """200 MB of spaces in 200 KB."""
    compressor = zlib.compressobj(9, wbits=31)
    head = compressor.flush(zlib.Z_FULL_FLUSH)
    megabyte = compressor.compress(b" " * 1_000_000) + compressor.flush(zlib.Z_FULL_FLUSH)
    return _respond_encoded(context, "gzip", [head, *[megabyte] * 200], _decode_failure(context, retryable=False))


# Unusual but valid.


@fault("harmless", harmless=BOTH)
def gzip_unrequested(context: FaultContext) -> Answer:
    """A body compressed with gzip, which was not requested."""
    return _respond_encoded(context, "gzip", _compress(context.events), context.respond(context.body))


@fault("harmless", harmless=BOTH)
def deflate_unrequested(context: FaultContext) -> Answer:
    """A body compressed with deflate, which was not requested."""
    return _respond_encoded(context, "deflate", [zlib.compress(context.body)], context.respond(context.body))


@fault("harmless", harmless=BOTH)
def http_1_0(context: FaultContext) -> Answer:
    """A body that ends with its connection."""
    return context.respond_raw(context.body, version="1.0", received=context.respond(context.body))


@fault("harmless", harmless=BOTH)
def early_hints(context: FaultContext) -> Answer:
    """103 Early Hints before the response."""
    hints = b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n"
    received = context.respond(context.body)
    answer = context.respond_chunked(*encode_chunks(context.events), LAST_CHUNK, received=received)
    return RawFault((hints, *answer.pieces), received=received)


@fault("harmless", harmless=BOTH)
def chunks_with_extensions(context: FaultContext) -> Answer:
    """Chunks with extensions, and a trailer."""
    chunks = [b"%x;name=value\r\n%b\r\n" % (len(event), event) for event in context.events]
    received = context.respond(context.body)
    return context.respond_chunked(*chunks, b"0\r\nx-checksum: 7\r\n\r\n", received=received)


@fault("harmless", harmless=BOTH)
def chunks_of_one_byte(context: FaultContext) -> Answer:
    """Chunks of one byte."""
    pieces = [bytes([byte]) for byte in context.body]
    return context.respond_chunked(b"".join(encode_chunks(pieces)), LAST_CHUNK, received=context.respond(*pieces))


@fault("harmless", harmless=BOTH)
def headers_uppercase(context: FaultContext) -> Answer:
    """Header names in upper case, and spaces around values."""
    body = context.body
    headers = {name.upper(): f"   {value}  " for name, value in context.headers.items()}
    unusual = FaultContext(context.request, Answer([body], headers=headers))
    return unusual.respond_raw(body, headers={"Content-LENGTH": str(len(body))}, received=context.respond(body))
