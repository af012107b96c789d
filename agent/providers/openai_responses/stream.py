"""Decoding a stream of the Responses API into events.

Items arrive under their place in the output, several at a time if the vendor likes; every block of ours has an index
that follows from that place, so the order is right whatever comes first. An item is finished by its own last event,
and read from there exactly as an unstreamed answer is; what a vendor leaves out of it is taken from the deltas, and
items that only the closing event knows are taken from that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from ...sse import SseDecoder
from ...types import AgentRequest, AgentResponse, RefusalContent, StreamEvent, ToolCall
from ...wire import MAX_REPLY_BYTES, parse_json
from ..codec import DecoderBase
from ..failures import request_id
from ..writing import home_of
from .answer import ItemReader, content_of, read_logprobs, read_usage, stop_reason
from .traits import API

_PLACES = 1000
"""Blocks per item: where an item's own numbers end and the next item's begin."""

_CALLS = ("function_call", "custom_tool_call")
_OURS = (*_CALLS, "message", "reasoning")


class _Item:
    """An output item while it grows."""

    __slots__ = (
        "annotations", "done", "fragments", "item", "logprobs", "places", "refusals", "started", "summarized", "words",
    )  # fmt: skip

    def __init__(self, item: dict[str, Any]) -> None:
        self.item = item
        self.done = False
        self.started = False
        self.summarized = False
        self.places: dict[Any, int] = {}
        """Our place of each content block by the vendor's number for it, which need not begin at zero."""
        self.words: dict[int, list[str]] = {}
        """Deltas of text or refusal, by place."""
        self.refusals: set[int] = set()
        """The places that refuse."""
        self.annotations: dict[int, list[Any]] = {}
        self.logprobs: dict[int, list[Any]] = {}
        self.fragments: list[str] = []
        """Deltas of whatever is not made of blocks: reasoning, arguments."""

    def place(self, number: Any) -> int:
        return self.places.setdefault(number, len(self.places))


