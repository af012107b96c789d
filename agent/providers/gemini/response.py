"""Decoding of responses, chunk by chunk. A whole response is one chunk or an array of chunks.

Gemini splits text into parts arbitrarily, so consecutive parts are joined. A part with a signature stays separate,
because a signature is only valid on its part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from pydantic_core import to_json

from ...schemas import compile_schema
from ...types import (
    AgentResponse,
    AudioContent,
    FinishReason,
    ImageContent,
    Origin,
    Part,
    StreamEvent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolSpec,
    Usage,
    VendorContent,
)
from ..encoding import read_arguments, tool_parameters
from .citations import read_citations
from .contents import METADATA_KIND
from .fields import generate_id
from .models import SCHEMA_DIALECT_NAME


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Read `usageMetadata`. The counts exclude thoughts and server-side tools, which are added."""
    thoughts, tools = _count(usage, "thoughtsTokenCount"), _count(usage, "toolUsePromptTokenCount")
    total = _count(usage, "totalTokenCount")
    counted = Usage.from_counts(
        _count(usage, "promptTokenCount"),
        _count(usage, "candidatesTokenCount") + thoughts,
        cache_read=_count(usage, "cachedContentTokenCount"),
        reasoning=thoughts,
        total=None if tools else total,
        details={
            "input_tool_tokens": tools,
            "input_audio_tokens": _modality_count(usage.get("promptTokensDetails"), "AUDIO"),
            "cache_audio_read_tokens": _modality_count(usage.get("cacheTokensDetails"), "AUDIO"),
            "output_audio_tokens": _modality_count(usage.get("candidatesTokensDetails"), "AUDIO"),
            "output_image_tokens": _modality_count(usage.get("candidatesTokensDetails"), "IMAGE"),
        },
    )
    return counted.model_copy(update={"total_tokens": max(total, counted.total_tokens)}) if tools else counted


def _count(usage: Mapping[str, Any], key: str) -> int:
    """Return a count, or 0 if it is malformed: a response that was paid for must not fail."""
    value = usage.get(key)
    return int(value) if isinstance(value, int | float) and 0 <= value < math.inf else 0


def _modality_count(entries: Any, modality: str) -> int:
    if not isinstance(entries, list):
        return 0
    return sum(
        _count(entry, "tokenCount")
        for entry in entries
        if isinstance(entry, dict) and entry.get("modality") == modality
    )


_CHUNK_KEYS = frozenset(("promptFeedback", "usageMetadata", "modelVersion", "responseId"))
"""A chunk without candidates has at least one of these keys."""
_TEXT_KEYS = frozenset(("content", "index", "finishReason"))
"""Keys of a candidate without metadata and log probabilities."""
_METADATA_KEYS = ("groundingMetadata", "citationMetadata", "urlContextMetadata", "continuationToken")
_SHARED_KEYS = frozenset(("thought", "thoughtSignature"))
"""Keys that all kinds of parts may have."""
_PATH_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\[\"((?:[^\"\\]|\\.)*)\"\]")

_UNSPECIFIED = "FINISH_REASON_UNSPECIFIED"
"""Some servers send it before the end."""
_FILTERED: FinishReason = "content_filter"
_FINISH_REASONS: dict[str, FinishReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": _FILTERED,
    "RECITATION": _FILTERED,
    "BLOCKLIST": _FILTERED,
    "PROHIBITED_CONTENT": _FILTERED,
    "SPII": _FILTERED,
    "MODEL_ARMOR": _FILTERED,
    "IMAGE_SAFETY": _FILTERED,
    "IMAGE_PROHIBITED_CONTENT": _FILTERED,
    "IMAGE_RECITATION": _FILTERED,
    "CONTINUATION": "pause",
    "MALFORMED_FUNCTION_CALL": "error",
    "MALFORMED_RESPONSE": "error",
    "UNEXPECTED_TOOL_CALL": "error",
    "TOO_MANY_TOOL_CALLS": "error",
}
_CALL_REASONS = frozenset(("STOP", "UNEXPECTED_TOOL_CALL", "FUNCTION_CALL"))
"""Finish reasons of responses with calls."""

BlockKind = Literal["text", "thinking", "call", "other"]


@dataclass(slots=True)
class _Block:
    """One part of the response, complete or not."""

    kind: BlockKind
    index: int
    pieces: list[str] = field(default_factory=list)
    signature: str | None = None
    ended: bool = False
    part: Part | None = None
    """The complete part. Text and thinking only have one if it differs from their pieces."""


