"""One HTTP exchange over a keep-alive connection, shared by sync and asyncio.

An exchange is a generator of socket operations: CONNECT, RECEIVE, or a view of bytes to send. Stale connections, error
mapping and the pool are handled here; `connections` and `asyncio_connections` only perform the operations.
"""

from __future__ import annotations

import errno
import sys
from collections import deque
from collections.abc import Callable, Generator
from socket import gaierror
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar
from urllib.parse import urlsplit
from weakref import WeakSet

from .. import errors
from ..engine.wire import Limits, Reply, WireRequest
from .parser import BadRequest, BadResponse, BodyBuffer, Decompressor, RequestHead, ResponseParser, decompressor_for

if TYPE_CHECKING:
    import ssl

KEEPALIVE_SECONDS = 30.0
"""Idle connections are closed after this many seconds, before servers usually close them."""
_MAX_IDLE = 1024
_JOINED_BYTES = 64 * 1024
"""Bodies up to this size are sent together with the head: one system call instead of two."""

Origin: TypeAlias = tuple[bool, str, int]
"""Whether TLS is used, host and port."""
T = TypeVar("T")
CONNECT: Final = "connect"
RECEIVE: Final = "receive"
Operation: TypeAlias = Literal["connect", "receive"] | memoryview
Steps: TypeAlias = Generator[Operation, Any, T]


class PooledConnection(Protocol):
    idle_since: float

    def is_readable(self) -> bool: ...

    def close(self) -> None: ...


C = TypeVar("C", bound=PooledConnection)


class ConnectionPool(Generic[C]):
    """Keep-alive connections by origin. Each connection is in use or idle, never both.

    Threads share a pool without a lock, because an interrupt that left a lock held would hang every later call.
    """

    def __init__(self, context: Callable[[], ssl.SSLContext]) -> None:
        self._context = context
        self._max_idle = max_idle_connections()
        self._idle: dict[Origin, deque[C]] = {}
        self.open: WeakSet[C] = WeakSet()
        """All connections, in use or idle."""

    @property
    def idle(self) -> list[C]:
        return [connection for queue in list(self._idle.values()) for connection in list(queue)]

    def take_idle(self, origin: Origin) -> C | None:
        """Take the most recently used connection that is still open."""
        queue = self._idle.get(origin)
        while queue:
            try:
                connection = queue.pop()
            except IndexError:  # another thread was faster
                return None
            if monotonic() - connection.idle_since < KEEPALIVE_SECONDS and not connection.is_readable():
                return connection
            connection.close()
        return None

    def release(self, origin: Origin, connection: C) -> None:
        """Keep a connection for the next request to this origin, and close expired ones."""
        connection.idle_since = now = monotonic()
        queue = self._idle.get(origin)
        if queue is None:
            queue = self._idle.setdefault(origin, deque())
        queue.append(connection)
        while queue and (len(queue) > self._max_idle or now - queue[0].idle_since >= KEEPALIVE_SECONDS):
            try:
                queue.popleft().close()
            except IndexError:
                break

    def close_idle(self) -> None:
        for queue in list(self._idle.values()):
            while queue:
                try:
                    queue.pop().close()
                except IndexError:
                    break


