"""Response decoder of Chat Completions, for all vendors' variants.

The order of parts is the same for streams: reasoning, text, refusal, calls, then everything else.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from ...engine.wire import parse_finite_json
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
    Usage,
    VendorContent,
)
from ..codec import SentTools, choose_unique_id
from ..encoding import JsonDict, normalize_name, read_arguments, request_origin
from .dialect import API, MAX_NAME_LENGTH, OPAQUE_KEYS, SIGNED_CONTENT, Dialect
from .fields import SCHEMA_DIALECT

VENDOR_KEYS = ("executed_tools",)
"""Keys of a message that report server-side tools."""
CALL_KEYS = (*OPAQUE_KEYS, "provider_specific_fields")
"""Keys of a call with opaque data."""
_PADDED = re.compile(r"[^=]+=*")
"""One chunk of base64. Streamed audio consists of several, each with its own padding."""


class MessageReader:
    """Decodes the message that answers one request, with the tool names and schemas of that request."""

    def __init__(self, dialect: Dialect, request: AgentRequest, model: str) -> None:
        self._dialect = dialect
        self._ids: set[str] = set()
        self.warnings: dict[str, None] = {}
        self._origin = request_origin(dialect.name, API, request.model or model)
        # Without an origin, repair moves an image to a user message. Most vendors reject it in an assistant message.
        self._image_origin = self._origin if "images" in dialect.replayed else None
        self._request = request
        self.tools: SentTools = SentTools(request, MAX_NAME_LENGTH, SCHEMA_DIALECT)

    def read_choice(self, choice: Mapping[str, Any], body: Mapping[str, Any]) -> JsonDict:
        """Decode a complete choice, as fields of a response."""
        message = choice["message"]
        if message is None and "finish_reason" not in choice:
            raise TypeError("a choice without a message")
        content = self.read_message(message or {}, body)
        called = any(isinstance(part, ToolCall) for part in content)
        refused = any(isinstance(part, RefusalContent) for part in content)
        return {
            "content": content,
            "stop_reason": self.stop_reason(read_finish_reason(choice), called=called, refused=refused),
            "raw_stop_reason": choice.get("finish_reason"),
            "logprobs": read_logprobs(logprobs) if (logprobs := choice.get("logprobs")) else (),
            "warnings": tuple(self.warnings),
            **read_metadata(body, choice, message or {}),
        }

    def stop_reason(self, raw: str | None, *, called: bool, refused: bool) -> FinishReason:
        if raw is None and not self._dialect.finish_reasons:
            raw = "stop"
        return normalize_finish_reason(raw, called=called, refused=refused)

    def unique_id(self, id: str) -> str:
        return choose_unique_id(id, self._ids, self.warnings)

    def is_whole_name(self, name: str) -> bool:
        """Whether a name is that of a tool in the request, and cannot be the beginning of another one's."""
        offered = [
            normalize_name(tool.name, MAX_NAME_LENGTH) for tool in self._request.tools if not isinstance(tool, Mapping)
        ]
        return name in offered and not any(other.startswith(name) and other != name for other in offered)

    def read_message(self, message: Mapping[str, Any], body: Mapping[str, Any]) -> tuple[Part, ...]:
        """Decode a complete message. Its sources may be next to it, in the body."""
        text, thinking, summary, blocks = split_content(message.get("content"))
        thinking = thinking or read_reasoning(message)
        opaque = {key: message[key] for key in OPAQUE_KEYS if message.get(key)}
        if summary:
            opaque |= summary_data(summary)
        annotations = message.get("annotations") or ()
        audio = message.get("audio")
        parts: list[Part] = []
        if thinking or opaque:
            parts.append(self.build_thinking(thinking, opaque))
        if not text and isinstance(audio, dict):
            text = audio.get("transcript") or ""
        if text:
            citations = read_citations(annotations, body)
            parts.append(TextContent(text=text, citations=citations) if citations else TextContent(text=text))
        if message.get("refusal"):
            parts.append(RefusalContent(refusal=message["refusal"]))
        calls = message.get("tool_calls") or ()
        legacy = message.get("function_call")  # some vendors send an empty one
        if not calls and isinstance(legacy, dict) and legacy.get("name"):
            calls = ({"function": legacy},)
        for position, call in enumerate(calls):
            function = function_in(call)
            data = {key: call[key] for key in CALL_KEYS if call.get(key)}
            if is_custom(call):
                data["type"] = "custom"
            id = call.get("id") or generate_call_id(body.get("id") or "", position)
            parts.append(
                self.build_call(self.unique_id(str(id)), function.get("name") or "", function.get("arguments"), data)
            )
        tools_run = {key: message[key] for key in VENDOR_KEYS if message.get(key)}
        images = message.get("images") or ()
        if audio or images or annotations or tools_run or blocks:
            parts += self.build_others(audio, images, annotations, tools_run, blocks)
        return tuple(parts)

    def build_thinking(self, thinking: str, opaque: Mapping[str, Any]) -> ThinkingContent:
        if not opaque:
            return ThinkingContent(thinking=thinking, origin=self._origin)
        return ThinkingContent(thinking=thinking, origin=self._origin, provider_data=opaque)

    def build_call(self, id: str, sent_name: str, arguments: Any, opaque: Mapping[str, Any]) -> ToolCall:
        """Build a complete call. Arguments that are not a JSON object become `invalid_arguments`."""
        name = self.tools.original_name(sent_name)
        values: Any = {}
        invalid: str | None = None
        if opaque.get("type") == "custom":
            values = {"input": arguments or ""}
        elif arguments is None or isinstance(arguments, str | dict):
            values, invalid = parse_arguments(arguments)
        else:
            invalid = to_json(arguments, inf_nan_mode="constants").decode()
        if self._dialect.strict:
            values = self.tools.restore(name, values)
        if opaque:
            return ToolCall(
                id=id, name=name, arguments=values, invalid_arguments=invalid, provider_data=opaque, origin=self._origin
            )
        return ToolCall(id=id, name=name, arguments=values, invalid_arguments=invalid)

    def build_others(
        self,
        audio: Any,
        images: Iterable[Mapping[str, Any]],
        annotations: Iterable[Mapping[str, Any]],
        tools_run: Mapping[str, Any],
        blocks: Iterable[Mapping[str, Any]],
    ) -> list[Part]:
        """Build the parts besides text, reasoning and calls."""
        parts: list[Part] = []
        if isinstance(audio, dict) and audio.get("data"):
            parts.append(self._build_audio(audio))
        for image in images:
            url = (image.get("image_url") or {}).get("url")
            if url:
                parts.append(ImageContent(image_url=url, origin=self._image_origin))
        notes = [note for note in annotations if note.get("type") != "url_citation"]
        if notes:
            parts.append(self._build_vendor_part("annotations", {"annotations": notes}))
        parts += [self._build_vendor_part(key, {key: value}) for key, value in tools_run.items()]
        parts += [self._build_vendor_part(str(block.get("type")), block) for block in blocks]
        return parts

    def _build_audio(self, audio: Mapping[str, Any]) -> AudioContent:
        settings = self._request.extra.get("audio")
        format = settings.get("format") if isinstance(settings, Mapping) else None
        return AudioContent(
            data=b"".join(map(base64.b64decode, _PADDED.findall(audio["data"]))),
            media_type=f"audio/{format}" if format else None,
            provider_data={key: audio[key] for key in ("id", "transcript", "expires_at") if audio.get(key)},
            origin=self._origin,
        )

    def _build_vendor_part(self, kind: str, data: Mapping[str, Any]) -> VendorContent:
        return VendorContent(kind=kind, provider_data=dict(data), origin=self._origin)


