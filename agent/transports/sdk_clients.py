"""Transport through a client of an official SDK, with its base URL, credentials and proxies.

The codec encodes the request and decodes the response; the SDK neither retries nor interprets them. Blocking clients
run in a worker thread with exact timeouts and cancellation, and so serve async calls too. A call abandoned before its
response starts cannot be interrupted: its thread stays until the response or the timeout, and then closes it.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import socket
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, Protocol

from pydantic_core import from_json
from typing_extensions import override

from .. import errors
from ..engine.wire import AsyncBody, Headers, Limits, Reply, RunTimeout, SyncBody, WireRequest
from ..errors import printable
from ..http.event_stream import EventStreamConverter, is_event_stream
from ..http.exchange import is_certificate_error
from ..providers.sdk_clients import SdkClientKind, identify_client
from .threaded import DeferredBody, Head, Stepper, Steps, acollect, aopen_body, begin_body, collect, open_body

_CLIENT_HEADERS = frozenset((b"content-type", b"accept", b"user-agent", b"content-length", b"host"))
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


def encode_headers(request: WireRequest) -> dict[str, str]:
    """Headers of a request, without those that the SDK client sets itself."""
    return {
        name.decode("ascii"): value.decode("latin-1")
        for name, value in (*request.headers, *request.call_headers)
        if name not in _CLIENT_HEADERS
    }


class StreamedResponse:
    """A streamed response of an HTTP library.

    SDKs use httpx2 or httpx; Google's also uses requests with client certificates, and aiohttp if it is installed.
    """

    __slots__ = ("_response", "head")

    def __init__(self, response: Any, head: Head) -> None:
        self._response = response
        self.head: Head = head

    def chunks(self) -> Iterator[bytes]:
        response = self._response
        chunks: Iterator[bytes] = (
            response.iter_bytes() if hasattr(response, "iter_bytes") else response.iter_content(None)
        )
        return chunks

    def achunks(self) -> AsyncIterator[bytes]:
        response = self._response
        chunks: AsyncIterator[bytes] = (
            response.aiter_bytes() if hasattr(response, "aiter_bytes") else response.content.iter_any()
        )
        return chunks

    def close(self) -> None:
        self._response.close()

    async def aclose(self) -> None:
        if hasattr(self._response, "aclose"):
            await self._response.aclose()
        else:
            self._response.close()

    def interrupter(self) -> Callable[[], object] | None:
        """Get a function that interrupts a reading thread, by shutting its socket down."""
        stream = getattr(self._response, "extensions", {}).get("network_stream")
        connection = None if stream is None else stream.get_extra_info("socket")
        if not isinstance(connection, socket.socket):
            return None

        def shut_down() -> None:
            # socket.socket.shutdown, because SSLSocket.shutdown would drop the TLS state that the reader is using.
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

        return shut_down


def body_decoder(head: Head) -> Callable[[bytes], bytes]:
    """Get the function that decodes body chunks for the codec of the vendor."""
    return EventStreamConverter().feed if is_event_stream(head.headers) else lambda chunk: chunk


def error_steps(error: Exception) -> Steps:
    """Convert an SDK exception back to the error response of the vendor. Any other exception is raised."""
    reply = read_reply(error)
    if reply is None:
        raise error
    yield Head(reply.status, reply.headers)
    if reply.body:
        yield reply.body


def read_reply(error: BaseException) -> Reply | None:
    """Get the error response of the vendor from an SDK exception, if it has one."""
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", None) or getattr(error, "code", None)
    if response is None or not isinstance(status, int) or status < 300:
        return None
    return Reply(status, decode_headers(getattr(response, "headers", None)), _content(response, error))


def _content(response: Any, error: BaseException) -> bytes:
    content: Any = None
    with suppress(Exception):  # unread; each library raises another exception
        content = response.content
    if isinstance(content, bytes):
        return content
    details = getattr(error, "details", None) or getattr(error, "body", None) or str(error)
    return json.dumps(details, default=str).encode()


def decode_headers(headers: Any) -> Headers:
    """Convert headers of any library."""
    if headers is None:
        return Headers()
    raw: Iterable[tuple[bytes, bytes]] | None = getattr(headers, "raw", None)
    if raw is not None:
        return Headers.from_raw(raw)
    pairs = headers.items() if isinstance(headers, Mapping) or hasattr(headers, "items") else headers
    return Headers.from_raw((str(name).encode("latin-1"), str(value).encode("latin-1")) for name, value in pairs)


def map_sdk_error(error: Exception, target: str) -> errors.AgentError:
    """Map an exception of an SDK or its HTTP library to an AgentError."""
    if isinstance(error, errors.AgentError):
        return error
    names = {base.__name__ for base in type(error).__mro__}
    message = f"{target}: {_describe(error)}" if target else _describe(error)
    if names & _TIMEOUTS:
        return errors.TimeoutError(message)
    if names & _BROKEN:
        return errors.ProtocolError(message)
    if names & _CREDENTIALS:
        return errors.AuthenticationError(message)
    if type(error.__cause__ or error).__name__ in _MAY_QUOTE_A_HEADER:
        return errors.ConfigurationError(
            f"The request cannot be sent: {_describe(error)}.", field="client", fix="Check its base URL and headers."
        )
    misused = isinstance(error.__cause__ or error, RuntimeError)  # some SDKs report these as connection errors
    if misused and "loop is closed" in str(error.__cause__ or error):
        # The pool had a connection of another event loop, and has now dropped it. A retry gets a new one.
        return errors.ConnectionError(f"{message}; an async client is for one event loop", retryable=True)
    if names & _CONNECTIONS and not misused:
        return errors.ConnectionError(message, retryable=not is_certificate_error(error))
    return errors.ConfigurationError(
        f"The client cannot send the request: {_describe(error)}", field="client", fix="See the cause of this error."
    )


def _describe(error: BaseException) -> str:
    """Describe the cause of an error, because SDKs only say "Connection error."."""
    cause = error.__cause__ or error
    if type(cause).__name__ in _MAY_QUOTE_A_HEADER:
        return type(cause).__name__
    return f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__


class GenaiPath:
    """Sends through the API client of a `google.genai` client."""

    def __init__(self, client: Any) -> None:
        self._api = client._api_client

    def open(self, request: WireRequest, limits: Limits) -> StreamedResponse:
        options = _options(request, limits)
        built = self._build(request, options)
        self._set_connect_timeout(built, limits, "_httpx_client", "_use_google_auth_sync")
        return _wrap_genai_response(self._api._request(built, options, stream=True))

    async def aopen(self, request: WireRequest, limits: Limits) -> StreamedResponse:
        options = _options(request, limits)
        built = self._build(request, options)
        self._set_connect_timeout(built, limits, "_async_httpx_client", "_use_aiohttp")
        return _wrap_genai_response(await self._api._async_request(built, options, stream=True))

    def _build(self, request: WireRequest, options: dict[str, Any]) -> Any:
        return self._api._build_request("post", request.url, from_json(request.body), options)

    def _set_connect_timeout(self, built: Any, limits: Limits, client: str, uses_another: str) -> None:
        """Set the connect timeout in the built request, because the SDK's options have only one timeout."""
        timeout = getattr(getattr(self._api, client, None), "timeout", None)
        elsewhere = getattr(self._api, uses_another, None)
        if timeout is not None and elsewhere is not None and not elsewhere():
            built.timeout = type(timeout)(limits.total, connect=limits.connect)


