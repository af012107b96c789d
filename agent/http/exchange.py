"""One HTTP exchange, written once for blocking and asyncio connections.

An exchange is a generator of socket operations: it yields bytes to send, or RECEIVE to get the next bytes (b"" at the
end of the connection). `connections` and `asyncio_connections` perform them; neither knows HTTP.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

from ..wire import Limits, Reply, WireRequest
from .errors import check_status
from .inflate import Inflater, inflater_for
from .parser import Address, BadResponse, ResponseReader
from .response_body import Collector

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
