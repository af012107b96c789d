"""Prebuilt HTTP/1.1 responses.

A stream is sent with chunked transfer coding, each event as a chunk of its own, as vendors do. Several chunks go into
one write: `BATCH` of them, about the size of a TCP segment or two. Real events come one by one, but then a benchmark
would measure the kernel and the event loop; all in one write would hide what reading from a socket costs. Clients read
when they are ready, so that a slow one may find several writes at once. The floor gets the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

BATCH = 8
REASONS = {200: "OK", 503: "Service Unavailable", 529: "Overloaded"}


class Api(Protocol):
    """Interface of the modules that build the responses of a vendor."""

    HEADERS: Mapping[str, str]

    def results(self, body: bytes) -> int:
        """Count the tool results in a request without parsing it."""
        ...

    def whole(self) -> bytes: ...

    def turn(self, results: int) -> bytes:
        """Return the response of a tool loop after so many results."""
        ...

    def failure(self) -> tuple[int, bytes]: ...

    def events(self, count: int) -> Iterable[bytes]:
        """Return the events of a stream with so many chunks of text."""
        ...


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def encode_indented(value: Any) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode()


def event(value: Any, name: str = "", end: bytes = b"\n\n") -> bytes:
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + compact(value) + end


def answer(headers: Mapping[str, str], body: bytes, status: int = 200) -> bytes:
    return _head(status, {**headers, "content-length": str(len(body))}) + body


def stream(headers: Mapping[str, str], events: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the batches of a stream."""
    chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    chunks.append(b"0\r\n\r\n")
    kind = "text/event-stream; charset=utf-8"
    head = _head(200, {**headers, "content-type": kind, "cache-control": "no-cache", "transfer-encoding": "chunked"})
    batches = [b"".join(chunks[start : start + BATCH]) for start in range(0, len(chunks), BATCH)]
    return head + batches[0], *batches[1:]


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {REASONS[status]}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode()


@dataclass(frozen=True)
class Prebuilt:
    """Responses of one API. Streams are built on first use."""

    whole: bytes
    turns: tuple[bytes, ...]
    failure: bytes
    results: Callable[[bytes], int]

    @classmethod
    def of(cls, api: Api, turns: int) -> Prebuilt:
        status, failure = api.failure()
        return cls(
            whole=answer(api.HEADERS, api.whole()),
            turns=tuple(answer(api.HEADERS, api.turn(results)) for results in range(turns)),
            failure=answer(api.HEADERS, failure, status),
            results=api.results,
        )
