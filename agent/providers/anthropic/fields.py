"""Request fields of the Messages API."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Required, TypedDict, assert_never

from ...models import ModelFacts, facts
from ...schemas import compile_schema
from ...types import (
    BuiltinTool,
    CodeExecution,
    ComputerUse,
    FileSearch,
    ImageGeneration,
    McpConnector,
    Message,
    RequestTool,
    ThinkingLevel,
    ToolSpec,
    WebSearch,
)
from ..encoding import (
    EncodingContext,
    FieldEncoder,
    JsonDict,
    drop_modalities,
    drop_silently,
    drop_unsupported,
    drop_with_warning,
    level_for_budget,
    normalize_name,
    refuse_choices,
    send_as,
    send_nested,
    tool_parameters,
)
from .conversation import turn_starts_with_thinking
from .models import API, EFFORTS, MIN_THINKING_BUDGET, THINKING_BUDGETS, Effort, ModelFeatures, features_of


class ThinkingConfig(TypedDict, total=False):
    type: Required[Literal["enabled", "adaptive", "disabled", "between_tools"]]
    budget_tokens: int
    display: Literal["summarized", "omitted"]


COMPUTER = "computer"
"""Name of the computer tool, which the API prescribes."""
_COMPUTER_TYPES = (
    (r"opus-4[-.][5-9]|sonnet-4[-.][6-9]|(?:opus|sonnet|haiku|fable|mythos)-[5-9]", "computer_20251124"),
    (r"", "computer_20250124"),
)
"""Versions of the computer tool by models."""

MAX_NAME_LENGTH = 128
SCHEMA_DIALECT = "anthropic"
DEFAULT_MAX_TOKENS = 16_384
"""Default of `max_tokens`, which the API requires. Longer responses would exceed usual timeouts."""
DEFAULT_STREAM_MAX_TOKENS = 32_768
UNKNOWN_MODEL_MAX_TOKENS = 4_096
"""Default for unknown models, which every model supports."""

DOES_NOT_THINK = "thinking was dropped: the model does not support it"
ALWAYS_THINKS = "thinking cannot be disabled for the model; the lowest effort was sent"
BUDGET_WITHOUT_THINKING = "thinking_budget was dropped: thinking is off"
BUDGET_AS_LEVEL = "thinking_budget was sent as the effort of thinking={!r}: the model does not support budgets"
THINKING_AND_FORCED_CALL = "thinking was dropped: anthropic does not support it with a forced tool call"
THINKING_MIDWAY = "thinking was dropped: it cannot start in the middle of a turn"
NO_ROOM_TO_THINK = f"thinking was dropped: it requires max_tokens of at least {2 * MIN_THINKING_BUDGET}"
NO_FORCED_CALLS = "tool_choice was dropped: the model does not support forced tool calls"
CHOICE_WITHOUT_TOOLS = "tool_choice was dropped: the request has no tools"
NO_SAMPLING = "temperature and top_p were dropped: the model does not support them"
THINKING_AND_TEMPERATURE = "temperature was dropped: anthropic does not support it with thinking"
THINKING_AND_TOP_P = "top_p was dropped: with thinking, it must be at least 0.95"
TEMPERATURE_TOO_HIGH = "temperature was dropped: it must be at most 1"
ONE_SAMPLER = "top_p was dropped: the model does not support it together with temperature"
NO_SEED = "seed was dropped: anthropic does not support it"
NO_LOGPROBS = "logprobs was dropped: anthropic does not support it"
BLANK_STOP = "a blank stop sequence was dropped: anthropic does not support it"
NOT_STRICT = "strict was dropped: strict mode does not support the schema of the tool {!r}"


@dataclass(frozen=True, slots=True)
class Thinking:
    """Thinking settings of a request, on which other fields depend."""

    config: ThinkingConfig | Mapping[str, Any] | None = None
    effort: Effort | None = None

    @property
    def is_on(self) -> bool:
        return self.config is not None and self.config.get("type") in ("enabled", "adaptive")

    @property
    def budget(self) -> int:
        budget = self.config.get("budget_tokens") if self.config is not None else None
        return budget if isinstance(budget, int) else 0


@dataclass(slots=True, kw_only=True)
class MessagesContext(EncodingContext):
    """Encoding context of the Messages API."""

    features: ModelFeatures = field(init=False)
    thinking: Thinking = Thinking()
    vendor_blocks: list[str] = field(default_factory=list)
    """Types of vendor-specific blocks in the conversation. Some require a beta header."""

    def __post_init__(self) -> None:
        self.features = features_of(self.model)

    @property
    def model_facts(self) -> ModelFacts:
        return facts(API, self.model)


# Tools.


def encode_tools(context: MessagesContext, tools: Sequence[RequestTool]) -> JsonDict:
    return {"tools": [encode_tool(context, tool) for tool in tools]}


def encode_tool(context: MessagesContext, tool: RequestTool) -> Mapping[str, Any]:
    if isinstance(tool, Mapping):
        return tool
    if not isinstance(tool, ToolSpec):
        return encode_builtin_tool(context, tool)
    encoded: JsonDict = {"name": normalize_name(tool.name, MAX_NAME_LENGTH), "input_schema": tool_parameters(tool)}
    if tool.description:
        encoded["description"] = tool.description
    if tool.strict and (strict_schema := compile_parameters(context, tool)) is not None:
        encoded |= {"input_schema": strict_schema, "strict": True}
    elif tool.strict is False:
        encoded["strict"] = False
    if "type" not in encoded["input_schema"]:
        encoded["input_schema"] = {"type": "object", **encoded["input_schema"]}
    return {**encoded, **tool.extra}


def compile_parameters(context: EncodingContext, tool: ToolSpec) -> JsonDict | None:
    """Compile the schema of a strict tool; None if strict mode does not support it."""
    compiled = compile_schema(tool_parameters(tool), SCHEMA_DIALECT)
    context.warn(*(f"tool {tool.name}: {lost}" for lost in compiled.lost))
    if compiled.strict:
        return compiled.plain
    context.warn(NOT_STRICT.format(tool.name))
    return None


def encode_builtin_tool(context: MessagesContext, tool: BuiltinTool) -> JsonDict:
    """Return the tool, and add the keys that it requires to the body."""
    encoded: JsonDict
    match tool:
        case WebSearch():
            context.drop_tool_settings(tool, "max_uses", "allowed_domains", "blocked_domains", "user_location")
            encoded = _encode_web_search(tool)
        case CodeExecution():
            context.drop_tool_settings(tool, "container")
            encoded = {"type": "code_execution_20250825", "name": "code_execution"}
            if tool.container is not None:
                context.body["container"] = tool.container
        case ComputerUse():
            context.drop_tool_settings(tool, "width", "height")
            version = next(version for pattern, version in _COMPUTER_TYPES if re.search(pattern, context.model.lower()))
            encoded = {"type": version, "name": COMPUTER}
            encoded |= {"display_width_px": tool.width, "display_height_px": tool.height}
        case McpConnector() if tool.url is not None:
            context.drop_tool_settings(tool, "label", "url", "token", "allowed_tools")
            encoded = _encode_toolset(tool)
            context.body.setdefault("mcp_servers", []).append(_encode_server(tool, tool.url))
        case McpConnector() | FileSearch() | ImageGeneration():
            raise context.builtin_tool_error(tool)
        case _:
            assert_never(tool)
    return {**encoded, **tool.extra}


def _encode_web_search(tool: WebSearch) -> JsonDict:
    encoded: JsonDict = {"type": "web_search_20250305", "name": "web_search"}
    if tool.max_uses is not None:
        encoded["max_uses"] = tool.max_uses
    encoded |= {
        key: list(domains)
        for key, domains in (("allowed_domains", tool.allowed_domains), ("blocked_domains", tool.blocked_domains))
        if domains
    }
    if tool.user_location is not None:
        encoded["user_location"] = {"type": "approximate", **tool.user_location.to_dict()}
    return encoded


def _encode_toolset(tool: McpConnector) -> JsonDict:
    encoded: JsonDict = {"type": "mcp_toolset", "mcp_server_name": tool.label}
    if tool.allowed_tools:
        encoded["default_config"] = {"enabled": False}
        encoded["configs"] = {name: {"enabled": True} for name in tool.allowed_tools}
    return encoded


def _encode_server(tool: McpConnector, url: str) -> JsonDict:
    server: JsonDict = {"type": "url", "name": tool.label, "url": url}
    if tool.token is not None:
        server["authorization_token"] = tool.token.get_secret_value()
    return server


def _forces_call(context: MessagesContext) -> bool:
    choice = context.request.tool_choice
    return bool(context.request.tools) and choice not in (None, "auto", "none") and context.features.forced_calls


def encode_tool_choice(context: MessagesContext, choice: str) -> JsonDict:
    if not context.request.tools:
        if choice not in ("auto", "none"):
            context.warn(CHOICE_WITHOUT_TOOLS)
        return {}
    if choice not in ("auto", "none") and not context.features.forced_calls:
        context.warn(NO_FORCED_CALLS)
        choice = "auto"
    encoded: JsonDict
    match choice:
        case "auto" | "none":
            encoded = {"type": choice}
        case "required":
            encoded = {"type": "any"}
        case _:
            if any(isinstance(tool, ComputerUse) and tool.name == choice for tool in context.request.tools):
                choice = COMPUTER
            encoded = {"type": "tool", "name": normalize_name(choice, MAX_NAME_LENGTH)}
    return {"tool_choice": encoded}


def encode_parallel_tool_calls(context: MessagesContext, parallel: bool) -> JsonDict:
    if parallel or not context.request.tools:
        return {}
    choice: JsonDict = context.body.get("tool_choice", {"type": "auto"})
    if choice["type"] == "none":
        return {}
    return {"tool_choice": {**choice, "disable_parallel_tool_use": True}}


# Thinking, and the fields that depend on it.


def choose_thinking(context: MessagesContext, messages: Sequence[Message]) -> Thinking:
    """Choose the thinking settings for the requested level, or those in `extra`."""
    features, level, budget = context.features, context.request.thinking, context.request.thinking_budget
    if isinstance(given := context.request.extra.get("thinking"), Mapping):
        return Thinking(given)
    if budget == 0 and level is None:
        level = ThinkingLevel.OFF
    elif budget and level is ThinkingLevel.OFF:
        context.warn(BUDGET_WITHOUT_THINKING)
    elif budget and features.thinking == "adaptive":
        level = level or level_for_budget(budget, THINKING_BUDGETS)
        context.warn(BUDGET_AS_LEVEL.format(level.value))
    elif budget:
        level = level or ThinkingLevel.MEDIUM  # the budget replaces that of the level
    if level is None:
        # Some models think by default, which the API does not support with a forced tool call.
        return (
            _disable_thinking(features) if _forces_call(context) and features.thinking_off == "disabled" else Thinking()
        )
    if level is ThinkingLevel.OFF:
        if features.thinking_off == "never":
            context.warn(ALWAYS_THINKS)
            return Thinking(effort=features.efforts[0])
        return _disable_thinking(features)
    if features.thinking == "none":
        context.warn(DOES_NOT_THINK)
        return Thinking()
    if _forces_call(context):
        context.warn(THINKING_AND_FORCED_CALL)
        return _disable_thinking(features)
    if features.thinking == "adaptive":
        return _encode_adaptive_thinking(features, level)
    if not turn_starts_with_thinking(messages):
        context.warn(THINKING_MIDWAY)
        return _disable_thinking(features)
    return _encode_thinking_budget(context, level)


def _disable_thinking(features: ModelFeatures) -> Thinking:
    if features.thinking_off in ("disabled", "between_tools"):
        return Thinking({"type": features.thinking_off})
    return Thinking()


def _encode_adaptive_thinking(features: ModelFeatures, level: ThinkingLevel) -> Thinking:
    config: ThinkingConfig = {"type": "adaptive"}
    if features.hides_thinking:
        config["display"] = "summarized"
    return Thinking(config, next((effort for effort in EFFORTS[level] if effort in features.efforts), None))


def _encode_thinking_budget(context: MessagesContext, level: ThinkingLevel) -> Thinking:
    budget = context.request.thinking_budget or THINKING_BUDGETS[level]
    if budget < MIN_THINKING_BUDGET:
        budget = MIN_THINKING_BUDGET
        context.warn(f"thinking_budget was raised to {budget} tokens, the minimum of the API")
    limit = context.request.max_tokens
    if limit is None:
        limit = context.model_facts.max_output
    if limit is not None:
        if limit < 2 * MIN_THINKING_BUDGET:
            context.warn(NO_ROOM_TO_THINK)
            return _disable_thinking(context.features)
        if budget > limit - MIN_THINKING_BUDGET:
            budget = limit - MIN_THINKING_BUDGET
            context.warn(f"thinking was limited to {budget} tokens to leave room for the response in max_tokens")
    return Thinking({"type": "enabled", "budget_tokens": budget})


def encode_thinking(thinking: Thinking) -> JsonDict:
    body: JsonDict = {}
    if thinking.config is not None:
        body["thinking"] = thinking.config
    if thinking.effort is not None:
        body["output_config"] = {"effort": thinking.effort}
    return body


def default_max_tokens(context: MessagesContext, *, stream: bool) -> int:
    """Return the default of `max_tokens`, which includes thinking."""
    limit, budget = context.model_facts.max_output, context.thinking.budget
    if limit is None:
        return UNKNOWN_MODEL_MAX_TOKENS + budget
    return min(limit, (DEFAULT_STREAM_MAX_TOKENS if stream else DEFAULT_MAX_TOKENS) + budget)


def encode_temperature(context: MessagesContext, temperature: float) -> JsonDict:
    if context.model_facts.sampling is False:
        context.warn(NO_SAMPLING)
    elif temperature > 1:
        context.warn(TEMPERATURE_TOO_HIGH)
    elif context.thinking.is_on and temperature != 1:
        context.warn(THINKING_AND_TEMPERATURE)
    else:
        return {"temperature": temperature}
    return {}


def encode_top_p(context: MessagesContext, top_p: float) -> JsonDict:
    if context.model_facts.sampling is False:
        context.warn(NO_SAMPLING)
    elif context.thinking.is_on and top_p < 0.95:
        context.warn(THINKING_AND_TOP_P)
    elif "temperature" in context.body and not context.features.both_samplers:
        context.warn(ONE_SAMPLER)
    else:
        return {"top_p": top_p}
    return {}


# Other fields.


def encode_stop(context: MessagesContext, stop: Sequence[str]) -> JsonDict:
    sequences = [sequence for sequence in stop if sequence.strip()]
    if len(sequences) < len(stop):
        context.warn(BLANK_STOP)
    return {"stop_sequences": sequences} if sequences else {}


def encode_output_schema(context: MessagesContext, schema: Any) -> JsonDict:
    compiled = compile_output_schema(context)
    return {} if compiled is None else {"format": {"type": "json_schema", "schema": compiled}}


def compile_output_schema(context: EncodingContext) -> JsonDict | None:
    """Compile a schema that the vendor enforces. Other output modes use a tool or the prompt instead."""
    request = context.request
    if request.output_mode not in (None, "native"):
        return None
    compiled = compile_schema(request.output_json_schema or {}, SCHEMA_DIALECT)
    if not compiled.strict:
        raise context.feature_error(
            f"{context.provider} cannot enforce this schema: {'; '.join(compiled.lost) or 'unsupported'}.",
            field="output_schema",
            fix='Simplify it, or pass output_mode="tool" or "prompted".',
        )
    context.warn(*(f"output_schema: {lost}" for lost in compiled.lost))
    return compiled.plain


def encode_metadata(context: MessagesContext, metadata: Mapping[str, Any]) -> JsonDict:
    """Send the user's id, the only metadata that the API accepts."""
    user = context.request.user or metadata.get("user_id")
    return {"metadata": {"user_id": user}} if isinstance(user, str) else {}


