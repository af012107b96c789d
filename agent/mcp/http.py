"""A server over streamable HTTP: the SDK's transport, on a client that bounds what it reads and says what went wrong.

Left alone, the SDK's transport ends the whole session when one request cannot be sent, reads bodies of any size, and
tells a refused key from a missing page by the same words. Here a request that fails is answered, to that request alone,
with an error that says what happened.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
from mcp.client.streamable_http import streamable_http_client
from typing_extensions import override

from ..errors import ConfigurationError
from ..providers.base import is_loopback
from .errors import MARK

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

_CONNECT = 10.0
_GOODBYE = 0.5
_MOST_OF_AN_ERROR = 16_384
_FAILED = -32_000


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens, and what it is sent with every request."""

    url: str = field(repr=False)  # it may hold a password
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    auth: httpx2.Auth | None = field(default=None, repr=False)
    allow_insecure: bool = False

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(
                "The address of an MCP server is an http or https URL.",
                field="url",
                fix="Pass one such as https://example.com/mcp; a program to run goes to MCPServer.stdio().",
            )
        for name, value in self.headers.items():
            if not name.isascii() or any(ord(letter) < 32 or ord(letter) == 127 for letter in f"{name}{value}"):
                raise ConfigurationError(  # the value is a secret, and not shown
                    f"The header {name.encode('unicode_escape').decode()!r} holds a character that no header may hold.",
                    field="headers",
                    fix="Remove line breaks and control characters.",
                )
        secret = bool(self.headers) or self.auth is not None or parts.username is not None
        if secret and parts.scheme == "http" and not is_loopback(self.url) and not self.allow_insecure:
            raise ConfigurationError(
                "The headers would travel unencrypted: url is plain http and not on this machine.",
                field="url",
                fix="Use https, or pass allow_insecure=True if the network is yours.",
            )

    @property
    def password(self) -> str | None:
        return urlsplit(self.url).password

    @property
    def shown(self) -> str:
        """Without what may be secret."""
        parts = urlsplit(self.url)
        port = "" if parts.port is None else f":{parts.port}"
        return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


@asynccontextmanager
async def web(address: Address, most_bytes: int) -> AsyncIterator[TransportStreams]:
    # Answers may take as long as their callers wait for them, so reading has no limit of its own.
    timeout = httpx2.Timeout(_CONNECT, read=None, pool=None)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
    headers = {**address.headers, "accept-encoding": "identity"}
    async with (
        _Client(most_bytes, headers=headers, timeout=timeout, limits=limits, auth=address.auth) as client,
        streamable_http_client(address.url, http_client=client, max_sse_event_size=most_bytes) as streams,
    ):
        yield streams


class _Client(httpx2.AsyncClient):
    def __init__(self, most_bytes: int, **options: Any) -> None:
        super().__init__(**options)
        self._most_bytes = most_bytes

    @override
    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method == "GET":  # listening: the SDK copes with any failure of it
            return await super().send(request, **options)
        if request.method == "DELETE":  # saying goodbye: a server that does not listen is left without
            try:
                return await asyncio.wait_for(super().send(request, **options), _GOODBYE)
            except (httpx2.TransportError, TimeoutError):
                return httpx2.Response(204, request=request)
        try:
            response = await super().send(request, **options)
        except httpx2.TransportError as error:
            return _made_up(request, {"text": f"{type(error).__name__}: {error}"})
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()  # it was told not to, and a few compressed bytes can be gigabytes
            return _made_up(request, {"text": "the answer is compressed although that was not asked for"})
        if response.status_code >= 400:
            return await _failed(request, response)
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = _Bounded(response.stream, self._most_bytes)  # events are bounded one by one
        return response


class _Bounded(httpx2.AsyncByteStream):
    """A body up to a limit. Whatever breaks it is an error that the SDK blames on this one answer."""

    def __init__(self, stream: Any, most_bytes: int) -> None:
        self._stream = stream
        self._most_bytes = most_bytes

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        seen = 0
        try:
            async for chunk in self._stream:
                seen += len(chunk)
                if seen > self._most_bytes:
                    raise httpx2.StreamError(f"the answer is longer than {self._most_bytes} bytes")
                yield chunk
        except httpx2.TransportError as error:
            raise httpx2.StreamError(f"the answer broke off: {type(error).__name__}") from error

    @override
    async def aclose(self) -> None:
        await self._stream.aclose()


async def _failed(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    """An answer of status 400 and above: the server's own error if it sent one, else what the status says."""
    body = b""
    try:
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > _MOST_OF_AN_ERROR:
                break
    except httpx2.TransportError:
        pass
    finally:
        await response.aclose()
    try:
        said = json.loads(body)
        spoken = isinstance(said, dict) and isinstance(said.get("error"), dict) and said.get("jsonrpc") == "2.0"
    except (ValueError, RecursionError):
        spoken = False
    session_lost = response.status_code == 404 and "mcp-session-id" in request.headers
    if spoken and not session_lost:
        kept = {"content-type": "application/json"}
        return httpx2.Response(response.status_code, headers=kept, content=body, request=request)
    text = body[:500].decode("utf-8", "replace")
    return _made_up(request, {"status": response.status_code, "text": text, "session_lost": session_lost})


def _made_up(request: httpx2.Request, found: dict[str, Any]) -> httpx2.Response:
    error = {"code": _FAILED, "message": "The request failed.", "data": {MARK: found}}
    return httpx2.Response(503, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request)
