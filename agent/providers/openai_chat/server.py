"""Server side of Chat Completions: decoding of requests; responses, streams and errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from pydantic_core import to_json
from typing_extensions import override

from ... import errors
from ...types import (
    AgentResponse,
    AudioContent,
    Citation,
    FinishReason,
    Message,
    Origin,
    Part,
    RefusalContent,
    Role,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
    VendorContent,
)
from ..server_dialect import (
    EFFORT_LEVELS,
    Endpoint,
    ErrorKind,
    Fields,
    InboundRequest,
    ServerBase,
    build_request,
    check_shape,
    decode_base64,
    document_from_url,
    dump_call_arguments,
    encode_stop_reason,
    error_kind,
    error_status,
    function_tool,
    image_from_url,
    invalid_request,
    is_foreign,
    read_call,
    require_objects,
    simplify_content,
    sse,
    usage_or_zero,
    with_title,
)
from ..server_stream import Block, BlockEncoder
from .dialect import API, OPAQUE_KEYS
from .response import join_texts


class RequestReader:
    """Decodes one request body."""

    def __init__(self, fields: Fields, path: str) -> None:
        self._fields = fields
        self._model = fields.text("model") or _model_in(path)
        self._origin = Origin(provider=API, api=API, model=self._model)
        self._warnings: list[str] = []

    def read(self) -> InboundRequest:
        fields = self._fields
        several = fields.peek("n") not in (None, 1)
        if fields.flag("store"):
            self._warnings.append("store was left out: responses are not stored")
        messages = [
            self._message(item, at) for at, item in enumerate(require_objects(fields.list("messages"), "messages"))
        ]
        stream, options = fields.flag("stream") or False, fields.object("stream_options")
        request = build_request(messages=messages, model=self._model, **self._settings())
        return InboundRequest(
            request.model_copy(update={"extra": fields.rest()}),
            self._model,
            stream,
            tuple(self._warnings),
            ("n",) if several else (),
            {"include_usage": bool(options.get("include_usage"))},
        )

    def _settings(self) -> dict[str, Any]:
        fields = self._fields
        limit, newer = fields.take("max_tokens"), fields.take("max_completion_tokens")
        top = fields.take("top_logprobs")
        effort = fields.text("reasoning_effort")
        if effort is not None and effort not in EFFORT_LEVELS:
            raise invalid_request(f"'reasoning_effort' must be one of {', '.join(EFFORT_LEVELS)}.", "reasoning_effort")
        return {
            "tools": [_read_tool(tool) for tool in require_objects(fields.list("tools"), "tools")],
            "tool_choice": _read_tool_choice(fields.take("tool_choice")),
            "parallel_tool_calls": fields.flag("parallel_tool_calls"),
            "max_tokens": limit if newer is None else newer,
            "temperature": fields.take("temperature"),
            "top_p": fields.take("top_p"),
            "seed": fields.take("seed"),
            "stop": fields.take("stop") or None,
            "logprobs": (top or 0) if fields.flag("logprobs") else None,
            "thinking": None if effort is None else EFFORT_LEVELS[effort],
            "metadata": fields.object("metadata"),
            "session_id": fields.text("prompt_cache_key"),
            **self._output(),
        }

    def _output(self) -> dict[str, Any]:
        form = self._fields.object("response_format")
        if form.get("type") == "json_schema":
            json_schema = form.get("json_schema") or {}
            return {"output_schema": with_title(json_schema.get("schema") or {}, json_schema.get("name"))}
        if form.get("type") not in (None, "text"):
            self._fields.put("response_format", form)
        return {}

    # Messages

    def _message(self, item: Mapping[str, Any], at: int) -> Message:
        where = f"messages[{at}]"
        name = item.get("name")
        match item.get("role"):
            case "system" | "developer":
                return Message(Role.SYSTEM, self._content(item.get("content"), f"{where}.content"), name=name)
            case "user":
                return Message(Role.USER, self._content(item.get("content"), f"{where}.content"), name=name)
            case "assistant":
                return self._assistant(item, where)
            case "tool":
                return Message(Role.TOOL, [self._result(item, where)])
            case role:
                raise invalid_request(f"{where}.role: {role!r} is not a role.", f"{where}.role")

    def _content(self, content: Any, where: str) -> Any:
        if content is None or isinstance(content, str):
            return content or ""
        return [self._block(block, f"{where}[{at}]") for at, block in enumerate(require_objects(content, where))]

    def _block(self, block: Mapping[str, Any], where: str) -> Part:
        cache = _read_cache(block)
        part = self._plain_block(block, where)
        return part if cache is None else part.model_copy(update={"cache": cache})

    def _plain_block(self, block: Mapping[str, Any], where: str) -> Part:
        kind = block.get("type")
        inner = block.get(kind) if isinstance(kind, str) else None
        match kind:
            case "text" if isinstance(inner, str):
                return TextContent(text=inner)
            case "image_url" if isinstance(inner, Mapping) and isinstance(inner.get("url"), str):
                return image_from_url(inner["url"], where, inner.get("detail"))
            case "input_audio" if isinstance(inner, Mapping):
                kind = f"audio/{inner.get('format') or 'wav'}"
                return AudioContent(data=decode_base64(inner.get("data"), where), media_type=kind)
            case "image_url" if isinstance(inner, str):
                return image_from_url(inner, where)
            case "file" if isinstance(inner, Mapping) and isinstance(inner.get("file_data"), str):
                return document_from_url(inner["file_data"], where, inner.get("filename"))
            case str():
                return VendorContent(kind=kind, provider_data=dict(block), origin=self._origin)
            case _:
                raise invalid_request(f"{where}: a block needs a type.", where)

    def _assistant(self, item: Mapping[str, Any], where: str) -> Message:
        parts: list[Part] = []
        thinking = item.get("reasoning_content") or item.get("reasoning") or ""
        texts: list[Part] = []
        content = item.get("content") or ()
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in require_objects(blocks, where):
            match block.get("type"):
                case "refusal":
                    texts.append(RefusalContent(refusal=block.get("refusal") or ""))
                case "thinking":
                    inner = block.get("thinking")
                    thinking += inner if isinstance(inner, str) else join_texts(inner)
                case _:
                    texts.append(self._block(block, f"{where}.content"))
        opaque = {key: item[key] for key in OPAQUE_KEYS if item.get(key)}
        if thinking or opaque:
            parts.append(ThinkingContent(thinking=thinking, provider_data=opaque or None, origin=self._origin))
        parts += texts
        if item.get("refusal"):
            parts.append(RefusalContent(refusal=item["refusal"]))
        calls = require_objects(item.get("tool_calls") or (), f"{where}.tool_calls")
        parts += [self._call(call, where) for call in calls]
        if item.get("audio"):
            self._warnings.append(f"{where}.audio was left out: audio responses are not stored")
        return Message(Role.ASSISTANT, simplify_content(parts), name=item.get("name"))

    def _call(self, call: Mapping[str, Any], where: str) -> ToolCall:
        where = f"{where}.tool_calls"
        arguments: Any
        id, opaque = call.get("id"), {key: call[key] for key in OPAQUE_KEYS if call.get(key)}
        if call.get("type") == "custom":
            custom = call.get("custom") or {}
            name, arguments, opaque = custom.get("name"), {"input": custom.get("input") or ""}, {"type": "custom"}
        else:
            function = call.get("function") or {}
            name, arguments = function.get("name"), function.get("arguments") or "{}"
        origin = self._origin if opaque else None
        return read_call(id, name, arguments, where, provider_data=opaque or None, origin=origin)

    def _result(self, item: Mapping[str, Any], where: str) -> ToolResult:
        if not isinstance(id := item.get("tool_call_id"), str):
            raise invalid_request(f"{where}.tool_call_id must be a string.", f"{where}.tool_call_id")
        content = self._content(item.get("content"), f"{where}.content")
        return ToolResult(tool_call_id=id, name=item.get("name"), content=content)


def _model_in(path: str) -> str:
    """Read the model from a path with deployments, as at Azure."""
    match = re.search(r"/deployments/([^/]+)/", urlsplit(path).path)
    return unquote(match[1]) if match else ""


def _read_tool(tool: Mapping[str, Any]) -> ToolSpec | dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return dict(tool)  # a server-side or custom tool
    spec = function_tool(function.get("name"), function, function.get("parameters"), ("name", "parameters"))
    extra = {key: value for key, value in tool.items() if key not in ("type", "function")}
    if (cache := _read_cache(extra)) is not None:
        extra.pop("cache_control", None)
        spec = spec.model_copy(update={"cache": cache})
    return spec.model_copy(update={"extra": {**spec.extra, **extra}}) if extra else spec


def _read_tool_choice(choice: Any) -> str | None:
    if choice is None or isinstance(choice, str):
        return choice
    tool = (choice.get("function") or choice.get("custom")) if isinstance(choice, Mapping) else None
    if not isinstance(tool, Mapping) or not isinstance(tool.get("name"), str):
        raise invalid_request("'tool_choice' must be a string or name a tool.", "tool_choice")
    return str(tool["name"])


def _read_cache(block: Mapping[str, Any]) -> str | None:
    mark = block.get("prompt_cache_breakpoint") or block.get("cache_control")
    if not isinstance(mark, Mapping):
        return None
    return "long" if mark.get("ttl") in ("1h", "12h", "24h") else "short"


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


class OpenAIServer(ServerBase):
    """Base class of the server dialects of OpenAI's APIs."""

    def encode_error(self, error: errors.AgentError) -> tuple[int, bytes]:
        status, body = describe_error(error)
        return status, to_json({"error": body})

    def encode_models(self, models: Sequence[str]) -> bytes:
        entries = [{"id": model, "object": "model", "created": 0, "owned_by": "agent"} for model in models]
        return to_json({"object": "list", "data": entries})


class ChatServer(OpenAIServer):
    """Server dialect of Chat Completions."""

    api: ClassVar[str] = API

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
        head = _encode_head(response, inbound, "chat.completion")
        return to_json({**head, "choices": [choice], "usage": _encode_usage(usage_or_zero(response))})

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
        custom = {"name": call.name, "input": call.arguments.get("input", "")}
        return {"id": call.id, "type": "custom", "custom": custom}
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
