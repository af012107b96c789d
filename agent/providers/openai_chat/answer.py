"""Reading a chat completion: one message, in every spelling vendors have for it.

Generous where vendors differ, so that whatever was paid for is found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from ...types import FinishReason, Origin, Part, RefusalContent, TextContent, ThinkingContent, ToolCall, Usage
from ...wire import parse_json
from .dialect import OPAQUE_KEYS


def read_message(message: Mapping[str, Any], origin: Origin, response_id: str) -> tuple[Part, ...]:
    """A whole message as parts: reasoning, text, refusal, calls."""
    text, thinking = split_content(message.get("content"))
    thinking = thinking or reasoning_text(message)
    opaque = {key: message[key] for key in OPAQUE_KEYS if message.get(key)}
    parts: list[Part] = []
    if thinking or opaque:
        parts.append(thinking_part(thinking, opaque, origin))
    if text:
        parts.append(TextContent(text=text))
    if message.get("refusal"):
        parts.append(RefusalContent(refusal=message["refusal"]))
    for position, call in enumerate(_calls_in(message)):
        function = function_in(call)
        opaque = {key: call[key] for key in OPAQUE_KEYS if call.get(key)}
        if "custom" in call and call.get("type") == "custom":
            opaque["type"] = "custom"
        id = call_id(call.get("id"), response_id, position)
        parts.append(finished_call(id, function.get("name") or "", function.get("arguments"), opaque, origin))
    return tuple(parts)


def _calls_in(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    calls = list(message.get("tool_calls") or ())
    legacy = message.get("function_call")
    if not calls and isinstance(legacy, dict) and legacy.get("name"):
        calls.append({"function": legacy})  # the shape before tools existed; some vendors leave an empty one behind
    return calls


def function_in(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Name and arguments of a call. A custom tool takes text, which we call its `input`."""
    if call.get("type") == "custom" or (call.get("custom") and not call.get("function")):
        custom = call.get("custom") or {}
        return {"name": custom.get("name"), "arguments": custom.get("input")}
    return call.get("function") or {}


def split_content(content: Any) -> tuple[str, str]:
    """Text and thinking of a message's content, which some vendors write as a list of blocks."""
    if not content:
        return "", ""
    if isinstance(content, str):
        return content, ""
    text: list[str] = []
    thinking: list[str] = []
    for block in content:
        if block.get("type") == "thinking":
            inner = block.get("thinking")
            thinking.append(
                inner if isinstance(inner, str) else "".join(piece.get("text") or "" for piece in inner or ())
            )
        elif isinstance(block.get("text"), str):
            text.append(block["text"])
    return "".join(text), "".join(thinking)


def reasoning_text(message: Mapping[str, Any]) -> str:
    """Reasoning under its various names; the detailed form only where there is no plain one, or it would come twice."""
    plain = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(plain, str) and plain:
        return plain
    details: Sequence[Any] = message.get("reasoning_details") or ()
    return "".join(detail.get("text") or detail.get("summary") or "" for detail in details if isinstance(detail, dict))


def thinking_part(thinking: str, opaque: Mapping[str, Any], origin: Origin) -> ThinkingContent:
    if not opaque:
        return ThinkingContent(thinking=thinking, origin=origin)
    return ThinkingContent(thinking=thinking, origin=origin, provider_data=opaque)


def finished_call(id: str, name: str, arguments: Any, opaque: Mapping[str, Any], origin: Origin) -> ToolCall:
    """A call whose arguments have arrived whole. What is not a JSON object is kept as text, for the model to see."""
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
    if opaque:
        return ToolCall(
            id=id, name=name, arguments=values, invalid_arguments=invalid, provider_data=opaque, origin=origin
        )
    return ToolCall(id=id, name=name, arguments=values, invalid_arguments=invalid)


def call_id(given: Any, response_id: str, position: int) -> str:
    """The vendor's id; where it gives none, one that is the same each time this answer is read."""
    if given:
        return str(given)
    return "call_" + hashlib.sha256(f"{response_id}/{position}".encode()).hexdigest()[:20]


def read_usage(usage: Any) -> Usage | None:
    if not isinstance(usage, dict) or not usage:
        return None
    prompt_details = usage.get("prompt_tokens_details") or {}
    completion_details = usage.get("completion_tokens_details") or {}
    return Usage.from_counts(
        usage.get("prompt_tokens"),
        usage.get("completion_tokens"),
        total=usage.get("total_tokens"),
        cache_read=_first_number(
            prompt_details.get("cached_tokens"),
            usage.get("prompt_cache_hit_tokens"),
            usage.get("cached_tokens"),
            usage.get("num_cached_tokens"),
            usage.get("cache_read_input_tokens"),
        ),
        cache_write=_first_number(
            prompt_details.get("cache_write_tokens"),
            prompt_details.get("cache_creation_tokens"),
            usage.get("cache_creation_input_tokens"),
        ),
        reasoning=_first_number(completion_details.get("reasoning_tokens"), usage.get("reasoning_tokens")),
    )


def _first_number(*values: Any) -> int:
    return next((int(value) for value in values if isinstance(value, int | float)), 0)


_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "error": "error",
}


def stop_reason(raw: str | None, *, called: bool, refused: bool) -> FinishReason | None:
    """Why the answer ended. Vendors say `stop` beside tool calls and refusals, too; what is there counts more."""
    known = _REASONS.get(raw, "other") if raw else None
    if known in (None, "stop"):
        if called:
            return "tool_calls"
        if refused:
            return "refusal"
    return known
