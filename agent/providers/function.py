"""A Python function as a model: it is given the request, and what it returns or yields is the answer.

This module knows what such a function may answer and how that is written down: as the events of our own streams, in
JSON, one server-sent event each. Calling the function, in whatever thread or loop, is its transport's work.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import BaseModel
from typing_extensions import override

from .. import errors
from ..engine.wire import MAX_REPLY_BYTES, Reply, WireRequest
from ..http.sse import SseDecoder
from ..types import (
    AgentConfig,
    AgentRequest,
    AgentResponse,
    ContentPart,
    FinishReason,
    Message,
    Part,
    ProviderCapabilities,
    RefusalContent,
    StreamEvent,
    TextContent,
    ThinkingContent,
    ToolCall,
)
from .base import ProviderFactory
from .codec import CodecBase, DecoderBase
from .encoding import dump_json

ModelFunction: TypeAlias = Callable[[AgentRequest], Any]
"""From a request to text, a response, a message, a part, parts, or a value that is written as JSON; or to an awaitable
of one of these; or to an iterator, plain or async, of text, parts and events."""

API = "function"
_DONE = b"[DONE]"
CAPABILITIES = ProviderCapabilities(
    streaming=True, tools=True, structured_output=True, json_mode=True, vision=True, documents=True, audio=True
)
"""It is handed everything; what it makes of it is its own affair."""


@dataclass(slots=True, eq=False, kw_only=True)
class FunctionCall(WireRequest):
    """A request that needs no bytes: the function and what to give it."""

    function: ModelFunction
    request: AgentRequest


def function_provider(function: ModelFunction, name: str) -> ProviderFactory:
    """The factory of a model that is this function."""
    if not callable(function):
        raise errors.ConfigurationError(
            f"The model {name!r} is a {type(function).__name__}, which cannot be called.",
            field="function",
            fix="Pass a function that takes the request.",
        )

    def make(config: AgentConfig) -> FunctionCodec:
        return FunctionCodec(function, name)

    return make


def is_async_function(function: ModelFunction) -> bool:
    """Whether calling it only makes something to be awaited or iterated on an event loop."""
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each)
        for each in (inspect.unwrap(function), type(function).__call__)
    )


def is_model_function(found: Any) -> bool:
    """Tells a model's function from a factory: by what it is, or by its first parameter's type or name."""
    if is_async_function(found) or inspect.isgeneratorfunction(found):
        return True
    try:
        first = next(iter(inspect.signature(found).parameters.values()), None)
    except (TypeError, ValueError):
        return False
    if first is None:
        return False
    kind = first.annotation
    if kind is inspect.Parameter.empty:
        return first.name == "request"
    return kind is AgentRequest or (isinstance(kind, str) and kind.rpartition(".")[2] == AgentRequest.__name__)


class FunctionCodec(CodecBase):
    """Hands the request over as it is, and reads the events that come back."""

    api = API
    response_kind = "function's answer"
    transport = API

    def __init__(self, function: ModelFunction, name: str) -> None:
        super().__init__(name, CAPABILITIES, {}, ())
        self._function = function

    def encode(self, request: AgentRequest, *, stream: bool) -> WireRequest:
        return FunctionCall(f"function:{self.name}", (), b"", self.name, function=self._function, request=request)

    @override
    def decode(self, reply: Reply, request: AgentRequest) -> AgentResponse:
        # A whole answer is a stream that was kept until its end: both are read in one way.
        decoder = self.decoder(reply.headers, request)
        decoder.feed(reply.body)
        if decoder.failure is not None:
            raise decoder.failure
        if not decoder.done:
            raise self._protocol_error("the function's answer has no end", reply, request)
        return decoder.response()

    @override
    def _read_response(self, body: Any, headers: Mapping[str, str], request: AgentRequest) -> AgentResponse:
        raise NotImplementedError

    def decoder(self, headers: Mapping[str, str], request: AgentRequest) -> FunctionDecoder:
        return FunctionDecoder(self.name, headers, request, ())


class FunctionDecoder(DecoderBase):
    """Adds to the function's events what it need not say: who answers, and how the answer ended."""

    __slots__ = ("_called", "_end", "_refused")

    def __init__(self, name: str, headers: Mapping[str, str], request: AgentRequest, secrets: tuple[str, ...]) -> None:
        super().__init__(name, headers, request, secrets)
        self._sse = SseDecoder(MAX_REPLY_BYTES)  # a whole answer may come in one event
        self._end: StreamEvent = StreamEvent.message_end()
        """What the function says about its end. Only when it has returned is that the end."""
        self._called = False
        self._refused = False
        self._start(AgentResponse(provider=name, model=request.model or ""), None)

    @override
    def _decode_event(self, payload: bytes, events: list[StreamEvent]) -> None:
        if payload == _DONE:
            self.done = True
            events.append(self._ended(self._end))
            return
        event = StreamEvent.model_validate_json(payload)
        match event.type:
            case "message_start":
                self._start_with(event.response)
            case "message_end":
                self._end = event
            case "error":
                self.failure = errors.ProviderError(
                    event.error or "the function reports an error", provider=self._name, model=self._request.model
                )
            case _:
                self._called = self._called or event.type.startswith("tool_call")
                self._refused = self._refused or event.type == "refusal_delta"
                if isinstance(event.part, ToolCall):
                    self._called = True
                elif isinstance(event.part, RefusalContent):
                    self._refused = True
                events.append(event)

    def _start_with(self, facts: AgentResponse | None) -> None:
        if facts is not None:
            own = {"provider": facts.provider or self._name, "model": facts.model or self._request.model or ""}
            self._start(facts.model_copy(update=own), None)

    def _ended(self, event: StreamEvent) -> StreamEvent:
        facts = event.response or AgentResponse()
        if facts.stop_reason is None:
            reason: FinishReason = "tool_calls" if self._called else "refusal" if self._refused else "stop"
            facts = facts.model_copy(update={"stop_reason": reason})
        return StreamEvent.message_end(usage=event.usage, response=facts)


