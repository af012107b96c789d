"""Stream decoder of the Responses API.

Items may be interleaved; block indexes follow from the item's position in the output. An item's last event holds the
complete item, which is decoded as in a complete response. Data missing there is taken from the deltas, and missing
items from the terminal event.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from ...engine.wire import MAX_REPLY_BYTES, parse_json
from ...http.sse import SseDecoder
from ...types import AgentRequest, AgentResponse, ImageContent, RefusalContent, StreamEvent, ToolCall
from ..codec import SHAPE_ERRORS, DecoderBase
from ..encoding import request_origin
from ..failures import request_id
from .models import API
from .response import (
    CALLS,
    ItemReader,
    as_text,
    content_of,
    image_type,
    objects_in,
    read_logprobs,
    read_metadata,
    read_usage,
    stop_reason,
)

_BLOCKS_PER_ITEM = 1000
"""Distance between the indexes of items."""

_DECODED_TYPES = (*CALLS, "message", "reasoning")
_PROGRESS = re.compile(
    r"response\.(\w+?)(?:_call)?\.(in_progress|searching|interpreting|generating|compacting|completed|failed)"
)
"""Types of events about a tool that runs at the vendor: the tool, and its status."""


@dataclass(slots=True)
class _PartialItem:
    """An incomplete output item."""

    data: dict[str, Any]
    done: bool = False
    started: bool = False
    summarized: bool = False
    """Whether `pieces` are a summary of the reasoning."""
    numbers: dict[Any, int] = field(default_factory=dict)
    """Numbers of content blocks by the vendor's index, which may not start at zero."""
    texts: dict[int, list[str]] = field(default_factory=dict)
    """Deltas of text or refusals, by number of the block."""
    refusals: set[int] = field(default_factory=set)
    """Numbers of the blocks that are refusals."""
    annotations: dict[int, list[Any]] = field(default_factory=dict)
    logprobs: dict[int, list[Any]] = field(default_factory=dict)
    pieces: list[str] = field(default_factory=list)
    """Deltas of an item without blocks: reasoning, arguments."""

    def number(self, content_index: Any) -> int:
        return self.numbers.setdefault(content_index, len(self.numbers))


