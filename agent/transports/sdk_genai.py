"""The raw path of google-genai's client.

Its documented methods take and return its own types only. Below them is the object that all of them send through,
`client._api_client`. It is private, but there is nothing public in its place, and Google's tokens, projects, mutual TLS
and proxies are handled there. Two of its steps are used: the one that makes a path and a body into a request of the
client, and the one that sends it and hands over the response of the HTTP library, unread. Its streaming methods would
bring the same, but keep the connection of a stream that is left early.

One attempt is asked for, and the agent's time limits, whatever the client is set to. Redirects are followed: a call
cannot say otherwise.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json

from ..wire import Limits, WireRequest
from .sdk_shared import Opened, headers_of, headers_to_send
from .threaded import Head


class GenaiPath:
    """Sends through the API client below a `google.genai` client."""

    def __init__(self, client: Any) -> None:
        self._api = client._api_client

    def open(self, request: WireRequest, limits: Limits) -> Opened:
        options = _options(request, limits)
        built = self._built(request, options)
        self._limit_connecting(built, limits, "_httpx_client", "_use_google_auth_sync")
        return _opened(self._api._request(built, options, stream=True))

    async def aopen(self, request: WireRequest, limits: Limits) -> Opened:
        options = _options(request, limits)
        built = self._built(request, options)
        self._limit_connecting(built, limits, "_async_httpx_client", "_use_aiohttp")
        return _opened(await self._api._async_request(built, options, stream=True))

    def _built(self, request: WireRequest, options: dict[str, Any]) -> Any:
        return self._api._build_request("post", request.url, from_json(request.body), options)

    def _limit_connecting(self, built: Any, limits: Limits, client: str, uses_another: str) -> None:
        """Its own options know one limit only, but what it hands to httpx may hold one for connecting, too."""
        timeout = getattr(getattr(self._api, client, None), "timeout", None)
        elsewhere = getattr(self._api, uses_another, None)
        if timeout is not None and elsewhere is not None and not elsewhere():
            built.timeout = type(timeout)(limits.total, connect=limits.connect)


def _options(request: WireRequest, limits: Limits) -> dict[str, Any]:
    """The limit bounds how long a thread that nobody waits for any more can hang; the real ones are the driver's."""
    options: dict[str, Any] = {"headers": headers_to_send(request), "retry_options": {"attempts": 1}}
    if limits.total is not None:
        options["timeout"] = max(1, int(limits.total * 1000))
    return options


def _opened(answer: Any) -> Opened:
    return Opened(answer.response_stream, Head(200, headers_of(answer.headers)))
