"""HTTP transports: direct HTTP/1.1, or clients of httpx2 or httpx for proxies and on request.

They never retry or redirect. Sync calls share one connection pool between threads, dropped after a fork; asyncio has
one pool per event loop, closed with the loop.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import copy_context
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import override

from .. import errors
from ..engine.wire import AsyncBody, Limits, Reply, RunTimeout, SyncBody, WireRequest
from ..errors import printable
from ..http.connections import SyncConnectionPool
from ..http.exchange import KEEPALIVE_SECONDS, max_idle_connections, request_error
from ..http.parser import BadRequest, RequestHead
from ..providers.base import is_loopback
from ..providers.codec import secrets_in
from ..types.secrets import is_credential_header
from .httpx_clients import AsyncClientSender, SyncClientSender
from .proxies import ProxySettings, client_proxy

if TYPE_CHECKING:
    import asyncio
    import ssl

    from ..http.asyncio_connections import AioConnectionPool


_MAX_KNOWN_ROUTES = 256


class _Route:
    """Cached request head and proxy of a URL. Not printable, because a proxy URL may hold a password."""

    __slots__ = ("address", "exposes_key", "proxy")

    def __init__(self, address: RequestHead, proxy: str | None, *, exposes_key: bool) -> None:
        self.address = address
        self.proxy = proxy
        self.exposes_key = exposes_key
        """Whether the API key would reach a remote proxy unencrypted."""


class HttpTransport:
    """Sends requests over direct HTTP/1.1, or through a proxy with httpx2.

    Args:
        ca_file: PEM file with certificate authorities that replace those of the system.
        ssl_context: A TLS context, for example with a client certificate; excludes `ca_file`.
        proxy: Proxy URL for all requests; False for none. By default read from the environment.
        library: "httpx2" or "httpx" sends all requests through clients of that library, so that mocks and
            instrumentation see them. By default set by `AGENT_HTTP` and `agent.testing.use_httpx`.
    """

    @errors.hide_arguments
    def __init__(
        self,
        *,
        ca_file: str | os.PathLike[str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        proxy: str | bool | None = None,
        library: Literal["httpx2", "httpx"] | None = None,
    ) -> None:
        self._library = library
        if ca_file is not None and ssl_context is not None:
            raise errors.ConfigurationError(
                "ca_file and ssl_context exclude each other.", field="ca_file", fix="Load the CA file into the context."
            )
        self._tls = TlsContext(ssl_context if ca_file is None else load_ca_file(ca_file))
        if proxy is None or proxy is True:
            self._proxies = ProxySettings.from_environment()
        else:
            self._proxies = ProxySettings.always(proxy) if proxy else ProxySettings()
        self._lock = threading.Lock()
        self._routes: dict[tuple[str, tuple[tuple[bytes, bytes], ...], str], _Route] = {}
        self._create_pools()

    def _create_pools(self) -> None:
        """Create empty pools for this process."""
        self._pid = os.getpid()
        # Neither pools nor finalizer refer to the transport: it closes its connections when it is dropped.
        self._direct = SyncConnectionPool(self._tls.load)
        self._clients: dict[_ClientKey, SyncClientSender] = {}
        self._loops: _Loops | None = None
        self._closing = weakref.finalize(self, _close_all, self._direct, self._clients, self._pid)

    @override
    @printable
    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # a proxy URL may hold a password

    @override
    def __reduce__(self) -> Any:
        raise TypeError("an HTTP transport holds connections and cannot be pickled; create one in the other process")

    # Sync

    def send(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> Reply:
        route = self._route(request, limits)
        client = self._client(route.proxy)
        if client is None:
            return self._direct.send(request, route.address, limits, timeout)
        return client.send(request, limits, timeout)

    def open(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> SyncBody:
        route = self._route(request, limits)
        client = self._client(route.proxy)
        if client is None:
            return self._direct.open_body(request, route.address, limits, timeout)
        return client.open_body(request, limits, timeout)

    def _client(self, proxy: str | None) -> SyncClientSender | None:
        """Get the HTTP client for a proxy or library; None to connect directly."""
        if self._pid != os.getpid():
            self._reset_after_fork()
        library = self._library or default_library()
        if proxy is None and library is None:
            return None
        key = (library or "httpx2", proxy)
        with self._lock:
            sender = self._clients.get(key)
            if sender is None:
                client = import_module(key[0]).Client(**self._client_options(*key))
                sender = self._clients[key] = SyncClientSender(client, brackets=_is_http_proxy(proxy))
            return sender

    # Async

    async def asend(self, request: WireRequest, limits: Limits) -> Reply:
        route = self._route(request, limits)
        pools = await self._loop_pools()
        client = await self._aclient(pools, route)
        if client is None:
            return await pools.direct.send(request, route.address, limits)
        return await client.send(request, limits)

    async def aopen(self, request: WireRequest, limits: Limits, bodies: list[AsyncBody]) -> AsyncBody:
        route = self._route(request, limits)
        pools = await self._loop_pools()
        client = await self._aclient(pools, route)
        if client is None:
            return await pools.direct.open_body(request, route.address, limits, bodies)
        return await client.open_body(request, limits, bodies)

    async def _loop_pools(self) -> _LoopPools:
        if self._pid != os.getpid():
            self._reset_after_fork()
        if self._loops is None:
            self._loops = _Loops(self._tls)
        return self._loops.get() or await self._loops.create()

    async def _aclient(self, pools: _LoopPools, route: _Route) -> AsyncClientSender | None:
        """Get the HTTP client for a proxy or library; None to connect directly.

        Certificates and libraries are loaded in a thread, because they would block the event loop.
        """
        library, proxy = self._library or default_library(), route.proxy
        if proxy is None and library is None:
            if route.address.secure and not self._tls.is_ready:
                await _run_in_thread(self._tls.load)
            return None
        key = (library or "httpx2", proxy)
        if key not in pools.clients:
            client = await _run_in_thread(self._create_async_client, key)
            pools.clients.setdefault(key, AsyncClientSender(client, brackets=_is_http_proxy(proxy)))
        return pools.clients[key]

    def _create_async_client(self, key: _ClientKey) -> Any:
        return import_module(key[0]).AsyncClient(**self._client_options(*key))

    def _client_options(self, library: str, proxy: str | None) -> dict[str, Any]:
        module, context = import_module(library), self._tls.load()
        return {
            "verify": context,
            "proxy": None if proxy is None else client_proxy(module, proxy, context),
            "trust_env": False,
            "limits": module.Limits(
                max_connections=None,
                max_keepalive_connections=max_idle_connections(),
                keepalive_expiry=KEEPALIVE_SECONDS,
            ),
            "timeout": module.Timeout(None),
            "cookies": _no_cookies(),
        }

    # Both

    def _route(self, request: WireRequest, limits: Limits) -> _Route:
        route = self._routes.get((request.url, request.headers, request.method))
        if route is None:
            try:
                address = RequestHead(request.url, request.headers, request.method)
                proxy = self._proxies.for_url(request.url)
            except BadRequest as error:
                raise request_error(error) from None
            route = _Route(address, proxy, exposes_key=exposes_key(request, address, proxy))
            if len(self._routes) >= _MAX_KNOWN_ROUTES:
                self._routes.clear()
            self._routes[request.url, request.headers, request.method] = route
        if route.exposes_key:
            check_clear_text(limits)
        return route

    def _reset_after_fork(self) -> None:
        """Drop the parent's sockets, and its lock, which a thread of the parent may hold."""
        self._lock = threading.Lock()
        self._closing.detach()
        self._create_pools()

    def close(self) -> None:
        """Close idle connections of sync calls. Those of event loops close with their loop or the transport."""
        with self._lock:
            _close_all(self._direct, self._clients, self._pid)


