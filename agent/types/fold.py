"""Fold stream events into a response, so that streaming and completing return the same response."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic_core import from_json

from ._base import is_finite
from .parts import Part, RefusalContent, TextContent, ThinkingContent, ToolCall
from .response import AgentResponse
from .stream import StreamEvent
from .usage import Usage


class _Block:
    """A content block under construction: text fragments, or a complete part."""

    __slots__ = ("ended", "index", "kind", "part", "pieces", "position")

    def __init__(self, kind: str, index: int | None, position: int) -> None:
        self.kind = kind
        self.index = index
        self.position = position
        self.pieces: list[str] = []
        self.part: Part | None = None
        self.ended = False


_TEXT = "text"
_THINKING = "thinking"
_REFUSAL = "refusal"
_CALL = "tool call"
_FINISHED = "part"


class Fold:
    """Accumulates stream events. `add` is O(1); text is joined when the response is built."""

    __slots__ = ("_at", "_blocks", "_call_by_id", "_envelope", "_growing", "_last", "_last_call", "_spent", "_usage")

    def __init__(self) -> None:
        self._spent: Usage | None = None
        self._begin()

    def _begin(self) -> None:
        self._blocks: list[_Block] = []
        self._at: dict[int, _Block] = {}
        """Latest block of each index."""
        self._growing: dict[tuple[str, int], _Block] = {}
        """Blocks that can still receive fragments, by kind and index."""
        self._call_by_id: dict[str, _Block] = {}
        self._last: _Block | None = None
        self._last_call: _Block | None = None
        self._envelope: dict[str, Any] = {}
        self._usage: Usage | None = None

    def add(self, event: StreamEvent) -> None:
        """Add the next event."""
        kind = event.type
        if kind == "text_delta":
            last, index = self._last, event.index
            if last is None or last.kind is not _TEXT or (index is not None and last.index != index):
                last = self._block_for(_TEXT, index)
            last.pieces.append(event.text or "")
        elif kind == "thinking_delta":
            self._block_for(_THINKING, event.index).pieces.append(event.text or "")
        elif kind == "refusal_delta":
            self._block_for(_REFUSAL, event.index).pieces.append(event.text or "")
        elif kind == "tool_call_delta":
            self._add_fragment(event)
        elif kind == "tool_call_start" or kind == "tool_call_end":
            self._add_call(event, ended=kind == "tool_call_end")
        elif kind == "content_part":
            self._add_part(event)
        elif kind == "restart":
            self._restart()
        else:
            self._merge(event)

    def add_all(self, events: Iterable[StreamEvent]) -> int:
        """Add events up to the first invalid one; return the number added."""
        added = 0
        try:
            for event in events:
                self.add(event)
                added += 1
        except ValueError:
            pass
        return added

    def response(self) -> AgentResponse:
        """Build the response. Raises ValueError if a tool call has invalid arguments."""
        return self._build([_finish(block) for block in self._sort_blocks()])

    def partial(self, *, open_calls: bool = False) -> AgentResponse:
        """Build the response received so far. Never raises.

        Args:
            open_calls: Whether to include unfinished tool calls, with the arguments so far as `partial_json`.
        """
        blocks = self._sort_blocks()
        return self._build(
            [
                _open_call(block) if block.kind == _CALL and not block.ended else _finish(block)
                for block in blocks
                if open_calls or block.kind != _CALL or block.ended
            ]
        )

    def _build(self, parts: list[Part | None]) -> AgentResponse:
        content = tuple(part for part in parts if part is not None)
        return AgentResponse(content=content, usage=self._total_usage(), **self._envelope)

    def _sort_blocks(self) -> list[_Block]:
        return sorted(self._blocks, key=lambda block: block.position)

    def _block_for(self, kind: str, index: int | None) -> _Block:
        """Return the block for a text fragment."""
        last = self._last
        if last is not None and last.kind == kind and (index is None or last.index == index):
            return last
        known = None if index is None else self._growing.get((kind, index))
        if known is None:
            return self._open(kind, index)
        self._last = known
        return known

    def _open(self, kind: str, index: int | None) -> _Block:
        # A block without an index is placed after the block that arrived before it.
        position = index if index is not None else self._last.position if self._last is not None else -1
        block = _Block(kind, index, position)
        self._blocks.append(block)
        self._last = block
        if index is not None:
            self._at[index] = block
            self._growing[kind, index] = block
        return block

    def _add_call(self, event: StreamEvent, *, ended: bool) -> None:
        call = event.tool_call
        if call is None:
            raise ValueError(f"{event.type} event without tool_call")
        block = self._find_call(event.index, call.id) if ended else None
        if block is None or (block.ended and isinstance(block.part, ToolCall) and block.part.id != call.id):
            block = self._open_call(call, event.index)
        block.part = call
        block.ended = ended
        self._last = block

    def _open_call(self, call: ToolCall, index: int | None) -> _Block:
        block = self._open(_CALL, index)
        block.part = call
        self._last_call = block
        if call.id:
            self._call_by_id[call.id] = block
        return block

    def _find_call(self, index: int | None, id: str | None) -> _Block | None:
        """Find a call by index, then by id, else the latest call unless its id differs."""
        if index is not None and (block := self._growing.get((_CALL, index))) is not None:
            return block
        if id and (block := self._call_by_id.get(id)) is not None:
            return block
        last = self._last_call
        if last is None or last.ended or (index is not None and last.index is not None):
            return None
        return None if id and isinstance(last.part, ToolCall) and last.part.id else last

    def _add_fragment(self, event: StreamEvent) -> None:
        delta = event.tool_call_delta or {}
        block = self._find_call(event.index, delta.get("id"))
        if block is None:
            if not delta.get("name"):
                raise ValueError("tool_call_delta event for an unknown tool call")
            block = self._open_call(ToolCall(id=delta.get("id") or "", name=delta["name"]), event.index)
        if fragment := delta.get("arguments"):
            block.pieces.append(fragment)

    def _add_part(self, event: StreamEvent) -> None:
        """Replace the block at the part's index, or append the part."""
        if event.part is None:
            raise ValueError("content_part event without part")
        block = None if event.index is None else self._at.get(event.index)
        if block is None:
            block = self._open(_FINISHED, event.index)
        elif block.index is not None:
            self._growing.pop((block.kind, block.index), None)
        if block is self._last_call:
            self._last_call = None
        block.kind = _FINISHED
        block.part = event.part
        self._last = block

    def _restart(self) -> None:
        """Discard the content, but keep its usage: the vendor bills it."""
        self._spent = self._total_usage()
        self._begin()

    def _total_usage(self) -> Usage | None:
        if self._spent is None or self._usage is None:
            return self._usage or self._spent
        return self._spent + self._usage

    def _merge(self, event: StreamEvent) -> None:
        response = event.response
        if response is not None:
            for name in (*response.model_fields_set, "cost_estimate", "cost_source"):
                self._set_metadata(name, getattr(response, name))
            if response.raw is not None:
                self._envelope["raw"] = response.raw
        if event.usage is not None:
            self._usage = event.usage

    def _set_metadata(self, name: str, value: Any) -> None:
        if name == "output" and value is not None:
            self._envelope["output"] = value  # an empty object is an output
        elif name == "content" or value is None or value in ("", (), {}):
            return
        elif name == "usage":
            self._usage = value
        elif name == "warnings":
            self._envelope["warnings"] = tuple(dict.fromkeys((*self._envelope.get("warnings", ()), *value)))
        elif name == "vendor":
            self._envelope["vendor"] = {**self._envelope.get("vendor", {}), **value}
        else:
            self._envelope[name] = value


