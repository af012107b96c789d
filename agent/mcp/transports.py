"""MCP transports: a child process over stdio, and streamable HTTP.

The SDK's stdio transport is replaced by one that limits message sizes, keeps the end of standard error, notices when
the process ends, and always stops it with its children. Its HTTP transport runs on a client that limits response
sizes and answers a failed request with an error for that request, instead of ending the session.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

import anyio
import httpx2
import mcp_types
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from typing_extensions import override

from ..errors import ConfigurationError
from ..providers.base import is_loopback
from .credentials import filter_loggers, find_header_secrets, find_url_secrets
from .errors import HTTP_ERROR_KEY, ConnectionLog

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams


EXIT_TIMEOUT = 0.4
"""Seconds for a process to exit by itself, and again after SIGTERM, before it is killed."""
_DRAIN_TIMEOUT = 0.2
"""Seconds for the exit status and the rest of standard error to arrive after the output ends."""
_MAX_INVALID_LINES = 1_000


@dataclass(frozen=True, slots=True)
class StdioCommand:
    """A program to start. It gets harmless variables of our environment and those in `env`."""

    command: str
    args: Sequence[str] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None

    def __post_init__(self) -> None:
        # Values are not quoted, because they may be secrets.
        for name, words in (("command", [self.command]), ("args", self.args), ("env", [*self.env, *self.env.values()])):
            if not all(isinstance(word, str) for word in words):
                raise ConfigurationError(f"{name} must contain only strings.", field=name, fix="Convert it with str().")


class _Protocol(asyncio.subprocess.SubprocessStreamProtocol):
    """Signals the exit of the process; `Process.wait` also waits for grandchildren that hold its pipes."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit=limit, loop=asyncio.get_running_loop())
        self.ended = asyncio.Event()

    @override
    def process_exited(self) -> None:
        super().process_exited()
        self.ended.set()


@asynccontextmanager
async def connect_stdio(
    command: StdioCommand, max_bytes: int, log: ConnectionLog, on_end: Callable[[], None]
) -> AsyncIterator[TransportStreams]:
    """Start the process, yield its message streams, and stop it."""
    transport, protocol = await _start_process(command, max_bytes)
    process = asyncio.subprocess.Process(transport, protocol, asyncio.get_running_loop())
    incoming, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    closing = False

    async def read() -> None:
        try:
            await _read_messages(process.stdout, incoming, log)
        except ValueError:  # a line exceeds the limit of the stream
            log.reason = f"it sent a message of more than {max_bytes} bytes"
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        if not closing:
            if log.reason is None:  # the process ended the connection
                await _wait_for_end(_DRAIN_TIMEOUT, protocol.ended.wait())
                await _wait_for_end(_DRAIN_TIMEOUT, asyncio.shield(stderr_task))
            log.exit_code = transport.get_returncode()
            on_end()
        incoming.close()

    async def write() -> None:
        assert process.stdin is not None
        # If the process stops reading, its output ends as well, which read() notices.
        with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for message in outgoing:
                text: str = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode("utf-8") + b"\n")
                await process.stdin.drain()

    async def read_stderr() -> None:
        assert process.stderr is not None
        while data := await process.stderr.read(4_096):
            log.add_stderr(data)

    stderr_task = asyncio.create_task(read_stderr())
    tasks = [stderr_task, asyncio.create_task(read()), asyncio.create_task(write())]
    try:
        yield read_stream, write_stream
    finally:
        closing = True
        try:
            await _stop_process(process, protocol, graceful=log.has_messages)
        finally:
            _signal_group(process.pid, "SIGKILL")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for stream in (incoming, read_stream, write_stream, outgoing):
                stream.close()
            transport.close()


