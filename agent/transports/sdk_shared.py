"""What the paths through all SDKs share: responses that are arriving, headers both ways, and what is raised, as ours.

Errors are told apart by name: none of the SDKs and HTTP libraries need be installed.
"""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from .. import errors
from ..http.errors import is_untrusted
from ..wire import Headers, Reply, WireRequest
from .event_stream import EventStreamDecoder, is_event_stream
from .threaded import Head, Steps

_THE_CLIENTS_OWN = frozenset((b"content-type", b"accept", b"user-agent", b"content-length", b"host"))
_TIMEOUTS = frozenset(("APITimeoutError", "TimeoutException", "TimeoutError", "ServerTimeoutError"))
_BROKEN = frozenset(("DecodingError", "ContentDecodingError", "UnknownApiResponseError"))
_CONNECTIONS = frozenset(
    (
        "APIConnectionError",
        "TransportError",
        "StreamError",
        "ClientConnectionError",
        "ClientPayloadError",
        "RequestException",
        "OSError",
    )
)
_MAY_QUOTE_A_HEADER = frozenset(("LocalProtocolError", "UnsupportedProtocol", "InvalidHeader"))
_CREDENTIALS = frozenset(("GoogleAuthError", "NoCredentialsError", "CredentialsError", "WorkloadIdentityError"))


def headers_to_send(request: WireRequest) -> dict[str, str]:
    """The codec's headers and the caller's, without those that a client sets itself."""
    return {
        name.decode("ascii"): value.decode("latin-1") for name, value in request.headers if name not in _THE_CLIENTS_OWN
    }


class Opened:
    """A response that is still arriving, of whichever HTTP library an SDK uses.

    That is httpx2 or httpx; in Google's also requests, where there are client certificates, and aiohttp, where that is
    installed.
    """

    __slots__ = ("_response", "head")

    def __init__(self, response: Any, head: Head) -> None:
        self._response = response
        self.head = head

    def chunks(self) -> Iterator[bytes]:
        response = self._response
        found: Iterator[bytes] = (
            response.iter_bytes() if hasattr(response, "iter_bytes") else response.iter_content(None)
        )
        return found

    def achunks(self) -> AsyncIterator[bytes]:
        response = self._response
        found: AsyncIterator[bytes] = (
            response.aiter_bytes() if hasattr(response, "aiter_bytes") else response.content.iter_any()
        )
        return found

    def close(self) -> None:
        self._response.close()

    async def aclose(self) -> None:
        if hasattr(self._response, "aclose"):
            await self._response.aclose()
        else:
            self._response.close()

    def hang_up(self) -> Callable[[], object] | None:
        """How to wake a thread that is reading: closing a socket would not, shutting it down does."""
        stream = getattr(self._response, "extensions", {}).get("network_stream")
        found = None if stream is None else stream.get_extra_info("socket")
        if not isinstance(found, socket.socket):
            return None
        connection = found

        def act() -> None:
            # On the class: an SSLSocket's own shutdown would forget its TLS state under the reader's feet.
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

        return act


def unwrapper(head: Head) -> Callable[[bytes], bytes]:
    """What makes the bytes of an answer those that the vendor's codec can read."""
    return EventStreamDecoder().feed if is_event_stream(head.headers) else lambda chunk: chunk


def refusal(error: Exception) -> Steps:
    """The vendor's answer that an SDK made into an error, as the answer that it was; any other error is raised."""
    reply = reply_in(error)
    if reply is None:
        raise error
    yield Head(reply.status, reply.headers)
    if reply.body:
        yield reply.body


def reply_in(error: BaseException) -> Reply | None:
    """The vendor's answer, if the error was made from one."""
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", None) or getattr(error, "code", None)
    if response is None or not isinstance(status, int) or status < 300:
        return None
    return Reply(status, headers_of(getattr(response, "headers", None)), _content(response, error))


def _content(response: Any, error: BaseException) -> bytes:
    content: Any = None
    with suppress(Exception):  # it was never read, and what says so differs from library to library
        content = response.content
    if isinstance(content, bytes):
        return content
    said = getattr(error, "details", None) or getattr(error, "body", None) or str(error)
    return json.dumps(said, default=str).encode()


def headers_of(headers: Any) -> Headers:
    """Headers of any library, with lower-case names."""
    if headers is None:
        return Headers()
    raw: Iterable[tuple[bytes, bytes]] | None = getattr(headers, "raw", None)
    if raw is not None:
        return Headers.of(raw)
    pairs = headers.items() if isinstance(headers, Mapping) or hasattr(headers, "items") else headers
    return Headers.of((str(name).encode("latin-1"), str(value).encode("latin-1")) for name, value in pairs)


def ours(error: Exception, target: str) -> errors.AgentError:
    """The error for a request that got no answer, or half of one."""
    if isinstance(error, errors.AgentError):
        return error
    names = {base.__name__ for base in type(error).__mro__}
    message = f"{target}: {_described(error)}" if target else _described(error)
    if names & _TIMEOUTS:
        return errors.TimeoutError(message)
    if names & _BROKEN:
        return errors.ProtocolError(message)
    if names & _CREDENTIALS:
        return errors.AuthenticationError(message)
    if type(error.__cause__ or error).__name__ in _MAY_QUOTE_A_HEADER:
        return errors.ConfigurationError(
            f"The request cannot be sent: {_described(error)}.", field="client", fix="Check its address and headers."
        )
    misused = isinstance(error.__cause__ or error, RuntimeError)  # which some SDKs call a connection error
    if misused and "loop is closed" in str(error.__cause__ or error):
        # The pool had kept a connection from another event loop. It is gone now, so the next one will be new.
        return errors.ConnectionError(f"{message}; an async client is for one event loop", retryable=True)
    if names & _CONNECTIONS and not misused:
        return errors.ConnectionError(message, retryable=not is_untrusted(error))
    return errors.ConfigurationError(
        f"The client cannot send the request: {_described(error)}", field="client", fix="See the cause of this error."
    )


def _described(error: BaseException) -> str:
    """The SDKs say "Connection error." and mean their cause."""
    told = error.__cause__ or error
    if type(told).__name__ in _MAY_QUOTE_A_HEADER:
        return type(told).__name__
    return f"{type(told).__name__}: {told}" if str(told) else type(told).__name__
