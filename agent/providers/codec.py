"""Base classes of codecs and stream decoders.

They turn malformed data into errors, keep vendor text that may quote a key out of error causes, and fold each event
exactly once.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from .. import errors
from ..engine.wire import Reply, WireRequest, parse_json
from ..errors import printable
from ..http.sse import FramingError, SseDecoder
from ..schemas import compile_schema
from ..types import AgentRequest, AgentResponse, Fold, ProviderCapabilities, StreamEvent, ToolSpec
from ..types.secrets import is_credential_header, redact
from .base import StreamDecoder
from .encoding import original_names, tool_parameters
from .failures import ErrorDetails, error_from_details, error_from_reply, read_error_details, redact_body, request_id
from .repair import REPEATED_CALL

USER_AGENT = "agent-llm-router"
SHAPE_ERRORS = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError)
"""Exceptions that decoders raise for malformed data. Pass them to `describe_malformed`."""
_LOOKS_SECRET = re.compile(r"(?!\S*://)(?=\S*[0-9])(?=\S*[A-Za-z])\S{16,}")
_NEVER_SECRET = re.compile(r"^accept|^content-|^user-agent$|beta|version")
_MIN_SECRET_LENGTH = 8
_MAX_UNPARSED_CHUNKS = 256
"""Limit of chunks kept from a reply that is not an event stream; error bodies are shorter."""


def describe_malformed(error: Exception) -> str:
    """Describe malformed data by the exception that it caused.

    Decoder bugs look the same in production. The tests replace this function so that bugs are raised.
    """
    return type(error).__name__


def secrets_in(headers: Mapping[str, str]) -> list[str]:
    """Find credentials in headers, by the header's name or the form of its value."""
    secrets: list[str] = []
    for header, value in headers.items():
        name = header.lower()
        if is_credential_header(name):
            pieces = [*re.split(r"[\s;,]+", value), *re.split(r"[\s;,=]+", value)]  # `Bearer …`, `a=…; b=…`
            secrets += (piece for piece in pieces if len(piece) >= _MIN_SECRET_LENGTH)
        elif not _NEVER_SECRET.search(name):
            secrets += (piece for piece in value.split() if _LOOKS_SECRET.fullmatch(piece))
    return list(dict.fromkeys(secrets))


