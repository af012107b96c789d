"""Base class of the server's stream encoders: interleaved events become consecutive blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from .. import errors
from ..engine.wire import parse_json
from ..types import AgentResponse, Part, RefusalContent, StreamEvent, TextContent, ThinkingContent, ToolCall, Usage
from .server_dialect import InboundRequest, ServerDialect, dump_call_arguments

BlockKind: TypeAlias = Literal["text", "thinking", "refusal", "call"]
_DELTA_KINDS: Mapping[str, BlockKind] = {"text_delta": "text", "thinking_delta": "thinking", "refusal_delta": "refusal"}


@dataclass(slots=True)
class Block:
    """An open block of the response."""

    kind: BlockKind
    index: int | None
    """Index of the block in the events."""
    part: Part | None = None
    """A call's id and name; the complete part of an ended block, if the events contain it."""
    raw: Any = None
    """The upstream event that opened the block."""
    number: int = -1
    """Number of the block in the output, set by the encoder."""
    pieces: list[str] = field(default_factory=list)
    reopened: bool = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def call(self) -> ToolCall:
        assert isinstance(self.part, ToolCall)
        return self.part

    def is_complete(self) -> bool:
        """Whether another block may start: a call's arguments must be complete JSON."""
        if self.kind != "call":
            return True
        try:
            parse_json(self.text, repair=False)
        except ValueError:
            return False
        return True


class BlockEncoder:
    """Base class of stream encoders, which write one block after the other."""

    def __init__(self, inbound: InboundRequest) -> None:
        self.inbound = inbound
        self.head: AgentResponse[Any] = AgentResponse(model=inbound.model)
        """The response without content, from message_start."""
        self.usage: Usage | None = None
        self._started = False
        self._block: Block | None = None
        self._closed: set[int | str] = set()
        """Indexes of ended blocks, and ids of ended calls."""
        self.raw: Any = None
        """The current upstream event, as the vendor sent it."""
        self._waiting: list[StreamEvent] = []
        """Events of other blocks that arrived before a call was complete."""

    # Methods of a wire format.

    def write_start(self) -> bytes:
        return b""

    def write_open(self, block: Block) -> bytes:
        return b""

    def write_delta(self, block: Block, text: str) -> bytes:
        raise NotImplementedError

    def write_close(self, block: Block) -> bytes:
        return b""

    def write_part(self, part: Part) -> bytes:
        """Write a part that is not streamed as deltas."""
        return b""

    def write_late_part(self, part: Part) -> bytes:
        """Write a complete part after its block has ended. Most wire formats cannot."""
        return b""

    def write_end(self, response: AgentResponse) -> bytes:
        raise NotImplementedError

    # The EventEncoder protocol.

    def encode_event(self, event: StreamEvent) -> bytes:
        written: list[bytes] = []
        self._take(event, written)
        return b"".join(written)

    def end(self, response: AgentResponse) -> bytes:
        written: list[bytes] = []
        self._start(written)
        self._close(written)
        while self._waiting:
            self._replay(written)
            self._close(written)
        if response.usage is None and self.usage is not None:
            response = response.model_copy(update={"usage": self.usage})
        written.append(self.write_end(response))
        return b"".join(written)

    def ping(self) -> bytes:
        return b": ping\n\n"

    def _take(self, event: StreamEvent, written: list[bytes]) -> None:
        match event.type:
            case "message_start":
                if event.response is not None:
                    model = event.response.model or self.inbound.model
                    self.head = event.response.model_copy(update={"model": model, "content": ()})
                    self.usage = event.response.usage
            case "usage" | "message_end":
                self.usage = event.usage or self.usage
            case "restart":
                raise errors.ProtocolError(
                    "the response restarted, which a stream cannot express; use on_partial='raise'",
                    retryable=False,
                )
            case "tool_result" | "error" | "partial_image" | "tool_progress":
                pass  # of a run, of `fail`, and of tools at another vendor
            case _:
                self._take_content(event, written)

    def _start(self, written: list[bytes]) -> None:
        if not self._started:
            self._started = True
            written.append(self.write_start())

    def _take_content(self, event: StreamEvent, written: list[bytes]) -> None:
        if self._block is None and self._waiting:
            self._replay(written)
        self.raw = event.raw
        block = self._block
        if block is not None and not _continues(block, event):
            if self._is_closed(event):
                if event.part is not None:
                    written.append(self.write_late_part(event.part))
                return
            if not block.is_complete():
                self._waiting.append(event)
                return
            self._close(written)
            self._take_content(event, written)
            return
        self._start(written)
        if (kind := _DELTA_KINDS.get(event.type)) is not None:
            self._write(block or self._open(kind, event, written), event.text or "", written)
        elif event.type == "content_part":
            self._take_part(event, written)
        else:
            self._take_call(event, written)

    def _is_closed(self, event: StreamEvent) -> bool:
        """Whether an event repeats an ended block as a complete part."""
        if event.type == "content_part":
            return event.index in self._closed
        call = event.tool_call
        return event.type == "tool_call_end" and (
            event.index in self._closed if event.index is not None else call is not None and call.id in self._closed
        )

    def _take_call(self, event: StreamEvent, written: list[bytes]) -> None:
        block = self._block
        if event.type == "tool_call_delta":
            delta = event.tool_call_delta or {}
            if block is None and delta.get("name"):
                started = ToolCall(id=delta.get("id") or "", name=delta["name"])
                block = self._open("call", event, written, started)
            if block is not None:
                self._write(block, delta.get("arguments") or "", written)
            return
        call = event.tool_call
        if call is None or (block is None and self._is_closed(event)):
            return
        if block is None:
            block = self._open("call", event, written, call)
        if event.type == "tool_call_end":
            if not block.pieces:
                self._write(block, dump_call_arguments(call), written)
            self._close(written, call)

    def _take_part(self, event: StreamEvent, written: list[bytes]) -> None:
        part, block = event.part, self._block
        assert part is not None
        if block is None and event.index in self._closed:
            written.append(self.write_late_part(part))
            return
        kind, text = _kind_and_text(part)
        if block is not None and block.kind != kind:
            self._close(written)
            block = None
        if isinstance(part, ToolCall):
            self._take_call(StreamEvent.tool_call_end(part, index=event.index), written)
        elif kind is None:
            written.append(self.write_part(part))
        else:
            if block is None:
                block = self._open(kind, event, written, part)
            if text.startswith(block.text) and not block.reopened:
                self._write(block, text[len(block.text) :], written)
            self._close(written, part)

    def _open(self, kind: BlockKind, event: StreamEvent, written: list[bytes], part: Part | None = None) -> Block:
        block = self._block = Block(kind, event.index, part, event.raw)
        if event.index in self._closed:
            block.reopened = True
        written.append(self.write_open(block))
        return block

    def _write(self, block: Block, text: str, written: list[bytes]) -> None:
        if text:
            block.pieces.append(text)
            written.append(self.write_delta(block, text))

    def _close(self, written: list[bytes], part: Part | None = None) -> None:
        block, self._block = self._block, None
        if block is None:
            return
        block.part = part or block.part
        written.append(self.write_close(block))
        if block.index is not None:
            self._closed.add(block.index)
        if isinstance(block.part, ToolCall):
            self._closed.add(block.part.id)

    def _replay(self, written: list[bytes]) -> None:
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self._take_content(event, written)


