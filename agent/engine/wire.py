"""Interface between drivers and transports: requests, replies, bodies, limits and deadlines.

Drivers and transports build on this module and never on each other, so that every transport works with every driver.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeAlias

from pydantic_core import from_json

from .. import errors
from ..types._base import is_finite

MAX_REPLY_BYTES = 32 * 1024 * 1024
"""Size limit of a buffered reply."""
MAX_STREAM_BYTES = 64 * 1024 * 1024
"""Size limit of a stream."""
MAX_EVENT_BYTES = 1024 * 1024
"""Size limit of one stream event."""
MAX_JSON_DEPTH = 64
"""Nesting limit of JSON from a vendor."""
MAX_JSON_VALUES = 2_000_000
"""Limit of values in one JSON document from a vendor."""
_FEW_VALUES = 250_000
"""Documents up to this many values are never bombs; commas in the text of long responses count as values."""
_BYTES_PER_VALUE = 3
"""JSON with fewer bytes per value on average is a bomb: very many nearly empty values."""
_BLOCK_BYTES = 1024 * 1024


class Headers(dict[str, str]):
    """Reply headers with lower-case names. Repeated headers are joined with commas."""

    @classmethod
    def from_raw(cls, pairs: Iterable[tuple[bytes, bytes]]) -> Self:
        headers = cls()
        for raw_name, raw_value in pairs:
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return headers


@dataclass(slots=True, eq=False)
class WireRequest:
    """One HTTP request, ready to send. Headers and body are not printed, because headers hold the key."""

    url: str
    headers: tuple[tuple[bytes, bytes], ...] = field(repr=False)
    body: bytes = field(repr=False)
    target: str = ""
    warnings: tuple[str, ...] = ()
    """Warnings of the codec about dropped data, for the response."""
    method: str = "POST"
    once: bool = False
    """Whether the request must not be repeated, not even after an idle connection turned out to be closed."""
    call_headers: tuple[tuple[bytes, bytes], ...] = field(default=(), repr=False)
    """Headers of this call alone, apart from those by which transports keep prepared requests."""


@dataclass(slots=True, eq=False)
class Limits:
    """Timeouts in seconds and the size limit of one exchange. None means no timeout but the deadline."""

    connect: float | None = 10.0
    first_byte: float | None = None
    """From sending to the headers of the reply."""
    total: float | None = None
    """From sending to the last byte."""
    max_bytes: int = MAX_REPLY_BYTES
    allow_insecure: bool = False
    """Whether a key may be sent unencrypted to a proxy on another machine."""


@dataclass(slots=True, eq=False)
class Reply:
    """A complete HTTP reply. Only the status is printed, because vendors may quote the key in the rest."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


class Body:
    """A streamed HTTP reply.

    Leaving `with body:` marks the body as released. A flow cannot act while it is being closed, so the driver closes
    the body, before the next effect or at the end of the run.
    """

    __slots__ = ("__weakref__", "closed", "deadline", "headers", "idle_used", "released", "status")

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        self.status: int = status
        self.headers: Mapping[str, str] = headers
        self.released: bool = False
        self.closed: bool = False
        self.idle_used: float = 0.0
        """Seconds waited since the last meaningful event."""
        self.deadline: float = math.inf
        """Deadline from the total timeout of the exchange, on the driver's clock."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.released = True


class SyncBody(Body):
    """A body for sync drivers."""

    __slots__ = ("timeout",)
    timeout: RunTimeout
    """Timeout of reads; its run is the one that reads the body."""

    def read(self) -> bytes:
        """Read the next bytes, b"" at the end."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class AsyncBody(Body):
    """A body for asyncio drivers."""

    __slots__ = ()

    async def read(self) -> bytes:
        """Read the next bytes, b"" at the end."""
        raise NotImplementedError

    async def aclose(self) -> None:
        raise NotImplementedError


class Cancelled(BaseException):
    """Raised inside the I/O of a cancelled sync run. It never enters a flow."""


class BlockingRun(Protocol):
    """Interface of a sync run for transports."""

    cancelled: bool
    effect_deadline: float
    """time.monotonic() at which the current effect must end."""
    wake: Callable[[], object] | None
    """Set by a transport while it blocks: a function with which another thread interrupts it."""
    bodies: list[SyncBody]

    def seconds_left(self) -> float:
        """Seconds left for the current effect; raises Cancelled if the run was cancelled."""
        ...


