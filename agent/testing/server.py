"""A real HTTP server on loopback that plays scripted answers, breaks them as told, and watches its connections.

It runs in a thread of its own on a free port. It is for tests and demonstrations and speaks just enough HTTP/1.1.
"""

from __future__ import annotations

import asyncio
import json
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
from .rules import Judge, Violation


@dataclass(slots=True)
class RawAnswer(Answer):
    """An answer whose pieces go to the socket as they are, status line and framing included."""


class LoopbackServer:
    """Serves until it is closed; a `with` block closes it.

    Args:
        network: Decides what becomes of each request, such as a `Script`. The request's `url` is the path.
        ssl_context: Serve TLS with this.
    """

    def __init__(self, network: Network, *, ssl_context: ssl.SSLContext | None = None) -> None:
        self.network = network
        self.requests: list[WireRequest] = []
        self.hangups: list[tuple[str, float]] = []
        """Paths whose answer the client did not wait for, and when it left (time.monotonic)."""
        self.open_connections = 0
        self.connections_made = 0
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

    def wait_until(self, condition: Callable[[], bool], within: float = 2.0) -> bool:
        """Give the network a moment; whether the condition came true."""
        end = time.monotonic() + within
        while not condition():
            if time.monotonic() >= end:
                return False
            time.sleep(0.002)
        return True

    # The server's thread

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
        # Not asyncio's own server: closed when it has just accepted a connection, that one loses the socket.
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
            listener.setblocking(False)
            self._port = listener.getsockname()[1]
            self._loop.add_reader(listener, self._accept, listener)
            ready.set()
            await self._stop.wait()
            self._loop.remove_reader(listener)
        # Again and again: a task that is just cancelling another takes the news for that one's.
        while self._connections:
            for task in self._connections:
                task.cancel()
            await asyncio.wait(self._connections, timeout=0.05)
        for _ in range(4):
            await asyncio.sleep(0)  # sockets are closed in a later step of the loop

    def _accept(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError, ConnectionAbortedError):  # the client has thought better of it
            accepted, _ = listener.accept()
            accepted.setblocking(False)
            # asyncio does not see that this is TCP; small pieces would wait 40 ms for each other.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._connection(accepted))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            task.add_done_callback(lambda _: accepted.close())  # a task that is cancelled early never begins

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
            pass  # the client has left, or the server is closing
        finally:
            if writer is not None:
                self.open_connections -= 1
                with suppress(AttributeError):  # asyncio's: closed, and emptied only then, it has forgotten its loop
                    writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection stays."""
        request = await _read_request(reader)
        self.requests.append(request)
        playing = asyncio.ensure_future(self._play(request, writer))
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({playing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if playing.done() and not isinstance(playing.exception(), OSError):  # writing to one who has left fails
                return playing.result()
            self.hangups.append((request.url, time.monotonic()))
            return False
        finally:
            await _cancel(playing)
            await _cancel(leaving)

    async def _play(self, request: WireRequest, writer: asyncio.StreamWriter) -> bool:
        answer = _asked(self.network, request)
        if answer.after:
            await asyncio.sleep(answer.after)
        if answer.failure is not None:
            _reset(writer)
            return False
        raw = isinstance(answer, RawAnswer)
        chunked = not raw and "content-length" not in answer.headers
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


def _asked(network: Network, request: WireRequest) -> Answer:
    """What raises in a script or in a function is said to the client, who would otherwise see a lost connection."""
    try:
        return network(request)
    except Exception as error:
        said = {"message": f"{type(error).__name__}: {error}", "type": "the_script_failed"}
        return Answer([json.dumps({"error": said}).encode()], status=400, headers={"content-type": "application/json"})


async def _read_request(reader: asyncio.StreamReader) -> WireRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    _method, path, _version = head[0].split(b" ", 2)
    headers = tuple(
        (name.strip().lower(), value.strip()) for name, _, value in (line.partition(b":") for line in head[1:]) if name
    )
    length = int(dict(headers).get(b"content-length", b"0"))
    return WireRequest(path.decode("latin-1"), headers, await reader.readexactly(length))


def _head(answer: Answer, *, chunked: bool) -> bytes:
    lines = [f"HTTP/1.1 {answer.status} -"]
    lines += [f"{name}: {value}" for name, value in answer.headers.items()]
    if chunked:
        lines.append("transfer-encoding: chunked")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Break the connection so that the client sees a reset. Closed without this, it would seem to end in peace."""
    wire: socket.socket = writer.get_extra_info("socket")
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, OSError):  # awaited even if it is done: nobody else asks for its error
        await task


class VendorScript(Script):
    """A script for a `LoopbackServer` that answers each request in the wire format of the path it was sent to.

    Chat Completions, Responses, Anthropic's Messages and Gemini's generateContent; see `Script` for the lines. Without
    any lines it echoes, and fills in schemas and forced tools, in each of them. Requests to count tokens are answered
    with the number of words, and take no line.

    Args:
        lines: See `Script`.
        delay: Seconds between the pieces of a stream.
        strict: Judge each request by the rules of its API first. One that breaks a rule gets status 400 in the
            vendor's own format, and takes no line; `refusals` has what was wrong.
        signatures: Looked at only if strict: signatures, sealed reasoning and ids of stored items that the vendor
            knows besides those that this script has issued. A set, or whatever else can say what is in it.
        extra_keys: Looked at only if strict: keys of a body that are fine although the API does not have them, such
            as those of a vendor that speaks a dialect of it.
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
        self._judge = Judge(signatures, extra_keys) if strict else None
        self.refusals: deque[Violation] = deque(maxlen=10_000)
        """What was wrong with the requests that were refused, in order."""

    @override
    def __call__(self, request: WireRequest) -> Answer:
        if self._judge is None:
            return self._respond(request)
        verdict = self._judge.verdict(request.url, request.body)
        if verdict is not None:
            violation, complaint = verdict
            self.refusals.append(violation)
            return self._refuse(request, complaint)
        answer = self._respond(request)
        if answer.status == 200:
            self._judge.heard(
                request.url, (piece.outcome for piece in answer.iter_pieces() if isinstance(piece.outcome, bytes))
            )
        return answer

    def _refuse(self, request: WireRequest, complaint: dict[str, Any]) -> Answer:
        try:
            number = self._record(request)[1]
        except ValueError:  # no JSON, so there is nothing to put on record
            number = 0
        return _json_answer(to_json(complaint), number, status=400)

    def _respond(self, request: WireRequest) -> Answer:
        server = find_server_dialect(request.url)
        if server is None:
            path = urlsplit(request.url).path
            error = errors.ModelNotFoundError(f"a VendorScript does not answer {path}", code="not_found")
            return encode_error_answer(error, server_dialects()[0])
        if server.match_endpoint(request.url) == "count":
            body, number = self._record(request)
            return _json_answer(server.encode_count(count_words(body)), number)
        return self._answer(request, server)


def _json_answer(body: bytes, number: int, status: int = 200) -> Answer:
    return Answer([body], status=status, headers={"content-type": "application/json", "x-request-id": f"req_{number}"})
