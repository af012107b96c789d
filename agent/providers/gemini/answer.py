"""Reading an answer, chunk by chunk. An unstreamed answer is one chunk; a JSON array is several.

Gemini cuts text into parts as it likes, so neighbouring parts are one block. A part with a signature stands for itself:
the signature is worth something only on the very part that it came with.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from pydantic_core import to_json

from ...schemas import Compiled, compile_schema
from ...types import (
    AgentResponse,
    AudioContent,
    FinishReason,
    ImageContent,
    Origin,
    Part,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolSpec,
    Usage,
    VendorContent,
)
from ...types.notes import notes_on
from .citations import citations_of
from .contents import METADATA_KIND
from .family import SCHEMA_DIALECT
from .names import made_up_id

_COMPILED = f"{SCHEMA_DIALECT}/compiled"
_METADATA = ("groundingMetadata", "citationMetadata", "urlContextMetadata", "continuationToken")
"""What a candidate says about itself that would otherwise be lost."""
_BESIDE = frozenset(("thought", "thoughtSignature"))
"""Keys of a part that do not say what it is."""
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\[\"((?:[^\"\\]|\\.)*)\"\]")

_NOT_ENDED = "FINISH_REASON_UNSPECIFIED"
"""The word for no reason, which some servers write down: the model is not done."""
_FILTERED: FinishReason = "content_filter"
_REASONS: dict[str, FinishReason] = {
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
_CALLS_COUNT_MORE = frozenset(("STOP", "UNEXPECTED_TOOL_CALL", "FUNCTION_CALL"))
"""Reasons that are also given where there are calls to answer."""


@dataclass(slots=True)
class Block:
    """One part of the answer, while it is read."""

    kind: Literal["text", "thinking", "call", "other"]
    index: int
    pieces: list[str] = field(default_factory=list)
    signature: str | None = None
    ended: bool = False
    part: Part | None = None
    """What it has become; of text and thinking, only at the end."""
    name: str = ""
    tool: ToolSpec | None = None
    """The caller's tool that is called."""
    id: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Change:
    """What a chunk did to a block."""

    block: Block
    delta: str = ""


