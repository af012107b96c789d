"""Server side of Converse: decoding of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...engine.wire import parse_json
from ...types import (
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
    Fields,
    InboundRequest,
    build_request,
    decode_base64,
    function_tool,
    invalid_request,
    require_objects,
    simplify_content,
)
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
            messages += self._read_turn(item, f"messages[{index}]")
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
            output_schema=None if schema is None else _parse_schema(schema),
            service_tier=tier.get("type"),
            metadata=fields.object("requestMetadata"),
        )
        output = {key: value for key, value in output.items() if key != "textFormat"}
        for name, rest in (("inferenceConfig", inference.left), ("toolConfig", tools.left), ("outputConfig", output)):
            if rest:
                fields.put(name, dict(rest))
        return InboundRequest(request.model_copy(update={"extra": fields.rest()}), self._model, stream)

    def _read_turn(self, item: Mapping[str, Any], path: str) -> list[Message]:
        parts = self._read_parts(require_objects(item.get("content") or (), f"{path}.content"), path)
        match item.get("role"):
            case "assistant":
                return [Message(Role.ASSISTANT, simplify_content(parts))]
            case "system":
                return [Message(Role.SYSTEM, simplify_content(parts))]
            case "user":
                results = [part for part in parts if isinstance(part, ToolResult)]
                rest_of_turn = [part for part in parts if not isinstance(part, ToolResult)]
                turns = [Message(Role.TOOL, results)] if results else []
                if rest_of_turn or not results:
                    turns.append(Message(Role.USER, simplify_content(rest_of_turn)))
                return turns
            case role:
                raise invalid_request(f"{path}.role: {role!r} is not a role.", f"{path}.role")

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


def _parse_schema(definition: Mapping[str, Any]) -> JsonDict:
    schema = parse_json(definition["schema"])
    name = definition.get("name")
    return {"title": name, **schema} if name not in (None, "answer") else schema
