"""Sends through HTTP clients that the user passes: `Agent(..., http_client=httpx2.Client())`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from .. import errors
from ..http.errors import unsendable
from ..http.parser import Address, BadRequest
from ..wire import AsyncBody, Limits, Live, Reply, SyncBody, WireRequest
from .http import check_clear_text, exposes_key
from .httpx_clients import AsyncClientCarrier, SyncClientCarrier
from .proxies import ProxySettings

_LIBRARIES = ("httpx2", "httpx")
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

    def send(self, request: WireRequest, limits: Limits, live: Live) -> Reply:
        return self._sync_client(request, limits).send(request, limits, live)

    def open(self, request: WireRequest, limits: Limits, live: Live) -> SyncBody:
        return self._sync_client(request, limits).open_body(request, limits, live)

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
            address = Address(request.url, request.headers)
        except BadRequest as error:
            raise unsendable(error) from None
        if self._trust_env and not address.secure:
            proxy = ProxySettings.from_environment().for_url(request.url)
            check_clear_text(limits, exposed=exposes_key(request, address, proxy))


def _kind_of(client: Any) -> str:
    """`Client`, `AsyncClient`, or "" for anything else. Told by name: httpx need not be installed."""
    for base in type(client).__mro__:
        if base.__name__ in ("Client", "AsyncClient") and base.__module__.partition(".")[0] in _LIBRARIES:
            return base.__name__
    return ""