def _options(request: WireRequest, limits: Limits) -> dict[str, Any]:
    """Request options. The timeout only bounds abandoned threads; the driver enforces the limits."""
    options: dict[str, Any] = {"headers": encode_headers(request), "retry_options": {"attempts": 1}}
    if limits.total is not None:
        options["timeout"] = max(1, int(limits.total * 1000))
    return options


def _wrap_genai_response(response: Any) -> StreamedResponse:
    return StreamedResponse(response.response_stream, Head(200, decode_headers(response.headers)))


class PostPath:
    """Sends through a client of openai or anthropic, blocking or async."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._library = _library_of(client)

    def open(self, request: WireRequest, limits: Limits) -> StreamedResponse:
        send = self._client.get if request.method == "GET" else self._client.post
        return _wrap_http_response(send(request.url, **self._arguments(request, limits, limits.total)))

    async def aopen(self, request: WireRequest, limits: Limits) -> StreamedResponse:
        send = self._client.get if request.method == "GET" else self._client.post
        return _wrap_http_response(await send(request.url, **self._arguments(request, limits, None)))

    def _arguments(self, request: WireRequest, limits: Limits, total: float | None) -> dict[str, Any]:
        """Arguments of `get` and `post`.

        The body is a dict, because cloud clients move the model from it into the URL. `total` only bounds abandoned
        threads; the driver enforces the limits.
        """
        return {
            "cast_to": self._library.Response,
            **({"body": from_json(request.body)} if request.body else {}),
            "stream": True,  # returns the response before its body
            "options": {
                "headers": encode_headers(request),
                "max_retries": 0,
                "follow_redirects": False,
                "timeout": self._library.Timeout(total, connect=limits.connect),
            },
        }


def _library_of(client: Any) -> Any:
    """The HTTP library of the SDK client: httpx2 or httpx."""
    roots = {base.__module__.partition(".")[0] for base in type(getattr(client, "_client", None)).__mro__}
    return import_module("httpx" if "httpx" in roots else "httpx2")


def _wrap_http_response(response: Any) -> StreamedResponse:
    return StreamedResponse(response, Head(response.status_code, decode_headers(response.headers)))


class SdkPath(Protocol):
    """Sends an encoded body through one SDK. Error responses raise the exceptions of the SDK."""

    def open(self, request: WireRequest, limits: Limits) -> StreamedResponse: ...

    async def aopen(self, request: WireRequest, limits: Limits) -> StreamedResponse: ...


_PATHS: dict[str, Callable[[Any], SdkPath]] = {"post": PostPath, "genai": GenaiPath}


class SdkTransport:
    """Sends requests through an SDK client."""

    def __init__(self, client: Any) -> None:
        self._kind: SdkClientKind = identify_client(client)
        self._path = _PATHS[self._kind.path](client)
        self._lock = threading.Lock()
        self._home: weakref.ref[Any] | None = None

    @override
    @printable
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._kind.name})"

    @override
    def __reduce__(self) -> Any:
        raise TypeError("an SDK client holds connections and cannot be pickled; create one in the other process")

    def send(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> Reply:
        return collect(self.open(request, limits, timeout), limits, timeout)

    def open(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> SyncBody:
        if not self._kind.blocking:
            raise errors.ConfigurationError(
                f"{self._kind.name} is an async client, which sync calls cannot use.",
                field="client",
                fix="Call the agent's async methods (acomplete, astream), or pass the sync client of that SDK.",
            )
        return open_body(self._in_thread(request, limits), timeout)

    async def asend(self, request: WireRequest, limits: Limits) -> Reply:
        return await acollect(await self.aopen(request, limits, []), limits)

    async def aopen(self, request: WireRequest, limits: Limits, bodies: list[AsyncBody]) -> AsyncBody:
        if not self._kind.awaiting or (self._kind.blocking and not self._is_home_loop()):
            return await aopen_body(self._in_thread(request, limits), bodies)
        return await begin_body(_ClientBody(_asteps(self._path, request, limits)), bodies)

    def _is_home_loop(self) -> bool:
        """Whether the running loop owns the connections of the async client, as the first loop that used it.

        Other loops use the sync client in a thread.
        """
        running = asyncio.get_running_loop()
        with self._lock:
            if self._home is None:
                self._home = weakref.ref(running)
            return self._home() is running

    def _in_thread(self, request: WireRequest, limits: Limits) -> Stepper:
        return Stepper(lambda stepper: _steps(self._path, request, limits, stepper), contextvars.copy_context())


def _steps(path: SdkPath, request: WireRequest, limits: Limits, stepper: Stepper) -> Steps:
    response: StreamedResponse | None = None
    try:
        try:
            response = path.open(request, limits)
        except Exception as error:
            yield from error_steps(error)
            return
        stepper.interrupt = response.interrupter()
        unwrap = body_decoder(response.head)
        yield response.head
        for chunk in response.chunks():
            if piece := unwrap(chunk):
                yield piece
    except Exception as error:
        raise map_sdk_error(error, request.target) from error
    finally:
        if response is not None:
            response.close()


async def _asteps(path: SdkPath, request: WireRequest, limits: Limits) -> AsyncGenerator[Head | bytes, None]:
    response: StreamedResponse | None = None
    try:
        try:
            response = await path.aopen(request, limits)
        except Exception as error:
            for step in error_steps(error):
                yield step
            return
        unwrap = body_decoder(response.head)
        yield response.head
        async for chunk in response.achunks():
            if piece := unwrap(chunk):
                yield piece
    except Exception as error:
        raise map_sdk_error(error, request.target) from error
    finally:
        if response is not None:
            await response.aclose()


class _ClientBody(DeferredBody):
    """Body of an async client."""

    __slots__ = ("_steps",)

    def __init__(self, steps: AsyncGenerator[Head | bytes, None]) -> None:
        super().__init__(0, {})
        self._steps = steps

    @override
    async def begin(self) -> None:
        head = await anext(self._steps)
        assert isinstance(head, Head)
        self.status, self.headers = head

    @override
    async def read(self) -> bytes:
        step = await anext(self._steps, b"")
        assert isinstance(step, bytes)
        return step

    @override
    async def aclose(self) -> None:
        await self._steps.aclose()
