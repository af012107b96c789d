"""HTTP on httpcore2's connection pools: bytes out, bytes in, its library's errors made ours.

It never retries, redirects or decides. Blocking calls share pools between threads and drop them after a fork; asyncio
gets pools of its own for each event loop, closed with the loop.
"""

from __future__ import annotations

import errno
import os
import ssl
import threading
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import httpcore2
from typing_extensions import override

from .. import errors
from ..wire import AsyncBody, Headers, Limits, Live, Reply, SyncBody, WireRequest
from .inflate import inflater_for
from .net_sync import ConnectLimit, LiveBackend
from .pools import REQUESTS_PER_SHARD, Place, Shards
from .proxies import ProxySettings, httpcore_proxy

if TYPE_CHECKING:
    import asyncio

KEEPALIVE_SECONDS = 30.0
_AT_A_TIME = 64
"""Pieces, or kilobytes, of an answer that is already here, before other tasks of the loop get their turn."""
_MAX_KNOWN_URLS = 256


class _Destination(NamedTuple):
    """What a URL comes down to, worked out once."""

    url: httpcore2.URL
    host_header: bytes
    proxy: str | None


SyncShards = Shards[httpcore2.ConnectionPool]
AsyncShards = Shards[httpcore2.AsyncConnectionPool]


