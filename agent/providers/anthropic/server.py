"""The server side of the Messages API."""

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
    Block,
    BlockEncoder,
    Endpoint,
    ErrorKind,
    Fields,
    Inbound,
    build_request,
    decode_base64,
    error_kind,
    error_status,
    finish_word,
    function_tool,
    invalid,
    is_foreign,
    objects,
    reading,
    sse,
    usage_of,
)
from .family import API, BUDGETS, EFFORTS, family_of

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
_TOOL_KEYS = ("type", "name", "input_schema", "cache_control")


class MessagesServer:
    """The Messages API, as a server speaks it."""

    api: ClassVar[str] = API
    sealed_field: ClassVar[str | None] = "signature"
    signs_whole_parts: ClassVar[bool] = False

    def endpoint(self, path: str) -> Endpoint | None:
        path = urlsplit(path).path
        if path.endswith("/messages/count_tokens"):
            return "count"
        return "generate" if path.endswith("/messages") else None

    def decode_request(self, path: str, body: bytes) -> Inbound:
        with reading():
            return _RequestReader(Fields(body)).inbound()

    def losses(self, response: AgentResponse) -> tuple[str, ...]:
        return tuple(dict.fromkeys(loss for part in response.content if (loss := _loss(part)) is not None))

    def encode_response(self, response: AgentResponse, inbound: Inbound) -> bytes:
        blocks = [block for part in response.content if (block := _block(part)) is not None]
        head = _head(response, inbound)
        return to_json({**head, "content": blocks, **_ending(response), "usage": _usage(response)})

    def encoder(self, inbound: Inbound) -> MessagesEncoder:
        return MessagesEncoder(inbound)

    def stream_headers(self, inbound: Inbound) -> Mapping[str, str]:
        return {"content-type": "text/event-stream"}

    def encode_error(self, error: errors.AgentError) -> tuple[int, bytes]:
        status, kind = _ERRORS[error_kind(error)]
        return error_status(error, status), to_json(_error(error, kind))

    def encode_count(self, tokens: int) -> bytes:
        return to_json({"input_tokens": tokens})

    def encode_models(self, models: Sequence[str]) -> bytes:
        data = [{**_MODEL, "id": model, "display_name": model} for model in models]
        first, last = (models[0], models[-1]) if models else (None, None)
        return to_json({"data": data, "has_more": False, "first_id": first, "last_id": last})


def _error(error: errors.AgentError, kind: str) -> dict[str, Any]:
    return {
        "type": "error",
        "error": {"type": error.code or kind, "message": error.message},
        "request_id": error.request_id,
    }


# Requests


