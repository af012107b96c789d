"""The way that takes the least CPU, measured: our own connections to vendors, aiohttp's through HTTP proxies.

aiohttp is loaded when the first request needs it. It takes longer to import than everything else that a call needs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import override

from ..wire import AsyncBody, Limits, Live, Reply, SyncBody, WireRequest
from .http import HttpTransport

if TYPE_CHECKING:
    import ssl

    from .over_aiohttp import AiohttpTransport


class FastTransport:
    """Carries requests over HTTP/1.1, through proxies with aiohttp, from the extra `fast`.

    `Agent(transport="fast")` shares one.

    Args:
        ca_file: PEM file with the certificate authorities to trust instead of the system's.
        ssl_context: A ready TLS context, for client certificates and the like; excludes `ca_file`.
        proxy: A proxy for everything; False for none. By default the environment decides. Requests through a SOCKS
            proxy are carried as by `HttpTransport`.
    """

    def __init__(
        self,
        *,
        ca_file: str | os.PathLike[str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        proxy: str | bool | None = None,
    ) -> None:
        self._over(HttpTransport(ca_file=ca_file, ssl_context=ssl_context, proxy=proxy))

    def _over(self, http: HttpTransport) -> None:
        """The settings are the other transport's: whom to trust, and which proxy to take."""
        self._http = http
        self._through_proxies: AiohttpTransport | None = None

    @classmethod
    def beside(cls, http: HttpTransport) -> Self:
        """One with the settings of another transport, over whose connections it goes where there is no proxy."""
        made = cls.__new__(cls)
        made._over(http)
        return made

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # a proxy's URL may hold a password

    @override
    def __reduce__(self) -> Any:
        raise TypeError("an HTTP transport holds connections and cannot be pickled; make one in the other process")

    # Blocking

    def send(self, request: WireRequest, limits: Limits, live: Live) -> Reply:
        return self._http.send(request, limits, live)

    def open(self, request: WireRequest, limits: Limits, live: Live) -> SyncBody:
        return self._http.open(request, limits, live)

    def close(self) -> None:
        """Close idle connections of blocking calls. Those of event loops close with their loop."""
        self._http.close()

    # Async

    async def asend(self, request: WireRequest, limits: Limits) -> Reply:
        return await self._carrier(request.url).asend(request, limits)

    async def aopen(self, request: WireRequest, limits: Limits, bodies: list[AsyncBody]) -> AsyncBody:
        return await self._carrier(request.url).aopen(request, limits, bodies)

    def _carrier(self, url: str) -> HttpTransport | AiohttpTransport:
        proxies = self._http._proxies
        if not proxies.by_scheme or proxies.for_url(url) is None:
            return self._http
        if self._through_proxies is None:
            from .over_aiohttp import AiohttpTransport

            self._through_proxies = AiohttpTransport.beside(self._http)
        return self._through_proxies
