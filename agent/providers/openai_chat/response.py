"""Decoding of chat completions: messages, citations, log probabilities and finish reasons, in all vendors' spellings.

Parts have one order, streamed or not: reasoning, text, refusal, calls, then everything else.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from ...engine.wire import parse_json
from ...schemas import compile_schema
from ...types import (
    AgentRequest,
    AudioContent,
    Citation,
    FinishReason,
    ImageContent,
    Part,
    RefusalContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolSpec,
    Usage,
    VendorContent,
)
from ..encoding import original_names, request_origin, tool_parameters
from .dialect import API, MAX_NAME_LENGTH, OPAQUE_KEYS, SIGNED_CONTENT, Dialect
from .fields import SCHEMA_DIALECT

VENDOR_KEYS = ("executed_tools",)
"""Keys of a message that report server-side tools."""
_PADDED = re.compile(r"[^=]+=*")
"""One piece of base64. Streamed audio is several, each with its own padding."""


class MessageReader:
    """Reads the message that answers one request, with the tool names and schemas of that request."""

    __slots__ = ("_image_origin", "_names", "_origin", "_request", "_strict")

    def __init__(self, dialect: Dialect, request: AgentRequest, model: str) -> None:
        self._origin = request_origin(dialect.name, API, request.model or model)
        # Without an origin, repair moves an image to a user message. Most vendors reject it in an assistant message.
        self._image_origin = self._origin if "images" in dialect.replayed else None
        self._request = request
        self._names = original_names(request, MAX_NAME_LENGTH) if request.tools else {}
        strict = request.tools if dialect.strict else ()
        self._strict = {tool.name: tool for tool in strict if isinstance(tool, ToolSpec) and tool.strict}

    def message(self, message: Mapping[str, Any], body: Mapping[str, Any]) -> tuple[Part, ...]:
        """Read a whole message. Its sources may be next to it, in the body."""
        text, thinking, summary, blocks = split_content(message.get("content"))
        thinking = thinking or reasoning_text(message)
        opaque = {key: message[key] for key in OPAQUE_KEYS if message.get(key)} | signed(summary)
        annotations = message.get("annotations") or ()
        audio = message.get("audio")
        parts: list[Part] = []
        if thinking or opaque:
            parts.append(self.thinking(thinking, opaque))
        if not text and isinstance(audio, dict):
            text = audio.get("transcript") or ""
        if text:
            parts.append(text_part(text, read_citations(annotations, body)))
        if message.get("refusal"):
            parts.append(RefusalContent(refusal=message["refusal"]))
        for position, call in enumerate(_calls_in(message)):
            function = function_in(call)
            sealed = {key: call[key] for key in OPAQUE_KEYS if call.get(key)}
            if is_custom(call):
                sealed["type"] = "custom"
            id = call_id(call.get("id"), body.get("id") or "", position)
            parts.append(self.call(id, function.get("name") or "", function.get("arguments"), sealed))
        ran = {key: message[key] for key in VENDOR_KEYS if message.get(key)}
        parts += self.others(audio, message.get("images") or (), annotations, ran, blocks)
        return tuple(parts)

    def thinking(self, thinking: str, opaque: Mapping[str, Any]) -> ThinkingContent:
        if not opaque:
            return ThinkingContent(thinking=thinking, origin=self._origin)
        return ThinkingContent(thinking=thinking, origin=self._origin, provider_data=opaque)

    def name(self, sent: str) -> str:
        return self._names.get(sent, sent)

    def call(self, id: str, sent_name: str, arguments: Any, opaque: Mapping[str, Any]) -> ToolCall:
        """Read a complete call. Arguments that are not a JSON object are kept as `invalid_arguments`."""
        name = self.name(sent_name)
        values: Any = {}
        invalid: str | None = None
        if opaque.get("type") == "custom":
            values = {"input": arguments or ""}
        elif isinstance(arguments, str) and arguments.strip():
            try:
                values = parse_json(arguments)
            except ValueError:
                values = None
            if not isinstance(values, dict):
                values, invalid = {}, arguments
        elif isinstance(arguments, dict):
            values = arguments
        elif arguments is not None and not isinstance(arguments, str):
            invalid = to_json(arguments, inf_nan_mode="constants").decode()
        if values:
            values = self._restored(name, values)
        if opaque:
            return ToolCall(
                id=id, name=name, arguments=values, invalid_arguments=invalid, provider_data=opaque, origin=self._origin
            )
        return ToolCall(id=id, name=name, arguments=values, invalid_arguments=invalid)

    def _restored(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments in the form of the tool's own schema. Strict tools are sent with a compiled one."""
        tool = self._strict.get(name)
        if tool is None:
            return arguments
        restored = compile_schema(tool_parameters(tool), SCHEMA_DIALECT).restore(arguments)
        return restored if isinstance(restored, dict) else arguments

    def others(
        self,
        audio: Any,
        images: Iterable[Mapping[str, Any]],
        annotations: Iterable[Mapping[str, Any]],
        ran: Mapping[str, Any],
        blocks: Iterable[Mapping[str, Any]],
    ) -> list[Part]:
        """Read everything besides text, reasoning and calls."""
        parts: list[Part] = []
        if isinstance(audio, dict) and audio.get("data"):
            parts.append(self._audio(audio))
        for image in images:
            url = (image.get("image_url") or {}).get("url")
            if url:
                parts.append(ImageContent(image_url=url, origin=self._image_origin))
        unread = [note for note in annotations if note.get("type") != "url_citation"]
        if unread:
            parts.append(self._vendor("annotations", {"annotations": unread}))
        parts += [self._vendor(key, {key: value}) for key, value in ran.items()]
        parts += [self._vendor(str(block.get("type")), block) for block in blocks]
        return parts

    def _audio(self, audio: Mapping[str, Any]) -> AudioContent:
        wanted = self._request.extra.get("audio")
        format = wanted.get("format") if isinstance(wanted, Mapping) else None
        kept = {key: audio[key] for key in ("id", "transcript", "expires_at") if audio.get(key)}
        return AudioContent(
            data=b"".join(map(base64.b64decode, _PADDED.findall(audio["data"]))),
            media_type=f"audio/{format}" if format else None,
            provider_data=kept,
            origin=self._origin,
        )

    def _vendor(self, kind: str, data: Mapping[str, Any]) -> VendorContent:
        return VendorContent(kind=kind, provider_data=dict(data), origin=self._origin)