class Reading:
    """What has been read of one answer so far."""

    def __init__(self, origin: Origin, tools: Mapping[str, ToolSpec]) -> None:
        self._origin = origin
        self._tools = tools
        self.blocks: list[Block] = []
        self.model = ""
        self.id = ""
        self.finish_reason: str | None = None
        self.blocked: str | None = None
        """Why the vendor would not read the question."""
        self._explanation: str | None = None
        self._usage: dict[str, Any] | None = None
        self._metadata: dict[str, Any] = {}
        self._logprobs: list[dict[str, Any]] = []
        self._calls = 0

    @property
    def complete(self) -> bool:
        """Whether the vendor has said how it ended."""
        return self.finish_reason is not None or self.blocked is not None

    def take(self, chunk: Mapping[str, Any]) -> list[Change]:
        """The next chunk. Raises one of the usual errors for a wrong shape."""
        candidates = chunk.get("candidates")
        if not candidates and not chunk.keys() & {"promptFeedback", "usageMetadata", "modelVersion", "responseId"}:
            raise ValueError("it is not a chunk of an answer")
        self.note(chunk)
        for candidate in candidates or ():
            if not candidate.get("index"):
                return self._take_candidate(candidate)
        return []

    def note(self, chunk: Mapping[str, Any]) -> None:
        """What a chunk says beside its candidates."""
        self.model = chunk.get("modelVersion") or self.model
        self.id = chunk.get("responseId") or self.id
        feedback = chunk.get("promptFeedback")
        if feedback and feedback.get("blockReason"):
            self.blocked = feedback["blockReason"]
            self._explanation = feedback.get("blockReasonMessage")
        if isinstance(usage := chunk.get("usageMetadata"), dict):
            # Each report replaces the one before, but the last may leave out what earlier ones had.
            earlier = self._usage
            self._usage = usage if earlier is None or earlier.keys() <= usage.keys() else {**earlier, **usage}

    def _take_candidate(self, candidate: Mapping[str, Any]) -> list[Change]:
        changes: list[Change] = []
        for part in (candidate.get("content") or {}).get("parts") or ():
            changes.extend(self._take_part(part))
        for key in _METADATA:
            if found := candidate.get(key):
                known = self._metadata.get(key)
                both = isinstance(known, dict) and isinstance(found, dict)
                self._metadata[key] = {**(known or {}), **found} if both else found
        if result := candidate.get("logprobsResult"):
            self._logprobs.extend(_logprobs(result))
        if (reason := candidate.get("finishReason")) and reason != _NOT_ENDED:
            self.finish_reason = reason
            self._explanation = candidate.get("finishMessage") or self._explanation
        return changes

    def _take_part(self, part: Mapping[str, Any]) -> list[Change]:
        if len(part) == 1 and type(part.get("text")) is str:
            return self._take_text(part)  # the most of what there is
        if part.get("functionCall") is not None:
            return self._take_call(part["functionCall"], part.get("thoughtSignature"))
        kind = next((key for key, value in part.items() if value is not None and key not in _BESIDE), None)
        if kind is None or part.get("text") is not None:
            return self._take_text(part)
        return [*self._end_last(), Change(self._open("other", part=self._other(part, kind)))]

    def _take_text(self, part: Mapping[str, Any]) -> list[Change]:
        text, signature = part.get("text") or "", part.get("thoughtSignature")
        if not text and not signature:
            return []
        kind: Literal["text", "thinking"] = "thinking" if part.get("thought") else "text"
        last = self.blocks[-1] if self.blocks else None
        if last is not None and last.kind == kind and not last.ended and not signature:
            last.pieces.append(text)
            return [Change(last, text)]
        changes = self._end_last()
        block = self._open(kind, signature=signature)
        block.pieces.append(text)
        block.ended = bool(signature)
        return [*changes, Change(block, text)]

    def _other(self, part: Mapping[str, Any], kind: str) -> Part:
        """A picture or a sound that the model made, or a block that only the vendor understands."""
        media = part.get("inlineData") or {}
        shown = not part.get("thought") and isinstance(media.get("data"), str)
        media_type = str(media.get("mimeType") or "")
        sealed = {"thoughtSignature": part["thoughtSignature"]} if part.get("thoughtSignature") else None
        origin = self._origin if sealed else None
        if shown and media_type.startswith("image/"):
            return ImageContent(image_data=media["data"], media_type=media_type, provider_data=sealed, origin=origin)
        if shown and media_type.startswith("audio/"):
            return AudioContent(data=media["data"], media_type=media_type, provider_data=sealed, origin=origin)
        return VendorContent(kind=kind, provider_data=dict(part), origin=self._origin)

    def _take_call(self, call: Mapping[str, Any], signature: str | None) -> list[Change]:
        """A call comes whole, or (on Vertex AI, if asked for) its arguments come one by one."""
        changes: list[Change] = []
        last = self.blocks[-1] if self.blocks else None
        if last is None or last.kind != "call" or last.ended or call.get("name"):
            changes = self._end_last()
            name = call["name"]
            last = self._open("call", signature=signature)
            last.tool = self._tools.get(name)
            last.name = name if last.tool is None else last.tool.name
            last.id = call.get("id") or ""
        elif signature:
            last.signature = signature
        last.arguments.update(call.get("args") or {})
        for piece in call.get("partialArgs") or ():
            _set_argument(last.arguments, piece)
        if not call.get("willContinue"):
            self._end_call(last)
        return [*changes, Change(last)]

    def _end_call(self, block: Block, *, broken: bool = False) -> None:
        id = block.id or made_up_id(self.id, self._calls, block.name, block.arguments)
        self._calls += 1
        block.ended = True
        arguments: Mapping[str, Any] = block.arguments
        if block.tool is not None and block.tool.parameters and not broken:
            arguments = _compiled(block.tool).restore(arguments)
        written = to_json(arguments).decode()
        block.pieces.append(written)
        block.part = ToolCall.of(
            id,
            block.name,
            {} if broken else arguments,
            invalid_arguments=written if broken else None,
            signature=block.signature,
            origin=self._origin if block.signature or block.id else None,
        )

    def _open(
        self,
        kind: Literal["text", "thinking", "call", "other"],
        *,
        signature: str | None = None,
        part: Part | None = None,
    ) -> Block:
        block = Block(kind, len(self.blocks), signature=signature, part=part, ended=part is not None)
        self.blocks.append(block)
        return block

    def _end_last(self) -> list[Change]:
        """Something else begins, so the block before is over."""
        last = self.blocks[-1] if self.blocks else None
        if last is None or last.ended:
            return []
        if last.kind == "call":
            self._end_call(last, broken=True)  # the vendor promised more of it
        last.ended = True
        return [Change(last)]

    def finish(self) -> list[Block]:
        """The answer is over. The blocks that it still changes, for a stream to announce."""
        changed = [change.block for change in self._end_last()]
        texts = [block for block in self.blocks if block.kind == "text"]
        cited = citations_of(self._metadata, ["".join(block.pieces) for block in texts])
        holder = next((block for block in reversed(texts) if any(block.pieces)), None)
        for block, citations in zip(texts, cited, strict=True):
            data = self._metadata if block is holder and self._metadata else None
            if citations or data:
                block.part = TextContent(
                    text="".join(block.pieces),
                    signature=block.signature,
                    citations=citations,
                    provider_data=data,
                    origin=self._origin,
                )
                changed.append(block)
        if self._metadata and holder is None:
            part = VendorContent(kind=METADATA_KIND, provider_data=self._metadata, origin=self._origin)
            changed.append(self._open("other", part=part))
        return changed

    def part(self, block: Block) -> Part:
        """What a block has become."""
        if block.part is not None:
            return block.part
        text = "".join(block.pieces)
        if block.kind == "thinking":
            return ThinkingContent(thinking=text, signature=block.signature or "", origin=self._origin)
        if block.signature:
            return TextContent(text=text, signature=block.signature, origin=self._origin)
        return TextContent.of(text)

    @property
    def usage(self) -> Usage | None:
        return None if self._usage is None else read_usage(self._usage)

    def ending(self, *, content: Sequence[Part] = (), model: str = "", **facts: Any) -> AgentResponse:
        """How the answer ended, with what else is known of it."""
        return AgentResponse.of(
            content=content,
            model=self.model or model,
            id=self.id or None,
            usage=self.usage,
            stop_reason=self._stop_reason(),
            raw_stop_reason=self.finish_reason,
            warnings=self._warnings(),
            logprobs=self._logprobs,
            **facts,
        )

    def _stop_reason(self) -> FinishReason:
        if self.finish_reason is None:
            return _FILTERED
        if self._calls and self.finish_reason in _CALLS_COUNT_MORE:
            return "tool_calls"
        return _REASONS.get(self.finish_reason, "other")

    def _warnings(self) -> tuple[str, ...]:
        """The vendor's words for an end that nobody wished for."""
        if self.finish_reason is None:
            because = f": {self._explanation}" if self._explanation else ""
            return (f"the vendor would not take the question ({self.blocked}){because}",)
        if self._explanation and self.finish_reason != "STOP":
            return (f"the answer ended with {self.finish_reason}: {self._explanation}",)
        return ()


