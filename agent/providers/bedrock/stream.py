"""Decoding of streamed messages into events.

Each message of the event stream has one event: its payload, under the name in its headers. Blocks are assembled and
then decoded like those of whole responses. The event `metadata`, after `messageStop`, is the terminal event.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json
from typing_extensions import override

from ...engine.wire import parse_json
from ...http.event_stream import EventStreamDecoder, EventStreamMessage
from ...types import AgentRequest, AgentResponse, StreamEvent, TextContent, ToolCall
from ..codec import DecoderBase
from ..failures import request_id
from .response import BlockReader, map_stop_reason, read_exception, read_model, read_usage

_EVENTS = frozenset(
    ("contentBlockDelta", "contentBlockStart", "contentBlockStop", "messageStart", "messageStop", "metadata")
)
MAX_MESSAGE_BYTES = 24 * 1024 * 1024
"""An image arrives in one message."""


def _name_payload(message: EventStreamMessage) -> bytes:
    """Return an event as an object with one member, its payload, as the vendor's SDKs show it."""
    headers = message.headers
    if headers.get(":message-type") == "error":
        error = {"message": headers.get(":error-message", ""), "code": headers.get(":error-code")}
        return to_json({"error": error})
    name = headers.get(":exception-type") or headers.get(":event-type") or "unknown"
    return b"{%b:%b}" % (to_json(name), message.payload)


@dataclass(slots=True)
class _PartialBlock:
    """A content block that is not complete yet."""

    kind: str
    start: Mapping[str, Any]
    text: list[str] = field(default_factory=list)
    input: list[str] = field(default_factory=list)
    """Pieces of the JSON of a call's input."""
    signature: list[str] = field(default_factory=list)
    redacted: list[bytes] = field(default_factory=list)
    citations: list[Any] = field(default_factory=list)
    other: list[Any] = field(default_factory=list)
    """Deltas of a block of another kind."""

    def add(self, delta: Mapping[str, Any]) -> str:
        """Add a delta, and return its text, if it has any."""
        match delta:
            case {"text": str(text)}:
                self.text.append(text)
                return text
            case {"toolUse": {"input": str(text)}} if self.kind == "toolUse":
                self.input.append(text)
                return text
            case {"reasoningContent": {"text": str(text)}}:
                self.text.append(text)
                return text
            case {"reasoningContent": {"signature": str(signature)}}:
                self.signature.append(signature)
            case {"reasoningContent": {"redactedContent": str(data)}}:
                self.redacted.append(base64.b64decode(data))
            case {"citation": citation}:
                self.citations.append(citation)
            case {self.kind: other}:
                self.other.append(other)
            case _:
                self.other.append(delta)
        return ""

    def join(self) -> dict[str, Any]:
        """Return the whole block."""
        text = "".join(self.text)
        match self.kind:
            case "toolUse":
                return self._join_call()
            case "reasoningContent" if self.redacted:
                data = base64.b64encode(b"".join(self.redacted)).decode()
                return {"reasoningContent": {"redactedContent": data}}
            case "reasoningContent":
                signature = "".join(self.signature)
                signed = {"signature": signature} if signature else {}
                return {"reasoningContent": {"reasoningText": {"text": text, **signed}}}
            case "text" if self.citations:
                return {"citationsContent": {"content": [{"text": text}], "citations": self.citations}}
            case "text":
                return {"text": text}
            case "image":
                return {"image": {**self.start, **_merge(self.other)}}
            case kind:
                pieces = [piece for delta in self.other for piece in (delta if isinstance(delta, list) else [delta])]
                return {kind: {**self.start, **({"content": pieces} if pieces else {})}}

    def _join_call(self) -> dict[str, Any]:
        text = "".join(self.input)
        if not text.strip():
            return {"toolUse": {**self.start, "input": {}}}
        try:
            value = parse_json(text)
        except ValueError:
            value = text
        return {"toolUse": {**self.start, "input": value}}


def _merge(deltas: list[Any]) -> dict[str, Any]:
    """Merge the deltas of an image, whose data may arrive in pieces."""
    merged: dict[str, Any] = {}
    sources = [delta.get("source") or {} for delta in deltas]
    data = b"".join(base64.b64decode(source["bytes"]) for source in sources if "bytes" in source)
    for delta in deltas:
        merged.update(delta)
    return {**merged, "source": {"bytes": base64.b64encode(data).decode()}} if data else merged


def _kind_of(delta: Mapping[str, Any]) -> str:
    """Return the kind of a block that has no start event."""
    kind = next(iter(delta))
    return "text" if kind == "citation" else kind