def _continues(block: Block, event: StreamEvent) -> bool:
    """Whether an event belongs to the open block."""
    if (kind := _DELTA_KINDS.get(event.type)) is not None:
        return block.kind == kind and event.index in (None, block.index)
    if event.type == "content_part":
        return event.index is not None and event.index == block.index
    if block.kind != "call":
        return False
    if event.index is not None and block.index is not None:
        return event.index == block.index
    id = event.tool_call.id if event.tool_call is not None else (event.tool_call_delta or {}).get("id")
    return event.type != "tool_call_start" and id in (None, "", block.call.id)


def _kind_and_text(part: Part) -> tuple[BlockKind | None, str]:
    match part:
        case TextContent():
            return "text", part.text
        case ThinkingContent():
            return "thinking", part.thinking
        case RefusalContent():
            return "refusal", part.refusal
        case ToolCall():
            return "call", ""
        case _:
            return None, ""


_ARGUMENTS_CHUNK = 12


def response_events(response: AgentResponse, dialect: ServerDialect) -> list[StreamEvent]:
    """Return a response as the events of a stream, one word per delta."""
    head = response.model_copy(update={"content": ()})
    events: list[StreamEvent] = [StreamEvent.message_start(response=head)]
    for index, part in enumerate(response.content):
        events += _part_events(part, index, dialect)
    events.append(StreamEvent.message_end(usage=response.usage, response=head))
    return events


def _part_events(part: Part, index: int, dialect: ServerDialect) -> list[StreamEvent]:
    complete = StreamEvent.content_part_event(part, index=index)
    match part:
        case TextContent():
            if part == TextContent(text=part.text):
                return [StreamEvent.text_delta(word, index=index) for word in split_words(part.text)]
            if part.signature and dialect.signs_whole_parts:
                return [complete]
            return [*(StreamEvent.text_delta(word, index=index) for word in split_words(part.text)), complete]
        case ThinkingContent():
            if part.signature and dialect.signs_whole_parts:
                return [complete]
            raw = {"item_id": part.id} if part.id else None
            return [
                *(StreamEvent.thinking_delta(word, index=index, raw=raw) for word in split_words(part.thinking)),
                complete,
            ]
        case RefusalContent():
            return [StreamEvent.refusal_delta(word, index=index) for word in split_words(part.refusal)]
        case ToolCall():
            text = dump_call_arguments(part)
            pieces = [text[at : at + _ARGUMENTS_CHUNK] for at in range(0, len(text), _ARGUMENTS_CHUNK)]
            started = ToolCall(id=part.id, name=part.name)
            return [
                StreamEvent.tool_call_start(started, index=index),
                *(StreamEvent.tool_call_delta_event(piece, id=part.id, index=index) for piece in pieces),
                StreamEvent.tool_call_end(part, index=index),
            ]
        case _:
            return [complete]


def split_words(text: str) -> list[str]:
    """Split text into words, each with the space before it."""
    words = text.split(" ")
    return [word if position == 0 else f" {word}" for position, word in enumerate(words) if word or position]
