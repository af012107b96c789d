"""HTTP: bytes out, bytes in, whatever carries them; its errors made ours.

It never retries, redirects or decides. A vendor is reached over connections of our own; through a proxy, over
httpcore2's pools. Blocking calls share connections between threads and drop them after a fork; asyncio gets its own for
each event loop, closed with the loop.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Protocol

from typing_extensions import override

from .. import errors
from ..providers.codec import secrets_in
from ..providers.credentials import is_loopback
from ..types.headers import holds_key
from ..wire import AsyncBody, Limits, Live, Reply, SyncBody, WireRequest
from .direct import Connections
from .http1 import Address, BadRequest
from .proxies import ProxySettings
from .replies import unsendable

if TYPE_CHECKING:
    import asyncio
    import ssl

    from .direct_aio import AioConnections
    from .pooled import AioPooled

_MAX_KNOWN_ROUTES = 256


class _Route:
    """What a URL and headers come down to, worked out once. It is not printed: a proxy's URL may hold a password."""

    __slots__ = ("address", "exposes_key", "proxy")

    def __init__(self, address: Address, proxy: str | None, *, exposes_key: bool) -> None:
        self.address = address
        self.proxy = proxy
        self.exposes_key = exposes_key
        """Whether a key would reach a proxy on another machine unencrypted."""


class _Carrier(Protocol):
    """Connections of blocking calls: ours to vendors, or those of a proxy."""

    def send(self, request: WireRequest, address: Address, limits: Limits, live: Live) -> Reply: ...

    def open_body(self, request: WireRequest, address: Address, limits: Limits, live: Live) -> SyncBody: ...

    def close(self) -> None: ...


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
        self._ssl_context = ssl_context if ca_file is None else load_ca_file(ca_file)
        if proxy is None or proxy is True:
            self._proxies = ProxySettings.from_environment()
        else:
            self._proxies = ProxySettings.always(proxy) if proxy else ProxySettings()
        self._lock = threading.Lock()
        self._routes: dict[tuple[str, tuple[tuple[bytes, bytes], ...]], _Route] = {}
        self._begin()

    def _begin(self) -> None:
        """The connections of this process: none yet."""
        self._pid = os.getpid()
        self._direct = Connections(self._context)
        self._proxied: dict[str | None, _Carrier] = {}
        self._loops: _Loops | None = None
        self._closing = weakref.finalize(self, _close_all, self._direct, self._proxied, self._pid)

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # a proxy's URL may hold a password

    @override
    def __reduce__(self) -> Any:
        raise TypeError("an HTTP transport holds connections and cannot be pickled; make one in the other process")

    # Blocking

    def send(self, request: WireRequest, limits: Limits, live: Live) -> Reply:
        route = self._route(request, limits)
        return self._carrier(route.proxy).send(request, route.address, limits, live)

    def open(self, request: WireRequest, limits: Limits, live: Live) -> SyncBody:
        route = self._route(request, limits)
        return self._carrier(route.proxy).open_body(request, route.address, limits, live)

    def _carrier(self, proxy: str | None) -> _Carrier:
        if self._pid != os.getpid():
            self._forget_the_parents_connections()
        if proxy is None and not _mocked():
            return self._direct
        found = self._proxied.get(proxy)
        if found is None:
            from .pooled import Pooled

            with self._lock:
                found = self._proxied.get(proxy)
                if found is None:
                    found = self._proxied[proxy] = Pooled(proxy, self._context())
        return found

    # Async

    async def asend(self, request: WireRequest, limits: Limits) -> Reply:
        route = self._route(request, limits)
        carrier = await self._acarrier(route.proxy)
        return await carrier.send(request, route.address, limits)

    async def aopen(self, request: WireRequest, limits: Limits, bodies: list[AsyncBody]) -> AsyncBody:
        route = self._route(request, limits)
        carrier = await self._acarrier(route.proxy)
        return await carrier.open_body(request, route.address, limits, bodies)

    async def _acarrier(self, proxy: str | None) -> AioConnections | AioPooled:
        if self._pid != os.getpid():
            self._forget_the_parents_connections()
        if self._loops is None:
            self._loops = _Loops(self)
        of_loop = self._loops.known() or await self._loops.begin()
        if proxy is None and not _mocked():
            return of_loop.direct
        found = of_loop.proxied.get(proxy)
        if found is None:
            from .pooled import AioPooled

            found = of_loop.proxied[proxy] = AioPooled(proxy, self._context())
        return found

    # What both need

    def _route(self, request: WireRequest, limits: Limits) -> _Route:
        found = self._routes.get((request.url, request.headers))
        if found is None:
            try:
                address, proxy = Address(request.url, request.headers), self._proxies.for_url(request.url)
            except BadRequest as error:
                raise unsendable(error) from None
            found = _Route(address, proxy, exposes_key=exposes_key(request, address, proxy))
            if len(self._routes) >= _MAX_KNOWN_ROUTES:
                self._routes.clear()
            self._routes[request.url, request.headers] = found
        if found.exposes_key and not limits.allow_insecure:
            raise errors.ConfigurationError(
                "The key would travel unencrypted: base_url is plain http, and the proxy is on another machine.",
                field="proxy",
                fix="Exclude the host with NO_PROXY, use https, or pass allow_insecure=True if the network is yours.",
            )
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
            _close_all(self._direct, self._proxied, self._pid)


def exposes_key(request: WireRequest, address: Address, proxy: str | None) -> bool:
    """Whether a key in the headers would be readable between this machine and the proxy."""
    if proxy is None or address.secure or proxy.startswith("https:") or is_loopback(proxy):
        return False
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
    return any(holds_key(name) for name in headers) or bool(secrets_in(headers))


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
    import httpcore2

    if given := os.environ.get("SSL_CERT_FILE"):
        return load_ca_file(given, "SSL_CERT_FILE")
    return httpcore2.default_ssl_context()


_PREPARED: weakref.WeakSet[ssl.SSLContext] = weakref.WeakSet()
"""Contexts that have been told which protocol we speak."""


def _mocked() -> bool:
    """Whether a test has put its own functions in the place of httpcore2's: then it wants to see the requests there."""
    httpcore2: Any = sys.modules.get("httpcore2")
    if httpcore2 is None:
        return False
    sync = httpcore2.ConnectionPool.handle_request
    aio = httpcore2.AsyncConnectionPool.handle_async_request
    return not (_is_httpcores(sync) and _is_httpcores(aio))


def _is_httpcores(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename.endswith("connection_pool.py")


def _close_all(direct: Connections, proxied: dict[str | None, _Carrier], owner: int) -> None:
    """Close the connections, in the process that made them: after a fork they are still the parent's."""
    if os.getpid() == owner:
        direct.close()
        for carrier in proxied.values():
            carrier.close()
        proxied.clear()


class _OfLoop:
    """The connections of one event loop, and what closes them."""

    __slots__ = ("direct", "keeper", "proxied")

    def __init__(self, direct: AioConnections) -> None:
        self.direct = direct
        self.proxied: dict[str | None, AioPooled] = {}
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
        from .direct_aio import AioConnections

        for old in [old for old in list(self.by_loop) if old.is_closed()]:  # other threads add theirs
            self.by_loop.pop(old, None)
        begun = self.by_loop[self._running()] = _OfLoop(AioConnections(self._context))
        await anext(begun.keeper)
        return begun


async def _close_with_loop(of_loop: _OfLoop) -> AsyncIterator[None]:
    try:
        yield
    finally:
        of_loop.direct.close()
        for pooled in of_loop.proxied.values():
            await pooled.aclose()
