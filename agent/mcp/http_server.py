"""Listeners of a tool server: standard input and output, or HTTP in a thread.

HTTP listens on loopback by default. Clients can call the tools, so other addresses require a token or `allow_anyone`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import socket
import threading
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Self

import uvicorn
from mcp.server.stdio import stdio_server
from typing_extensions import override

from ..errors import ConfigurationError, printable

if TYPE_CHECKING:
    from mcp.server import Server

_CLOSE_TIMEOUT = 2.0


def serve_stdio_server(server: Server[Any]) -> None:
    """Serve until standard input ends or Ctrl-C.

    A daemon thread reads, because reading standard input cannot be interrupted.
    """
    failures: list[BaseException] = []

    async def run() -> None:
        async with stdio_server() as (read_stream, write_stream):
            await server.run(read_stream, write_stream, server.create_initialization_options())

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=main, daemon=True, name="agent-mcp stdin")
    thread.start()
    with suppress(KeyboardInterrupt):
        thread.join()
    if failures:
        raise failures[0]


class HttpListener:
    """A running HTTP server. It stops with `close()`, at the end of `with`, or with the program."""

    host: str
    port: int

    def __init__(
        self,
        server: Server[Any],
        host: str,
        port: int,
        token: str | None,
        allow_anyone: bool,
        *,
        max_sessions: int,
        session_timeout: float,
    ) -> None:
        if token is not None and len(token) < 16:
            raise ConfigurationError(
                "The token is shorter than 16 characters.", field="token", fix="Use secrets.token_urlsafe()."
            )
        if not _is_loopback_host(host) and token is None and not allow_anyone:
            raise ConfigurationError(
                f"Any machine that reaches {host} could call the tools.",
                field="host",
                fix="Pass token=, listen at 127.0.0.1, or pass allow_anyone=True.",
            )
        self._socket = _bind(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        app: Any = server.streamable_http_app(
            host=host, max_sessions=max_sessions, session_idle_timeout=session_timeout
        )
        self._app = app if token is None else _TokenAuth(app, token)
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._server: Any = None
        self._thread = threading.Thread(target=self._main, daemon=True, name=f"agent-mcp :{self.port}")
        self._thread.start()
        self._ready.wait(10.0)
        if self._failure is not None:
            raise self._failure

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/mcp"

    @override
    @printable
    def __repr__(self) -> str:
        return f"HttpListener({self.url!r})"

    def wait(self) -> None:
        """Block until the server is closed, or until Ctrl-C."""
        with suppress(KeyboardInterrupt):
            while self._thread.is_alive():
                self._thread.join(1.0)

    def close(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._socket.close()
            self._ready.set()

    async def _serve(self) -> None:
        config = uvicorn.Config(
            self._app,
            log_config=None,
            log_level="critical",
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=1,
            server_header=False,
        )
        ready = self._ready

        class Server(uvicorn.Server):
            @override
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                ready.set()

        self._server = Server(config)
        await self._server.serve(sockets=[self._socket])


class _TokenAuth:
    """ASGI middleware that checks a bearer token. Hashes are compared in constant time."""

    def __init__(self, app: Any, token: str) -> None:
        self._app = app
        self._token_hash = _hash(token)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or self._is_authorized(scope["headers"]):
            await self._app(scope, receive, send)
            return
        headers = [(b"www-authenticate", b"Bearer"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def _is_authorized(self, headers: list[tuple[bytes, bytes]]) -> bool:
        sent = b"".join(value for name, value in headers if name.lower() == b"authorization")
        kind, _, token = sent.decode("latin-1").partition(" ")
        return hmac.compare_digest(_hash(token.strip()), self._token_hash) and kind.lower() == "bearer"


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8")).digest()


def _is_loopback_host(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio disables Nagle's algorithm (40 ms per response) only if the protocol is given.
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((host, port))
            made.listen(128)
        except BaseException:
            made.close()
            raise
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(
            f"The server cannot listen at {host}:{port}: {why}.",
            field="port",
            fix="Choose another port, or 0 for any free port.",
        ) from error
    return made