def fold(events: Iterable[StreamEvent]) -> AgentResponse:
    """Build the response from a complete stream of events."""
    state = Fold()
    for event in events:
        state.add(event)
    return state.response()


def _finish(block: _Block) -> Part | None:
    """Return the part of a block; None if the block is empty."""
    if block.kind == _FINISHED or block.ended:
        return block.part
    text = "".join(block.pieces)
    if isinstance(block.part, ToolCall):
        return _parse_arguments(block.part, text)
    if not text:
        return None
    if block.kind == _THINKING:
        return ThinkingContent(thinking=text)
    if block.kind == _REFUSAL:
        return RefusalContent(refusal=text)
    return TextContent(text=text)


def _open_call(block: _Block) -> Part | None:
    call = block.part
    return call.copy_with(partial_json="".join(block.pieces)) if isinstance(call, ToolCall) else None


def _parse_arguments(call: ToolCall, text: str) -> ToolCall:
    if not text.strip():
        return call
    try:
        arguments = from_json(text, allow_inf_nan=False)
    except ValueError:
        raise ValueError(f"arguments of the call to {call.name} are not valid JSON") from None
    if not isinstance(arguments, dict) or not is_finite(arguments):
        raise ValueError(f"arguments of the call to {call.name} are not a JSON object")
    return call.model_copy(update={"arguments": arguments})
