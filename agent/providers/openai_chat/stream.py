"""Stream decoder of Chat Completions.

Calls end only at the terminal event, so no call of an incomplete stream is executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json
from typing_extensions import override

from ...engine.wire import parse_json
from ...types import AgentRequest, AgentResponse, StreamEvent, TextContent, ToolCall
from ..codec import DecoderBase
from ..failures import read_error_details, request_id
from .dialect import OPAQUE_KEYS, Dialect
from .response import (
    CALL_KEYS,
    READ_CHOICE_KEYS,
    READ_KEYS,
    READ_MESSAGE_KEYS,
    VENDOR_KEYS,
    MessageReader,
    function_in,
    generate_call_id,
    is_custom,
    keep_others,
    read_citations,
    read_finish_reason,
    read_logprobs,
    read_metadata,
    read_reasoning,
    read_usage,
    split_content,
    summary_data,
)

_GROQ = "x_groq"
"""Groq's key for errors and usage in chunks."""

_TEXT_KEYS = frozenset(("content", "role"))
"""Keys of a delta that need no further decoding."""

# Indexes of blocks, in the order of a complete response. Other parts follow the last call.
_THINKING, _TEXT, _REFUSAL, _FIRST_CALL = 0, 1, 2, 3


@dataclass(slots=True)
class _PartialCall:
    """A call whose arguments are still arriving."""

    number: Any
    """The vendor's index, which some vendors repeat or leave out."""
    position: int
    id: str = ""
    unique_id: str = ""
    """The id in the response, which differs if several calls have the same."""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    opaque: dict[str, Any] = field(default_factory=dict)
    started: bool = False


@dataclass(slots=True)
class _Collected:
    """Everything besides text and calls, collected until the end of the stream."""

    opaque: dict[str, Any] = field(default_factory=dict)
    details: list[dict[str, Any]] = field(default_factory=list)
    summary: list[list[dict[str, Any]]] = field(default_factory=list)
    """Pieces of each part of the reasoning summary, which may be signed."""
    thoughts: list[dict[str, Any]] = field(default_factory=list)
    """Thinking blocks of gateways, which may be signed."""
    sources: dict[str, Any] = field(default_factory=dict)
    """Sources next to the message; each chunk repeats them."""
    annotations: list[dict[str, Any]] = field(default_factory=list)
    images: list[dict[str, Any]] = field(default_factory=list)
    blocks: list[dict[str, Any]] = field(default_factory=list)
    runs: dict[str, list[Any]] = field(default_factory=dict)
    audio: dict[str, Any] = field(default_factory=dict)
    audio_pieces: dict[str, list[str]] = field(default_factory=dict)
    """Pieces of the audio's data and transcript."""
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    seen: set[str] = field(default_factory=lambda: {*READ_KEYS})
    last: dict[str, Any] = field(default_factory=dict)
    """Keys of the chunks so far, and the last chunk."""
    head: dict[str, Any] = field(default_factory=dict)
    choice: dict[str, Any] = field(default_factory=dict)
    message: dict[str, Any] = field(default_factory=dict)
    """Data of chunks, choices and deltas without a field of its own; later values replace earlier ones."""


