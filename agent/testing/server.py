"""HTTP server on loopback for tests: scripted responses, broken connections, and records of requests.

It runs in its own thread on a free port, and supports only the necessary parts of HTTP/1.1.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic_core import to_json
from typing_extensions import override

from .. import errors
from ..engine.wire import Answer, Network, WireRequest
from ..providers import find_server_dialect, server_dialects
from ..providers.scripted import Line, Script, count_words, encode_error_answer
from .rules import RequestValidator, Violation


@dataclass(slots=True)
class RawAnswer(Answer):
    """A response whose pieces are written to the socket unchanged, including status line and framing."""


class LoopbackServer:
    """HTTP server on loopback. It starts immediately and is a context manager.

    Args:
        network: Answers the requests, such as a `Script`. The request's `url` is the path.
        ssl_context: Context for TLS. Without one, the server speaks plain HTTP.
    """

    def __init__(self, network: Network, *, ssl_context: ssl.SSLContext | None = None) -> None:
        self.network = network
        self.requests: list[WireRequest] = []
        self.disconnects: list[tuple[str, float]] = []
        """Path and time (time.monotonic) of each response during which the client disconnected."""
        self.open_connections: int = 0
        self.connections_made: int = 0
        self._ssl_context = ssl_context
        self._loop = asyncio.new_event_loop()
        self._stop: asyncio.Event | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._port = 0
        self._failed: BaseException | None = None
        ready = threading.Event()
        self._thread = threading.Thread(target=self._main, args=(ready,), daemon=True, name="agent-loopback-server")
        self._thread.start()
        ready.wait()
        if self._failed is not None:
            raise self._failed

    @property
    def url(self) -> str:
        scheme = "http" if self._ssl_context is None else "https"
        return f"{scheme}://127.0.0.1:{self._port}"

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(lambda: self._stop.set() if self._stop is not None else None)
            self._thread.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def wait_until(self, condition: Callable[[], bool], timeout: float = 2.0) -> bool:
        """Wait until a condition is true. Returns False on timeout."""
        end = time.monotonic() + timeout
        while not condition():
            if time.monotonic() >= end:
                return False
            time.sleep(0.002)
        return True

    # In the server's thread.

    def _main(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve(ready))
        except BaseException as error:
            self._failed = error
        finally:
            ready.set()
            self._loop.close()

    async def _serve(self, ready: threading.Event) -> None:
        self._stop = asyncio.Event()
        # asyncio.Server leaks the socket of a connection that it accepts while it is closed.
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
            listener.setblocking(False)
            self._port = listener.getsockname()[1]
            self._loop.add_reader(listener, self._accept, listener)
            ready.set()
            await self._stop.wait()
            self._loop.remove_reader(listener)
        # Repeated, because a task that is awaiting a cancelled task swallows its own cancellation.
        while self._connections:
            for task in self._connections:
                task.cancel()
            await asyncio.wait(self._connections, timeout=0.05)
        for _ in range(4):
            await asyncio.sleep(0)  # sockets are closed in a later step of the loop

    def _accept(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError, ConnectionAbortedError):  # the client has disconnected
            accepted, _ = listener.accept()
            accepted.setblocking(False)
            # asyncio does not set it on accepted sockets. Without it, small writes are delayed by 40 ms.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._connection(accepted))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            task.add_done_callback(lambda _: accepted.close())  # a task that is cancelled early never starts

    async def _connection(self, accepted: socket.socket) -> None:
        writer: asyncio.StreamWriter | None = None
        try:
            reader = asyncio.StreamReader(loop=self._loop)
            protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
            transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, accepted, ssl=self._ssl_context)
            writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
            self.open_connections += 1
            self.connections_made += 1
            while await self._exchange(reader, writer):
                pass
            writer.close()
            await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the client has disconnected, or the server is closing
        finally:
            if writer is not None:
                self.open_connections -= 1
                with suppress(AttributeError):  # a closed transport of asyncio may have no loop any more
                    writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Handle one request. Returns whether the connection stays open."""
        request = await _read_request(reader)
        self.requests.append(request)
        response = asyncio.ensure_future(self._respond(request, writer))
        disconnect = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({response, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if response.done() and not isinstance(response.exception(), OSError):  # raised after a disconnect
                return response.result()
            self.disconnects.append((request.url, time.monotonic()))
            return False
        finally:
            await _cancel(response)
            await _cancel(disconnect)

    async def _respond(self, request: WireRequest, writer: asyncio.StreamWriter) -> bool:
        answer = _call_network(self.network, request)
        if answer.after:
            await asyncio.sleep(answer.after)
        if answer.failure is not None:
            _reset(writer)
            return False
        raw = isinstance(answer, RawAnswer)
        chunked = not raw and answer.status not in (204, 304) and "content-length" not in answer.headers
        if not raw:
            writer.write(_head(answer, chunked=chunked))
        for piece in answer.iter_pieces():
            if piece.after:
                await writer.drain()
                await asyncio.sleep(piece.after)
            if isinstance(piece.outcome, Exception):
                await writer.drain()
                _reset(writer)
                return False
            if piece.outcome:
                writer.write(_chunk(piece.outcome) if chunked else piece.outcome)
                await writer.drain()
        if chunked:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return not raw


def _call_network(network: Network, request: WireRequest) -> Answer:
    """Answer a request. An exception of the script becomes an error with status 400."""
    try:
        return network(request)
    except Exception as error:
        body = {"error": {"message": f"{type(error).__name__}: {error}", "type": "script_error"}}
        return _json_answer(to_json(body), status=400)


async def _read_request(reader: asyncio.StreamReader) -> WireRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    method, path, _version = head[0].split(b" ", 2)
    headers = tuple(
        (name.strip().lower(), value.strip()) for name, _, value in (line.partition(b":") for line in head[1:]) if name
    )
    length = int(dict(headers).get(b"content-length", b"0"))
    return WireRequest(path.decode("latin-1"), headers, await reader.readexactly(length), method=method.decode())


def _head(answer: Answer, *, chunked: bool) -> bytes:
    lines = [f"HTTP/1.1 {answer.status} -"]
    lines += [f"{name}: {value}" for name, value in answer.headers.items()]
    if chunked:
        lines.append("transfer-encoding: chunked")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Reset the connection. A plain close would look like a regular end."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, OSError):  # asyncio logs errors of tasks that are never awaited
        await task


class VendorScript(Script):
    """Script for a `LoopbackServer` that answers in the wire format of the request's path.

    It supports all wire formats of the registry. Without lines, it echoes, and generates values for schemas and forced
    tools. A token count is the number of words, and uses no line.

    Args:
        lines: See `Script`.
        delay: Seconds between the pieces of a stream.
        strict: Validate each request against the rules of its API. An invalid one gets status 400 in the vendor's
            format and uses no line; `refusals` has the violations.
        signatures: With `strict`, signatures, encrypted reasoning and ids of stored items that are valid in addition to
            those that this script has issued.
        extra_keys: With `strict`, keys that are valid in addition to those of the wire format, such as a compatible
            vendor's.
    """

    def __init__(
        self,
        *lines: Line,
        delay: float = 0.0,
        strict: bool = False,
        signatures: Container[str] = (),
        extra_keys: Container[str] = (),
    ) -> None:
        super().__init__(*lines, delay=delay)
        self._validator = RequestValidator(signatures, extra_keys) if strict else None
        self.refusals: deque[Violation] = deque(maxlen=10_000)
        """Violations of the rejected requests, in order."""

    @override
    def __call__(self, request: WireRequest) -> Answer:
        if self._validator is None:
            return self._respond(request)
        if (invalid := self._validator.validate(request.url, request.body)) is not None:
            violation, body = invalid
            self.refusals.append(violation)
            return self._reject(request, body)
        answer = self._respond(request)
        if answer.status == 200:
            pieces = (piece.outcome for piece in answer.iter_pieces() if isinstance(piece.outcome, bytes))
            self._validator.record_response(request.url, pieces)
        return answer

    def _reject(self, request: WireRequest, body: dict[str, Any]) -> Answer:
        try:
            number = self._record(request)[1]
        except ValueError:  # the body is not JSON
            number = 0
        return _json_answer(to_json(body), number, status=400)

    def _respond(self, request: WireRequest) -> Answer:
        server = find_server_dialect(request.url)
        if server is None:
            path = urlsplit(request.url).path
            error = errors.ModelNotFoundError(f"no wire format has the path {path}", code="not_found")
            return encode_error_answer(error, server_dialects()[0])
        if server.match_endpoint(request.url) == "count":
            body, number = self._record(request)
            return _json_answer(server.encode_count(count_words(body)), number)
        return self._answer(request, server)


def _json_answer(body: bytes, number: int = 0, status: int = 200) -> Answer:
    return Answer([body], status=status, headers={"content-type": "application/json", "x-request-id": f"req_{number}"})