class CodecBase(ABC):
    """Base class of codecs: `decode` and `decode_error` around the vendor's `_read_response`."""

    api: ClassVar[str]
    response_kind: ClassVar[str]
    """The vendor's name for a response, for error messages."""
    transport = "http"
    idempotency: bool = False
    """Whether the vendor recognizes retries by the header `Idempotency-Key`."""
    sign: Callable[[WireRequest], WireRequest] | None = None
    """Function that returns the signed request and may block; None if requests need no signature."""
    schema_dialect: ClassVar[str | None] = None
    """Name of the JSON Schema subset that the API accepts, as in `agent.schemas.compile_schema`."""
    count_key: ClassVar[str] = ""
    """Key of the number in a reply of the endpoint that counts tokens, if the API has one."""

    def __init__(
        self, name: str, capabilities: ProviderCapabilities, headers: Mapping[str, str], secrets: tuple[str, ...]
    ) -> None:
        self.name = name
        self.capabilities = capabilities
        all_headers = {"content-type": "application/json", "accept": "*/*", "user-agent": USER_AGENT}
        all_headers.update({header.lower(): value for header, value in headers.items()})
        self._headers = tuple(
            (header.encode("ascii"), value.encode("latin-1")) for header, value in all_headers.items()
        )
        self._secrets = tuple(dict.fromkeys((*secrets, *secrets_in(all_headers))))

    @override
    @printable
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def redact(self, text: str) -> str:
        """Replace the secrets that the requests of this codec contain."""
        return redact(text, self._secrets)

    def decode(self, reply: Reply, request: AgentRequest) -> AgentResponse:
        # Errors are raised from None: frames of their causes hold the vendor's text, which may quote the key.
        try:
            body = parse_json(reply.body)
        except ValueError as error:
            raise self._protocol_error(f"the answer is not JSON: {error}", reply, request) from None
        found = self._find_error(body)
        details = read_error_details(found)
        if details is None:
            try:
                return self._read_response(body, reply.headers, request)
            except SHAPE_ERRORS as error:
                found, details = body, read_error_details(body)
                if details is None:
                    reason = f"the answer is not a {self.response_kind} ({describe_malformed(error)})"
                    raise self._protocol_error(reason, reply, request) from None
        raise error_from_details(
            details,
            status=reply.status,
            headers=reply.headers,
            body=found,
            data=reply.body,
            provider=self.name,
            model=request.model,
            secrets=self._secrets,
        )

    def _decode_stream(self, decoder: StreamDecoder, reply: Reply, request: AgentRequest) -> AgentResponse:
        """Decode a complete response that is encoded as a stream."""
        decoder.feed(reply.body)
        decoder.end()
        if decoder.failure is not None:
            raise decoder.failure
        if not decoder.done:
            raise self._protocol_error("the response is incomplete", reply, request)
        return decoder.response()

    def _find_error(self, body: Any) -> Any:
        """Find the error reported in a reply with status 200."""
        return body if isinstance(body, dict) and body.get("error") else None

    def with_client(self, client: Any, headers: Mapping[str, str]) -> CodecBase:
        """Return this codec for requests through an SDK client, which adds its own address and key."""
        raise errors.ConfigurationError(
            f"The provider {self.name!r} does not support SDK clients.",
            field="client",
            fix="Use a built-in provider with client=, or pass transport=.",
        )

    @abstractmethod
    def _read_response(self, body: Any, headers: Mapping[str, str], request: AgentRequest) -> AgentResponse:
        """Decode the body of a successful reply. May raise AgentError, and SHAPE_ERRORS for malformed data."""

    def decode_count(self, reply: Reply, request: AgentRequest) -> int:
        if reply.status >= 400:
            raise self.decode_error(reply, request)
        try:
            return int(parse_json(reply.body)[self.count_key])
        except SHAPE_ERRORS:
            raise self._protocol_error("the token count is missing or not a number", reply, request) from None

    def decode_error(self, reply: Reply, request: AgentRequest) -> errors.AgentError:
        return error_from_reply(reply, provider=self.name, model=request.model, secrets=self._secrets)

    def _protocol_error(self, message: str, reply: Reply, request: AgentRequest) -> errors.ProtocolError:
        return errors.ProtocolError(
            f"{self.name}: {message}",
            provider=self.name,
            model=request.model,
            request_id=request_id(reply.headers),
            body=redact_body(reply.body, self._secrets),
        )


