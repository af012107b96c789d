"""Decoding of content blocks, stop reasons and usage, for whole responses and streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from ...types import (
    AgentRequest,
    Citation,
    FinishReason,
    Part,
    RefusalContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    Usage,
    VendorContent,
)
from ..codec import SentTools, choose_unique_id, read_count, select_other_keys
from ..encoding import JsonDict, read_arguments, request_origin
from .fields import MAX_NAME_LENGTH, SCHEMA_DIALECT
from .models import API

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


def map_stop_reason(raw: str | None) -> FinishReason | None:
    return _REASONS.get(raw, "other") if raw else None


class BlockReader:
    """Decodes the content blocks of one response, with the tool names and schemas of its request."""

    def __init__(self, provider: str, request: AgentRequest, model: str) -> None:
        self._origin = request_origin(provider, API, request.model or model)
        self._ids: set[str] = set()
        self.warnings: dict[str, None] = {}
        self.tools: SentTools = SentTools(request, MAX_NAME_LENGTH, SCHEMA_DIALECT)

    def read_part(self, block: dict[str, Any]) -> Part | None:
        """Decode a block; None if it is blank. Blocks of unknown types are kept and sent back."""
        match block["type"]:
            case "text":
                return self._read_text(block)
            case "thinking":
                return self._read_thinking(block)
            case "redacted_thinking":
                return self._read_redacted_thinking(block)
            case "tool_use":
                return self._read_call(block)
            case kind:
                return VendorContent(kind=kind, provider_data=block, origin=self._origin)

    def with_unique_id(self, block: dict[str, Any]) -> dict[str, Any]:
        """Return a block of a call with an id that no other call of the response has."""
        if block.get("type") != "tool_use":
            return block
        id = block.get("id")
        unique = choose_unique_id(id if isinstance(id, str) and id else "toolu", self._ids, self.warnings)
        return block if unique == id else {**block, "id": unique}

    def _read_text(self, block: Mapping[str, Any]) -> TextContent | None:
        text, citations = block.get("text") or "", block.get("citations") or ()
        signature = block.get("signature") or None
        rest = select_other_keys(block, "type", "text", "citations", "signature")
        if not citations and rest is None and signature is None:
            return TextContent(text=text) if text else None
        return TextContent(
            text=text,
            signature=signature,
            citations=[read_citation(each) for each in citations],
            provider_data=rest,
            origin=self._origin,
        )

    def _read_thinking(self, block: Mapping[str, Any]) -> ThinkingContent | None:
        thinking, signature = block.get("thinking") or "", block.get("signature") or ""
        if not thinking and not signature:
            return None
        rest = select_other_keys(block, "type", "thinking", "signature")
        return ThinkingContent(thinking=thinking, signature=signature, provider_data=rest, origin=self._origin)

    def _read_redacted_thinking(self, block: Mapping[str, Any]) -> ThinkingContent:
        rest = select_other_keys(block, "type", "data")
        return ThinkingContent(
            thinking="", redacted=True, encrypted_content=block["data"], provider_data=rest, origin=self._origin
        )

    def _read_call(self, block: Mapping[str, Any]) -> ToolCall:
        """Decode a call. Input that is not a JSON object becomes `invalid_arguments`."""
        arguments, name = block.get("input"), self.tools.original_name(block["name"])
        rest = select_other_keys(block, "type", "id", "name", "input")
        invalid: str | None = None
        if arguments is not None and not isinstance(arguments, dict):
            invalid = arguments if isinstance(arguments, str) else to_json(arguments).decode()
        elif arguments is not None:
            arguments, invalid = read_arguments(arguments)
        return ToolCall(
            id=block["id"],
            name=name,
            arguments=self.tools.restore(name, arguments) if isinstance(arguments, dict) else {},
            invalid_arguments=invalid,
            provider_data=rest,
            origin=None if rest is None else self._origin,
        )


def read_citation(citation: dict[str, Any]) -> Citation:
    url = citation.get("url") or citation.get("source")
    return Citation(
        url=url if isinstance(url, str) else None,
        title=citation.get("title") or citation.get("document_title"),
        quote=citation.get("cited_text"),
        provider_data=citation,
    )


def read_refusal(message: Mapping[str, Any]) -> RefusalContent | None:
    """Return the explanation of a refusal, if any."""
    details = message.get("stop_details")
    explanation = details.get("explanation") if isinstance(details, Mapping) else None
    return RefusalContent(refusal=explanation) if explanation else None


_READ_KEYS = frozenset(("id", "type", "role", "content", "model", "stop_reason", "stop_sequence", "usage"))
_READ_USAGE_KEYS = frozenset(
    (
        "cache_creation",
        "cache_creation_input_tokens",
        "cache_read_input_tokens",
        "input_tokens",
        "output_tokens",
        "output_tokens_details",
        "server_tool_use",
        "service_tier",
    )
)


def read_metadata(message: Mapping[str, Any]) -> JsonDict:
    """Read service tier, stop sequence and vendor-specific data as fields of the response."""
    usage = message.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    tier, sequence = usage.get("service_tier"), message.get("stop_sequence")
    vendor = {key: value for key, value in message.items() if key not in _READ_KEYS and value}
    if others := {key: value for key, value in usage.items() if key not in _READ_USAGE_KEYS and value}:
        vendor["usage"] = others
    return {
        "service_tier": tier if isinstance(tier, str) else None,
        "stop_sequence": sequence if isinstance(sequence, str) else None,
        "vendor": vendor,
    }


_DETAILS = (
    ("cache_creation", "ephemeral_5m_input_tokens", "cache_write_5m_tokens"),
    ("cache_creation", "ephemeral_1h_input_tokens", "cache_write_1h_tokens"),
    ("server_tool_use", "web_search_requests", "web_searches"),
    ("server_tool_use", "web_fetch_requests", "web_fetches"),
)
_SEPARATE_ITERATIONS = {"compaction": "compaction", "advisor_message": "advisor"}
"""Iterations that are billed separately, and the prefix of their counts in `Usage.details`."""


def read_usage(usage: Any) -> Usage | None:
    """Read usage. `input_tokens` of the API excludes cache reads and writes."""
    if not isinstance(usage, dict) or not usage:
        return None
    details = {name: read_count(usage.get(group), key) for group, key, name in _DETAILS}
    for iteration in usage.get("iterations") or ():
        prefix = _SEPARATE_ITERATIONS.get(str(iteration.get("type"))) if isinstance(iteration, dict) else None
        if prefix is not None:
            for direction, tokens in (
                ("input", _prompt_tokens(iteration)),
                ("output", read_count(iteration, "output_tokens")),
            ):
                name = f"{prefix}_{direction}_tokens"
                details[name] = details.get(name, 0) + tokens
    return Usage.from_counts(
        _prompt_tokens(usage),
        read_count(usage, "output_tokens"),
        cache_read=read_count(usage, "cache_read_input_tokens"),
        cache_write=read_count(usage, "cache_creation_input_tokens"),
        reasoning=read_count(usage.get("output_tokens_details"), "thinking_tokens"),
        details=details,
    )


def _prompt_tokens(counts: Mapping[str, Any]) -> int:
    kinds = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return sum(read_count(counts, kind) for kind in kinds)