class ResponsesDecoder(DecoderBase):
    """The decoder of a response's stream."""

    __slots__ = ("_called", "_id", "_items", "_model", "_moved", "_reader", "_refused", "_started")

    def __init__(self, name: str, headers: Mapping[str, str], request: AgentRequest, secrets: tuple[str, ...]) -> None:
        super().__init__(name, headers, request, secrets)
        self._sse = SseDecoder(MAX_REPLY_BYTES)  # pictures come whole, in one event, and once more in the last
        self._started = False
        self._model = request.model or ""
        self._id = ""
        self._items: dict[int, _Item] = {}
        self._moved: dict[int, int] = {}
        """Our place of an item whose own, as the vendor has it, was taken."""
        self._reader = ItemReader(request, home_of(name, API, request.model or ""))
        self._called = False
        self._refused = False

    @override
    def _decode_event(self, payload: bytes, events: list[StreamEvent]) -> None:
        if self.done or payload == b"[DONE]":
            return
        event = parse_json(payload)
        kind = event.get("type") or ""
        if not isinstance(kind, str):
            raise TypeError("the type of an event is no text")
        if self.failure is not None:
            self._take_cost(event)
            return
        match kind:
            case "response.output_text.delta":
                self._take_words(event, "output_text", events)
            case "response.created" | "response.in_progress" | "response.queued":
                self._open(event["response"])
            case "response.output_item.added":
                self._take_start(event, events)
            case "response.output_item.done":
                self._take_item(event, events)
            case "response.content_part.added":
                self._find(event)[1].place(event.get("content_index"))
            case "response.refusal.delta":
                self._take_words(event, "refusal", events)
            case "response.output_text.annotation.added":
                _, item = self._find(event)
                item.annotations.setdefault(item.place(event.get("content_index")), []).append(event["annotation"])
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._take_thought(event, events, summary=kind == "response.reasoning_summary_text.delta")
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
                self._take_fragment(event, events)
            case "response.completed" | "response.incomplete":
                response = event["response"]
                status = response.get("status") or kind.removeprefix("response.")
                self._finish({**response, "status": status}, events)
            case "response.failed" | "response.cancelled" | "error":
                self._take_failure(event)
            case _:
                if event.get("error"):
                    self._take_failure(event)

    # Who answers.

    def _open(self, response: Mapping[str, Any]) -> None:
        if self._started:
            return
        self._started = True
        self._model = response.get("model") or self._model
        self._id = self._reader.response_id = response.get("id") or ""
        facts = AgentResponse(
            provider=self._name, model=self._model, id=self._id or None, request_id=request_id(self._headers)
        )
        self._start(facts, response)

    # Items that grow.

    def _position_of(self, event: Mapping[str, Any]) -> int:
        """An item's place in the output: as the vendor says, or by the item's id, or the latest."""
        position = event.get("output_index")
        if isinstance(position, int) and not self._moved:
            return position
        known = self._place_of(event.get("item_id"))
        if known is not None:
            return known
        return self._moved.get(position, position) if isinstance(position, int) else max(self._items, default=0)

    def _place_of(self, id: Any) -> int | None:
        return next((place for place, item in self._items.items() if id and item.item.get("id") == id), None)

    @property
    def _next_place(self) -> int:
        return max(self._items, default=-1) + 1

    def _find(self, event: Mapping[str, Any]) -> tuple[int, _Item]:
        """The item that an event is about, and its place; one that nobody announced begins here."""
        position = self._position_of(event)
        item = self._items.get(position)
        if item is None:
            if not self._started:
                self._open({})
            item = self._items[position] = _Item({"id": event.get("item_id")})
        return position, item

    def _take_start(self, event: dict[str, Any], events: list[StreamEvent]) -> None:
        """An item begins. Told again, it is no other; but a place that is taken by another one is not given twice."""
        if not self._started:
            self._open({})
        told: dict[str, Any] = event["item"]
        number: Any = event.get("output_index")
        place = self._moved.get(number, number) if isinstance(number, int) else self._place_of(told.get("id"))
        position = self._next_place if place is None else place
        item = self._items.get(position)
        if item is not None and (item.done if item.item.get("id") is None else item.item["id"] != told.get("id")):
            position = self._moved[number] = self._next_place
            item = None
        if item is None:
            item = self._items[position] = _Item(told)
        elif not item.done:
            item.item = {**item.item, **told}
        if item.item.get("type") in _CALLS and item.item.get("name") and not (item.started or item.done):
            item.started = True
            call = self._reader.started_call(item.item, position)
            index = position * _PLACES
            events.append(StreamEvent.tool_call_start(call, index=index, raw=event))
            if item.fragments:
                events.append(StreamEvent.tool_call_delta_event("".join(item.fragments), id=call.id, index=index))

    def _take_words(self, event: dict[str, Any], kind: str, events: list[StreamEvent]) -> None:
        position, item = self._find(event)
        item.item.setdefault("type", "message")
        place = item.place(event.get("content_index"))
        if event.get("logprobs"):
            item.logprobs.setdefault(place, []).extend(event["logprobs"])
        text = event["delta"]
        if not text or item.done:
            return
        words = item.words.setdefault(place, [])
        words.append(text)
        index = position * _PLACES + place
        if kind == "refusal":
            item.refusals.add(place)
            events.append(StreamEvent.refusal_delta(text, index=index, raw=event))
            return
        events.append(StreamEvent.text_delta(text, index=index, raw=event))

    def _take_thought(self, event: dict[str, Any], events: list[StreamEvent], *, summary: bool) -> None:
        """A summary says what the text says: where a vendor sends both, only what came first is told."""
        position, item = self._find(event)
        item.item.setdefault("type", "reasoning")
        if not item.fragments:
            item.summarized = summary
        if event["delta"] and item.summarized == summary and not item.done:
            item.fragments.append(event["delta"])
            index = position * _PLACES
            events.append(StreamEvent.thinking_delta(event["delta"], index=index, raw=event))

    def _take_fragment(self, event: dict[str, Any], events: list[StreamEvent]) -> None:
        position, item = self._find(event)
        if not event["delta"] or item.done:
            return
        item.fragments.append(event["delta"])
        if item.started:
            call = self._reader.started_call(item.item, position)
            index = position * _PLACES
            events.append(
                StreamEvent.tool_call_delta_event(event["delta"], id=call.id, name=call.name, index=index, raw=event)
            )

    # Items that are finished.

    def _take_item(self, event: dict[str, Any], events: list[StreamEvent]) -> None:
        final = event["item"]
        event = {**event, "item_id": final.get("id")}
        if isinstance(event.get("output_index"), int) or self._place_of(event["item_id"]) is not None:
            position, item = self._find(event)
        else:
            position, item = self._still_open(final)
        self._complete(item, final, position, event, events)

    def _still_open(self, final: Mapping[str, Any]) -> tuple[int, _Item]:
        """The item that ends where neither its place nor its id says which: the latest of its kind, or a new one."""
        if not self._started:
            self._open({})
        place = max(self._items, default=-1)
        item = self._items.get(place)
        if item is None or item.done or item.item.get("type") not in (None, final.get("type")):
            place += 1
            item = self._items[place] = _Item(dict(final))
        return place, item

    def _complete(
        self, item: _Item, final: Mapping[str, Any], position: int, raw: Any, events: list[StreamEvent]
    ) -> None:
        if item.done:
            return
        item.done = True
        item.item = whole = _with_deltas(item, {**item.item, **final} if _is_ours(final) else dict(final))
        for place, part in self._reader.parts(whole, position):
            index = position * _PLACES + place
            if isinstance(part, ToolCall):
                self._called = True
                events.append(StreamEvent.tool_call_end(part, index=index, raw=raw))
            else:
                self._refused = self._refused or isinstance(part, RefusalContent)
                events.append(StreamEvent.content_part_event(part, index=index, raw=raw))

    def _finish(self, response: Mapping[str, Any], events: list[StreamEvent]) -> None:
        """The closing event: end what was begun, add what has not been seen, and say how it ended."""
        if not self._started:
            self._open(response)
        if response["status"] in ("failed", "cancelled") or response.get("error"):
            self._take_failure({"response": response})
            return
        last: list[StreamEvent] = []
        found: set[int] = set()
        for position, final in enumerate(response.get("output") or ()):
            known = self._known(position, final, found)
            found.add(known)
            if known not in self._items:
                self._items[known] = _Item(dict(final))
            elif final.get("encrypted_content") and not self._items[known].item.get("encrypted_content"):
                self._items[known].done = False  # only now has it been sealed
            self._complete(self._items[known], final, known, response, last)
        if any(item.fragments and not item.item.get("type") for item in self._items.values()):
            self._fail("the stream holds arguments of a call that it never named")
            return
        unfinished = {"status": "incomplete"} if response["status"] == "incomplete" else {}
        for position, item in self._items.items():
            if item.item.get("type"):
                self._complete(item, unfinished, position, response, last)
        events += last
        self.done = True
        reason, raw_reason = stop_reason(response, called=self._called, refused=self._refused)
        in_order = [self._items[position].item for position in sorted(self._items)]
        usage = read_usage(response, in_order)
        facts = AgentResponse(
            model=response.get("model") or self._model,
            id=response.get("id") or self._id or None,
            usage=usage,
            stop_reason=reason,
            raw_stop_reason=raw_reason,
            logprobs=read_logprobs(in_order),
            raw=response,
        )
        events.append(StreamEvent.message_end(usage=usage, response=facts, raw=response))

    def _known(self, position: int, final: Mapping[str, Any], found: set[int]) -> int:
        """Where an item of the closing event has been seen, or a new place. Some vendors make up new ids for it."""
        named = self._place_of(final.get("id"))
        if named in found:
            named = None
        here = self._items.get(position)
        if here is None:
            return position if named is None else named
        fits = here.item.get("type") in (None, final.get("type")) and position not in found
        if fits and (named is None or not here.item.get("id")):
            return position
        return self._next_place if named is None else named

    # Failures.

    def _take_failure(self, event: Mapping[str, Any]) -> None:
        response = event.get("response") or {}
        error = event.get("error") or response.get("error")
        if not error and event.get("message"):
            error = {key: event[key] for key in ("message", "code", "param") if event.get(key)}
        self._report_error({"error": error or f"the response ended as {response.get('status') or 'an error'}"})
        self._take_cost(event)

    def _take_cost(self, event: Mapping[str, Any]) -> None:
        """A failed answer may have cost something; some vendors say so after the failure."""
        usage = read_usage(event.get("response") or {}, [item.item for item in self._items.values() if item.done])
        if usage is not None:
            self._fold.add(StreamEvent.usage_event(usage))


