"""Decoding of content blocks, stop reasons, usage and exceptions, for whole responses and streams."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from ...types import (
    AgentRequest,
    AudioContent,
    Citation,
    FinishReason,
    ImageContent,
    Part,
    TextContent,
    ThinkingContent,
    ToolCall,
    Usage,
    VendorContent,
)
from ..anthropic.fields import SCHEMA_DIALECT
from ..codec import SentTools, read_count
from ..encoding import request_origin
from ..failures import ErrorDetails, read_error_details
from .fields import MAX_NAME_LENGTH
from .models import API

_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
    "malformed_model_output": "error",
    "malformed_tool_use": "error",
}


def map_stop_reason(raw: str) -> FinishReason:
    return _REASONS.get(raw, "other")


def block_kind(block: Mapping[str, Any]) -> str:
    """Return the name of the member that a block has."""
    return next(iter(block))


class BlockReader:
    """Decodes the content blocks of one response, with the tool names and schemas of its request."""

    def __init__(self, provider: str, request: AgentRequest) -> None:
        self._origin = request_origin(provider, API, request.model or "")
        self.tools: SentTools = SentTools(request, MAX_NAME_LENGTH, SCHEMA_DIALECT)

    def read_part(self, block: dict[str, Any]) -> Part | None:
        """Decode a block; None if it is blank. Blocks of other kinds are kept and sent back."""
        match block_kind(block), block:
            case "text", {"text": text}:
                return TextContent(text=text) if text else None
            case "toolUse", {"toolUse": {"toolUseId": id, "name": name} as call} if "type" not in call:
                return self._read_call(id, self.tools.original_name(name), call.get("input"))
            case "reasoningContent", {"reasoningContent": {"redactedContent": data}}:
                return ThinkingContent(thinking="", redacted=True, encrypted_content=data, origin=self._origin)
            case "reasoningContent", {"reasoningContent": {"reasoningText": reasoning}}:
                text, signature = reasoning.get("text") or "", reasoning.get("signature") or ""
                if not text and not signature:
                    return None
                return ThinkingContent(thinking=text, signature=signature, origin=self._origin)
            case "citationsContent", {"citationsContent": cited}:
                text = "".join(piece.get("text") or "" for piece in cited.get("content") or ())
                citations = [_read_citation(citation) for citation in cited.get("citations") or ()]
                return TextContent(text=text, citations=citations, origin=self._origin)
            case "image", {"image": {"format": format, "source": {"bytes": data}}}:
                return ImageContent(image_data=base64.b64decode(data), media_type=f"image/{format}")
            case "audio", {"audio": {"format": format, "source": {"bytes": data}}}:
                return AudioContent(data=base64.b64decode(data), media_type=f"audio/{format}")
            case kind, _:
                return VendorContent(kind=kind, provider_data=block, origin=self._origin)

    def _read_call(self, id: str, name: str, arguments: Any) -> ToolCall:
        """Decode a call. Input that is not a JSON object becomes `invalid_arguments`."""
        if arguments is None or isinstance(arguments, dict):
            return ToolCall(id=id, name=name, arguments=self.tools.restore(name, arguments or {}))
        invalid = arguments if isinstance(arguments, str) else to_json(arguments).decode()
        return ToolCall(id=id, name=name, invalid_arguments=invalid)


def _read_citation(citation: dict[str, Any]) -> Citation:
    web = (citation.get("location") or {}).get("web") or {}
    quote = "".join(piece.get("text") or "" for piece in citation.get("sourceContent") or ())
    return Citation(url=web.get("url"), title=citation.get("title"), quote=quote or None, provider_data=citation)


def read_usage(usage: Any) -> Usage | None:
    """Read usage. `inputTokens` excludes cache reads and writes."""
    if not isinstance(usage, dict) or not usage:
        return None
    read, write = read_count(usage, "cacheReadInputTokens"), read_count(usage, "cacheWriteInputTokens")
    prompt, output = read_count(usage, "inputTokens") + read + write, read_count(usage, "outputTokens")
    details = {f"cache_write_{ttl}_tokens": 0 for ttl in ("5m", "1h")}
    for entry in usage.get("cacheDetails") or ():
        if isinstance(entry, dict) and (name := f"cache_write_{entry.get('ttl')}_tokens") in details:
            details[name] += read_count(entry, "inputTokens")
    return Usage.from_counts(prompt, output, cache_read=read, cache_write=write, details=details)


def read_model(body: Mapping[str, Any], request: AgentRequest) -> str:
    """Return the model that a prompt router chose, or the requested one."""
    trace = body.get("trace")
    router = trace.get("promptRouter") if isinstance(trace, dict) else None
    chosen = router.get("invokedModelId") if isinstance(router, dict) else None
    return chosen if isinstance(chosen, str) else request.model or ""


def read_exception(event: Mapping[str, Any]) -> ErrorDetails | None:
    """Read an exception or error of a stream; None for other events.

    Names begin with a lower-case letter in streams: `throttlingException`.
    """
    name, content = next(iter(event.items()))
    if name == "error":
        return read_error_details(event)
    if not name.lower().endswith("exception") or not isinstance(content, dict):
        return None
    message = content.get("message") or content.get("originalMessage") or content.get("Message") or name
    return ErrorDetails(str(message), code=name[:1].upper() + name[1:])
