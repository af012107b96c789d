"""The server side of generateContent."""

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
    check_shape,
    encode_stop_reason,
    error_kind,
    error_status,
    is_foreign,
    usage_or_zero,
)
from ..server_stream import Block, BlockEncoder
from .server_requests import API, METHOD_IN_PATH, RequestReader

_METADATA_KIND = "metadata"
"""The kind of a block that holds what a candidate says about itself."""
_METADATA = ("groundingMetadata", "citationMetadata", "urlContextMetadata", "continuationToken")
_REASONS: Mapping[str, str] = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "length": "MAX_TOKENS",
    "content_filter": "SAFETY",
    "refusal": "SAFETY",  # it has no word for a model's own refusal
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
"""Status and the reason in the details, by kind of error."""
_STATUSES = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip


class GeminiServer:
    """generateContent, as a server speaks it."""

    api: ClassVar[str] = API
    signature_field: ClassVar[str | None] = None
    signs_whole_parts: ClassVar[bool] = True

    def match_endpoint(self, path: str) -> Endpoint | None:
        found = METHOD_IN_PATH.search(urlsplit(path).path)
        match found and found[2]:
            case "generateContent" | "streamGenerateContent":
                return "generate"
            case "countTokens":
                return "count"
            case _:
                return None

    def decode_request(self, path: str, body: bytes) -> InboundRequest:
        with check_shape():
            return RequestReader(body, path).inbound()

    def find_losses(self, response: AgentResponse) -> tuple[str, ...]:
        return tuple(dict.fromkeys(loss for part in response.content if (loss := _loss(part)) is not None))

    def encode_response(self, response: AgentResponse, inbound: InboundRequest) -> bytes:
        parts = [written for part in response.content if (written := _part(part)) is not None]
        return to_json(_last_chunk(parts, response, inbound))

    def encoder(self, inbound: InboundRequest) -> GeminiEncoder:
        return GeminiEncoder(inbound)

    def stream_headers(self, inbound: InboundRequest) -> Mapping[str, str]:
        return {"content-type": "text/event-stream" if inbound.settings.get("sse") else "application/json"}

    def encode_error(self, error: errors.AgentError) -> tuple[int, bytes]:
        body = _error(error)
        return body["error"]["code"], to_json(body)

    def encode_count(self, tokens: int) -> bytes:
        return to_json({"totalTokens": tokens})

    def encode_models(self, models: Sequence[str]) -> bytes:
        methods = ["generateContent", "countTokens"]
        return to_json(
            {
                "models": [
                    {"name": f"models/{model}", "displayName": model, "supportedGenerationMethods": methods}
                    for model in models
                ]
            }
        )


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


def _loss(part: Part) -> str | None:
    match part:
        case TextContent() if part.citations and (is_foreign(part, API) or not _metadata_of(part)):
            return "citations"
        case ToolCall(invalid_arguments=str()):
            return "arguments that are no JSON"
        case TextContent() | ThinkingContent() | RefusalContent() | ToolCall():
            return None
        case ImageContent(image_data=bytes()) | AudioContent():
            return None
        case VendorContent() if not is_foreign(part, API):
            return None
        case _:
            return f"a part of type {part.type!r}"


def _metadata_of(part: Part) -> dict[str, Any]:
    data = {} if is_foreign(part, API) else part.provider_data or {}
    return {key: value for key, value in data.items() if key in _METADATA}


def _part(part: Part) -> dict[str, Any] | None:
    """A part of the content; None for what stands elsewhere or has no place."""
    home = not is_foreign(part, API)
    signature = getattr(part, "signature", None) if home else None
    sealed = {"thoughtSignature": signature} if signature else {}
    match part:
        case TextContent():
            return {"text": part.text, **sealed}
        case ThinkingContent():
            return {"text": part.thinking, "thought": True, **sealed}
        case ToolCall():
            arguments: Mapping[str, Any] = part.arguments
            if part.invalid_arguments is not None:
                arguments = {"invalid_arguments": part.invalid_arguments}  # this API has no text for them
            return {"functionCall": {"id": part.id, "name": part.name, "args": arguments}, **sealed}
        case ImageContent(image_data=bytes(data)):
            return _inline(data, part.media_type or "image/png", part)
        case AudioContent():
            return _inline(part.data, part.media_type or "audio/wav", part)
        case VendorContent() if home and part.kind != _METADATA_KIND:
            return dict(part.provider_data or {part.kind: {}})
        case _:
            return None


def _inline(data: bytes, media_type: str, part: Part) -> dict[str, Any]:
    seal = None if is_foreign(part, API) else (part.provider_data or {}).get("thoughtSignature")
    inline = {"inlineData": {"mimeType": media_type, "data": base64.b64encode(data).decode()}}
    return {**inline, "thoughtSignature": seal} if seal else inline


def _chunk(parts: Sequence[Mapping[str, Any]], response: AgentResponse, inbound: InboundRequest) -> dict[str, Any]:
    return {
        "candidates": [{"content": {"role": "model", "parts": parts}, "index": 0}],
        "modelVersion": response.model or inbound.model,
        "responseId": response.id or f"response_{inbound.id}",
    }


def _last_chunk(parts: Sequence[Mapping[str, Any]], response: AgentResponse, inbound: InboundRequest) -> dict[str, Any]:
    chunk = _chunk(parts, response, inbound)
    candidate = chunk["candidates"][0]
    for part in response.content:
        if isinstance(part, TextContent | VendorContent):
            candidate.update(_metadata_of(part))
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
    """Writes a stream of chunks: as server-sent events, or as the items of one JSON array.

    The latest piece of text waits for the next event, because a signature must stand on the part it belongs to.
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
        return self._write_chunk(_chunk([part], self.head, self.inbound))

    def _release(self, block: Block, signature: str | None = None) -> bytes:
        held, self._held = self._held, ""
        if not held and not signature:
            return b""
        thought = {"thought": True} if block.kind == "thinking" else {}
        sealed = {"thoughtSignature": signature} if signature else {}
        return self._write_part({"text": held, **thought, **sealed})

    @override
    def write_delta(self, block: Block, text: str) -> bytes:
        if block.kind in ("call", "refusal"):  # a call is written whole; a refusal's words stand in the last chunk
            return b""
        released = self._release(block)
        self._held = text
        return released

    @override
    def write_close(self, block: Block) -> bytes:
        part = block.part
        if block.kind == "call":
            return self._write_part(_part(_ended_call(block)) or {})
        home = part is not None and not is_foreign(part, API)
        return self._release(block, getattr(part, "signature", None) if home else None)

    @override
    def write_part(self, part: Part) -> bytes:
        written = _part(part)
        return b"" if written is None else self._write_part(written)

    @override
    def write_end(self, response: AgentResponse) -> bytes:
        facts = {"id": self.head.id, "model": self.head.model}
        ending = self._write_chunk(_last_chunk([], response.model_copy(update=facts), self.inbound))
        return ending if self.inbound.settings.get("sse") else ending + b"]"

    @override
    def ping(self) -> bytes:
        return b": ping\n\n" if self.inbound.settings.get("sse") else b" "

    def fail(self, error: errors.AgentError) -> bytes:
        ending = self._write_chunk(_error(error))
        return ending if self.inbound.settings.get("sse") else ending + b"]"


def _ended_call(block: Block) -> ToolCall:
    """The call, from its end or, if the events did not tell it, from the pieces of its arguments."""
    call = block.call
    if call.arguments or call.invalid_arguments is not None or not block.pieces:
        return call
    return ToolCall(id=call.id, name=call.name, arguments=block.text)


SERVER = GeminiServer()