class HttpTransport:
    """Carries requests over HTTP/1.1.

    Args:
        ca_file: PEM file with the certificate authorities to trust instead of the system's.
        ssl_context: A ready TLS context, for client certificates and the like; excludes `ca_file`.
        proxy: A proxy for everything; False for none. By default the environment decides.
    """

    def __init__(
        self,
        *,
        ca_file: str | os.PathLike[str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        proxy: str | bool | None = None,
    ) -> None:
        if ca_file is not None and ssl_context is not None:
            raise errors.ConfigurationError(
                "Both ca_file and ssl_context are given.", field="ca_file", fix="Load the file into the context."
            )
        self._ca_file = ca_file
        self._ssl_context = ssl_context
        if proxy is None or proxy is True:
            self._proxies = ProxySettings.from_environment()
        else:
            self._proxies = ProxySettings.always(proxy) if proxy else ProxySettings()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._destinations: dict[str, _Destination] = {}
        self._shards: dict[str | None, SyncShards] = {}
        self._loops: _LoopPools | None = None
        self._closing = weakref.finalize(self, _close_all, self._shards, self._pid)

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # a proxy's URL may hold a password

    @override
    def __reduce__(self) -> Any:
        raise TypeError("an HTTP transport holds connections and cannot be pickled; make one in the other process")

    # Blocking

    def send(self, request: WireRequest, limits: Limits, live: Live) -> Reply:
        # Through `open`, so that the run knows of the connection and closes it whenever an interrupt comes.
        body = self.open(request, limits, live)
        try:
            collector = _Collector(body.headers, limits.max_bytes)
            while chunk := body.read():
                collector.add(chunk)
            return Reply(body.status, body.headers, collector.finish())
        finally:
            body.close()
            body.closed = True
            live.run.bodies.remove(body)

    def open(self, request: WireRequest, limits: Limits, live: Live) -> SyncBody:
        destination = self._destination(request.url)
        shards = self._sync_shards(destination.proxy)
        place = shards.take()
        response: httpcore2.Response | None = None
        body: _HttpBody | None = None
        connect = ConnectLimit(live.run, limits.connect)
        timeouts = {"connect": connect, "read": live, "write": live, "pool": float(live)}
        try:
            response = place.pool.handle_request(_request(request, destination, timeouts))
            _refuse_proxy_demands(response)
            body = _HttpBody(response, request, place)
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

    # Async

    async def asend(self, request: WireRequest, limits: Limits) -> Reply:
        body = await self.aopen(request, limits, [])
        try:
            collector = _Collector(body.headers, limits.max_bytes)
            while chunk := await body.read():
                collector.add(chunk)
            return Reply(body.status, body.headers, collector.finish())
        finally:
            await body.aclose()

    async def aopen(self, request: WireRequest, limits: Limits, bodies: list[AsyncBody]) -> AsyncBody:
        from . import net_aio  # asyncio costs blocking programs 40 ms to import

        destination = self._destination(request.url)
        shards = await self._async_shards(destination.proxy)
        place = shards.take()
        response: httpcore2.Response | None = None
        connect = net_aio.ConnectLimit(limits.connect)
        try:
            response = await place.pool.handle_async_request(_request(request, destination, {"connect": connect}))
            _refuse_proxy_demands(response)
            body = _AsyncHttpBody(response, request, place)
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

    # Pools

    def _destination(self, url: str) -> _Destination:
        found = self._destinations.get(url)
        if found is None:
            parsed = httpcore2.URL(url)
            host = b"[%b]" % parsed.host if b":" in parsed.host else parsed.host
            header = host if parsed.port is None else b"%b:%d" % (host, parsed.port)
            found = _Destination(parsed, header, self._proxies.for_url(url))
            if len(self._destinations) >= _MAX_KNOWN_URLS:
                self._destinations.clear()
            self._destinations[url] = found
        return found

    def _sync_shards(self, proxy: str | None) -> SyncShards:
        if self._pid != os.getpid():
            self._forget_the_parents_connections()
        shards = self._shards.get(proxy)
        if shards is None:
            with self._lock:
                shards = self._shards.get(proxy)
                if shards is None:
                    options = self._pool_options(proxy)
                    shards = Shards(lambda: httpcore2.ConnectionPool(network_backend=LiveBackend(), **options))
                    self._shards[proxy] = shards
        return shards

    def _forget_the_parents_connections(self) -> None:
        """After a fork: the sockets belong to the parent's conversations, the lock perhaps to a thread that is gone."""
        self._lock = threading.Lock()
        self._shards.clear()
        self._loops = None
        self._pid = os.getpid()
        self._closing = weakref.finalize(self, _close_all, self._shards, self._pid)

    async def _async_shards(self, proxy: str | None) -> AsyncShards:
        if self._pid != os.getpid():
            self._forget_the_parents_connections()
        if self._loops is None:
            with self._lock:
                if self._loops is None:
                    self._loops = _LoopPools(self._pool_options)
        return await self._loops.shards(proxy)

    def _pool_options(self, proxy: str | None) -> dict[str, Any]:
        if self._ssl_context is None:
            self._ssl_context = (
                httpcore2.default_ssl_context()
                if self._ca_file is None
                else ssl.create_default_context(cafile=os.fspath(self._ca_file))
            )
        return {
            "ssl_context": self._ssl_context,
            "proxy": None if proxy is None else httpcore_proxy(proxy, self._ssl_context),
            "max_connections": REQUESTS_PER_SHARD + 20,  # a little room: closing connections still count
            "max_keepalive_connections": 20,
            "keepalive_expiry": KEEPALIVE_SECONDS,
        }

    def close(self) -> None:
        """Close idle connections of blocking calls. Those of event loops close with their loop."""
        with self._lock:
            _close_all(self._shards, self._pid)


def _close_all(groups: dict[str | None, SyncShards], owner: int) -> None:
    """Close the connections, in the process that made them: after a fork they are still the parent's."""
    if os.getpid() == owner:
        for shards in groups.values():
            for pool in shards.pools:
                pool.close()
        groups.clear()


class _LoopPools:
    """Pools per event loop.

    Connections refer to their loop, so a weak key would never die: closed loops are dropped when another one comes.
    Each loop keeps a suspended async generator whose `finally` closes the pools; `asyncio.run` runs it at the end.
    """

    def __init__(self, options: Any) -> None:
        self._options = options
        self._by_loop: dict[asyncio.AbstractEventLoop, tuple[dict[str | None, AsyncShards], Any]] = {}

    async def shards(self, proxy: str | None) -> AsyncShards:
        import asyncio

        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            for old in [old for old in list(self._by_loop) if old.is_closed()]:  # other threads add theirs
                self._by_loop.pop(old, None)
            groups: dict[str | None, AsyncShards] = {}
            keeper = _close_with_loop(groups)
            found = self._by_loop[loop] = (groups, keeper)
            await anext(keeper)
        groups = found[0]
        shards = groups.get(proxy)
        if shards is None:
            from .net_aio import AioBackend

            options = self._options(proxy)
            shards = Shards(lambda: httpcore2.AsyncConnectionPool(network_backend=AioBackend(), **options))
            groups[proxy] = shards
        return shards


async def _close_with_loop(groups: dict[str | None, AsyncShards]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for shards in groups.values():
            for pool in shards.pools:
                await pool.aclose()


class _HttpBody(SyncBody):
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
            return _finish_once(self)
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


class _AsyncHttpBody(AsyncBody):
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
        if self._taken >= _AT_A_TIME:
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
            return _finish_once(self)
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


def _finish_once(body: _HttpBody | _AsyncHttpBody) -> bytes:
    inflater, body._inflater = body._inflater, None
    return b"" if inflater is None else inflater.finish()


class _Collector:
    """A buffered body, kept within its size."""

    __slots__ = ("_max_bytes", "_parts", "_size")

    def __init__(self, headers: Mapping[str, str], max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0
        announced = headers.get("content-length", "")
        if announced.isdigit() and int(announced) > max_bytes:
            raise self._too_large()

    def add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._max_bytes:
            self._parts.clear()  # whoever keeps the error must not keep the megabytes
            raise self._too_large()
        self._parts.append(part)

    def finish(self) -> bytes:
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def _too_large(self) -> errors.ProtocolError:
        return errors.ProtocolError(f"the answer is larger than {self._max_bytes} bytes", retryable=False)


def _request(request: WireRequest, destination: _Destination, timeouts: Mapping[str, float]) -> httpcore2.Request:
    headers = [
        (b"host", destination.host_header),
        *request.headers,
        (b"accept-encoding", b"identity"),
        (b"content-length", b"%d" % len(request.body)),
    ]
    made = httpcore2.Request(b"POST", destination.url, headers=headers, content=request.body)
    made.extensions = {"timeout": timeouts}
    return made


def _parts(response: httpcore2.Response) -> Iterator[bytes]:
    return iter(response.stream)  # type: ignore[arg-type]


def _aparts(response: httpcore2.Response) -> AsyncIterator[bytes]:
    return aiter(response.stream)  # type: ignore[arg-type]


def _ours(error: Exception, request: WireRequest) -> Exception:
    """The library's exception as one of ours; an unknown one is a bug and stays what it is."""
    detail = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    message = f"{request.target}: {detail}" if request.target else detail
    match error:
        case httpcore2.PoolTimeout():
            return errors.PoolExhaustedError(message)
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            return errors.PoolExhaustedError(message)
        case httpcore2.TimeoutException():
            return errors.TimeoutError(message)
        case httpcore2.ProxyError():
            return errors.ConnectionError(message, retryable=False)
        case httpcore2.LocalProtocolError() | httpcore2.UnsupportedProtocol():
            # These messages may quote a header, and so a key.
            return errors.ConfigurationError(
                f"The request cannot be sent: {type(error).__name__}.", field="base_url", fix="Check URL and headers."
            )
        case httpcore2.NetworkError() | httpcore2.RemoteProtocolError() | OSError() | UnicodeError():
            return errors.ConnectionError(message, retryable=not _is_untrusted(error))
        case _ if type(error).__module__.startswith("socksio"):  # an extra, which need not be there
            return errors.ConnectionError(f"the SOCKS proxy answered with nonsense: {message}", retryable=False)
        case _:
            raise error


def _refuse_proxy_demands(response: httpcore2.Response) -> None:
    if response.status == 407:
        raise errors.ConnectionError("the proxy wants to be told who asks (status 407)", retryable=False)


def _is_untrusted(error: BaseException) -> bool:
    """A certificate that does not verify will not verify next time either."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
