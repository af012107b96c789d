"""Decoding of streamed messages into events.

Blocks are assembled and then decoded like those of whole responses. A call with incomplete arguments ends with the
message, with invalid arguments. `message_stop` is the terminal event. Some compatible vendors send all blocks with the
same index, so a block whose index is taken gets a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json
from typing_extensions import override

from ...engine.wire import parse_finite_json, parse_json
from ...http.sse import SseDecoder
from ...types import AgentRequest, AgentResponse, StreamEvent, TextContent, ToolCall
from ..codec import DecoderBase
from ..failures import request_id
from .response import BlockReader, map_stop_reason, read_metadata, read_refusal, read_usage

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Results of server tools, such as a fetched PDF, arrive in one event."""


@dataclass(slots=True)
class _PartialBlock:
    """A content block that is not complete yet."""

    block: dict[str, Any]
    pieces: dict[str, list[str]] = field(default_factory=dict)
    """Pieces of text by key of the block."""
    input_json: list[str] = field(default_factory=list)
    """Pieces of the JSON of its input."""

    def add(self, delta: Mapping[str, Any]) -> None:
        match delta["type"]:
            case "thinking_delta":  # may also have a token estimate
                self._add_value("thinking", delta["thinking"] or "")
            case "signature_delta":
                self.block["signature"] = delta["signature"]
            case "input_json_delta":
                self.input_json.append(delta["partial_json"] or "")
            case "citations_delta":
                self.block["citations"] = [*(self.block.get("citations") or ()), delta["citation"]]
            case _:  # text and unknown types
                for key, value in delta.items():
                    if key != "type" and value is not None:
                        self._add_value(key, value)

    def _add_value(self, key: str, value: Any) -> None:
        """Append strings and lists. Other values replace earlier ones."""
        before = self.block.get(key)
        if isinstance(value, str) and (before is None or isinstance(before, str)):
            self.pieces.setdefault(key, []).append(value)
        elif isinstance(value, list) and isinstance(before, list):
            self.block[key] = [*before, *value]
        else:
            self.block[key] = value

    def join(self) -> tuple[dict[str, Any], bool]:
        """Return the whole block, and whether its input is complete."""
        block = self.block
        for key, pieces in self.pieces.items():
            block[key] = (block.get(key) or "") + "".join(pieces)
        self.pieces = {}
        text = "".join(self.input_json)
        if not text.strip():
            return block, True
        try:
            value = parse_finite_json(text)
        except ValueError:
            value = text
        block["input"] = value
        return block, isinstance(value, dict)