class RunTimeout(float):
    """Timeout of a sync exchange, exact across many system calls.

    A socket's timeout restarts with every byte; `seconds()` returns the time that the run has left. The float value is
    the time left at creation.
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
        """Seconds left now, at most the limit; raises Cancelled."""
        left = self.run.seconds_left()
        return max(0.001, min(left, 1e6 if self.limit is None else self.limit))


class SyncTransport(Protocol):
    """Sends requests with blocking calls. Maps errors of its library; never retries or redirects."""

    def send(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> Reply: ...

    def open(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> SyncBody:
        """Open a body. It is in `timeout.run.bodies` before this returns."""
        ...


class AsyncTransport(Protocol):
    """Sends requests on asyncio. The driver enforces timeouts by cancellation."""

    async def asend(self, request: WireRequest, limits: Limits) -> Reply: ...

    async def aopen(self, request: WireRequest, limits: Limits, bodies: list[AsyncBody]) -> AsyncBody:
        """Open a body. It is in `bodies` before this returns."""
        ...


class Transport(SyncTransport, AsyncTransport, Protocol):
    """A transport for sync and async calls."""


def parse_json(data: bytes | str, *, max_depth: int = MAX_JSON_DEPTH, repair: bool = True) -> Any:
    """Parse untrusted JSON. ValueError for invalid, non-finite, too deep or too large documents.

    By default a byte order mark and halves of characters are accepted, as vendors send them.
    """
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    if len(data) > _FEW_VALUES and _is_bomb(data):
        raise ValueError("JSON has too many values")
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError:
        if not repair or (repaired := _repair_text(data)) == data:
            raise
        value = from_json(repaired, allow_inf_nan=False)
    if data.count(b"{") + data.count(b"[") > max_depth and _depth_exceeds(value, max_depth):
        raise ValueError(f"JSON is nested more than {max_depth} deep")
    return value


_BOM = b"\xef\xbb\xbf"
_SURROGATES = rb"\\\\|\\u[dD][89abAB]HH\\u[dD][c-fC-F]HH|(\\u[dD][89a-fA-F]HH)".replace(b"H", b"[0-9a-fA-F]")
"""Escaped backslashes, pairs of surrogates, and single ones as a group."""


def _repair_text(data: bytes) -> bytes:
    """Drop a byte order mark, and replace halves of characters, which models emit where text is cut."""
    data = data.removeprefix(_BOM).decode("utf-8", "replace").encode()
    return re.sub(_SURROGATES, lambda match: b"\\ufffd" if match[1] else match[0], data)


_LARGE_NUMBER = re.compile(rb"[0-9][eE]\+?[0-9]{2}|[0-9]{300}")


def parse_finite_json(text: str) -> Any:
    """Parse JSON that a model wrote. ValueError for infinite numbers, such as 1e999, as well."""
    data = text.encode("utf-8", "surrogatepass")
    value = parse_json(data, repair=False)
    if _LARGE_NUMBER.search(data) and not is_finite(value):
        raise ValueError("JSON contains a number that is out of range")
    return value


def _is_bomb(data: bytes) -> bool:
    """Whether parsing would take far more time and memory than receiving the bytes did.

    The count is an upper bound, because commas and brackets in strings count as values.
    """
    values = 0
    for start in range(0, len(data), _BLOCK_BYTES):
        end = min(start + _BLOCK_BYTES, len(data))
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


# Scripted replies, served by the simulated driver in virtual time, by the scripted transport in process, and by the
# loopback server over a socket.


@dataclass(slots=True)
class Piece:
    """Bytes of a body or the failure that ends it, after a delay of `after` seconds."""

    outcome: bytes | Exception
    after: float = 0.0


@dataclass(slots=True)
class Answer:
    """The scripted outcome of a request: a reply or a `failure`, after a delay of `after` seconds."""

    pieces: Sequence[Piece | bytes | Exception] = ()
    after: float = 0.0
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    failure: Exception | None = None

    def iter_pieces(self) -> Iterator[Piece]:
        for piece in self.pieces:
            yield piece if isinstance(piece, Piece) else Piece(piece)


Network: TypeAlias = Callable[[WireRequest], Answer]
"""Returns the scripted outcome of each request."""


GRACE = 0.5
"""Seconds that cancelled user code gets to end before it is abandoned."""
SLACK = 0.002
"""Seconds that clocks and timers may fire early."""


def reply_deadline(limits: Limits, now: float, deadline: float, *, whole: bool) -> float:
    """The deadline for the headers of a reply, or for the `whole` reply."""
    if limits.total is not None:
        deadline = min(deadline, now + limits.total)
    if not whole and limits.first_byte is not None:
        deadline = min(deadline, now + limits.first_byte)
    return deadline


def exchange_deadline(limits: Limits, now: float) -> float:
    return math.inf if limits.total is None else now + limits.total


def reply_timeout(limits: Limits, deadline: float, now: float, *, whole: bool) -> errors.TimeoutError:
    if now >= deadline - SLACK:
        return deadline_error("waiting for the response")
    if not whole and limits.first_byte is not None and (limits.total is None or limits.first_byte < limits.total):
        return errors.TimeoutError(f"no first byte within {limits.first_byte:g} s (first_byte_timeout)")
    return errors.TimeoutError(f"no complete response within {limits.total:g} s (timeout)")


def read_timeout(body: Body, idle: float | None, deadline: float, now: float) -> errors.TimeoutError:
    if now >= deadline - SLACK:
        return deadline_error("reading the response")
    if now >= body.deadline - SLACK or idle is None:
        return errors.TimeoutError("the stream was not complete in time (timeout)")
    return errors.TimeoutError(f"no meaningful event for {idle:g} s (idle_timeout)")


def deadline_error(activity: str) -> errors.TimeoutError:
    return errors.TimeoutError(f"the call's deadline passed while {activity}", deadline=True)