class ResponsesDecoder(DecoderBase):
    """Decoder of one stream of the Responses API."""

    def __init__(self, name: str, headers: Mapping[str, str], request: AgentRequest, secrets: tuple[str, ...]) -> None:
        super().__init__(name, headers, request, secrets)
        self._sse = SseDecoder(MAX_REPLY_BYTES)  # events may contain images
        self._started = False
        self._model = request.model or ""
        self._id = ""
        self._items: dict[int, _PartialItem] = {}
        """Items by position."""
        self._moved: dict[int, int] = {}
        """Positions of items with the `output_index` of another item."""
        self._reader = ItemReader(request, request_origin(name, API, request.model or ""))
        self._called = False
        self._refused = False

    @override
    def _decode_event(self, payload: bytes, events: list[StreamEvent]) -> None:
        if self.done or payload == b"[DONE]":
            return
        event = parse_json(payload)
        kind = event.get("type") or ""
        if not isinstance(kind, str):
            raise TypeError("the type of an event is not a string")
        if self.failure is not None:
            self._read_cost(event)
            return
        match kind:
            case "response.output_text.delta":
                self._add_text(event, events, refused=False)
            case "response.created" | "response.in_progress" | "response.queued":
                self._start_response(event["response"], events)
            case "response.output_item.added":
                self._start_item(event, events)
            case "response.output_item.done":
                self._end_item(event, events)
            case "response.content_part.added":
                self._find(event)[1].number(event.get("content_index"))
            case "response.refusal.delta":
                self._add_text(event, events, refused=True)
            case "response.output_text.annotation.added":
                _, item = self._find(event)
                item.annotations.setdefault(item.number(event.get("content_index")), []).append(event["annotation"])
            case "response.reasoning_summary_text.delta":
                self._add_thinking(event, events, summary=True)
            case "response.reasoning_text.delta":
                self._add_thinking(event, events, summary=False)
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
                self._add_arguments(event, events)
            case "response.completed" | "response.incomplete" | "response.cancelled":
                response = event["response"]
                status = response.get("status") or kind.removeprefix("response.")
                self._finish({**response, "status": status}, events)
            case "response.failed" | "error":
                self._read_failure(event)
            case "response.image_generation_call.partial_image":
                with suppress(*SHAPE_ERRORS):  # a preview is not part of the response
                    media_type = image_type(event.get("output_format"))
                    image = ImageContent(image_data=event["partial_image_b64"], media_type=media_type)
                    block = self._position_of(event) * _BLOCKS_PER_ITEM
                    events.append(StreamEvent.partial_image(image, index=block, raw=event))
            case _:
                if event.get("error"):
                    self._read_failure(event)
                elif progress := _PROGRESS.fullmatch(kind):
                    id, block = event.get("item_id"), self._position_of(event) * _BLOCKS_PER_ITEM
                    id = id if isinstance(id, str) else None
                    events.append(StreamEvent.tool_progress(progress[1], progress[2], id=id, index=block, raw=event))

    def _start_response(self, response: Mapping[str, Any], events: list[StreamEvent] | None = None) -> None:
        """Start the response. A background response can be retrieved by its id, which is emitted at once."""
        if self._started:
            return
        self._started = True
        self._model = as_text(response.get("model")) or self._model
        self._id = self._reader.response_id = as_text(response.get("id")) or ""
        head = AgentResponse(
            provider=self._name, model=self._model, id=self._id or None, request_id=request_id(self._headers)
        )
        self._start(head, response)
        if events is not None and response.get("background") and self._start_event is not None:
            events.append(self._start_event)
            self._start_event = None

    # Incomplete items.

    def _position_of(self, event: Mapping[str, Any]) -> int:
        """Find the position of an event's item by `output_index`, else by id, else use the latest."""
        index = event.get("output_index")
        if isinstance(index, int) and not self._moved:
            return index
        position = self._position_of_id(event.get("item_id"))
        if position is not None:
            return position
        return self._moved.get(index, index) if isinstance(index, int) else max(self._items, default=0)

    def _position_of_id(self, id: Any) -> int | None:
        return next((position for position, item in self._items.items() if id and item.data.get("id") == id), None)

    @property
    def _next_position(self) -> int:
        return max(self._items, default=-1) + 1

    def _find(self, event: Mapping[str, Any]) -> tuple[int, _PartialItem]:
        """Find the item of an event and its position. An item without a start event starts here."""
        position = self._position_of(event)
        item = self._items.get(position)
        if item is None:
            if not self._started:
                self._start_response({})
            item = self._items[position] = _PartialItem({"id": event.get("item_id")})
        return position, item

    def _start_item(self, event: dict[str, Any], events: list[StreamEvent]) -> None:
        """Start an item, which may be sent twice. If another item has its position, it gets a new one."""
        if not self._started:
            self._start_response({})
        data: dict[str, Any] = event["item"]
        index: Any = event.get("output_index")
        same = self._moved.get(index, index) if isinstance(index, int) else self._position_of_id(data.get("id"))
        position = self._next_position if same is None else same
        item = self._items.get(position)
        if item is not None and (item.done if item.data.get("id") is None else item.data["id"] != data.get("id")):
            position = self._moved[index] = self._next_position
            item = None
        if item is None:
            item = self._items[position] = _PartialItem(data)
        elif not item.done:
            item.data = {**item.data, **data}
        if item.data.get("type") in CALLS and item.data.get("name") and not (item.started or item.done):
            item.started = True
            call = self._reader.start_call(item.data, position)
            block = position * _BLOCKS_PER_ITEM
            events.append(StreamEvent.tool_call_start(call, index=block, raw=event))
            if item.pieces:
                events.append(StreamEvent.tool_call_delta_event("".join(item.pieces), id=call.id, index=block))

    def _add_text(self, event: dict[str, Any], events: list[StreamEvent], *, refused: bool) -> None:
        position, item = self._find(event)
        item.data.setdefault("type", "message")
        number = item.number(event.get("content_index"))
        if event.get("logprobs"):
            item.logprobs.setdefault(number, []).extend(event["logprobs"])
        text = event["delta"]
        if not text or item.done:
            return
        item.texts.setdefault(number, []).append(text)
        block = position * _BLOCKS_PER_ITEM + number
        if refused:
            item.refusals.add(number)
            events.append(StreamEvent.refusal_delta(text, index=block, raw=event))
        else:
            events.append(StreamEvent.text_delta(text, index=block, raw=event))

    def _add_thinking(self, event: dict[str, Any], events: list[StreamEvent], *, summary: bool) -> None:
        """Add reasoning or its summary, whichever is sent first."""
        position, item = self._find(event)
        item.data.setdefault("type", "reasoning")
        if not item.pieces:
            item.summarized = summary
        text = event["delta"]
        if text and item.summarized == summary and not item.done:
            item.pieces.append(text)
            events.append(StreamEvent.thinking_delta(text, index=position * _BLOCKS_PER_ITEM, raw=event))

    def _add_arguments(self, event: dict[str, Any], events: list[StreamEvent]) -> None:
        position, item = self._find(event)
        text = event["delta"]
        if not text or item.done:
            return
        item.pieces.append(text)
        if item.started:
            id, name = self._reader.call_id(item.data, position), self._reader.call_name(item.data)
            block = position * _BLOCKS_PER_ITEM
            events.append(StreamEvent.tool_call_delta_event(text, id=id, name=name, index=block, raw=event))

    # Complete items.

    def _end_item(self, event: dict[str, Any], events: list[StreamEvent]) -> None:
        final = event["item"]
        event = {**event, "item_id": final.get("id")}
        if isinstance(event.get("output_index"), int) or self._position_of_id(event["item_id"]) is not None:
            position, item = self._find(event)
        else:
            position, item = self._find_latest(final)
        self._complete(item, final, position, event, events)

    def _find_latest(self, final: Mapping[str, Any]) -> tuple[int, _PartialItem]:
        """Find the item that ends without index and id: the latest if the type matches, else a new one."""
        if not self._started:
            self._start_response({})
        position = max(self._items, default=-1)
        item = self._items.get(position)
        if item is None or item.done or item.data.get("type") not in (None, final.get("type")):
            position += 1
            item = self._items[position] = _PartialItem(dict(final))
        return position, item

    def _complete(
        self, item: _PartialItem, final: Mapping[str, Any], position: int, raw: Any, events: list[StreamEvent]
    ) -> None:
        if item.done:
            return
        item.done = True
        item.data = _with_deltas(item, {**item.data, **final} if _is_decoded(final) else dict(final))
        for number, part in self._reader.read_item(item.data, position):
            block = position * _BLOCKS_PER_ITEM + number
            if isinstance(part, ToolCall):
                self._called = True
                events.append(StreamEvent.tool_call_end(part, index=block, raw=raw))
            else:
                self._refused = self._refused or isinstance(part, RefusalContent)
                events.append(StreamEvent.content_part_event(part, index=block, raw=raw))

    def _finish(self, response: Mapping[str, Any], events: list[StreamEvent]) -> None:
        """Decode the terminal event: end open items, add missing ones, and end the message."""
        if not self._started:
            self._start_response(response)
        if response["status"] == "failed" or response.get("error"):
            self._read_failure({"response": response})
            return
        ended: list[StreamEvent] = []
        matched: set[int] = set()
        for index, final in enumerate(objects_in(response.get("output") or [])):
            position = self._match_final(index, final, matched)
            matched.add(position)
            if position not in self._items:
                self._items[position] = _PartialItem(dict(final))
            elif final.get("encrypted_content") and not self._items[position].data.get("encrypted_content"):
                self._items[position].done = False  # decode it again, with the encrypted content
            self._complete(self._items[position], final, position, response, ended)
        if any(item.pieces and not item.data.get("type") for item in self._items.values()):
            self._fail("the stream contains arguments of a call without a name")
            return
        unfinished = {} if response["status"] == "completed" else {"status": "incomplete"}
        for position, item in self._items.items():
            if item.data.get("type"):
                self._complete(item, unfinished, position, response, ended)
        events += ended
        reason, raw_reason = stop_reason(response, called=self._called, refused=self._refused)
        items = [self._items[position].data for position in sorted(self._items)]
        usage = read_usage(response, items)
        complete = AgentResponse(
            model=as_text(response.get("model")) or self._model,
            id=as_text(response.get("id")) or self._id or None,
            usage=usage,
            stop_reason=reason,
            raw_stop_reason=raw_reason,
            logprobs=read_logprobs(items),
            warnings=tuple(self._reader.warnings),
            **read_metadata(response),
            raw=response,
        )
        events.append(StreamEvent.message_end(usage=usage, response=complete, raw=response))
        self.done = True

    def _match_final(self, index: int, final: Mapping[str, Any], matched: set[int]) -> int:
        """Find the position of an item of the terminal event, where some vendors change ids."""
        by_id = self._position_of_id(final.get("id"))
        if by_id in matched:
            by_id = None
        item = self._items.get(index)
        if item is None:
            return index if by_id is None else by_id
        fits = item.data.get("type") in (None, final.get("type")) and index not in matched
        if fits and (by_id is None or not item.data.get("id")):
            return index
        return self._next_position if by_id is None else by_id

    # Failures.

    def _read_failure(self, event: Mapping[str, Any]) -> None:
        response = event.get("response") or {}
        error = event.get("error") or response.get("error")
        if not error and event.get("message"):
            error = {key: event[key] for key in ("message", "code", "param") if event.get(key)}
        self._report_error({"error": error or f"the response ended with status {response.get('status') or 'error'}"})
        self._read_cost(event)

    def _read_cost(self, event: Mapping[str, Any]) -> None:
        """Read the usage of a failed response, which some vendors send after the error."""
        usage = read_usage(event.get("response") or {}, [item.data for item in self._items.values() if item.done])
        if usage is not None:
            self._fold.add(StreamEvent.usage_event(usage))


