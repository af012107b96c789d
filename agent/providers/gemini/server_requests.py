"""Server side of generateContent: decoding of requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic_core import to_json

from ...types import (
    AudioContent,
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
    split_turn,
)
from .fields import generate_id
from .models import API, SKIP_SIGNATURE, features_of
from .response import SHARED_KEYS

METHOD_IN_PATH = re.compile(r"/(?:models|tunedModels|endpoints)/([^/]+):(\w+)$")
_BUDGETS = (
    (0, ThinkingLevel.OFF),
    (1_024, ThinkingLevel.MINIMAL),
    (4_096, ThinkingLevel.LOW),
    (16_384, ThinkingLevel.MEDIUM),
    (28_672, ThinkingLevel.HIGH),
)
"""Maximum budgets by level."""
_LEVELS = frozenset(("minimal", "low", "medium", "high"))


class RequestReader:
    """Decodes one request. Keys may be in camel case or in snake case."""

    def __init__(self, body: bytes, path: str) -> None:
        fields = Fields(body)
        counted = fields.object("generateContentRequest")
        self._fields = Fields(_camel_keys(counted or fields.left))
        self._fields.take("model")  # the path has the model
        address = urlsplit(path)
        match = METHOD_IN_PATH.search(address.path)
        self._model = unquote(match[1]) if match else ""
        self._stream = bool(match and match[2] == "streamGenerateContent")
        self._sse = parse_qs(address.query).get("alt") == ["sse"]
        self._origin = Origin(provider=API, api=API, model=self._model)
        self._calls: list[ToolCall] = []
        """Calls without a result."""
        self._count = 0

    def inbound(self) -> InboundRequest:
        fields = self._fields
        messages = self._read_system(fields.take("systemInstruction"))
        contents = fields.take("contents") or []
        if isinstance(contents, dict):
            contents = [contents]
        for index, item in enumerate(require_objects(contents, "contents")):
            messages += self._read_turn(_camel_keys(item), f"contents[{index}]")
        request = build_request(messages=messages, model=self._model, **self._read_settings())
        request = request.model_copy(update={"extra": fields.rest()})
        return InboundRequest(request, self._model, self._stream, settings={"sse": self._sse})

    def _read_settings(self) -> dict[str, Any]:
        fields = self._fields
        generation = Fields(_camel_keys(fields.object("generationConfig")))
        thinking = _camel_keys(generation.object("thinkingConfig"))
        level = self._read_level(thinking, generation)
        schema = generation.take("responseJsonSchema") or _convert_schema(generation.take("responseSchema"))
        if schema is not None:
            generation.take("responseMimeType")
        logprobs = generation.take("logprobs")
        if generation.flag("responseLogprobs"):
            logprobs = logprobs or 0
        tools = [
            tool for group in require_objects(fields.list("tools"), "tools") for tool in _read_tools(_camel_keys(group))
        ]
        settings = {
            "tools": tools,
            "tool_choice": self._read_tool_choice(),
            "max_tokens": generation.take("maxOutputTokens"),
            "temperature": generation.take("temperature"),
            "top_p": generation.take("topP"),
            "stop": generation.list("stopSequences") or None,
            "seed": generation.take("seed"),
            "logprobs": logprobs,
            "thinking": level,
            "output_schema": schema,
            "metadata": fields.object("labels"),
        }
        if rest := generation.rest():
            fields.put("generationConfig", rest)
        return settings

    def _read_level(self, thinking: dict[str, Any], generation: Fields) -> ThinkingLevel | None:
        """Return the nearest level of a setting. A setting that no level has stays in `extra`."""
        if not thinking:
            return None
        features = features_of(self._model)
        for level in ThinkingLevel:
            if features.encode_thinking(level)[0] == thinking:
                return level
        generation.put("thinkingConfig", thinking)
        word, budget = thinking.get("thinkingLevel"), thinking.get("thinkingBudget")
        if isinstance(word, str) and word.lower() in _LEVELS:
            return ThinkingLevel(word.lower())
        if not isinstance(budget, int) or budget < 0:
            return None
        return next((level for most, level in _BUDGETS if budget <= most), ThinkingLevel.XHIGH)

    def _read_tool_choice(self) -> str | None:
        config = _camel_keys(self._fields.object("toolConfig"))
        calling = _camel_keys(config.pop("functionCallingConfig", None) or {})
        config.pop("includeServerSideToolInvocations", None)  # follows from the tools
        allowed = calling.get("allowedFunctionNames") or []
        choice = {"AUTO": "auto", "NONE": "none", "ANY": "required"}.get(str(calling.get("mode", "")).upper())
        if choice == "required" and len(allowed) == 1:
            choice = str(allowed[0])
        elif allowed or (calling and choice is None):
            config["functionCallingConfig"] = calling
        if config:
            self._fields.put("toolConfig", config)
        return choice

    # Messages.

    def _read_system(self, instruction: Any) -> list[Message]:
        if not instruction:
            return []
        if isinstance(instruction, str):
            return [Message(Role.SYSTEM, instruction)]
        parts = instruction.get("parts") if isinstance(instruction, dict) else None
        blocks = require_objects([parts] if isinstance(parts, dict) else parts or (), "systemInstruction.parts")
        return [Message(Role.SYSTEM, str(block["text"])) for block in blocks if block.get("text")]

    def _read_turn(self, item: Mapping[str, Any], path: str) -> list[Message]:
        parts = [_camel_keys(part) for part in require_objects(item.get("parts") or (), f"{path}.parts")]
        role = item.get("role", "user")
        if role == "model":
            self._calls = []
            self._count = 0
        read = self._read_model_part if role == "model" else self._read_user_part
        content = [read(part, f"{path}.parts[{index}]") for index, part in enumerate(parts)]
        return split_turn({"model": "assistant", "function": "user"}.get(role, role), content, path)

    def _read_user_part(self, part: dict[str, Any], path: str) -> Part:
        if "functionResponse" in part:
            return self._read_result(_camel_keys(part["functionResponse"]))
        if isinstance(part.get("text"), str):
            return TextContent(text=part["text"])
        return _read_media(part, path) or VendorContent(kind=_find_kind(part), provider_data=part, origin=self._origin)

    def _read_model_part(self, part: dict[str, Any], path: str) -> Part:
        signature = part.get("thoughtSignature")
        if signature == SKIP_SIGNATURE:
            signature = None
        if isinstance(call := part.get("functionCall"), dict):
            return self._read_call(call, signature, path)
        if isinstance(text := part.get("text", "" if part.keys() <= SHARED_KEYS else None), str):
            if part.get("thought"):
                return ThinkingContent(thinking=text, signature=signature or "", origin=self._origin)
            return TextContent(text=text, signature=signature, origin=self._origin if signature else None)
        if (media := _read_media(part, path)) is not None:
            signed = {"provider_data": {"thoughtSignature": signature}, "origin": self._origin}
            return media.model_copy(update=signed) if signature else media
        return VendorContent(kind=_find_kind(part), provider_data=part, origin=self._origin)

    def _read_call(self, call: Mapping[str, Any], signature: str | None, path: str) -> ToolCall:
        name, arguments = call.get("name"), call.get("args") or {}
        if not isinstance(name, str):
            raise invalid_request(f"{path}.functionCall: a call needs a name.", path)
        id = call.get("id") or generate_id(path, self._count, name, arguments)
        self._count += 1
        origin = self._origin if signature or call.get("id") else None
        tool_call = ToolCall(id=id, name=name, arguments=arguments, signature=signature, origin=origin)
        self._calls.append(tool_call)
        return tool_call

    def _read_result(self, response: Mapping[str, Any]) -> ToolResult:
        """Decode a result. It belongs to the call with its id, or else to the first pending one with its name."""
        id, name = response.get("id"), response.get("name")
        call = next((call for call in self._calls if call.id == id or (id is None and call.name == name)), None)
        if call is not None:
            self._calls.remove(call)
        values = response.get("response") or {}
        failed = "error" in values
        value = next((values[key] for key in ("error", "result", "output") if key in values), values)
        text = value if isinstance(value, str) else to_json(value).decode()
        inside = [_read_media(_camel_keys(part), "functionResponse") for part in response.get("parts") or ()]
        media = [part for part in inside if part is not None]
        return ToolResult(
            tool_call_id=id or (call.id if call is not None else f"{name}"),
            name=name,
            content=[*([TextContent(text=text)] if text else []), *media] if media else text,
            is_error=failed,
        )


_NAMES = (
    "systemInstruction generationConfig toolConfig functionDeclarations parametersJsonSchema functionCallingConfig "
    "allowedFunctionNames includeServerSideToolInvocations maxOutputTokens topP stopSequences responseLogprobs "
    "thinkingConfig thinkingLevel thinkingBudget includeThoughts responseMimeType responseJsonSchema responseSchema "
    "inlineData fileData mimeType fileUri functionCall functionResponse thoughtSignature generateContentRequest"
)
_IN_SNAKE_CASE = {re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", name): name for name in _NAMES.split()}


def _camel_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the known keys of an object to camel case, but not those of nested objects."""
    return {_IN_SNAKE_CASE.get(key, key): value for key, value in values.items()}