def check_clear_text(limits: Limits) -> None:
    """Raise for a key that a proxy would receive unencrypted, unless the user allows it."""
    if not limits.allow_insecure:
        raise errors.ConfigurationError(
            "The API key would be sent unencrypted: base_url is plain http, and the proxy is on another machine.",
            field="proxy",
            fix="Exclude the host with NO_PROXY, use https, or pass allow_insecure=True on a trusted network.",
        )


def exposes_key(request: WireRequest, address: RequestHead, proxy: str | None) -> bool:
    """Whether a remote proxy would receive an API key in the headers unencrypted."""
    if proxy is None or address.secure or proxy.startswith("https:") or is_loopback(proxy):
        return False
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
    return any(is_credential_header(name) for name in headers) or bool(secrets_in(headers))


def load_ca_file(ca_file: str | os.PathLike[str], field: str = "ca_file") -> ssl.SSLContext:
    """Create a TLS context that trusts only the certificate authorities in a PEM file."""
    import ssl

    try:
        return ssl.create_default_context(cafile=os.fspath(ca_file))
    except FileNotFoundError:
        reason = "does not exist"
    except ssl.SSLError:
        reason = "contains no PEM certificate"
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    raise errors.ConfigurationError(
        f"The file {os.fspath(ca_file)} of certificate authorities {reason}.",
        field=field,
        fix="Pass a PEM file with the certificates to trust.",
    )


