"""What every codec shares in reading answers: the frame of a codec, and the frame of a stream's decoder.

A vendor's file says what its answers mean. That nothing broken passes for an answer, that no cause of an error holds
the vendor's words (they may quote the key), and that events are folded exactly once is seen to here.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import override

from .. import errors
from ..sse import EventTooLong, SseDecoder
from ..types import AgentRequest, AgentResponse, Fold, ProviderCapabilities, StreamEvent
from ..types.headers import holds_key
from ..types.stream import WordsType
from ..wire import Reply, parse_json
from .alike import Likeness, Run, after_blank_line
from .failures import failure, read_complaint, reply_failure, request_id, shown

USER_AGENT = "agent-llm-router"
SHAPE_ERRORS = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError)
_LOOKS_LIKE_A_KEY = re.compile(r"(?!\S*://)(?=\S*[0-9])(?=\S*[A-Za-z])\S{16,}")
_NOT_A_KEY = re.compile(r"^accept|^content-|^user-agent$|beta|version")
_SHORTEST_KEY = 8
_PIECES_UNREAD = 256
"""Of an answer that is no stream of events; a failure is not longer."""


def keys_in(headers: Mapping[str, str]) -> list[str]:
    """Credentials in headers: by the header's name, or because the value looks like one."""
    return list(dict.fromkeys(key for name, value in headers.items() for key in _keys_of(name.lower(), value)))


def _keys_of(name: str, value: str) -> list[str]:
    if holds_key(name):
        pieces = [*re.split(r"[\s;,]+", value), *re.split(r"[\s;,=]+", value)]  # `Bearer …`, `a=…; b=…`
        return [piece for piece in pieces if len(piece) >= _SHORTEST_KEY]
    if _NOT_A_KEY.search(name):
        return []
    return [piece for piece in value.split() if _LOOKS_LIKE_A_KEY.fullmatch(piece)]


class CodecBase(ABC):
    """The part of a codec that is the same for every vendor: `decode` and `decode_error` around `_read_answer`."""

    api: ClassVar[str]
    answer_kind: ClassVar[str]
    """What the vendor calls an answer; for error messages."""
    transport = "http"
    schema_dialect: ClassVar[str | None] = None
    """How this API's schemas are restricted; a name that `agent.schemas.compile_schema` knows."""

    def __init__(
        self, name: str, capabilities: ProviderCapabilities, headers: Mapping[str, str], secrets: tuple[str, ...]
    ) -> None:
        self.name = name
        self.capabilities = capabilities
        sent = {"content-type": "application/json", "accept": "*/*", "user-agent": USER_AGENT}
        sent.update({header.lower(): value for header, value in headers.items()})
        self._headers = tuple((header.encode("ascii"), value.encode("latin-1")) for header, value in sent.items())
        self._secrets = tuple(dict.fromkeys((*secrets, *keys_in(sent))))

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def decode(self, reply: Reply, request: AgentRequest) -> AgentResponse:
        # Causes are cut off here: their frames hold the vendor's words, which may quote the key.
        try:
            body = parse_json(reply.body)
        except ValueError as error:
            raise self._broken(f"the answer is not JSON: {error}", reply, request) from None
        complaint = read_complaint(self._failed_part(body))
        if complaint is None:
            try:
                return self._read_answer(body, reply.headers, request)
            except SHAPE_ERRORS as error:
                complaint = read_complaint(body)
                if complaint is None:
                    reason = f"the answer is not a {self.answer_kind} ({type(error).__name__})"
                    raise self._broken(reason, reply, request) from None
        raise failure(
            complaint,
            status=reply.status,
            headers=reply.headers,
            body=body,
            data=reply.body,
            provider=self.name,
            model=request.model,
            secrets=self._secrets,
        )

    def _failed_part(self, body: Any) -> Any:
        """What of a successful reply says that it has failed all the same, if anything does."""
        return body if isinstance(body, dict) and body.get("error") else None

    def carried_by(self, client: Any, headers: Mapping[str, str]) -> CodecBase:
        """The same codec for a client of an SDK, which has an address and a key of its own."""
        raise errors.ConfigurationError(
            f"The provider {self.name!r} cannot do without an address of its own.",
            field="client",
            fix="Use one of the built-in providers with a client.",
        )

    @abstractmethod
    def _read_answer(self, body: Any, headers: Mapping[str, str], request: AgentRequest) -> AgentResponse:
        """The answer in a successful reply. May raise our errors, and any of SHAPE_ERRORS for a wrong shape."""

    def decode_error(self, reply: Reply, request: AgentRequest) -> errors.AgentError:
        return reply_failure(reply, provider=self.name, model=request.model, secrets=self._secrets)

    def _broken(self, message: str, reply: Reply, request: AgentRequest) -> errors.ProtocolError:
        return errors.ProtocolError(
            f"{self.name}: {message}",
            provider=self.name,
            model=request.model,
            request_id=request_id(reply.headers),
            body=shown(reply.body, self._secrets),
        )


