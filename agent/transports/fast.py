"""The way that takes the least CPU, measured: our own connections to vendors, aiohttp's through HTTP proxies.

aiohttp is loaded when the first request needs it. It takes longer to import than everything else that a call needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from ..wire import AsyncBody, Limits, Reply, WireRequest
from . import check
from .beside_http import BesideHttp
from .http import HttpTransport

if TYPE_CHECKING:
    from .over_aiohttp import AiohttpTransport


class FastTransport(BesideHttp):
    """Carries requests over HTTP/1.1, through proxies with aiohttp, from the extra `fast`.

    `Agent(transport="fast")` shares one.

    Args:
        ca_file: PEM file with the certificate authorities to trust instead of the system's.
        ssl_context: A ready TLS context, for client certificates and the like; excludes `ca_file`.
        proxy: A proxy for everything; False for none. By default the environment decides. Requests through a SOCKS
            proxy are carried as by `HttpTransport`.
    """

    @override
    def _stand_beside(self, http: HttpTransport) -> None:
        check("fast")  # now, and not when a request is on its way to a proxy
        super()._stand_beside(http)
        self._through_proxies: AiohttpTransport | None = None

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
