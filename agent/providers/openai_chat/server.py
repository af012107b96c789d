"""Server dialect and stream encoder of Chat Completions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pydantic_core import to_json
from typing_extensions import override

from ... import errors
from ...types import (
    AgentResponse,
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
from ..server_dialect import (
    Endpoint,
    ErrorKind,
    Fields,
    InboundRequest,
    check_shape,
    dump_call_arguments,
    encode_stop_reason,
    error_kind,
    error_status,
    is_foreign,
    sse,
    usage_or_zero,
)
from ..server_stream import Block, BlockEncoder
from .dialect import API, OPAQUE_KEYS
from .server_requests import RequestReader

_REASONS: Mapping[str, str] = {reason: reason for reason in ("stop", "length", "tool_calls", "content_filter")} | {
    "refusal": "stop"
}
_ERRORS: Mapping[ErrorKind, tuple[int, str, str | None]] = {
    "bad_request": (400, "invalid_request_error", None),
    "context_length": (400, "invalid_request_error", "context_length_exceeded"),
    "authentication": (401, "invalid_request_error", "invalid_api_key"),
    "not_found": (404, "invalid_request_error", "model_not_found"),
    "rate_limit": (429, "requests", "rate_limit_exceeded"),
    "quota": (429, "insufficient_quota", "insufficient_quota"),
    "overloaded": (503, "server_error", "server_overloaded"),
    "content_filter": (400, "invalid_request_error", "content_filter"),
    "server": (500, "server_error", None),
}
"""Status, type and code by kind of error."""
_VENDOR_KEYS = ("annotations", "executed_tools")
"""Keys of a message that report server-side tools."""


class OpenAIServer(ABC):
    """Base class of the server dialects of OpenAI's APIs."""

    signs_whole_parts: ClassVar[bool] = False

    def find_losses(self, response: AgentResponse) -> tuple[str, ...]:
        return tuple(dict.fromkeys(loss for part in response.content if (loss := self._find_loss(part)) is not None))

    @abstractmethod
    def _find_loss(self, part: Part) -> str | None: ...

    def stream_headers(self, inbound: InboundRequest) -> Mapping[str, str]:
        return {"content-type": "text/event-stream"}

    def encode_error(self, error: errors.AgentError) -> tuple[int, bytes]:
        status, body = describe_error(error)
        return status, to_json({"error": body})

    def encode_models(self, models: Sequence[str]) -> bytes:
        entries = [{"id": model, "object": "model", "created": 0, "owned_by": "agent"} for model in models]
        return to_json({"object": "list", "data": entries})


class ChatServer(OpenAIServer):
    """Server dialect of Chat Completions."""

    api: ClassVar[str] = API
    signature_field: ClassVar[str | None] = None

    def match_endpoint(self, path: str) -> Endpoint | None:
        return "generate" if urlsplit(path).path.endswith("/chat/completions") else None

    def decode_request(self, path: str, body: bytes) -> InboundRequest:
        with check_shape():
            return RequestReader(Fields(body), path).read()

    @override
    def _find_loss(self, part: Part) -> str | None:
        match part:
            case TextContent() if not all(_is_annotation(citation) for citation in part.citations):
                return "citations"
            case TextContent() | ThinkingContent() | RefusalContent() | ToolCall():
                return None
            case VendorContent() if part.provider_data and part.provider_data.keys() <= {*_VENDOR_KEYS}:
                return None
            case _:
                return f"a part of type {part.type!r}"

    def encode_response(self, response: AgentResponse, inbound: InboundRequest) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": response.text, "refusal": response.refusal}
        if response.thinking:
            message["reasoning_content"] = response.thinking
        if response.tool_calls:
            message["tool_calls"] = [_encode_call(call, dump_call_arguments(call)) for call in response.tool_calls]
        for part in response.content:
            _add_opaque(message, part)
        choice = {
            "index": 0,
            "message": message,
            "logprobs": _encode_choice_logprobs(response),
            "finish_reason": encode_stop_reason(response, _REASONS),
        }
        return to_json(
            {
                **_encode_head(response, inbound, "chat.completion"),
                "choices": [choice],
                "usage": _encode_usage(usage_or_zero(response)),
            }
        )

    def encoder(self, inbound: InboundRequest) -> ChatEncoder:
        return ChatEncoder(inbound)

    def encode_count(self, tokens: int) -> bytes:
        raise errors.UnsupportedFeatureError(
            "Chat Completions has no endpoint for counting tokens.", fix="Use another wire format."
        )


def describe_error(error: errors.AgentError) -> tuple[int, dict[str, Any]]:
    """Return status and error object, as in both of OpenAI's APIs."""
    status, kind, code = _ERRORS[error_kind(error)]
    param = error.field if isinstance(error, errors.ConfigurationError) else None
    body = {"message": error.message, "type": kind, "param": param, "code": error.code or code}
    return error_status(error, status), body


def _is_annotation(citation: Citation) -> bool:
    return (citation.provider_data or {}).get("type") == "url_citation"