def parse_arguments(arguments: str | dict[str, Any] | None) -> tuple[dict[str, Any], str | None]:
    """Return the arguments of a call, and the text of invalid ones."""
    if isinstance(arguments, dict):
        return read_arguments(arguments)
    if arguments is None or not arguments.strip():
        return {}, None
    try:
        values = parse_finite_json(arguments)
    except ValueError:
        values = None
    return (values, None) if isinstance(values, dict) else ({}, arguments)


def generate_call_id(response_id: str, position: int) -> str:
    """Derive the id of a call from its position, for vendors that send none."""
    return "call_" + hashlib.sha256(f"{response_id}/{position}".encode()).hexdigest()[:20]


def is_custom(call: Mapping[str, Any]) -> bool:
    """Whether a call is for a custom tool. Some vendors send both forms, one of them empty."""
    kind = call.get("type")
    return kind == "custom" or bool(not kind and call.get("custom") and not call.get("function"))


def function_in(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Name and arguments of a call. The arguments of a custom tool are its input text."""
    if is_custom(call):
        custom = call.get("custom") or {}
        return {"name": custom.get("name"), "arguments": custom.get("input")}
    return call.get("function") or {}


def split_content(content: Any) -> tuple[str, str, list[dict[str, Any]], list[dict[str, Any]]]:
    """Split content into text, reasoning, parts of a reasoning summary, and other blocks."""
    if content is None or content == []:
        return "", "", [], []
    if isinstance(content, str):
        return content, "", [], []
    blocks = content if isinstance(content, list) else [content]
    if not all(isinstance(block, str) or (isinstance(block, dict) and _is_block(block)) for block in blocks):
        return to_json(content, inf_nan_mode="constants").decode(), "", [], []  # the output of a schema
    text: list[str] = []
    thinking: list[str] = []
    summary: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, str):
            text.append(block)
            continue
        kind = block.get("type")
        if kind == "thinking":
            inner = block.get("thinking")
            thinking.append(inner if isinstance(inner, str) else join_texts(inner))
        elif kind == "reasoning":
            summary += block.get("summary") or ()
            thinking.append(join_texts(block.get("summary")))
        elif isinstance(block.get("text"), str):
            text.append(block["text"])
        elif kind:
            others.append(block)
    return "".join(text), "".join(thinking), summary, others


def _is_block(value: Mapping[str, Any]) -> bool:
    return isinstance(value.get("type"), str) or isinstance(value.get("text"), str)


def summary_data(summary: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Provider data for a signed reasoning summary, which is sent back. Empty if it is unsigned."""
    if not any(part.get("signature") for part in summary):
        return {}
    return {SIGNED_CONTENT: [{"type": "reasoning", "summary": [part]} for part in summary]}


def join_texts(pieces: Any) -> str:
    return "".join(piece.get("text") or "" for piece in pieces or ())


def read_reasoning(message: Mapping[str, Any]) -> str:
    """Reasoning under any key. Details are used only without plain text, which repeats them."""
    plain = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(plain, str) and plain:
        return plain
    details = message.get("reasoning_details") or message.get("thinking_blocks")
    if not details:
        return ""
    return "".join(
        detail.get("text") or detail.get("summary") or detail.get("thinking") or ""
        for detail in details
        if isinstance(detail, dict)
    )


def read_citations(annotations: Iterable[Mapping[str, Any]], body: Mapping[str, Any]) -> tuple[Citation, ...]:
    """Read citations from annotations of the message, else from search results or URLs next to it."""
    if annotations and (notes := [note for note in annotations if note.get("type") == "url_citation"]):
        return tuple(_read_citation(note, note.get("url_citation") or {}, "content") for note in notes)
    if results := body.get("search_results"):
        return tuple(_read_citation(result, result, "snippet") for result in results)
    if urls := body.get("citations"):
        return tuple(Citation(url=url) for url in urls if isinstance(url, str))
    return ()


def _read_citation(data: Mapping[str, Any], source: Mapping[str, Any], quote_key: str) -> Citation:
    return Citation(
        url=source.get("url"),
        title=source.get("title"),
        quote=source.get(quote_key) or None,
        start=source.get("start_index"),
        end=source.get("end_index"),
        provider_data=dict(data),
    )


def read_logprobs(logprobs: Any) -> list[dict[str, Any]]:
    """Read log probabilities by token, in the current or the legacy form."""
    if not isinstance(logprobs, dict):
        return []
    if logprobs.get("content"):
        return [read_token(entry) for entry in logprobs["content"]]
    pairs = zip(logprobs.get("tokens") or (), logprobs.get("token_logprobs") or (), strict=False)
    return [{"token": token, "logprob": logprob, "top": []} for token, logprob in pairs]


def read_token(entry: Mapping[str, Any]) -> dict[str, Any]:
    top = entry.get("top_logprobs") or ()
    return {
        "token": entry.get("token"),
        "logprob": entry.get("logprob"),
        "top": [{"token": other.get("token"), "logprob": other.get("logprob")} for other in top],
    }


READ_KEYS = frozenset(
    ("id", "object", "created", "model", "choices", "usage", "error", "search_results", "citations", "obfuscation")
)
READ_CHOICE_KEYS = frozenset(("index", "message", "delta", "finish_reason", "logprobs", "usage", "error"))
READ_MESSAGE_KEYS = frozenset(
    (
        "role", "content", "refusal", "reasoning", "reasoning_content", "tool_calls", "function_call", "annotations",
        "audio", "images", *OPAQUE_KEYS, *VENDOR_KEYS,
    )
)  # fmt: skip
_READ_USAGE_KEYS = frozenset(
    (
        "prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details",
        "prompt_cache_hit_tokens", "cached_tokens", "num_cached_tokens", "cache_read_input_tokens",
        "cache_creation_input_tokens", "reasoning_tokens", "citation_tokens", "num_search_queries",
        "num_sources_used", "server_tool_use", "cost", "cost_in_usd_ticks",
    )
)  # fmt: skip


def read_metadata(body: Mapping[str, Any], choice: Mapping[str, Any], message: Mapping[str, Any]) -> JsonDict:
    """Read service tier, stop sequence and vendor-specific data, as fields of a response."""
    vendor: JsonDict = {}
    keep_others(vendor, body, READ_KEYS)
    keep_others(vendor, choice, READ_CHOICE_KEYS)
    keep_others(vendor, message, READ_MESSAGE_KEYS)
    others: JsonDict = {}
    keep_others(others, as_mapping(body.get("usage") or choice.get("usage")), _READ_USAGE_KEYS)
    if others:
        vendor["usage"] = others
    tier, stop = vendor.pop("service_tier", None), None
    for key in _STOP_KEYS:
        if isinstance(vendor.get(key), str):
            stop = vendor.pop(key)
    fields: JsonDict = {"service_tier": tier if isinstance(tier, str) else None, "stop_sequence": stop}
    return {**fields, "vendor": vendor} if vendor else fields


def keep_others(kept: JsonDict, data: Mapping[str, Any], read: frozenset[str]) -> None:
    """Add data without a field of its own, unless it is empty."""
    if not read.issuperset(data):
        kept |= {key: value for key, value in data.items() if key not in read and value not in (None, "", [], {})}


_STOP_KEYS = ("stop_reason", "matched_stop")
"""Keys of a choice with the stop sequence, or with the number of a token."""

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


def read_finish_reason(choice: Mapping[str, Any]) -> str | None:
    """Read the finish reason, under any key."""
    reason: str | None = choice.get("finish_reason") or choice.get("native_finish_reason")
    details = None if reason else choice.get("finish_details")
    return details.get("type") if isinstance(details, dict) else reason


def normalize_finish_reason(raw: str | None, *, called: bool, refused: bool) -> FinishReason:
    """Normalize a finish reason. Calls and refusals take precedence over `stop`."""
    reason = _REASONS.get(raw, "other") if raw else None
    if reason is None or reason == "stop":
        return "tool_calls" if called else "refusal" if refused else reason or "other"
    return reason


_TICKS_PER_DOLLAR = 1e10
"""xAI reports cost in ticks. Its recorded replies match its prices at this rate."""

_DETAILS = {
    "citation_tokens": "output_citation_tokens",
    "num_search_queries": "web_searches",
    "num_sources_used": "web_sources",
}
_PROMPT_DETAILS = {
    "text_tokens": "input_text_tokens",
    "audio_tokens": "input_audio_tokens",
    "image_tokens": "input_image_tokens",
    "video_tokens": "input_video_tokens",
}
_COMPLETION_DETAILS = {
    "text_tokens": "output_text_tokens",
    "audio_tokens": "output_audio_tokens",
    "image_tokens": "output_image_tokens",
    "accepted_prediction_tokens": "accepted_prediction_tokens",
    "rejected_prediction_tokens": "rejected_prediction_tokens",
}


def read_usage(usage: Any) -> Usage | None:
    if not isinstance(usage, dict) or not usage:
        return None
    prompt = as_mapping(usage.get("prompt_tokens_details"))
    completion = as_mapping(usage.get("completion_tokens_details"))
    return Usage.from_counts(
        first_number(usage.get("prompt_tokens")),
        first_number(usage.get("completion_tokens")),
        total=first_number(usage.get("total_tokens")),
        cache_read=first_number(
            prompt.get("cached_tokens"),
            usage.get("prompt_cache_hit_tokens"),
            usage.get("cached_tokens"),
            usage.get("num_cached_tokens"),
            usage.get("cache_read_input_tokens"),
        ),
        cache_write=first_number(
            prompt.get("cache_write_tokens"),
            prompt.get("cache_creation_tokens"),
            prompt.get("cache_creation_input_tokens"),
            usage.get("cache_creation_input_tokens"),
        ),
        reasoning=first_number(completion.get("reasoning_tokens"), usage.get("reasoning_tokens")),
        details=_read_details(usage, prompt, completion),
        billed=read_cost(usage),
    )


def _read_details(usage: Mapping[str, Any], prompt: Mapping[str, Any], completion: Mapping[str, Any]) -> dict[str, Any]:
    """Read the counts that most replies lack."""
    details: dict[str, Any] = {}
    for counts, names in ((usage, _DETAILS), (prompt, _PROMPT_DETAILS), (completion, _COMPLETION_DETAILS)):
        for key, count in counts.items():
            if count and key in names:
                details[names[key]] = count
    if "web_searches" not in details and (tool_use := as_mapping(usage.get("server_tool_use"))):
        details["web_searches"] = tool_use.get("web_search_requests")
    return details


def as_mapping(counts: Any) -> Mapping[str, Any]:
    return counts if isinstance(counts, dict) else {}


def read_cost(usage: Mapping[str, Any]) -> Any:
    """Read the cost in US dollars. With a user's own key, gateways report the vendor's cost separately."""
    cost = usage.get("cost")
    if isinstance(cost, dict):
        return cost.get("total_cost")
    # Zero ticks are reported where another party bills, such as Azure.
    if cost is None and isinstance(ticks := usage.get("cost_in_usd_ticks"), int | float) and ticks:
        return ticks / _TICKS_PER_DOLLAR
    if usage.get("is_byok") and isinstance(cost, int | float):
        upstream = as_mapping(usage.get("cost_details")).get("upstream_inference_cost")
        return cost + upstream if isinstance(upstream, int | float) else cost
    return cost


def first_number(*values: Any) -> int:
    for value in values:
        if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):  # 1e999 is valid JSON
            return int(value)
    return 0
