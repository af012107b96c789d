"""Request decoder of the Chat Completions server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from ...types import (
    AudioContent,
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
    VendorContent,
)
from ..server_dialect import (
    EFFORT_LEVELS,
    Fields,
    InboundRequest,
    build_request,
    decode_base64,
    document_from_url,
    function_tool,
    image_from_url,
    invalid_request,
    read_call,
    require_objects,
    simplify_content,
    with_title,
)
from .dialect import API, OPAQUE_KEYS


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
        stream = fields.flag("stream") or False
        options = fields.object("stream_options")
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
        tools = [_read_tool(tool) for tool in require_objects(fields.list("tools"), "tools")]
        effort = fields.text("reasoning_effort")
        if effort is not None and effort not in EFFORT_LEVELS:
            raise invalid_request(f"'reasoning_effort' must be one of {', '.join(EFFORT_LEVELS)}.", "reasoning_effort")
        return {
            "tools": tools,
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
        match form.get("type"):
            case "json_schema":
                json_schema = form.get("json_schema") or {}
                return {"output_schema": with_title(json_schema.get("schema") or {}, json_schema.get("name"))}
            case None | "text":
                return {}
            case _:
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
                result = self._result(item, where)
                return Message(Role.TOOL, [result])
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
        for block in (
            [{"type": "text", "text": content}] if isinstance(content, str) else require_objects(content, where)
        ):
            match block.get("type"):
                case "refusal":
                    texts.append(RefusalContent(refusal=block.get("refusal") or ""))
                case "thinking":
                    inner = block.get("thinking")
                    joined = inner if isinstance(inner, str) else "".join(one.get("text") or "" for one in inner or ())
                    thinking += joined
                case _:
                    texts.append(self._block(block, f"{where}.content"))
        opaque = {key: item[key] for key in OPAQUE_KEYS if item.get(key)}
        if thinking or opaque:
            parts.append(ThinkingContent(thinking=thinking, provider_data=opaque or None, origin=self._origin))
        parts += texts
        if item.get("refusal"):
            parts.append(RefusalContent(refusal=item["refusal"]))
        parts += [
            self._call(call, where) for call in require_objects(item.get("tool_calls") or (), f"{where}.tool_calls")
        ]
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
