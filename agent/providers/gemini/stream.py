"""Decoding of streamed generateContent chunks into events.

The stream has no terminal event. It is complete if it has a finish reason and ends after a whole event. Usage and text
may follow a finish reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from ...engine.wire import parse_json
from ...http.sse import SseDecoder
from ...types import AgentRequest, AgentResponse, Origin, StreamEvent
from ..codec import DecoderBase
from ..failures import request_id
from .fields import tools_by_name
from .response import ResponseReader

MAX_CHUNK_BYTES = 16 * 1024 * 1024
"""An image arrives in one chunk."""


class GeminiDecoder(DecoderBase):
    """Decoder of one stream of generateContent chunks."""

    __slots__ = ("_reader", "_started")

    def __init__(
        self, name: str, origin: Origin, headers: Mapping[str, str], request: AgentRequest, secrets: tuple[str, ...]
    ) -> None:
        super().__init__(name, headers, request, secrets)
        self._sse = SseDecoder(MAX_CHUNK_BYTES)
        self._reader = ResponseReader(origin, tools_by_name(request), streaming=True)
        self._started = False

    @override
    def _decode_event(self, payload: bytes, events: list[StreamEvent]) -> None:
        chunk = parse_json(payload)
        if self.failure is not None:
            return
        if chunk.get("error"):
            self._report_error(chunk)
            return
        events += self._reader.read_chunk(chunk)
        if not self._started:
            self._start_response(chunk)

    def _start_response(self, chunk: dict[str, Any]) -> None:
        self._started = True
        facts = AgentResponse(
            provider=self._name,
            model=self._reader.model or self._request.model or "",
            id=self._reader.id or None,
            request_id=request_id(self._headers),
            usage=self._reader.usage,
        )
        self._start(facts, chunk)

    @override
    def _decode_end(self, events: list[StreamEvent]) -> None:
        if not self._reader.complete or self._sse.pending:
            return
        events += self._reader.finish()
        facts = self._reader.response()
        events.append(StreamEvent.message_end(usage=facts.usage, response=facts))
        self.done = True

    @override
    def partial(self) -> AgentResponse:
        usage = self._reader.usage
        if usage is not None and not self.done:
            self._fold.add(StreamEvent.usage_event(usage))  # usage has no events, because every chunk reports it
        return super().partial()