def _is_ours(final: Mapping[str, Any]) -> bool:
    """Whether we look into an item; others are kept exactly as they end."""
    return final.get("type") in _OURS or "type" not in final


def _with_deltas(item: _Item, final: dict[str, Any]) -> dict[str, Any]:
    """A finished item, with what its deltas said where the vendor does not repeat it."""
    match final.get("type"):
        case "message":
            return {**final, "content": _blocks(item, content_of(final))}
        case "reasoning" if item.fragments and not (final.get("summary") or final.get("content")):
            key, kind = ("summary", "summary_text") if item.summarized else ("content", "reasoning_text")
            return {**final, key: [{"type": kind, "text": "".join(item.fragments)}]}
        case "function_call" if not final.get("arguments"):
            return {**final, "arguments": "".join(item.fragments)}
        case "custom_tool_call" if not final.get("input"):
            return {**final, "input": "".join(item.fragments)}
        case _:
            return final


def _blocks(item: _Item, content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    blocks = list(content)
    for place, words in item.words.items():
        while len(blocks) <= place:
            refused = len(blocks) in item.refusals
            blocks.append({"type": "refusal", "refusal": ""} if refused else {"type": "output_text", "text": ""})
        block = blocks[place]
        key = "refusal" if block.get("type") == "refusal" else "text"
        filled = {**block, key: block.get(key) or "".join(words)}
        if not block.get("annotations") and item.annotations.get(place):
            filled["annotations"] = item.annotations[place]
        if not block.get("logprobs") and item.logprobs.get(place):
            filled["logprobs"] = item.logprobs[place]
        blocks[place] = filled
    return blocks
