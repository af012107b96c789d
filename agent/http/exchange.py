"""One HTTP exchange, written once for blocking and asyncio connections.

An exchange is a generator of socket operations: it yields bytes to send, or RECEIVE to get the next bytes (b"" at the
end of the connection). `connections` and `asyncio_connections` perform them; neither knows HTTP.
"""

from __future__ import annotations

import errno
import sys
import zlib
from collections.abc import Generator, Mapping
from io import BytesIO
from typing import Any, TypeAlias, TypeVar

from .. import errors
from ..engine.wire import Limits, Reply, WireRequest
from .parser import Address, BadRequest, BadResponse, ResponseReader


def check_status(status: int) -> None:
    """Refuse a status that only a proxy sends."""
    if status == 407:
        raise errors.ConnectionError("proxy authentication required (status 407)", retryable=False)


def describe(error: Exception, request: WireRequest) -> str:
    detail = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{request.target}: {detail}" if request.target else detail


def unsendable(error: Exception) -> errors.ConfigurationError:
    """A request that cannot be sent. A library's own message may quote a header, and so a key."""
    if isinstance(error, BadRequest):
        return errors.ConfigurationError(
            f"The request cannot be sent: {error.detail}.", field=error.field, fix="Check URL and headers."
        )
    return errors.ConfigurationError(
        f"The request cannot be sent: {type(error).__name__}.", field="base_url", fix="Check URL and headers."
    )


def map_error(error: Exception, request: WireRequest) -> Exception:
    """A socket or protocol error as an AgentError. Any other exception is a bug and is raised as it is."""
    match error:
        case BadRequest():
            return unsendable(error)
        case BadResponse():
            return errors.ConnectionError(describe(error, request))
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            return errors.PoolExhaustedError(describe(error, request))
        case TimeoutError():
            return errors.TimeoutError(describe(error, request))
        case OSError() | UnicodeError():
            return errors.ConnectionError(describe(error, request), retryable=not is_untrusted(error))
        case _:
            raise error


def cause_of(error: Exception) -> Exception | None:
    """The cause to chain; None for a parser error, whose frames hold the vendor's words."""
    return None if isinstance(error, BadResponse) else error


_CERTIFICATE_ALERTS = (
    "ALERT_ACCESS_DENIED",
    "ALERT_BAD_CERTIFICATE",
    "ALERT_CERTIFICATE_EXPIRED",
    "ALERT_CERTIFICATE_REQUIRED",
    "ALERT_CERTIFICATE_REVOKED",
    "ALERT_CERTIFICATE_UNKNOWN",
    "ALERT_HANDSHAKE_FAILURE",
    "ALERT_UNKNOWN_CA",
    "ALERT_UNSUPPORTED_CERTIFICATE",
)
"""Alerts that refuse a client certificate, or the lack of one, as OpenSSL names them. None goes away by itself."""


def is_untrusted(error: BaseException) -> bool:
    """Whether a certificate was refused, the server's or ours. It will not be accepted next time either."""
    ssl = sys.modules.get("ssl")  # not loaded: no certificate was verified
    cause: BaseException | None = error if ssl is not None else None
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):  # type: ignore[union-attr]
            return True
        if isinstance(cause, ssl.SSLError) and str(getattr(cause, "reason", "")).endswith(_CERTIFICATE_ALERTS):  # type: ignore[union-attr]
            return True
        cause = cause.__cause__ or cause.__context__
    return False


MAX_RATIO = 100
_SMALL = 64 * 1024
"""Below this size no ratio is suspicious."""


class Inflater:
    """Unpacks gzip and deflate."""

    __slots__ = ("_encoding", "_packed", "_unpacked", "_zlib")

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._zlib: Any = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._packed = 0
        self._unpacked = 0

    def feed(self, chunk: bytes) -> bytes:
        self._packed += len(chunk)
        data = self._unpack(chunk)
        while self._zlib.eof and (rest := self._zlib.unused_data):
            # gzip may be several packages in a row: some servers close one with every flush
            self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 32)
            data += self._unpack(rest)
        return data

    def _unpack(self, chunk: bytes) -> bytes:
        limit = max(_SMALL, self._packed * MAX_RATIO)
        try:
            # One more than allowed tells that there is more; and zero would mean no limit.
            data: bytes = self._zlib.decompress(chunk, limit - self._unpacked + 1)
        except zlib.error as error:
            raise errors.ProtocolError(f"the answer's {self._encoding} encoding is broken") from error
        self._unpacked += len(data)
        if self._unpacked > limit or self._zlib.unconsumed_tail:
            raise errors.ProtocolError(f"the answer unpacks to more than {MAX_RATIO} times its size", retryable=False)
        return data

    def finish(self) -> bytes:
        """What is left at the end, once; a stream that was cut is an error."""
        if self._zlib is None:
            return b""
        data: bytes = self._zlib.flush()
        if self._packed and not self._zlib.eof:
            raise errors.ProtocolError(f"the answer's {self._encoding} encoding was cut off")
        self._zlib = None
        return data