def _compiled(tool: ToolSpec) -> Compiled:
    """What a tool's parameters were sent as, worked out once."""
    notes = notes_on(tool)
    known: Compiled | None = notes.get(_COMPILED)
    if known is None:
        known = notes[_COMPILED] = compile_schema(tool.parameters, SCHEMA_DIALECT)
    return known


def _logprobs(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    tops = result.get("topCandidates") or ()
    read: list[dict[str, Any]] = []
    for position, chosen in enumerate(result.get("chosenCandidates") or ()):
        top = (tops[position].get("candidates") or ()) if position < len(tops) else ()
        read.append({**_token(chosen), "top": [_token(one) for one in top]})
    return read


def _token(candidate: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": candidate.get("token") or "", "logprob": candidate.get("logProbability") or 0.0}


def _set_argument(arguments: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """One piece of the arguments, by its path such as $.city or $.stops[0].name. Pieces of one text are joined."""
    steps = [
        int(found[2]) if found[2] is not None else next(name for name in found.group(1, 3, 4) if name is not None)
        for found in _STEP.finditer(piece["jsonPath"].removeprefix("$"))
    ]
    if not steps or isinstance(steps[0], int):
        raise ValueError("a path that is not an argument's")
    where: Any = arguments
    for step, following in pairwise(steps):
        where = _entry(where, step, [] if isinstance(following, int) else {})
    last = steps[-1]
    value = next(
        (piece[key] for key in ("stringValue", "numberValue", "boolValue") if piece.get(key) is not None), None
    )
    if value is None and "nullValue" not in piece:
        return  # it only says that no more will come for this path
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str):
        value = _entry(where, last, "") + value
    _entry(where, last, value)
    where[last] = value


def _entry(where: Any, step: str | int, missing: Any) -> Any:
    """What stands at a step, made where there is nothing yet."""
    if isinstance(step, int):
        if step > len(where):
            raise ValueError("a list with a gap")
        if step == len(where):
            where.append(missing)
        return where[step]
    return where.setdefault(step, missing)


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Gemini counts thoughts beside the answer, and what its own tools read beside the prompt; the total has it all."""
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
            "input_audio_tokens": _modality(usage.get("promptTokensDetails"), "AUDIO"),
            "cache_audio_read_tokens": _modality(usage.get("cacheTokensDetails"), "AUDIO"),
            "output_audio_tokens": _modality(usage.get("candidatesTokensDetails"), "AUDIO"),
            "output_image_tokens": _modality(usage.get("candidatesTokensDetails"), "IMAGE"),
        },
    )
    return counted.model_copy(update={"total_tokens": max(total, counted.total_tokens)}) if tools else counted


def _count(usage: Mapping[str, Any], key: str) -> int:
    """A count, or 0 for what is none: an answer that was paid for must not fail for that."""
    value = usage.get(key)
    return int(value) if isinstance(value, int | float) and 0 <= value < math.inf else 0


def _modality(entries: Any, modality: str) -> int:
    if not isinstance(entries, list):
        return 0
    told = [entry for entry in entries if isinstance(entry, dict) and entry.get("modality") == modality]
    return sum([_count(entry, "tokenCount") for entry in told])
