"""Sends through a client of an official SDK that the caller brings: its address, key and proxies stay in use.

What it sends is the body that our codec wrote, and what comes back is read by our codec; the SDK neither retries nor
interprets. A blocking client works in a thread of its own, so that time limits and cancellation are exact, and so
serves `await`, too. A call that is left before its answer has begun cannot be interrupted there: its thread stays
behind, and hangs up as soon as the answer comes, or the attempt's timeout.
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
from ..http.exchange import is_certificate_error
from ..providers.sdk_clients import SdkClientKind, identify_client
from .event_stream import EventStreamDecoder, is_event_stream
from .threaded import Head, Stepper, Steps, acollect, aopen_body, collect, open_body

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
        return Headers.from_raw(raw)
    pairs = headers.items() if isinstance(headers, Mapping) or hasattr(headers, "items") else headers
    return Headers.from_raw((str(name).encode("latin-1"), str(value).encode("latin-1")) for name, value in pairs)


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
        return errors.ConnectionError(message, retryable=not is_certificate_error(error))
    return errors.ConfigurationError(
        f"The client cannot send the request: {_described(error)}", field="client", fix="See the cause of this error."
    )


def _described(error: BaseException) -> str:
    """The SDKs say "Connection error." and mean their cause."""
    told = error.__cause__ or error
    if type(told).__name__ in _MAY_QUOTE_A_HEADER:
        return type(told).__name__
    return f"{type(told).__name__}: {told}" if str(told) else type(told).__name__


class GenaiPath:
    """Sends through the API client below a `google.genai` client."""

    def __init__(self, client: Any) -> None:
        self._api = client._api_client

    def open(self, request: WireRequest, limits: Limits) -> Opened:
        options = _options(request, limits)
        built = self._built(request, options)
        self._limit_connecting(built, limits, "_httpx_client", "_use_google_auth_sync")
        return _wrap_genai_answer(self._api._request(built, options, stream=True))

    async def aopen(self, request: WireRequest, limits: Limits) -> Opened:
        options = _options(request, limits)
        built = self._built(request, options)
        self._limit_connecting(built, limits, "_async_httpx_client", "_use_aiohttp")
        return _wrap_genai_answer(await self._api._async_request(built, options, stream=True))

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


def _wrap_genai_answer(answer: Any) -> Opened:
    return Opened(answer.response_stream, Head(200, headers_of(answer.headers)))


class PostPath:
    """Posts through a client of openai or anthropic, blocking or async."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._library = _library_of(client)

    def open(self, request: WireRequest, limits: Limits) -> Opened:
        return _wrap_http_response(self._client.post(request.url, **self._arguments(request, limits, limits.total)))

    async def aopen(self, request: WireRequest, limits: Limits) -> Opened:
        return _wrap_http_response(await self._client.post(request.url, **self._arguments(request, limits, None)))

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


def _wrap_http_response(response: Any) -> Opened:
    return Opened(response, Head(response.status_code, headers_of(response.headers)))


class SdkPath(Protocol):
    """One SDK's way to send a body that it did not write. A refusal by the vendor is raised as the SDK raises it."""

    def open(self, request: WireRequest, limits: Limits) -> Opened: ...

    async def aopen(self, request: WireRequest, limits: Limits) -> Opened: ...


_PATHS: dict[str, Callable[[Any], SdkPath]] = {"post": PostPath, "genai": GenaiPath}


class SdkTransport:
    """Carries requests through a brought client."""

    def __init__(self, client: Any) -> None:
        self._kind: SdkClientKind = identify_client(client)
        self._path = _PATHS[self._kind.path](client)
        self._lock = threading.Lock()
        self._home: weakref.ref[Any] | None = None

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._kind.name})"

    @override
    def __reduce__(self) -> Any:
        raise TypeError("a client holds connections and credentials and cannot be pickled; make one over there")

    def send(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> Reply:
        return collect(self.open(request, limits, timeout), limits, timeout)

    def open(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> SyncBody:
        if not self._kind.blocking:
            raise errors.ConfigurationError(
                f"A client of type {self._kind.name} has to be awaited.",
                field="client",
                fix="Call the agent's async methods (acomplete, astream), or bring the blocking client of that SDK.",
            )
        return open_body(self._in_thread(request, limits), timeout)

    async def asend(self, request: WireRequest, limits: Limits) -> Reply:
        return await acollect(await self.aopen(request, limits, []), limits)

    async def aopen(self, request: WireRequest, limits: Limits, bodies: list[AsyncBody]) -> AsyncBody:
        if not self._kind.awaiting or (self._kind.blocking and not self._is_home()):
            return await aopen_body(self._in_thread(request, limits), bodies)
        body = _AwaitedBody(_asteps(self._path, request, limits))
        bodies.append(body)
        try:
            await body.begin()
        except BaseException:
            bodies.remove(body)
            body.closed = True
            await body.aclose()
            raise
        return body

    def _is_home(self) -> bool:
        """Whether this is the loop that the client's async side was first used on: its connections belong to that one.

        Other loops get the blocking side, in a thread.
        """
        running = asyncio.get_running_loop()
        with self._lock:
            if self._home is None:
                self._home = weakref.ref(running)
            return self._home() is running

    def _in_thread(self, request: WireRequest, limits: Limits) -> Stepper:
        return Stepper(lambda stepper: _steps(self._path, request, limits, stepper), contextvars.copy_context())


def _steps(path: SdkPath, request: WireRequest, limits: Limits, stepper: Stepper) -> Steps:
    opened: Opened | None = None
    try:
        try:
            opened = path.open(request, limits)
        except Exception as error:
            yield from refusal(error)
            return
        stepper.interrupt = opened.hang_up()
        unwrap = unwrapper(opened.head)
        yield opened.head
        for chunk in opened.chunks():
            if piece := unwrap(chunk):
                yield piece
    except Exception as error:
        raise ours(error, request.target) from error
    finally:
        if opened is not None:
            opened.close()


async def _asteps(path: SdkPath, request: WireRequest, limits: Limits) -> AsyncGenerator[Head | bytes, None]:
    opened: Opened | None = None
    try:
        try:
            opened = await path.aopen(request, limits)
        except Exception as error:
            for step in refusal(error):
                yield step
            return
        unwrap = unwrapper(opened.head)
        yield opened.head
        async for chunk in opened.achunks():
            if piece := unwrap(chunk):
                yield piece
    except Exception as error:
        raise ours(error, request.target) from error
    finally:
        if opened is not None:
            await opened.aclose()


class _AwaitedBody(AsyncBody):
    """An async client's answer."""

    __slots__ = ("_steps",)

    def __init__(self, steps: AsyncGenerator[Head | bytes, None]) -> None:
        super().__init__(0, {})
        self._steps = steps

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
