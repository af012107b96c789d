"""Faults: named changes to a response on its way from a vendor to a client.

A fault gets a valid response of any of the four wire formats, whole or streamed, and returns a broken one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from ... import errors
from ...engine.wire import MAX_REPLY_BYTES, Answer, Piece, WireRequest
from ...http.sse import SseDecoder
from ...providers import find_server_dialect, server_dialects
from ..server import RawAnswer

Form: TypeAlias = Literal["whole", "stream"]
Kind: TypeAlias = Literal[
    "client", "connection", "framing", "status", "body", "json", "events", "time", "size", "harmless"
]

BOTH: frozenset[Form] = frozenset(("whole", "stream"))
WHOLE: frozenset[Form] = frozenset(("whole",))
STREAM: frozenset[Form] = frozenset(("stream",))
NEITHER: frozenset[Form] = frozenset()

FOREVER = 3600.0
"""Seconds of silence: longer than any timeout in a test."""
SSE = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}
LAST_CHUNK = b"0\r\n\r\n"


@dataclass(slots=True)
class RawFault(RawAnswer):
    """Bytes for a socket, including framing."""

    received: Answer = field(default_factory=Answer)
    """The response as an HTTP client receives it, for transports and simulations, which have no socket."""


@dataclass(frozen=True, slots=True)
class FaultContext:
    """A request and its valid response."""

    request: WireRequest
    answer: Answer

    @property
    def is_stream(self) -> bool:
        return response_form(self.request) == "stream"

    @property
    def body(self) -> bytes:
        return b"".join(piece.outcome for piece in self.answer.iter_pieces() if isinstance(piece.outcome, bytes))

    @property
    def events(self) -> list[bytes]:
        """The events of a stream, each with its blank line, or three pieces of a whole body."""
        body = self.body
        if self.is_stream:
            return [block + b"\n\n" for block in body.split(b"\n\n") if block.strip()]
        third = max(1, len(body) // 3)
        return [body[:third], body[third : 2 * third], body[2 * third :]]

    @property
    def first_half(self) -> list[bytes]:
        """The first half of the events, with part of the text."""
        events = self.events
        return events[: len(events) // 2]

    @property
    def second_half(self) -> list[bytes]:
        events = self.events
        return events[len(events) // 2 :]

    @property
    def half_event(self) -> list[bytes]:
        """The first half of the events, and half of the next one."""
        following = self.second_half[0]
        return [*self.first_half, following[: len(following) // 2]]

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the valid response, or the content type that was requested."""
        return dict(self.answer.headers) or dict(SSE if self.is_stream else JSON)

    def respond(self, *pieces: Piece | bytes | Exception, headers: Mapping[str, str] | None = None) -> Answer:
        """Return a response with a new body, and the headers of the valid one by default."""
        return Answer(pieces, headers=self.headers if headers is None else headers)

    def respond_cut(self, *pieces: bytes) -> Answer:
        """Return a response that ends with a connection reset."""
        return self.respond(*pieces, reset_error())

    def respond_raw(
        self,
        *pieces: Piece | bytes | Exception,
        received: Answer | None = None,
        version: str = "1.1",
        status: str = "200 OK",
        headers: Mapping[str, str] | None = None,
    ) -> RawFault:
        """Return a response with additional headers and an unframed body. By default, a client cannot read it."""
        lines = [f"HTTP/{version} {status}"]
        lines += [f"{name}: {value}" for name, value in {**self.headers, **(headers or {})}.items()]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        return RawFault((head, *pieces), received=received or Answer(failure=disconnect_error()))

    def respond_chunked(
        self, *pieces: bytes, received: Answer | None = None, headers: Mapping[str, str] | None = None
    ) -> RawFault:
        """Return a raw response with a chunked body. The pieces are the chunks, including their framing."""
        return self.respond_raw(*pieces, received=received, headers={"transfer-encoding": "chunked", **(headers or {})})


Apply: TypeAlias = Callable[[FaultContext], Answer]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault. Called with a valid response and its request, it returns the broken response."""

    name: str
    description: str
    kind: Kind
    apply: Apply = field(repr=False)
    forms: frozenset[Form] = BOTH
    """The responses that can have this fault: whole ones, streams, or both."""
    harmless: frozenset[Form] = NEITHER
    """The forms in which a correct client succeeds."""
    replaces: bool = False
    """The fault does not use the valid response, so the request need not be sent."""
    heavy: bool = False
    """The response has many megabytes."""
    slow: bool = False
    """The response lasts until the client's timeout."""

    def __call__(self, answer: Answer, request: WireRequest) -> Answer:
        """Return the broken response. A response that is an error already is not changed."""
        if self.replaces or _is_valid(answer):
            return self.apply(FaultContext(request, answer))
        return answer


def _is_valid(answer: Answer) -> bool:
    has_body = any(isinstance(piece.outcome, bytes) and piece.outcome.strip() for piece in answer.iter_pieces())
    return has_body and answer.failure is None and answer.status == 200


def response_form(request: WireRequest) -> Form:
    """Whether a request asks for a stream. Unknown paths are read as Chat Completions."""
    server = find_server_dialect(request.url) or server_dialects()[0]
    try:
        return "stream" if server.decode_request(request.url, request.body).stream else "whole"
    except errors.ConfigurationError:
        return "whole"


def as_received(answer: Answer) -> Answer:
    """Return a response as an HTTP client receives it."""
    return answer.received if isinstance(answer, RawFault) else answer


def reset_error() -> errors.ConnectionError:
    return errors.ConnectionError("the connection was reset")


def disconnect_error() -> errors.ConnectionError:
    return errors.ConnectionError("the server disconnected before the end of its response")


def encode_chunks(pieces: Sequence[bytes]) -> list[bytes]:
    """Return chunks of a chunked body."""
    return [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece]


def read_event_data(event: bytes) -> bytes:
    payloads = SseDecoder(MAX_REPLY_BYTES).feed(event)
    return payloads[0] if payloads else b""


def stall(answer: Answer) -> Answer:
    """Return the response with silence in place of its end."""
    return replace(answer, pieces=(*answer.pieces, Piece(b"", FOREVER)))


def fault(
    kind: Kind,
    *,
    forms: frozenset[Form] = BOTH,
    harmless: frozenset[Form] = NEITHER,
    replaces: bool = False,
    heavy: bool = False,
    slow: bool = False,
) -> Callable[[Apply], Fault]:
    """Make a function a fault, with the name and the docstring of the function."""

    def decorate(apply: Apply) -> Fault:
        name, description = apply.__name__.replace("_", "-"), (apply.__doc__ or "").strip()
        return Fault(name, description, kind, apply, forms, harmless, replaces, heavy, slow)

    return decorate
