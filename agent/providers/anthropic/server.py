"""Server side of the Messages API: responses, streams and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pydantic_core import to_json
from typing_extensions import override

from ... import errors
from ...types import (
    AgentResponse,
    Citation,
    Part,
    RefusalContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    VendorContent,
)
from ..server_dialect import (
    Endpoint,
    ErrorKind,
    Fields,
    InboundRequest,
    check_shape,
    encode_stop_reason,
    error_kind,
    error_status,
    is_foreign,
    sse,
    usage_or_zero,
)
from ..server_stream import Block, BlockEncoder
from .models import API
from .server_requests import RequestReader

_REASONS: Mapping[str, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "refusal": "refusal",
    "content_filter": "refusal",
    "pause": "pause_turn",
}
_ERRORS: Mapping[ErrorKind, tuple[int, str]] = {
    "bad_request": (400, "invalid_request_error"),
    "context_length": (400, "invalid_request_error"),
    "authentication": (401, "authentication_error"),
    "not_found": (404, "not_found_error"),
    "rate_limit": (429, "rate_limit_error"),
    "quota": (400, "billing_error"),
    "overloaded": (529, "overloaded_error"),
    "content_filter": (400, "content_filter"),
    "server": (500, "api_error"),
}
"""Status and type by kind of error."""
_MODEL = {"type": "model", "created_at": "1970-01-01T00:00:00Z", "lifecycle": "active"}


class MessagesServer:
    """Server side of the Messages API."""

    api: ClassVar[str] = API
    signature_field: ClassVar[str | None] = "signature"
    signs_whole_parts: ClassVar[bool] = False

    def match_endpoint(self, path: str) -> Endpoint | None:
        path = urlsplit(path).path
        if path.endswith("/messages/count_tokens"):
            return "count"
        return "generate" if path.endswith("/messages") else None

    def decode_request(self, path: str, body: bytes) -> InboundRequest:
        with check_shape():
            return RequestReader(Fields(body)).inbound()

    def find_losses(self, response: AgentResponse) -> tuple[str, ...]:
        return tuple(dict.fromkeys(loss for part in response.content if (loss := _find_loss(part)) is not None))

    def encode_response(self, response: AgentResponse, inbound: InboundRequest) -> bytes:
        blocks = [block for part in response.content if (block := _encode_block(part)) is not None]
        head = _encode_head(response, inbound)
        return to_json({**head, "content": blocks, **_encode_end(response), "usage": _encode_usage(response)})

    def encoder(self, inbound: InboundRequest) -> MessagesEncoder:
        return MessagesEncoder(inbound)

    def stream_headers(self, inbound: InboundRequest) -> Mapping[str, str]:
        return {"content-type": "text/event-stream"}

    def encode_error(self, error: errors.AgentError) -> tuple[int, bytes]:
        status, kind = _ERRORS[error_kind(error)]
        return error_status(error, status), to_json(_encode_error(error, kind))

    def encode_count(self, tokens: int) -> bytes:
        return to_json({"input_tokens": tokens})

    def encode_models(self, models: Sequence[str]) -> bytes:
        data = [{**_MODEL, "id": model, "display_name": model} for model in models]
        first, last = (models[0], models[-1]) if models else (None, None)
        return to_json({"data": data, "has_more": False, "first_id": first, "last_id": last})


def _encode_error(error: errors.AgentError, kind: str) -> dict[str, Any]:
    return {
        "type": "error",
        "error": {"type": error.code or kind, "message": error.message},
        "request_id": error.request_id,
    }


def _find_loss(part: Part) -> str | None:
    match part:
        case TextContent() if not all(_has_vendor_location(citation) for citation in part.citations):
            return "citations"
        case TextContent() | ThinkingContent() | RefusalContent() | ToolCall():
            return None
        case VendorContent() if not is_foreign(part, API):
            return None
        case _:
            return f"a part of type {part.type!r}"


def _has_vendor_location(citation: Citation) -> bool:
    return str((citation.provider_data or {}).get("type", "")).endswith("_location")


def _encode_block(part: Part) -> dict[str, Any] | None:
    """Encode a part as a block; None if the part is encoded elsewhere or not supported."""
    rest = {} if is_foreign(part, API) else dict(part.provider_data or {})
    match part:
        case TextContent():
            block = {**rest, "type": "text", "text": part.text}
            sources = [citation.provider_data for citation in part.citations if _has_vendor_location(citation)]
            return {**block, "citations": sources} if sources else block
        case ThinkingContent(redacted=True):
            return {**rest, "type": "redacted_thinking", "data": part.encrypted_content}
        case ThinkingContent():
            return {**rest, "type": "thinking", "thinking": part.thinking, "signature": part.signature}
        case ToolCall():
            arguments: Any = part.arguments if part.invalid_arguments is None else part.invalid_arguments
            return {**rest, "type": "tool_use", "id": part.id, "name": part.name, "input": arguments}
        case VendorContent() if not is_foreign(part, API):
            return rest or {"type": part.kind}
        case _:
            return None


def _encode_head(response: AgentResponse, inbound: InboundRequest) -> dict[str, Any]:
    return {
        "id": response.id or f"msg_{inbound.id}",
        "type": "message",
        "role": "assistant",
        "model": response.model or inbound.model,
    }


def _encode_end(response: AgentResponse) -> dict[str, Any]:
    details = {"type": "refusal", "category": None, "explanation": response.refusal} if response.refusal else None
    return {"stop_reason": encode_stop_reason(response, _REASONS), "stop_sequence": None, "stop_details": details}


def _encode_usage(response: AgentResponse) -> dict[str, Any]:
    usage = usage_or_zero(response)
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
    }


_EMPTY_BLOCKS: Mapping[str, Mapping[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


class MessagesEncoder(BlockEncoder):
    """Encoder of a stream of events."""

    def __init__(self, inbound: InboundRequest) -> None:
        super().__init__(inbound)
        self._blocks = 0

    def _encode_block_start(self, block: Mapping[str, Any]) -> bytes:
        number = self._blocks
        self._blocks += 1
        return _encode_event({"type": "content_block_start", "index": number, "content_block": block})

    def _encode_delta(self, number: int, kind: str, **delta: Any) -> bytes:
        return _encode_event({"type": "content_block_delta", "index": number, "delta": {"type": kind, **delta}})

    @override
    def write_start(self) -> bytes:
        empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "stop_details": None}
        facts = self.head.model_copy(update={"usage": self.usage})
        counts = {**_encode_usage(facts), "output_tokens": 1}
        return _encode_event(
            {"type": "message_start", "message": {**_encode_head(facts, self.inbound), **empty, "usage": counts}}
        )

    @override
    def write_open(self, block: Block) -> bytes:
        block.number = self._blocks
        if block.kind == "call":
            call = block.call.model_copy(update={"arguments": {}, "invalid_arguments": None})
            return self._encode_block_start(_encode_block(call) or {})
        if isinstance(block.part, ThinkingContent) and block.part.redacted:
            return self._encode_block_start(_encode_block(block.part) or {})
        if block.kind == "refusal":
            return b""  # encoded in the stop details
        return self._encode_block_start(_EMPTY_BLOCKS[block.kind])

    @override
    def write_delta(self, block: Block, text: str) -> bytes:
        if block.kind == "refusal":
            return b""
        kind, key = _DELTAS[block.kind]
        return self._encode_delta(block.number, kind, **{key: text})

    @override
    def write_close(self, block: Block) -> bytes:
        if block.kind == "refusal":
            return b""
        data = b""
        match block.part:
            case ThinkingContent(redacted=False, signature=str(signature)) if signature:
                data = self._encode_delta(block.number, "signature_delta", signature=signature)
            case TextContent(citations=citations):
                for citation in filter(_has_vendor_location, citations):
                    data += self._encode_delta(block.number, "citations_delta", citation=citation.provider_data)
            case _:
                pass
        return data + _encode_event({"type": "content_block_stop", "index": block.number})

    @override
    def write_part(self, part: Part) -> bytes:
        block, number = _encode_block(part), self._blocks
        if block is None:
            return b""
        return self._encode_block_start(block) + _encode_event({"type": "content_block_stop", "index": number})

    @override
    def write_end(self, response: AgentResponse) -> bytes:
        ending = {"type": "message_delta", "delta": _encode_end(response), "usage": _encode_usage(response)}
        return _encode_event(ending) + _encode_event({"type": "message_stop"})

    @override
    def ping(self) -> bytes:
        return _encode_event({"type": "ping"})

    def fail(self, error: errors.AgentError) -> bytes:
        return _encode_event(_encode_error(error, _ERRORS[error_kind(error)][1]))


def _encode_event(data: Mapping[str, Any]) -> bytes:
    return sse(data, str(data["type"]))


SERVER = MessagesServer()
