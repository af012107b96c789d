"""aiohttp, set up once for each event loop: pooled connections, our lookups, requests that are not built anew.

It knows no transport and no vendor. Everything aiohttp would do on its own account is off: redirects and cookies,
decompression, the environment, timeouts but the one for connecting.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractResolver, AbstractStreamWriter, ResolveResult
from aiohttp.client_proto import ResponseHandler
from multidict import CIMultiDict
from typing_extensions import override

from .direct import KEEPALIVE_SECONDS
from .sockets_aio import resolve

_MAX_HEAD = 64 * 1024
"""Bytes of a status line or a header that are taken from a server."""
_READ_AHEAD = 16 * 1024
"""Bytes of an answer that wait for their reader, or twice as many, before the socket has to."""
_WRITE_AT_ONCE = 256 * 1024
_CLOSING_SECONDS = 1.0
_NOT_OURS = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
"""Headers that aiohttp adds where there are none: a request is sent as its codec wrote it."""


class Content(aiohttp.Payload):
    """A request's bytes on their way out, and the connection they took: whoever gives up must be able to close it.

    aiohttp closes a connection only after it has sent what is in its buffer. A server that does not read would keep it
    open for ever.
    """

    _autoclose = True

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self._size = len(body)
        self._transport: asyncio.WriteTransport | None = None

    @override
    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        body: bytes = self._value
        return body.decode(encoding, errors)

    @override
    async def write(self, writer: AbstractStreamWriter) -> None:
        self._transport = writer.transport
        body: bytes = self._value
        if len(body) <= _WRITE_AT_ONCE:
            await writer.write(body)
            return
        view = memoryview(body)
        for start in range(0, len(body), _WRITE_AT_ONCE):
            await writer.write(view[start : start + _WRITE_AT_ONCE])

    def abort(self) -> None:
        """Close the connection now, whatever is still to be sent. Only for as long as no other request may have it."""
        if self._transport is not None:
            self._transport.abort()


class _Request(aiohttp.ClientRequest):
    """Takes its headers as they are: they are complete, and made once for many requests."""

    @override
    def update_headers(self, headers: Any) -> None:
        self.headers = CIMultiDict(headers)
        self.headers.setdefault("Host", self.url.host_port_subcomponent or "")

    @override
    def update_auto_headers(self, skip_auto_headers: Any) -> None:
        pass


class _Resolver(AbstractResolver):
    """Looks names up in daemon threads, as the other transport does."""

    @override
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=address, port=port, family=socket.AF_UNSPEC, proto=0, flags=0)
            for address in await resolve(host, port)
        ]

    @override
    async def close(self) -> None:
        pass


class _Protocol(ResponseHandler):
    """One connection. It tells the reader of an answer when it is lost.

    aiohttp does not, where bytes in the middle of an answer are not HTTP: the reader would wait for ever.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.reader: aiohttp.StreamReader | None = None

    @override
    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self.reader is not None:
            _end(self.reader)


def watch(response: aiohttp.ClientResponse) -> None:
    """See to it that whoever reads this answer hears of its end."""
    connection = response.connection
    if connection is None:  # all of it is here
        return
    if isinstance(connection.protocol, _Protocol):
        connection.protocol.reader = response.content
    if connection.transport is None:  # it was lost before we came
        _end(response.content)


def _end(reader: aiohttp.StreamReader) -> None:
    if not reader.is_eof() and reader.exception() is None:
        reader.set_exception(aiohttp.ClientPayloadError("what came is not HTTP"))


class _Connector(aiohttp.TCPConnector):
    """Connections of one loop. They end with it, or with the process, and nobody need be told so.

    aiohttp complains of sessions and connectors that were not closed. Ours are, by their loop; where a loop was closed
    without being shut down, or belongs to the parent of this process, nobody could close them.
    """

    def __init__(self, trusted: ssl.SSLContext) -> None:
        super().__init__(
            ssl=trusted,
            limit=0,  # our own load must not look like a vendor's failure
            keepalive_timeout=KEEPALIVE_SECONDS,
            resolver=_Resolver(),
            use_dns_cache=False,  # its lookups are tasks that outlive a cancelled request
            happy_eyeballs_delay=None,
        )
        self._factory = self._protocol  # type: ignore[assignment]
        self._protocols: WeakSet[_Protocol] = WeakSet()
        self._owner = os.getpid()

    @property
    @override
    def closed(self) -> bool:
        return super().closed or self._loop.is_closed() or self._owner != os.getpid()

    def _protocol(self) -> _Protocol:
        made = _Protocol(self._loop)
        self._protocols.add(made)
        return made

    def abort(self) -> None:
        """Close all connections, whatever is under way."""
        for protocol in list(self._protocols):
            protocol.abort()

    @override
    def __del__(self, *_: Any) -> None:
        pass


class Unread(Protocol):
    """An answer that has a connection."""

    def let_go(self) -> None: ...


class Session:
    """What one event loop has: its connections, and the answers that are still being read."""

    __slots__ = ("_connector", "_loop", "client", "unread")

    def __init__(self, trusted: ssl.SSLContext) -> None:
        self._loop = asyncio.get_running_loop()
        self._connector = _Connector(trusted)
        self.client = _client(self._connector)
        self.unread: set[Unread] = set()
        """Closed with the loop at the latest. The garbage collector would complain of their connections."""

    async def aclose(self) -> None:
        for body in list(self.unread):
            body.let_go()
        async with asyncio.timeout(_CLOSING_SECONDS):
            await self.client.close()
        await asyncio.sleep(0)  # what was aborted is closed when the loop turns

    def __del__(self) -> None:
        """Its transport is gone, and nobody had the time to close it: as when a loop ends in the same moment."""
        if not self.client.closed:
            self.client.detach()
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._connector.abort)


class Sessions:
    """One session for each event loop, closed with it.

    Connections refer to their loop, so a weak key would never die: closed loops are dropped when another one comes.
    Each loop keeps a suspended async generator whose `finally` closes the session; `asyncio.run` runs it at the end.
    """

    def __init__(self, trusted: Callable[[], ssl.SSLContext]) -> None:
        self._trusted = trusted
        self.by_loop: dict[asyncio.AbstractEventLoop, tuple[Session, Any]] = {}

    async def current(self) -> Session:
        """The session of the running loop."""
        loop = asyncio.get_running_loop()
        found = self.by_loop.get(loop)
        if found is None:
            for old in [old for old in list(self.by_loop) if old.is_closed()]:  # other threads add theirs
                self.by_loop.pop(old, None)
            session = Session(self._trusted())
            keeper = _close_with_loop(session)
            found = self.by_loop[loop] = (session, keeper)
            await anext(keeper)
        return found[0]


def _client(connector: _Connector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        request_class=_Request,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        skip_auto_headers=_NOT_OURS,
        read_bufsize=_READ_AHEAD,
        max_line_size=_MAX_HEAD,
        max_field_size=_MAX_HEAD,
    )


async def _close_with_loop(session: Session) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await session.aclose()


def connecting_within(seconds: float | None) -> aiohttp.ClientTimeout:
    """A limit for lookup, connection, tunnel and handshake together, to the millisecond, and none for anything else."""
    return aiohttp.ClientTimeout(total=None, connect=seconds, sock_connect=None, ceil_threshold=math.inf)
