"""HTTP on httpcore2's connection pools: what goes through a proxy, and what a test has put in their place.

httpcore2 knows tunnels, SOCKS and TLS inside TLS, so we need not. Tools that mock HTTP replace its pools' methods;
whoever uses one must find our requests there.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import httpcore2
from typing_extensions import override

from .. import errors
from ..wire import AsyncBody, Headers, Limits, Live, Reply, SyncBody, WireRequest
from .direct import KEEPALIVE_SECONDS
from .http1 import Address
from .inflate import inflater_for
from .net_sync import ConnectLimit, LiveBackend
from .pools import REQUESTS_PER_SHARD, Place, Shards
from .proxies import httpcore_proxy
from .replies import AT_A_TIME, Collector, check_status, described, is_untrusted, ours, unsendable


class Pooled:
    """Blocking calls through one proxy, or none."""

    def __init__(self, proxy: str | None, context: ssl.SSLContext) -> None:
        self._proxy = proxy
        options = _options(proxy, context)
        self.shards = Shards(lambda: httpcore2.ConnectionPool(network_backend=LiveBackend(), **options))

    def send(self, request: WireRequest, address: Address, limits: Limits, live: Live) -> Reply:
        # Through `open_body`, so that the run knows of the connection and closes it whenever an interrupt comes.
        body = self.open_body(request, address, limits, live)
        try:
            collector = Collector(body.headers, limits.max_bytes)
            while chunk := body.read():
                collector.add(chunk)
            return Reply(body.status, body.headers, collector.finish())
        finally:
            body.close()
            body.closed = True
            live.run.bodies.remove(body)

    def open_body(self, request: WireRequest, address: Address, limits: Limits, live: Live) -> SyncBody:
        place = self.shards.take()
        response: httpcore2.Response | None = None
        body: _PooledBody | None = None
        connect = ConnectLimit(live.run, limits.connect)
        timeouts = {"connect": connect, "read": live, "write": live, "pool": float(live)}
        try:
            response = place.pool.handle_request(_request(request, timeouts, self._proxy))
            check_status(response.status)
            body = _PooledBody(response, request, place)
            body.live = live
            live.run.bodies.append(body)  # before anything else can happen: an interrupt must find its owner
            return body
        except BaseException as error:
            if body is not None:
                body.closed = True
            if response is not None:
                response.close()
            connect.close()
            place.give_back()
            if isinstance(error, Exception) and not isinstance(error, errors.AgentError):
                raise _ours(error, request) from error
            raise

    def close(self) -> None:
        for pool in self.shards.pools:
            pool.close()


class AioPooled:
    """Calls with await through one proxy, or none, on one event loop."""

    def __init__(self, proxy: str | None, context: ssl.SSLContext) -> None:
        from .net_aio import AioBackend

        self._proxy = proxy
        options = _options(proxy, context)
        self.shards = Shards(lambda: httpcore2.AsyncConnectionPool(network_backend=AioBackend(), **options))

    async def send(self, request: WireRequest, address: Address, limits: Limits) -> Reply:
        body = await self.open_body(request, address, limits, [])
        try:
            collector = Collector(body.headers, limits.max_bytes)
            while chunk := await body.read():
                collector.add(chunk)
            return Reply(body.status, body.headers, collector.finish())
        finally:
            await body.aclose()

    async def open_body(
        self, request: WireRequest, address: Address, limits: Limits, bodies: list[AsyncBody]
    ) -> AsyncBody:
        from . import net_aio

        place = self.shards.take()
        response: httpcore2.Response | None = None
        connect = net_aio.ConnectLimit(limits.connect)
        try:
            response = await place.pool.handle_async_request(_request(request, {"connect": connect}, self._proxy))
            check_status(response.status)
            body = _AioPooledBody(response, request, place)
            bodies.append(body)
            return body
        except BaseException as error:
            connect.abort()
            place.give_back()
            if isinstance(error, Exception):
                if response is not None:
                    await response.aclose()
                if not isinstance(error, errors.AgentError):
                    raise _ours(error, request) from error
            raise

    async def aclose(self) -> None:
        for pool in self.shards.pools:
            await pool.aclose()


def _options(proxy: str | None, context: ssl.SSLContext) -> dict[str, Any]:
    return {
        "ssl_context": context,
        "proxy": None if proxy is None else httpcore_proxy(proxy, context),
        "max_connections": REQUESTS_PER_SHARD + 20,  # a little room: closing connections still count
        "max_keepalive_connections": 20,
        "keepalive_expiry": KEEPALIVE_SECONDS,
    }


class _PooledBody(SyncBody):
    __slots__ = ("_chunks", "_inflater", "_place", "_request", "_response")

    def __init__(
        self,
        response: httpcore2.Response,
        request: WireRequest,
        place: Place[httpcore2.ConnectionPool],
    ) -> None:
        super().__init__(response.status, Headers.of(response.headers))
        self._inflater = inflater_for(self.headers.get("content-encoding"))
        self._response = response
        self._request = request
        self._place = place
        self._chunks = _parts(response)

    @override
    def read(self) -> bytes:
        try:
            if self._inflater is None:
                return next(self._chunks, b"")
            while chunk := next(self._chunks, b""):
                if data := self._inflater.feed(chunk):
                    return data
            return self._inflater.finish()
        except errors.AgentError:
            raise
        except Exception as error:
            raise _ours(error, self._request) from error

    @override
    def close(self) -> None:
        try:
            self._response.close()
        finally:
            self._place.give_back()


class _AioPooledBody(AsyncBody):
    __slots__ = ("_chunks", "_inflater", "_place", "_request", "_response", "_taken")

    def __init__(
        self,
        response: httpcore2.Response,
        request: WireRequest,
        place: Place[httpcore2.AsyncConnectionPool],
    ) -> None:
        super().__init__(response.status, Headers.of(response.headers))
        self._inflater = inflater_for(self.headers.get("content-encoding"))
        self._response = response
        self._request = request
        self._place = place
        self._chunks = _aparts(response)
        self._taken = 0

    @override
    async def read(self) -> bytes:
        if self._taken >= AT_A_TIME:
            self._taken = 0
            await _others_turn()
        try:
            if self._inflater is None:
                chunk = await anext(self._chunks, b"")
                self._taken += 1 + (len(chunk) >> 10)
                return chunk
            while chunk := await anext(self._chunks, b""):
                self._taken += 1 + (len(chunk) >> 10)
                if data := self._inflater.feed(chunk):
                    return data
            return self._inflater.finish()
        except errors.AgentError:
            raise
        except Exception as error:
            raise _ours(error, self._request) from error

    @override
    async def aclose(self) -> None:
        try:
            await self._response.aclose()
        finally:
            self._place.give_back()


async def _others_turn() -> None:
    import asyncio

    await asyncio.sleep(0)


def _request(request: WireRequest, timeouts: Mapping[str, float], proxy: str | None) -> httpcore2.Request:
    url = httpcore2.URL(request.url)
    extensions: dict[str, Any] = {"timeout": timeouts}
    host = url.host
    if b":" in host:
        host = b"[%b]" % host
        if proxy is not None and not proxy.startswith("socks"):
            # httpcore2 writes the host as it is into CONNECT and into the target of a forwarded request.
            extensions["sni_hostname"] = url.host.decode("ascii")
            url = httpcore2.URL(scheme=url.scheme, host=host, port=url.port, target=url.target)
    headers = [
        (b"host", host if url.port is None else b"%b:%d" % (host, url.port)),
        *request.headers,
        (b"accept-encoding", b"identity"),
        (b"content-length", b"%d" % len(request.body)),
    ]
    made = httpcore2.Request(b"POST", url, headers=headers, content=request.body)
    made.extensions = extensions
    return made


def _parts(response: httpcore2.Response) -> Iterator[bytes]:
    return iter(response.stream)  # type: ignore[arg-type]


def _aparts(response: httpcore2.Response) -> AsyncIterator[bytes]:
    return aiter(response.stream)  # type: ignore[arg-type]


def _ours(error: Exception, request: WireRequest) -> Exception:
    """The library's exception as one of ours."""
    match error:
        case httpcore2.PoolTimeout():
            return errors.PoolExhaustedError(described(error, request))
        case httpcore2.TimeoutException():
            return errors.TimeoutError(described(error, request))
        case httpcore2.ProxyError():
            return errors.ConnectionError(described(error, request), retryable=False)
        case httpcore2.LocalProtocolError() | httpcore2.UnsupportedProtocol():
            return unsendable(error)
        case httpcore2.NetworkError() | httpcore2.RemoteProtocolError():
            return errors.ConnectionError(described(error, request), retryable=not is_untrusted(error))
        case _ if type(error).__module__.startswith("socksio"):  # an extra, which need not be there
            message = f"the SOCKS proxy answered with nonsense: {described(error, request)}"
            return errors.ConnectionError(message, retryable=False)
        case _:
            return ours(error, request)