def default_context() -> ssl.SSLContext:
    """TLS context with the system's certificate authorities, or those in SSL_CERT_FILE or SSL_CERT_DIR."""
    import httpcore2  # lazy: plain HTTP needs no certificates

    if ca_file := os.environ.get("SSL_CERT_FILE"):
        return load_ca_file(ca_file, "SSL_CERT_FILE")
    return httpcore2.default_ssl_context()


class TlsContext:
    """TLS context of a transport, loaded on demand."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._context = context
        self.is_ready: bool = False

    def load(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = default_context()
        if not self.is_ready:
            self._context.set_alpn_protocols(["http/1.1"])
            self.is_ready = True
        return self._context


_ClientKey = tuple[str, str | None]
"""Library and proxy URL."""


def _is_http_proxy(proxy: str | None) -> bool:
    """Whether the proxy receives the host in an HTTP message, where IPv6 addresses have brackets."""
    return proxy is not None and not proxy.startswith("socks")


def _no_cookies() -> Any:
    from http.cookiejar import CookieJar, DefaultCookiePolicy  # lazy: slow to import, and loads `ssl`

    return CookieJar(DefaultCookiePolicy(allowed_domains=()))


def _close_all(direct: SyncConnectionPool, clients: dict[_ClientKey, SyncClientSender], owner: int) -> None:
    """Close connections, but only in the process that created them."""
    if os.getpid() == owner:
        direct.close_idle()
        for client in clients.values():
            client.close()
        clients.clear()


async def _run_in_thread(function: Callable[..., Any], *args: Any) -> Any:
    from ..engine.drivers.user_code import call_in_thread  # lazy: a blocking call needs no event loop

    return await call_in_thread(function, args, {}, copy_context())


class _LoopPools:
    """Connection pool and clients of one event loop, and the generator that closes them."""

    __slots__ = ("clients", "direct", "keeper")

    def __init__(self, direct: AioConnectionPool) -> None:
        self.direct = direct
        self.clients: dict[_ClientKey, AsyncClientSender] = {}
        self.keeper = _close_with_loop(direct, self.clients)


class _Loops:
    """Connection pools by event loop.

    Connections refer to their loop, so weak keys would never expire: closed loops are removed when a new one is added.
    Each loop has a suspended async generator whose `finally` closes its pools. The loop runs it when it ends, or when
    the transport is dropped.
    """

    def __init__(self, tls: TlsContext) -> None:
        from asyncio import get_running_loop

        self._running = get_running_loop
        self._tls = tls
        self.by_loop: dict[asyncio.AbstractEventLoop, _LoopPools] = {}

    def get(self) -> _LoopPools | None:
        return self.by_loop.get(self._running())

    async def create(self) -> _LoopPools:
        from ..http.asyncio_connections import AioConnectionPool  # lazy: a blocking call needs no event loop

        for loop in [loop for loop in list(self.by_loop) if loop.is_closed()]:  # other threads add loops
            self.by_loop.pop(loop, None)
        created = self.by_loop[self._running()] = _LoopPools(AioConnectionPool(self._tls.load))
        await anext(created.keeper)
        return created


async def _close_with_loop(
    direct: AioConnectionPool, clients: dict[_ClientKey, AsyncClientSender]
) -> AsyncIterator[None]:
    try:
        yield
    finally:
        direct.close()
        for client in clients.values():
            await client.aclose()


# Default library of transports

_selected: Literal["httpx2", "httpx"] | None = None
_reads_environment = True


def default_library() -> Literal["httpx2", "httpx"] | None:
    """The default library of all transports; None to connect directly."""
    global _selected, _reads_environment
    if _reads_environment:
        _selected = _LIBRARY_CHOICES[_read_environment()]
        _reads_environment = False
    return _selected


def set_default_library(library: Literal["httpx2", "httpx"] | None) -> Literal["httpx2", "httpx"] | None:
    """Set the default library, and return the previous one."""
    global _selected
    previous = default_library()
    _selected = library
    return previous


_LIBRARY_CHOICES: dict[str, Literal["httpx2", "httpx"] | None] = {
    "": None,
    "direct": None,
    "httpx": "httpx2",
    "httpx2": "httpx2",
}


def _read_environment() -> str:
    name = os.environ.get("AGENT_HTTP", "").strip().lower()
    if name not in _LIBRARY_CHOICES:
        raise errors.ConfigurationError(
            f"AGENT_HTTP has the unknown value {name!r}.",
            field="AGENT_HTTP",
            fix="Set it to httpx or direct, or unset it.",
        )
    return name


_CLIENT_LIBRARIES = ("httpx2", "httpx")
_FIX = "Pass an httpx2.Client, an httpx2.AsyncClient, or a tuple of both; clients of httpx also work."


class HttpClientTransport:
    """Sends requests through the HTTP clients of a user: a sync one, an async one, or both.

    Event hooks, proxies, mounts, certificates and default headers of the clients apply. Timeouts are those of the
    agent, and redirects are not followed. The user closes the clients.
    """

    def __init__(self, http_client: Any) -> None:
        clients = tuple(http_client) if isinstance(http_client, Sequence) else (http_client,)
        self._sync: SyncClientSender | None = None
        self._async: AsyncClientSender | None = None
        self._trust_env = any(getattr(client, "trust_env", False) for client in clients)
        for client in clients:
            kind = _client_kind(client)
            if kind == "Client" and self._sync is None:
                self._sync = SyncClientSender(client)
            elif kind == "AsyncClient" and self._async is None:
                self._async = AsyncClientSender(client)
            else:
                value = f"two {kind}s" if kind else f"an object of type {type(client).__name__}"
                raise errors.ConfigurationError(f"http_client is {value}.", field="http_client", fix=_FIX)
        if not clients:
            raise errors.ConfigurationError("http_client is empty.", field="http_client", fix=_FIX)

    @override
    @printable
    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @override
    def __reduce__(self) -> Any:
        raise TypeError("an HTTP client holds connections and cannot be pickled; create one in the other process")

    def send(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> Reply:
        return self._sync_client(request, limits).send(request, limits, timeout)

    def open(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> SyncBody:
        return self._sync_client(request, limits).open_body(request, limits, timeout)

    def _sync_client(self, request: WireRequest, limits: Limits) -> SyncClientSender:
        self._check(request, limits)
        if self._sync is None:
            raise errors.ConfigurationError(
                "http_client is an AsyncClient, which sync calls cannot use.",
                field="http_client",
                fix="Call the agent's async methods, or pass http_client=(httpx2.Client(), httpx2.AsyncClient()).",
            )
        return self._sync

    async def asend(self, request: WireRequest, limits: Limits) -> Reply:
        return await self._async_client(request, limits).send(request, limits)

    async def aopen(self, request: WireRequest, limits: Limits, bodies: list[AsyncBody]) -> AsyncBody:
        return await self._async_client(request, limits).open_body(request, limits, bodies)

    def _async_client(self, request: WireRequest, limits: Limits) -> AsyncClientSender:
        self._check(request, limits)
        if self._async is None:
            raise errors.ConfigurationError(
                "http_client is a Client, which async calls cannot use.",
                field="http_client",
                fix="Call the agent's sync methods, or pass http_client=(httpx2.Client(), httpx2.AsyncClient()).",
            )
        return self._async

    def _check(self, request: WireRequest, limits: Limits) -> None:
        """Reject invalid requests and unencrypted keys."""
        try:
            address = RequestHead(request.url, request.headers)
        except BadRequest as error:
            raise request_error(error) from None
        if self._trust_env and not address.secure:
            proxy = ProxySettings.from_environment().for_url(request.url)
            if exposes_key(request, address, proxy):
                check_clear_text(limits)


def _client_kind(client: Any) -> str:
    """`Client`, `AsyncClient` or "". Compared by name, because httpx may not be installed."""
    for base in type(client).__mro__:
        if base.__name__ in ("Client", "AsyncClient") and base.__module__.partition(".")[0] in _CLIENT_LIBRARIES:
            return base.__name__
    return ""
