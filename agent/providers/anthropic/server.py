"""Server side of the Messages API: decoding of requests; responses, streams and errors."""

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
    DocumentContent,
    ImageContent,
    Message,
    Origin,
    Part,
    RefusalContent,
    Role,
    TextContent,
    ThinkingContent,
    ThinkingLevel,
    ToolCall,
    ToolResult,
    ToolSpec,
    VendorContent,
)
from ..server_dialect import (
    Endpoint,
    ErrorKind,
    Fields,
    InboundRequest,
    ServerBase,
    build_request,
    check_shape,
    decode_base64,
    encode_stop_reason,
    error_kind,
    error_status,
    function_tool,
    invalid_request,
    is_foreign,
    read_call,
    require_objects,
    simplify_content,
    split_turn,
    sse,
    usage_or_zero,
)
from ..server_stream import Block, BlockEncoder
from .models import API, EFFORTS, THINKING_BUDGETS, features_of
from .response import read_citation

_TOOL_KEYS = ("type", "name", "input_schema", "cache_control")


class RequestReader:
    """Decodes one request."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._model = fields.text("model") or ""
        self._origin = Origin(provider=API, api=API, model=self._model)

    def inbound(self) -> InboundRequest:
        fields = self._fields
        system = fields.take("system")
        messages = [message for text in [system] if text for message in self._read_system(text)]
        for index, item in enumerate(require_objects(fields.list("messages"), "messages")):
            messages += self._read_turn(item, f"messages[{index}]")
        stream = fields.flag("stream") or False
        request = build_request(messages=messages, model=self._model, **self._read_settings())
        return InboundRequest(request.model_copy(update={"extra": fields.rest()}), self._model, stream)

    def _read_settings(self) -> dict[str, Any]:
        fields = self._fields
        choice = fields.object("tool_choice")
        return {
            "tools": [_read_tool(tool) for tool in require_objects(fields.list("tools"), "tools")],
            "tool_choice": _read_tool_choice(choice),
            "parallel_tool_calls": False if choice.get("disable_parallel_tool_use") else None,
            "max_tokens": fields.take("max_tokens"),
            "temperature": fields.take("temperature"),
            "top_p": fields.take("top_p"),
            "stop": fields.list("stop_sequences") or None,
            "metadata": fields.object("metadata"),
            **self._read_thinking_and_output(),
        }

    def _read_thinking_and_output(self) -> dict[str, Any]:
        """Read thinking as the nearest level. Settings that differ from the level stay in `extra`."""
        fields = self._fields
        thinking, output = fields.object("thinking"), fields.object("output_config")
        output_format = output.pop("format", None)
        level: ThinkingLevel | None = None
        match thinking.get("type"):
            case "enabled":
                budget = thinking.get("budget_tokens")
                level = _level_of_budget(budget)
                exact = {"type": "enabled", "budget_tokens": THINKING_BUDGETS[level]}
                if thinking != exact and features_of(self._model).thinking == "budget":
                    fields.put("thinking", thinking)
            case "adaptive":
                level = next((level for level in reversed(EFFORTS) if output.get("effort") in EFFORTS[level]), None)
                if level is None:
                    level = ThinkingLevel.HIGH
                    fields.put("thinking", thinking)
                else:
                    output.pop("effort")
            case None:
                pass
            case "disabled" | "between_tools":
                level = ThinkingLevel.OFF
            case _:
                fields.put("thinking", thinking)
        if output:
            fields.put("output_config", output)
        schema = output_format.get("schema") if isinstance(output_format, Mapping) else None
        if schema is None:
            schema = fields.object("output_format").get("schema")  # of older clients
        return {"thinking": level, "output_schema": schema}

    # Messages.

    def _read_system(self, system: Any) -> list[Message]:
        if isinstance(system, str):
            return [Message(Role.SYSTEM, system)]
        return [
            Message(Role.SYSTEM, simplify_content([self._read_block(block, "system")]))
            for block in require_objects(system, "system")
        ]

    def _read_turn(self, item: Mapping[str, Any], path: str) -> list[Message]:
        content = item.get("content") or ()
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        blocks = require_objects(blocks, f"{path}.content")
        parts = [self._read_block(block, f"{path}.content[{index}]") for index, block in enumerate(blocks)]
        return split_turn(item.get("role"), parts, path)

    def _read_block(self, block: Mapping[str, Any], path: str) -> Part:
        part = self._read_plain_block({key: value for key, value in block.items() if key != "cache_control"}, path)
        if isinstance(part, VendorContent):
            return part.model_copy(update={"provider_data": dict(block)})
        control = block.get("cache_control")
        return part if control is None else part.model_copy(update=_read_cache_control(control))

    def _read_plain_block(self, block: dict[str, Any], path: str) -> Part:
        kind = block.get("type")
        match kind:
            case "text" if isinstance(block.get("text"), str):
                return self._read_text(block)
            case "image" if (image := _read_image(block, path)) is not None:
                return image
            case "document" if (document := _read_document(block, path)) is not None:
                return document
            case "tool_use" if isinstance(block.get("input"), dict):
                rest = self._extra_keys(block, "type", "id", "name", "input")
                return read_call(block.get("id"), block.get("name"), block["input"], path, **rest)
            case "tool_result":
                return self._read_result(block, path)
            case "thinking":
                return ThinkingContent(
                    thinking=block.get("thinking") or "", signature=block.get("signature") or "", origin=self._origin
                )
            case "redacted_thinking":
                encrypted = block.get("data") or ""
                return ThinkingContent(thinking="", redacted=True, encrypted_content=encrypted, origin=self._origin)
            case str():
                return VendorContent(kind=kind, provider_data=block, origin=self._origin)
            case _:
                raise invalid_request(f"{path}: a block needs a type.", path)

    def _read_text(self, block: dict[str, Any]) -> TextContent:
        citations = [read_citation(source) for source in block.get("citations") or ()]
        rest = self._extra_keys(block, "type", "text", "citations")
        options = rest if rest or not citations else {"origin": self._origin}
        return TextContent(text=block["text"], citations=citations, **options)

    def _extra_keys(self, block: Mapping[str, Any], *known: str) -> dict[str, Any]:
        """Return the keys of a block without a field in the part, as fields of the part."""
        rest = {key: value for key, value in block.items() if key not in known and value is not None}
        return {"provider_data": rest, "origin": self._origin} if rest else {}

    def _read_result(self, block: Mapping[str, Any], path: str) -> ToolResult:
        if not isinstance(id := block.get("tool_use_id"), str):
            raise invalid_request(f"{path}.tool_use_id must be a string.", f"{path}.tool_use_id")
        content = block.get("content") or ""
        if not isinstance(content, str):
            content = [
                self._read_block(inner, f"{path}.content") for inner in require_objects(content, f"{path}.content")
            ]
            if other := next((part for part in content if not isinstance(part, _RESULT_PARTS)), None):
                raise invalid_request(
                    f"{path}.content: a block of type {other.type!r} is not supported in a result.", path
                )
        rest = self._extra_keys(block, "type", "tool_use_id", "content", "is_error")
        return ToolResult(tool_call_id=id, content=content, is_error=bool(block.get("is_error")), **rest)


_RESULT_PARTS = (TextContent, ImageContent, DocumentContent)


def _read_cache_control(control: Any) -> dict[str, Any]:
    return {"cache": "long" if isinstance(control, Mapping) and control.get("ttl") == "1h" else "short"}


def _read_image(block: Mapping[str, Any], path: str) -> ImageContent | None:
    source = block.get("source") or {}
    rest = {key: value for key, value in block.items() if key not in ("type", "source")} or None
    match source.get("type"):
        case "base64":
            data = decode_base64(source.get("data"), path)
            return ImageContent(image_data=data, media_type=source.get("media_type"), provider_data=rest)
        case "url":
            return ImageContent(image_url=source.get("url"), provider_data=rest)
        case _:
            return None


def _read_document(block: Mapping[str, Any], path: str) -> DocumentContent | None:
    source = block.get("source") or {}
    known = ("type", "source", "title")
    options: dict[str, Any] = {
        "title": block.get("title"),
        "provider_data": {key: value for key, value in block.items() if key not in known and value is not None} or None,
    }
    match source.get("type"):
        case "base64":
            data = decode_base64(source.get("data"), path)
            return DocumentContent(data=data, media_type=source.get("media_type"), **options)
        case "url":
            return DocumentContent(url=source.get("url"), **options)
        case "text":
            return DocumentContent(text=source.get("data") or "", **options)
        case _:
            return None


def _read_tool(tool: Mapping[str, Any]) -> ToolSpec | dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        return dict(tool)
    spec = function_tool(tool.get("name"), tool, tool.get("input_schema"), _TOOL_KEYS)
    control = tool.get("cache_control")
    return spec if control is None else spec.model_copy(update=_read_cache_control(control))


def _read_tool_choice(choice: Mapping[str, Any]) -> str | None:
    match choice.get("type"):
        case None:
            return None
        case "any":
            return "required"
        case "tool":
            return str(choice.get("name"))
        case "auto" if choice.get("disable_parallel_tool_use"):
            return "auto"
        case "auto" | "none":
            return str(choice["type"])
        case kind:
            raise invalid_request(
                f"'tool_choice.type': {kind!r} is not one of auto, any, tool, none.", "tool_choice.type"
            )


def _level_of_budget(budget: Any) -> ThinkingLevel:
    """Return the level with the nearest budget."""
    if not isinstance(budget, int):
        raise invalid_request("'thinking.budget_tokens' must be an integer.", "thinking.budget_tokens")
    return min(THINKING_BUDGETS, key=lambda level: abs(THINKING_BUDGETS[level] - budget))


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


class MessagesServer(ServerBase):
    """Server side of the Messages API."""

    api: ClassVar[str] = API
    signature_field: ClassVar[str | None] = "signature"

    def match_endpoint(self, path: str) -> Endpoint | None:
        path = urlsplit(path).path
        if path.endswith("/messages/count_tokens"):
            return "count"
        return "generate" if path.endswith("/messages") else None

    def decode_request(self, path: str, body: bytes) -> InboundRequest:
        with check_shape():
            return RequestReader(Fields(body)).inbound()

    @override
    def _find_loss(self, part: Part) -> str | None:
        match part:
            case TextContent() if not all(_has_vendor_location(citation) for citation in part.citations):
                return "citations"
            case TextContent() | ThinkingContent() | RefusalContent() | ToolCall():
                return None
            case VendorContent() if not is_foreign(part, API):
                return None
            case _:
                return f"a part of type {part.type!r}"

    def encode_response(self, response: AgentResponse, inbound: InboundRequest) -> bytes:
        blocks = [block for part in response.content if (block := _encode_block(part)) is not None]
        head = _encode_head(response, inbound)
        return to_json({**head, "content": blocks, **_encode_end(response), "usage": _encode_usage(response)})

    def encoder(self, inbound: InboundRequest) -> MessagesEncoder:
        return MessagesEncoder(inbound)

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
