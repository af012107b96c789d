"""Request fields of Chat Completions: types, and an encoder for each field."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Required, TypeAlias, TypedDict

from typing_extensions import override

from ...models import facts
from ...schemas import compile_schema
from ...types import RequestTool, ThinkingLevel, ToolSpec, WebSearch
from ..encoding import (
    EncodingContext,
    FieldEncoder,
    JsonDict,
    drop_modalities,
    drop_silently,
    drop_unsupported,
    normalize_id,
    normalize_name,
    refuse_choices,
    schema_name,
    send_as,
    tool_parameters,
)
from .dialect import MAX_NAME_LENGTH, OPTIONAL_FIELDS, Dialect, ToolChoice, matches

SCHEMA_DIALECT = "openai"
_SESSION_ID = re.compile(r"[!-~]{1,64}")
_MAX_METADATA_PAIRS = 16


# Request types, as in the API reference. Dialects may add keys: opaque reasoning, cache breakpoints.


class TextBlock(TypedDict):
    type: Literal["text"]
    text: str


class ImageUrl(TypedDict, total=False):
    url: Required[str]
    detail: str


class ImageBlock(TypedDict):
    type: Literal["image_url"]
    image_url: ImageUrl


class AudioBlock(TypedDict):
    type: Literal["input_audio"]
    input_audio: dict[Literal["data", "format"], str]


class FileBlock(TypedDict):
    type: Literal["file"]
    file: dict[Literal["filename", "file_data", "file_id"], str]


class VideoBlock(TypedDict):
    """A video, which some compatible vendors accept."""

    type: Literal["video_url"]
    video_url: dict[Literal["url"], str]


class ThinkingBlock(TypedDict):
    """Mistral's form of reasoning."""

    type: Literal["thinking"]
    thinking: list[TextBlock]


Block: TypeAlias = TextBlock | ImageBlock | AudioBlock | FileBlock | VideoBlock | ThinkingBlock
Content: TypeAlias = str | list[Block]


class FunctionCall(TypedDict):
    id: str
    type: Literal["function"]
    function: dict[Literal["name", "arguments"], str]


class CustomCall(TypedDict):
    id: str
    type: Literal["custom"]
    custom: dict[Literal["name", "input"], str]


Call: TypeAlias = FunctionCall | CustomCall


class PromptMessage(TypedDict, total=False):
    """A system, developer or user message."""

    role: Required[Literal["system", "developer", "user"]]
    content: Required[Content]
    name: str


class AssistantMessage(TypedDict, total=False):
    role: Required[Literal["assistant"]]
    content: Content | None
    name: str
    refusal: str
    audio: dict[Literal["id"], str]
    images: list[ImageBlock]
    tool_calls: list[Call]


class ToolMessage(TypedDict):
    role: Literal["tool"]
    tool_call_id: str
    content: Content


MessageParam: TypeAlias = PromptMessage | AssistantMessage | ToolMessage


# Encoders of the request fields.


@dataclass(slots=True, kw_only=True)
class ChatContext(EncodingContext):
    """Encoding context with a dialect."""

    dialect: Dialect

    @override
    def refuses(self, name: str) -> bool:
        if name in ("modalities", "n"):
            return False  # their encoders decide
        return not self.supports(name)

    def supports(self, name: str) -> bool:
        dialect = self.dialect
        if name in OPTIONAL_FIELDS and name not in dialect.optional:
            return False
        return not dialect.refused or not dialect.refuses(name, self.model)

    @property
    def tools(self) -> list[RequestTool]:
        """Tools besides web search, which is a setting."""
        return [tool for tool in self.request.tools if not isinstance(tool, WebSearch)]


Tools = Sequence[RequestTool]


def encode_tools(context: ChatContext, tools: Tools) -> JsonDict:
    body: JsonDict = {}
    for tool in tools:
        if isinstance(tool, WebSearch):
            body["web_search_options"] = encode_web_search(context, tool)
    if not context.tools:
        return body
    if not context.dialect.capabilities.tools:
        raise context.feature_error(
            f"{context.provider} does not support tools.",
            field="tools",
            fix="Remove them, or use a provider that supports them.",
        )
    if _offers_tools(context):
        body["tools"] = [encode_tool(context, tool) for tool in context.tools]
    return body


def _offers_tools(context: ChatContext) -> bool:
    """Whether tools are sent. Vendors without the tool choice "none" get no tools then."""
    return bool(context.tools) and (context.request.tool_choice != "none" or "none" in context.dialect.tool_choices)