def _find_kind(part: Mapping[str, Any]) -> str:
    return next((key for key in part if key not in SHARED_KEYS), "part")


_NO_JSON_SCHEMA = ("nullable", "propertyOrdering", "property_ordering")


def _convert_schema(schema: Any) -> Any:
    """Convert a schema of the vendor's older format, with types in upper case and `nullable`."""
    if isinstance(schema, list):
        return [_convert_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    read = {key: _convert_schema(value) for key, value in schema.items() if key not in _NO_JSON_SCHEMA}
    if isinstance(kind := schema.get("type"), str):
        read["type"] = [kind.lower(), "null"] if schema.get("nullable") is True else kind.lower()
    return read


def _read_media(part: Mapping[str, Any], path: str) -> ImageContent | AudioContent | DocumentContent | None:
    if isinstance(inline := part.get("inlineData"), dict):
        inline = _camel_keys(inline)
        media_type, data = str(inline.get("mimeType") or ""), decode_base64(inline.get("data"), path)
        if media_type.startswith("image/"):
            return ImageContent(image_data=data, media_type=media_type)
        if media_type.startswith("audio/"):
            return AudioContent(data=data, media_type=media_type)
        return DocumentContent(data=data, media_type=media_type or None)
    if isinstance(file := part.get("fileData"), dict):
        file = _camel_keys(file)
        media_type, url = str(file.get("mimeType") or ""), file.get("fileUri")
        if media_type.startswith("image/"):
            return ImageContent(image_url=url, media_type=media_type)
        return DocumentContent(url=url, media_type=media_type or None)
    return None


def _read_tools(group: Mapping[str, Any]) -> list[ToolSpec | dict[str, Any]]:
    rest = {key: value for key, value in group.items() if key != "functionDeclarations"}
    tools: list[ToolSpec | dict[str, Any]] = [rest] if rest else []
    for function in require_objects(group.get("functionDeclarations") or (), "tools.functionDeclarations"):
        named = _camel_keys(function)
        schema = named.get("parametersJsonSchema") or _convert_schema(named.get("parameters"))
        known = ("name", "parametersJsonSchema", "parameters")
        tools.append(function_tool(named.get("name"), named, schema, known))
    return tools
