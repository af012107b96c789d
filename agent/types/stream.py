"""The events of a stream, and the fold that turns them into the response they add up to.

A streamed answer *is* the fold of its events, so streaming and completing cannot disagree. Nothing here knows how a
vendor cuts its stream into pieces, or how bytes arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

from pydantic_core import from_json
from typing_extensions import override

from ._base import FrozenDict, JsonObject, Value, _new, _set, _set_extra, _set_given, _set_private, _set_values
from .parts import Part, RefusalContent, TextContent, ThinkingContent, ToolCall
from .response import AgentResponse
from .usage import Usage

StreamEventType = Literal[
    "text_delta",
    "thinking_delta",
    "refusal_delta",
    "tool_call_start",
    "tool_call_delta",
    "tool_call_end",
    "tool_result",
    "content_part",
    "message_start",
    "message_end",
    "usage",
    "error",
    "restart",
]
WordsType = Literal["text_delta", "thinking_delta", "refusal_delta"]


class StreamEvent(Value, frozen=True):
    """One thing that happened. Build events with the factories; `index` says which block of the answer they touch."""

    __slots__ = ("_payload", "_raw")
    _carried: ClassVar[tuple[str, ...]] = ("_payload", "_raw")

    type: StreamEventType
    text: str | None = None
    tool_call: ToolCall | None = None
    tool_call_delta: JsonObject | None = None
    """`arguments`: the next piece of the arguments' JSON text; `id` and `name` where the vendor repeats them."""
    tool_result: str | None = None
    usage: Usage | None = None
    """Counts so far: each report replaces the one before."""
    error: str | None = None
    index: int | None = None
    part: Part | None = None
    response: AgentResponse | None = None
    """Facts about the answer without its content: who answers (message_start), how it ended (message_end)."""

    if TYPE_CHECKING:
        raw: Any = None
    else:

        def __init__(self, /, *, raw=None, **data):
            __tracebackhide__ = True
            self.__pydantic_validator__.validate_python(data, self_instance=self)
            if raw is not None:
                object.__setattr__(self, "_raw", raw)

        # Tells pydantic that this __init__ only validates, so that nested events are built without calling it.
        __init__.__pydantic_base_init__ = True

        @property
        def raw(self):
            """The vendor's event as it came: outside equality, hash, dumps and pickles."""
            raw = getattr(self, "_raw", None)
            if raw is None and (payload := getattr(self, "_payload", None)) is not None:
                raw = from_json(payload)
                _set(self, "_raw", raw)
            return raw

    @override
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copy = super().model_copy(update=update, deep=deep)
        if update and "raw" in update:
            _set(copy, "_payload", None)  # it would be read again where there shall be none
        return copy

    @classmethod
    def text_delta(cls, text: str, *, index: int | None = None, raw: Any = None) -> Self:
        return cls._words("text_delta", text, index, raw)

    @classmethod
    def thinking_delta(cls, text: str, *, index: int | None = None, raw: Any = None) -> Self:
        return cls._words("thinking_delta", text, index, raw)

    @classmethod
    def refusal_delta(cls, text: str, *, index: int | None = None, raw: Any = None) -> Self:
        return cls._words("refusal_delta", text, index, raw)

    @classmethod
    def _words(cls, kind: WordsType, text: str, index: int | None, raw: Any) -> Self:
        """The commonest of events, without pydantic: it would take three times as long to find nothing wrong."""
        if type(text) is not str or not (index is None or type(index) is int):
            return cls(type=kind, text=text, index=index, raw=raw)  # it knows how to complain
        event = _of_words(cls, kind, text, index)
        if raw is not None:
            _set_raw(event, raw)
        return event

    @classmethod
    def deltas(
        cls, kind: WordsType, texts: Sequence[str], index: int | None, payloads: Sequence[bytes]
    ) -> list[StreamEvent]:
        """An event for each text, for our own code. `raw` is read from the payload, as JSON, if anybody asks."""
        events: list[StreamEvent] = []
        for text, payload in zip(texts, payloads, strict=True):
            event = _of_words(cls, kind, text, index)
            _set_payload(event, payload)
            events.append(event)
        return events

    @classmethod
    def tool_call_start(cls, tool_call: ToolCall, *, index: int | None = None, raw: Any = None) -> Self:
        return cls(type="tool_call_start", tool_call=tool_call, index=index, raw=raw)

    @classmethod
    def tool_call_delta_event(
        cls,
        arguments: str,
        *,
        id: str | None = None,
        name: str | None = None,
        index: int | None = None,
        raw: Any = None,
    ) -> Self:
        given = (("id", id), ("name", name), ("arguments", arguments))
        delta = FrozenDict([(key, value) for key, value in given if value is not None])
        if type(arguments) is not str or not (index is None or type(index) is int):
            return cls(type="tool_call_delta", tool_call_delta=delta, index=index, raw=raw)
        event = cls.trusted(type="tool_call_delta", tool_call_delta=delta, index=index)
        if raw is not None:
            _set(event, "_raw", raw)
        return event

    @classmethod
    def tool_call_end(cls, tool_call: ToolCall, *, index: int | None = None, raw: Any = None) -> Self:
        return cls(type="tool_call_end", tool_call=tool_call, index=index, raw=raw)

    @classmethod
    def tool_result_event(cls, tool_result: str, *, raw: Any = None) -> Self:
        return cls(type="tool_result", tool_result=tool_result, raw=raw)

    @classmethod
    def content_part_event(cls, part: Part, *, index: int | None = None, raw: Any = None) -> Self:
        return cls(type="content_part", part=part, index=index, raw=raw)

    @classmethod
    def message_start(cls, *, response: AgentResponse | None = None, raw: Any = None) -> Self:
        return cls(type="message_start", response=response, raw=raw)

    @classmethod
    def message_end(cls, *, usage: Usage | None = None, response: AgentResponse | None = None, raw: Any = None) -> Self:
        return cls(type="message_end", usage=usage, response=response, raw=raw)

    @classmethod
    def usage_event(cls, usage: Usage, *, raw: Any = None) -> Self:
        return cls(type="usage", usage=usage, raw=raw)

    @classmethod
    def error_event(cls, error: str, *, raw: Any = None) -> Self:
        return cls(type="error", error=error, raw=raw)

    @classmethod
    def restart_event(cls, reason: str | None = None, *, raw: Any = None) -> Self:
        """What came so far is void: the answer begins again, elsewhere. `reason` goes into `error`."""
        return cls(type="restart", error=reason, raw=raw)


