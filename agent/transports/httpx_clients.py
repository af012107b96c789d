"""HTTP through clients of httpx2 or httpx, created by users or for proxies.

Sync clients run in a worker thread, one step at a time, for exact timeouts and cancellation. Redirects are not
followed. Bodies are read undecoded where possible, so that the limit on decompression applies.
"""

from __future__ import annotations

import contextvars
import errno
import os
import socket
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from typing import Any

from typing_extensions import override

from .. import errors
from ..engine.wire import AsyncBody, Headers, Limits, Reply, RunTimeout, SyncBody, WireRequest
from ..http.exchange import check_status, connection_error, describe, list_causes, map_error
from ..http.parser import decompressor_for
from .threaded import Head, Stepper, Steps, acollect, collect, connect_timeout_error, open_body

_SET_BY_CLIENT = frozenset((b"accept-encoding", b"content-length", b"host"))
_TURN_KILOBYTES = 64
"""Kilobytes of buffered response data read before other tasks of the loop get a turn."""


class SyncClientSender:
    """Sends requests through a sync client."""

    def __init__(self, client: Any, *, brackets: bool = False) -> None:
        self.client = client
        self._brackets = brackets

    def send(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> Reply:
        return collect(self.open_body(request, limits, timeout), limits, timeout)

    def open_body(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> SyncBody:
        left = timeout.seconds()

        def steps(stepper: Stepper) -> Steps:
            return self._steps(request, limits, left, stepper)

        return open_body(Stepper(steps, contextvars.copy_context(), connect_timeout=limits.connect), timeout)

    def _steps(self, request: WireRequest, limits: Limits, seconds: float, stepper: Stepper) -> Steps:
        connection = _Connection(stepper.limit_connecting, stepper)
        try:
            try:
                yield from self._send(request, limits, seconds, connection)
                return
            except Exception as error:
                if request.once or not connection.is_stale(error):
                    raise
            yield from self._send(request, limits, seconds, _Connection(stepper.limit_connecting, stepper))
        except Exception as error:
            raise _map_client_error(error, request) from _cause_of(error)

    def _send(self, request: WireRequest, limits: Limits, seconds: float, connection: _Connection) -> Steps:
        response: Any = None
        _current.set(connection)
        try:
            built = _build(self.client, request, limits, seconds, connection.trace, brackets=self._brackets)
            response = self.client.send(built, stream=True, follow_redirects=False)
            check_status(response.status_code)
            head = _head(response)
            decode = _Decoder(response, head.headers)
            yield head
            for chunk in decode.chunks(response):
                if piece := decode.feed(chunk):
                    yield piece
            if piece := decode.finish():
                yield piece
        finally:
            if response is not None:
                response.close()
            else:
                connection.drop()
            connection.release()

    def close(self) -> None:
        self.client.close()


class AsyncClientSender:
    """Sends requests through an async client."""

    def __init__(self, client: Any, *, brackets: bool = False) -> None:
        self.client = client
        self._brackets = brackets

    async def send(self, request: WireRequest, limits: Limits) -> Reply:
        return await acollect(await self.open_body(request, limits, []), limits)

    async def open_body(self, request: WireRequest, limits: Limits, bodies: list[AsyncBody]) -> AsyncBody:
        import asyncio  # lazy: a sync call needs no event loop

        loop = asyncio.get_running_loop()
        try:
            # Expires only while the client connects.
            async with asyncio.timeout(None) as timeout:

                def limit_connecting(is_connecting: bool) -> None:
                    until = None if limits.connect is None else loop.time() + limits.connect
                    timeout.reschedule(until if is_connecting else None)

                connection = _Connection(limit_connecting)
                try:
                    response = await self._open(request, limits, connection)
                except Exception as error:
                    if request.once or not connection.is_stale(error):
                        raise
                    response = await self._open(request, limits, _Connection(limit_connecting))
            body = _ClientBody(response, request)
            bodies.append(body)
            return body
        except Exception as error:
            if timeout.expired():
                raise connect_timeout_error(limits.connect) from None
            raise _map_client_error(error, request) from _cause_of(error)

    async def _open(self, request: WireRequest, limits: Limits, connection: _Connection) -> Any:
        response: Any = None
        _current.set(connection)
        try:
            built = _build(self.client, request, limits, None, connection.trace_async, brackets=self._brackets)
            response = await self.client.send(built, stream=True, follow_redirects=False)
            check_status(response.status_code)
            return response
        except BaseException:
            if response is not None:
                await _aclose(response)
            else:
                await connection.drop_async()
            raise

    async def aclose(self) -> None:
        await self.client.aclose()


class _ClientBody(AsyncBody):
    """The response body of an async client."""

    __slots__ = ("_chunks", "_decode", "_request", "_response", "_taken")

    def __init__(self, response: Any, request: WireRequest) -> None:
        head = _head(response)
        super().__init__(head.status, head.headers)
        self._response = response
        self._request = request
        self._decode = _Decoder(response, head.headers)
        self._chunks: AsyncGenerator[bytes, None] = self._decode.chunks_async(response)
        self._taken = 0

    @override
    async def read(self) -> bytes:
        import asyncio

        if self._taken >= _TURN_KILOBYTES:
            self._taken = 0
            await asyncio.sleep(0)
        try:
            async for chunk in self._chunks:
                self._taken += 1 + (len(chunk) >> 10)
                if piece := self._decode.feed(chunk):
                    return piece
            return self._decode.finish()
        except Exception as error:
            raise _map_client_error(error, self._request) from _cause_of(error)

    @override
    async def aclose(self) -> None:
        await _aclose(self._chunks)  # a finalizer would close it in a task of its own
        await _aclose(self._response)


async def _aclose(resource: Any) -> None:
    with suppress(Exception):  # errors while closing are irrelevant
        await resource.aclose()


class _Decoder:
    """Decompresses a body, unless a mock or an event hook has already made the client decode it."""

    __slots__ = ("_decompressor", "_read")

    def __init__(self, response: Any, headers: Mapping[str, str]) -> None:
        self._read: bool = response.is_stream_consumed
        self._decompressor = None if self._read else decompressor_for(headers.get("content-encoding"))

    def chunks(self, response: Any) -> Iterator[bytes]:
        chunks: Iterator[bytes] = iter((response.content,)) if self._read else response.iter_raw()
        return chunks

    async def chunks_async(self, response: Any) -> AsyncGenerator[bytes, None]:
        if self._read:
            yield response.content
            return
        async with aclosing(response.aiter_raw()) as chunks:
            async for chunk in chunks:
                yield chunk

    def feed(self, chunk: bytes) -> bytes:
        return chunk if self._decompressor is None else self._decompressor.feed(chunk)

    def finish(self) -> bytes:
        return b"" if self._decompressor is None else self._decompressor.finish()


class _Connection:
    """The connection of one request, found through httpcore's trace events and its streams.

    It limits the time to connect, and interrupts blocking calls from other threads. It closes connections that httpcore
    leaks when a proxy fails, and detects stale ones. HTTP/2 connections are shared by several requests, so they are
    left alone.
    """

    __slots__ = ("_handle", "_has_received", "_is_reused", "_limit_connecting", "_shared", "_stepper", "_stream")

    def __init__(self, limit_connecting: Callable[[bool], object], stepper: Stepper | None = None) -> None:
        self._limit_connecting = limit_connecting
        self._stepper = stepper
        self._stream: Any = None
        self._handle: socket.socket | None = None
        self._shared = False
        self._is_reused = False
        self._has_received = False

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith("connect_tcp.started"):
            self._limit_connecting(True)
        elif event.endswith("send_request_headers.started") and info["request"].method != b"CONNECT":
            self._limit_connecting(False)
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            stream = info.get("return_value")
            self._stream = stream
            if stream is not None:
                self._watch(stream)
                (_observe_stream if self._stepper is not None else _observe_async_stream)(stream)
        elif event.startswith("http2."):
            self._shared = True
            self.release()

    async def trace_async(self, event: str, info: Mapping[str, Any]) -> None:
        self.trace(event, info)

    def before_write(self, stream: Any) -> None:
        """Called before bytes are written to a stream, which may belong to a kept connection."""
        if self._stream is None and not self._shared:
            self._stream, self._is_reused = stream, True
            self._watch(stream)

    def after_read(self, stream: Any) -> None:
        """Called after bytes were read from a stream."""
        if stream is self._stream:
            self._has_received = True

    def is_stale(self, error: Exception) -> bool:
        """Whether the server closed a kept connection before the first byte of its response."""
        return self._is_reused and not self._has_received and bool(_names(error) & _BROKEN)

    def _watch(self, stream: Any) -> None:
        """Let another thread shut this connection down."""
        connected = stream.get_extra_info("socket")
        if self._stepper is None or self._handle is not None or not isinstance(connected, socket.socket):
            return
        # A duplicate, because wrapping a socket in TLS takes its descriptor away.
        handle = self._handle = socket.socket(fileno=os.dup(connected.fileno()))

        def shut_down() -> None:
            with suppress(OSError):
                handle.shutdown(socket.SHUT_RDWR)

        self._stepper.interrupt = shut_down
        if self._stepper.closed:
            shut_down()

    def release(self) -> None:
        self._stream = None
        if self._stepper is not None:
            self._stepper.interrupt = None
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def drop(self) -> None:
        """Close the connection of a request that failed before its response."""
        if self._stream is not None:
            with suppress(Exception):
                self._stream.close()

    async def drop_async(self) -> None:
        if self._stream is not None:
            with suppress(Exception):
                await self._stream.aclose()


_current: contextvars.ContextVar[_Connection | None] = contextvars.ContextVar("agent_connection", default=None)
"""The connection of the request that is being sent."""
_BROKEN = frozenset(("ReadError", "RemoteProtocolError", "WriteError"))
"""Errors of a connection that the server has closed."""


def _observe_stream(stream: Any) -> None:
    """Report reads and writes to the current `_Connection`: no trace event names a reused stream."""
    kind, reference = type(stream), weakref.ref(stream)

    def write(buffer: bytes, timeout: float | None = None) -> None:
        observed, connection = reference(), _current.get()
        if connection is not None:
            connection.before_write(observed)
        kind.write(observed, buffer, timeout)

    def read(max_bytes: int, timeout: float | None = None) -> bytes:
        observed, connection = reference(), _current.get()
        data: bytes = kind.read(observed, max_bytes, timeout)
        if data and connection is not None:
            connection.after_read(observed)
        return data

    stream.write, stream.read = write, read


def _observe_async_stream(stream: Any) -> None:
    """Async version of `_observe_stream`."""
    kind, reference = type(stream), weakref.ref(stream)

    async def write(buffer: bytes, timeout: float | None = None) -> None:
        observed, connection = reference(), _current.get()
        if connection is not None:
            connection.before_write(observed)
        await kind.write(observed, buffer, timeout)

    async def read(max_bytes: int, timeout: float | None = None) -> bytes:
        observed, connection = reference(), _current.get()
        data: bytes = await kind.read(observed, max_bytes, timeout)
        if data and connection is not None:
            connection.after_read(observed)
        return data

    stream.write, stream.read = write, read


def _build(
    client: Any,
    request: WireRequest,
    limits: Limits,
    seconds: float | None,
    trace: Callable[[str, Mapping[str, Any]], Any],
    *,
    brackets: bool,
) -> Any:
    """Build the request with the client's default headers, cookies and parameters.

    Args:
        seconds: Timeout of each read, which only bounds abandoned threads.
        brackets: Write IPv6 hosts in brackets for proxies, because httpcore does not in `CONNECT`.
    """
    given = (*request.headers, *request.call_headers)
    headers = [(name, value) for name, value in given if name.lower() not in _SET_BY_CLIENT]
    wait = None if seconds is None or seconds >= 1e6 else seconds
    timeouts = {"connect": limits.connect, "read": wait, "write": wait, "pool": client.timeout.pool}
    built = client.build_request(
        request.method,
        request.url,
        content=request.body,
        headers=[*headers, (b"accept-encoding", b"identity")],
        extensions={"timeout": timeouts, "trace": trace},
    )
    if brackets and ":" in built.url.host:
        built.extensions["sni_hostname"] = built.url.host
        built.url = _add_brackets(built.url)
    return built


def _add_brackets(url: Any) -> Any:
    class Bracketed(type(url)):  # type: ignore[misc]
        """A URL whose raw host has the brackets of an IPv6 address."""

        @property
        def raw_host(self) -> bytes:
            return b"[%b]" % super().raw_host

    return Bracketed(url)


def _head(response: Any) -> Head:
    return Head(response.status_code, Headers.from_raw(response.headers.raw))


# Errors are compared by name, because neither library may be installed.

_UNSENDABLE = frozenset(("InvalidURL", "LocalProtocolError", "UnsupportedProtocol"))


def _cause_of(error: Exception) -> BaseException | None:
    """The cause to chain; None for errors that may quote a header, and so a key."""
    if isinstance(error, errors.AgentError):
        return error.__cause__
    return None if _names(error) & _UNSENDABLE else error


def _names(error: Exception) -> set[str]:
    return {base.__name__ for base in type(error).__mro__}


def _map_client_error(error: Exception, request: WireRequest) -> Exception:
    """Map an exception of the library to an AgentError. Others stay unchanged."""
    if isinstance(error, errors.AgentError):
        return error
    names = _names(error)
    if names & _UNSENDABLE:
        return errors.ConfigurationError(
            f"The request cannot be sent: {type(error).__name__}.", field="base_url", fix="Check URL and headers."
        )
    if "PoolTimeout" in names or _is_out_of_files(error):
        return errors.PoolExhaustedError(describe(error, request))
    if "TimeoutException" in names:
        return errors.TimeoutError(describe(error, request))
    if "ProxyError" in names:
        return connection_error(error, request, retryable=False)
    if "DecodingError" in names:
        return errors.ProtocolError(describe(error, request))
    if names & {"TransportError", "StreamError"}:
        return connection_error(error, request)
    if type(error).__module__.startswith("socksio"):  # an optional package
        return errors.ConnectionError(f"invalid SOCKS reply: {describe(error, request)}", retryable=False)
    if isinstance(error, RuntimeError) and "closed" in str(error):
        return errors.ConfigurationError(
            f"The HTTP client cannot be used: {error}",
            field="http_client",
            fix="Keep the client open as long as the agent, and an async client on one event loop.",
        )
    return map_error(error, request)


def _is_out_of_files(error: BaseException | None) -> bool:
    return any(
        isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE) for cause in list_causes(error)
    )