class _RequestReader:
    """Reads one request body."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._model = fields.text("model") or ""
        self._origin = Origin(provider=API, api=API, model=self._model)

    def inbound(self) -> Inbound:
        fields = self._fields
        system = fields.take("system")
        messages = [message for text in [system] if text for message in self._system(text)]
        for at, item in enumerate(objects(fields.list("messages"), "messages")):
            messages += self._turn(item, f"messages[{at}]")
        stream = fields.flag("stream") or False
        request = build_request(messages=messages, model=self._model, **self._settings())
        return Inbound(request.model_copy(update={"extra": fields.rest()}), self._model, stream)

    def _settings(self) -> dict[str, Any]:
        fields = self._fields
        choice = fields.object("tool_choice")
        return {
            "tools": [_read_tool(tool) for tool in objects(fields.list("tools"), "tools")],
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
                exact = {"type": "enabled", "budget_tokens": BUDGETS[level]}
                if thinking != exact and family_of(self._model).thinking == "budget":
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
        return [Message(Role.SYSTEM, _simplest([self._block(block, "system")])) for block in objects(system, "system")]

    def _turn(self, item: Mapping[str, Any], where: str) -> list[Message]:
        content = item.get("content")
        blocks = content if isinstance(content, str) else objects(content or (), f"{where}.content")
        match item.get("role"):
            case "assistant":
                return [Message(Role.ASSISTANT, self._parts(blocks, where))]
            case "user":
                return self._user_turn(self._parts(blocks, where))
            case "system":
                return [Message(Role.SYSTEM, self._parts(blocks, where))]
            case role:
                raise invalid(f"{where}.role: {role!r} is not a role.", f"{where}.role")

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
                raise invalid(f"{where}: a block needs a type.", where)

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
            raise invalid(f"{where}.tool_use_id must be a string.", f"{where}.tool_use_id")
        content = block.get("content") or ""
        if not isinstance(content, str):
            content = [self._block(inner, f"{where}.content") for inner in objects(content, f"{where}.content")]
            if other := next((part for part in content if not isinstance(part, _IN_RESULTS)), None):
                raise invalid(f"{where}.content: a block of type {other.type!r} is not supported in a result.", where)
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
        raise invalid(f"{where}: a call needs an id and a name.", where)
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
            raise invalid(f"'tool_choice.type': {kind!r} is not one of auto, any, tool, none.", "tool_choice.type")


def _level_of_budget(budget: Any) -> ThinkingLevel:
    """The level whose budget comes closest."""
    if not isinstance(budget, int):
        raise invalid("'thinking.budget_tokens' must be an integer.", "thinking.budget_tokens")
    return min(BUDGETS, key=lambda level: abs(BUDGETS[level] - budget))


# Responses


def _loss(part: Part) -> str | None:
    match part:
        case TextContent() if not all(_is_source(citation) for citation in part.citations):
            return "citations"
        case TextContent() | ThinkingContent() | RefusalContent() | ToolCall():
            return None
        case VendorContent() if not is_foreign(part, API):
            return None
        case _:
            return f"a part of type {part.type!r}"


def _is_source(citation: Citation) -> bool:
    return str((citation.provider_data or {}).get("type", "")).endswith("_location")


def _block(part: Part) -> dict[str, Any] | None:
    """A part as a block; None for what stands elsewhere or has no place."""
    rest = {} if is_foreign(part, API) else dict(part.provider_data or {})
    match part:
        case TextContent():
            block = {**rest, "type": "text", "text": part.text}
            sources = [citation.provider_data for citation in part.citations if _is_source(citation)]
            return {**block, "citations": sources} if sources else block
        case ThinkingContent(redacted=True):
            return {**rest, "type": "redacted_thinking", "data": part.encrypted_content}
        case ThinkingContent():
            return {**rest, "type": "thinking", "thinking": part.thinking, "signature": part.signature}
        case ToolCall():
            given: Any = part.arguments if part.invalid_arguments is None else part.invalid_arguments
            return {**rest, "type": "tool_use", "id": part.id, "name": part.name, "input": given}
        case VendorContent() if not is_foreign(part, API):
            return rest or {"type": part.kind}
        case _:
            return None


def _head(response: AgentResponse, inbound: Inbound) -> dict[str, Any]:
    return {
        "id": response.id or f"msg_{inbound.id}",
        "type": "message",
        "role": "assistant",
        "model": response.model or inbound.model,
    }


def _ending(response: AgentResponse) -> dict[str, Any]:
    details = {"type": "refusal", "category": None, "explanation": response.refusal} if response.refusal else None
    return {"stop_reason": finish_word(response, _REASONS), "stop_sequence": None, "stop_details": details}


def _usage(response: AgentResponse) -> dict[str, Any]:
    usage = usage_of(response)
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
    }


_HOLLOW: Mapping[str, Mapping[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


class MessagesEncoder(BlockEncoder):
    """Writes a stream of events."""

    def __init__(self, inbound: Inbound) -> None:
        super().__init__(inbound)
        self._blocks = 0

    def _start_block(self, block: Mapping[str, Any]) -> bytes:
        number = self._blocks
        self._blocks += 1
        return _event({"type": "content_block_start", "index": number, "content_block": block})

    def _delta(self, number: int, kind: str, **delta: Any) -> bytes:
        return _event({"type": "content_block_delta", "index": number, "delta": {"type": kind, **delta}})

    @override
    def write_start(self) -> bytes:
        empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "stop_details": None}
        facts = self.facts.model_copy(update={"usage": self.usage})
        counts = {**_usage(facts), "output_tokens": 1}
        return _event({"type": "message_start", "message": {**_head(facts, self.inbound), **empty, "usage": counts}})

    @override
    def write_open(self, block: Block) -> bytes:
        block.number = self._blocks
        if block.kind == "call":
            call = block.call.model_copy(update={"arguments": {}, "invalid_arguments": None})
            return self._start_block(_block(call) or {})
        if isinstance(block.part, ThinkingContent) and block.part.redacted:
            return self._start_block(_block(block.part) or {})
        if block.kind == "refusal":
            return b""  # its words stand in the stop details
        return self._start_block(_HOLLOW[block.kind])

    @override
    def write_delta(self, block: Block, text: str) -> bytes:
        if block.kind == "refusal":
            return b""
        kind, key = _DELTAS[block.kind]
        return self._delta(block.number, kind, **{key: text})

    @override
    def write_close(self, block: Block) -> bytes:
        if block.kind == "refusal":
            return b""
        written = b""
        match block.part:
            case ThinkingContent(redacted=False, signature=str(signature)) if signature:
                written = self._delta(block.number, "signature_delta", signature=signature)
            case TextContent(citations=citations):
                for citation in filter(_is_source, citations):
                    written += self._delta(block.number, "citations_delta", citation=citation.provider_data)
            case _:
                pass
        return written + _event({"type": "content_block_stop", "index": block.number})

    @override
    def write_whole(self, part: Part) -> bytes:
        block, number = _block(part), self._blocks
        if block is None:
            return b""
        return self._start_block(block) + _event({"type": "content_block_stop", "index": number})

    @override
    def write_end(self, response: AgentResponse) -> bytes:
        ending = {"type": "message_delta", "delta": _ending(response), "usage": _usage(response)}
        return _event(ending) + _event({"type": "message_stop"})

    @override
    def ping(self) -> bytes:
        return _event({"type": "ping"})

    def fail(self, error: errors.AgentError) -> bytes:
        return _event(_error(error, _ERRORS[error_kind(error)][1]))


def _event(data: Mapping[str, Any]) -> bytes:
    return sse(data, str(data["type"]))


SERVER = MessagesServer()