def _add_opaque(message: dict[str, Any], part: Part) -> None:
    """Add a part's annotations and opaque data to the message."""
    if isinstance(part, TextContent):
        notes = [citation.provider_data for citation in part.citations if _is_annotation(citation)]
        if notes:
            message["annotations"] = [*message.get("annotations", ()), *notes]
    elif isinstance(part, ThinkingContent) and not is_foreign(part, API):
        message.update({key: value for key, value in (part.provider_data or {}).items() if key in OPAQUE_KEYS})
    elif isinstance(part, VendorContent) and not is_foreign(part, API):
        for key, value in (part.provider_data or {}).items():
            if key in _VENDOR_KEYS:
                message[key] = [*message.get(key, ()), *value]


def _encode_call(call: ToolCall, arguments: str) -> dict[str, Any]:
    opaque = {} if is_foreign(call, API) else dict(call.provider_data or {})
    if opaque.get("type") == "custom":
        return {
            "id": call.id,
            "type": "custom",
            "custom": {"name": call.name, "input": call.arguments.get("input", "")},
        }
    kept = {key: value for key, value in opaque.items() if key in OPAQUE_KEYS}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}, **kept}


def _encode_head(response: AgentResponse, inbound: InboundRequest, kind: str) -> dict[str, Any]:
    return {
        "id": response.id or f"chatcmpl-{inbound.id}",
        "object": kind,
        "created": inbound.created,
        "model": response.model or inbound.model,
    }


def _encode_choice_logprobs(response: AgentResponse) -> dict[str, Any] | None:
    return {"content": encode_logprobs(response), "refusal": None} if response.logprobs else None


def encode_logprobs(response: AgentResponse, bytes: Any = None) -> list[dict[str, Any]]:
    def encode(token: Mapping[str, Any]) -> dict[str, Any]:
        return {"token": token.get("token"), "logprob": token.get("logprob"), "bytes": bytes}

    return [{**encode(token), "top_logprobs": [*map(encode, token.get("top") or ())]} for token in response.logprobs]


def _encode_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _read_reasoning_details(raw: Any) -> list[Any]:
    """Reasoning details in an upstream chunk of this wire format."""
    choices = raw.get("choices") if isinstance(raw, Mapping) else None
    delta = choices[0].get("delta") if choices else None
    return list((delta or {}).get("reasoning_details") or ())


def _clear_detail_text(delta: dict[str, Any]) -> None:
    """Remove the text of reasoning details, which was streamed before, but not their signatures."""
    if details := delta.get("reasoning_details"):
        delta["reasoning_details"] = [
            {key: "" if key in ("text", "summary") else value for key, value in detail.items()} for detail in details
        ]


_KEYS = {"text": "content", "thinking": "reasoning_content", "refusal": "refusal"}


class ChatEncoder(BlockEncoder):
    """Encodes a stream of chunks."""

    def __init__(self, inbound: InboundRequest) -> None:
        super().__init__(inbound)
        self._calls = 0
        self._pending = ""
        """The latest reasoning delta. Details must be sent with plain text, or clients decode them as more text."""

    def _chunk(self, delta: Mapping[str, Any], reason: FinishReason | str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason, **more}
        return sse({**_encode_head(self.head, self.inbound, "chat.completion.chunk"), "choices": [choice]})

    @override
    def write_start(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    @override
    def write_open(self, block: Block) -> bytes:
        if block.kind != "call":
            return b""
        block.number = self._calls
        self._calls += 1
        return self._chunk({"tool_calls": [{"index": block.number, **_encode_call(block.call, "")}]})

    @override
    def write_delta(self, block: Block, text: str) -> bytes:
        if block.kind == "call":
            return self._chunk({"tool_calls": [{"index": block.number, "function": {"arguments": text}}]})
        if block.kind != "thinking":
            return self._chunk({_KEYS[block.kind]: text})
        if details := _read_reasoning_details(self.raw):
            return self._chunk({"reasoning_content": text, "reasoning_details": details})
        pending, self._pending = self._pending, text
        return self._chunk({"reasoning_content": pending}) if pending else b""

    @override
    def write_close(self, block: Block) -> bytes:
        delta: dict[str, Any] = {}
        if self._pending:
            delta["reasoning_content"], self._pending = self._pending, ""
        if block.part is not None and block.kind != "call":
            _add_opaque(delta, block.part)
            if "reasoning_content" not in delta:
                _clear_detail_text(delta)
        return self._chunk(delta) if delta else b""

    @override
    def write_part(self, part: Part) -> bytes:
        delta: dict[str, Any] = {}
        _add_opaque(delta, part)
        _clear_detail_text(delta)
        return self._chunk(delta) if delta else b""

    @override
    def write_late_part(self, part: Part) -> bytes:
        return self.write_part(part)

    @override
    def write_end(self, response: AgentResponse) -> bytes:
        logprobs = _encode_choice_logprobs(response)
        ending = self._chunk({}, logprobs=logprobs) if logprobs else b""
        ending += self._chunk({}, encode_stop_reason(response, _REASONS))
        if self.inbound.settings.get("include_usage"):
            head = _encode_head(self.head, self.inbound, "chat.completion.chunk")
            ending += sse({**head, "choices": [], "usage": _encode_usage(usage_or_zero(response))})
        return ending + b"data: [DONE]\n\n"

    def fail(self, error: errors.AgentError) -> bytes:
        return sse({"error": describe_error(error)[1]})


SERVER = ChatServer()
