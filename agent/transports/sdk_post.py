"""The raw path of openai's and anthropic's clients: `client.post(path, cast_to=Response, …)`, which both document for
endpoints that they have no method for.

Everything the client does to a request happens on this path: keys and tokens, Azure's deployments, Bedrock's and
Vertex's addresses and signatures, default headers, middleware. Asked for the response of its HTTP library, it hands
that over unread and uninterpreted. Retries and redirects are turned off for the call, not for the client. Which HTTP
library that is depends on the SDK's version, so it is asked of the client.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pydantic_core import from_json

from ..wire import Limits, WireRequest
from .sdk_shared import Opened, headers_of, headers_to_send
from .threaded import Head


class PostPath:
    """Posts through a client of openai or anthropic, blocking or async."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._library = _library_of(client)

    def open(self, request: WireRequest, limits: Limits) -> Opened:
        return _opened(self._client.post(request.url, **self._arguments(request, limits, limits.total)))

    async def aopen(self, request: WireRequest, limits: Limits) -> Opened:
        return _opened(await self._client.post(request.url, **self._arguments(request, limits, None)))

    def _arguments(self, request: WireRequest, limits: Limits, longest: float | None) -> dict[str, Any]:
        """The body as a dict: the clients of clouds look into it, and move the model from there into the address.

        `longest` bounds how long a thread that nobody waits for any more can hang; the real limits are the driver's.
        """
        return {
            "cast_to": self._library.Response,
            "body": from_json(request.body),
            "stream": True,  # hands over the response before its body has come
            "options": {
                "headers": headers_to_send(request),
                "max_retries": 0,
                "follow_redirects": False,
                "timeout": self._library.Timeout(longest, connect=limits.connect),
            },
        }


def _library_of(client: Any) -> Any:
    """httpx2 or httpx: whose client the SDK's client holds. It is imported already, or there would be no client."""
    roots = {base.__module__.partition(".")[0] for base in type(getattr(client, "_client", None)).__mro__}
    return import_module("httpx" if "httpx" in roots else "httpx2")


def _opened(response: Any) -> Opened:
    return Opened(response, Head(response.status_code, headers_of(response.headers)))
