"""The server side of generateContent."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic_core import to_json
from typing_extensions import override

from ... import errors
from ...types import (
    AgentResponse,
    AudioContent,
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
    usage_of,
)
from .family import SKIP_SIGNATURE, family_of
from .names import made_up_id

API = "gemini"
_METADATA_KIND = "metadata"
"""The kind of a block that holds what a candidate says about itself."""
_METADATA = ("groundingMetadata", "citationMetadata", "urlContextMetadata", "continuationToken")
_BESIDE = frozenset(("thought", "thoughtSignature"))
"""Keys of a part that do not say what it is."""
_IN_PATH = re.compile(r"/(?:models|tunedModels|endpoints)/([^/]+):(\w+)$")
_REASONS: Mapping[str, str] = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "length": "MAX_TOKENS",
    "content_filter": "SAFETY",
    "refusal": "SAFETY",  # it has no word for a model's own refusal
    "pause": "CONTINUATION",
    "error": "MALFORMED_RESPONSE",
    "other": "OTHER",
}
_ERRORS: Mapping[ErrorKind, tuple[int, str | None]] = {
    "bad_request": (400, None),
    "context_length": (400, None),
    "authentication": (401, "API_KEY_INVALID"),
    "not_found": (404, None),
    "rate_limit": (429, None),
    "quota": (429, "quota_exceeded"),
    "overloaded": (503, None),
    "content_filter": (400, "content_filter"),
    "server": (500, None),
}
"""Status and the reason in the details, by kind of error."""
_STATUSES = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip
_BUDGETS = (
    (0, ThinkingLevel.OFF),
    (1_024, ThinkingLevel.MINIMAL),
    (4_096, ThinkingLevel.LOW),
    (16_384, ThinkingLevel.MEDIUM),
    (28_672, ThinkingLevel.HIGH),
)
"""Budgets up to these are taken for that level."""
_WORDS = frozenset(("minimal", "low", "medium", "high"))


class GeminiServer:
    """generateContent, as a server speaks it."""

    api: ClassVar[str] = API
    sealed_field: ClassVar[str | None] = None
    signs_whole_parts: ClassVar[bool] = True

    def endpoint(self, path: str) -> Endpoint | None:
        found = _IN_PATH.search(urlsplit(path).path)
        match found and found[2]:
            case "generateContent" | "streamGenerateContent":
                return "generate"
            case "countTokens":
                return "count"
            case _:
                return None

    def decode_request(self, path: str, body: bytes) -> Inbound:
        with reading():
            return _RequestReader(body, path).inbound()

    def losses(self, response: AgentResponse) -> tuple[str, ...]:
        return tuple(dict.fromkeys(loss for part in response.content if (loss := _loss(part)) is not None))

    def encode_response(self, response: AgentResponse, inbound: Inbound) -> bytes:
        parts = [written for part in response.content if (written := _part(part)) is not None]
        return to_json(_last_chunk(parts, response, inbound))

    def encoder(self, inbound: Inbound) -> GeminiEncoder:
        return GeminiEncoder(inbound)

    def stream_headers(self, inbound: Inbound) -> Mapping[str, str]:
        return {"content-type": "text/event-stream" if inbound.settings.get("sse") else "application/json"}

    def encode_error(self, error: errors.AgentError) -> tuple[int, bytes]:
        body = _error(error)
        return body["error"]["code"], to_json(body)

    def encode_count(self, tokens: int) -> bytes:
        return to_json({"totalTokens": tokens})

    def encode_models(self, models: Sequence[str]) -> bytes:
        methods = ["generateContent", "countTokens"]
        return to_json(
            {
                "models": [
                    {"name": f"models/{model}", "displayName": model, "supportedGenerationMethods": methods}
                    for model in models
                ]
            }
        )


def _error(error: errors.AgentError) -> dict[str, Any]:
    usual, reason = _ERRORS[error_kind(error)]
    status, reason = error_status(error, usual), error.code or reason
    details: list[dict[str, Any]] = []
    if reason:
        details.append({"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason})
    if error.retry_after is not None:
        delay = f"{error.retry_after:g}s"
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay})
    name = _STATUSES.get(status, "UNKNOWN")
    return {"error": {"code": status, "message": error.message, "status": name, "details": details}}


# Requests


class _RequestReader:
    """Reads one request body. Names are taken in camel case and in snake case, as the vendor does."""

    def __init__(self, body: bytes, path: str) -> None:
        fields = Fields(body)
        counted = fields.object("generateContentRequest")
        self._fields = Fields(_camel(counted or fields.left))
        self._fields.take("model")  # the path names it
        address = urlsplit(path)
        found = _IN_PATH.search(address.path)
        self._model = unquote(found[1]) if found else ""
        self._stream = bool(found and found[2] == "streamGenerateContent")
        self._sse = parse_qs(address.query).get("alt") == ["sse"]
        self._origin = Origin(provider=API, api=API, model=self._model)
        self._calls: list[ToolCall] = []
        """Calls that have no result yet."""
        self._count = 0

    def inbound(self) -> Inbound:
        fields = self._fields
        messages = self._system(fields.take("systemInstruction"))
        contents = fields.take("contents") or []
        if isinstance(contents, dict):
            contents = [contents]
        for at, item in enumerate(objects(contents, "contents")):
            messages += self._turn(_camel(item), f"contents[{at}]")
        request = build_request(messages=messages, model=self._model, **self._settings())
        request = request.model_copy(update={"extra": fields.rest()})
        return Inbound(request, self._model, self._stream, settings={"sse": self._sse})

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
        tools = [tool for group in objects(fields.list("tools"), "tools") for tool in _read_tools(_camel(group))]
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
        family = family_of(self._model)
        for level in ThinkingLevel:
            if family.thinking_config(level)[0] == thinking:
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
        blocks = objects([parts] if isinstance(parts, dict) else parts or (), "systemInstruction.parts")
        return [Message(Role.SYSTEM, str(block["text"])) for block in blocks if block.get("text")]

    def _turn(self, item: Mapping[str, Any], where: str) -> list[Message]:
        parts = [_camel(part) for part in objects(item.get("parts") or (), f"{where}.parts")]
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
                raise invalid(f"{where}.role: {role!r} is not a role.", f"{where}.role")

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
            raise invalid(f"{where}.functionCall: a call needs a name.", where)
        id = call.get("id") or made_up_id(where, self._count, name, arguments)
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
    for function in objects(group.get("functionDeclarations") or (), "tools.functionDeclarations"):
        named = _camel(function)
        schema = named.get("parametersJsonSchema") or _json_schema(named.get("parameters"))
        known = ("name", "parametersJsonSchema", "parameters")
        found.append(function_tool(named.get("name"), named, schema, known))
    return found


# Responses


def _loss(part: Part) -> str | None:
    match part:
        case TextContent() if part.citations and (is_foreign(part, API) or not _metadata_of(part)):
            return "citations"
        case ToolCall(invalid_arguments=str()):
            return "arguments that are no JSON"
        case TextContent() | ThinkingContent() | RefusalContent() | ToolCall():
            return None
        case ImageContent(image_data=bytes()) | AudioContent():
            return None
        case VendorContent() if not is_foreign(part, API):
            return None
        case _:
            return f"a part of type {part.type!r}"


def _metadata_of(part: Part) -> dict[str, Any]:
    data = {} if is_foreign(part, API) else part.provider_data or {}
    return {key: value for key, value in data.items() if key in _METADATA}


def _part(part: Part) -> dict[str, Any] | None:
    """A part of the content; None for what stands elsewhere or has no place."""
    home = not is_foreign(part, API)
    signature = getattr(part, "signature", None) if home else None
    sealed = {"thoughtSignature": signature} if signature else {}
    match part:
        case TextContent():
            return {"text": part.text, **sealed}
        case ThinkingContent():
            return {"text": part.thinking, "thought": True, **sealed}
        case ToolCall():
            arguments: Mapping[str, Any] = part.arguments
            if part.invalid_arguments is not None:
                arguments = {"invalid_arguments": part.invalid_arguments}  # this API has no text for them
            return {"functionCall": {"id": part.id, "name": part.name, "args": arguments}, **sealed}
        case ImageContent(image_data=bytes(data)):
            return _inline(data, part.media_type or "image/png", part)
        case AudioContent():
            return _inline(part.data, part.media_type or "audio/wav", part)
        case VendorContent() if home and part.kind != _METADATA_KIND:
            return dict(part.provider_data or {part.kind: {}})
        case _:
            return None


def _inline(data: bytes, media_type: str, part: Part) -> dict[str, Any]:
    seal = None if is_foreign(part, API) else (part.provider_data or {}).get("thoughtSignature")
    inline = {"inlineData": {"mimeType": media_type, "data": base64.b64encode(data).decode()}}
    return {**inline, "thoughtSignature": seal} if seal else inline


def _chunk(parts: Sequence[Mapping[str, Any]], response: AgentResponse, inbound: Inbound) -> dict[str, Any]:
    return {
        "candidates": [{"content": {"role": "model", "parts": parts}, "index": 0}],
        "modelVersion": response.model or inbound.model,
        "responseId": response.id or f"response_{inbound.id}",
    }


def _last_chunk(parts: Sequence[Mapping[str, Any]], response: AgentResponse, inbound: Inbound) -> dict[str, Any]:
    chunk = _chunk(parts, response, inbound)
    candidate = chunk["candidates"][0]
    for part in response.content:
        if isinstance(part, TextContent | VendorContent):
            candidate.update(_metadata_of(part))
    candidate["finishReason"] = finish_word(response, _REASONS)
    if response.refusal:
        candidate["finishMessage"] = response.refusal
    if response.logprobs:
        candidate["logprobsResult"] = {
            "chosenCandidates": [_token(entry) for entry in response.logprobs],
            "topCandidates": [
                {"candidates": [_token(top) for top in entry.get("top") or ()]} for entry in response.logprobs
            ],
        }
    usage = usage_of(response)
    chunk["usageMetadata"] = {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": usage.completion_tokens - usage.reasoning_tokens,
        "thoughtsTokenCount": usage.reasoning_tokens,
        "cachedContentTokenCount": usage.cache_read_tokens,
        "totalTokenCount": usage.total_tokens,
    }
    return chunk


def _token(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": entry.get("token"), "logProbability": entry.get("logprob")}


class GeminiEncoder(BlockEncoder):
    """Writes a stream of chunks: as server-sent events, or as the items of one JSON array.

    The latest piece of text waits for the next event, because a signature must stand on the part it belongs to.
    """

    def __init__(self, inbound: Inbound) -> None:
        super().__init__(inbound)
        self._held = ""
        self._first = True

    def _write_chunk(self, chunk: Mapping[str, Any]) -> bytes:
        data = to_json(chunk)
        if self.inbound.settings.get("sse"):
            return b"data: " + data + b"\n\n"
        lead, self._first = b"[" if self._first else b",\n", False
        return lead + data

    def _write_part(self, part: Mapping[str, Any]) -> bytes:
        return self._write_chunk(_chunk([part], self.facts, self.inbound))

    def _release(self, block: Block, signature: str | None = None) -> bytes:
        held, self._held = self._held, ""
        if not held and not signature:
            return b""
        thought = {"thought": True} if block.kind == "thinking" else {}
        sealed = {"thoughtSignature": signature} if signature else {}
        return self._write_part({"text": held, **thought, **sealed})

    @override
    def write_delta(self, block: Block, text: str) -> bytes:
        if block.kind in ("call", "refusal"):  # a call is written whole; a refusal's words stand in the last chunk
            return b""
        released = self._release(block)
        self._held = text
        return released

    @override
    def write_close(self, block: Block) -> bytes:
        part = block.part
        if block.kind == "call":
            return self._write_part(_part(_ended_call(block)) or {})
        home = part is not None and not is_foreign(part, API)
        return self._release(block, getattr(part, "signature", None) if home else None)

    @override
    def write_whole(self, part: Part) -> bytes:
        written = _part(part)
        return b"" if written is None else self._write_part(written)

    @override
    def write_end(self, response: AgentResponse) -> bytes:
        facts = {"id": self.facts.id, "model": self.facts.model}
        ending = self._write_chunk(_last_chunk([], response.model_copy(update=facts), self.inbound))
        return ending if self.inbound.settings.get("sse") else ending + b"]"

    @override
    def ping(self) -> bytes:
        return b": ping\n\n" if self.inbound.settings.get("sse") else b" "

    def fail(self, error: errors.AgentError) -> bytes:
        ending = self._write_chunk(_error(error))
        return ending if self.inbound.settings.get("sse") else ending + b"]"


def _ended_call(block: Block) -> ToolCall:
    """The call, from its end or, if the events did not tell it, from the pieces of its arguments."""
    call = block.call
    if call.arguments or call.invalid_arguments is not None or not block.pieces:
        return call
    return ToolCall(id=call.id, name=call.name, arguments=block.text)


SERVER = GeminiServer()
