"""HTTP/1.1 messages: request heads, an incremental response parser, decompression and body buffers.

It supports one request with one response and no protocol upgrades. The result does not depend on how the bytes are cut.
It accepts the same responses as h11, the reference of the tests, but for these decisions:

- A chunk-size line has a limit, and may not contain a CR except at its end: servers disagree about where it would end.
- Trailer fields are discarded after a check of their syntax; Content-Length and Transfer-Encoding in them mean nothing.
- Few interim responses (status 100 to 199) are skipped, and 101 is refused: this client never asks for an upgrade.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .. import errors
from ..engine.wire import Headers
from ..types.secrets import RESERVED_HEADERS

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_HEAD_BYTES = 100 * 1024
"""Size limit of a response head, and of a trailer."""
MAX_CHUNK_LINE_BYTES = 8 * 1024
"""Size limit of a chunk-size line, including its line break."""
MAX_INTERIM_RESPONSES = 20
"""Limit of interim responses. Endless ones would keep a core busy until the timeout."""

# As in RFC 9112, but also with the bare line feeds that some servers send.
_BLANK_LINE = re.compile(rb"\r?\n")
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_STATUS = re.compile(r"HTTP/([0-9]\.[0-9]) ([1-9][0-9]{2})(?: [^\x00\n\r\x0b\x0c]*)?\r?\n")
_FIELD = re.compile(r"([-!#$%&'*+.^_`|~0-9a-zA-Z]+):([^\x00\n\r\x0b\x0c]*)\r?\n")
_FIELDS = re.compile(r"(?:[-!#$%&'*+.^_`|~0-9a-zA-Z]+:[^\x00\n\r\x0b\x0c]*\r?\n)*\r?\n?")
_FOLDED = re.compile(r"\r?\n[ \t]+")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,20})(?:;[^\r\n]*+)?[ \t]*\r\n")
_LENGTH = re.compile(r"[0-9]{1,20}")
_TARGET = re.compile(r"[\x21-\x7e]+")
_NAME = re.compile(rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]+")
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_RESERVED = frozenset(name.encode() for name in RESERVED_HEADERS)


class BadResponse(Exception):
    """Invalid or incomplete HTTP response."""


class BadRequest(ValueError):
    """Invalid request. `detail` states the reason without quoting a value that may be a key."""

    def __init__(self, detail: str, *, field: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field


def validate_encoded_header(name: bytes, value: bytes) -> None:
    """Reject a header that HTTP does not allow, or that the client sets itself."""
    if not _NAME.fullmatch(name):
        raise BadRequest("a header name contains a character that HTTP does not allow", field="headers")
    if name.lower() in _RESERVED:
        raise BadRequest(f"the header {name.decode()} is set by the HTTP client", field="headers")
    if not _VALUE.fullmatch(value):
        raise BadRequest(f"the header {name.decode()} contains a character that HTTP does not allow", field="headers")


class RequestHead:
    """Origin and encoded head of requests to one URL, up to the value of Content-Length."""

    __slots__ = ("encoded", "host", "origin", "port", "secure")

    def __init__(self, url: str, headers: Iterable[tuple[bytes, bytes]], method: str = "POST") -> None:
        try:
            parts = urlsplit(url)
            port, host = parts.port, parts.hostname
        except ValueError:
            raise BadRequest("the URL is invalid", field="base_url") from None
        if parts.scheme not in ("http", "https") or not host or not host.isascii() or port == 0:
            raise BadRequest("the URL does not start with http:// or https:// and a host", field="base_url")
        self.secure: bool = parts.scheme == "https"
        self.host: str = host
        self.port: int = port or (443 if self.secure else 80)
        self.origin: tuple[bool, str, int] = (self.secure, self.host, self.port)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        bracketed = f"[{host}]" if ":" in host else host
        if not _TARGET.fullmatch(target):
            raise BadRequest("the URL contains a character that HTTP does not allow", field="base_url")
        lines = [(b"host", (bracketed if port is None else f"{bracketed}:{port}").encode())]
        for name, value in headers:
            validate_encoded_header(name, value)
            lines.append((name, value))
        if not any(name.lower() == b"accept-encoding" for name, _ in lines):
            lines.append((b"accept-encoding", b"identity"))
        fields = b"".join(b"%b: %b\r\n" % line for line in lines)
        self.encoded: bytes = b"%b %b HTTP/1.1\r\n%bcontent-length: " % (method.encode(), target.encode(), fields)


_UNTIL_EOF = -1
_CHUNKED = -2


class ResponseParser:
    """Incremental parser for one HTTP response.

    Call `feed_head` until it returns True, then `feed_rest` once and `feed` for each further piece; `feed_eof` at the
    end of the connection. Valid body bytes before an error are returned first; `failure` then holds the error.
    """

    __slots__ = (
        "_buffer",
        "_in_trailer",
        "_interim",
        "_missing",
        "_missing_in_chunk",
        "complete",
        "failure",
        "headers",
        "keep_alive",
        "started",
        "status",
    )

    def __init__(self) -> None:
        self.started: bool = False
        """Whether any byte of the response has arrived."""
        self.complete: bool = False
        """Whether the whole body has arrived."""
        self.keep_alive: bool = False
        """Whether the connection can carry another request."""
        self.failure: BadResponse | None = None
        """The error after the bytes returned last, to be raised before more are received."""
        self.status: int = 0
        self.headers: Headers = Headers()
        self._buffer = b""
        """Received bytes that cannot be parsed yet."""
        self._missing = 0
        """Missing bytes of the body, or one of the constants above."""
        self._missing_in_chunk = 0
        """Missing bytes of the current chunk, including its line break."""
        self._in_trailer = False
        self._interim = 0

    # The head

    def feed_head(self, data: bytes) -> bool:
        """Parse bytes of the head, past interim responses. Returns whether the head is complete."""
        if not data:
            self.feed_eof()
        self.started = True
        buffer = self._buffer + data if self._buffer else data
        searched = max(0, len(self._buffer) - 3)
        while (end := _END_OF_HEAD.search(buffer, searched)) is not None:
            if end.end() > MAX_HEAD_BYTES:
                raise BadResponse("the response head is too long")
            self._parse_head(buffer[: end.end()].decode("latin-1"))
            buffer = buffer[end.end() :]
            if self.status >= 200:
                self._buffer = buffer
                return True
            if self.status == 101:
                raise BadResponse("the server switched to another protocol")
            self._interim += 1
            if self._interim > MAX_INTERIM_RESPONSES:
                raise BadResponse("the server sent too many interim responses")
            self.headers = Headers()
            searched = 0
        if len(buffer) > MAX_HEAD_BYTES:
            raise BadResponse("the response head is too long")
        if buffer[:5] != b"HTTP/"[: len(buffer)]:
            raise BadResponse("the response is not HTTP")
        self._buffer = buffer
        return False

    def _parse_head(self, head: str) -> None:
        status = _STATUS.match(head)
        if status is None:
            raise BadResponse("the response has no status line")
        begin = status.end()
        if _FIELDS.fullmatch(head, begin) is None:
            head = _FOLDED.sub(" ", head[begin:])  # folded header lines are obsolete, but still seen
            begin = 0
            if _FIELDS.fullmatch(head) is None:
                raise BadResponse("the response has an invalid header")
        self.status = int(status[2])
        headers = self.headers
        for name, value in _FIELD.findall(head, begin):
            name, value = name.lower(), value.strip(" \t")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        if self.status < 200:
            return
        self._detect_body_length()
        self.keep_alive = status[1] == "1.1" and "close" not in headers.get("connection", "").lower()

    def _detect_body_length(self) -> None:
        headers = self.headers
        length = headers.get("content-length")
        if length is not None and not length.isdecimal():
            lengths = {each.strip() for each in length.split(",")}
            headers["content-length"] = length = lengths.pop()
            if lengths:
                raise BadResponse("the response has two different content lengths")
        if length is not None and not _LENGTH.fullmatch(length):
            raise BadResponse("the response has an invalid content length")
        encoding = headers.get("transfer-encoding")
        if encoding is not None:
            headers["transfer-encoding"] = encoding = encoding.lower()
            if encoding != "chunked":
                raise BadResponse("the response has a transfer encoding other than chunked")
        if self.status in (204, 304):
            self.complete = True
        elif encoding is not None:
            self._missing = _CHUNKED
        elif length is not None:
            self._missing = int(length)
            self.complete = self._missing == 0
        else:
            self._missing = _UNTIL_EOF

    # The body

    def feed_rest(self) -> bytes:
        """Return the body bytes that arrived together with the head."""
        data, self._buffer = self._buffer, b""
        return self.feed(data) if data or self.complete else b""

    def feed(self, data: bytes) -> bytes:
        """Return the body bytes in received data."""
        if self.failure is not None:
            raise self.failure
        if self.complete:
            self.keep_alive = self.keep_alive and not data  # unsolicited bytes
            return b""
        missing = self._missing
        if missing == _CHUNKED:
            return self._feed_chunks(data)
        if missing == _UNTIL_EOF:
            self.keep_alive = False
            return data
        size = len(data)
        if size < missing:
            self._missing = missing - size
            return data
        self.complete = True
        self._missing = 0
        if size > missing:
            self.keep_alive = False
            return data[:missing]
        return data

    def _feed_chunks(self, data: bytes) -> bytes:
        """Parse a chunked body."""
        searched = len(self._buffer)
        if searched:
            data, self._buffer = self._buffer + data, b""
        pieces: list[bytes] = []
        try:
            self._split_chunks(data, searched, pieces)
        except BadResponse as error:
            if not pieces:
                raise
            self.failure = error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _split_chunks(self, data: bytes, searched: int, pieces: list[bytes]) -> None:
        size = len(data)
        at = 0
        if self._missing_in_chunk and not self._in_trailer:
            at = self._finish_chunk(data, pieces)
        while at < size and not self.complete:
            if self._in_trailer:
                self._skip_trailer(data[at:], max(0, searched - at - 3))
                break
            line = _CHUNK.match(data, at)
            if line is None:
                self._buffer_chunk_line(data[at:])
                break
            start = line.end()
            if start - at > MAX_CHUNK_LINE_BYTES:
                raise BadResponse("the response has a chunk-size line that is too long")
            length = int(line[1], 16)
            if length == 0:
                self._in_trailer = True
                at = start
                continue
            stop = start + length
            if stop + 2 > size:
                pieces.append(data[start:stop])
                self._missing_in_chunk = stop + 2 - size
                if stop < size and data[stop] != 13:
                    raise BadResponse("a chunk of the response is longer than its size")
                break
            pieces.append(data[start:stop])
            if data[stop : stop + 2] != b"\r\n":
                raise BadResponse("a chunk of the response is longer than its size")
            at = stop + 2

    def _finish_chunk(self, data: bytes, pieces: list[bytes]) -> int:
        """Parse the end of a chunk that started in earlier data. Returns the number of bytes consumed."""
        missing = self._missing_in_chunk
        size = len(data)
        if missing > 2:
            pieces.append(data[: missing - 2])
        taken = min(size, missing)
        ending = data[max(0, missing - 2) : taken]
        if ending != b"\r\n"[2 - min(2, missing) :][: len(ending)]:
            raise BadResponse("a chunk of the response is longer than its size")
        self._missing_in_chunk = missing - taken
        return taken

    def _buffer_chunk_line(self, rest: bytes) -> None:
        """Keep an incomplete chunk-size line."""
        if b"\r\n" in rest or len(rest) >= MAX_CHUNK_LINE_BYTES:
            raise BadResponse("the response has an invalid chunk size")
        self._buffer = rest

    def _skip_trailer(self, rest: bytes, searched: int) -> None:
        """Skip the trailer fields after the last chunk. The first `searched` bytes have no end of them."""
        blank = _BLANK_LINE.match(rest)
        if blank is not None:
            end = blank.end()
        else:
            end_of_trailer = _END_OF_HEAD.search(rest, searched)
            end = len(rest) if end_of_trailer is None else end_of_trailer.end()
            if end > MAX_HEAD_BYTES:
                raise BadResponse("the response trailer is too long")
            if end_of_trailer is None:
                self._buffer = rest
                return
            if _FIELDS.fullmatch(_FOLDED.sub(" ", rest[:end].decode("latin-1"))) is None:
                raise BadResponse("the response has an invalid trailer")
        self.complete = True
        if len(rest) > end:
            self.keep_alive = False

    def feed_eof(self) -> None:
        """Handle the end of the connection. Raises BadResponse if the response is incomplete."""
        self.keep_alive = False
        if self.complete:
            return
        if self.status < 200:
            when = "before the response head was complete" if self._buffer else "without sending a response"
            raise BadResponse(f"the server closed the connection {when}")
        if self._missing != _UNTIL_EOF:
            missing = "some chunks" if self._missing == _CHUNKED else f"{self._missing} bytes"
            raise BadResponse(f"the server closed the connection with {missing} of the response missing")
        self.complete = True


MAX_RATIO = 100
"""The highest compression ratio accepted, as a defence against decompression bombs."""
_SMALL = 64 * 1024
"""Up to this size any ratio is accepted."""
_BLOCK = 1024
"""Compressed bytes between two checks of the ratio, so that it does not depend on how the body is cut."""


class Decompressor:
    """Incremental gzip and deflate decompression with a limit on the ratio."""

    __slots__ = ("_compressed", "_decompressed", "_encoding", "_zlib")

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._zlib: Any = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._compressed = 0
        self._decompressed = 0

    def feed(self, chunk: bytes) -> bytes:
        pieces: list[bytes] = []
        start = 0
        while start < len(chunk):
            stop = start + _BLOCK - self._compressed % _BLOCK
            block = chunk[start:stop]
            self._compressed += len(block)
            pieces.append(self._decompress(block))
            if self._compressed % _BLOCK == 0:
                self._check_ratio()
            start = stop
        return b"".join(pieces)

    def _decompress(self, block: bytes) -> bytes:
        data = b""
        try:
            while block:
                if self._zlib.eof:
                    # A gzip stream may have several members: some servers end one with every flush.
                    self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 32)
                data += self._zlib.decompress(block)
                block = self._zlib.unused_data
        except zlib.error as error:
            raise errors.ProtocolError(f"the response body is not valid {self._encoding}") from error
        self._decompressed += len(data)
        return data

    def _check_ratio(self) -> None:
        if self._decompressed > max(_SMALL, self._compressed * MAX_RATIO):
            raise errors.ProtocolError(f"the response decompresses to over {MAX_RATIO} times its size", retryable=False)

    def finish(self) -> bytes:
        """Return the remaining bytes. Raises if the compressed stream is incomplete."""
        if self._zlib is None:
            return b""
        self._check_ratio()
        data: bytes = self._zlib.flush()
        if self._compressed and not self._zlib.eof:
            raise errors.ProtocolError(f"the {self._encoding} response body is incomplete")
        self._zlib = None
        return data


def decompressor_for(encoding: str | None) -> Decompressor | None:
    """The decompressor for a Content-Encoding header; None for `identity`."""
    name = (encoding or "identity").strip().lower()
    if name in ("", "identity"):
        return None
    if name in ("gzip", "x-gzip", "deflate"):
        return Decompressor(name)
    raise errors.ProtocolError(f"the response has the unsupported content encoding {name!r}", retryable=False)


class BodyBuffer:
    """Buffer for the pieces of a body; raises when they exceed the limit."""

    __slots__ = ("_buffer", "_first", "_max_bytes", "_size")

    def __init__(self, headers: Mapping[str, str], max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._first = b""
        self._buffer: BytesIO | None = None
        """All pieces from the second one on: joining a list would need twice the memory."""
        self._size = 0
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > max_bytes:
            raise self._too_large()

    def add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._max_bytes:
            self._first, self._buffer = b"", None  # the error must not keep the megabytes alive
            raise self._too_large()
        if self._buffer is not None:
            self._buffer.write(piece)
        elif self._first:
            self._buffer = BytesIO()
            self._buffer.write(self._first)
            self._buffer.write(piece)
        else:
            self._first = piece

    def join(self) -> bytes:
        return self._first if self._buffer is None else self._buffer.getvalue()

    def _too_large(self) -> errors.ProtocolError:
        return errors.ProtocolError(f"the response is larger than {self._max_bytes} bytes", retryable=False)
