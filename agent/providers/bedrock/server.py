"""Server side of Converse: decoding of requests; responses, event streams and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from pydantic_core import to_json
from typing_extensions import override

from ... import errors
from ...http.event_stream import CONTENT_TYPE, encode_message
from ...types import AgentResponse, Part, TextContent, ThinkingContent, ToolCall, VendorContent
from ..encoding import JsonDict
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
    usage_or_zero,
)
from ..server_stream import Block, BlockEncoder
from .models import API
from .server_requests import RequestReader

_REASONS: Mapping[str, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "refusal": "content_filtered",
    "content_filter": "content_filtered",
    "error": "malformed_model_output",
}
_ERRORS: Mapping[ErrorKind, tuple[int, str]] = {
    "bad_request": (400, "ValidationException"),
    "context_length": (400, "ValidationException"),
    "authentication": (403, "AccessDeniedException"),
    "not_found": (404, "ResourceNotFoundException"),
    "rate_limit": (429, "ThrottlingException"),
    "quota": (400, "ServiceQuotaExceededException"),
    "overloaded": (503, "ServiceUnavailableException"),
    "content_filter": (400, "ValidationException"),
    "server": (500, "InternalServerException"),
}
"""Status and name by kind of error."""
_STREAM_EXCEPTIONS: Mapping[ErrorKind, str] = {
    "rate_limit": "throttlingException",
    "quota": "throttlingException",
    "overloaded": "serviceUnavailableException",
    "server": "internalServerException",
}
"""Exceptions of streams by kind of error. Default: validationException."""
_OPERATIONS: Mapping[str, Endpoint] = {"converse": "generate", "converse-stream": "generate", "count-tokens": "count"}


def _split_path(path: str) -> tuple[str, str]:
    """Return model and operation of a path; empty if it is not one of Converse."""
    parts = urlsplit(path).path.split("/")
    if len(parts) < 3 or parts[-3] != "model" or parts[-1] not in _OPERATIONS:
        return "", ""
    return unquote(parts[-2]), parts[-1]


class ConverseServer:
    """Server side of Converse."""

    api: ClassVar[str] = API
    signature_field: ClassVar[str | None] = "signature"
    signs_whole_parts: ClassVar[bool] = False

    def match_endpoint(self, path: str) -> Endpoint | None:
        return _OPERATIONS.get(_split_path(path)[1])

    def decode_request(self, path: str, body: bytes) -> InboundRequest:
        model, operation = _split_path(path)
        with check_shape():
            fields = Fields(body)
            if operation == "count-tokens":
                fields = Fields(fields.object("input").get("converse", {}))
            return RequestReader(fields, model).inbound(stream=operation == "converse-stream")

    def find_losses(self, response: AgentResponse) -> tuple[str, ...]:
        lost = (part.type for part in response.content if _encode_block(part) is None)
        return tuple(dict.fromkeys(f"a part of type {kind!r}" for kind in lost))

    def encode_response(self, response: AgentResponse, inbound: InboundRequest) -> bytes:
        blocks = [block for part in response.content if (block := _encode_block(part)) is not None]
        output = {"message": {"role": "assistant", "content": blocks}}
        return to_json({"output": output, **_encode_stop(response), **_encode_metadata(response)})

    def encoder(self, inbound: InboundRequest) -> ConverseEncoder:
        return ConverseEncoder(inbound)

    def stream_headers(self, inbound: InboundRequest) -> Mapping[str, str]:
        return {"content-type": CONTENT_TYPE}

    def encode_error(self, error: errors.AgentError) -> tuple[int, bytes]:
        status, name = _ERRORS[error_kind(error)]
        return error_status(error, status), to_json({"__type": error.code or name, "message": error.message})

    def encode_count(self, tokens: int) -> bytes:
        return to_json({"inputTokens": tokens})

    def encode_models(self, models: Sequence[str]) -> bytes:
        return to_json({"modelSummaries": [{"modelId": model, "modelName": model} for model in models]})


def _encode_block(part: Part) -> JsonDict | None:
    """Encode a part as a block; None if Converse cannot express it."""
    match part:
        case TextContent(text=text, citations=citations) if citations:
            sources = [citation.provider_data or {"title": citation.title} for citation in citations]
            return {"citationsContent": {"content": [{"text": text}], "citations": sources}}
        case TextContent(text=text):
            return {"text": text}
        case ThinkingContent(redacted=True):
            return {"reasoningContent": {"redactedContent": part.encrypted_content}}
        case ThinkingContent():
            signed = {"signature": part.signature} if part.signature else {}
            return {"reasoningContent": {"reasoningText": {"text": part.thinking, **signed}}}
        case ToolCall():
            arguments: Any = part.arguments if part.invalid_arguments is None else part.invalid_arguments
            return {"toolUse": {"toolUseId": part.id, "name": part.name, "input": arguments}}
        case VendorContent() if not is_foreign(part, API):
            return dict(part.provider_data or {})
        case _:
            return None


def _encode_stop(response: AgentResponse) -> JsonDict:
    return {"stopReason": encode_stop_reason(response, _REASONS)}


def _encode_metadata(response: AgentResponse) -> JsonDict:
    usage = usage_or_zero(response)
    counts = {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.completion_tokens,
        "totalTokens": usage.total_tokens,
        "cacheReadInputTokens": usage.cache_read_tokens,
        "cacheWriteInputTokens": usage.cache_write_tokens,
    }
    return {"usage": counts, "metrics": {"latencyMs": int(response.latency_ms or 0)}}


class ConverseEncoder(BlockEncoder):
    """Encoder of an event stream."""

    def __init__(self, inbound: InboundRequest) -> None:
        super().__init__(inbound)
        self._blocks = 0

    @override
    def write_start(self) -> bytes:
        return _encode_event("messageStart", {"role": "assistant"})

    @override
    def write_open(self, block: Block) -> bytes:
        block.number = self._blocks
        self._blocks += 1
        if block.kind != "call":
            return b""  # only calls have a start event
        start = {"toolUse": {"toolUseId": block.call.id, "name": block.call.name}}
        return _encode_event("contentBlockStart", {"contentBlockIndex": block.number, "start": start})

    @override
    def write_delta(self, block: Block, text: str) -> bytes:
        match block.kind:
            case "call":
                return self._encode_delta(block, {"toolUse": {"input": text}})
            case "thinking":
                return self._encode_delta(block, {"reasoningContent": {"text": text}})
            case _:
                return self._encode_delta(block, {"text": text})

    def _encode_delta(self, block: Block, delta: Mapping[str, Any]) -> bytes:
        return _encode_event("contentBlockDelta", {"contentBlockIndex": block.number, "delta": delta})

    @override
    def write_close(self, block: Block) -> bytes:
        data = b""
        match block.part:
            case ThinkingContent(redacted=True, encrypted_content=sealed):
                data = self._encode_delta(block, {"reasoningContent": {"redactedContent": sealed}})
            case ThinkingContent(signature=str(signature)) if signature:
                data = self._encode_delta(block, {"reasoningContent": {"signature": signature}})
            case TextContent(citations=citations):
                for citation in citations:
                    source = citation.provider_data or {"title": citation.title}
                    data += self._encode_delta(block, {"citation": source})
            case _:
                pass
        return data + _encode_event("contentBlockStop", {"contentBlockIndex": block.number})

    @override
    def write_end(self, response: AgentResponse) -> bytes:
        return _encode_event("messageStop", _encode_stop(response)) + _encode_event(
            "metadata", _encode_metadata(response)
        )

    @override
    def ping(self) -> bytes:
        return b""  # event streams have no keep-alive messages

    def fail(self, error: errors.AgentError) -> bytes:
        name = _STREAM_EXCEPTIONS.get(error_kind(error), "validationException")
        headers = {":message-type": "exception", ":exception-type": name, ":content-type": "application/json"}
        return encode_message(headers, to_json({"message": error.message}))


def _encode_event(name: str, payload: Mapping[str, Any]) -> bytes:
    headers = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    return encode_message(headers, to_json(payload))


SERVER = ConverseServer()