def text_part(text: str, citations: Sequence[Citation]) -> TextContent:
    return TextContent(text=text, citations=citations) if citations else TextContent(text=text)


def _calls_in(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    calls = list(message.get("tool_calls") or ())
    legacy = message.get("function_call")
    if not calls and isinstance(legacy, dict) and legacy.get("name"):
        calls.append({"function": legacy})  # the older form of a call; some vendors send an empty one
    return calls


def is_custom(call: Mapping[str, Any]) -> bool:
    """Whether a call is for a custom tool. Some vendors send both forms with every call, one of them empty."""
    kind = call.get("type")
    return kind == "custom" or bool(not kind and call.get("custom") and not call.get("function"))


def function_in(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Name and arguments of a call; for a custom tool, the arguments are its input text."""
    if is_custom(call):
        custom = call.get("custom") or {}
        return {"name": custom.get("name"), "arguments": custom.get("input")}
    return call.get("function") or {}


def split_content(content: Any) -> tuple[str, str, list[dict[str, Any]], list[dict[str, Any]]]:
    """Split content into text, reasoning, parts of a reasoning summary, and other blocks."""
    if not content:
        return "", "", [], []
    if isinstance(content, str):
        return content, "", [], []
    text: list[str] = []
    thinking: list[str] = []
    summary: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for block in content:
        kind = block.get("type")
        if kind == "thinking":
            inner = block.get("thinking")
            thinking.append(inner if isinstance(inner, str) else _join_texts(inner))
        elif kind == "reasoning":
            summary += block.get("summary") or ()
            thinking.append(_join_texts(block.get("summary")))
        elif isinstance(block.get("text"), str):
            text.append(block["text"])
        elif kind:
            others.append(block)
    return "".join(text), "".join(thinking), summary, others


def signed(summary: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Provider data of signed reasoning: the blocks that must be sent back. Empty if it is not signed."""
    if not any(part.get("signature") for part in summary):
        return {}
    return {SIGNED_CONTENT: [{"type": "reasoning", "summary": [part]} for part in summary]}


def _join_texts(pieces: Any) -> str:
    return "".join(piece.get("text") or "" for piece in pieces or ())


def reasoning_text(message: Mapping[str, Any]) -> str:
    """Reasoning under any of its names. The detailed form counts only without a plain one, which repeats it."""
    plain = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(plain, str) and plain:
        return plain
    details: Sequence[Any] = message.get("reasoning_details") or ()
    return "".join(detail.get("text") or detail.get("summary") or "" for detail in details if isinstance(detail, dict))


def call_id(given: Any, response_id: str, position: int) -> str:
    """The vendor's id, or a deterministic one where it sends none."""
    if given:
        return str(given)
    return "call_" + hashlib.sha256(f"{response_id}/{position}".encode()).hexdigest()[:20]


def read_citations(annotations: Iterable[Mapping[str, Any]], body: Mapping[str, Any]) -> tuple[Citation, ...]:
    """Citations: annotations of the message, or else search results or URLs next to it."""
    noted = [(note, note.get("url_citation") or {}) for note in annotations if note.get("type") == "url_citation"]
    if noted:
        return tuple(
            Citation(
                url=source.get("url"),
                title=source.get("title"),
                quote=source.get("content") or None,
                start=source.get("start_index"),
                end=source.get("end_index"),
                provider_data=dict(note),
            )
            for note, source in noted
        )
    if found := body.get("search_results"):
        return tuple(
            Citation(
                url=result.get("url"),
                title=result.get("title"),
                quote=result.get("snippet") or None,
                provider_data=result,
            )
            for result in found
        )
    return tuple(Citation(url=url) for url in body.get("citations") or () if isinstance(url, str))


def read_logprobs(logprobs: Any) -> list[dict[str, Any]]:
    """Log probabilities by token, in the current form or the legacy one."""
    if not isinstance(logprobs, dict):
        return []
    if logprobs.get("content"):
        return [
            {
                "token": entry.get("token"),
                "logprob": entry.get("logprob"),
                "top": [
                    {"token": top.get("token"), "logprob": top.get("logprob")}
                    for top in entry.get("top_logprobs") or ()
                ],
            }
            for entry in logprobs["content"]
        ]
    pairs = zip(logprobs.get("tokens") or (), logprobs.get("token_logprobs") or (), strict=False)
    return [{"token": token, "logprob": logprob, "top": []} for token, logprob in pairs]


_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "stop_sequence": "stop",
    "end_turn": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "sensitive": "content_filter",
    "refusal": "refusal",
    "error": "error",
    "network_error": "error",
}


def finish_reason(choice: Mapping[str, Any]) -> str | None:
    """The finish reason, also under the keys that some vendors use instead."""
    details = choice.get("finish_details")
    reason = choice.get("finish_reason") or choice.get("native_finish_reason")
    return reason or (details.get("type") if isinstance(details, dict) else None)


def stop_reason(raw: str | None, *, called: bool, refused: bool) -> FinishReason:
    """Normalize a finish reason. Vendors send `stop` with tool calls and refusals, too; those take precedence."""
    known = _REASONS.get(raw, "other") if raw else None
    if known in (None, "stop"):
        if called:
            return "tool_calls"
        if refused:
            return "refusal"
    return known or "other"


_TICKS_PER_DOLLAR = 1e10
"""xAI reports cost in ticks. Its recorded replies agree with its prices at this rate."""

_BESIDE = {
    "citation_tokens": "output_citation_tokens",
    "num_search_queries": "web_searches",
    "num_sources_used": "web_sources",
}
_READ = {
    "audio_tokens": "input_audio_tokens",
    "image_tokens": "input_image_tokens",
    "video_tokens": "input_video_tokens",
}
_WRITTEN = {"audio_tokens": "output_audio_tokens", "image_tokens": "output_image_tokens"}


def read_usage(usage: Any) -> Usage | None:
    if not isinstance(usage, dict) or not usage:
        return None
    prompt = _group(usage.get("prompt_tokens_details"))
    completion = _group(usage.get("completion_tokens_details"))
    return Usage.from_counts(
        _first_number(usage.get("prompt_tokens")),
        _first_number(usage.get("completion_tokens")),
        total=_first_number(usage.get("total_tokens")),
        cache_read=_first_number(
            prompt.get("cached_tokens"),
            usage.get("prompt_cache_hit_tokens"),
            usage.get("cached_tokens"),
            usage.get("num_cached_tokens"),
            usage.get("cache_read_input_tokens"),
        ),
        cache_write=_first_number(
            prompt.get("cache_write_tokens"),
            prompt.get("cache_creation_tokens"),
            prompt.get("cache_creation_input_tokens"),
            usage.get("cache_creation_input_tokens"),
        ),
        reasoning=_first_number(completion.get("reasoning_tokens"), usage.get("reasoning_tokens")),
        details=_details(usage, prompt, completion),
        billed=billed(usage),
    )


def _details(usage: Mapping[str, Any], prompt: Mapping[str, Any], completion: Mapping[str, Any]) -> dict[str, Any]:
    """Other counts, which most replies lack."""
    found: dict[str, Any] = {}
    for counts, names in ((usage, _BESIDE), (prompt, _READ), (completion, _WRITTEN)):
        for key, count in counts.items():
            if count and key in names:
                found[names[key]] = count
    if "web_searches" not in found and (run := _group(usage.get("server_tool_use"))):
        found["web_searches"] = run.get("web_search_requests")
    return found


def _group(counts: Any) -> Mapping[str, Any]:
    return counts if isinstance(counts, dict) else {}


def billed(usage: Mapping[str, Any]) -> Any:
    """Cost in US dollars, if reported. With a user's own key, gateways report the vendor's cost separately."""
    cost = usage.get("cost")
    if isinstance(cost, dict):
        return cost.get("total_cost")
    # Zero ticks are reported where another party bills, such as Azure.
    if cost is None and isinstance(ticks := usage.get("cost_in_usd_ticks"), int | float) and ticks:
        return ticks / _TICKS_PER_DOLLAR
    if usage.get("is_byok") and isinstance(cost, int | float):
        upstream = _group(usage.get("cost_details")).get("upstream_inference_cost")
        return cost + upstream if isinstance(upstream, int | float) else cost
    return cost


def _first_number(*values: Any) -> int:
    for value in values:
        if value is not None and is_number(value):
            return int(value)
    return 0


def is_number(value: Any) -> bool:
    """Whether a count is a finite number: JSON numbers may exceed every float."""
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
