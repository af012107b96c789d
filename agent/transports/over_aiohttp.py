"""HTTP with aiohttp, which takes half of the CPU of httpcore2's pools through proxies.

It never retries, redirects or decides. aiohttp only awaits, so blocking calls go through an `http` transport with the
same settings, and so does what aiohttp could not send as it is: through SOCKS proxies, or with headers that are not
ASCII. What else differs between the two libraries is made equal here and below, and the same tests judge both.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from multidict import CIMultiDict
from typing_extensions import override
from yarl import URL

from .. import errors
from ..wire import AsyncBody, Headers, Limits, Reply, WireRequest
from .aiohttp_errors import ours
from .aiohttp_sessions import Content, Session, Sessions, Unread, connecting_within, watch
from .beside_http import BesideHttp
from .http import HttpTransport
from .inflate import Inflater, inflater_for
from .proxies import httpcore_proxy
from .replies import AT_A_TIME, Collector, check_status

_EACH_READ = 16
"""What a read counts for in kilobytes, however little it brings: it may have been in very many chunks."""
_MAX_KNOWN = 256
_PLAIN_NAME = re.compile(rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]+")
_PLAIN_VALUE = re.compile(rb"(?:[!-~](?:[ -~]*[!-~])?)?")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Way:
    """What a URL and headers come down to, worked out once. It holds the key, and so it is never printed."""

    url: URL
    headers: CIMultiDict[str]
    proxy: URL | None = None
    proxy_headers: dict[str, str] | None = None


class AiohttpTransport(BesideHttp):
    """Carries requests over HTTP/1.1 with aiohttp, from the extra `fast`. `Agent(transport="aiohttp")` shares one.

    Args:
        ca_file: PEM file with the certificate authorities to trust instead of the system's.
        ssl_context: A ready TLS context, for client certificates and the like; excludes `ca_file`.
        proxy: A proxy for everything; False for none. By default the environment decides. Requests through a SOCKS
            proxy are carried as by `HttpTransport`.
    """

    @override
    def _stand_beside(self, http: HttpTransport) -> None:
        super()._stand_beside(http)
        self._pid = os.getpid()
        self._ways: dict[tuple[str, tuple[tuple[bytes, bytes], ...]], _Way | None] = {}
        self._timeouts: dict[float | None, aiohttp.ClientTimeout] = {}
        self._sessions = Sessions(http._context)

    async def asend(self, request: WireRequest, limits: Limits) -> Reply:
        self._http._route(request, limits)  # refuses what must not be sent
        way = self._way(request)
        if way is None:
            return await self._http.asend(request, limits)
        body = await self._exchange(way, request, limits)
        try:
            return Reply(body.status, body.headers, await body.whole(limits.max_bytes))
        finally:
            body.let_go()

    async def aopen(self, request: WireRequest, limits: Limits, bodies: list[AsyncBody]) -> AsyncBody:
        self._http._route(request, limits)  # refuses what must not be sent
        way = self._way(request)
        if way is None:
            return await self._http.aopen(request, limits, bodies)
        body = await self._exchange(way, request, limits)
        bodies.append(body)
        return body

    async def _exchange(self, way: _Way, request: WireRequest, limits: Limits) -> _Body:
        """Send, and wait for the head of the answer. Nothing is awaited after that: whoever gets a body owns it."""
        session = await self._session()
        content = Content(request.body)
        try:
            response = await session.client.post(
                way.url,
                data=content,
                headers=way.headers,
                proxy=way.proxy,
                proxy_headers=way.proxy_headers,
                allow_redirects=False,
                timeout=self._timeout(limits.connect),
            )
        except BaseException as error:
            content.abort()
            if not isinstance(error, Exception):
                raise
            failure = ours(error, request)
        else:
            return _Body(response, content, request, session.unread)
        try:
            raise failure  # not in the handler: the library's error would be its context, and hold the headers
        finally:
            del failure  # an exception kept in a frame that it references is a cycle, and keeps sockets alive

    def _timeout(self, connect: float | None) -> aiohttp.ClientTimeout:
        found = self._timeouts.get(connect)
        if found is None:
            if len(self._timeouts) >= _MAX_KNOWN:
                self._timeouts.clear()
            found = self._timeouts[connect] = connecting_within(connect)
        return found

    async def _session(self) -> Session:
        if self._pid != os.getpid():
            # After a fork: the sockets belong to the parent's conversations.
            self._pid, self._sessions = os.getpid(), Sessions(self._http._context)
        return await self._sessions.current()

    # Where to, and what is said first

    def _way(self, request: WireRequest) -> _Way | None:
        key = (request.url, request.headers)
        try:
            return self._ways[key]
        except KeyError:
            if len(self._ways) >= _MAX_KNOWN:
                self._ways.clear()
            found = self._ways[key] = self._find_way(request)
            return found

    def _find_way(self, request: WireRequest) -> _Way | None:
        """None if it is not a way for aiohttp."""
        address = self._http._proxies.for_url(request.url)
        url, headers = _url(request.url), _headers(request)
        if url is None or headers is None:
            return None
        headers["Host"] = url.host_port_subcomponent or ""
        headers["Accept-Encoding"] = "identity"
        if address is None:
            return _Way(url, headers)
        proxy = httpcore_proxy(address, self._http._context())
        proxy_url = _url(bytes(proxy.url).decode())
        if proxy_url is None or proxy_url.scheme not in ("http", "https"):
            return None
        demanded = {}
        if proxy.auth is not None:
            demanded["Proxy-Authorization"] = "Basic " + base64.b64encode(b":".join(proxy.auth)).decode()
        if url.scheme == "http":  # it is the proxy that reads this request
            headers.update(demanded)
        return _Way(url, headers, proxy_url, demanded)


class _Body(AsyncBody):
    __slots__ = ("_content", "_inflater", "_request", "_response", "_sent", "_taken", "_unread")

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        sent: Content,
        request: WireRequest,
        unread: set[Unread],
    ) -> None:
        super().__init__(response.status, Headers.of(response.raw_headers))
        self._response = response
        self._content = response.content
        self._sent = sent
        self._unread = unread
        unread.add(self)
        self._request = request
        self._taken = 0
        self._inflater: Inflater | None = None
        watch(response)
        try:
            _refuse(response.status, self.headers)
            self._inflater = inflater_for(self.headers.get("content-encoding"))
        except errors.AgentError:
            self.let_go()
            raise

    @override
    async def read(self) -> bytes:
        if self._taken >= AT_A_TIME:
            self._taken = 0
            await asyncio.sleep(0)
        if self._inflater is None:
            return await self._read()
        while chunk := await self._read():
            if data := self._inflater.feed(chunk):
                return data
        inflater, self._inflater = self._inflater, None
        return inflater.finish()

    async def _read(self) -> bytes:
        """All that has come. What came before a failure is read before it is raised."""
        try:
            chunk = await self._content.readany()
        except Exception as error:
            chunk = _left_in(self._content)
            if not chunk:
                failure = ours(error, self._request)
        if chunk or self._content.is_eof():
            self._taken += _EACH_READ + (len(chunk) >> 10)
            return chunk
        try:
            raise failure
        finally:
            del failure

    async def whole(self, max_bytes: int) -> bytes:
        """All of it, kept within its size."""
        collector = Collector(self.headers, max_bytes)
        while chunk := await self.read():
            collector.add(chunk)
            if self._inflater is None and self._content.at_eof():
                break
        return collector.finish()

    @override
    async def aclose(self) -> None:
        self.let_go()

    def let_go(self) -> None:
        """After the end, the connection is back in its pool by itself; before it, nobody can use it any more."""
        if not self._content.is_eof():
            self._sent.abort()
        self._response.close()
        self._unread.discard(self)


def _refuse(status: int, headers: Mapping[str, str]) -> None:
    """What aiohttp takes for an answer, and we do not."""
    check_status(status)
    if status == 101:
        raise errors.ConnectionError("the server switches to a protocol that nobody has asked for", retryable=True)
    if headers.get("transfer-encoding", "chunked").lower() != "chunked":
        raise errors.ConnectionError("the answer is transferred in a way that nobody knows", retryable=True)


def _left_in(content: aiohttp.StreamReader) -> bytes:
    """aiohttp raises as soon as it knows of a failure, and keeps what came before it."""
    buffer = content._buffer
    left = b"".join(buffer)
    buffer.clear()
    return left


def _url(url: str) -> URL | None:
    """As it is: a path that somebody has quoted must not be quoted again."""
    try:
        return URL(url, encoded=True)
    except ValueError:
        return None


def _headers(request: WireRequest) -> CIMultiDict[str] | None:
    """None if they are not plain ASCII: aiohttp would write other bytes, or say in its own words what is wrong."""
    made: CIMultiDict[str] = CIMultiDict()
    for name, value in request.headers:
        if not (_PLAIN_NAME.fullmatch(name) and _PLAIN_VALUE.fullmatch(value)):
            return None
        made.add(name.decode(), value.decode())
    return made
