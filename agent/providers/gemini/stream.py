"""Decoding of responses, chunk by chunk. A whole response is one chunk or an array of chunks.

Gemini splits text into parts arbitrarily, so consecutive parts are joined. A part with a signature stays separate,
because a signature is only valid on its part. A stream has no terminal event: it is complete if it has a finish reason
and ends after a whole event. Usage and text may follow a finish reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic_core import to_json
from typing_extensions import override

from ...engine.wire import parse_json
from ...http.sse import SseDecoder
from ...schemas import compile_schema
from ...types import (
    AgentRequest,
    AgentResponse,
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
from .. import codec
from ..codec import DecoderBase
from ..encoding import read_arguments, tool_parameters
from ..failures import request_id
from .fields import generate_id, tools_by_name
from .messages import METADATA_KIND
from .models import SCHEMA_DIALECT_NAME
from .response import (
    METADATA_KEYS,
    READ_USAGE_KEYS,
    UNSPECIFIED,
    find_kind,
    read_citations,
    read_logprobs,
    read_other_part,
    read_stop_reason,
    read_usage,
    set_argument,
)

MAX_CHUNK_BYTES = 16 * 1024 * 1024
"""An image arrives in one chunk."""
_READ_CHUNK_KEYS = frozenset(("candidates", "usageMetadata", "modelVersion", "responseId"))
_CHUNK_KEYS = frozenset(("promptFeedback", "usageMetadata", "modelVersion", "responseId"))
"""A chunk without candidates has at least one of these keys."""
_TEXT_KEYS = frozenset(("content", "index", "finishReason"))
"""Keys of a candidate without metadata and log probabilities."""
_READ_CANDIDATE_KEYS = _TEXT_KEYS | {*METADATA_KEYS, "logprobsResult"}
_SERVER_TOOLS = {
    "executableCode": ("in_progress", "codeExecution"),
    "codeExecutionResult": ("completed", "codeExecution"),
    "toolCall": ("in_progress", ""),
    "toolResponse": ("completed", ""),
}
"""Status and name of tools that run at the vendor, by the kind of the part."""

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
        self._ids: set[str] = set()
        self._vendor: dict[str, Any] = {}
        """Other data of the response or candidate."""
        self._problems: dict[str, None] = {}
        self._choices: dict[int, ResponseReader] = {}
        """Readers of the other candidates, by index."""

    @property
    def complete(self) -> bool:
        """Whether all candidates have a finish reason, or the response has a block reason."""
        finished = self._finish_reason is not None or self._block_reason is not None
        return finished and all(choice.complete for choice in self._choices.values())

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
        self._keep(chunk, _READ_CHUNK_KEYS)
        for position, candidate in enumerate(candidates or ()):
            index = candidate.get("index", position)
            if not isinstance(index, int) or index <= 0:
                self._read_candidate(candidate, chunk, events)
            else:
                choice = self._choices.setdefault(index, ResponseReader(self._origin, self._tools, streaming=False))
                choice._read_candidate(candidate, chunk, [])
        return events

    def _keep(self, data: Mapping[str, Any], read: frozenset[str]) -> None:
        """Keep data that has no field in the response. Later values replace earlier ones."""
        if not read.issuperset(data):
            self._vendor |= {key: value for key, value in data.items() if key not in read and value}

    def finish(self) -> list[StreamEvent]:
        """End the response, after its last chunk."""
        events: list[StreamEvent] = []
        self._end_last(None, events)
        for choice in self._choices.values():
            choice.finish()
        if self._metadata:
            self._add_metadata(events)
        return events

    def _add_metadata(self, events: list[StreamEvent]) -> None:
        """Add citations and grounding metadata to the texts that they belong to."""
        texts = [block for block in self._blocks if block.kind == "text"]
        try:
            cited = read_citations(self._metadata, ["".join(block.pieces) for block in texts])
        except codec.SHAPE_ERRORS as error:  # the response is paid for, and its metadata is kept
            self._problems[f"the citations could not be read ({codec.describe_malformed(error)})"] = None
            cited = [[] for _ in texts]
        metadata_block = next((block for block in reversed(texts) if any(block.pieces)), None)
        for block, citations in zip(texts, cited, strict=True):
            metadata = self._metadata if block is metadata_block else None
            if citations or metadata:
                block.part = TextContent(
                    text="".join(block.pieces),
                    signature=block.signature,
                    citations=citations,
                    provider_data=metadata,
                    origin=self._origin,
                )
                events.append(StreamEvent.content_part_event(block.part, index=block.index))
        if metadata_block is None:
            part = VendorContent(kind=METADATA_KIND, provider_data=self._metadata, origin=self._origin)
            self._add_part(part, None, events)

    def response(self, *, content: Sequence[Part] = (), model: str = "", **facts: Any) -> AgentResponse:
        """Return the response with additional fields. Streams pass no content."""
        usage = self._usage or {}
        vendor = self._vendor
        if others := {key: value for key, value in usage.items() if key not in READ_USAGE_KEYS and value}:
            vendor = {**vendor, "usageMetadata": others}
        tier = usage.get("serviceTier")
        return AgentResponse(
            content=content,
            model=self.model or model,
            id=self.id or None,
            usage=self.usage,
            stop_reason=read_stop_reason(
                self._finish_reason, called=bool(self._calls), blocked=self._block_reason is not None
            ),
            raw_stop_reason=self._finish_reason,
            warnings=(*self._warnings(), *self._problems),
            logprobs=self._logprobs,
            service_tier=tier if isinstance(tier, str) else None,
            vendor=vendor,
            choices=[choice._as_choice(self.model or model) for _, choice in sorted(self._choices.items())],
            **facts,
        )

    def _as_choice(self, model: str) -> AgentResponse:
        return self.response(content=self.content, model=model, provider=self._origin.provider)

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
            self._keep(candidate, _READ_CANDIDATE_KEYS)
        if (reason := candidate.get("finishReason")) and reason != UNSPECIFIED:
            self._finish_reason = reason
            self._explanation = candidate.get("finishMessage") or self._explanation

    def _read_metadata(self, candidate: Mapping[str, Any]) -> None:
        for key in METADATA_KEYS:
            if value := candidate.get(key):
                previous = self._metadata.get(key)
                merges = isinstance(previous, dict) and isinstance(value, dict)
                self._metadata[key] = {**(previous or {}), **value} if merges else value
        if result := candidate.get("logprobsResult"):
            self._logprobs += read_logprobs(result)

    # Parts.

    def _read_part(self, part: Mapping[str, Any], chunk: Mapping[str, Any], events: list[StreamEvent]) -> None:
        text = part.get("text")
        if text is not None:
            self._read_text(text, part, chunk, events)
        elif (call := part.get("functionCall")) is not None:
            self._read_call(call, part.get("thoughtSignature"), chunk, events)
        elif (kind := find_kind(part)) is not None:
            self._end_last(chunk, events)
            self._report(part, kind, chunk, events)
            self._add_part(read_other_part(part, kind, self._origin), chunk, events)
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

    def _report(self, part: Mapping[str, Any], kind: str, chunk: Mapping[str, Any], events: list[StreamEvent]) -> None:
        """Report the progress of a tool that runs at the vendor, or a draft of an image."""
        data, index = part[kind], len(self._blocks)
        if not self._streaming or not isinstance(data, dict):
            return
        if kind in _SERVER_TOOLS:
            status, tool = _SERVER_TOOLS[kind]
            tool, id = str(data.get("toolType") or tool), data.get("id")
            if data.get("outcome") not in (None, "OUTCOME_OK"):
                status = "failed"
            events.append(StreamEvent.tool_progress(tool, status, id=id, index=index, raw=chunk))
        elif part.get("thought") and str(data.get("mimeType")).startswith("image/") and data.get("data"):
            draft = ImageContent(image_data=data["data"], media_type=data["mimeType"])
            events.append(StreamEvent.partial_image(draft, index=index, raw=chunk))

    def _read_call(
        self, call: Mapping[str, Any], signature: str | None, chunk: Mapping[str, Any], events: list[StreamEvent]
    ) -> None:
        """Decode a call. On Vertex AI, its arguments may arrive separately."""
        block = self._last
        if not isinstance(block, _CallBlock) or block.ended or call.get("name"):
            self._end_last(chunk, events)
            id = call.get("id") or ""
            id = id and codec.choose_unique_id(id, self._ids, self._problems)
            block = _CallBlock("call", len(self._blocks), signature=signature, id=id)
            name = call["name"]
            block.tool = self._tools.get(name)
            block.name = name if block.tool is None else block.tool.name
            self._open(block)
        elif signature:
            block.signature = signature
        block.arguments.update(call.get("args") or {})
        for piece in call.get("partialArgs") or ():
            set_argument(block.arguments, piece)
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

    def _warnings(self) -> tuple[str, ...]:
        """Return the vendor's explanation of an abnormal end."""
        if self._finish_reason is None and self._block_reason is not None:
            because = f": {self._explanation}" if self._explanation else ""
            return (f"the vendor rejected the prompt ({self._block_reason}){because}",)
        if self._explanation and self._finish_reason != "STOP":
            return (f"the response ended with {self._finish_reason}: {self._explanation}",)
        return ()


class GeminiDecoder(DecoderBase):
    """Decoder of one stream of generateContent chunks."""

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
