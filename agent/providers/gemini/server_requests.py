"""Read requests of generateContent as a server."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
)
from .fields import generate_id
from .models import SKIP_SIGNATURE, features_of

API = "gemini"
METHOD_IN_PATH = re.compile(r"/(?:models|tunedModels|endpoints)/([^/]+):(\w+)$")
_BESIDE = frozenset(("thought", "thoughtSignature"))
"""Keys of a part that do not say what it is."""
_BUDGETS = (
    (0, ThinkingLevel.OFF),
    (1_024, ThinkingLevel.MINIMAL),
    (4_096, ThinkingLevel.LOW),
    (16_384, ThinkingLevel.MEDIUM),
    (28_672, ThinkingLevel.HIGH),
)
"""Budgets up to these are taken for that level."""
_WORDS = frozenset(("minimal", "low", "medium", "high"))


class RequestReader:
    """Reads one request body. Names are taken in camel case and in snake case, as the vendor does."""

    def __init__(self, body: bytes, path: str) -> None:
        fields = Fields(body)
        counted = fields.object("generateContentRequest")
        self._fields = Fields(_camel(counted or fields.left))
        self._fields.take("model")  # the path names it
        address = urlsplit(path)
        found = METHOD_IN_PATH.search(address.path)
        self._model = unquote(found[1]) if found else ""
        self._stream = bool(found and found[2] == "streamGenerateContent")
        self._sse = parse_qs(address.query).get("alt") == ["sse"]
        self._origin = Origin(provider=API, api=API, model=self._model)
        self._calls: list[ToolCall] = []
        """Calls that have no result yet."""
        self._count = 0

    def inbound(self) -> InboundRequest:
        fields = self._fields
        messages = self._system(fields.take("systemInstruction"))
        contents = fields.take("contents") or []
        if isinstance(contents, dict):
            contents = [contents]
        for at, item in enumerate(require_objects(contents, "contents")):
            messages += self._turn(_camel(item), f"contents[{at}]")
        request = build_request(messages=messages, model=self._model, **self._settings())
        request = request.model_copy(update={"extra": fields.rest()})
        return InboundRequest(request, self._model, self._stream, settings={"sse": self._sse})

    def _settings(self) -> dict[str, Any]:
        fields = self._fields
        generation = Fields(_camel(fields.object("generationConfig")))
        thinking = _camel(generation.object("thinkingConfig"))
        level = self._level(thinking, generation)
        schema = generation.take("responseJsonSchema") or _json_schema(generation.take("responseSchema"))
        if schema is not None:
            generation.take("responseMimeType")
        logprobs = generation.take("logprobs")
        if generation.flag("responseLogprobs"):
            logprobs = logprobs or 0
        tools = [
            tool for group in require_objects(fields.list("tools"), "tools") for tool in _read_tools(_camel(group))
        ]
        settings = {
            "tools": tools,
            "tool_choice": self._tool_choice(),
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

    def _level(self, thinking: dict[str, Any], generation: Fields) -> ThinkingLevel | None:
        """The level that is sent like this; the nearest, with the setting carried, if none is."""
        if not thinking:
            return None
        features = features_of(self._model)
        for level in ThinkingLevel:
            if features.encode_thinking(level)[0] == thinking:
                return level
        generation.put("thinkingConfig", thinking)
        word, budget = thinking.get("thinkingLevel"), thinking.get("thinkingBudget")
        if isinstance(word, str) and word.lower() in _WORDS:
            return ThinkingLevel(word.lower())
        if not isinstance(budget, int) or budget < 0:
            return None
        return next((level for most, level in _BUDGETS if budget <= most), ThinkingLevel.XHIGH)

    def _tool_choice(self) -> str | None:
        config = _camel(self._fields.object("toolConfig"))
        calling = _camel(config.pop("functionCallingConfig", None) or {})
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

    # The conversation

    def _system(self, instruction: Any) -> list[Message]:
        if not instruction:
            return []
        if isinstance(instruction, str):
            return [Message(Role.SYSTEM, instruction)]
        parts = instruction.get("parts") if isinstance(instruction, dict) else None
        blocks = require_objects([parts] if isinstance(parts, dict) else parts or (), "systemInstruction.parts")
        return [Message(Role.SYSTEM, str(block["text"])) for block in blocks if block.get("text")]

    def _turn(self, item: Mapping[str, Any], where: str) -> list[Message]:
        parts = [_camel(part) for part in require_objects(item.get("parts") or (), f"{where}.parts")]
        match item.get("role", "user"):
            case "model":
                self._calls = []
                self._count = 0
                read = [self._model_part(part, f"{where}.parts[{at}]") for at, part in enumerate(parts)]
                return [Message(Role.ASSISTANT, _simplest(read))]
            case "user" | "function":
                results = [
                    self._result(_camel(part["functionResponse"])) for part in parts if "functionResponse" in part
                ]
                said = [
                    self._user_part(part, f"{where}.parts[{at}]")
                    for at, part in enumerate(parts)
                    if "functionResponse" not in part
                ]
                turns = [Message(Role.TOOL, results)] if results else []
                return [*turns, Message(Role.USER, _simplest(said))] if said or not results else turns
            case role:
                raise invalid_request(f"{where}.role: {role!r} is not a role.", f"{where}.role")

    def _user_part(self, part: dict[str, Any], where: str) -> Part:
        if isinstance(part.get("text"), str):
            return TextContent(text=part["text"])
        return _media(part, where) or VendorContent(kind=_kind(part), provider_data=part, origin=self._origin)

    def _model_part(self, part: dict[str, Any], where: str) -> Part:
        signature = part.get("thoughtSignature")
        if signature == SKIP_SIGNATURE:
            signature = None
        if isinstance(call := part.get("functionCall"), dict):
            return self._call(call, signature, where)
        if isinstance(text := part.get("text", "" if part.keys() <= _BESIDE else None), str):
            if part.get("thought"):
                return ThinkingContent(thinking=text, signature=signature or "", origin=self._origin)
            return TextContent(text=text, signature=signature, origin=self._origin if signature else None)
        if (media := _media(part, where)) is not None:
            sealed = {"provider_data": {"thoughtSignature": signature}, "origin": self._origin}
            return media.model_copy(update=sealed) if signature else media
        return VendorContent(kind=_kind(part), provider_data=part, origin=self._origin)

    def _call(self, call: Mapping[str, Any], signature: str | None, where: str) -> ToolCall:
        name, arguments = call.get("name"), call.get("args") or {}
        if not isinstance(name, str):
            raise invalid_request(f"{where}.functionCall: a call needs a name.", where)
        id = call.get("id") or generate_id(where, self._count, name, arguments)
        self._count += 1
        origin = self._origin if signature or call.get("id") else None
        made = ToolCall(id=id, name=name, arguments=arguments, signature=signature, origin=origin)
        self._calls.append(made)
        return made

    def _result(self, response: Mapping[str, Any]) -> ToolResult:
        """A result belongs to the call with its id, or to the first of its name that has none."""
        id, name = response.get("id"), response.get("name")
        call = next((call for call in self._calls if call.id == id or (id is None and call.name == name)), None)
        if call is not None:
            self._calls.remove(call)
        values = response.get("response") or {}
        failed = "error" in values
        said = next((values[key] for key in ("error", "result", "output") if key in values), values)
        text = said if isinstance(said, str) else to_json(said).decode()
        inside = [_media(_camel(part), "functionResponse") for part in response.get("parts") or ()]
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
_IN_SNAKE_CASE = {re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name): name for name in _NAMES.split()}


def _camel(values: Mapping[str, Any]) -> dict[str, Any]:
    """An object whose known keys are in camel case; keys within them stay as they are."""
    return {_IN_SNAKE_CASE.get(key, key): value for key, value in values.items()}


def _kind(part: Mapping[str, Any]) -> str:
    return next((key for key in part if key not in _BESIDE), "part")


_NO_JSON_SCHEMA = ("nullable", "propertyOrdering", "property_ordering")


def _json_schema(schema: Any) -> Any:
    """JSON schema from the vendor's older form, which has types in capitals, and `nullable`."""
    if isinstance(schema, list):
        return [_json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    read = {key: _json_schema(value) for key, value in schema.items() if key not in _NO_JSON_SCHEMA}
    if isinstance(kind := schema.get("type"), str):
        read["type"] = [kind.lower(), "null"] if schema.get("nullable") is True else kind.lower()
    return read


def _media(part: Mapping[str, Any], where: str) -> ImageContent | AudioContent | DocumentContent | None:
    if isinstance(inline := part.get("inlineData"), dict):
        inline = _camel(inline)
        media_type, data = str(inline.get("mimeType") or ""), decode_base64(inline.get("data"), where)
        if media_type.startswith("image/"):
            return ImageContent(image_data=data, media_type=media_type)
        if media_type.startswith("audio/"):
            return AudioContent(data=data, media_type=media_type)
        return DocumentContent(data=data, media_type=media_type or None)
    if isinstance(file := part.get("fileData"), dict):
        file = _camel(file)
        media_type, url = str(file.get("mimeType") or ""), file.get("fileUri")
        if media_type.startswith("image/"):
            return ImageContent(image_url=url, media_type=media_type)
        return DocumentContent(url=url, media_type=media_type or None)
    return None


def _simplest(parts: Sequence[Part]) -> Any:
    """Plain text where that is all there is."""
    first = parts[0] if parts else TextContent(text="")
    plain = isinstance(first, TextContent) and first == TextContent(text=first.text)
    return first.text if plain and len(parts) <= 1 else parts


def _read_tools(group: Mapping[str, Any]) -> list[ToolSpec | dict[str, Any]]:
    rest = {key: value for key, value in group.items() if key != "functionDeclarations"}
    found: list[ToolSpec | dict[str, Any]] = [rest] if rest else []
    for function in require_objects(group.get("functionDeclarations") or (), "tools.functionDeclarations"):
        named = _camel(function)
        schema = named.get("parametersJsonSchema") or _json_schema(named.get("parameters"))
        known = ("name", "parametersJsonSchema", "parameters")
        found.append(function_tool(named.get("name"), named, schema, known))
    return found
