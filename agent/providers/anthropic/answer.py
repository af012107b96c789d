"""Reading a message: its content blocks, its usage, and why it ended. The same for whole answers and for streams."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from ...schemas import compile_schema
from ...types import (
    Citation,
    FinishReason,
    Origin,
    Part,
    RefusalContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolSpec,
    Usage,
    VendorContent,
)
from .settings import SCHEMA_DIALECT, parameters_of

_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "pause_turn": "pause",
    "compaction": "pause",
    "refusal": "refusal",
}


def stop_reason(raw: str | None) -> FinishReason | None:
    return _REASONS.get(raw, "other") if raw else None


def read_block(block: dict[str, Any], origin: Origin, tools: Mapping[str, ToolSpec]) -> Part | None:
    """A block as a part; None if it says nothing. What we do not know stays as it is, for the vendor to get back."""
    match block["type"]:
        case "text":
            return _read_text(block, origin)
        case "thinking":
            return _read_thinking(block, origin)
        case "redacted_thinking":
            rest = _rest(block, "type", "data")
            return ThinkingContent(
                thinking="", redacted=True, encrypted_content=block["data"], provider_data=rest, origin=origin
            )
        case "tool_use":
            return _read_call(block, origin, tools)
        case kind:
            return VendorContent(kind=kind, provider_data=block, origin=origin)


def _read_text(block: Mapping[str, Any], origin: Origin) -> TextContent | None:
    text, sources = block.get("text") or "", block.get("citations") or ()
    rest = _rest(block, "type", "text", "citations")
    if not sources and rest is None:
        return TextContent.of(text) if text else None
    return TextContent(
        text=text, citations=[_citation(source) for source in sources], provider_data=rest, origin=origin
    )


def _citation(source: dict[str, Any]) -> Citation:
    address = source.get("url") or source.get("source")
    return Citation(
        url=address if isinstance(address, str) else None,
        title=source.get("title") or source.get("document_title"),
        quote=source.get("cited_text"),
        provider_data=source,
    )


def _read_thinking(block: Mapping[str, Any], origin: Origin) -> ThinkingContent | None:
    thinking, signature = block.get("thinking") or "", block.get("signature") or ""
    if not thinking and not signature:
        return None
    rest = _rest(block, "type", "thinking", "signature")
    return ThinkingContent(thinking=thinking, signature=signature, provider_data=rest, origin=origin)


def original_name(sent: str, tools: Mapping[str, ToolSpec]) -> str:
    """What the caller calls the tool that was sent under that name."""
    return tools[sent].name if sent in tools else sent


def _read_call(block: Mapping[str, Any], origin: Origin, tools: Mapping[str, ToolSpec]) -> ToolCall:
    given = block.get("input")
    name = block["name"]
    rest = _rest(block, "type", "id", "name", "input")
    invalid: str | None = None
    if given is not None and not isinstance(given, dict):
        invalid = given if isinstance(given, str) else to_json(given).decode()
    return ToolCall.of(
        block["id"],
        original_name(name, tools),
        _restored(given, tools.get(name)) if isinstance(given, dict) else {},
        invalid_arguments=invalid,
        provider_data=rest,
        origin=None if rest is None else origin,
    )


def _restored(arguments: dict[str, Any], tool: ToolSpec | None) -> dict[str, Any]:
    """The arguments as the tool's own schema wants them; a strict tool's schema was sent in another form."""
    if tool is None or not tool.strict:
        return arguments
    compiled = compile_schema(parameters_of(tool), SCHEMA_DIALECT)
    restored = compiled.restore(arguments) if compiled.strict else arguments
    return restored if isinstance(restored, dict) else arguments


def _rest(block: Mapping[str, Any], *known: str) -> dict[str, Any] | None:
    """What a block holds beside what we have names for."""
    return {key: value for key, value in block.items() if key not in known} or None


def refusal_in(message: Mapping[str, Any]) -> RefusalContent | None:
    """Why an answer was refused, where the vendor explains it."""
    details = message.get("stop_details")
    explanation = details.get("explanation") if isinstance(details, Mapping) else None
    return RefusalContent(refusal=explanation) if explanation else None


_DETAILS = (
    ("cache_creation", "ephemeral_5m_input_tokens", "cache_write_5m_tokens"),
    ("cache_creation", "ephemeral_1h_input_tokens", "cache_write_1h_tokens"),
    ("server_tool_use", "web_search_requests", "web_searches"),
    ("server_tool_use", "web_fetch_requests", "web_fetches"),
)
_BESIDE = {"compaction": "compaction", "advisor_message": "advisor"}
"""Steps of an answer that are billed beside it, by what we call their tokens."""


def read_usage(usage: Any) -> Usage | None:
    """The vendor counts uncached input, cache reads and cache writes apart; our prompt is their sum."""
    if not isinstance(usage, dict) or not usage:
        return None
    details = {name: _count(usage.get(group), key) for group, key, name in _DETAILS}
    for step in usage.get("iterations") or ():
        if isinstance(step, dict) and (beside := _BESIDE.get(str(step.get("type")))) is not None:
            for direction, tokens in (("input", _input_tokens(step)), ("output", _count(step, "output_tokens"))):
                name = f"{beside}_{direction}_tokens"
                details[name] = details.get(name, 0) + tokens
    return Usage.from_counts(
        _input_tokens(usage),
        _count(usage, "output_tokens"),
        cache_read=_count(usage, "cache_read_input_tokens"),
        cache_write=_count(usage, "cache_creation_input_tokens"),
        reasoning=_count(usage.get("output_tokens_details"), "thinking_tokens"),
        details=details,
    )


def _input_tokens(counts: Mapping[str, Any]) -> int:
    kinds = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return sum(_count(counts, kind) for kind in kinds)


def _count(counts: Any, key: str) -> int:
    """A count, or 0 for what is none: an answer that was paid for must not fail for that."""
    value = counts.get(key) if isinstance(counts, dict) else None
    return int(value) if isinstance(value, int | float) and 0 <= value < math.inf else 0
