"""Request fields of the Responses API: types, and an encoder for each field."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Required, TypeAlias, TypedDict, assert_never, cast

from ...models import ModelFacts, facts
from ...schemas import compile_schema
from ...types import (
    BuiltinTool,
    CodeExecution,
    ComputerUse,
    FileSearch,
    ImageGeneration,
    McpConnector,
    RequestTool,
    ThinkingLevel,
    ToolSpec,
    WebSearch,
    tool_name,
)
from ..encoding import (
    EncodingContext,
    FieldEncoder,
    JsonDict,
    drop_modalities,
    drop_silently,
    drop_unsupported,
    drop_with_warning,
    normalize_id,
    normalize_name,
    refuse_choices,
    schema_name,
    send_as,
    send_nested,
    tool_parameters,
)
from .models import EFFORTS, MAX_NAME_LENGTH, SCHEMA_DIALECT, Effort, ModelFeatures, features_of

ENCRYPTED_REASONING = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"

COMPUTER = "computer"
"""Name of calls of the computer tool."""
_PREVIEW = "computer-use-preview"
"""Part of the names of models with the first version of the computer tool."""
RESULTS = {
    "web_search": "web_search_call.action.sources",
    "code_interpreter": "code_interpreter_call.outputs",
    "file_search": "file_search_call.results",
}
"""Values of `include` that request the results of tools, by the type of the tool."""

LONG_CACHE = "cache='long' was left out: the model has a fixed cache lifetime"

_CACHE_KEY = re.compile(r".{1,64}", re.S)
_MIN_OUTPUT_TOKENS = 16
_MAX_METADATA_PAIRS = 16
_MAX_METADATA_KEY_LENGTH = 64
_MAX_METADATA_VALUE_LENGTH = 512


# Request types, as in the API reference. Items that are sent back may have more keys.


class CacheBreakpoint(TypedDict, total=False):
    mode: Required[Literal["explicit"]]
    ttl: Literal["30m", "12h"]


class InputText(TypedDict, total=False):
    type: Required[Literal["input_text"]]
    text: Required[str]
    prompt_cache_breakpoint: CacheBreakpoint


class InputImage(TypedDict, total=False):
    type: Required[Literal["input_image"]]
    image_url: str
    file_id: str
    detail: Required[str]
    prompt_cache_breakpoint: CacheBreakpoint


class InputFile(TypedDict, total=False):
    type: Required[Literal["input_file"]]
    filename: str
    file_data: str
    file_url: str
    file_id: str
    prompt_cache_breakpoint: CacheBreakpoint


InputBlock: TypeAlias = InputText | InputImage | InputFile


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: Sequence[Mapping[str, Any]]


class Refusal(TypedDict):
    type: Literal["refusal"]
    refusal: str


OutputBlock: TypeAlias = OutputText | Refusal


class EasyMessage(TypedDict, total=False):
    """A message without an id, of any role."""

    role: Required[Literal["system", "user", "assistant"]]
    content: Required[str | list[InputBlock]]
    phase: str


class OutputMessage(TypedDict, total=False):
    """A message of the vendor's response."""

    type: Required[Literal["message"]]
    id: Required[str]
    role: Required[Literal["assistant"]]
    status: Required[str]
    content: Required[list[OutputBlock]]
    phase: str


class Reasoning(TypedDict, total=False):
    type: Required[Literal["reasoning"]]
    id: str
    summary: Required[Sequence[Mapping[str, Any]]]
    encrypted_content: str
    content: Sequence[Mapping[str, Any]]


class FunctionCall(TypedDict, total=False):
    type: Required[Literal["function_call"]]
    call_id: Required[str]
    name: Required[str]
    arguments: Required[str]
    id: str


class CustomCall(TypedDict, total=False):
    type: Required[Literal["custom_tool_call"]]
    call_id: Required[str]
    name: Required[str]
    input: Required[str]
    id: str


class ComputerCall(TypedDict, total=False):
    """A call of the computer tool. The first version of the tool has one action."""

    type: Required[Literal["computer_call"]]
    call_id: Required[str]
    id: Required[str]
    status: Required[str]
    pending_safety_checks: Required[Sequence[Mapping[str, Any]]]
    action: Mapping[str, Any]
    actions: Sequence[Mapping[str, Any]]


