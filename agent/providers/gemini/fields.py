"""Request fields of generateContent: how each is sent, and what is left out where a model refuses it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ... import errors
from ...models import facts
from ...schemas import compile_schema
from ...types import ThinkingLevel, ToolSpec
from ..encoding import EncodingContext, FieldEncoder, JsonDict, drop_silently, send_as, send_nested, tool_parameters
from .models import SCHEMA_DIALECT_NAME, ModelFeatures
from .names import function_name
from .params import FunctionCallingConfig, FunctionDeclaration, ToolConfig
from .platform import Platform

MAX_STOPS = 5
_SEEDS = range(-(2**31), 2**31)
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_MAX_LABELS = 64

Tools = Sequence[ToolSpec | Mapping[str, Any]]


@dataclass(slots=True, kw_only=True)
class GeminiContext(EncodingContext):
    """A request for one model on one platform."""

    platform: Platform
    features: ModelFeatures

    @property
    def functions(self) -> list[ToolSpec]:
        """The caller's tools."""
        return [tool for tool in self.request.tools if isinstance(tool, ToolSpec)]

    @property
    def server_tools(self) -> list[Mapping[str, Any]]:
        """The vendor's tools, as the caller wrote them."""
        return [tool for tool in self.request.tools if not isinstance(tool, ToolSpec)]


# Tools.


def encode_tools(context: GeminiContext, tools: Tools) -> JsonDict:
    functions, server_tools = context.functions, context.server_tools
    encoded: list[Mapping[str, Any]] = [*server_tools]
    if functions:
        encoded.append({"functionDeclarations": [encode_function(context, tool) for tool in functions]})
    config: ToolConfig = {}
    if context.request.tool_choice in (None, "auto") and any(tool.strict for tool in functions):
        if context.features.validated_calls:
            config["functionCallingConfig"] = {"mode": "VALIDATED"}
        else:
            context.warn("strict was left out: the model cannot be made to keep to a tool's schema")
    if functions and server_tools and context.features.mixes_tools and context.platform.shows_server_tools:
        config["includeServerSideToolInvocations"] = True
    return {"tools": encoded, "toolConfig": config} if config else {"tools": encoded}


def encode_function(context: GeminiContext, tool: ToolSpec) -> FunctionDeclaration | JsonDict:
    function: FunctionDeclaration = {"name": function_name(tool.name)}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters:
        compiled = compile_schema(tool_parameters(tool), SCHEMA_DIALECT_NAME)
        if tool.strict:  # other schemas are not enforced anyway
            context.warn(*(f"tool {tool.name}: {lost}" for lost in compiled.lost))
        function["parametersJsonSchema"] = compiled.plain
    return {**function, **tool.extra}


def encode_tool_choice(context: GeminiContext, choice: str) -> ToolConfig:
    if context.server_tools and choice != "auto":
        context.warn("tool_choice does not reach the vendor's own tools: the model uses them as it likes")
    if not context.functions:
        return {}
    calling: FunctionCallingConfig
    match choice:
        case "auto":
            calling = {"mode": "AUTO"}
            calling = context.body.get("toolConfig", {}).get("functionCallingConfig", calling)
        case "none":
            calling = {"mode": "NONE"}
        case "required":
            calling = {"mode": "ANY"}
        case name:
            calling = {"mode": "ANY", "allowedFunctionNames": [function_name(name)]}
    return {"functionCallingConfig": calling}


def encode_parallel_tool_calls(context: GeminiContext, parallel: bool) -> JsonDict:
    if not parallel and context.functions:
        context.warn("parallel_tool_calls=False was left out: the model may call several tools at once")
    return {}


# Generation settings.


def encode_temperature(context: GeminiContext, temperature: float) -> JsonDict:
    return {"temperature": temperature} if _takes_sampling(context) else {}


def encode_top_p(context: GeminiContext, top_p: float) -> JsonDict:
    return {"topP": top_p} if _takes_sampling(context) else {}


def _takes_sampling(context: GeminiContext) -> bool:
    if facts(context.provider, context.model).sampling is not False:
        return True
    settings = {"temperature": context.request.temperature, "topP": context.request.top_p}
    names = " and ".join(name for name, value in settings.items() if value is not None)
    context.warn(f"{names} were left out: the model does not take them")
    return False


def encode_seed(context: GeminiContext, seed: int) -> JsonDict:
    if seed in _SEEDS:
        return {"seed": seed}
    context.warn("seed was left out: it must fit into 32 bits")
    return {}


def encode_stop(context: GeminiContext, stop: Sequence[str]) -> JsonDict:
    if len(stop) > MAX_STOPS:
        context.warn(f"only the first {MAX_STOPS} of {len(stop)} stop sequences were sent")
    return {"stopSequences": stop[:MAX_STOPS]}


def encode_logprobs(context: GeminiContext, alternatives: int) -> JsonDict:
    return {"responseLogprobs": True, "logprobs": alternatives} if alternatives else {"responseLogprobs": True}


def encode_thinking(context: GeminiContext, level: ThinkingLevel) -> JsonDict:
    config, warning = context.features.thinking_config(level)
    if warning is not None:
        context.warn(warning)
    return {} if config is None else {"thinkingConfig": config}


def encode_output_schema(context: GeminiContext, schema: Any) -> JsonDict:
    """Send a schema that the vendor enforces. The other output modes use a tool or the prompt instead."""
    request = context.request
    json_schema = request.output_json_schema
    if json_schema is None or request.output_mode not in (None, "native"):
        return {}
    if request.tools and not context.features.schema_with_tools:
        raise _schema_error(context, "It takes none beside tools.", "leave out the tools, or use Gemini 3 or later")
    compiled = compile_schema(json_schema, SCHEMA_DIALECT_NAME)
    if not compiled.sendable:
        raise _schema_error(context, f"It cannot enforce this schema ({'; '.join(compiled.lost)}).", "leave it out")
    context.warn(*(f"output_schema: {lost}" for lost in compiled.lost))
    return {"responseMimeType": "application/json", "responseJsonSchema": compiled.plain}


def _schema_error(context: GeminiContext, reason: str, alternative: str) -> errors.UnsupportedFeatureError:
    return context.feature_error(
        f"{context.request.model} does not take that output schema. {reason}",
        field="output_schema",
        fix=f'Use output_mode="tool" or "prompted", or {alternative}.',
    )


# Other fields.


def encode_labels(context: GeminiContext, metadata: Mapping[str, Any]) -> JsonDict:
    """Send metadata that is valid as labels. Vertex AI bills and filters by them, and is strict about their form."""
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
    "temperature": send_nested("generationConfig", encode_temperature),
    "top_p": send_nested("generationConfig", encode_top_p),
    "seed": send_nested("generationConfig", encode_seed),
    "stop": send_nested("generationConfig", encode_stop),
    "logprobs": send_nested("generationConfig", encode_logprobs),
    "thinking": send_nested("generationConfig", encode_thinking),
    "output_schema": send_nested("generationConfig", encode_output_schema),
    "output_mode": drop_silently,
    "metadata": encode_labels,
    "cache": drop_silently,  # prompts are cached without being marked
    "session_id": drop_silently,
    "deadline": drop_silently,
}
ENCODED_ELSEWHERE = frozenset(("model", "input", "messages", "system", "extra"))
"""Fields that the URL, `encode_body` and the contents encoder use."""
