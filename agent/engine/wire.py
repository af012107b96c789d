"""What crosses the line between drivers and transports: requests, replies, bodies, and the clock they share.

Nothing here does I/O and nothing knows a vendor. Drivers and transports both build on this module and never on each
other, so that any transport works under any driver.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeAlias

from pydantic_core import from_json

from .. import errors

MAX_REPLY_BYTES = 32 * 1024 * 1024
"""The largest buffered answer taken from a vendor."""
MAX_STREAM_BYTES = 64 * 1024 * 1024
"""The longest stream taken from a vendor."""
MAX_EVENT_BYTES = 1024 * 1024
"""The longest single event of a stream."""
MAX_JSON_DEPTH = 64
"""The deepest nesting taken from a vendor."""
MAX_JSON_VALUES = 2_000_000
"""The most values taken from a vendor in one piece of JSON."""
_FEW_VALUES = 250_000
"""More than the longest answer of today's models could hold in its text, where commas are taken for values, too."""
_BYTES_PER_VALUE = 3
"""What is shorter on the average holds next to nothing, in very many pieces: a bomb."""
_AT_A_TIME = 1024 * 1024


class Headers(dict[str, str]):
    """Reply headers with lower-case names; a repeated header is joined with commas."""

    @classmethod
    def from_raw(cls, pairs: Iterable[tuple[bytes, bytes]]) -> Self:
        headers = cls()
        for raw_name, raw_value in pairs:
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return headers


@dataclass(slots=True, eq=False)
class WireRequest:
    """One HTTP request, ready to send. Its headers hold the key, so it is never printed."""

    url: str
    headers: tuple[tuple[bytes, bytes], ...] = field(repr=False)
    body: bytes = field(repr=False)
    target: str = ""
    warnings: tuple[str, ...] = ()
    """What the codec had to leave out; it reaches the response."""


@dataclass(slots=True, eq=False)
class Limits:
    """Limits of one exchange: seconds of its parts, bytes of its reply. None: no limit but the deadline."""

    connect: float | None = 10.0
    first_byte: float | None = None
    """From sending to the reply's headers."""
    total: float | None = None
    """From sending to the last byte."""
    max_bytes: int = MAX_REPLY_BYTES
    allow_insecure: bool = False
    """Whether a key may be sent unencrypted to a proxy on another machine."""


@dataclass(slots=True, eq=False)
class Reply:
    """A whole HTTP answer. Vendors have been seen to quote the key in one, so only the status is ever printed."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


class Body:
    """An answer that is still arriving.

    Leaving `with body:` only notes that it is no longer wanted. A flow may not act while it is being closed, so its
    driver closes the body, before the next effect or at the end of the run.
    """

    __slots__ = ("__weakref__", "closed", "headers", "idle_used", "released", "status", "until")

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self.headers = headers
        self.released = False
        self.closed = False
        self.idle_used = 0.0
        """Seconds waited since the last meaningful event."""
        self.until = float("inf")
        """The driver's clock time at which this exchange has used up its total."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.released = True


