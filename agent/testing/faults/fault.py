"""What a fault is: a name, what it does to a good answer, and where it can happen.

A fault works at the wire. It is handed an answer as a vendor would send it, in any of the four APIs, as one body or as
a stream, and returns the broken one. It knows no client: what becomes of the break is what a test wants to find out.
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
Part: TypeAlias = Piece | bytes | Exception

BOTH: frozenset[Form] = frozenset(("whole", "stream"))
WHOLE: frozenset[Form] = frozenset(("whole",))
STREAM: frozenset[Form] = frozenset(("stream",))
NEITHER: frozenset[Form] = frozenset()

FOREVER = 3600.0
"""Seconds of silence: longer than any limit that is worth testing."""
SSE = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}


@dataclass(slots=True)
class BrokenWire(RawAnswer):
    """Bytes for a socket, framing included; and what an HTTP client makes of them, for places without a socket."""

    seen: Answer = field(default_factory=Answer)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, and the good answer that is about to be broken."""

    request: WireRequest
    answer: Answer

    @property
    def streamed(self) -> bool:
        return form_of(self.request) == "stream"

    @property
    def body(self) -> bytes:
        return b"".join(piece.outcome for piece in self.answer.iter_pieces() if isinstance(piece.outcome, bytes))

    @property
    def events(self) -> list[bytes]:
        """The events of a stream, each with its blank line; of a whole answer, the body in three pieces."""
        body = self.body
        if self.streamed:
            return [block + b"\n\n" for block in body.split(b"\n\n") if block.strip()]
        third = max(1, len(body) // 3)
        return [body[:third], body[third : 2 * third], body[2 * third :]]

    @property
    def first_half(self) -> list[bytes]:
        """Half of the events, and so some of the words but not all."""
        events = self.events
        return events[: len(events) // 2]

    @property
    def second_half(self) -> list[bytes]:
        events = self.events
        return events[len(events) // 2 :]

    @property
    def headers(self) -> dict[str, str]:
        """The answer's own; the kind of answer that was asked for, if there is none yet."""
        return dict(self.answer.headers) or dict(SSE if self.streamed else JSON)

    def saying(self, *parts: Part, headers: Mapping[str, str] | None = None) -> Answer:
        """An answer of these parts, for the rest like the good one."""
        return Answer(parts, headers=self.headers if headers is None else headers)

    def cut(self, *parts: Part) -> Answer:
        """These parts, and then a reset."""
        return self.saying(*parts, reset())

    def raw(
        self,
        *parts: Part,
        seen: Answer | None = None,
        version: str = "1.1",
        status: str = "200 OK",
        headers: Mapping[str, str] | None = None,
    ) -> BrokenWire:
        """A head of one's own and these bytes as they are. Unless said otherwise, a client loses the connection."""
        lines = [f"HTTP/{version} {status}"]
        lines += [f"{name}: {value}" for name, value in {**self.headers, **(headers or {})}.items()]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        return BrokenWire((head, *parts), seen=seen or Answer(failure=lost()))

    def chunked(self, *parts: Part, seen: Answer | None = None, headers: Mapping[str, str] | None = None) -> BrokenWire:
        """As `raw`, under a head that promises chunks."""
        return self.raw(*parts, seen=seen, headers={"transfer-encoding": "chunked", **(headers or {})})


Break: TypeAlias = Callable[[Exchange], Answer]


@dataclass(frozen=True, slots=True)
class Fault:
    """One way in which an answer goes wrong. Called with a good answer and its request, it returns the broken one."""

    name: str
    about: str
    kind: Kind
    apply: Break = field(repr=False)
    forms: frozenset[Form] = BOTH
    """The answers it can happen to: whole ones, streams, or both."""
    harmless: frozenset[Form] = NEITHER
    """The forms in which a good client does not even notice."""
    replaces: bool = False
    """It stands in the place of the answer, so nobody needs to be asked for one."""
    heavy: bool = False
    """Many megabytes."""
    slow: bool = False
    """Ends only when the client has waited long enough."""

    def __call__(self, answer: Answer, request: WireRequest) -> Answer:
        """The broken answer. One that is a failure by itself stays as it is."""
        if self.replaces or _is_good(answer):
            return self.apply(Exchange(request, answer))
        return answer

    def fits(self, request: WireRequest) -> bool:
        """Whether it can happen to the answer of this request."""
        return form_of(request) in self.forms


def fault(
    kind: Kind,
    *,
    forms: frozenset[Form] = BOTH,
    harmless: frozenset[Form] = NEITHER,
    replaces: bool = False,
    heavy: bool = False,
    slow: bool = False,
) -> Callable[[Break], Fault]:
    """A function as a fault: its name is the fault's, its docstring what there is to say about it."""

    def made(apply: Break) -> Fault:
        return Fault(
            name=apply.__name__.replace("_", "-"),
            about=(apply.__doc__ or "").strip(),
            kind=kind,
            apply=apply,
            forms=forms,
            harmless=harmless,
            replaces=replaces,
            heavy=heavy,
            slow=slow,
        )

    return made


def _is_good(answer: Answer) -> bool:
    said = any(isinstance(piece.outcome, bytes) and piece.outcome.strip() for piece in answer.iter_pieces())
    return said and answer.failure is None and answer.status == 200


def form_of(request: WireRequest) -> Form:
    """Whether a request asks for a stream. Paths of no wire format are taken for Chat Completions."""
    server = find_server_dialect(request.url) or server_dialects()[0]
    try:
        return "stream" if server.decode_request(request.url, request.body).stream else "whole"
    except errors.ConfigurationError:
        return "whole"


def in_process(answer: Answer) -> Answer:
    """A broken answer as it is seen where there is no socket: behind an HTTP client, or in a simulation."""
    return answer.seen if isinstance(answer, BrokenWire) else answer


def reset() -> errors.ConnectionError:
    return errors.ConnectionError("the connection was reset")


def lost() -> errors.ConnectionError:
    return errors.ConnectionError("the server disconnected in the middle of its answer")


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunks(parts: Sequence[bytes]) -> list[bytes]:
    return [chunk(part) for part in parts if part]


LAST_CHUNK = b"0\r\n\r\n"


def payload_of(event: bytes) -> bytes:
    """The data of one event."""
    found = SseDecoder(MAX_REPLY_BYTES).feed(event)
    return found[0] if found else b""


def silent(answer: Answer) -> Answer:
    """The same answer, and then silence: it neither ends nor breaks."""
    return replace(answer, pieces=(*answer.pieces, Piece(b"", FOREVER)))