class ChatDecoder(DecoderBase):
    """Decoder of one stream of chat completion chunks."""

    def __init__(
        self, dialect: Dialect, headers: Mapping[str, str], request: AgentRequest, secrets: tuple[str, ...]
    ) -> None:
        super().__init__(dialect.name, headers, request, secrets)
        self._dialect = dialect
        self._started = False
        self._model = ""
        self._id = ""
        self._raw_finish_reason: str | None = None
        self._finish_reason: str | None = None
        """The finish reason, under any key."""
        self._usage: dict[str, Any] = {}
        """The latest usage; some vendors report it with every chunk."""
        self._calls: list[_PartialCall] = []
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._refused = False
        self._collected = _Collected()
        self._reader = MessageReader(dialect, request, "")
        self._choices: dict[int, ChatDecoder] = {}
        """Decoders of the other choices, by index."""

    @override
    def _decode_end(self, events: list[StreamEvent]) -> None:
        """End the stream without [DONE], which many vendors leave out, if all choices have a finish reason."""
        if self._sse.pending:
            payloads = self._sse.feed(b"\n\n")  # the last event may lack its blank line
            if not payloads:
                return
            for payload in payloads:
                self._decode_event(payload, events)
        decoders = (self, *self._choices.values())
        if not self.done and self.failure is None and all(each._raw_finish_reason is not None for each in decoders):
            self._finish(events)

    @override
    def _decode_event(self, payload: bytes, events: list[StreamEvent]) -> None:
        if self.done:
            return
        if payload == b"[DONE]":
            if self.failure is None:
                self._finish(events)
            return
        chunk = parse_json(payload)
        if self.failure is not None:
            self._update_usage(chunk)  # some vendors report the usage of a failed response after the error
        elif error := _find_error(chunk):
            self._report_error(error)
            self._update_usage(error)
        else:
            self._decode_chunk(chunk, events)

    def _decode_chunk(self, chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        choices = chunk.get("choices")
        if choices:
            if not self._started:  # the first chunk may have no choices, no model and no id
                self._open(chunk)
            for choice in choices:
                if (index := choice.get("index")) and isinstance(index, int):
                    self._decode_other(index, choice, chunk)
                else:
                    self._decode_choice(choice, chunk, events)
            for key in ("search_results", "citations"):
                if chunk.get(key):
                    self._collected.sources[key] = chunk[key]
        elif choices is None and "usage" not in chunk and chunk.get("object") != "chat.completion.chunk":
            if read_error_details(chunk) is None:
                raise ValueError("it is not a chat completion chunk")
            self._report_error(chunk)
            return
        self._collected.last = chunk
        if not self._collected.seen.issuperset(chunk):  # other chunks repeat the values
            keep_others(self._collected.head, chunk, READ_KEYS)
            self._collected.seen.update(chunk)
        self._update_usage(chunk)

    def _decode_other(self, index: int, choice: dict[str, Any], chunk: dict[str, Any]) -> None:
        """Decode an alternative with a decoder of its own, whose events are not emitted."""
        other = self._choices.get(index)
        if other is None:
            other = self._choices[index] = ChatDecoder(self._dialect, self._headers, self._request, self._secrets)
            other._id, other._model = self._id, self._model
        events: list[StreamEvent] = []
        other._decode_choice(choice, chunk, events)
        other._emit(events)

    def _open(self, chunk: dict[str, Any]) -> None:
        self._started = True
        self._model = chunk.get("model") or self._request.model or ""
        self._id = chunk.get("id") or ""
        if not self._request.model:
            self._reader = MessageReader(self._dialect, self._request, self._model)
        response = AgentResponse(
            provider=self._dialect.name,
            model=self._model,
            id=self._id or None,
            request_id=request_id(self._headers),
        )
        self._start(response, chunk)

    @override
    def partial(self) -> AgentResponse:
        if not self.done and (usage := read_usage(self._usage)) is not None:
            self._fold.add(StreamEvent.usage_event(usage))
        return super().partial()

    def _update_usage(self, chunk: dict[str, Any]) -> None:
        usage = chunk.get("usage")
        if usage and isinstance(usage, dict):
            self._usage = usage

    def _decode_choice(self, choice: dict[str, Any], chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        if choice.get("error"):
            self._report_error(choice)
            return
        if delta := choice.get("delta"):
            self._decode_delta(delta, chunk, events)
        if choice.get("logprobs"):
            self._collected.logprobs += read_logprobs(choice["logprobs"])
        keep_others(self._collected.choice, choice, READ_CHOICE_KEYS)
        if choice.get("usage"):
            self._update_usage(choice)
        if reason := choice.get("finish_reason"):
            self._raw_finish_reason = reason
            self._finish_reason = read_finish_reason(choice)
            if not chunk.get("usage") and isinstance(groq := chunk.get(_GROQ), dict):
                self._update_usage(groq)

    def _decode_delta(self, delta: dict[str, Any], chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        content = delta.get("content")
        if isinstance(content, str):
            if content:
                self._add_text(content, chunk, events)
            content = None
        if not _TEXT_KEYS.issuperset(delta):
            self._decode_extras(delta, chunk, events)
        if content is not None:
            self._decode_blocks(content, chunk, events)

    def _add_text(self, text: str, chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        self._text.append(text)
        events.append(StreamEvent.text_delta(text, index=_TEXT, raw=chunk))

    def _decode_blocks(self, content: Any, chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        text, thinking, summary, others = split_content(content)
        self._add_summary(summary)
        if thinking:
            self._add_thinking(thinking, chunk, events)
        if text:
            self._add_text(text, chunk, events)
        self._collected.blocks += others

    def _decode_extras(self, delta: dict[str, Any], chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        """Decode the keys of a delta besides its content."""
        collected = self._collected
        if thinking := read_reasoning(delta):
            self._add_thinking(thinking, chunk, events)
        if delta.get("refusal"):
            self._refused = True
            events.append(StreamEvent.refusal_delta(delta["refusal"], index=_REFUSAL, raw=chunk))
        for detail in delta.get("reasoning_details") or ():
            if isinstance(detail, dict):
                self._merge_detail(detail)
        keep_others(collected.message, delta, READ_MESSAGE_KEYS)
        for block in delta.get("thinking_blocks") or ():
            if isinstance(block, dict):
                self._merge_thought(block)
        for key in OPAQUE_KEYS:
            if key not in ("reasoning_details", "thinking_blocks") and delta.get(key):
                collected.opaque[key] = delta[key]
        collected.annotations += delta.get("annotations") or ()
        collected.images += delta.get("images") or ()
        for key in VENDOR_KEYS:
            if delta.get(key):
                _merge_runs(collected.runs.setdefault(key, []), delta[key])
        if delta.get("audio"):
            self._add_audio(delta["audio"], chunk, events)
        for call in delta.get("tool_calls") or ():
            self._decode_call(call, chunk, events)
        legacy = delta.get("function_call")
        if legacy and not delta.get("tool_calls") and (legacy.get("name") or self._calls):
            self._decode_call({"index": 0, "function": legacy}, chunk, events)

    def _add_thinking(self, text: str, chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        self._thinking.append(text)
        events.append(StreamEvent.thinking_delta(text, index=_THINKING, raw=chunk))

    def _merge_detail(self, detail: dict[str, Any]) -> None:
        """Merge a delta into the detail with the same type, index and id, which is sent back."""
        for merged in self._collected.details:
            if (
                merged.get("type") == detail.get("type")
                and merged.get("index") == detail.get("index")
                and (merged.get("id") is None or detail.get("id") in (None, merged["id"]))
            ):
                for key, value in detail.items():
                    is_text = isinstance(merged.get(key), str) and isinstance(value, str)
                    if is_text and key in ("text", "summary", "data"):
                        merged[key] += value
                    elif value is not None:
                        merged[key] = value
                return
        self._collected.details.append(dict(detail))

    def _merge_thought(self, block: dict[str, Any]) -> None:
        """Merge a delta into the thinking block before it, which its signature ends."""
        last = self._collected.thoughts[-1] if self._collected.thoughts else {}
        if block.get("type") == last.get("type") == "thinking" and not last.get("signature"):
            last["thinking"] = (last.get("thinking") or "") + (block.get("thinking") or "")
            last.update({key: value for key, value in block.items() if key != "thinking" and value is not None})
        else:
            self._collected.thoughts.append(dict(block))

    def _add_summary(self, summary: list[dict[str, Any]]) -> None:
        """Add deltas of a reasoning summary. A signature ends its part."""
        parts = self._collected.summary
        for piece in summary:
            if parts and not parts[-1][-1].get("signature"):
                parts[-1].append(piece)
            else:
                parts.append([piece])

    def _add_audio(self, piece: dict[str, Any], chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        """Add a delta of base64 audio and its transcript."""
        for key, value in piece.items():
            if key not in ("data", "transcript"):
                self._collected.audio[key] = value
            elif value:
                self._collected.audio_pieces.setdefault(key, []).append(value)
        if piece.get("transcript"):
            self._add_text(piece["transcript"], chunk, events)

    def _decode_call(self, piece: dict[str, Any], chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        function = function_in(piece)
        call = self._call_for(piece, function)
        call.id = call.id or piece.get("id") or ""
        if (name := function.get("name")) and name != call.name:  # some vendors repeat the name, others split it
            call.name += name
        call.opaque.update({key: piece[key] for key in CALL_KEYS if piece.get(key)})
        if is_custom(piece):
            call.opaque["type"] = "custom"
        if arguments := function.get("arguments"):
            call.arguments.append(arguments if isinstance(arguments, str) else to_json(arguments).decode())
        if call.started:
            if arguments:
                self._add_arguments(call, call.arguments[-1], chunk, events)
        elif call.name and (call.arguments or self._reader.is_whole_name(call.name)):
            self._start_call(call, chunk, events)

    def _start_call(self, call: _PartialCall, chunk: dict[str, Any] | None, events: list[StreamEvent]) -> None:
        """Report a call whose name is complete, with the arguments so far."""
        call.started = True
        call.unique_id = self._reader.unique_id(str(call.id or generate_call_id(self._id, call.position)))
        started = ToolCall(id=call.unique_id, name=self._reader.tools.original_name(call.name))
        events.append(StreamEvent.tool_call_start(started, index=_FIRST_CALL + call.position, raw=chunk))
        if call.arguments:  # they may come before the name
            self._add_arguments(call, "".join(call.arguments), chunk, events)

    def _add_arguments(
        self, call: _PartialCall, text: str, chunk: dict[str, Any] | None, events: list[StreamEvent]
    ) -> None:
        name, index = self._reader.tools.original_name(call.name), _FIRST_CALL + call.position
        events.append(StreamEvent.tool_call_delta_event(text, id=call.unique_id, name=name, index=index, raw=chunk))

    def _call_for(self, piece: dict[str, Any], function: Mapping[str, Any]) -> _PartialCall:
        """Find the call of a delta by index. A new id with a name starts a new call, whatever its index is."""
        number, id = piece.get("index"), piece.get("id")
        if number is None:
            match = next((call for call in self._calls if id and call.id == id), None)
            if match is None and not id and not function.get("name") and self._calls:
                match = self._calls[-1]
        else:
            match = next((call for call in reversed(self._calls) if call.number == number), None)
            if match is not None and id and match.id and id != match.id and function.get("name"):
                match = None
        if match is None:
            match = _PartialCall(number, len(self._calls))
            self._calls.append(match)
        return match

    def _finish(self, events: list[StreamEvent]) -> None:
        """End all blocks and the message."""
        if self._raw_finish_reason is None and (self._dialect.finish_reasons or not self._usage):
            self._fail("the stream ended without a finish reason")
            return
        collected, reader = self._collected, self._reader
        merged = {"reasoning_details": collected.details, "thinking_blocks": collected.thoughts}
        details = {key: value for key, value in merged.items() if value}
        opaque = {**details, **collected.opaque, **summary_data([_join_pieces(pieces) for pieces in collected.summary])}
        if opaque or self._thinking:
            part = reader.build_thinking("".join(self._thinking), opaque)
            events.append(StreamEvent.content_part_event(part, index=_THINKING))
        if self._text and (citations := read_citations(collected.annotations, collected.sources)):
            events.append(
                StreamEvent.content_part_event(TextContent(text="".join(self._text), citations=citations), index=_TEXT)
            )
        for call in self._calls:
            if not call.started:
                self._start_call(call, None, events)
            finished = reader.build_call(call.unique_id, call.name, "".join(call.arguments), call.opaque)
            events.append(StreamEvent.tool_call_end(finished, index=_FIRST_CALL + call.position))
        audio = {key: "".join(pieces) for key, pieces in collected.audio_pieces.items()}
        others = reader.build_others(
            {**collected.audio, **audio}, collected.images, collected.annotations, collected.runs, collected.blocks
        )
        for index, other in enumerate(others, _FIRST_CALL + len(self._calls)):
            events.append(StreamEvent.content_part_event(other, index=index))
        self.done = True
        usage = read_usage(self._usage)
        keep_others(collected.head, collected.last, READ_KEYS)
        response = AgentResponse(
            provider=self._dialect.name,
            model=self._model,
            usage=usage,
            stop_reason=reader.stop_reason(self._finish_reason, called=bool(self._calls), refused=self._refused),
            raw_stop_reason=self._raw_finish_reason,
            logprobs=collected.logprobs,
            choices=[self._choices[index].end_choice() for index in sorted(self._choices)],
            warnings=tuple(reader.warnings),
            **read_metadata({**collected.head, "usage": self._usage}, collected.choice, collected.message),
        )
        events.append(StreamEvent.message_end(usage=usage, response=response))

    def end_choice(self) -> AgentResponse:
        """End the decoding of an alternative, and return it as far as it came."""
        events: list[StreamEvent] = []
        self._finish(events)
        self._emit(events)
        return self.response() if self.done else self.partial()


def _find_error(chunk: dict[str, Any]) -> dict[str, Any] | None:
    groq = chunk.get(_GROQ)
    if isinstance(groq, dict) and groq.get("error"):
        return groq
    return chunk if chunk.get("error") else None


def _join_pieces(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    merged = {key: value for piece in pieces for key, value in piece.items()}
    return {**merged, "text": "".join(piece.get("text") or "" for piece in pieces)}


def _merge_runs(merged: list[Any], runs: list[Any]) -> None:
    """Merge reports of server-side tools, which are sent at the start and at the end with the same index."""
    positions = {run["index"]: at for at, run in enumerate(merged) if isinstance(run, dict) and "index" in run}
    for run in runs:
        position = positions.get(run.get("index")) if isinstance(run, dict) else None
        if position is None:
            merged.append(run)
        else:
            merged[position] = {**merged[position], **{key: value for key, value in run.items() if value is not None}}
