"""Decoding the events of a streamed message.

Blocks grow as their pieces arrive and are read as wholes when the vendor ends them, by the very code that reads whole
answers. A call is ended only if its arguments are complete; one that broke off is ended with the message, as a call
with invalid arguments. `message_stop` is the terminal event. Servers that merely speak this API have been seen to give
every block the same index: a block that begins where another already stands gets a place of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json
from typing_extensions import override

from ...sse import SseDecoder
from ...types import AgentRequest, AgentResponse, StreamEvent, TextContent, ToolCall
from ...wire import parse_json
from ..codec import DecoderBase
from ..failures import request_id
from ..writing import home_of
from .answer import original_name, read_block, read_usage, refusal_in, stop_reason
from .blocks import offered
from .family import API

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""What one of the vendor's tools has found, such as a PDF that it fetched, comes in one piece."""


class _GrowingBlock:
    """A content block whose pieces are still arriving."""

    __slots__ = ("block", "json", "pieces")

    def __init__(self, block: dict[str, Any]) -> None:
        self.block = block
        self.pieces: dict[str, list[str]] = {}
        """Pieces of texts, by the key they belong to."""
        self.json: list[str] = []
        """Pieces of the JSON text of its input."""

    def say(self, text: str) -> None:
        said = self.pieces.get("text")
        if said is None:
            self.grow({"type": "text_delta", "text": text})
        else:
            said.append(text)

    def grow(self, delta: Mapping[str, Any]) -> None:
        match delta["type"]:
            case "input_json_delta":
                self.json.append(delta["partial_json"] or "")
            case "citations_delta":
                self.block["citations"] = [*(self.block.get("citations") or ()), delta["citation"]]
            case "signature_delta":
                self.block["signature"] = delta["signature"]
            case "thinking_delta":  # an estimate of its tokens may stand beside it, which is no part of the block
                self._add("thinking", delta["thinking"] or "")
            case _:
                for key, value in delta.items():
                    if key != "type" and value is not None:
                        self._add(key, value)

    def _add(self, key: str, value: Any) -> None:
        """The rule for deltas that nobody knows yet: texts go on, lists get longer, everything else is replaced."""
        before = self.block.get(key)
        if isinstance(value, str) and (before is None or isinstance(before, str)):
            self.pieces.setdefault(key, []).append(value)
        elif isinstance(value, list) and isinstance(before, list):
            self.block[key] = [*before, *value]
        else:
            self.block[key] = value

    def whole(self) -> tuple[dict[str, Any], bool]:
        """The block with all that has come, and whether its input is complete."""
        block = self.block
        for key, pieces in self.pieces.items():
            block[key] = (block.get(key) or "") + "".join(pieces)
        self.pieces = {}
        text = "".join(self.json)
        if not text.strip():
            return block, True
        try:
            given = parse_json(text)
        except ValueError:
            given = text
        block["input"] = given
        return block, isinstance(given, dict)


