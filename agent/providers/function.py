"""Python functions as models.

A function's result is encoded as server-sent events in JSON, which the decoder reads like a vendor's stream. The
transport calls the function.
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
"""Returns text, a response, a message, a part, parts, or a value that is serialized as JSON; an awaitable of one of
these; or a sync or async iterator of text, parts and events."""

API = "function"
_DONE = b"[DONE]"
END_EVENT = b"data: %b\n\n" % _DONE
"""Terminal event: the function has returned."""
CAPABILITIES = ProviderCapabilities(
    streaming=True, tools=True, structured_output=True, json_mode=True, vision=True, documents=True, audio=True
)


@dataclass(slots=True, eq=False, kw_only=True)
class FunctionCall(WireRequest):
    """Function and request, in place of a body."""

    function: ModelFunction
    request: AgentRequest


def function_provider(function: ModelFunction, name: str) -> ProviderFactory:
    """Factory of a provider that calls the function."""
    if not callable(function):
        raise errors.ConfigurationError(
            f"The model {name!r} is a {type(function).__name__}, which cannot be called.",
            field="function",
            fix="Pass a function that takes the request.",
        )

    return lambda config: FunctionCodec(function, name)


def is_async_function(function: ModelFunction) -> bool:
    """Whether calling the function returns a coroutine or an async generator."""
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each)
        for each in (inspect.unwrap(function), type(function).__call__)
    )


def is_model_function(value: Any) -> bool:
    """Tell a model function from a factory, by its kind or the type or name of its first parameter."""
    if is_async_function(value) or inspect.isgeneratorfunction(value):
        return True
    try:
        first = next(iter(inspect.signature(value).parameters.values()), None)
    except (TypeError, ValueError):
        return False
    if first is None:
        return False
    kind = first.annotation
    if kind is inspect.Parameter.empty:
        return first.name == "request"
    return kind is AgentRequest or (isinstance(kind, str) and kind.rpartition(".")[2] == AgentRequest.__name__)


class FunctionCodec(CodecBase):
    """Codec that passes the request to the function and decodes its events."""

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
        return self._decode_stream(self.decoder(reply.headers, request), reply, request)

    @override
    def _read_response(self, body: Any, headers: Mapping[str, str], request: AgentRequest) -> AgentResponse:
        raise NotImplementedError

    def decoder(self, headers: Mapping[str, str], request: AgentRequest) -> FunctionDecoder:
        return FunctionDecoder(self.name, headers, request, ())


class FunctionDecoder(DecoderBase):
    """Decoder of a function's events; adds missing provider, model and stop reason."""

    def __init__(self, name: str, headers: Mapping[str, str], request: AgentRequest, secrets: tuple[str, ...]) -> None:
        super().__init__(name, headers, request, secrets)
        self._sse = SseDecoder(MAX_REPLY_BYTES)  # a complete response may be one event
        self._end: StreamEvent = StreamEvent.message_end()
        """The function's own message_end, which is emitted once the function has returned."""
        self._called = False
        self._refused = False
        self._start(AgentResponse(provider=name, model=request.model or ""), None)

    @override
    def _decode_event(self, payload: bytes, events: list[StreamEvent]) -> None:
        if payload == _DONE:
            self.done = True
            events.append(self._complete_end(self._end))
            return
        event = StreamEvent.model_validate_json(payload)
        match event.type:
            case "message_start":
                if (start := event.response) is not None:
                    origin = {
                        "provider": start.provider or self._name,
                        "model": start.model or self._request.model or "",
                    }
                    self._start(start.model_copy(update=origin), None)
            case "message_end":
                self._end = event
            case "error":
                self.failure: errors.AgentError | None = errors.ProviderError(
                    event.error or "the function reports an error", provider=self._name, model=self._request.model
                )
            case _:
                if event.type.startswith("tool_call") or isinstance(event.part, ToolCall):
                    self._called = True
                elif event.type == "refusal_delta" or isinstance(event.part, RefusalContent):
                    self._refused = True
                events.append(event)

    def _complete_end(self, event: StreamEvent) -> StreamEvent:
        response = event.response or AgentResponse()
        if response.stop_reason is None:
            reason: FinishReason = "tool_calls" if self._called else "refusal" if self._refused else "stop"
            response = response.model_copy(update={"stop_reason": reason})
        return StreamEvent.message_end(usage=event.usage, response=response)


