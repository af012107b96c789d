"""Decoding a stream of Gemini's chunks into events.

A stream is complete when a chunk has said how the answer ended and the bytes have ended behind it: Gemini has no other
sign, and counts or text may still follow a finish reason. Bytes that end anywhere else were cut off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from ...sse import SseDecoder
from ...types import AgentRequest, AgentResponse, Origin, StreamEvent, ToolCall
from ...wire import parse_json
from ..codec import DecoderBase
from ..failures import request_id
from .answer import Block, Reading
from .names import offered

MAX_CHUNK_BYTES = 16 * 1024 * 1024
"""A picture that a model made comes in one piece."""


class GeminiDecoder(DecoderBase):
    """The decoder of one stream."""

    __slots__ = ("_begun", "_reading", "_started")

    def __init__(
        self, name: str, home: Origin, headers: Mapping[str, str], request: AgentRequest, secrets: tuple[str, ...]
    ) -> None:
        super().__init__(name, headers, request, secrets)
        self._sse = SseDecoder(MAX_CHUNK_BYTES)
        self._reading = Reading(home, offered(request))
        self._started = False
        self._begun: set[int] = set()
        """Calls that have been announced."""

    @override
    def _decode_event(self, payload: bytes, events: list[StreamEvent]) -> None:
        chunk = parse_json(payload)
        if self.failure is not None:
            return
        if chunk.get("error"):
            self._report_error(chunk)
            return
        changes = self._reading.take(chunk)
        if not self._started:
            self._open(chunk)
        for change in changes:
            if change.block.kind == "call":
                self._call(change.block, chunk, events)
                continue
            if change.delta:
                kind = StreamEvent.text_delta if change.block.kind == "text" else StreamEvent.thinking_delta
                events.append(kind(change.delta, index=change.block.index, raw=chunk))
            if change.block.ended and _needs_its_part(change.block):
                part = self._reading.part(change.block)
                events.append(StreamEvent.content_part_event(part, index=change.block.index, raw=chunk))

    def _open(self, chunk: dict[str, Any]) -> None:
        self._started = True
        facts = AgentResponse(
            provider=self._name,
            model=self._reading.model or self._request.model or "",
            id=self._reading.id or None,
            request_id=request_id(self._headers),
            usage=self._reading.usage,
        )
        self._start(facts, chunk)

    def _call(self, block: Block, chunk: dict[str, Any] | None, events: list[StreamEvent]) -> None:
        call = block.part
        if not isinstance(call, ToolCall):
            if not block.id:
                return  # its id follows from its arguments, so it is announced when they are there
            call = ToolCall(id=block.id, name=block.name)
        if block.index not in self._begun:
            self._begun.add(block.index)
            started = ToolCall(id=call.id, name=call.name)
            events.append(StreamEvent.tool_call_start(started, index=block.index, raw=chunk))
        if block.ended:
            arguments = "".join(block.pieces)
            events.append(StreamEvent.tool_call_delta_event(arguments, id=call.id, name=call.name, index=block.index))
            events.append(StreamEvent.tool_call_end(call, index=block.index, raw=chunk))

    @override
    def _decode_end(self, events: list[StreamEvent]) -> None:
        if not self._reading.complete or self._sse.pending:
            return
        for block in self._reading.finish():
            if block.kind == "call":
                self._call(block, None, events)
            elif _needs_its_part(block):
                events.append(StreamEvent.content_part_event(self._reading.part(block), index=block.index))
        ending = self._reading.ending()
        events.append(StreamEvent.message_end(usage=ending.usage, response=ending))
        self.done = True

    @override
    def partial(self) -> AgentResponse:
        """With the latest counts: they come with every chunk, and no event is worth being made for each."""
        usage = self._reading.usage
        if usage is not None and not self.done:
            self._fold.add(StreamEvent.usage_event(usage))
        return super().partial()


def _needs_its_part(block: Block) -> bool:
    """Whether a block is more than the text that was streamed."""
    return block.kind != "text" or block.part is not None or block.signature is not None