_set_raw: Any = StreamEvent.__dict__["_raw"].__set__
_set_payload: Any = StreamEvent.__dict__["_payload"].__set__
_GIVEN = {"type", "text", "index"}
"""The fields that are given for an event of words; all of them share it."""
E = TypeVar("E", bound=StreamEvent)
_nothing_yet = dict.fromkeys(StreamEvent.model_fields).copy


def _of_words(cls: type[E], kind: str, text: str, index: int | None) -> E:
    event = _new(cls)
    values: dict[str, Any] = _nothing_yet()
    values["type"] = kind
    values["text"] = text
    values["index"] = index
    _set_values(event, values)
    _set_given(event, _GIVEN)
    _set_extra(event, None)
    _set_private(event, None)
    return event


class _Block:
    """One content block while it grows: pieces of text, or a finished part."""

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
    """Adds events up. Adding is O(1); text is joined when the response is asked for."""

    __slots__ = ("_at", "_blocks", "_call_by_id", "_envelope", "_growing", "_last", "_last_call", "_spent", "_usage")

    def __init__(self) -> None:
        self._spent: Usage | None = None
        self._begin()

    def _begin(self) -> None:
        self._blocks: list[_Block] = []
        self._at: dict[int, _Block] = {}
        """The latest block of each index."""
        self._growing: dict[tuple[str, int], _Block] = {}
        """Blocks that more pieces may come for, by kind and index."""
        self._call_by_id: dict[str, _Block] = {}
        self._last: _Block | None = None
        self._last_call: _Block | None = None
        self._envelope: dict[str, Any] = {}
        self._usage: Usage | None = None

    def add(self, event: StreamEvent) -> None:
        """Takes the next event."""
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

    def add_all(self, events: Sequence[StreamEvent]) -> int:
        """Takes several events, up to the first that does not fit; how many did."""
        taken = 0
        last = self._last
        try:
            for event in events:
                # Words that go on where the last ones ended: nearly all of what there is.
                if event.type == "text_delta" and last is not None and last.kind is _TEXT and event.index == last.index:
                    last.pieces.append(event.text or "")
                else:
                    self.add(event)
                    last = self._last
                taken += 1
        except ValueError:
            pass
        return taken

    def response(self) -> AgentResponse:
        """What the events add up to. A call whose arguments are no JSON raises ValueError."""
        return self._build([_finish(block) for block in self._in_order()])

    def partial(self) -> AgentResponse:
        """What has arrived so far, without the calls that may be incomplete. Never raises."""
        return self._build([_finish(block) for block in self._in_order() if block.kind != _CALL or block.ended])

    def _build(self, parts: list[Part | None]) -> AgentResponse:
        content = tuple(part for part in parts if part is not None)
        return AgentResponse(content=content, usage=self._total_usage(), **self._envelope)

    def _in_order(self) -> list[_Block]:
        return sorted(self._blocks, key=lambda block: block.position)

    def _block_for(self, kind: str, index: int | None) -> _Block:
        """The block that a piece of text belongs to."""
        last = self._last
        if last is not None and last.kind == kind and (index is None or last.index == index):
            return last
        known = None if index is None else self._growing.get((kind, index))
        if known is None:
            return self._open(kind, index)
        self._last = known
        return known

    def _open(self, kind: str, index: int | None) -> _Block:
        # A block without an index stays behind the one that arrived before it.
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
            raise ValueError(f"a {event.type} event without tool_call")
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
        """By index, by id, or else the latest, unless that one is known to be another."""
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
                raise ValueError("a tool_call_delta event for a call that was never started")
            block = self._open_call(ToolCall(id=delta.get("id") or "", name=delta["name"]), event.index)
        if fragment := delta.get("arguments"):
            block.pieces.append(fragment)

    def _add_part(self, event: StreamEvent) -> None:
        """A finished part takes the place of the block at its index, or comes last."""
        if event.part is None:
            raise ValueError("a content_part event without part")
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
        """Everything said so far is void, but it was paid for."""
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
                self._learn(name, getattr(response, name))
            if response.raw is not None:
                self._envelope["raw"] = response.raw
        if event.usage is not None:
            self._usage = event.usage

    def _learn(self, name: str, value: Any) -> None:
        if name == "content" or value is None or value == "" or value == ():
            return
        if name == "usage":
            self._usage = value
        elif name == "warnings":
            self._envelope["warnings"] = tuple(dict.fromkeys((*self._envelope.get("warnings", ()), *value)))
        else:
            self._envelope[name] = value


def fold(events: Iterable[StreamEvent]) -> AgentResponse:
    """The response that a complete stream of events adds up to."""
    folding = Fold()
    for event in events:
        folding.add(event)
    return folding.response()


def _finish(block: _Block) -> Part | None:
    """The part a block has become; None if nothing was ever said in it."""
    if block.kind == _FINISHED or block.ended:
        return block.part
    text = "".join(block.pieces)
    if isinstance(block.part, ToolCall):
        return _with_arguments(block.part, text)
    if not text:
        return None
    if block.kind == _THINKING:
        return ThinkingContent(thinking=text)
    if block.kind == _REFUSAL:
        return RefusalContent(refusal=text)
    return TextContent(text=text)


def _with_arguments(call: ToolCall, text: str) -> ToolCall:
    if not text.strip():
        return call
    try:
        arguments = from_json(text, allow_inf_nan=False)
    except ValueError:
        raise ValueError(f"the arguments of the call to {call.name} are not valid JSON") from None
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments of the call to {call.name} are not a JSON object")
    return call.model_copy(update={"arguments": arguments})
