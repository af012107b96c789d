"""The HTTP transport: direct HTTP/1.1, or clients of httpx2 where a proxy or the user asks for them.

It never retries, redirects or decides. Sync calls share connections between threads and drop them after a fork;
asyncio gets its own for each event loop, closed with the loop.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import AsyncIterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import override

from .. import errors
from ..engine.wire import AsyncBody, Limits, Reply, RunTimeout, SyncBody, WireRequest
from ..http.connections import SyncConnectionPool
from ..http.exchange import KEEPALIVE_SECONDS, max_idle_connections, request_error
from ..http.parser import BadRequest, RequestHead
from ..providers.base import is_loopback
from ..providers.codec import secrets_in
from ..types.secrets import is_credential_header
from .httpx_clients import AsyncClientCarrier, SyncClientCarrier
from .proxies import ProxySettings, client_proxy

if TYPE_CHECKING:
    import asyncio
    import ssl

    from ..http.asyncio_connections import AioConnectionPool


_MAX_KNOWN_ROUTES = 256


class _Route:
    """RequestHead and proxy of a request, worked out once. It is not printed: a proxy's URL may hold a password."""

    __slots__ = ("address", "exposes_key", "proxy")

    def __init__(self, address: RequestHead, proxy: str | None, *, exposes_key: bool) -> None:
        self.address = address
        self.proxy = proxy
        self.exposes_key = exposes_key
        """Whether a key would reach a proxy on another machine unencrypted."""


class HttpTransport:
    """Sends requests over HTTP/1.1: directly, or with httpx2 through a proxy.

    Args:
        ca_file: PEM file with the certificate authorities to trust instead of the system's.
        ssl_context: A ready TLS context, for client certificates and the like; excludes `ca_file`.
        proxy: A proxy for everything; False for none. By default the environment decides.
        library: "httpx2" or "httpx" sends every request through clients of that library, so that mocks and
            instrumentation see it. By default `AGENT_HTTP` and `agent.testing.use_httpx` decide.
    """

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
                "Both ca_file and ssl_context are given.", field="ca_file", fix="Load the file into the context."
            )
        self._ssl_context = ssl_context if ca_file is None else load_ca_file(ca_file)
        if proxy is None or proxy is True:
            self._proxies = ProxySettings.from_environment()
        else:
            self._proxies = ProxySettings.always(proxy) if proxy else ProxySettings()
        self._lock = threading.Lock()
        self._routes: dict[tuple[str, tuple[tuple[bytes, bytes], ...]], _Route] = {}
        self._begin()

    def _begin(self) -> None:
        """Start without connections, in this process."""
        self._pid = os.getpid()
        self._direct = SyncConnectionPool(self._context)
        self._clients: dict[_ClientKey, SyncClientCarrier] = {}
        self._loops: _Loops | None = None
        self._closing = weakref.finalize(self, _close_all, self._direct, self._clients, self._pid)

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # a proxy's URL may hold a password

    @override
    def __reduce__(self) -> Any:
        raise TypeError("an HTTP transport holds connections and cannot be pickled; make one in the other process")

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

    def _client(self, proxy: str | None) -> SyncClientCarrier | None:
        """The client to send through; None to connect directly."""
        if self._pid != os.getpid():
            self._forget_the_parents_connections()
        library = self._library or selected_library()
        if proxy is None and library is None:
            return None
        key = (library or "httpx2", proxy)
        found = self._clients.get(key)
        if found is None:
            with self._lock:
                found = self._clients.get(key)
                if found is None:
                    made = import_module(key[0]).Client(**self._client_options(*key))
                    found = self._clients[key] = SyncClientCarrier(made, brackets=_forwards(proxy))
        return found

    # Async

    async def asend(self, request: WireRequest, limits: Limits) -> Reply:
        route = self._route(request, limits)
        of_loop = await self._of_loop()
        client = self._aclient(of_loop, route.proxy)
        if client is None:
            return await of_loop.direct.send(request, route.address, limits)
        return await client.send(request, limits)

    async def aopen(self, request: WireRequest, limits: Limits, bodies: list[AsyncBody]) -> AsyncBody:
        route = self._route(request, limits)
        of_loop = await self._of_loop()
        client = self._aclient(of_loop, route.proxy)
        if client is None:
            return await of_loop.direct.open_body(request, route.address, limits, bodies)
        return await client.open_body(request, limits, bodies)

    async def _of_loop(self) -> _OfLoop:
        if self._pid != os.getpid():
            self._forget_the_parents_connections()
        if self._loops is None:
            self._loops = _Loops(self)
        return self._loops.known() or await self._loops.begin()

    def _aclient(self, of_loop: _OfLoop, proxy: str | None) -> AsyncClientCarrier | None:
        library = self._library or selected_library()
        if proxy is None and library is None:
            return None
        key = (library or "httpx2", proxy)
        found = of_loop.clients.get(key)
        if found is None:
            made = import_module(key[0]).AsyncClient(**self._client_options(*key))
            found = of_loop.clients[key] = AsyncClientCarrier(made, brackets=_forwards(proxy))
        return found

    def _client_options(self, library: str, proxy: str | None) -> dict[str, Any]:
        module, context = import_module(library), self._context()
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
        found = self._routes.get((request.url, request.headers))
        if found is None:
            try:
                address, proxy = RequestHead(request.url, request.headers), self._proxies.for_url(request.url)
            except BadRequest as error:
                raise request_error(error) from None
            found = _Route(address, proxy, exposes_key=exposes_key(request, address, proxy))
            if len(self._routes) >= _MAX_KNOWN_ROUTES:
                self._routes.clear()
            self._routes[request.url, request.headers] = found
        check_clear_text(limits, exposed=found.exposes_key)
        return found

    def _context(self) -> ssl.SSLContext:
        if self._ssl_context is None:
            self._ssl_context = default_context()
        if self._ssl_context not in _PREPARED:
            self._ssl_context.set_alpn_protocols(["http/1.1"])
            _PREPARED.add(self._ssl_context)
        return self._ssl_context

    def _forget_the_parents_connections(self) -> None:
        """After a fork: the sockets belong to the parent's conversations, the lock perhaps to a thread that is gone."""
        self._lock = threading.Lock()
        self._begin()

    def close(self) -> None:
        """Close idle connections of blocking calls. Those of event loops close with their loop."""
        with self._lock:
            _close_all(self._direct, self._clients, self._pid)