def _is_decoded(final: Mapping[str, Any]) -> bool:
    """Whether an item is decoded; others become vendor parts."""
    return final.get("type") in _DECODED_TYPES or "type" not in final


def _with_deltas(item: _PartialItem, final: dict[str, Any]) -> dict[str, Any]:
    """Complete an item with data from its deltas."""
    match final.get("type"):
        case "message":
            return {**final, "content": _blocks(item, content_of(final))}
        case "reasoning" if item.pieces and not (final.get("summary") or final.get("content")):
            key, kind = ("summary", "summary_text") if item.summarized else ("content", "reasoning_text")
            return {**final, key: [{"type": kind, "text": "".join(item.pieces)}]}
        case "function_call" if not final.get("arguments"):
            return {**final, "arguments": "".join(item.pieces)}
        case "custom_tool_call" if not final.get("input"):
            return {**final, "input": "".join(item.pieces)}
        case _:
            return final


def _blocks(item: _PartialItem, content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    blocks = list(content)
    for number, texts in item.texts.items():
        while len(blocks) <= number:
            refused = len(blocks) in item.refusals
            blocks.append({"type": "refusal", "refusal": ""} if refused else {"type": "output_text", "text": ""})
        block = blocks[number]
        key = "refusal" if block.get("type") == "refusal" else "text"
        filled = {**block, key: block.get(key) or "".join(texts)}
        if not block.get("annotations") and item.annotations.get(number):
            filled["annotations"] = item.annotations[number]
        if not block.get("logprobs") and item.logprobs.get(number):
            filled["logprobs"] = item.logprobs[number]
        blocks[number] = filled
    return blocks
