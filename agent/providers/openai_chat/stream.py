"""Decoding a stream of chat completion chunks into events.

The decoder is pushed bytes and emits events; the response is the fold of those events. Calls are ended, and the
message with them, only when the stream's terminal event has come, so nothing of a broken stream can be acted upon.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from ... import errors
from ...sse import SseDecoder
from ...types import AgentRequest, AgentResponse, Fold, Origin, StreamEvent, ToolCall, Usage
from ...wire import parse_json
from ..failures import failure, read_complaint, request_id
from .answer import (
    call_id,
    finished_call,
    function_in,
    read_usage,
    reasoning_text,
    split_content,
    stop_reason,
    thinking_part,
)
from .dialect import API, OPAQUE_KEYS, Dialect

# Where the blocks of an answer stand, so that a streamed answer has the order of an unstreamed one.
_THINKING, _TEXT, _REFUSAL, _FIRST_CALL = 0, 1, 2, 3
_SHAPE_ERRORS = (ValueError, KeyError, TypeError, IndexError, AttributeError)


class _GrowingCall:
    """A call whose arguments are still arriving."""

    __slots__ = ("arguments", "id", "name", "number", "opaque", "position", "started")

    def __init__(self, number: Any, position: int) -> None:
        self.number = number
        """The index the vendor gave it, which some give to several calls and some to none."""
        self.position = position
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.opaque: dict[str, Any] = {}
        self.started = False


class ChatDecoder:
    """Pushed bytes, events out. See `StreamDecoder` for the contract."""

    __slots__ = (
        "_calls",
        "_details",
        "_dialect",
        "_finish_reason",
        "_fold",
        "_headers",
        "_id",
        "_model",
        "_opaque",
        "_opening",
        "_refused",
        "_request",
        "_secrets",
        "_sse",
        "_started",
        "_thinking",
        "_usage",
        "done",
        "failure",
    )

    def __init__(
        self, dialect: Dialect, headers: Mapping[str, str], request: AgentRequest, secrets: tuple[str, ...]
    ) -> None:
        self.done = False
        self.failure: errors.AgentError | None = None
        self._dialect = dialect
        self._headers = headers
        self._request = request
        self._secrets = secrets
        self._sse = SseDecoder()
        self._fold = Fold()
        self._started = False
        self._opening: StreamEvent | None = None
        self._model = ""
        self._id = ""
        self._finish_reason: str | None = None
        self._usage: Usage | None = None
        self._calls: list[_GrowingCall] = []
        self._thinking: list[str] = []
        self._refused = False
        self._details: list[dict[str, Any]] = []
        self._opaque: dict[str, Any] = {}

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        try:
            for payload in self._sse.feed(chunk):
                self._take(payload, events)
        except _SHAPE_ERRORS as error:
            self._fail(f"an event of the stream cannot be read ({type(error).__name__})")
        return self._emitted(events)

    def end(self) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        counted = self._usage is not None or not self._dialect.stream_usage
        complete = self._finish_reason is not None and counted and not self._sse.pending
        if not self.done and self.failure is None and complete and not self._dialect.done_sentinel:
            self._finish(events)
        return self._emitted(events)

    def _emitted(self, events: list[StreamEvent]) -> list[StreamEvent]:
        """Fold what is handed out. The opening waits for content: before that, a failed call can still be repeated."""
        if events and self._opening is not None:
            events.insert(0, self._opening)
            self._opening = None
        add = self._fold.add
        for event in events:
            add(event)
        return events

    def response(self) -> AgentResponse:
        return self._fold.response()

    def partial(self) -> AgentResponse:
        return self._fold.partial()

    def _take(self, payload: bytes, events: list[StreamEvent]) -> None:
        if self.done:
            return  # whatever follows the end is not part of the answer
        if payload == b"[DONE]":
            if self.failure is None:
                self._finish(events)
            return
        chunk = parse_json(payload)
        if self.failure is not None:
            self._take_usage(chunk)  # some vendors report what a failed answer cost after the failure
            return
        if chunk.get("error"):
            self._complain(chunk)
            self._take_usage(chunk)
            return
        choices = chunk.get("choices")
        if choices:
            if not self._started:  # not at the very first chunk: some vendors send one without model and id before it
                self._start(chunk)
            self._take_choice(choices[0], chunk, events)
        elif choices is None and "usage" not in chunk and chunk.get("object") != "chat.completion.chunk":
            raise ValueError("it is not a chat completion chunk")
        if chunk.get("usage"):
            self._take_usage(chunk)

    def _start(self, chunk: dict[str, Any]) -> None:
        self._started = True
        self._model = chunk.get("model") or self._request.model or ""
        self._id = chunk.get("id") or ""
        facts = AgentResponse(
            provider=self._dialect.name,
            model=self._model,
            id=self._id or None,
            request_id=request_id(self._headers),
        )
        self._opening = StreamEvent.message_start(response=facts, raw=chunk)

    def _take_usage(self, chunk: dict[str, Any]) -> None:
        usage = read_usage(chunk.get("usage"))
        if usage is not None and usage != self._usage:
            self._usage = usage
            if self.failure is not None:
                self._fold.add(StreamEvent.usage_event(usage))

    def _take_choice(self, choice: dict[str, Any], chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        if choice.get("index"):
            return  # only the first of several answers is ours
        delta = choice.get("delta")
        if delta:
            content = delta.get("content")
            if content and type(content) is str:
                events.append(StreamEvent(type="text_delta", text=content, index=_TEXT, raw=chunk))
                if len(delta) > 1:
                    self._take_rest(delta, chunk, events)
            else:
                self._take_rest(delta, chunk, events)
                if content:
                    self._take_blocks(content, chunk, events)
        reason = choice.get("finish_reason")
        if reason:
            self._finish_reason = reason

    def _take_blocks(self, content: Any, chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        text, thinking = split_content(content)
        if thinking:
            self._think(thinking, chunk, events)
        if text:
            events.append(StreamEvent(type="text_delta", text=text, index=_TEXT, raw=chunk))

    def _take_rest(self, delta: dict[str, Any], chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        """Everything a delta may hold besides text."""
        thinking = reasoning_text(delta)
        if thinking:
            self._think(thinking, chunk, events)
        if delta.get("refusal"):
            self._refused = True
            events.append(StreamEvent.refusal_delta(delta["refusal"], index=_REFUSAL, raw=chunk))
        for detail in delta.get("reasoning_details") or ():
            self._take_detail(detail)
        for key in OPAQUE_KEYS:
            if key != "reasoning_details" and delta.get(key):
                self._opaque[key] = delta[key]
        for call in delta.get("tool_calls") or ():
            self._take_call(call, chunk, events)
        legacy = delta.get("function_call")
        if legacy and not delta.get("tool_calls") and (legacy.get("name") or self._calls):
            self._take_call({"index": 0, "function": legacy}, chunk, events)

    def _think(self, text: str, chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        self._thinking.append(text)
        events.append(StreamEvent.thinking_delta(text, index=_THINKING, raw=chunk))

    def _take_detail(self, detail: dict[str, Any]) -> None:
        """Pieces of one detail carry the same type and index; together they are what must be sent back."""
        for known in self._details:
            if known.get("type") == detail.get("type") and known.get("index") == detail.get("index"):
                for key, value in detail.items():
                    if (
                        key in ("text", "summary", "data")
                        and isinstance(known.get(key), str)
                        and isinstance(value, str)
                    ):
                        known[key] += value
                    elif value is not None:
                        known[key] = value
                return
        self._details.append(dict(detail))

    def _take_call(self, piece: dict[str, Any], chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        function = function_in(piece)
        call = self._call_for(piece, function)
        call.id = call.id or piece.get("id") or ""
        call.name = call.name or function.get("name") or ""
        call.opaque.update({key: piece[key] for key in OPAQUE_KEYS if piece.get(key)})
        if "custom" in piece:
            call.opaque["type"] = "custom"
        index = _FIRST_CALL + call.position
        if not call.started and call.name:
            call.started = True
            call.id = call_id(call.id, self._id, call.position)
            started = ToolCall(id=call.id, name=call.name)
            events.append(StreamEvent.tool_call_start(started, index=index, raw=chunk))
        arguments = function.get("arguments")
        if arguments:
            text = arguments if isinstance(arguments, str) else to_json(arguments).decode()
            call.arguments.append(text)
            events.append(StreamEvent.tool_call_delta_event(text, id=call.id, name=call.name, index=index, raw=chunk))

    def _call_for(self, piece: dict[str, Any], function: Mapping[str, Any]) -> _GrowingCall:
        """Which call a piece belongs to: by index; a new id with a name is a new call, whatever its index says."""
        number, id = piece.get("index"), piece.get("id")
        if number is None:
            found = next((call for call in self._calls if id and call.id == id), None)
            if found is None and not id and not function.get("name") and self._calls:
                found = self._calls[-1]
        else:
            found = next((call for call in reversed(self._calls) if call.number == number), None)
            if found is not None and id and found.id and id != found.id and function.get("name"):
                found = None
        if found is None:
            found = _GrowingCall(number, len(self._calls))
            self._calls.append(found)
        return found

    def _finish(self, events: list[StreamEvent]) -> None:
        """The terminal event: end what was begun, and say how it ended."""
        if self._finish_reason is None:
            self._fail("the stream ended without a finish reason")
            return
        origin = Origin(provider=self._dialect.name, api=API, model=self._model)
        opaque = {"reasoning_details": self._details, **self._opaque} if self._details else self._opaque
        if opaque or self._thinking:
            part = thinking_part("".join(self._thinking), opaque, origin)
            events.append(StreamEvent.content_part_event(part, index=_THINKING))
        for call in self._calls:
            finished = finished_call(
                call_id(call.id, self._id, call.position), call.name, "".join(call.arguments), call.opaque, origin
            )
            events.append(StreamEvent.tool_call_end(finished, index=_FIRST_CALL + call.position))
        self.done = True
        facts = AgentResponse(
            model=self._model,
            usage=self._usage,
            stop_reason=stop_reason(self._finish_reason, called=bool(self._calls), refused=self._refused),
            raw_stop_reason=self._finish_reason,
        )
        events.append(StreamEvent.message_end(usage=self._usage, response=facts))

    def _complain(self, chunk: dict[str, Any]) -> None:
        complaint = read_complaint(chunk)
        if complaint is None:
            self._fail("the vendor reports an error")
            return
        self.failure = failure(
            complaint,
            status=200,
            headers=self._headers,
            body=chunk,
            provider=self._dialect.name,
            model=self._request.model,
            secrets=self._secrets,
        )

    def _fail(self, message: str) -> None:
        if self.failure is None:
            self.failure = errors.ProtocolError(
                f"{self._dialect.name}: {message}",
                provider=self._dialect.name,
                model=self._request.model,
                request_id=request_id(self._headers),
            )