def encode_web_search(context: ChatContext, tool: WebSearch) -> JsonDict:
    models = context.dialect.search_models
    if models is None or not matches(models, context.model):
        raise context.builtin_tool_error(tool)
    context.drop_tool_settings(tool, "context_size", "user_location")
    options: JsonDict = {}
    if tool.context_size is not None:
        options["search_context_size"] = tool.context_size
    if tool.user_location is not None:
        options["user_location"] = {"type": "approximate", "approximate": tool.user_location.to_dict()}
    return {**options, **tool.extra}


def encode_tool(context: ChatContext, tool: RequestTool) -> Mapping[str, Any]:
    if isinstance(tool, Mapping):
        return tool
    if not isinstance(tool, ToolSpec):
        raise context.builtin_tool_error(tool)
    strict = context.dialect.strict
    function: JsonDict = {
        "name": normalize_name(tool.name, MAX_NAME_LENGTH),
        "description": tool.description,
        "parameters": tool_parameters(tool),
    }
    if tool.strict and strict:
        compiled = compile_schema(function["parameters"], SCHEMA_DIALECT)
        context.warn(*(f"tool {tool.name}: {lost}" for lost in compiled.lost))
        if compiled.strict:
            function["strict"] = True
            function["parameters"] = compiled.plain
    elif tool.strict:
        context.warn(f"tool {tool.name}: {context.provider} does not support strict schemas")
    elif tool.strict is not None and strict:
        function["strict"] = False
    return {"type": "function", "function": function, **tool.extra}


def encode_tool_choice(context: ChatContext, choice: str) -> JsonDict:
    if not context.tools:
        if choice not in ("auto", "none"):
            context.warn(f"tool_choice={choice!r} was left out: the request has no tools")
        return {}
    if not _offers_tools(context):
        return {}
    kind: ToolChoice = choice if choice in ("auto", "none", "required") else "named"  # type: ignore[assignment]
    if kind not in context.dialect.tool_choices:
        context.warn(f"tool_choice={choice!r} was left out: {context.provider} does not support it")
        return {}
    match kind:
        case "auto" | "none":
            return {"tool_choice": choice}
        case "required":
            return {"tool_choice": context.dialect.required_word}
        case "named":
            for tool in context.request.tools:
                custom = tool.get("custom") if isinstance(tool, Mapping) else None
                if isinstance(custom, dict) and custom.get("name") == choice:
                    return {"tool_choice": {"type": "custom", "custom": {"name": choice}}}
            function = {"name": normalize_name(choice, MAX_NAME_LENGTH)}
            return {"tool_choice": {"type": "function", "function": function}}


def encode_parallel_tool_calls(context: ChatContext, parallel: bool) -> JsonDict:
    return {"parallel_tool_calls": parallel} if _offers_tools(context) else {}


def send_sampling(name: str) -> FieldEncoder[ChatContext]:
    """Send temperature or top_p if the model accepts it."""

    def encode(context: ChatContext, value: float) -> JsonDict:
        model = facts(context.provider, context.model)
        thinks = context.request.thinking not in (None, ThinkingLevel.OFF)
        if model.sampling is False or (thinks and model.sampling_with_thinking is False):
            context.warn(f"{name} was left out: {context.model} does not support sampling settings")
            return {}
        return {name: value}

    return encode


def encode_stop(context: ChatContext, stop: Sequence[str]) -> JsonDict:
    limit = context.dialect.most_stops
    if len(stop) > limit:
        context.warn(f"{context.provider} supports {limit} stop sequences; the others were left out")
    return {"stop": stop[:limit]}


def encode_logprobs(context: ChatContext, alternatives: int) -> JsonDict:
    return {"logprobs": True, "top_logprobs": alternatives} if alternatives else {"logprobs": True}


def encode_thinking(context: ChatContext, level: ThinkingLevel) -> JsonDict:
    """Send the nearest level of the model, without settings that it refuses while it thinks."""
    body, model = context.body, context.model
    thinking = context.dialect.find_thinking(model)
    left_out = f"thinking={level.value!r} was left out: {model or 'the model'} at {context.provider}"
    if facts(context.provider, model).thinking is False or not thinking.levels:
        if level is not ThinkingLevel.OFF:
            context.warn(f"{left_out} does not support it")
        return {}
    nearest = thinking.nearest(level)
    if nearest is None:
        context.warn(f"{left_out} always thinks")
        return {}
    if nearest is not level:
        context.warn(f"thinking={level.value!r} was sent as {nearest.value!r}, the nearest level at {context.provider}")
    if nearest is not ThinkingLevel.OFF:
        for name in sorted(thinking.refuses & body.keys()):
            del body[name]
            context.warn(f"{name} was left out: {model} does not support it while it thinks")
        if "logprobs" not in body:
            body.pop("top_logprobs", None)
    return {**thinking.levels[nearest]}


