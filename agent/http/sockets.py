"""Sockets for sync calls, with deadlines that another thread can cut short.

A socket's own timeout restarts with every byte, so a slow drip never ends. Here each system call asks the run how much
time is left. Nothing here knows HTTP.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from ..engine.wire import BlockingRun, Cancelled, RunTimeout

if TYPE_CHECKING:
    import ssl


ATTEMPT_DELAY = 0.25
"""Seconds before the next address is tried while the earlier attempts are still pending."""


class SocketAddress(NamedTuple):
    """What `socket.connect` takes."""

    family: int
    address: tuple[Any, ...]


def resolve(host: str, port: int) -> list[SocketAddress]:
    """The host's addresses, alternating between families."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return interleave(list(dict.fromkeys(SocketAddress(info[0], info[4]) for info in found)))


def interleave(addresses: list[SocketAddress]) -> list[SocketAddress]:
    """Alternate between address families, beginning with that of the first address (RFC 8305, section 4)."""
    families = list(dict.fromkeys(address.family for address in addresses))
    queues = [[address for address in addresses if address.family == family] for family in families]
    longest = max(map(len, queues), default=0)
    return [queue[place] for place in range(longest) for queue in queues if place < len(queue)]


def connect_first(addresses: list[SocketAddress], seconds: float) -> socket.socket:
    """Connect to the first address that answers. The socket returned does not block."""
    until = monotonic() + seconds
    waiting = list(addresses)
    failure = OSError("the host has no address")
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or selector.get_map():
                if waiting:
                    try:
                        pending = _start(waiting.pop(0))
                        selector.register(pending, selectors.EVENT_WRITE)
                    except OSError as error:
                        failure = error
                        continue
                next_at = monotonic() + ATTEMPT_DELAY if waiting else until
                while selector.get_map():
                    left = min(next_at, until) - monotonic()
                    ready = [key.fileobj for key, _ in selector.select(max(0.0, left))]
                    for connecting in ready:
                        assert isinstance(connecting, socket.socket)
                        selector.unregister(connecting)
                        if not (code := connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
                            connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                            return connecting
                        connecting.close()
                        failure = OSError(code, os.strerror(code))
                    if monotonic() >= until:
                        raise TimeoutError("no address of the host answered in time")
                    if ready or monotonic() >= next_at:
                        break  # a failed attempt lets the next address start at once
            raise failure
        finally:
            failure = OSError()  # an error that stays in a frame it refers to is a reference cycle
            for key in list(selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()


def _start(address: SocketAddress) -> socket.socket:
    connecting = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)
        with suppress(BlockingIOError):
            connecting.connect(address.address)
    except BaseException:
        connecting.close()
        raise
    return connecting


RECEIVE_BYTES = 64 * 1024
_LONG = 3600.0
_Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)
"""Needs no file descriptor of its own, unlike epoll and kqueue."""


class LiveSocket:
    """A connected socket for sync calls."""

    __slots__ = ("_socket",)

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    @property
    def secure(self) -> bool:
        """Whether it speaks TLS."""
        return hasattr(self._socket, "unwrap")

    @contextmanager
    def interruptible(self, run: BlockingRun) -> Iterator[None]:
        """Let another thread end the reads and writes of this block."""
        run.wake = self._interrupt
        try:
            yield
        finally:
            run.wake = None

    def receive(self, run: BlockingRun, most: int = RECEIVE_BYTES) -> bytes:
        """Receive bytes, b"" at the end. Raises OSError; TimeoutError when the run has no time left."""
        run.wake = self._interrupt
        try:
            while True:
                self._arm(run)
                try:
                    return self._socket.recv(most)
                except TimeoutError:
                    continue
        finally:
            run.wake = None

    def send(self, run: BlockingRun, data: memoryview) -> None:
        """A view, since there is a key in it: a traceback that shows local variables must not show bytes."""
        run.wake = self._interrupt
        try:
            while data:
                self._arm(run)
                try:
                    data = data[self._socket.send(data) :]
                except TimeoutError:
                    continue
        finally:
            run.wake = None

    def _arm(self, run: BlockingRun) -> None:
        """Setting a socket's timeout is a system call: one that is too short stays, and is looked at when it fires."""
        left = run.seconds_left()
        if left <= 0:
            raise TimeoutError("the time limit passed")
        current = self._socket.gettimeout()
        if current is None or current > left or current < left / 4:
            self._socket.settimeout(left if left < 0.25 else min(left / 2, _LONG))

    def _interrupt(self) -> None:
        # On the class: an SSLSocket's own shutdown would forget its TLS state under the reader's feet.
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class Connection(LiveSocket):
    """A connection of the pool. It closes when it is dropped: an interrupt may come before anything owns it."""

    __slots__ = ("__weakref__", "idle_since")

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected)
        self.idle_since = 0.0

    def secured(self, context: ssl.SSLContext, host: str, limit: RunTimeout) -> Connection:
        """Start TLS. The handshake may take what is left of the limit."""
        try:
            with self.interruptible(limit.run):
                self._socket.settimeout(limit.seconds())
                return Connection(context.wrap_socket(self._socket, server_hostname=host))
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def has_news(self) -> bool:
        """Whether an idle connection is readable, usually because the server closed it. It cannot be reused then."""
        if self.closed:
            return True
        with _Selector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            return bool(selector.select(0))

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):  # it may be half-made
            self._socket.close()


def connect(host: str, port: int, limit: RunTimeout) -> Connection:
    """Connect within the limit, name resolution included."""
    seconds = limit.seconds()

    def dial() -> socket.socket:
        connected = connect_first(resolve(host, port), seconds)
        connected.settimeout(seconds)
        return connected

    return Connection(attempt(dial, host, limit.run, seconds))


class Closable(Protocol):
    def close(self) -> object: ...


C = TypeVar("C", bound=Closable)


def attempt(dial: Callable[[], C], host: str, run: BlockingRun, seconds: float) -> C:
    """Wait for a connection within the limit, and no longer once the run is cancelled."""
    trying = _Attempt(dial)
    run.wake = trying.done.set
    try:
        trying.start()
        # Asked once more, now that there is something to wake us with.
        in_time = run.cancelled or trying.done.wait(seconds)
        if run.cancelled:
            raise Cancelled
        if not in_time:
            raise TimeoutError(f"connecting to {host} took too long")
        return trying.outcome()
    except BaseException:
        trying.abandon()
        raise
    finally:
        run.wake = None


class _Attempt(Generic[C]):
    """An attempt to connect, in its own thread: a name lookup cannot be interrupted.

    An abandoned attempt closes the connection that it still gets.
    """

    def __init__(self, dial: Callable[[], C]) -> None:
        self._dial = dial
        self._lock = threading.Lock()
        self._abandoned = False
        self._connected: C | None = None
        self._error: Exception | None = None
        self.done = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._main, daemon=True, name="agent-connect").start()

    def _main(self) -> None:
        try:
            connected = self._dial()
            with self._lock:
                if self._abandoned:
                    connected.close()
                else:
                    self._connected = connected
        except Exception as error:
            self._error = error
        finally:
            self.done.set()

    def outcome(self) -> C:
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None
        assert self._connected is not None
        return self._connected

    def abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            if self._connected is not None:
                self._connected.close()