class ConverseDecoder(DecoderBase):
    """Decoder of one streamed message."""

    def __init__(self, name: str, headers: Mapping[str, str], request: AgentRequest, secrets: tuple[str, ...]) -> None:
        super().__init__(name, headers, request, secrets)
        self._messages = EventStreamDecoder(MAX_MESSAGE_BYTES)
        self._body: dict[str, Any] = {}
        """The response so far, without its content."""
        self._partial: dict[int, _PartialBlock] = {}
        self._ended: dict[int, dict[str, Any]] = {}
        self._reader = BlockReader(name, request)

    @override
    def _split_events(self, chunk: bytes) -> list[bytes]:
        return [_name_payload(message) for message in self._messages.feed(chunk)]

    @override
    def _decode_event(self, payload: bytes, events: list[StreamEvent]) -> None:
        if self.done or self.failure is not None:
            return  # events after the end are ignored
        event = parse_json(payload)
        match event:
            case {"contentBlockDelta": {"contentBlockIndex": int(index), "delta": delta}}:
                self._decode_delta(index, delta, event, events)
            case {"contentBlockStart": {"contentBlockIndex": int(index), "start": start}}:
                self._start_block(index, start, event, events)
            case {"contentBlockStop": {"contentBlockIndex": int(index)}}:
                if index in self._partial:
                    self._end_block(index, event, events)
            case {"messageStart": {"role": str()}}:
                model = self._request.model or ""
                response = AgentResponse(provider=self._name, model=model, request_id=request_id(self._headers))
                self._start(response, event)
            case {"messageStop": {"stopReason": str()} as stop}:
                self._body.update(stop)
            case {"metadata": dict(metadata)}:
                self._body.update(metadata)
                self._finish(event, events)
            case _ if event.keys() & _EVENTS:
                raise ValueError("an event lacks a field")
            case _ if (details := read_exception(event)) is not None:
                self._report_details(details, event)
            case _:
                pass  # unknown events

    def _start_block(self, index: int, start: dict[str, Any], event: dict[str, Any], events: list[StreamEvent]) -> None:
        kind = next(iter(start), "text")
        content = start.get(kind) or {}
        self._partial[index] = _PartialBlock(kind, content)
        if kind == "toolUse" and "type" not in content:
            call = ToolCall(id=content["toolUseId"], name=self._reader.tools.original_name(content["name"]))
            events.append(StreamEvent.tool_call_start(call, index=index, raw=event))

    def _decode_delta(
        self, index: int, delta: dict[str, Any], event: dict[str, Any], events: list[StreamEvent]
    ) -> None:
        partial = self._partial.get(index)
        if partial is None:
            partial = self._partial[index] = _PartialBlock(_kind_of(delta), {})
        text = partial.add(delta)
        if not text:
            return
        match partial.kind:
            case "text":
                events.append(StreamEvent.text_delta(text, index=index, raw=event))
            case "reasoningContent":
                events.append(StreamEvent.thinking_delta(text, index=index, raw=event))
            case "toolUse" if "type" not in partial.start:
                id = partial.start["toolUseId"]
                events.append(StreamEvent.tool_call_delta_event(text, id=id, index=index, raw=event))
            case _:
                pass

    def _end_block(self, index: int, event: dict[str, Any], events: list[StreamEvent]) -> None:
        block = self._partial.pop(index).join()
        self._ended[index] = block
        part = self._reader.read_part(block)
        if isinstance(part, ToolCall):
            events.append(StreamEvent.tool_call_end(part, index=index, raw=event))
        elif part is not None and not (isinstance(part, TextContent) and part.origin is None):
            events.append(StreamEvent.content_part_event(part, index=index, raw=event))

    def _finish(self, event: dict[str, Any], events: list[StreamEvent]) -> None:
        """End all blocks and the message at the terminal event."""
        reason = self._body.get("stopReason")
        if reason is None:
            self._fail("the stream ended without a stop reason")
            return
        for index in sorted(self._partial):
            self._end_block(index, event, events)
        content = [self._ended[index] for index in sorted(self._ended)]
        usage = read_usage(self._body.get("usage"))
        response = AgentResponse(
            model=read_model(self._body, self._request),
            usage=usage,
            stop_reason=map_stop_reason(reason),
            raw_stop_reason=reason,
            raw={"output": {"message": {"role": "assistant", "content": content}}, **self._body},
        )
        events.append(StreamEvent.message_end(usage=usage, response=response, raw=event))
        self.done = True