class MessagesDecoder(DecoderBase):
    """The decoder of a message's stream."""

    __slots__ = ("_cut_off", "_growing", "_message", "_origin", "_places", "_tools", "_whole")

    def __init__(self, name: str, headers: Mapping[str, str], request: AgentRequest, secrets: tuple[str, ...]) -> None:
        super().__init__(name, headers, request, secrets)
        self._sse = SseDecoder(MAX_EVENT_BYTES)
        self._message: dict[str, Any] = {}
        """The message so far, without its content."""
        self._growing: dict[int, _GrowingBlock] = {}
        self._whole: dict[int, dict[str, Any]] = {}
        self._places: dict[int, int] = {}
        """Where the latest block of each of the vendor's indexes stands: at that index, unless it was taken."""
        self._cut_off: dict[int, ToolCall] = {}
        """Calls that the vendor has ended before their arguments were complete."""
        self._tools = offered(request)
        self._origin = home_of(name, API, request.model or "")

    @override
    def _decode_event(self, payload: bytes, events: list[StreamEvent]) -> None:
        if self.done or self.failure is not None:
            return  # whatever follows the end is not part of the answer
        event = parse_json(payload)
        match event["type"]:
            case "content_block_delta":
                self._take_delta(event, events)
            case "content_block_start":
                self._take_start(event, events)
            case "content_block_stop":
                if (place := self._places[event["index"]]) in self._growing:
                    self._take_stop(place, event, events)
            case "message_start":
                self._open(event["message"], event)
            case "message_delta":
                self._take_ending(event, events)
            case "message_stop":
                self._finish(event, events)
            case "error":
                self._report_error(event)
            case str():
                pass  # pings, and events that are yet to be invented
            case _:
                raise TypeError("the type of an event is no text")

    def _open(self, message: Mapping[str, Any], event: dict[str, Any]) -> None:
        self._message = {**message, "usage": dict(message.get("usage") or {})}
        model = message.get("model") or self._request.model or ""
        if not self._origin.model:
            self._origin = home_of(self._name, API, model)
        facts = AgentResponse(
            provider=self._name,
            model=model,
            id=message.get("id") or None,
            request_id=request_id(self._headers),
            usage=read_usage(message.get("usage")),
        )
        self._start(facts, event)

    def _take_start(self, event: dict[str, Any], events: list[StreamEvent]) -> None:
        block = event["content_block"]
        if not self._message:  # nobody said who answers
            self._open({}, event)
        index = self._place(event["index"], event, events)
        self._growing[index] = _GrowingBlock(dict(block))  # events keep what the vendor sent
        match block["type"]:
            case "text" if block.get("text"):
                events.append(StreamEvent.text_delta(block["text"], index=index, raw=event))
            case "thinking" if block.get("thinking"):
                events.append(StreamEvent.thinking_delta(block["thinking"], index=index, raw=event))
            case "tool_use":
                call = ToolCall(id=block["id"], name=original_name(block["name"], self._tools))
                events.append(StreamEvent.tool_call_start(call, index=index, raw=event))
            case "fallback" if isinstance(successor := block.get("to"), dict) and successor.get("model"):
                # Another model goes on from here. A whole answer names the last one, whose prices count.
                self._message["model"] = successor["model"]
            case _:
                pass

    def _place(self, index: int, event: dict[str, Any], events: list[StreamEvent]) -> int:
        """Where a block that begins shall stand. One that still grows at its index is over."""
        if index in self._places and self._places[index] in self._growing:
            self._take_stop(self._places[index], event, events)
        standing = self._whole.keys() | self._growing.keys()
        self._places[index] = max(standing) + 1 if index in standing else index
        return self._places[index]

    def _take_delta(self, event: dict[str, Any], events: list[StreamEvent]) -> None:
        index, delta = self._places[event["index"]], event["delta"]
        growing = self._growing[index]
        kind, of = delta["type"], growing.block["type"]
        if kind == "text_delta" and of == "text":
            text = delta["text"]
            if len(delta) == 2 and type(text) is str:
                growing.say(text)  # the most of what there is
            else:
                growing.grow(delta)
            if text:
                events.append(StreamEvent.text_delta(text, index=index, raw=event))
            return
        growing.grow(delta)
        if kind == "thinking_delta" and of == "thinking":
            if text := delta["thinking"]:
                events.append(StreamEvent.thinking_delta(text, index=index, raw=event))
        elif kind == "input_json_delta" and of == "tool_use" and (text := delta["partial_json"]):
            id = growing.block["id"]
            events.append(StreamEvent.tool_call_delta_event(text, id=id, index=index, raw=event))

    def _take_stop(self, index: int, event: dict[str, Any], events: list[StreamEvent]) -> None:
        growing = self._growing.pop(index)
        block, complete = growing.whole()
        self._whole[index] = block
        part = read_block(block, self._origin, self._tools)
        if isinstance(part, ToolCall):
            if not complete:
                self._cut_off[index] = part
                return
            if part.arguments and not growing.json:  # given whole at the start; who follows the pieces gets one
                text = to_json(block["input"]).decode()
                events.append(StreamEvent.tool_call_delta_event(text, id=part.id, index=index, raw=event))
            events.append(StreamEvent.tool_call_end(part, index=index, raw=event))
        elif part is not None and not (isinstance(part, TextContent) and part.origin is None):
            events.append(StreamEvent.content_part_event(part, index=index, raw=event))

    def _take_ending(self, event: dict[str, Any], events: list[StreamEvent]) -> None:
        beside = {key: value for key, value in event.items() if key not in ("type", "delta", "usage")}
        self._message.update({key: value for key, value in {**beside, **event["delta"]}.items() if value is not None})
        counts = {key: value for key, value in (event.get("usage") or {}).items() if value is not None}
        if counts:  # sums so far, which replace those from the start
            self._message["usage"] = {**(self._message.get("usage") or {}), **counts}
            usage = read_usage(self._message["usage"])
            if usage is not None and (events or self._start_event is None):
                events.append(StreamEvent.usage_event(usage, raw=event))

    def _finish(self, event: dict[str, Any], events: list[StreamEvent]) -> None:
        """The terminal event: end what is still open, and say how it ended."""
        if not self._message.get("stop_reason"):
            self._fail("the stream ended without a stop reason")
            return
        for index in sorted(self._growing):
            self._take_stop(index, event, events)
        for index, call in self._cut_off.items():
            events.append(StreamEvent.tool_call_end(call, index=index))
        if (refusal := refusal_in(self._message)) is not None:
            events.append(StreamEvent.content_part_event(refusal, index=max(self._whole, default=-1) + 1))
        self._message["content"] = [self._whole[index] for index in sorted(self._whole)]
        usage, reason = read_usage(self._message.get("usage")), self._message["stop_reason"]
        facts = AgentResponse(
            model=self._message.get("model") or "",
            usage=usage,
            stop_reason=stop_reason(reason),
            raw_stop_reason=reason,
            raw=dict(self._message),
        )
        events.append(StreamEvent.message_end(usage=usage, response=facts, raw=event))
        self.done = True