# Encoding of results.


def encode_events(events: Iterable[StreamEvent]) -> bytes:
    return b"".join(b"data: %b\n\n" % event.model_dump_json().encode() for event in events)


def encode_result(result: Any) -> bytes:
    """Encode the value that a function returned."""
    if isinstance(result, Message):
        result = result.parts
    if isinstance(result, AgentResponse | str | ContentPart | StreamEvent):
        return encode_item(result)
    if isinstance(result, BaseModel | Mapping):
        return encode_item(dump_json(result).decode())
    if isinstance(result, Sequence) and not isinstance(result, bytes | bytearray):
        return b"".join(map(encode_item, result)) or encode_item("")  # no bytes would mean the end
    raise _type_error("returned", result, "return text, an AgentResponse, parts, or a value to serialize as JSON")


def encode_item(item: Any) -> bytes:
    """Encode one item that a function yielded."""
    match item:
        case str():
            return encode_events([StreamEvent.text_delta(item)])
        case StreamEvent():
            return encode_events([item])
        case ContentPart():
            return encode_events(_part_events(item))
        case AgentResponse():
            return encode_events(_response_events(item))
        case _:
            raise _type_error("yielded", item, "yield text, parts or StreamEvents")


def _type_error(verb: str, value: Any, fix: str) -> errors.ProviderError:
    kind = "nothing" if value is None else f"a value of type {type(value).__name__}"
    return errors.ProviderError(f"it {verb} {kind}; {fix}", code="TypeError", retryable=False)


_SET_BY_CALL = {"content": (), "output": None, "route": (), "latency_ms": None}
"""Fields of a response that the call around the function sets."""


def _response_events(response: AgentResponse) -> list[StreamEvent]:
    head = response.model_copy(update=_SET_BY_CALL)
    content = [event for index, part in enumerate(response.content) for event in _part_events(part, index)]
    return [StreamEvent.message_start(response=head), *content, StreamEvent.message_end(response=head)]


def _part_events(part: Any, index: int | None = None) -> list[StreamEvent]:
    """Stream a part: its delta, then the complete part if it has other fields."""
    match part:
        case TextContent(text=text):
            return _with_part(part, StreamEvent.text_delta(text, index=index), TextContent(text=text))
        case ThinkingContent(thinking=text):
            return _with_part(part, StreamEvent.thinking_delta(text, index=index), ThinkingContent(thinking=text))
        case RefusalContent(refusal=text):
            return _with_part(part, StreamEvent.refusal_delta(text, index=index), RefusalContent(refusal=text))
        case ToolCall():
            started = part.model_copy(update={"arguments": {}})
            delta = StreamEvent.tool_call_delta_event(dump_json(part.arguments).decode(), id=part.id, index=index)
            end = StreamEvent.tool_call_end(part, index=index)
            return [StreamEvent.tool_call_start(started, index=index), delta, end]
        case _:
            return [StreamEvent.content_part_event(part, index=index)]


def _with_part(part: Part, delta: StreamEvent, plain: Part) -> list[StreamEvent]:
    if part == plain:
        return [delta]
    complete = StreamEvent.content_part_event(part, index=delta.index)
    # Without an index, the complete part would not replace its delta.
    return [complete] if delta.index is None else [delta, complete]


def error_from_exception(error: Exception, name: str) -> errors.AgentError:
    """Map a function's exception to an error.

    The exception is not chained, because its frames hold the request and would be logged. A note names the line.
    """
    if isinstance(error, errors.AgentError):
        return error
    message = f": {error}" if str(error) else ""
    mapped = errors.ProviderError(f"{name}: {type(error).__name__}{message}", code=type(error).__name__)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is not None:
        mapped.add_note(f"raised in line {trace.tb_lineno} of {trace.tb_frame.f_code.co_qualname}")
    return mapped