class Screenshot(TypedDict, total=False):
    type: Required[Literal["computer_screenshot"]]
    image_url: str
    file_id: str


class ComputerOutput(TypedDict, total=False):
    type: Required[Literal["computer_call_output"]]
    call_id: Required[str]
    output: Required[Screenshot]
    acknowledged_safety_checks: Sequence[Mapping[str, Any]]


class CallOutput(TypedDict, total=False):
    type: Required[Literal["function_call_output", "custom_tool_call_output"]]
    call_id: Required[str]
    output: Required[str | list[InputBlock]]
    caller: Mapping[str, Any]


Call: TypeAlias = FunctionCall | CustomCall | ComputerCall
InputItem: TypeAlias = EasyMessage | OutputMessage | Reasoning | Call | CallOutput | ComputerOutput


# Encoders of the request fields.


@dataclass(slots=True, kw_only=True)
class ResponsesContext(EncodingContext):
    """Encoding context with the model's features."""

    stored: bool
    """Whether the vendor stores the response."""
    features: ModelFeatures = field(init=False)
    facts: ModelFacts = field(init=False)
    include: list[str] = field(init=False)
    """Additional output data to request."""

    def __post_init__(self) -> None:
        self.features = features_of(self.model)
        self.facts = facts("openai", self.model)
        self.include = [ENCRYPTED_REASONING] if self.can_reason else []

    @property
    def can_reason(self) -> bool:
        return bool(self.features.efforts) and self.facts.thinking is not False


Tools = Sequence[RequestTool]


def encode_tools(context: ResponsesContext, tools: Tools) -> JsonDict:
    return {"tools": [encode_tool(context, tool) for tool in tools]}


def encode_tool(context: ResponsesContext, tool: RequestTool) -> Mapping[str, Any]:
    """Encode a tool, always with `strict`: the API's default is true."""
    if isinstance(tool, Mapping):
        return tool
    if not isinstance(tool, ToolSpec):
        encoded_tool = encode_builtin_tool(context, tool)
        if results := RESULTS.get(encoded_tool["type"]):
            context.include.append(results)
        return encoded_tool
    if tool.cache == "long":
        context.body.update(encode_cache(context, tool.cache))
    parameters, strict = tool_parameters(tool), False
    if tool.strict:
        compiled = compile_schema(parameters, SCHEMA_DIALECT)
        parameters, strict = compiled.plain, compiled.strict
        context.warn(*(f"tool {tool.name}: {lost}" for lost in compiled.lost))
    encoded: JsonDict = {"type": "function", "name": normalize_name(tool.name, MAX_NAME_LENGTH)}
    if tool.description:
        encoded["description"] = tool.description
    return {**encoded, "parameters": parameters, "strict": strict, **tool.extra}


def encode_builtin_tool(context: ResponsesContext, tool: BuiltinTool) -> JsonDict:
    encoded: JsonDict
    match tool:
        case WebSearch():
            context.drop_tool_settings(tool, "allowed_domains", "user_location", "context_size")
            encoded = _encode_web_search(tool)
        case CodeExecution():
            created: JsonDict = {"type": "auto"}
            if tool.file_ids and tool.container is None:
                created["file_ids"] = list(tool.file_ids)
            elif tool.file_ids:
                context.drop_tool_settings(tool, "container")
            encoded = {"type": "code_interpreter", "container": tool.container or created}
        case FileSearch() if not isinstance(tool.filters, str):
            encoded = {"type": "file_search", "vector_store_ids": list(tool.stores)}
            if tool.max_results is not None:
                encoded["max_num_results"] = tool.max_results
            if tool.filters is not None:
                encoded["filters"] = tool.filters
        case ComputerUse() if _PREVIEW in context.model:
            encoded = {"type": "computer_use_preview", "environment": tool.environment}
            encoded |= {"display_width": tool.width, "display_height": tool.height}
        case ComputerUse():
            context.drop_tool_settings(tool)
            encoded = {"type": COMPUTER}
        case McpConnector():
            encoded = _encode_mcp(tool)
        case ImageGeneration():
            settings = ("model", "size", "quality", "background", "partial_images")
            encoded = {"type": "image_generation", **_pick(tool, *settings)}
            if tool.format is not None:
                encoded["output_format"] = tool.format
        case FileSearch():
            raise context.feature_error(
                f"{context.provider} does not support a filter in text for file_search.",
                field="tools",
                fix="Pass a dict, such as {'type': 'eq', 'key': 'year', 'value': 2026}.",
            )
        case _:
            assert_never(tool)
    return {**encoded, **tool.extra}


def _encode_web_search(tool: WebSearch) -> JsonDict:
    encoded: JsonDict = {"type": "web_search"}
    if tool.allowed_domains:
        encoded["filters"] = {"allowed_domains": list(tool.allowed_domains)}
    if tool.user_location is not None:
        encoded["user_location"] = {"type": "approximate", **tool.user_location.to_dict()}
    if tool.context_size is not None:
        encoded["search_context_size"] = tool.context_size
    return encoded


def _encode_mcp(tool: McpConnector) -> JsonDict:
    encoded: JsonDict = {"type": "mcp", "server_label": tool.label, **_pick(tool, "connector_id", "require_approval")}
    if tool.url is not None:
        encoded["server_url"] = tool.url
    if tool.token is not None:
        encoded["authorization"] = tool.token.get_secret_value()
    if tool.allowed_tools:
        encoded["allowed_tools"] = list(tool.allowed_tools)
    return encoded


def _pick(tool: BuiltinTool, *settings: str) -> JsonDict:
    """Return the settings that are set."""
    return {name: value for name in settings if (value := getattr(tool, name)) is not None}


def encode_tool_choice(context: ResponsesContext, choice: str) -> JsonDict:
    if choice in ("auto", "none", "required"):
        return {"tool_choice": choice}
    return {"tool_choice": _find_tool(context, choice)}


def _find_tool(context: ResponsesContext, name: str) -> JsonDict:
    for tool, encoded in zip(context.request.tools, context.body.get("tools", ()), strict=False):
        kind = encoded.get("type")
        if isinstance(tool, ToolSpec):
            continue
        if encoded.get("name") == name:
            return {"type": kind, "name": name}
        if name in (kind, tool_name(tool), encoded.get("server_label")):
            return {"type": kind, "server_label": encoded.get("server_label")} if kind == "mcp" else {"type": kind}
    return {"type": "function", "name": normalize_name(name, MAX_NAME_LENGTH)}


def encode_max_tokens(context: ResponsesContext, limit: int) -> JsonDict:
    if limit < _MIN_OUTPUT_TOKENS:
        context.warn(f"max_tokens={limit} is below the API's minimum: {_MIN_OUTPUT_TOKENS} was sent")
    return {"max_output_tokens": max(limit, _MIN_OUTPUT_TOKENS)}


def encode_thinking(context: ResponsesContext, level: ThinkingLevel) -> JsonDict:
    effort = _choose_effort(context, level)
    if effort is None:
        return {}
    return {"reasoning": {"effort": effort} if effort == "none" else {"effort": effort, "summary": "auto"}}


def _choose_effort(context: ResponsesContext, level: ThinkingLevel) -> Effort | None:
    """The model's effort for a level, else its next higher one or its highest."""
    effort = cast(Effort, "none" if level is ThinkingLevel.OFF else level.value)
    if not context.can_reason:
        if effort != "none":
            context.warn(f"thinking was left out: {context.model} does not reason")
        return None
    efforts = context.features.efforts
    if effort in efforts:
        return effort
    higher = [other for other in efforts if EFFORTS.index(other) > EFFORTS.index(effort)]
    nearest = higher[0] if higher else efforts[-1]
    context.warn(f"thinking={level.value!r} is not supported by {context.model}: {nearest!r} was sent")
    return nearest


def encode_output_schema(context: ResponsesContext, schema: Any) -> JsonDict:
    json_schema = context.request.output_json_schema or {}
    compiled = compile_schema(json_schema, SCHEMA_DIALECT)
    context.warn(*(f"output_schema: {lost}" for lost in compiled.lost))
    schema_format = {"name": schema_name(json_schema), "schema": compiled.plain, "strict": compiled.strict}
    return {"format": {"type": "json_schema", **schema_format}}


def send_sampling(name: str) -> FieldEncoder[ResponsesContext]:
    """Send temperature or top_p if the model accepts it."""
    return lambda context, value: {name: value} if _takes_sampling(context, name) else {}


def encode_logprobs(context: ResponsesContext, alternatives: int) -> JsonDict:
    if not _takes_sampling(context, "logprobs"):
        return {}
    context.include.append(LOGPROBS)
    return {"top_logprobs": alternatives} if alternatives else {}


def _takes_sampling(context: ResponsesContext, name: str) -> bool:
    """Whether the model accepts sampling settings, which it refuses while it reasons."""
    features, effort = context.features, context.body.get("reasoning", {}).get("effort")
    reasons = effort != "none" and (effort is not None or not features.reasoning_optional)
    if reasons and (context.facts.sampling is False or features.reasoning_optional):
        context.warn(f"{name} was left out: {context.model} does not support it")
        return False
    return True


def encode_session_id(context: ResponsesContext, session_id: str) -> JsonDict:
    return {"prompt_cache_key": normalize_id(session_id, _CACHE_KEY, 64)} if session_id else {}


def encode_cache(context: ResponsesContext, hint: str) -> JsonDict:
    """Request a long cache lifetime. The vendor caches prompts automatically."""
    if hint != "long":
        return {}
    match context.features.long_cache:
        case "retention":
            return {"prompt_cache_retention": "24h"}
        case "ttl":
            return {"prompt_cache_options": {"ttl": "12h"}}
        case None:
            context.warn(LONG_CACHE)
            return {}


def encode_verbosity(context: ResponsesContext, verbosity: str) -> JsonDict:
    if not context.features.verbosity:
        context.warn(f"verbosity was left out: {context.model} does not support it")
        return {}
    return {"verbosity": verbosity}


def encode_conversation(context: ResponsesContext, id: str) -> JsonDict:
    if context.request.previous_response_id is not None:
        raise context.feature_error(
            f"{context.provider} continues either a conversation or a response.",
            field="conversation",
            fix="Pass conversation or previous_response_id, not both.",
        )
    return {"conversation": id}


def encode_background(context: ResponsesContext, background: bool) -> JsonDict:
    if background and not context.stored:
        raise context.feature_error(
            f"{context.provider} must store a response that it processes in the background.",
            field="store",
            fix="Pass store=True, or leave out store or background.",
        )
    return {"background": background}


def encode_metadata(context: ResponsesContext, metadata: Mapping[str, Any]) -> JsonDict:
    accepted = [
        (key, value)
        for key, value in metadata.items()
        if len(key) <= _MAX_METADATA_KEY_LENGTH and isinstance(value, str) and len(value) <= _MAX_METADATA_VALUE_LENGTH
    ]
    sent = dict(accepted[:_MAX_METADATA_PAIRS])
    if len(sent) < len(metadata):
        context.warn("part of metadata was left out: the API supports 16 strings of 512 characters")
    return {"metadata": sent} if sent else {}


FIELDS: dict[str, FieldEncoder[ResponsesContext]] = {
    "model": send_as("model"),
    "tools": encode_tools,
    "tool_choice": encode_tool_choice,
    "parallel_tool_calls": send_as("parallel_tool_calls"),
    "max_tokens": encode_max_tokens,
    "thinking": encode_thinking,
    "output_schema": send_nested("text", encode_output_schema),
    "output_mode": drop_silently,
    "temperature": send_sampling("temperature"),  # after thinking, which may displace it
    "top_p": send_sampling("top_p"),
    "logprobs": encode_logprobs,
    "session_id": encode_session_id,
    "cache": encode_cache,
    "metadata": encode_metadata,
    "stop": drop_with_warning("stop was left out: the Responses API does not support it"),
    "seed": drop_with_warning("seed was left out: the Responses API does not support it"),
    "verbosity": send_nested("text", encode_verbosity),
    "n": refuse_choices,
    "modalities": drop_modalities,
    "service_tier": send_as("service_tier"),
    "user": send_as("safety_identifier"),
    "store": send_as("store"),
    "previous_response_id": send_as("previous_response_id"),
    "conversation": encode_conversation,
    "background": encode_background,
    **drop_unsupported(
        "betas cached_content frequency_penalty logit_bias presence_penalty safety_settings thinking_budget top_k"
    ),
    "deadline": drop_silently,
}
ENCODED_ELSEWHERE = frozenset(("input", "messages", "system", "extra"))
"""Fields that `encode_body` and the item encoder encode."""