def encode_thinking_budget(context: ChatContext, budget: int) -> JsonDict:
    thinking = context.dialect.find_thinking(context.model)
    if thinking.budget is None:
        context.warn(
            f"thinking_budget was left out: {context.model or 'the model'} at {context.provider} takes levels only"
        )
        return {}
    off = thinking.levels.get(ThinkingLevel.OFF) if budget == 0 else None
    return {**(off or thinking.budget(budget))}


def encode_choices(context: ChatContext, n: int) -> JsonDict:
    return {"n": n} if context.supports("n") else refuse_choices(context, n)


def encode_modalities(context: ChatContext, modalities: Sequence[str]) -> JsonDict:
    if not context.supports("modalities"):
        return drop_modalities(context, modalities)
    if "audio" in modalities and "audio" not in context.request.extra:
        raise context.feature_error(
            "Audio output needs a voice and a format.",
            field="modalities",
            fix='Pass extra={"audio": {"voice": "alloy", "format": "wav"}}.',
        )
    return {"modalities": modalities}


def encode_cache(context: ChatContext, hint: str) -> JsonDict:
    """Request a long lifetime of the vendor's own cache. Breakpoints are encoded with messages."""
    return {**(context.dialect.find_long_cache(context.model) or {})} if hint == "long" else {}


def encode_output_schema(context: ChatContext, schema: Any) -> JsonDict:
    """Send the schema for native output. Other output modes use a tool or the prompt."""
    request, dialect = context.request, context.dialect
    if request.output_mode not in (None, "native"):
        return {}
    if dialect.capabilities.native_schema_output:
        json_schema = request.output_json_schema or {}
        compiled = compile_schema(json_schema, SCHEMA_DIALECT)
        context.warn(*(f"output_schema: {lost}" for lost in compiled.lost))
        encoded: JsonDict = {"name": schema_name(json_schema), "schema": compiled.plain}
        if compiled.strict and dialect.strict:
            encoded["strict"] = True
        return {"response_format": {"type": "json_schema", "json_schema": encoded}}
    if dialect.capabilities.json_mode:
        context.warn(f"output_schema: {dialect.name} enforces JSON but no schema; describe the fields in the prompt")
        return {"response_format": {"type": "json_object"}}
    context.warn(f"output_schema was left out: {dialect.name} does not support it; describe the fields in the prompt")
    return {}


def encode_metadata(context: ChatContext, metadata: Mapping[str, Any]) -> JsonDict:
    """Send metadata of completions that the vendor stores."""
    if not context.dialect.metadata or True not in (context.request.store, context.request.extra.get("store")):
        return {}
    if len(metadata) <= _MAX_METADATA_PAIRS and all(isinstance(value, str) for value in metadata.values()):
        return {"metadata": metadata}
    context.warn(f"metadata was left out: the vendor supports {_MAX_METADATA_PAIRS} pairs of strings at most")
    return {}


def encode_session_id(context: ChatContext, session_id: str) -> JsonDict:
    key = context.dialect.session_key
    return {key: normalize_id(session_id, _SESSION_ID, 64)} if key is not None and session_id else {}


FIELDS: dict[str, FieldEncoder[ChatContext]] = {
    "model": send_as("model"),
    "tools": encode_tools,
    "tool_choice": encode_tool_choice,
    "parallel_tool_calls": encode_parallel_tool_calls,
    "max_tokens": lambda context, limit: {context.dialect.limit_key(context.model): limit},
    "temperature": send_sampling("temperature"),
    "top_p": send_sampling("top_p"),
    "seed": lambda context, seed: {context.dialect.seed_key: seed},
    "stop": encode_stop,
    "logprobs": encode_logprobs,
    "thinking": encode_thinking,  # after the settings that it may displace
    "output_schema": encode_output_schema,
    "output_mode": drop_silently,
    "metadata": encode_metadata,
    "session_id": encode_session_id,
    "thinking_budget": encode_thinking_budget,
    "verbosity": send_as("verbosity"),
    "top_k": send_as("top_k"),
    "frequency_penalty": send_as("frequency_penalty"),
    "presence_penalty": send_as("presence_penalty"),
    "logit_bias": send_as("logit_bias"),
    "n": encode_choices,
    "modalities": encode_modalities,
    "service_tier": send_as("service_tier"),
    "user": lambda context, user: {context.dialect.user_key: user},
    "store": send_as("store"),
    "cache": encode_cache,
    **drop_unsupported("background betas cached_content conversation previous_response_id safety_settings"),
    "deadline": drop_silently,
}
ENCODED_ELSEWHERE = frozenset(("input", "messages", "system", "extra"))
"""Fields that `encode_body` and the message encoder encode."""