def inflater_for(encoding: str | None) -> Inflater | None:
    """An inflater for a Content-Encoding header; None if the bytes are plain."""
    name = (encoding or "identity").strip().lower()
    if name in ("", "identity"):
        return None
    if name in ("gzip", "x-gzip", "deflate"):
        return Inflater(name)
    raise errors.ProtocolError(f"the answer came in the encoding {name!r}, which was not asked for", retryable=False)


class Collector:
    """Collects the pieces of a body and raises when they exceed the limit."""

    __slots__ = ("_buffer", "_first", "_max_bytes", "_size")

    def __init__(self, headers: Mapping[str, str], max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._first = b""
        self._buffer: BytesIO | None = None
        """The whole body once it has come in several pieces: joining a list would need twice the memory."""
        self._size = 0
        announced = headers.get("content-length", "")
        if announced.isdigit() and int(announced) > max_bytes:
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

    def finish(self) -> bytes:
        return self._first if self._buffer is None else self._buffer.getvalue()

    def _too_large(self) -> errors.ProtocolError:
        return errors.ProtocolError(f"the answer is larger than {self._max_bytes} bytes", retryable=False)


T = TypeVar("T")
RECEIVE = None
Exchange: TypeAlias = Generator[memoryview | None, bytes, T]

_JOINED_BYTES = 64 * 1024
"""Bodies up to this size are sent together with the head: one system call instead of two."""


class StaleConnection(Exception):
    """The server closed a kept-alive connection before it sent a byte of the response."""


class ResponseExchange:
    """Sends one request and reads its response, whole or piece by piece."""

    __slots__ = ("_address", "_inflater", "_reader", "_received", "_request", "_rest_taken", "_reused", "max_bytes")

    def __init__(self, request: WireRequest, address: Address, limits: Limits, *, reused: bool) -> None:
        self.max_bytes = limits.max_bytes
        self._request = request
        self._address = address
        self._reader = ResponseReader()
        self._inflater: Inflater | None = None
        self._reused = reused
        self._received = False
        self._rest_taken = False

    @property
    def status(self) -> int:
        return self._reader.status

    @property
    def headers(self) -> dict[str, str]:
        return self._reader.headers

    @property
    def keeps_connection(self) -> bool:
        """Whether the response was read to its end and the connection can carry another request."""
        return self._reader.complete and self._reader.reusable

    def start(self) -> Exchange[None]:
        """Send the request and read the head of the response, past interim responses."""
        try:
            yield from self._send()
            yield from self._read_head()
        except TimeoutError:
            raise
        except (OSError, BadResponse) as error:
            if self._reused and not self._received:
                raise StaleConnection from error
            raise
        check_status(self.status)
        self._inflater = inflater_for(self.headers.get("content-encoding"))

    def _send(self) -> Exchange[None]:
        body = self._request.body
        # Views, because the head holds a key: tracebacks that show local variables must not show it.
        try:
            if len(body) <= _JOINED_BYTES:
                yield memoryview(self._address.request(body) + body)
            else:
                yield memoryview(self._address.request(body))
                yield memoryview(body)
        except TimeoutError:
            raise
        except OSError:
            pass  # a server may reply and close before it has read the whole request: read its reply

    def _read_head(self) -> Exchange[None]:
        reader = self._reader
        while data := (yield RECEIVE):
            self._received = True
            if reader.take_head(data):
                return
        reader.end()
        raise BadResponse("the server closed the connection")

    def read(self) -> Exchange[bytes]:
        """The next piece of the body, b"" at its end."""
        reader = self._reader
        if not self._rest_taken:
            self._rest_taken = True
            if piece := self._inflate(reader.rest()):
                return piece
        while not reader.complete:
            if reader.failure is not None:
                raise reader.failure
            data = yield RECEIVE
            if not data:
                reader.end()
                break
            if piece := self._inflate(reader.take(data)):
                return piece
        return b"" if self._inflater is None else self._inflater.finish()

    def _inflate(self, piece: bytes) -> bytes:
        return piece if self._inflater is None or not piece else self._inflater.feed(piece)

    def collect(self) -> Exchange[Reply]:
        """The whole exchange: send, and read the response to its end."""
        yield from self.start()
        collector = Collector(self.headers, self.max_bytes)
        while piece := (yield from self.read()):
            collector.add(piece)
        return Reply(self.status, self.headers, collector.finish())