def max_idle_connections() -> int:
    """The limit of idle connections per origin: at most a quarter of the process's file limit."""
    try:
        import resource  # lazy: not available on Windows
    except ImportError:
        return _MAX_IDLE
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_IDLE if allowed == resource.RLIM_INFINITY else min(_MAX_IDLE, allowed // 4)


class Exchange(Generic[C]):
    """Sends one request and reads its response, whole or piece by piece."""

    __slots__ = (
        "_body_started",
        "_decompressor",
        "_parser",
        "_pool",
        "connection",
        "head",
        "limits",
        "request",
    )

    def __init__(self, pool: ConnectionPool[C], request: WireRequest, head: RequestHead, limits: Limits) -> None:
        self.request: WireRequest = request
        self.head: RequestHead = head
        self.limits: Limits = limits
        self.connection: C | None = None
        self._pool = pool
        self._parser = ResponseParser()
        self._decompressor: Decompressor | None = None
        self._body_started = False

    @property
    def status(self) -> int:
        return self._parser.status

    @property
    def headers(self) -> dict[str, str]:
        return self._parser.headers

    def guard(self, steps: Steps[T]) -> Steps[T]:
        """Perform steps. On any failure close the connection; raise exceptions as AgentErrors."""
        try:
            return (yield from steps)
        except BaseException as error:
            if self.connection is not None:
                self.connection.close()
                self.connection = None
            if isinstance(error, Exception) and not isinstance(error, errors.AgentError):
                raise map_error(error, self.request) from chainable_cause(error)
            raise

    def start(self) -> Steps[None]:
        """Send the request and read the head of the response, on an idle connection or a new one."""
        reused = None if self.request.once else self._pool.take_idle(self.head.origin)
        while True:
            self.connection = reused or (yield CONNECT)
            parser = self._parser = ResponseParser()
            try:
                yield from self._send()
                while not parser.feed_head((yield RECEIVE)):
                    pass
                break
            except (OSError, BadResponse) as error:
                if reused is None or parser.started or isinstance(error, TimeoutError):
                    raise
                reused.close()  # stale: the server closed the idle connection; send once more on a new one
                reused = None
        check_status(parser.status)
        if encoding := parser.headers.get("content-encoding"):
            self._decompressor = decompressor_for(encoding)

    def _send(self) -> Steps[None]:
        body = self.request.body
        joined = len(body) <= _JOINED_BYTES
        # Views, because the head holds a key: tracebacks that show local variables must not show it.
        headers = self.request.call_headers
        lines = b"".join([b"%b: %b\r\n" % header for header in headers]) if headers else b""
        try:
            data = body if joined else b""
            yield memoryview(b"%b%d\r\n%b\r\n%b" % (self.head.encoded, len(body), lines, data))
            if not joined:
                yield memoryview(body)
        except TimeoutError:
            raise
        except OSError:
            pass  # a server may reply and close before it has read the whole request: read its reply

    def read(self) -> Steps[bytes]:
        """Read the next piece of the body, b"" at its end."""
        parser, decompressor = self._parser, self._decompressor
        piece = b""
        if not self._body_started:
            self._body_started = True
            piece = parser.feed_rest()
        while True:
            if piece and decompressor is not None:
                piece = decompressor.feed(piece)
            if piece:
                return piece
            if parser.complete:
                break
            if parser.failure is not None:
                raise parser.failure
            data = yield RECEIVE
            if not data:
                parser.feed_eof()
                break
            piece = parser.feed(data)
        return b"" if decompressor is None else decompressor.finish()

    def collect(self) -> Steps[Reply]:
        """Perform the whole exchange and release the connection."""
        yield from self.start()
        parser = self._parser
        buffer = BodyBuffer(parser.headers, self.limits.max_bytes)
        while piece := (yield from self.read()):
            buffer.add(piece)
        self.release()
        return Reply(parser.status, parser.headers, buffer.join())

    def release(self) -> None:
        """Return the connection to the pool if it can carry another request; otherwise close it."""
        # Cleared first: a connection released twice would carry two requests at once.
        connection, self.connection = self.connection, None
        if connection is None:
            return
        if self._parser.complete and self._parser.keep_alive:
            self._pool.release(self.head.origin, connection)
        else:
            connection.close()


# Errors


def check_status(status: int) -> None:
    """Raise for a status that only a proxy sends."""
    if status == 407:
        raise errors.ConnectionError("proxy authentication required (status 407)", retryable=False)


def describe(error: Exception, request: WireRequest) -> str:
    detail = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{request.target}: {detail}" if request.target else detail


def find_origin(request: WireRequest) -> str:
    """Return the part of the URL that names the server. A URL holds no password."""
    url = urlsplit(request.url)
    return f"{url.scheme}://{url.netloc}"


def connection_error(error: Exception, request: WireRequest, *, retryable: bool = True) -> errors.ConnectionError:
    """Return the error for a failed connection. It names the address and the next step."""
    origin = find_origin(request)
    server = request.target or "the server"
    if is_certificate_error(error):
        retryable = False
        fix = "Check the certificates of both sides; SSL_CERT_FILE names a file of additional authorities."
    elif any(isinstance(cause, gaierror) for cause in list_causes(error)):
        fix = "Check the host name in base_url, and your network connection."
    elif urlsplit(origin).hostname in ("localhost", "127.0.0.1", "::1"):
        fix = f"Is {server} running? Start it, or pass its address as base_url=."
    else:
        fix = "Check base_url, your network connection, and the proxy in HTTPS_PROXY, if any."
    return errors.ConnectionError(f"{describe(error, request)} ({origin})", retryable=retryable, fix=fix)


def request_error(error: Exception) -> errors.ConfigurationError:
    """The error for a request that cannot be sent, without a message that may quote a key."""
    known = isinstance(error, BadRequest)
    return errors.ConfigurationError(
        f"The request cannot be sent: {error.detail if known else type(error).__name__}.",  # type: ignore[attr-defined]
        field=error.field if known else "base_url",  # type: ignore[attr-defined]
        fix="Check URL and headers.",
    )


def map_error(error: Exception, request: WireRequest) -> Exception:
    """Map a socket or protocol error to an AgentError. Raise any other exception unchanged."""
    match error:
        case BadRequest():
            return request_error(error)
        case BadResponse():
            return connection_error(error, request)
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            return errors.PoolExhaustedError(describe(error, request))
        case TimeoutError():
            fix = f"Check the connection to {find_origin(request)}, or allow more time."
            return errors.TimeoutError(describe(error, request), fix=fix)
        case OSError() | UnicodeError():
            return connection_error(error, request)
        case _:
            raise error


def chainable_cause(error: Exception) -> Exception | None:
    """The cause to chain; None for a parser error, whose frames hold response data."""
    return None if isinstance(error, BadResponse) else error


_CERTIFICATE_ALERTS = (
    "ALERT_ACCESS_DENIED",
    "ALERT_BAD_CERTIFICATE",
    "ALERT_CERTIFICATE_EXPIRED",
    "ALERT_CERTIFICATE_REQUIRED",
    "ALERT_CERTIFICATE_REVOKED",
    "ALERT_CERTIFICATE_UNKNOWN",
    "ALERT_HANDSHAKE_FAILURE",
    "ALERT_UNKNOWN_CA",
    "ALERT_UNSUPPORTED_CERTIFICATE",
)
"""TLS alerts about a missing or rejected client certificate, as OpenSSL names them. All are permanent."""


def is_certificate_error(error: BaseException) -> bool:
    """Whether a server or client certificate was rejected. A retry cannot help."""
    ssl = sys.modules.get("ssl")
    if ssl is None:
        return False  # no certificate was verified
    return any(
        isinstance(cause, ssl.SSLCertVerificationError)
        or (isinstance(cause, ssl.SSLError) and str(getattr(cause, "reason", "")).endswith(_CERTIFICATE_ALERTS))
        for cause in list_causes(error)
    )


def list_causes(error: BaseException | None) -> list[BaseException]:
    """Return an exception and its causes, the first of them last."""
    causes: list[BaseException] = []
    while error is not None:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes
