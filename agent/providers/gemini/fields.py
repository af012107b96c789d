"""Request fields and request types of generateContent."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Required, TypeAlias, TypedDict, assert_never

from pydantic_core import to_json

from ... import errors
from ...models import facts
from ...schemas import compile_schema
from ...types import (
    AgentRequest,
    BuiltinTool,
    CodeExecution,
    ComputerUse,
    FileSearch,
    ImageGeneration,
    McpConnector,
    Message,
    RequestTool,
    ThinkingLevel,
    ToolResult,
    ToolSpec,
    WebSearch,
)
from ..encoding import (
    EncodingContext,
    FieldEncoder,
    JsonDict,
    drop_silently,
    drop_unsupported,
    level_for_budget,
    normalize_name,
    send_as,
    send_nested,
    tool_parameters,
)
from .models import BUDGETS, SCHEMA_DIALECT_NAME, VERTEX, ModelFeatures, Platform

# Request types, as in the API reference.


class Blob(TypedDict):
    mimeType: str
    data: str


class FileData(TypedDict, total=False):
    fileUri: Required[str]
    mimeType: str


class FunctionCall(TypedDict, total=False):
    id: str
    name: Required[str]
    args: dict[str, Any]


class FunctionResponse(TypedDict, total=False):
    id: str
    name: Required[str]
    response: Required[dict[str, Any]]
    parts: list[PartParam]


class VideoMetadata(TypedDict, total=False):
    startOffset: str
    endOffset: str
    fps: float


class _AnyPart(TypedDict, total=False):
    thought: bool
    thoughtSignature: str
    videoMetadata: VideoMetadata


class TextPart(_AnyPart):
    text: str


class InlineDataPart(_AnyPart):
    inlineData: Blob


class FileDataPart(_AnyPart):
    fileData: FileData


class FunctionCallPart(_AnyPart):
    functionCall: FunctionCall


class FunctionResponsePart(_AnyPart):
    functionResponse: FunctionResponse


MediaPart: TypeAlias = InlineDataPart | FileDataPart
PartParam: TypeAlias = TextPart | InlineDataPart | FileDataPart | FunctionCallPart | FunctionResponsePart


class Content(TypedDict):
    role: Literal["user", "model"]
    parts: list[PartParam]


# Function names and call ids.

MAX_NAME_LENGTH = 64
_ALLOWED = "a-zA-Z0-9_.:-"
_GENERATED_ID = re.compile(r"gemini_[0-9a-f]{20}(?:#\d+)?")


@lru_cache(maxsize=4096)
def normalize_function_name(name: str) -> str:
    """Return a valid function name, which begins with a letter or an underscore."""
    if not name[:1].isascii() or not (name[:1].isalpha() or name[:1] == "_"):
        name = f"_{name}"
    return normalize_name(name, MAX_NAME_LENGTH, _ALLOWED)


def tools_by_name(request: AgentRequest) -> dict[str, ToolSpec]:
    """Return the request's tools by normalized name, to decode the response."""
    return {normalize_function_name(tool.name): tool for tool in request.tools if isinstance(tool, ToolSpec)}


def generate_id(response_id: str, position: int, name: str, arguments: Any) -> str:
    """Return an id for a call without one. It is the same for streams, and is not sent back."""
    seed = f"{response_id}/{position}/{name}/".encode("utf-8", "surrogatepass") + to_json(arguments)
    return "gemini_" + hashlib.sha256(seed).hexdigest()[:20]


def is_generated_id(id: str) -> bool:
    return _GENERATED_ID.fullmatch(id) is not None


# Limits.

MAX_STOPS = 5
_IMAGE_SIZE = re.compile(r"(?P<aspectRatio>\d+:\d+)|(?P<imageSize>\d+[kK]|512(?:px)?)")
_SEEDS = range(-(2**31), 2**31)
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_MAX_LABELS = 64

LONG_CACHE = "cache='long' was dropped: gemini caches prompts for some minutes; pass cached_content"
Tools = Sequence[RequestTool]


@dataclass(slots=True, kw_only=True)
class GeminiContext(EncodingContext):
    """Encoding context of one model on one platform."""

    platform: Platform
    features: ModelFeatures

    @property
    def functions(self) -> list[ToolSpec]:
        """Tools of the caller."""
        return [tool for tool in self.request.tools if isinstance(tool, ToolSpec)]

    @property
    def server_tools(self) -> list[BuiltinTool | Mapping[str, Any]]:
        """Server-side tools, some in the vendor's format."""
        return [tool for tool in self.request.tools if not isinstance(tool, ToolSpec | ImageGeneration)]


# Tools.


def encode_tools(context: GeminiContext, tools: Tools) -> JsonDict:
    functions, server_tools = context.functions, context.server_tools
    encoded: list[Mapping[str, Any]] = [
        tool if isinstance(tool, Mapping) else encode_builtin_tool(context, tool) for tool in server_tools
    ]
    if functions:
        encoded.append({"functionDeclarations": [encode_function(context, tool) for tool in functions]})
    config: JsonDict = {}
    if context.request.tool_choice in (None, "auto") and any(tool.strict for tool in functions):
        if context.features.validated_calls:
            config["functionCallingConfig"] = {"mode": "VALIDATED"}
        else:
            context.warn("strict was dropped: the model cannot enforce the schemas of tools")
    if functions and server_tools and context.features.mixes_tools and context.platform.shows_server_tools:
        config["includeServerSideToolInvocations"] = True
    body: JsonDict = {"tools": encoded} if encoded else {}
    if config:
        body["toolConfig"] = config
    for tool in tools:
        if isinstance(tool, ImageGeneration):
            body["generationConfig"] = encode_image_generation(context, tool)
    return body


def encode_function(context: GeminiContext, tool: ToolSpec) -> JsonDict:
    function: JsonDict = {"name": normalize_function_name(tool.name)}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters:
        compiled = compile_schema(tool_parameters(tool), SCHEMA_DIALECT_NAME)
        if tool.strict:  # other schemas are not enforced
            context.warn(*(f"tool {tool.name}: {lost}" for lost in compiled.lost))
        function["parametersJsonSchema"] = compiled.plain
    return {**function, **tool.extra}


def encode_builtin_tool(context: GeminiContext, tool: BuiltinTool) -> JsonDict:
    """Return the tool. Image generation is no tool of this API, but a setting."""
    vertex = context.platform is VERTEX
    match tool:
        case WebSearch():
            supported = ("blocked_domains",) if vertex else ()
            context.drop_tool_settings(tool, *supported)
            excluded = {"excludeDomains": list(tool.blocked_domains)} if vertex and tool.blocked_domains else {}
            return {"googleSearch": {**excluded, **tool.extra}}
        case CodeExecution():
            context.drop_tool_settings(tool)
            return {"codeExecution": {**tool.extra}}
        case ComputerUse():
            context.drop_tool_settings(tool, "environment")
            place = "BROWSER" if tool.environment == "browser" else "DESKTOP"
            return {"computerUse": {"environment": f"ENVIRONMENT_{place}", **tool.extra}}
        case FileSearch() if not vertex and (tool.filters is None or isinstance(tool.filters, str)):
            search: JsonDict = {"fileSearchStoreNames": list(tool.stores)}
            if tool.max_results is not None:
                search["topK"] = tool.max_results
            if tool.filters:
                search["metadataFilter"] = tool.filters
            return {"fileSearch": {**search, **tool.extra}}
        case McpConnector() if not vertex and tool.url is not None:
            context.drop_tool_settings(tool, "label", "url", "token")
            transport: JsonDict = {"url": tool.url}
            if tool.token is not None:
                transport["headers"] = {"Authorization": f"Bearer {tool.token.get_secret_value()}"}
            return {"mcpServers": [{"name": tool.label, "streamableHttpTransport": transport, **tool.extra}]}
        case FileSearch() | McpConnector() | ImageGeneration():
            raise context.builtin_tool_error(tool)
        case _:
            assert_never(tool)


def encode_image_generation(context: GeminiContext, tool: ImageGeneration) -> JsonDict:
    """Return settings of the generation: the kinds of output and the size of images."""
    context.drop_tool_settings(tool, "size")
    image: JsonDict = {**tool.extra}
    if tool.size is not None:
        if (match := _IMAGE_SIZE.fullmatch(tool.size)) is None:
            context.warn(f"size of image_generation was left out: {context.provider} takes sizes such as 16:9 or 2K")
        else:
            image |= {key: value for key, value in match.groupdict().items() if value is not None}
    return {"responseModalities": ["TEXT", "IMAGE"], **({"imageConfig": image} if image else {})}


def encode_tool_choice(context: GeminiContext, choice: str) -> JsonDict:
    if context.server_tools and choice != "auto":
        context.warn("tool_choice has no effect on server-side tools")
    if not context.functions:
        return {}
    calling: JsonDict
    match choice:
        case "auto":
            calling = context.body.get("toolConfig", {}).get("functionCallingConfig", {"mode": "AUTO"})
        case "none":
            calling = {"mode": "NONE"}
        case "required":
            calling = {"mode": "ANY"}
        case name:
            calling = {"mode": "ANY", "allowedFunctionNames": [normalize_function_name(name)]}
    return {"functionCallingConfig": calling}


def encode_parallel_tool_calls(context: GeminiContext, parallel: bool) -> JsonDict:
    if not parallel and context.functions:
        context.warn("parallel_tool_calls=False was dropped: gemini does not support it")
    return {}


# Generation settings.


def send_sampling(key: str) -> FieldEncoder[GeminiContext]:
    """Send temperature or top_p in the generation settings if the model accepts it."""
    return send_nested("generationConfig", lambda context, value: {key: value} if _takes_sampling(context) else {})


def _takes_sampling(context: GeminiContext) -> bool:
    if facts(context.provider, context.model).sampling is not False:
        return True
    settings = {"temperature": context.request.temperature, "topP": context.request.top_p}
    names = " and ".join(name for name, value in settings.items() if value is not None)
    context.warn(f"{names} were dropped: the model does not support them")
    return False


def encode_seed(context: GeminiContext, seed: int) -> JsonDict:
    if seed in _SEEDS:
        return {"seed": seed}
    context.warn("seed was dropped: it must fit into 32 bits")
    return {}


def encode_stop(context: GeminiContext, stop: Sequence[str]) -> JsonDict:
    if len(stop) > MAX_STOPS:
        context.warn(f"only the first {MAX_STOPS} of {len(stop)} stop sequences were sent")
    return {"stopSequences": stop[:MAX_STOPS]}


def encode_logprobs(context: GeminiContext, alternatives: int) -> JsonDict:
    return {"responseLogprobs": True, "logprobs": alternatives} if alternatives else {"responseLogprobs": True}


def encode_thinking(context: GeminiContext, level: ThinkingLevel) -> JsonDict:
    config, warning = context.features.encode_thinking(level)
    if warning is not None:
        context.warn(warning)
    return {} if config is None else {"thinkingConfig": config}


def encode_thinking_budget(context: GeminiContext, budget: int) -> JsonDict:
    """Send a budget, which replaces the level. Models with levels get the nearest one."""
    features = context.features
    if budget and context.request.thinking is ThinkingLevel.OFF:
        context.warn("thinking_budget was dropped: thinking is off")
        return {}
    if features.budget is not None:
        config, warning = features.encode_budget(budget)
        if warning is not None:
            context.warn(warning)
        return {"thinkingConfig": config}
    if not features.levels:
        context.warn("thinking_budget was dropped: the model does not support thinking")
        return {}
    level = context.request.thinking
    if level is None:
        level = level_for_budget(budget, BUDGETS) if budget else ThinkingLevel.OFF
        context.warn(f"thinking_budget was sent as thinking={level.value!r}: the model does not support budgets")
        return encode_thinking(context, level)
    context.warn("thinking_budget was dropped: the model supports levels only")
    return {}


def encode_store(context: GeminiContext, store: bool) -> JsonDict:
    """Send whether the request is logged."""
    if context.platform.hosts_data:
        return {"store": store}
    context.warn("store was dropped: vertex does not support it")
    return {}


def check_cache_hints(context: GeminiContext, messages: Sequence[Message]) -> None:
    """Warn about hints that the vendor's automatic cache cannot honour."""
    hints = {context.request.cache, *(tool.cache for tool in context.functions)}
    for message in messages:
        for part in () if isinstance(message.content, str) else message.content:
            hints.add(part.cache)
            if isinstance(part, ToolResult) and not isinstance(part.content, str):
                hints.update(each.cache for each in part.content)
    if hints != {None} and not context.features.caches:
        context.warn(f"cache was dropped: {context.model} caches prompts by name only; pass cached_content")
    elif "long" in hints:
        context.warn(LONG_CACHE)


def encode_cached_content(context: GeminiContext, name: str) -> JsonDict:
    if context.request.tools:
        raise conflict_with_cache(context, "tools")
    return {"cachedContent": name}


def conflict_with_cache(context: GeminiContext, conflict: str) -> errors.UnsupportedFeatureError:
    return context.feature_error(
        f"A request with cached_content cannot have {conflict}: the cached content has its own.",
        field="cached_content",
        fix=f"Set the {conflict} when you create the cached content, or leave out cached_content.",
    )


def encode_output_schema(context: GeminiContext, schema: Any) -> JsonDict:
    """Send a schema that the vendor enforces. Other output modes use a tool or the prompt instead."""
    request = context.request
    json_schema = request.output_json_schema
    if json_schema is None or request.output_mode not in (None, "native"):
        return {}
    if request.tools and not context.features.schema_with_tools:
        raise _schema_error(
            context, "It supports none together with tools.", "remove the tools, or use Gemini 3 or later"
        )
    compiled = compile_schema(json_schema, SCHEMA_DIALECT_NAME)
    if not compiled.sendable:
        raise _schema_error(
            context, f"It cannot enforce this schema ({'; '.join(compiled.lost)}).", "remove the schema"
        )
    context.warn(*(f"output_schema: {lost}" for lost in compiled.lost))
    return {"responseMimeType": "application/json", "responseJsonSchema": compiled.plain}


def _schema_error(context: GeminiContext, reason: str, alternative: str) -> errors.UnsupportedFeatureError:
    return context.feature_error(
        f"{context.request.model} does not support this output schema. {reason}",
        field="output_schema",
        fix=f'Use output_mode="tool" or "prompted", or {alternative}.',
    )


# Other fields.


def encode_labels(context: GeminiContext, metadata: Mapping[str, Any]) -> JsonDict:
    """Send metadata that is valid as labels, which Vertex AI uses for billing."""
    if not context.platform.labels:
        return {}
    labels = [
        (key, value)
        for key, value in metadata.items()
        if _LABEL_KEY.fullmatch(key) and isinstance(value, str) and _LABEL_VALUE.fullmatch(value)
    ]
    return {"labels": dict(labels[:_MAX_LABELS])} if labels else {}


FIELDS: dict[str, FieldEncoder[GeminiContext]] = {
    "tools": encode_tools,
    "tool_choice": send_nested("toolConfig", encode_tool_choice),
    "parallel_tool_calls": encode_parallel_tool_calls,
    "max_tokens": send_nested("generationConfig", send_as("maxOutputTokens")),
    "temperature": send_sampling("temperature"),
    "top_p": send_sampling("topP"),
    "seed": send_nested("generationConfig", encode_seed),
    "stop": send_nested("generationConfig", encode_stop),
    "logprobs": send_nested("generationConfig", encode_logprobs),
    "thinking": send_nested("generationConfig", encode_thinking),
    "output_schema": send_nested("generationConfig", encode_output_schema),
    "output_mode": drop_silently,
    "metadata": encode_labels,
    "session_id": drop_silently,
    "thinking_budget": send_nested("generationConfig", encode_thinking_budget),
    "top_k": send_nested("generationConfig", send_as("topK")),
    "frequency_penalty": send_nested("generationConfig", send_as("frequencyPenalty")),
    "presence_penalty": send_nested("generationConfig", send_as("presencePenalty")),
    "n": send_nested("generationConfig", send_as("candidateCount")),
    "modalities": send_nested(
        "generationConfig", lambda context, names: {"responseModalities": [name.upper() for name in names]}
    ),
    "service_tier": send_as("serviceTier"),
    "store": encode_store,
    "cached_content": encode_cached_content,
    "safety_settings": send_as("safetySettings"),
    **drop_unsupported("background betas conversation logit_bias previous_response_id user verbosity"),
    "deadline": drop_silently,
}
ENCODED_ELSEWHERE = frozenset(("model", "input", "messages", "system", "cache", "extra"))
"""Fields that the URL, `encode_body` and `MessageEncoder` encode."""