class MessagesDecoder(DecoderBase):
    """Decoder of one streamed message."""

    def __init__(self, name: str, headers: Mapping[str, str], request: AgentRequest, secrets: tuple[str, ...]) -> None:
        super().__init__(name, headers, request, secrets)
        self._sse = SseDecoder(MAX_EVENT_BYTES)
        self._message: dict[str, Any] = {}
        """The message so far, without its content."""
        self._partial: dict[int, _PartialBlock] = {}
        self._ended: dict[int, dict[str, Any]] = {}
        self._positions: dict[int, int] = {}
        """Position of the latest block by the vendor's index, which differs if the index was taken."""
        self._server_tools: dict[str, str] = {}
        """Names of the vendor's tools by the ids of their calls."""
        self._cut_off: dict[int, ToolCall] = {}
        """Calls that ended before their arguments were complete."""
        self._reader = BlockReader(name, request, "")

    @override
    def _decode_event(self, payload: bytes, events: list[StreamEvent]) -> None:
        if self.done or self.failure is not None:
            return  # events after the end are ignored
        event = parse_json(payload)
        match event["type"]:
            case "content_block_delta":
                self._decode_delta(event, events)
            case "content_block_start":
                self._start_block(event, events)
            case "content_block_stop":
                if (position := self._positions[event["index"]]) in self._partial:
                    self._end_block(position, event, events)
            case "message_start":
                self._start_message(event["message"], event)
            case "message_delta":
                self._decode_message_delta(event, events)
            case "message_stop":
                self._finish(event, events)
            case "error":
                self._report_error(event)
            case str():
                pass  # pings and unknown events
            case _:
                raise TypeError("the type of an event is not a string")

    def _start_message(self, message: Mapping[str, Any], event: dict[str, Any]) -> None:
        self._message = {**message, "usage": dict(message.get("usage") or {})}
        model = message.get("model") or self._request.model or ""
        if not self._request.model:
            self._reader = BlockReader(self._name, self._request, model)
        facts = AgentResponse(
            provider=self._name,
            model=model,
            id=message.get("id") or None,
            request_id=request_id(self._headers),
            usage=read_usage(message.get("usage")),
        )
        self._start(facts, event)

    def _start_block(self, event: dict[str, Any], events: list[StreamEvent]) -> None:
        block = self._reader.with_unique_id(event["content_block"])
        if not self._message:  # some vendors omit message_start
            self._start_message({}, event)
        index = self._place_block(event["index"], event, events)
        self._partial[index] = _PartialBlock(dict(block))  # events keep the vendor's data unchanged
        match block["type"]:
            case "text" if block.get("text"):
                events.append(StreamEvent.text_delta(block["text"], index=index, raw=event))
            case "thinking" if block.get("thinking"):
                events.append(StreamEvent.thinking_delta(block["thinking"], index=index, raw=event))
            case "tool_use":
                call = ToolCall(id=block["id"], name=self._reader.tools.original_name(block["name"]))
                events.append(StreamEvent.tool_call_start(call, index=index, raw=event))
            case "server_tool_use" | "mcp_tool_use":
                self._server_tools[block["id"]] = name = str(block["name"])
                events.append(StreamEvent.tool_progress(name, "in_progress", id=block["id"], index=index, raw=event))
            case str(kind) if kind.endswith("_tool_result"):
                self._report_result(block, index, event, events)
            case "fallback" if isinstance(successor := block.get("to"), dict) and successor.get("model"):
                # Another model continues the message, at its own price.
                self._message["model"] = successor["model"]
            case _:
                pass

    def _report_result(
        self, block: Mapping[str, Any], index: int, event: dict[str, Any], events: list[StreamEvent]
    ) -> None:
        """Report the end of a tool that runs at the vendor."""
        id, content = block.get("tool_use_id"), block.get("content")
        error = block.get("is_error") or (isinstance(content, dict) and str(content.get("type")).endswith("_error"))
        tool = self._server_tools.get(str(id)) or block["type"].removesuffix("_tool_result")
        status = "failed" if error else "completed"
        events.append(StreamEvent.tool_progress(tool, status, id=id, index=index, raw=event))

    def _place_block(self, index: int, event: dict[str, Any], events: list[StreamEvent]) -> int:
        """Return the position of a new block. An unfinished block with the same index ends."""
        if index in self._positions and self._positions[index] in self._partial:
            self._end_block(self._positions[index], event, events)
        taken = self._ended.keys() | self._partial.keys()
        self._positions[index] = max(taken) + 1 if index in taken else index
        return self._positions[index]

    def _decode_delta(self, event: dict[str, Any], events: list[StreamEvent]) -> None:
        index, delta = self._positions[event["index"]], event["delta"]
        partial = self._partial[index]
        partial.add(delta)
        match delta["type"], partial.block["type"]:
            case "text_delta", "text" if text := delta["text"]:
                events.append(StreamEvent.text_delta(text, index=index, raw=event))
            case "thinking_delta", "thinking" if text := delta["thinking"]:
                events.append(StreamEvent.thinking_delta(text, index=index, raw=event))
            case "input_json_delta", "tool_use" if text := delta["partial_json"]:
                id = partial.block["id"]
                events.append(StreamEvent.tool_call_delta_event(text, id=id, index=index, raw=event))
            case _:
                pass

    def _end_block(self, index: int, event: dict[str, Any], events: list[StreamEvent]) -> None:
        partial = self._partial.pop(index)
        block, complete = partial.join()
        self._ended[index] = block
        part = self._reader.read_part(block)
        if isinstance(part, ToolCall):
            if not complete:
                self._cut_off[index] = part
                return
            if part.arguments and not partial.input_json:  # sent with the start of the block
                text = to_json(block["input"]).decode()
                events.append(StreamEvent.tool_call_delta_event(text, id=part.id, index=index, raw=event))
            events.append(StreamEvent.tool_call_end(part, index=index, raw=event))
        elif part is not None and not (isinstance(part, TextContent) and part.origin is None):
            events.append(StreamEvent.content_part_event(part, index=index, raw=event))

    def _decode_message_delta(self, event: dict[str, Any], events: list[StreamEvent]) -> None:
        others = {key: value for key, value in event.items() if key not in ("type", "delta", "usage")}
        changes = {**others, **event["delta"]}
        self._message.update({key: value for key, value in changes.items() if value is not None})
        counts = {key: value for key, value in (event.get("usage") or {}).items() if value is not None}
        if counts:  # totals, which replace those of message_start
            self._message["usage"] = {**(self._message.get("usage") or {}), **counts}
            usage = read_usage(self._message["usage"])
            if usage is not None and (events or self._start_event is None):
                events.append(StreamEvent.usage_event(usage, raw=event))

    def _finish(self, event: dict[str, Any], events: list[StreamEvent]) -> None:
        """End all blocks and the message at the terminal event."""
        if not self._message.get("stop_reason"):
            self._fail("the stream ended without a stop reason")
            return
        for index in sorted(self._partial):
            self._end_block(index, event, events)
        for index, call in self._cut_off.items():
            events.append(StreamEvent.tool_call_end(call, index=index))
        if (refusal := read_refusal(self._message)) is not None:
            events.append(StreamEvent.content_part_event(refusal, index=max(self._ended, default=-1) + 1))
        self._message["content"] = [self._ended[index] for index in sorted(self._ended)]
        usage, reason = read_usage(self._message.get("usage")), self._message["stop_reason"]
        facts = AgentResponse(
            model=self._message.get("model") or "",
            usage=usage,
            stop_reason=map_stop_reason(reason),
            raw_stop_reason=reason,
            warnings=tuple(self._reader.warnings),
            **read_metadata(self._message),
            raw=dict(self._message),
        )
        events.append(StreamEvent.message_end(usage=usage, response=facts, raw=event))
        self.done = True