# Answers, written down


def written(events: Iterable[StreamEvent]) -> bytes:
    return b"".join(b"data: %b\n\n" % event.model_dump_json().encode() for event in events)


END_EVENT = b"data: %b\n\n" % _DONE
"""The function has returned."""


def encode_result(answer: Any) -> bytes:
    """All that a function returned."""
    if isinstance(answer, Message):
        answer = answer.parts
    if isinstance(answer, AgentResponse | str | ContentPart | StreamEvent):
        return encode_item(answer)
    if isinstance(answer, BaseModel | Mapping):
        return encode_item(dump_json(answer).decode())
    if isinstance(answer, Sequence) and not isinstance(answer, bytes | bytearray):
        return b"".join(encode_item(piece) for piece in answer) or encode_item("")  # no bytes would be the end
    raise _no_answer(f"it returned {_kind(answer)}; return text, an AgentResponse, parts, or a value to write as JSON")


def encode_item(piece: Any) -> bytes:
    """One thing that a function yielded."""
    match piece:
        case str():
            return written([StreamEvent.text_delta(piece)])
        case StreamEvent():
            return written([piece])
        case ContentPart():
            return written(_events_of_part(piece))
        case AgentResponse():
            return written(_events_of_response(piece))
        case _:
            raise _no_answer(f"it yielded {_kind(piece)}; yield text, parts or StreamEvents")


def _no_answer(message: str) -> errors.ProviderError:
    return errors.ProviderError(message, code="TypeError", retryable=False)  # asked again, it would do so again


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a value of type {type(value).__name__}"


_NOT_FACTS = {"content": (), "output": None, "route": (), "latency_ms": None}
"""What becomes of these belongs to the call around the function."""


def _events_of_response(response: AgentResponse) -> list[StreamEvent]:
    facts = response.model_copy(update=_NOT_FACTS)
    content = [event for index, part in enumerate(response.content) for event in _events_of_part(part, index)]
    return [StreamEvent.message_start(response=facts), *content, StreamEvent.message_end(response=facts)]


def _events_of_part(part: Any, index: int | None = None) -> list[StreamEvent]:
    """As a vendor would stream it: first what can be shown while it grows, then the whole, if there is more to it."""
    match part:
        case TextContent(text=text):
            return _grown(part, StreamEvent.text_delta(text, index=index), TextContent(text=text), index)
        case ThinkingContent(thinking=text):
            return _grown(part, StreamEvent.thinking_delta(text, index=index), ThinkingContent(thinking=text), index)
        case RefusalContent(refusal=text):
            return _grown(part, StreamEvent.refusal_delta(text, index=index), RefusalContent(refusal=text), index)
        case ToolCall():
            started = part.model_copy(update={"arguments": {}})
            delta = StreamEvent.tool_call_delta_event(dump_json(part.arguments).decode(), id=part.id, index=index)
            end = StreamEvent.tool_call_end(part, index=index)
            return [StreamEvent.tool_call_start(started, index=index), delta, end]
        case _:
            return [StreamEvent.content_part_event(part, index=index)]


def _grown(part: Part, delta: StreamEvent, plain: Part, index: int | None) -> list[StreamEvent]:
    if part == plain:
        return [delta]
    whole = StreamEvent.content_part_event(part, index=index)
    return [whole] if index is None else [delta, whole]  # without an index, the whole would not replace the piece


# What went wrong


def error_from_exception(error: Exception, name: str) -> errors.AgentError:
    """A function's exception as one of our errors.

    It is not chained: its frames hold the request, and whoever logs an error would log them along. A note says where
    to look.
    """
    if isinstance(error, errors.AgentError):
        return error
    said = f": {error}" if str(error) else ""
    failed = errors.ProviderError(f"{name}: {type(error).__name__}{said}", code=type(error).__name__)
    if place := _place_of(error):
        failed.add_note(place)
    return failed


def _place_of(error: Exception) -> str | None:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return None if trace is None else f"raised in line {trace.tb_lineno} of {trace.tb_frame.f_code.co_qualname}"
