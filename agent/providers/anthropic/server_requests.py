"""Read requests of the Messages API as a server."""

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
    """Reads one request body."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._model = fields.text("model") or ""
        self._origin = Origin(provider=API, api=API, model=self._model)

    def inbound(self) -> InboundRequest:
        fields = self._fields
        system = fields.take("system")
        messages = [message for text in [system] if text for message in self._system(text)]
        for at, item in enumerate(require_objects(fields.list("messages"), "messages")):
            messages += self._turn(item, f"messages[{at}]")
        stream = fields.flag("stream") or False
        request = build_request(messages=messages, model=self._model, **self._settings())
        return InboundRequest(request.model_copy(update={"extra": fields.rest()}), self._model, stream)

    def _settings(self) -> dict[str, Any]:
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
            **self._thinking_and_output(),
        }

    def _thinking_and_output(self) -> dict[str, Any]:
        """Thinking as the nearest level; what a level does not say exactly is carried as well."""
        fields = self._fields
        thinking, output = fields.object("thinking"), fields.object("output_config")
        form = output.pop("format", None)
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
        schema = form.get("schema") if isinstance(form, Mapping) else None
        if schema is None:
            legacy = fields.object("output_format")
            schema = legacy.get("schema")
        return {"thinking": level, "output_schema": schema}

    # Messages

    def _system(self, system: Any) -> list[Message]:
        if isinstance(system, str):
            return [Message(Role.SYSTEM, system)]
        return [
            Message(Role.SYSTEM, _simplest([self._block(block, "system")]))
            for block in require_objects(system, "system")
        ]

    def _turn(self, item: Mapping[str, Any], where: str) -> list[Message]:
        content = item.get("content")
        blocks = content if isinstance(content, str) else require_objects(content or (), f"{where}.content")
        match item.get("role"):
            case "assistant":
                return [Message(Role.ASSISTANT, self._parts(blocks, where))]
            case "user":
                return self._user_turn(self._parts(blocks, where))
            case "system":
                return [Message(Role.SYSTEM, self._parts(blocks, where))]
            case role:
                raise invalid_request(f"{where}.role: {role!r} is not a role.", f"{where}.role")

    def _user_turn(self, parts: Any) -> list[Message]:
        """Results are a tool's messages; what follows them is the user's."""
        if isinstance(parts, str):
            return [Message(Role.USER, parts)]
        results = [part for part in parts if isinstance(part, ToolResult)]
        said = [part for part in parts if not isinstance(part, ToolResult)]
        turns = [Message(Role.TOOL, results)] if results else []
        if said or not results:
            turns.append(Message(Role.USER, _simplest(said)))
        return turns

    def _parts(self, blocks: Any, where: str) -> Any:
        if isinstance(blocks, str):
            return blocks
        return _simplest([self._block(block, f"{where}.content[{at}]") for at, block in enumerate(blocks)])

    def _block(self, block: Mapping[str, Any], where: str) -> Part:
        part = self._plain_block({key: value for key, value in block.items() if key != "cache_control"}, where)
        if isinstance(part, VendorContent):
            return part.model_copy(update={"provider_data": dict(block)})
        mark = block.get("cache_control")
        return part if mark is None else part.model_copy(update=_cache(mark))

    def _plain_block(self, block: dict[str, Any], where: str) -> Part:
        kind = block.get("type")
        match kind:
            case "text" if isinstance(block.get("text"), str):
                return self._text(block)
            case "image" if (image := _read_image(block, where)) is not None:
                return image
            case "document" if (document := _read_document(block, where)) is not None:
                return document
            case "tool_use" if isinstance(block.get("input"), dict):
                rest = self._rest(block, "type", "id", "name", "input")
                return _named_call(block, where).model_copy(update=rest)
            case "tool_result":
                return self._result(block, where)
            case "thinking":
                return ThinkingContent(
                    thinking=block.get("thinking") or "", signature=block.get("signature") or "", origin=self._origin
                )
            case "redacted_thinking":
                sealed = block.get("data") or ""
                return ThinkingContent(thinking="", redacted=True, encrypted_content=sealed, origin=self._origin)
            case str():
                return VendorContent(kind=kind, provider_data=block, origin=self._origin)
            case _:
                raise invalid_request(f"{where}: a block needs a type.", where)

    def _text(self, block: dict[str, Any]) -> TextContent:
        citations = [_citation(source) for source in block.get("citations") or ()]
        rest = self._rest(block, "type", "text", "citations")
        facts = rest if rest or not citations else {"origin": self._origin}
        return TextContent(text=block["text"], citations=citations).model_copy(update=facts)

    def _rest(self, block: Mapping[str, Any], *known: str) -> dict[str, Any]:
        """What a block holds beside what has a field, as an update for its part."""
        rest = {key: value for key, value in block.items() if key not in known and value is not None}
        return {"provider_data": rest, "origin": self._origin} if rest else {}

    def _result(self, block: Mapping[str, Any], where: str) -> ToolResult:
        if not isinstance(id := block.get("tool_use_id"), str):
            raise invalid_request(f"{where}.tool_use_id must be a string.", f"{where}.tool_use_id")
        content = block.get("content") or ""
        if not isinstance(content, str):
            content = [self._block(inner, f"{where}.content") for inner in require_objects(content, f"{where}.content")]
            if other := next((part for part in content if not isinstance(part, _IN_RESULTS)), None):
                raise invalid_request(
                    f"{where}.content: a block of type {other.type!r} is not supported in a result.", where
                )
        rest = self._rest(block, "type", "tool_use_id", "content", "is_error")
        result = ToolResult(tool_call_id=id, content=content, is_error=bool(block.get("is_error")))
        return result.model_copy(update=rest)


_IN_RESULTS = (TextContent, ImageContent, DocumentContent)


def _simplest(parts: list[Part]) -> Any:
    """Plain text where that is all there is."""
    if len(parts) == 1 and isinstance(parts[0], TextContent) and parts[0] == TextContent(text=parts[0].text):
        return parts[0].text
    return parts


def _cache(mark: Any) -> dict[str, Any]:
    return {"cache": "long" if isinstance(mark, Mapping) and mark.get("ttl") == "1h" else "short"}


def _citation(source: Any) -> Citation:
    return Citation(
        url=source.get("url"),
        title=source.get("title") or source.get("document_title"),
        quote=source.get("cited_text"),
        provider_data=source,
    )


def _named_call(block: Mapping[str, Any], where: str) -> ToolCall:
    id, name = block.get("id"), block.get("name")
    if not isinstance(id, str) or not isinstance(name, str):
        raise invalid_request(f"{where}: a call needs an id and a name.", where)
    return ToolCall(id=id, name=name, arguments=block["input"])


def _read_image(block: Mapping[str, Any], where: str) -> ImageContent | None:
    source = block.get("source") or {}
    rest = {key: value for key, value in block.items() if key not in ("type", "source")} or None
    match source.get("type"):
        case "base64":
            data = decode_base64(source.get("data"), where)
            return ImageContent(image_data=data, media_type=source.get("media_type"), provider_data=rest)
        case "url":
            return ImageContent(image_url=source.get("url"), provider_data=rest)
        case _:
            return None


def _read_document(block: Mapping[str, Any], where: str) -> DocumentContent | None:
    source = block.get("source") or {}
    known = ("type", "source", "title")
    facts: dict[str, Any] = {
        "title": block.get("title"),
        "provider_data": {key: value for key, value in block.items() if key not in known and value is not None} or None,
    }
    match source.get("type"):
        case "base64":
            data = decode_base64(source.get("data"), where)
            return DocumentContent(data=data, media_type=source.get("media_type"), **facts)
        case "url":
            return DocumentContent(url=source.get("url"), **facts)
        case "text":
            return DocumentContent(text=source.get("data") or "", **facts)
        case _:
            return None


def _read_tool(tool: Mapping[str, Any]) -> ToolSpec | dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        return dict(tool)
    spec = function_tool(tool.get("name"), tool, tool.get("input_schema"), _TOOL_KEYS)
    mark = tool.get("cache_control")
    return spec if mark is None else spec.model_copy(update=_cache(mark))


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
    """The level whose budget comes closest."""
    if not isinstance(budget, int):
        raise invalid_request("'thinking.budget_tokens' must be an integer.", "thinking.budget_tokens")
    return min(THINKING_BUDGETS, key=lambda level: abs(THINKING_BUDGETS[level] - budget))