class DecoderBase(ABC):
    """Pushed bytes, events out; see `StreamDecoder` for the contract. Subclasses read the payload of one SSE event.

    A subclass sets `done` when the stream's terminal event has come, calls `_start` when it knows who answers, and
    `_fail` or `_complain` when something is wrong.
    """

    __slots__ = (
        "_fold", "_headers", "_name", "_opening", "_request", "_run", "_secrets", "_sse", "_unread", "done", "failure",
    )  # fmt: skip

    def __init__(self, name: str, headers: Mapping[str, str], request: AgentRequest, secrets: tuple[str, ...]) -> None:
        self.done = False
        self.failure: errors.AgentError | None = None
        self._name = name
        self._headers = headers
        self._request = request
        self._secrets = secrets
        self._sse = SseDecoder()
        self._run = Run()
        self._fold = Fold()
        self._opening: StreamEvent | None = None
        self._unread: list[bytes] | None = []
        """What has come before the first event: all of it, where the vendor answers with something else than events."""

    @abstractmethod
    def _take(self, payload: bytes, events: list[StreamEvent]) -> None:
        """Read one event's data. May raise any of SHAPE_ERRORS."""

    def _take_end(self, events: list[StreamEvent]) -> None:  # noqa: B027  # most vendors have nothing to add here
        """The bytes have ended. For vendors whose terminal event is the end itself."""

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        try:
            if self._run.known and len(chunk) <= self._sse.limit:
                chunk = self._take_alike(chunk, events)
            if chunk:
                self._take_all(chunk, events)
        except EventTooLong as error:
            self._unread = None  # whoever keeps the error must not keep the megabytes
            self._fail(str(error))
        except SHAPE_ERRORS as error:
            self._fail(f"an event of the stream cannot be read ({type(error).__name__})")
        return self._emitted(events)

    def _take_alike(self, chunk: bytes, events: list[StreamEvent]) -> bytes:
        """Take deltas that look like those before; what is left."""
        if not self._sse.idle:  # the event that was begun must be ended first
            end = after_blank_line(chunk)
            self._take_all(chunk[:end], events)
            chunk = chunk[end:]
        return self._run.take(chunk, events) if self._run.known and self._sse.idle else chunk

    def _take_all(self, chunk: bytes, events: list[StreamEvent]) -> None:
        payloads = self._sse.feed(chunk)
        if self._unread is not None:
            self._unread.append(chunk)
            if payloads or len(self._unread) > _PIECES_UNREAD:
                self._unread = None
        for payload in payloads:
            self._run.live = False
            self._take(payload, events)

    def _goes_on(
        self, likeness: Likeness, payload: bytes, kind: WordsType, pieces: list[str], index: int | None
    ) -> None:
        """Said by `_take` of a payload that holds words and nothing else: what looks the same need not be parsed.

        Such words go to the same pieces, and their events have the same index, until another event is taken.
        """
        self._run.go_on(likeness, payload, kind, pieces, index)

    def end(self) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        if not self.done and self.failure is None:
            try:
                if self._unread:
                    self._take_whole(b"".join(self._unread))
                self._take_end(events)
            except SHAPE_ERRORS as error:
                self._fail(f"the end of the stream cannot be read ({type(error).__name__})")
        return self._emitted(events)

    def _take_whole(self, body: bytes) -> None:
        """No event has come: a failure may have, as the JSON that it would be with a failing status."""
        try:
            complaint = parse_json(body)
        except ValueError:
            return
        if read_complaint(complaint) is not None:
            self._complain(complaint)

    def response(self) -> AgentResponse:
        try:
            return self._fold.response()
        except ValueError:
            raise self._broken("the events of the stream do not fit together") from None

    def partial(self) -> AgentResponse:
        return self._fold.partial()

    def _start(self, facts: AgentResponse, raw: Any) -> None:
        """Who answers. The event waits for content: before that, a failed call can still be repeated."""
        self._opening = StreamEvent.message_start(response=facts, raw=raw)

    def _emitted(self, events: list[StreamEvent]) -> list[StreamEvent]:
        if events and self._opening is not None:
            events.insert(0, self._opening)
            self._opening = None
        folded = self._fold.add_all(events)
        if folded < len(events):
            self._fail("the events of the stream do not fit together")
            del events[folded:]  # whoever folds them again would meet the same error
        return events

    def _complain(self, body: Any) -> None:
        """The vendor reports an error inside its stream."""
        complaint = read_complaint(body)
        if complaint is None:
            self._fail("the vendor reports an error")
            return
        self.failure = failure(
            complaint,
            status=200,
            headers=self._headers,
            body=body,
            provider=self._name,
            model=self._request.model,
            secrets=self._secrets,
        )

    def _fail(self, message: str) -> None:
        if self.failure is None:
            self.failure = self._broken(message)

    def _broken(self, message: str) -> errors.ProtocolError:
        return errors.ProtocolError(
            f"{self._name}: {message}",
            provider=self._name,
            model=self._request.model,
            request_id=request_id(self._headers),
        )
