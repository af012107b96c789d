"""HTTP/1.1 as bytes: the head of a request, and an incremental parser for its response.

It covers what calling a model needs: one POST, one response, no upgrades. It accepts what h11 accepts, which the tests
compare it with.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..engine.wire import Headers
from ..types.secrets import RESERVED_HEADERS

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_HEAD_BYTES = 100 * 1024
"""The longest head, or trailer, taken from a server."""
MAX_CHUNK_LINE_BYTES = 8 * 1024
"""The longest line that announces a chunk."""

# Blank lines, header lines and chunk lines as the RFC has them and as servers in the wild write them.
_BLANK_LINE = re.compile(rb"\r?\n")
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_STATUS = re.compile(r"HTTP/([0-9]\.[0-9]) ([1-9][0-9]{2})(?: [^\x00\r\n]*)?\r?\n")
_FIELD = re.compile(r"([-!#$%&'*+.^_`|~0-9a-zA-Z]+):([^\x00\n\r\x0b\x0c]*)\r?\n")
_FIELDS = re.compile(r"(?:[-!#$%&'*+.^_`|~0-9a-zA-Z]+:[^\x00\n\r\x0b\x0c]*\r?\n)*\r?\n?")
_FOLDED = re.compile(r"\r?\n[ \t]+")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;[^\r\n]*)?[ \t]*\r\n")
_LENGTH = re.compile(r"[0-9]{1,20}")
_TARGET = re.compile(r"[\x21-\x7e]+")
_NAME = re.compile(rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]+")
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_RESERVED = frozenset(name.encode() for name in RESERVED_HEADERS)


class BadResponse(Exception):
    """What came is not an HTTP response, or not all of one."""


class BadRequest(ValueError):
    """The request cannot be sent. `detail` says why, without quoting a value that may be a key."""

    def __init__(self, detail: str, *, field: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field


def check_header(name: bytes, value: bytes) -> None:
    """Refuse a header that HTTP does not allow, or that the connection sets itself."""
    if not _NAME.fullmatch(name):
        raise BadRequest("the name of a header has a character that HTTP does not allow", field="headers")
    if name.lower() in _RESERVED:
        raise BadRequest(f"the header {name.decode()} is set by the HTTP client", field="headers")
    if not _VALUE.fullmatch(value):
        raise BadRequest(f"the header {name.decode()} has a character that HTTP does not allow", field="headers")


class Address:
    """Where a URL leads, worked out once: an origin to connect to, and a head that lacks only the body's length."""

    __slots__ = ("head", "host", "origin", "port", "secure")

    def __init__(self, url: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        try:
            parts = urlsplit(url)
            port, host = parts.port, parts.hostname
        except ValueError:
            raise BadRequest("the URL cannot be read", field="base_url") from None
        if parts.scheme not in ("http", "https") or not host or not host.isascii() or port == 0:
            raise BadRequest("the URL does not begin with http:// or https:// and a host", field="base_url")
        self.secure = parts.scheme == "https"
        self.host = host
        self.port = port or (443 if self.secure else 80)
        self.origin = (self.secure, self.host, self.port)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        shown = f"[{host}]" if ":" in host else host
        if not _TARGET.fullmatch(target):
            raise BadRequest("the URL has a character that HTTP does not allow", field="base_url")
        lines = [(b"host", (shown if port is None else f"{shown}:{port}").encode())]
        for name, value in headers:
            check_header(name, value)
            lines.append((name, value))
        if not any(name.lower() == b"accept-encoding" for name, _ in lines):
            lines.append((b"accept-encoding", b"identity"))
        written = b"".join(b"%b: %b\r\n" % line for line in lines)
        self.head = b"POST %b HTTP/1.1\r\n%bcontent-length: " % (target.encode(), written)

    def request(self, body: bytes) -> bytes:
        """The head for this body; the body itself follows it."""
        return b"%b%d\r\n\r\n" % (self.head, len(body))


_UNTIL_THE_END = -1
_CHUNKED = -2


class ResponseReader:
    """Incremental parser for one HTTP response.

    `take_head` until it returns True, then `take` for each further piece; `end` when the bytes have ended. `complete`
    says that the whole body has come, `reusable` that the connection can carry another request. Bytes that came before
    something broke are handed out first; what broke is in `failure` then.
    """

    __slots__ = ("_held", "_in_chunk", "_left", "_trailing", "complete", "failure", "headers", "reusable", "status")

    def __init__(self) -> None:
        self.failure: BadResponse | None = None
        """What is wrong behind what has been handed out: to be raised before more is asked for."""
        self.status = 0
        self.headers = Headers()
        self.complete = False
        self.reusable = False
        self._held = b""
        """Bytes that cannot be understood before more have come."""
        self._left = 0
        """How many bytes of the body are missing, if that is known."""
        self._in_chunk = 0
        """Bytes missing of the current chunk, the line break after it included."""
        self._trailing = False

    # The head

    def take_head(self, data: bytes) -> bool:
        """Whether the head is complete. What followed it is then had with `rest`."""
        held = self._held + data if self._held else data
        looked_at = max(0, len(self._held) - 3)
        while (end := _END_OF_HEAD.search(held, looked_at)) is not None:
            if end.end() > MAX_HEAD_BYTES:
                raise BadResponse("the head of the response is too long")
            self._read_head(held[: end.end()].decode("latin-1"))
            held = held[end.end() :]
            if self.status >= 200:
                self._held = held
                return True
            if self.status == 101:
                raise BadResponse("the server changes to another protocol")
            self.headers = Headers()  # it only says that an answer is coming
            looked_at = 0
        if len(held) > MAX_HEAD_BYTES:
            raise BadResponse("the head of the response is too long")
        if held[:5] != b"HTTP/"[: len(held)]:
            raise BadResponse("what came is not HTTP")
        self._held = held
        return False

    def _read_head(self, head: str) -> None:
        status = _STATUS.match(head)
        if status is None:
            raise BadResponse("the response has no status line")
        begin = status.end()
        if _FIELDS.fullmatch(head, begin) is None:
            head = _FOLDED.sub(" ", head[begin:])  # lines that go on in the next one are obsolete, but seen
            begin = 0
            if _FIELDS.fullmatch(head) is None:
                raise BadResponse("the response has a header that cannot be read")
        self.status = int(status[2])
        headers = self.headers
        for name, value in _FIELD.findall(head, begin):
            name, value = name.lower(), value.strip(" \t")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        if self.status < 200:
            return
        self._frame()
        self.reusable = status[1] == "1.1" and "close" not in headers.get("connection", "").lower()

    def _frame(self) -> None:
        """How the body's end is found."""
        headers = self.headers
        length = headers.get("content-length")
        if length is not None and not length.isdecimal():
            lengths = {each.strip() for each in length.split(",")}
            headers["content-length"] = length = lengths.pop()
            if lengths:
                raise BadResponse("the response has two lengths")
        if length is not None and not _LENGTH.fullmatch(length):
            raise BadResponse("the response has no readable length")
        encoding = headers.get("transfer-encoding")
        if encoding is not None:
            headers["transfer-encoding"] = encoding = encoding.lower()
            if encoding != "chunked":
                raise BadResponse("the response has a transfer encoding other than chunked")
        if self.status in (204, 304):
            self.complete = True
        elif encoding is not None:
            self._left = _CHUNKED
        elif length is not None:
            self._left = int(length)
            self.complete = self._left == 0
        else:
            self._left = _UNTIL_THE_END

    # The body

    def rest(self) -> bytes:
        """What came of the body together with the head."""
        data, self._held = self._held, b""
        return self.take(data) if data or self.complete else b""

    def take(self, data: bytes) -> bytes:
        """What of these bytes belongs to the body."""
        if self.failure is not None:
            raise self.failure
        if self.complete:
            self.reusable = self.reusable and not data  # nobody asked for more
            return b""
        left = self._left
        if left == _CHUNKED:
            return self._take_chunks(data)
        if left == _UNTIL_THE_END:
            self.reusable = False
            return data
        size = len(data)
        if size < left:
            self._left = left - size
            return data
        self.complete = True
        self._left = 0
        if size > left:
            self.reusable = False
            return data[:left]
        return data

    def _take_chunks(self, data: bytes) -> bytes:
        if self._held:
            data, self._held = self._held + data, b""
        pieces: list[bytes] = []
        try:
            self._split_chunks(data, pieces)
        except BadResponse as error:
            if not pieces:
                raise
            self.failure = error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _split_chunks(self, data: bytes, pieces: list[bytes]) -> None:
        size = len(data)
        at = 0
        if self._in_chunk and not self._trailing:
            at = self._take_rest_of_chunk(data, pieces)
        while at < size and not self.complete:
            if self._trailing:
                self._take_trailer(data[at:])
                break
            line = _CHUNK.match(data, at)
            if line is None:
                self._hold_line(data[at:])
                break
            start = line.end()
            length = int(line[1], 16)
            if length == 0:
                self._trailing = True
                at = start
                continue
            stop = start + length
            if stop + 2 > size:
                pieces.append(data[start:stop])
                self._in_chunk = stop + 2 - size
                if stop < size and data[stop] != 13:
                    raise BadResponse("a chunk of the response is longer than it says")
                break
            pieces.append(data[start:stop])
            if data[stop : stop + 2] != b"\r\n":
                raise BadResponse("a chunk of the response is longer than it says")
            at = stop + 2

    def _take_rest_of_chunk(self, data: bytes, pieces: list[bytes]) -> int:
        """The end of a chunk that was begun before; how many bytes that took."""
        missing = self._in_chunk
        size = len(data)
        if missing > 2:
            pieces.append(data[: missing - 2])
        taken = min(size, missing)
        ending = data[max(0, missing - 2) : taken]
        if ending != b"\r\n"[2 - min(2, missing) :][: len(ending)]:
            raise BadResponse("a chunk of the response is longer than it says")
        self._in_chunk = missing - taken
        return taken

    def _hold_line(self, rest: bytes) -> None:
        """The line that announces a chunk is not complete, or not one."""
        if b"\r\n" in rest or len(rest) > MAX_CHUNK_LINE_BYTES:
            raise BadResponse("a chunk of the response has no readable size")
        self._held = rest

    def _take_trailer(self, rest: bytes) -> None:
        """After the last chunk: headers that nobody reads, and a blank line."""
        blank = _BLANK_LINE.match(rest)
        if blank is not None:
            end = blank.end()
        else:
            found = _END_OF_HEAD.search(rest)
            if found is None:
                if len(rest) > MAX_HEAD_BYTES:
                    raise BadResponse("the trailer of the response is too long")
                self._held = rest
                return
            end = found.end()
            if _FIELDS.fullmatch(_FOLDED.sub(" ", rest[:end].decode("latin-1"))) is None:
                raise BadResponse("the response has a trailer that cannot be read")
        self.complete = True
        if len(rest) > end:
            self.reusable = False

    def end(self) -> None:
        """The bytes have ended. Raises if they ended too early."""
        self.reusable = False
        if self.complete:
            return
        if self.status < 200:
            began = "before its head was complete" if self._held else "without sending a response"
            raise BadResponse(f"the server closed the connection {began}")
        if self._left != _UNTIL_THE_END:
            missing = "a part of its chunks" if self._left == _CHUNKED else f"{self._left} bytes"
            raise BadResponse(f"the server closed the connection with {missing} of the response missing")
        self.complete = True