class SyncBody(Body):
    """A body read with blocking calls."""

    __slots__ = ("timeout",)
    timeout: RunTimeout
    """The timeout its connection watches; whoever reads the body owns it."""

    def read(self) -> bytes:
        """The next bytes, or b"" at the end."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class AsyncBody(Body):
    """A body read with await."""

    __slots__ = ()

    async def read(self) -> bytes:
        """The next bytes, or b"" at the end."""
        raise NotImplementedError

    async def aclose(self) -> None:
        raise NotImplementedError


class Cancelled(BaseException):
    """Raised inside the I/O of a cancelled blocking run. It never enters a flow."""


class BlockingRun(Protocol):
    """What a transport may ask and tell of the blocking run it works for."""

    cancelled: bool
    until: float
    """time.monotonic() at which the current effect must end."""
    wake: Callable[[], object] | None
    """How another thread interrupts the call this run is blocked in."""
    bodies: list[SyncBody]

    def seconds_left(self) -> float:
        """What the current effect may still take; raises Cancelled."""
        ...


class RunTimeout(float):
    """The time limit of a sync exchange, which shrinks while it runs.

    A socket's timeout restarts with every byte; this one asks the run what is left before each system call. As a float
    it is what was left when it was made.
    """

    __slots__ = ("limit", "run")
    run: BlockingRun
    limit: float | None

    def __new__(cls, run: BlockingRun, limit: float | None = None) -> Self:
        left = run.seconds_left()
        self = super().__new__(cls, max(0.001, min(left, 1e6 if limit is None else limit)))
        self.run = run
        self.limit = limit
        return self

    def seconds(self) -> float:
        """What is left now, and never more than the limit; raises Cancelled."""
        left = self.run.seconds_left()
        return max(0.001, min(left, 1e6 if self.limit is None else self.limit))


class SyncTransport(Protocol):
    """Carries requests with blocking calls. It maps its library's errors, and never retries, redirects or waits."""

    def send(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> Reply: ...

    def open(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> SyncBody:
        """The reply's head. The body has joined `timeout.run.bodies` before this returns."""
        ...


class AsyncTransport(Protocol):
    """Carries requests with await; the driver's cancellation is its time limit."""

    async def asend(self, request: WireRequest, limits: Limits) -> Reply: ...

    async def aopen(self, request: WireRequest, limits: Limits, bodies: list[AsyncBody]) -> AsyncBody:
        """The reply's head. The body has joined `bodies` before this returns."""
        ...


class Transport(SyncTransport, AsyncTransport, Protocol):
    """Both faces of one transport."""


def parse_json(data: bytes | str, *, max_depth: int = MAX_JSON_DEPTH) -> Any:
    """JSON from outside: ValueError for anything that is not plain, finite, reasonably nested JSON."""
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    if len(data) > _FEW_VALUES and _is_bomb(data):
        raise ValueError("JSON of too many values")
    value = from_json(data, allow_inf_nan=False)
    if data.count(b"{") + data.count(b"[") > max_depth and _depth_exceeds(value, max_depth):
        raise ValueError(f"JSON nested more than {max_depth} deep")
    return value


def _is_bomb(data: bytes) -> bool:
    """Whether building the values would take far more time and memory than reading them did.

    An estimate from above: commas and brackets in texts count, too. It looks no further than it must.
    """
    values = 0
    for start in range(0, len(data), _AT_A_TIME):
        end = min(start + _AT_A_TIME, len(data))
        values += sum(data.count(mark, start, end) for mark in (b",", b"[", b"{"))
        if values > MAX_JSON_VALUES or (values > _FEW_VALUES and end < _BYTES_PER_VALUE * values):
            return True
    return False


def _depth_exceeds(value: Any, limit: int) -> bool:
    level: list[Any] = [value]
    for _ in range(limit + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        if not below:
            return False
        level = below
    return True


# Scripted answers. One script is played by the simulated driver in virtual time, by the scripted transport in process,
# and by the loopback server over a socket, so that a behaviour is described once and tried in all three.


@dataclass(slots=True)
class Piece:
    """Bytes of a body, or the failure that ends it, `after` so many seconds of waiting."""

    outcome: bytes | Exception
    after: float = 0.0


@dataclass(slots=True)
class Answer:
    """What becomes of a request: a reply `after` some seconds, or a `failure` to get any."""

    pieces: Sequence[Piece | bytes | Exception] = ()
    after: float = 0.0
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    failure: Exception | None = None

    def iter_pieces(self) -> Iterator[Piece]:
        for piece in self.pieces:
            yield piece if isinstance(piece, Piece) else Piece(piece)


Network: TypeAlias = Callable[[WireRequest], Answer]
"""Decides what becomes of each request."""


GRACE = 0.5
"""Seconds that cancelled user code gets to end before it is left alone."""
SLACK = 0.002
"""Clocks and timers may fire this much early."""


def reply_deadline(limits: Limits, now: float, deadline: float, *, whole: bool) -> float:
    """When waiting for a reply must end: its headers, or the `whole` of it."""
    until = deadline
    if limits.total is not None:
        until = min(until, now + limits.total)
    if not whole and limits.first_byte is not None:
        until = min(until, now + limits.first_byte)
    return until


def exchange_deadline(limits: Limits, now: float) -> float:
    """When an exchange begun now has used up its total."""
    return math.inf if limits.total is None else now + limits.total


def reply_timeout(limits: Limits, deadline: float, now: float, *, whole: bool) -> errors.TimeoutError:
    if now >= deadline - SLACK:
        return deadline_error("waiting for the answer")
    if not whole and limits.first_byte is not None and (limits.total is None or limits.first_byte < limits.total):
        return errors.TimeoutError(f"no first byte within {limits.first_byte:g} s (first_byte_timeout)")
    return errors.TimeoutError(f"no complete answer within {limits.total:g} s (timeout)")


def read_timeout(body: Body, idle: float | None, deadline: float, now: float) -> errors.TimeoutError:
    if now >= deadline - SLACK:
        return deadline_error("reading the answer")
    if now >= body.until - SLACK or idle is None:
        return errors.TimeoutError("the stream was not complete in time (timeout)")
    return errors.TimeoutError(f"no meaningful event for {idle:g} s (idle_timeout)")


def deadline_error(what: str) -> errors.TimeoutError:
    return errors.TimeoutError(f"the call's deadline passed while {what}", deadline=True)