_PROMPT_FIELDS: dict[str, FieldEncoder[MessagesContext]] = {
    "model": send_as("model"),
    "tools": encode_tools,
    "tool_choice": encode_tool_choice,
    "parallel_tool_calls": encode_parallel_tool_calls,  # part of the tool choice
    "output_schema": send_nested("output_config", encode_output_schema),
    "output_mode": drop_silently,
}
FIELDS: dict[str, FieldEncoder[MessagesContext]] = {
    **_PROMPT_FIELDS,
    "max_tokens": send_as("max_tokens"),
    "temperature": encode_temperature,
    "top_p": encode_top_p,
    "seed": drop_with_warning(NO_SEED),
    "stop": encode_stop,
    "logprobs": drop_with_warning(NO_LOGPROBS),
    "metadata": encode_metadata,
    "session_id": drop_silently,
    "top_k": send_as("top_k"),
    "n": refuse_choices,
    "modalities": drop_modalities,
    "service_tier": send_as("service_tier"),
    "user": lambda context, user: {"metadata": {"user_id": user}},
    **drop_unsupported(
        "background cached_content conversation frequency_penalty logit_bias presence_penalty "
        "previous_response_id safety_settings store verbosity"
    ),
    "deadline": drop_silently,
}
ENCODED_ELSEWHERE = frozenset(("input", "messages", "system", "cache", "thinking", "thinking_budget", "betas", "extra"))
"""Fields that `encode_body`, `MessageEncoder` and the headers encode."""
COUNTED_FIELDS = _PROMPT_FIELDS
"""Fields that the endpoint for counting tokens accepts."""