def check_clear_text(limits: Limits, *, exposed: bool) -> None:
    if exposed and not limits.allow_insecure:
        raise errors.ConfigurationError(
            "The key would travel unencrypted: base_url is plain http, and the proxy is on another machine.",
            field="proxy",
            fix="Exclude the host with NO_PROXY, use https, or pass allow_insecure=True if the network is yours.",
        )


def exposes_key(request: WireRequest, address: RequestHead, proxy: str | None) -> bool:
    """Whether a key in the headers would be readable between this machine and the proxy."""
    if proxy is None or address.secure or proxy.startswith("https:") or is_loopback(proxy):
        return False
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
    return any(is_credential_header(name) for name in headers) or bool(secrets_in(headers))


def load_ca_file(ca_file: str | os.PathLike[str], field: str = "ca_file") -> ssl.SSLContext:
    """A TLS context that trusts only the authorities in this PEM file."""
    import ssl

    try:
        return ssl.create_default_context(cafile=os.fspath(ca_file))
    except FileNotFoundError:
        why = "does not exist"
    except ssl.SSLError:
        why = "holds no certificate in PEM format"
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
    raise errors.ConfigurationError(
        f"The file {os.fspath(ca_file)} of certificate authorities {why}.",
        field=field,
        fix="Name a PEM file with the certificates to trust.",
    )


def default_context() -> ssl.SSLContext:
    """The system's authorities, or those that SSL_CERT_FILE or SSL_CERT_DIR name."""
    import httpcore2  # lazy: plain HTTP needs no certificates

    if given := os.environ.get("SSL_CERT_FILE"):
        return load_ca_file(given, "SSL_CERT_FILE")
    return httpcore2.default_ssl_context()


_PREPARED: weakref.WeakSet[ssl.SSLContext] = weakref.WeakSet()
"""Contexts that have been told which protocol we speak."""


_ClientKey = tuple[str, str | None]
"""A library and a proxy."""


def _forwards(proxy: str | None) -> bool:
    """Whether the proxy is told the host in HTTP, where IPv6 addresses have brackets."""
    return proxy is not None and not proxy.startswith("socks")


def _no_cookies() -> Any:
    from http.cookiejar import CookieJar, DefaultCookiePolicy  # lazy: slow to import, and loads `ssl`

    return CookieJar(DefaultCookiePolicy(allowed_domains=()))


def _close_all(direct: SyncConnectionPool, clients: dict[_ClientKey, SyncClientCarrier], owner: int) -> None:
    """Close the connections, in the process that made them: after a fork they are still the parent's."""
    if os.getpid() == owner:
        direct.close_idle()
        for client in clients.values():
            client.close()
        clients.clear()


class _OfLoop:
    """The connections of one event loop, and the generator that closes them."""

    __slots__ = ("clients", "direct", "keeper")

    def __init__(self, direct: AioConnectionPool) -> None:
        self.direct = direct
        self.clients: dict[_ClientKey, AsyncClientCarrier] = {}
        self.keeper = _close_with_loop(self)