@dataclass(slots=True)
class _CallBlock(_Block):
    """A call. Its arguments may arrive in several chunks."""

    id: str = ""
    name: str = ""
    tool: ToolSpec | None = None
    """The tool of the request."""
    arguments: dict[str, Any] = field(default_factory=dict)
    started: bool = False
    """Whether the start event was sent."""


class ResponseReader:
    """Decodes the chunks of one response into events and content.

    Whole responses have no events for text and calls.
    """

    def __init__(self, origin: Origin, tools: Mapping[str, ToolSpec], *, streaming: bool) -> None:
        self._origin = origin
        self._tools = tools
        self._streaming = streaming
        self._blocks: list[_Block] = []
        self._last: _Block | None = None
        self.model: str = ""
        self.id: str = ""
        self._finish_reason: str | None = None
        self._block_reason: str | None = None
        """Reason for which the vendor rejected the prompt."""
        self._explanation: str | None = None
        """The vendor's message about the finish reason or block reason."""
        self._usage: dict[str, Any] | None = None
        self._metadata: dict[str, Any] = {}
        self._logprobs: list[dict[str, Any]] = []
        self._calls = 0

    @property
    def complete(self) -> bool:
        """Whether the response has a finish reason or a block reason."""
        return self._finish_reason is not None or self._block_reason is not None

    @property
    def usage(self) -> Usage | None:
        return None if self._usage is None else read_usage(self._usage)

    @property
    def content(self) -> list[Part]:
        return [self._part(block) for block in self._blocks]

    def read_chunk(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        """Decode the next chunk. Raises SHAPE_ERRORS for malformed data."""
        events: list[StreamEvent] = []
        candidates = chunk.get("candidates")
        if not candidates and _CHUNK_KEYS.isdisjoint(chunk):
            raise ValueError("it is not a chunk of a response")
        self.model = chunk.get("modelVersion") or self.model
        self.id = chunk.get("responseId") or self.id
        if feedback := chunk.get("promptFeedback"):
            self._read_feedback(feedback)
        if isinstance(usage := chunk.get("usageMetadata"), dict):
            # A later report replaces counts, but may lack some.
            if self._usage is None:
                self._usage = {}
            self._usage.update(usage)
        for candidate in candidates or ():
            if not candidate.get("index"):  # only the first candidate is used
                self._read_candidate(candidate, chunk, events)
                break
        return events

    def finish(self) -> list[StreamEvent]:
        """End the response, after its last chunk."""
        events: list[StreamEvent] = []
        self._end_last(None, events)
        texts = [block for block in self._blocks if block.kind == "text"]
        cited = read_citations(self._metadata, ["".join(block.pieces) for block in texts])
        metadata_block = next((block for block in reversed(texts) if any(block.pieces)), None)
        for block, citations in zip(texts, cited, strict=True):
            metadata = self._metadata if block is metadata_block and self._metadata else None
            if citations or metadata:
                block.part = TextContent(
                    text="".join(block.pieces),
                    signature=block.signature,
                    citations=citations,
                    provider_data=metadata,
                    origin=self._origin,
                )
                events.append(StreamEvent.content_part_event(block.part, index=block.index))
        if self._metadata and metadata_block is None:
            part = VendorContent(kind=METADATA_KIND, provider_data=self._metadata, origin=self._origin)
            self._add_part(part, None, events)
        return events

    def response(self, *, content: Sequence[Part] = (), model: str = "", **facts: Any) -> AgentResponse:
        """Return the response with additional fields. Streams pass no content."""
        return AgentResponse(
            content=content,
            model=self.model or model,
            id=self.id or None,
            usage=self.usage,
            stop_reason=self._stop_reason(),
            raw_stop_reason=self._finish_reason,
            warnings=self._warnings(),
            logprobs=self._logprobs,
            **facts,
        )

    # Chunks.

    def _read_feedback(self, feedback: Mapping[str, Any]) -> None:
        if feedback.get("blockReason"):
            self._block_reason = feedback["blockReason"]
            self._explanation = feedback.get("blockReasonMessage")

    def _read_candidate(
        self, candidate: Mapping[str, Any], chunk: Mapping[str, Any], events: list[StreamEvent]
    ) -> None:
        if content := candidate.get("content"):
            for part in content.get("parts") or ():
                self._read_part(part, chunk, events)
        if not _TEXT_KEYS.issuperset(candidate):
            self._read_metadata(candidate)
        if (reason := candidate.get("finishReason")) and reason != _UNSPECIFIED:
            self._finish_reason = reason
            self._explanation = candidate.get("finishMessage") or self._explanation

    def _read_metadata(self, candidate: Mapping[str, Any]) -> None:
        for key in _METADATA_KEYS:
            if value := candidate.get(key):
                previous = self._metadata.get(key)
                merges = isinstance(previous, dict) and isinstance(value, dict)
                self._metadata[key] = {**(previous or {}), **value} if merges else value
        if result := candidate.get("logprobsResult"):
            self._logprobs += _read_logprobs(result)

    # Parts.

    def _read_part(self, part: Mapping[str, Any], chunk: Mapping[str, Any], events: list[StreamEvent]) -> None:
        text = part.get("text")
        if text is not None:
            self._read_text(text, part, chunk, events)
        elif (call := part.get("functionCall")) is not None:
            self._read_call(call, part.get("thoughtSignature"), chunk, events)
        elif (kind := _find_kind(part)) is not None:
            self._end_last(chunk, events)
            self._add_part(self._read_other(part, kind), chunk, events)
        else:
            self._read_text("", part, chunk, events)  # it may have a signature

    def _read_text(
        self, text: str, part: Mapping[str, Any], chunk: Mapping[str, Any], events: list[StreamEvent]
    ) -> None:
        signature = part.get("thoughtSignature")
        if not text and not signature:
            return
        kind: Literal["text", "thinking"] = "thinking" if part.get("thought") else "text"
        block = self._last
        if block is None or block.kind != kind or block.ended or signature:
            self._end_last(chunk, events)
            block = self._open(_Block(kind, len(self._blocks), signature=signature))
        block.pieces.append(text)
        if text and self._streaming:
            delta = StreamEvent.text_delta if kind == "text" else StreamEvent.thinking_delta
            events.append(delta(text, index=block.index, raw=chunk))
        if signature:
            self._end_last(chunk, events)

    def _read_other(self, part: Mapping[str, Any], kind: str) -> Part:
        """Decode a generated image or audio, or a vendor-specific part."""
        media = part.get("inlineData") or {}
        shown = not part.get("thought") and isinstance(media.get("data"), str)
        media_type = str(media.get("mimeType") or "")
        signature = part.get("thoughtSignature")
        opaque = {"thoughtSignature": signature} if signature else None
        origin = self._origin if opaque else None
        if shown and media_type.startswith("image/"):
            return ImageContent(image_data=media["data"], media_type=media_type, provider_data=opaque, origin=origin)
        if shown and media_type.startswith("audio/"):
            return AudioContent(data=media["data"], media_type=media_type, provider_data=opaque, origin=origin)
        return VendorContent(kind=kind, provider_data=dict(part), origin=self._origin)

    def _read_call(
        self, call: Mapping[str, Any], signature: str | None, chunk: Mapping[str, Any], events: list[StreamEvent]
    ) -> None:
        """Decode a call. On Vertex AI, its arguments may arrive separately."""
        block = self._last
        if not isinstance(block, _CallBlock) or block.ended or call.get("name"):
            self._end_last(chunk, events)
            block = _CallBlock("call", len(self._blocks), signature=signature, id=call.get("id") or "")
            name = call["name"]
            block.tool = self._tools.get(name)
            block.name = name if block.tool is None else block.tool.name
            self._open(block)
        elif signature:
            block.signature = signature
        block.arguments.update(call.get("args") or {})
        for piece in call.get("partialArgs") or ():
            _set_argument(block.arguments, piece)
        if not call.get("willContinue"):
            self._end_call(block, chunk, events)
        elif block.id and not block.started:  # a generated id depends on the arguments
            self._start_call(block, block.id, chunk, events)

    def _start_call(
        self, block: _CallBlock, id: str, chunk: Mapping[str, Any] | None, events: list[StreamEvent]
    ) -> None:
        block.started = True
        if self._streaming:
            events.append(StreamEvent.tool_call_start(ToolCall(id=id, name=block.name), index=block.index, raw=chunk))

    def _end_call(
        self,
        block: _CallBlock,
        chunk: Mapping[str, Any] | None,
        events: list[StreamEvent],
        *,
        incomplete: bool = False,
    ) -> None:
        id = block.id or generate_id(self.id, self._calls, block.name, block.arguments)
        self._calls += 1
        block.ended = True
        arguments, invalid = read_arguments(dict(block.arguments))
        if block.tool is not None and block.tool.parameters and not incomplete:
            arguments = compile_schema(tool_parameters(block.tool), SCHEMA_DIALECT_NAME).restore(arguments)
        call = ToolCall(
            id=id,
            name=block.name,
            arguments={} if incomplete else arguments,
            invalid_arguments=to_json(arguments).decode() if incomplete and invalid is None else invalid,
            signature=block.signature,
            origin=self._origin if block.signature or block.id else None,
        )
        block.part = call
        if not block.started:
            self._start_call(block, id, chunk, events)
        if self._streaming:
            text = to_json(arguments).decode()
            events.append(StreamEvent.tool_call_delta_event(text, id=id, name=call.name, index=block.index))
            events.append(StreamEvent.tool_call_end(call, index=block.index, raw=chunk))

    # Blocks.

    def _open(self, block: _Block) -> _Block:
        self._blocks.append(block)
        self._last = block
        return block

    def _add_part(self, part: Part, chunk: Mapping[str, Any] | None, events: list[StreamEvent]) -> None:
        block = self._open(_Block("other", len(self._blocks), ended=True, part=part))
        events.append(StreamEvent.content_part_event(part, index=block.index, raw=chunk))

    def _end_last(self, chunk: Mapping[str, Any] | None, events: list[StreamEvent]) -> None:
        """End the last block, because another one starts or the response ends."""
        block = self._last
        if block is None or block.ended:
            return
        if isinstance(block, _CallBlock):
            self._end_call(block, chunk, events, incomplete=True)
            return
        block.ended = True
        if block.kind != "text" or block.signature:
            events.append(StreamEvent.content_part_event(self._part(block), index=block.index, raw=chunk))

    def _part(self, block: _Block) -> Part:
        if block.part is not None:
            return block.part
        text = "".join(block.pieces)
        if block.kind == "thinking":
            return ThinkingContent(thinking=text, signature=block.signature or "", origin=self._origin)
        if block.signature:
            return TextContent(text=text, signature=block.signature, origin=self._origin)
        return TextContent(text=text)

    # The end.

    def _stop_reason(self) -> FinishReason:
        if self._finish_reason is None:
            return _FILTERED
        if self._calls and self._finish_reason in _CALL_REASONS:
            return "tool_calls"
        return _FINISH_REASONS.get(self._finish_reason, "other")

    def _warnings(self) -> tuple[str, ...]:
        """Return the vendor's explanation of an abnormal end."""
        if self._finish_reason is None:
            because = f": {self._explanation}" if self._explanation else ""
            return (f"the vendor rejected the prompt ({self._block_reason}){because}",)
        if self._explanation and self._finish_reason != "STOP":
            return (f"the response ended with {self._finish_reason}: {self._explanation}",)
        return ()


def _find_kind(part: Mapping[str, Any]) -> str | None:
    """Return the key of a part's data."""
    return next((key for key, value in part.items() if value is not None and key not in _SHARED_KEYS), None)


def _read_logprobs(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    tops = result.get("topCandidates") or ()
    read: list[dict[str, Any]] = []
    for position, chosen in enumerate(result.get("chosenCandidates") or ()):
        top = (tops[position].get("candidates") or ()) if position < len(tops) else ()
        read.append({**_token(chosen), "top": [_token(candidate) for candidate in top]})
    return read


def _token(candidate: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": candidate.get("token") or "", "logprob": candidate.get("logProbability") or 0.0}


def _set_argument(arguments: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Set an argument by its JSON path, such as $.city or $.stops[0].name. Pieces of a string are joined."""
    steps = [
        int(match[2]) if match[2] is not None else next(name for name in match.group(1, 3, 4) if name is not None)
        for match in _PATH_STEP.finditer(piece["jsonPath"].removeprefix("$"))
    ]
    if not steps or isinstance(steps[0], int):
        raise ValueError("the JSON path has no argument name")
    where: Any = arguments
    for step, following in pairwise(steps):
        where = _entry(where, step, [] if isinstance(following, int) else {})
    last = steps[-1]
    value = next(
        (piece[key] for key in ("stringValue", "numberValue", "boolValue") if piece.get(key) is not None), None
    )
    if value is None and "nullValue" not in piece:
        return  # the end of the pieces for this path
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str):
        value = _entry(where, last, "") + value
    _entry(where, last, value)
    where[last] = value


def _entry(where: Any, step: str | int, missing: Any) -> Any:
    """Return the value at a step of a path. `missing` is added if there is none."""
    if isinstance(step, int):
        if step > len(where):
            raise ValueError("the path skips an item of a list")
        if step == len(where):
            where.append(missing)
        return where[step]
    return where.setdefault(step, missing)
