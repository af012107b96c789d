"""Server side of the Messages API: decoding of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...types import (
    Citation,
    DocumentContent,
    ImageContent,
    Message,
    Origin,
    Part,
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
    Fields,
    InboundRequest,
    build_request,
    decode_base64,
    function_tool,
    invalid_request,
    require_objects,
)
from .models import API, EFFORTS, THINKING_BUDGETS, features_of

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
            Message(Role.SYSTEM, _simplify([self._read_block(block, "system")]))
            for block in require_objects(system, "system")
        ]

    def _read_turn(self, item: Mapping[str, Any], path: str) -> list[Message]:
        content = item.get("content")
        blocks = content if isinstance(content, str) else require_objects(content or (), f"{path}.content")
        match item.get("role"):
            case "assistant":
                return [Message(Role.ASSISTANT, self._read_parts(blocks, path))]
            case "user":
                return self._read_user_turn(self._read_parts(blocks, path))
            case "system":
                return [Message(Role.SYSTEM, self._read_parts(blocks, path))]
            case role:
                raise invalid_request(f"{path}.role: {role!r} is not a role.", f"{path}.role")

    def _read_user_turn(self, parts: Any) -> list[Message]:
        """Split tool results from the user's other content."""
        if isinstance(parts, str):
            return [Message(Role.USER, parts)]
        results = [part for part in parts if isinstance(part, ToolResult)]
        rest_of_turn = [part for part in parts if not isinstance(part, ToolResult)]
        turns = [Message(Role.TOOL, results)] if results else []
        if rest_of_turn or not results:
            turns.append(Message(Role.USER, _simplify(rest_of_turn)))
        return turns

    def _read_parts(self, blocks: Any, path: str) -> Any:
        if isinstance(blocks, str):
            return blocks
        return _simplify([self._read_block(block, f"{path}.content[{index}]") for index, block in enumerate(blocks)])

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
                return _read_call(block, path).model_copy(update=rest)
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
        citations = [_read_citation(source) for source in block.get("citations") or ()]
        rest = self._extra_keys(block, "type", "text", "citations")
        options = rest if rest or not citations else {"origin": self._origin}
        return TextContent(text=block["text"], citations=citations).model_copy(update=options)

    def _extra_keys(self, block: Mapping[str, Any], *known: str) -> dict[str, Any]:
        """Return an update with the keys of a block without a field in the part."""
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
        result = ToolResult(tool_call_id=id, content=content, is_error=bool(block.get("is_error")))
        return result.model_copy(update=rest)


_RESULT_PARTS = (TextContent, ImageContent, DocumentContent)


def _simplify(parts: list[Part]) -> Any:
    """Return a plain string if the content is a single text."""
    if len(parts) == 1 and isinstance(parts[0], TextContent) and parts[0] == TextContent(text=parts[0].text):
        return parts[0].text
    return parts


def _read_cache_control(control: Any) -> dict[str, Any]:
    return {"cache": "long" if isinstance(control, Mapping) and control.get("ttl") == "1h" else "short"}


def _read_citation(source: Any) -> Citation:
    return Citation(
        url=source.get("url"),
        title=source.get("title") or source.get("document_title"),
        quote=source.get("cited_text"),
        provider_data=source,
    )


def _read_call(block: Mapping[str, Any], path: str) -> ToolCall:
    id, name = block.get("id"), block.get("name")
    if not isinstance(id, str) or not isinstance(name, str):
        raise invalid_request(f"{path}: a call needs an id and a name.", path)
    return ToolCall(id=id, name=name, arguments=block["input"])


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