async def _start_process(command: StdioCommand, max_bytes: int) -> tuple[asyncio.SubprocessTransport, _Protocol]:
    try:
        return await asyncio.get_running_loop().subprocess_exec(
            lambda: _Protocol(max_bytes),
            command.command,
            *command.args,
            env={**get_default_environment(), **command.env},
            cwd=command.cwd,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise _start_error(command, error) from error


def _start_error(command: StdioCommand, error: OSError | ValueError) -> ConfigurationError:
    if command.cwd is not None and not os.path.isdir(command.cwd):
        return ConfigurationError(
            f"The directory does not exist: {command.cwd!r}.", field="cwd", fix="Pass an existing directory in cwd=."
        )
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConfigurationError(
        f"The MCP server {command.command!r} cannot be started: {why}.",
        field="command",
        fix="Install it, or pass its full path; arguments go into args=, each as a string of its own.",
    )


async def _read_messages(stdout: asyncio.StreamReader | None, incoming: Any, log: ConnectionLog) -> None:
    """Forward messages until the output ends, and skip a limited number of other lines."""
    assert stdout is not None
    invalid_line = 0
    while line := await stdout.readline():
        if not line.strip():
            continue
        try:
            message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            if (unreadable := _parse_error(line)) is not None:
                await incoming.send(SessionMessage(unreadable))
                continue
            invalid_line += 1
            log.invalid_line = log.invalid_line or log.redact(line.decode("utf-8", "replace"), 200).strip()
            if invalid_line > _MAX_INVALID_LINES:
                log.reason = f"more than {_MAX_INVALID_LINES} lines of its output were not messages"
                return
            continue
        log.has_messages = True
        await incoming.send(SessionMessage(message))


def _parse_error(line: bytes) -> mcp_types.JSONRPCError | None:
    """Convert an invalid JSON response to an error, so that its caller does not wait."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or "method" in said or not isinstance(said.get("id"), int | str):
        return None
    error = mcp_types.ErrorData(code=mcp_types.PARSE_ERROR, message="The server's response is not a valid message.")
    return mcp_types.JSONRPCError(jsonrpc="2.0", id=said["id"], error=error)


async def _stop_process(process: asyncio.subprocess.Process, protocol: _Protocol, *, graceful: bool) -> None:
    """Close the input, then send SIGTERM, then SIGKILL. Skip the first wait if the server never responded."""
    if process.stdin is not None:
        process.stdin.close()
    for means in ("", "SIGTERM", "SIGKILL") if graceful else ("SIGTERM", "SIGKILL"):
        if means:
            _signal_group(process.pid, means)
        if await _wait_for_end(EXIT_TIMEOUT, protocol.ended.wait()):
            return


async def _wait_for_end(seconds: float, awaitable: Awaitable[Any]) -> bool:
    """Return whether the awaitable finished in time."""
    try:
        await asyncio.wait_for(awaitable, seconds)
    except TimeoutError:
        return False
    return True


def _signal_group(pid: int, name: str) -> None:
    """Signal the process and its children in the same process group."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(pid, getattr(signal, name))
        else:  # Windows has no process groups; children end with their pipes
            os.kill(pid, signal.SIGTERM)


_CONNECT_TIMEOUT = 10.0
_DELETE_TIMEOUT = 0.5
_MAX_ERROR_BYTES = 16_384
_ERROR_CODE = -32_000


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The URL of a server, and its credentials."""

    url: str = field(repr=False)  # it can contain a password
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    auth: httpx2.Auth | None = field(default=None, repr=False)
    allow_insecure: bool = False

    def __post_init__(self) -> None:
        parts = _split_url(self.url)
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(
                "The URL of an MCP server must be valid, and start with http or https.",
                field="url",
                fix="Pass one such as https://example.com/mcp; for a program, use MCPServer.stdio().",
            )
        for name, value in self.headers.items():
            if not all(isinstance(text, str) for text in (name, value)):
                raise ConfigurationError(
                    "Header names and values must be strings.", field="headers", fix="Convert them with str()."
                )
            if not name.isascii() or any(ord(letter) < 32 or ord(letter) == 127 for letter in f"{name}{value}"):
                raise ConfigurationError(  # without the value, which is a secret
                    f"The header {name.encode('unicode_escape').decode()!r} contains a control or non-ASCII character.",
                    field="headers",
                    fix="Remove line breaks and control characters.",
                )
        secret = bool(self.headers) or self.auth is not None or parts.username is not None
        if secret and parts.scheme == "http" and not is_loopback(self.url) and not self.allow_insecure:
            raise ConfigurationError(
                "The credentials would be sent unencrypted: the URL is plain http and not on this machine.",
                field="url",
                fix="Use https, or pass allow_insecure=True if the network is yours.",
            )

    @property
    def secrets(self) -> list[str]:
        return [*find_header_secrets(self.headers), *find_url_secrets(self.url)]


def _split_url(url: str) -> SplitResult | None:
    """Split a URL; return None if it is invalid."""
    try:
        if not url.isprintable() or " " in url:
            return None
        parts = urlsplit(url)
        parts.port  # noqa: B018  # raises ValueError for an invalid port
    except (ValueError, AttributeError):  # AttributeError: it is no string
        return None
    return parts


@asynccontextmanager
async def connect_http(
    address: ServerAddress, max_bytes: int, log: ConnectionLog, on_end: Callable[[], None]
) -> AsyncIterator[TransportStreams]:
    # Callers set the time limits, so reading has none.
    timeout = httpx2.Timeout(_CONNECT_TIMEOUT, read=None, pool=None)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
    headers = {**address.headers, "accept-encoding": "identity"}
    async with (
        _HTTPClient(max_bytes, headers=headers, timeout=timeout, limits=limits, auth=address.auth) as client,
        streamable_http_client(address.url, http_client=client, max_sse_event_size=max_bytes) as streams,
    ):
        filter_loggers()  # the client has imported its transport
        yield streams


class _HTTPClient(httpx2.AsyncClient):
    def __init__(self, max_bytes: int, **options: Any) -> None:
        super().__init__(**options)
        self._max_bytes = max_bytes

    @override
    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method == "GET":  # the notification stream: the SDK handles its failures
            return await super().send(request, **options)
        if request.method == "DELETE":  # end of the session: best effort
            try:
                return await asyncio.wait_for(super().send(request, **options), _DELETE_TIMEOUT)
            except (httpx2.TransportError, TimeoutError):
                return httpx2.Response(204, request=request)
        try:
            response = await super().send(request, **options)
        except httpx2.TransportError as error:
            return _make_error_response(request, {"text": f"{type(error).__name__}: {error}"})
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()  # a few compressed bytes can expand to gigabytes
            return _make_error_response(
                request, {"text": "the response is compressed, although identity encoding was requested"}
            )
        if response.status_code >= 400:
            return await _error_response(request, response)
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = _LimitedBody(response.stream, self._max_bytes)  # events are limited individually
        return response


class _LimitedBody(httpx2.AsyncByteStream):
    """A response body with a size limit. Errors are attributed to this response only."""

    def __init__(self, stream: Any, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        seen = 0
        try:
            async for chunk in self._stream:
                seen += len(chunk)
                if seen > self._max_bytes:
                    raise httpx2.StreamError(f"the response is longer than {self._max_bytes} bytes")
                yield chunk
        except httpx2.TransportError as error:
            raise httpx2.StreamError(f"the response broke off: {type(error).__name__}") from error

    @override
    async def aclose(self) -> None:
        await self._stream.aclose()


async def _error_response(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    """Return the server's own JSON-RPC error, or an error that describes the status."""
    body = b""
    try:
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > _MAX_ERROR_BYTES:
                break
    except httpx2.TransportError:
        pass
    finally:
        await response.aclose()
    try:
        data = json.loads(body)
        is_rpc_error = isinstance(data, dict) and isinstance(data.get("error"), dict) and data.get("jsonrpc") == "2.0"
    except (ValueError, RecursionError):
        is_rpc_error = False
    session_lost = response.status_code == 404 and "mcp-session-id" in request.headers
    if is_rpc_error and not session_lost:
        headers = {"content-type": "application/json"}
        return httpx2.Response(response.status_code, headers=headers, content=body, request=request)
    text = body.decode("utf-8", "replace")
    return _make_error_response(request, {"status": response.status_code, "text": text, "session_lost": session_lost})


def _make_error_response(request: httpx2.Request, found: dict[str, Any]) -> httpx2.Response:
    error = {"code": _ERROR_CODE, "message": "The request failed.", "data": {HTTP_ERROR_KEY: found}}
    return httpx2.Response(503, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request)