@dataclass(frozen=True, slots=True)
class SentTools:
    """Tools of a request, to decode calls."""

    request: AgentRequest
    max_name_length: int
    schema_dialect: str

    def original_name(self, sent: str) -> str:
        """Return the name in the request of a tool with a normalized name."""
        return original_names(self.request, self.max_name_length).get(sent, sent)

    def restore(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Convert arguments from the compiled schema of a strict tool to the tool's schema."""
        if not arguments:
            return arguments
        for tool in self.request.tools:
            if isinstance(tool, ToolSpec) and tool.strict and tool.name == name:
                restored = compile_schema(tool_parameters(tool), self.schema_dialect).restore(arguments)
                return restored if isinstance(restored, dict) else arguments
        return arguments


def choose_unique_id(id: str, taken: set[str], warnings: dict[str, None]) -> str:
    """Return an id that no other call of the response has, and add it to those that are taken."""
    unique, number = id, 1
    while unique in taken:
        number += 1
        unique = f"{id}#{number}"
        warnings[REPEATED_CALL] = None
    taken.add(unique)
    return unique


def read_count(counts: Any, key: str) -> int:
    """Return a count, or 0 if it is malformed: a response that was paid for must not fail."""
    value = counts.get(key) if isinstance(counts, dict) else None
    return int(value) if isinstance(value, int | float) and 0 <= value < math.inf else 0


def select_other_keys(data: Mapping[str, Any], *known: str) -> dict[str, Any] | None:
    """Return the keys without a field of their own, for `provider_data`."""
    return {key: value for key, value in data.items() if key not in known} or None


class DecoderBase(ABC):
    """Base class of stream decoders; a subclass decodes the data of one event.

    It calls `_start` once the response's id and model are known, sets `done` at the terminal event, and calls `_fail`
    or `_report_error` for errors.
    """

    def __init__(self, name: str, headers: Mapping[str, str], request: AgentRequest, secrets: tuple[str, ...]) -> None:
        self.done: bool = False
        self.failure: errors.AgentError | None = None
        self._name = name
        self._headers = headers
        self._request = request
        self._secrets = secrets
        self._sse = SseDecoder()
        self._fold = Fold()
        self._start_event: StreamEvent | None = None
        self._unparsed: list[bytes] | None = []
        """Chunks before the first event; the whole reply if it is not an event stream."""

    def _split_events(self, chunk: bytes) -> list[bytes]:
        """Return the data of each complete event. Default: server-sent events. May raise FramingError."""
        return self._sse.feed(chunk)

    @abstractmethod
    def _decode_event(self, payload: bytes, events: list[StreamEvent]) -> None:
        """Decode the data of one event. May raise SHAPE_ERRORS for malformed data."""

    def _decode_end(self, events: list[StreamEvent]) -> None:  # noqa: B027  # optional
        """Decode the end of the bytes, for vendors without a terminal event."""

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        try:
            payloads = self._split_events(chunk)
            if self._unparsed is not None:
                self._unparsed.append(chunk)
                if payloads or len(self._unparsed) > _MAX_UNPARSED_CHUNKS:
                    self._unparsed = None
            for payload in payloads:
                self._decode_event(payload, events)
        except FramingError as error:
            self._unparsed = None  # the error must not keep megabytes alive
            self._fail(str(error))
        except SHAPE_ERRORS as error:
            self._fail(f"an event of the stream cannot be read ({describe_malformed(error)})")
        return self._emit(events)

    def end(self) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        if not self.done and self.failure is None:
            try:
                if self._unparsed:
                    self._decode_error_body(b"".join(self._unparsed))
                self._decode_end(events)
            except SHAPE_ERRORS as error:
                self._fail(f"the end of the stream cannot be read ({describe_malformed(error)})")
        return self._emit(events)

    def _decode_error_body(self, body: bytes) -> None:
        """Report the error in a reply without events, if its body is a JSON error."""
        try:
            error = parse_json(body)
        except ValueError:
            return
        if read_error_details(error) is not None:
            self._report_error(error)

    def response(self) -> AgentResponse:
        try:
            return self._fold.response()
        except ValueError:
            raise self._protocol_error("the events of the stream do not fit together") from None

    def partial(self) -> AgentResponse:
        return self._fold.partial()

    def _start(self, response: AgentResponse, raw: Any) -> None:
        """Set the message_start event, emitted with the first content so that calls can be retried."""
        self._start_event = StreamEvent.message_start(response=response, raw=raw)

    def _emit(self, events: list[StreamEvent]) -> list[StreamEvent]:
        if events and self._start_event is not None:
            events.insert(0, self._start_event)
            self._start_event = None
        folded = self._fold.add_all(events)
        if folded < len(events):
            self._fail("the events of the stream do not fit together")
            del events[folded:]  # folding them again would raise the same error
        return events

    def _report_error(self, body: Any) -> None:
        """Fail with an error that the vendor reports in the stream."""
        details = read_error_details(body)
        if details is None:
            self._fail("the vendor reports an error")
        else:
            self._report_details(details, body)

    def _report_details(self, details: ErrorDetails, body: Any) -> None:
        self.failure = error_from_details(
            details,
            status=200,
            headers=self._headers,
            body=body,
            provider=self._name,
            model=self._request.model,
            secrets=self._secrets,
        )

    def _fail(self, message: str) -> None:
        if self.failure is None:
            self.failure = self._protocol_error(message)

    def _protocol_error(self, message: str) -> errors.ProtocolError:
        return errors.ProtocolError(
            f"{self._name}: {message}",
            provider=self._name,
            model=self._request.model,
            request_id=request_id(self._headers),
        )
