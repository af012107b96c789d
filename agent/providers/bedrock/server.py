"""Server side of Converse: decoding of requests; responses, event streams and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from pydantic_core import to_json
from typing_extensions import override

from ... import errors
from ...engine.wire import parse_json
from ...http.event_stream import CONTENT_TYPE, encode_message
from ...types import (
    AgentResponse,
    AudioContent,
    DocumentContent,
    ImageContent,
    Message,
    Origin,
    Part,
    Role,
    SearchResultContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    ToolSpec,
    VendorContent,
    VideoContent,
)
from ...types.media import CacheHint
from ..encoding import JsonDict
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
    require_objects,
    simplify_content,
    split_turn,
    usage_or_zero,
    with_title,
)
from ..server_stream import Block, BlockEncoder
from .messages import DOCUMENT_FORMATS, VIDEO_FORMATS
from .models import API
from .response import block_kind

_MEDIA_TYPES = {format: media_type for media_type, format in (DOCUMENT_FORMATS | VIDEO_FORMATS).items()}


class RequestReader:
    """Decodes one request."""

    def __init__(self, fields: Fields, model: str) -> None:
        self._fields = fields
        self._model = model
        self._origin = Origin(provider=API, api=API, model=model)

    def inbound(self, *, stream: bool) -> InboundRequest:
        fields = self._fields
        messages: list[Message] = []
        if system := self._read_parts(fields.list("system"), "system"):
            messages.append(Message(Role.SYSTEM, simplify_content(system)))
        for index, item in enumerate(require_objects(fields.list("messages"), "messages")):
            path = f"messages[{index}]"
            blocks = require_objects(item.get("content") or (), f"{path}.content")
            messages += split_turn(item.get("role"), self._read_parts(blocks, path), path)
        inference, tools = Fields(fields.object("inferenceConfig")), Fields(fields.object("toolConfig"))
        output = fields.object("outputConfig")
        schema = ((output.get("textFormat") or {}).get("structure") or {}).get("jsonSchema")
        tier = fields.object("serviceTier")
        request = build_request(
            messages=messages,
            model=self._model,
            tools=_read_tools(tools.list("tools")),
            tool_choice=_read_tool_choice(tools.object("toolChoice")),
            max_tokens=inference.take("maxTokens"),
            temperature=inference.take("temperature"),
            top_p=inference.take("topP"),
            stop=inference.list("stopSequences") or None,
            output_schema=None if schema is None else with_title(parse_json(schema["schema"]), schema.get("name")),
            service_tier=tier.get("type"),
            metadata=fields.object("requestMetadata"),
        )
        output = {key: value for key, value in output.items() if key != "textFormat"}
        for name, rest in (("inferenceConfig", inference.left), ("toolConfig", tools.left), ("outputConfig", output)):
            if rest:
                fields.put(name, dict(rest))
        return InboundRequest(request.model_copy(update={"extra": fields.rest()}), self._model, stream)

    def _read_parts(self, blocks: list[JsonDict], path: str) -> list[Part]:
        parts: list[Part] = []
        for block in blocks:
            if "cachePoint" in block and parts:
                parts[-1] = parts[-1].model_copy(update={"cache": _read_cache_hint(block)})
            elif "cachePoint" not in block:
                parts.append(self._read_block(block, path))
        return parts

    def _read_block(self, block: JsonDict, path: str) -> Part:
        if len(block) != 1:
            raise invalid_request(f"{path}: a block needs exactly one member.", path)
        match block:
            case {"text": str(text)}:
                return TextContent(text=text)
            case {"image": {"format": format, "source": source}}:
                return ImageContent(
                    media_type=f"image/{format}", **_read_source(source, path, "image_url", "image_data")
                )
            case {"document": {"name": name, "source": {"text": str(text)}}}:
                return DocumentContent(text=text, title=name)
            case {"document": {"format": format, "name": name, "source": source} as document}:
                settings = {key: document[key] for key in ("citations", "context") if key in document}
                found = _read_source(source, path, "url", "data")
                return DocumentContent(title=name, media_type=_MEDIA_TYPES.get(format), **settings, **found)
            case {"video": {"format": format, "source": source}}:
                return VideoContent(media_type=_MEDIA_TYPES.get(format), **_read_source(source, path, "url", "data"))
            case {"searchResult": {"source": str(), "title": str(), "content": list()} as result}:
                return SearchResultContent(
                    **{**result, "content": "".join(piece["text"] for piece in result["content"])}
                )
            case {"audio": {"format": format, "source": {"bytes": data}}}:
                return AudioContent(data=decode_base64(data, path), media_type=f"audio/{format}")
            case {"toolUse": {"toolUseId": str(id), "name": str(name), "input": dict(arguments)}}:
                return ToolCall(id=id, name=name, arguments=arguments)
            case {"toolResult": {"toolUseId": str(id), "content": list(content)} as result}:
                parts = [self._read_result_block(inner, path) for inner in content]
                is_error = result.get("status") == "error"
                return ToolResult(tool_call_id=id, content=simplify_content(parts), is_error=is_error)
            case {"reasoningContent": {"redactedContent": sealed}}:
                return ThinkingContent(thinking="", redacted=True, encrypted_content=sealed, origin=self._origin)
            case {"reasoningContent": {"reasoningText": {"text": text} as reasoning}}:
                signature = reasoning.get("signature") or ""
                return ThinkingContent(thinking=text, signature=signature, origin=self._origin)
            case _:
                return VendorContent(kind=block_kind(block), provider_data=block, origin=self._origin)

    def _read_result_block(self, block: JsonDict, path: str) -> Part:
        if "json" in block:
            return TextContent(text=str(block["json"]))
        part = self._read_block(block, path)
        if not isinstance(part, TextContent | ImageContent | DocumentContent):
            raise invalid_request(f"{path}: a block of type {part.type!r} is not supported in a result.", path)
        return part


def _read_source(source: Mapping[str, Any], path: str, url: str, data: str) -> dict[str, Any]:
    match source:
        case {"bytes": encoded}:
            return {data: decode_base64(encoded, path)}
        case {"s3Location": {"uri": uri} as location}:
            owner = location.get("bucketOwner")
            return {url: uri, **({"provider_data": {"bucketOwner": owner}} if owner else {})}
        case _:
            raise invalid_request(f"{path}: a source needs bytes or an s3Location.", path)


def _read_cache_hint(block: Mapping[str, Any]) -> CacheHint:
    return "long" if block["cachePoint"].get("ttl") == "1h" else "short"


def _read_tools(tools: list[Any]) -> list[ToolSpec | JsonDict]:
    read: list[ToolSpec | JsonDict] = []
    for tool in require_objects(tools, "toolConfig.tools"):
        match tool:
            case {"toolSpec": {"name": name, "inputSchema": {"json": schema}} as spec}:
                read.append(function_tool(name, spec, schema, ("name", "inputSchema")))
            case {"cachePoint": _} if read and isinstance(last := read[-1], ToolSpec):
                read[-1] = last.model_copy(update={"cache": _read_cache_hint(tool)})
            case _:
                read.append(tool)
    return read


def _read_tool_choice(choice: Mapping[str, Any]) -> str | None:
    match choice:
        case {"auto": _}:
            return "auto"
        case {"any": _}:
            return "required"
        case {"tool": {"name": name}}:
            return str(name)
        case _ if not choice:
            return None
        case _:
            raise invalid_request("'toolConfig.toolChoice' must be auto, any or tool.", "toolConfig.toolChoice")


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


class ConverseServer(ServerBase):
    """Server side of Converse."""

    api: ClassVar[str] = API
    signature_field: ClassVar[str | None] = "signature"

    def match_endpoint(self, path: str) -> Endpoint | None:
        return _OPERATIONS.get(_split_path(path)[1])

    def decode_request(self, path: str, body: bytes) -> InboundRequest:
        model, operation = _split_path(path)
        with check_shape():
            fields = Fields(body)
            if operation == "count-tokens":
                fields = Fields(fields.object("input").get("converse", {}))
            return RequestReader(fields, model).inbound(stream=operation == "converse-stream")

    @override
    def _find_loss(self, part: Part) -> str | None:
        return f"a part of type {part.type!r}" if _encode_block(part) is None else None

    def encode_response(self, response: AgentResponse, inbound: InboundRequest) -> bytes:
        blocks = [block for part in response.content if (block := _encode_block(part)) is not None]
        output = {"message": {"role": "assistant", "content": blocks}}
        return to_json({"output": output, **_encode_stop(response), **_encode_metadata(response)})

    def encoder(self, inbound: InboundRequest) -> ConverseEncoder:
        return ConverseEncoder(inbound)

    @override
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