class _Loops:
    """Connections per event loop.

    Connections refer to their loop, so a weak key would never die: closed loops are dropped when another one comes.
    Each loop keeps a suspended async generator whose `finally` closes them; `asyncio.run` runs it at the end.
    """

    def __init__(self, transport: HttpTransport) -> None:
        from asyncio import get_running_loop

        self._running = get_running_loop
        self._context = transport._context
        self.by_loop: dict[asyncio.AbstractEventLoop, _OfLoop] = {}

    def known(self) -> _OfLoop | None:
        return self.by_loop.get(self._running())

    async def begin(self) -> _OfLoop:
        from ..http.asyncio_connections import AioConnectionPool  # lazy: a blocking call needs no event loop

        for old in [old for old in list(self.by_loop) if old.is_closed()]:  # other threads add theirs
            self.by_loop.pop(old, None)
        begun = self.by_loop[self._running()] = _OfLoop(AioConnectionPool(self._context))
        await anext(begun.keeper)
        return begun


async def _close_with_loop(of_loop: _OfLoop) -> AsyncIterator[None]:
    try:
        yield
    finally:
        of_loop.direct.close()
        for client in of_loop.clients.values():
            await client.aclose()


# The option that is used where a transport does not name one

_selected: Literal["httpx2", "httpx"] | None = None
_reads_environment = True


def selected_library() -> Literal["httpx2", "httpx"] | None:
    """The library that all transports send through; None to connect directly."""
    global _selected, _reads_environment
    if _reads_environment:
        _selected = _LIBRARY_CHOICES[_read_environment()]
        _reads_environment = False
    return _selected


def select_library(library: Literal["httpx2", "httpx"] | None) -> Literal["httpx2", "httpx"] | None:
    """Send everything through this library, or directly; the choice before it is returned."""
    global _selected
    before = selected_library()
    _selected = library
    return before


_LIBRARY_CHOICES: dict[str, Literal["httpx2", "httpx"] | None] = {
    "": None,
    "direct": None,
    "httpx": "httpx2",
    "httpx2": "httpx2",
}


def _read_environment() -> str:
    given = os.environ.get("AGENT_HTTP", "").strip().lower()
    if given not in _LIBRARY_CHOICES:
        raise errors.ConfigurationError(
            f"AGENT_HTTP is {given!r}.", field="AGENT_HTTP", fix="Set it to httpx or direct, or leave it out."
        )
    return given


_CLIENT_LIBRARIES = ("httpx2", "httpx")
_FIX = "Pass an httpx2.Client, an httpx2.AsyncClient, or a tuple of both; clients of httpx work, too."


class HttpClientTransport:
    """Sends requests through a user's clients: sync calls through the sync one, async calls through the async one.

    The clients keep their event hooks, proxies, mounts, certificates and default headers. Timeouts are the agent's,
    and redirects are not followed. The user closes the clients.
    """

    def __init__(self, http_client: Any) -> None:
        given = tuple(http_client) if isinstance(http_client, Sequence) else (http_client,)
        self._sync: SyncClientCarrier | None = None
        self._async: AsyncClientCarrier | None = None
        self._trust_env = any(getattr(client, "trust_env", False) for client in given)
        for client in given:
            kind = _kind_of(client)
            if kind == "Client" and self._sync is None:
                self._sync = SyncClientCarrier(client)
            elif kind == "AsyncClient" and self._async is None:
                self._async = AsyncClientCarrier(client)
            else:
                what = f"two {kind}s" if kind else f"an object of type {type(client).__name__}"
                raise errors.ConfigurationError(f"http_client is {what}.", field="http_client", fix=_FIX)
        if not given:
            raise errors.ConfigurationError("http_client is empty.", field="http_client", fix=_FIX)

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @override
    def __reduce__(self) -> Any:
        raise TypeError("an HTTP client holds connections and cannot be pickled; make one in the other process")

    def send(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> Reply:
        return self._sync_client(request, limits).send(request, limits, timeout)

    def open(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> SyncBody:
        return self._sync_client(request, limits).open_body(request, limits, timeout)

    def _sync_client(self, request: WireRequest, limits: Limits) -> SyncClientCarrier:
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

    def _async_client(self, request: WireRequest, limits: Limits) -> AsyncClientCarrier:
        self._check(request, limits)
        if self._async is None:
            raise errors.ConfigurationError(
                "http_client is a Client, which async calls cannot use.",
                field="http_client",
                fix="Call the agent's sync methods, or pass http_client=(httpx2.Client(), httpx2.AsyncClient()).",
            )
        return self._async

    def _check(self, request: WireRequest, limits: Limits) -> None:
        """Refuse what must not be sent, whatever carries it."""
        try:
            address = RequestHead(request.url, request.headers)
        except BadRequest as error:
            raise request_error(error) from None
        if self._trust_env and not address.secure:
            proxy = ProxySettings.from_environment().for_url(request.url)
            check_clear_text(limits, exposed=exposes_key(request, address, proxy))


def _kind_of(client: Any) -> str:
    """`Client`, `AsyncClient`, or "" for anything else. Told by name: httpx need not be installed."""
    for base in type(client).__mro__:
        if base.__name__ in ("Client", "AsyncClient") and base.__module__.partition(".")[0] in _CLIENT_LIBRARIES:
            return base.__name__
    return ""
