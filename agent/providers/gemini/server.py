"""Server side of generateContent: responses, streams and errors."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pydantic_core import to_json
from typing_extensions import override

from ... import errors
from ...types import (
    AgentResponse,
    AudioContent,
    ImageContent,
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
    InboundRequest,
    ServerBase,
    check_shape,
    encode_stop_reason,
    error_kind,
    error_status,
    is_foreign,
    usage_or_zero,
)
from ..server_stream import Block, BlockEncoder
from .messages import METADATA_KIND
from .models import API
from .response import METADATA_KEYS
from .server_requests import METHOD_IN_PATH, RequestReader

_REASONS: Mapping[str, str] = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "length": "MAX_TOKENS",
    "content_filter": "SAFETY",
    "refusal": "SAFETY",  # there is no reason for refusals
    "pause": "CONTINUATION",
    "error": "MALFORMED_RESPONSE",
    "other": "OTHER",
}
_ERRORS: Mapping[ErrorKind, tuple[int, str | None]] = {
    "bad_request": (400, None),
    "context_length": (400, None),
    "authentication": (401, "API_KEY_INVALID"),
    "not_found": (404, None),
    "rate_limit": (429, None),
    "quota": (429, "quota_exceeded"),
    "overloaded": (503, None),
    "content_filter": (400, "content_filter"),
    "server": (500, None),
}
"""Status, and reason in the details, by kind of error."""
_ENDPOINTS: Mapping[str, Endpoint] = {
    "generateContent": "generate",
    "streamGenerateContent": "generate",
    "countTokens": "count",
}
_STATUSES = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip


class GeminiServer(ServerBase):
    """Server side of generateContent."""

    api: ClassVar[str] = API
    signs_whole_parts: ClassVar[bool] = True

    def match_endpoint(self, path: str) -> Endpoint | None:
        found = METHOD_IN_PATH.search(urlsplit(path).path)
        return _ENDPOINTS.get(found[2]) if found else None

    def decode_request(self, path: str, body: bytes) -> InboundRequest:
        with check_shape():
            return RequestReader(body, path).inbound()

    @override
    def _find_loss(self, part: Part) -> str | None:
        match part:
            case TextContent() if part.citations and (is_foreign(part, API) or not _find_metadata(part)):
                return "citations"
            case ToolCall(invalid_arguments=str()):
                return "invalid arguments"
            case TextContent() | ThinkingContent() | RefusalContent() | ToolCall() | AudioContent():
                return None
            case ImageContent(image_data=bytes()):
                return None
            case VendorContent() if not is_foreign(part, API):
                return None
            case _:
                return f"a part of type {part.type!r}"

    def encode_response(self, response: AgentResponse, inbound: InboundRequest) -> bytes:
        parts = [written for part in response.content if (written := _encode_part(part)) is not None]
        return to_json(_encode_last_chunk(parts, response, inbound))

    def encoder(self, inbound: InboundRequest) -> GeminiEncoder:
        return GeminiEncoder(inbound)

    @override
    def stream_headers(self, inbound: InboundRequest) -> Mapping[str, str]:
        return {"content-type": "text/event-stream" if inbound.settings.get("sse") else "application/json"}

    def encode_error(self, error: errors.AgentError) -> tuple[int, bytes]:
        body = _error(error)
        return body["error"]["code"], to_json(body)

    def encode_count(self, tokens: int) -> bytes:
        return to_json({"totalTokens": tokens})

    def encode_models(self, models: Sequence[str]) -> bytes:
        methods = {"supportedGenerationMethods": ["generateContent", "countTokens"]}
        return to_json({"models": [{"name": f"models/{model}", "displayName": model, **methods} for model in models]})


def _error(error: errors.AgentError) -> dict[str, Any]:
    usual, reason = _ERRORS[error_kind(error)]
    status, reason = error_status(error, usual), error.code or reason
    details: list[dict[str, Any]] = []
    if reason:
        details.append({"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason})
    if error.retry_after is not None:
        delay = f"{error.retry_after:g}s"
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay})
    name = _STATUSES.get(status, "UNKNOWN")
    return {"error": {"code": status, "message": error.message, "status": name, "details": details}}


def _find_metadata(part: Part) -> dict[str, Any]:
    data = {} if is_foreign(part, API) else part.provider_data or {}
    return {key: value for key, value in data.items() if key in METADATA_KEYS}


def _encode_part(part: Part) -> dict[str, Any] | None:
    """Encode a part; None if it is encoded elsewhere or not supported."""
    is_own = not is_foreign(part, API)
    signature = getattr(part, "signature", None) if is_own else None
    signed = {"thoughtSignature": signature} if signature else {}
    match part:
        case TextContent():
            return {"text": part.text, **signed}
        case ThinkingContent():
            return {"text": part.thinking, "thought": True, **signed}
        case ToolCall():
            arguments: Mapping[str, Any] = part.arguments
            if part.invalid_arguments is not None:
                arguments = {"invalid_arguments": part.invalid_arguments}  # the API accepts only objects
            return {"functionCall": {"id": part.id, "name": part.name, "args": arguments}, **signed}
        case ImageContent(image_data=bytes(data)):
            return _inline(data, part.media_type or "image/png", part)
        case AudioContent():
            return _inline(part.data, part.media_type or "audio/wav", part)
        case VendorContent() if is_own and part.kind != METADATA_KIND:
            return dict(part.provider_data or {part.kind: {}})
        case _:
            return None


def _inline(data: bytes, media_type: str, part: Part) -> dict[str, Any]:
    signature = None if is_foreign(part, API) else (part.provider_data or {}).get("thoughtSignature")
    inline = {"inlineData": {"mimeType": media_type, "data": base64.b64encode(data).decode()}}
    return {**inline, "thoughtSignature": signature} if signature else inline


def _encode_chunk(
    parts: Sequence[Mapping[str, Any]], response: AgentResponse, inbound: InboundRequest
) -> dict[str, Any]:
    return {
        "candidates": [{"content": {"role": "model", "parts": parts}, "index": 0}],
        "modelVersion": response.model or inbound.model,
        "responseId": response.id or f"response_{inbound.id}",
    }


def _encode_last_chunk(
    parts: Sequence[Mapping[str, Any]], response: AgentResponse, inbound: InboundRequest
) -> dict[str, Any]:
    chunk = _encode_chunk(parts, response, inbound)
    candidate = chunk["candidates"][0]
    for part in response.content:
        if isinstance(part, TextContent | VendorContent):
            candidate.update(_find_metadata(part))
    candidate["finishReason"] = encode_stop_reason(response, _REASONS)
    if response.refusal:
        candidate["finishMessage"] = response.refusal
    if response.logprobs:
        candidate["logprobsResult"] = {
            "chosenCandidates": [_token(entry) for entry in response.logprobs],
            "topCandidates": [
                {"candidates": [_token(top) for top in entry.get("top") or ()]} for entry in response.logprobs
            ],
        }
    usage = usage_or_zero(response)
    chunk["usageMetadata"] = {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": usage.completion_tokens - usage.reasoning_tokens,
        "thoughtsTokenCount": usage.reasoning_tokens,
        "cachedContentTokenCount": usage.cache_read_tokens,
        "totalTokenCount": usage.total_tokens,
    }
    return chunk


def _token(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": entry.get("token"), "logProbability": entry.get("logprob")}


class GeminiEncoder(BlockEncoder):
    """Encoder of a stream of chunks: server-sent events, or the items of a JSON array.

    The last piece of text is held back until the next event, because its part may have a signature.
    """

    def __init__(self, inbound: InboundRequest) -> None:
        super().__init__(inbound)
        self._held = ""
        self._first = True

    def _write_chunk(self, chunk: Mapping[str, Any]) -> bytes:
        data = to_json(chunk)
        if self.inbound.settings.get("sse"):
            return b"data: " + data + b"\n\n"
        lead, self._first = b"[" if self._first else b",\n", False
        return lead + data

    def _write_part(self, part: Mapping[str, Any]) -> bytes:
        return self._write_chunk(_encode_chunk([part], self.head, self.inbound))

    def _release(self, block: Block, signature: str | None = None) -> bytes:
        held, self._held = self._held, ""
        if not held and not signature:
            return b""
        thought = {"thought": True} if block.kind == "thinking" else {}
        signed = {"thoughtSignature": signature} if signature else {}
        return self._write_part({"text": held, **thought, **signed})

    @override
    def write_delta(self, block: Block, text: str) -> bytes:
        if block.kind in ("call", "refusal"):  # encoded whole, or in the last chunk
            return b""
        released = self._release(block)
        self._held = text
        return released

    @override
    def write_close(self, block: Block) -> bytes:
        part = block.part
        if block.kind == "call":
            return self._write_part(_encode_part(_complete_call(block)) or {})
        is_own = part is not None and not is_foreign(part, API)
        return self._release(block, getattr(part, "signature", None) if is_own else None)

    @override
    def write_part(self, part: Part) -> bytes:
        written = _encode_part(part)
        return b"" if written is None else self._write_part(written)

    @override
    def write_end(self, response: AgentResponse) -> bytes:
        facts = {"id": self.head.id, "model": self.head.model}
        ending = self._write_chunk(_encode_last_chunk([], response.model_copy(update=facts), self.inbound))
        return ending if self.inbound.settings.get("sse") else ending + b"]"

    @override
    def ping(self) -> bytes:
        return b": ping\n\n" if self.inbound.settings.get("sse") else b" "

    def fail(self, error: errors.AgentError) -> bytes:
        ending = self._write_chunk(_error(error))
        return ending if self.inbound.settings.get("sse") else ending + b"]"


def _complete_call(block: Block) -> ToolCall:
    """Return the call from its end event, or from the pieces of its arguments."""
    call = block.call
    if call.arguments or call.invalid_arguments is not None or not block.pieces:
        return call
    return ToolCall(id=call.id, name=call.name, arguments=block.text)


SERVER = GeminiServer()
