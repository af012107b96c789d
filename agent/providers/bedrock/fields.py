"""Request fields of Converse.

Claude's rules for thinking and sampling are those of its own API; `ConverseContext.claude` applies them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...models import ModelFacts, facts
from ...types import Message, RequestTool, ThinkingLevel, ToolSpec
from ..anthropic.fields import (
    BUDGET_AS_LEVEL,
    MessagesContext,
    choose_thinking,
    compile_output_schema,
    compile_parameters,
)
from ..anthropic.fields import FIELDS as CLAUDE_FIELDS
from ..anthropic.models import THINKING_BUDGETS
from ..encoding import (
    EncodingContext,
    FieldEncoder,
    JsonDict,
    drop_modalities,
    drop_silently,
    drop_unsupported,
    dump_json,
    level_for_budget,
    normalize_name,
    refuse_choices,
    schema_name,
    send_nested,
    tool_parameters,
)
from .models import EFFORTS, ModelFeatures, features_of

MAX_NAME_LENGTH = 64
MODEL_FIELDS = "additionalModelRequestFields"
MERGED_KEYS = (MODEL_FIELDS, "inferenceConfig", "outputConfig", "toolConfig")
"""Objects of the body that `extra` may add keys to."""

NO_FORCED_CALL = "tool_choice {!r} was dropped: the model does not support it"
NO_CHOICE_OF_NONE = (
    "tool_choice 'none' was dropped: Converse requires the tools of earlier calls, and has no such choice"
)
CHOICE_WITHOUT_TOOLS = "tool_choice was dropped: the request has no tools"
NO_PARALLEL_CONTROL = "parallel_tool_calls was dropped: Converse does not support it"
DOES_NOT_THINK = "thinking was dropped: the model does not support it"
NO_SAMPLING = "{} was dropped: the model does not support it"
TOO_HIGH = "temperature was dropped: it must be at most 1"
BLANK_STOP = "a blank stop sequence was dropped: Converse does not support it"
NO_TOP_K = "top_k was dropped: Converse has no field for it with this model"
NOT_TEXT = "metadata {!r} was dropped: Converse supports only text"
TOOLS_ADDED = "tools of earlier calls were declared without parameters, because Converse requires them"


@dataclass(slots=True, kw_only=True)
class ConverseContext(EncodingContext):
    """Encoding context of Converse."""

    features: ModelFeatures = field(init=False)
    claude: MessagesContext | None = field(init=False, default=None)
    """Context for Claude's own rules, with the same warnings; None for other models."""
    called_tools: dict[str, None] = field(default_factory=dict)
    """Names of the tools that the conversation calls."""

    def __post_init__(self) -> None:
        self.features = features_of(self.model)
        if self.features.thinking == "claude":
            self.claude = MessagesContext(self.request, self.origin, warnings=self.warnings)

    @property
    def model_facts(self) -> ModelFacts:
        return facts(self.provider, self.model)

    def update_model_fields(self, fields: Mapping[str, Any]) -> None:
        """Add fields of the model's own API."""
        self.body[MODEL_FIELDS] = {**self.body.get(MODEL_FIELDS, {}), **fields}


# Tools.


def encode_tools(context: ConverseContext, tools: Sequence[RequestTool]) -> JsonDict:
    if context.request.tool_choice == "none" and not context.called_tools:
        return {}
    return {"toolConfig": {"tools": [_encode_tool(context, tool) for tool in tools]}}


def _encode_tool(context: ConverseContext, tool: RequestTool) -> JsonDict:
    if isinstance(tool, Mapping):
        return {**tool}
    if not isinstance(tool, ToolSpec):
        raise context.builtin_tool_error(tool)
    spec: JsonDict = {"name": normalize_name(tool.name, MAX_NAME_LENGTH)}
    if tool.description:
        spec["description"] = tool.description
    schema = tool_parameters(tool)
    if tool.strict and (strict_schema := compile_parameters(context, tool)) is not None:
        schema, spec["strict"] = strict_schema, True
    spec["inputSchema"] = {"json": schema if "type" in schema else {"type": "object", **schema}}
    return {"toolSpec": {**spec, **tool.extra}}


def declare_called_tools(context: ConverseContext) -> None:
    """Declare the tools of earlier calls if the request has none, which the API requires."""
    if context.called_tools and "toolConfig" not in context.body:
        schema = {"json": {"type": "object", "properties": {}}}
        tools = [{"toolSpec": {"name": name, "inputSchema": schema}} for name in context.called_tools]
        context.body["toolConfig"] = {"tools": tools}
        context.warn(TOOLS_ADDED)


def encode_tool_choice(context: ConverseContext, choice: str) -> JsonDict:
    if not context.request.tools:
        if choice not in ("auto", "none"):
            context.warn(CHOICE_WITHOUT_TOOLS)
        return {}
    if choice == "none" and context.called_tools:
        context.warn(NO_CHOICE_OF_NONE)
    if choice in ("auto", "none"):
        return {}  # `auto` is the default
    kind = "any" if choice == "required" else "tool"
    forced = context.features.forced_calls
    if kind not in forced or (context.claude is not None and not context.claude.features.forced_calls):
        context.warn(NO_FORCED_CALL.format(choice))
        return {}
    value = {} if kind == "any" else {"name": normalize_name(choice, MAX_NAME_LENGTH)}
    return {"toolConfig": {**context.body["toolConfig"], "toolChoice": {kind: value}}}


def encode_parallel_tool_calls(context: ConverseContext, parallel: bool) -> JsonDict:
    if not parallel and context.request.tools:
        context.warn(NO_PARALLEL_CONTROL)
    return {}


# Thinking and sampling.


def encode_thinking(context: ConverseContext, messages: Sequence[Message]) -> None:
    """Add the fields for the requested thinking level, in the form of the model."""
    level, budget = context.request.thinking, context.request.thinking_budget
    if context.claude is not None:
        context.claude.thinking = thinking = choose_thinking(context.claude, messages)
        if thinking.config is not None:
            context.update_model_fields({"thinking": {**thinking.config}})
        if thinking.effort is not None:
            context.body["outputConfig"] = {"effort": thinking.effort}
        return
    if budget and level is not ThinkingLevel.OFF:
        level = level or level_for_budget(budget, THINKING_BUDGETS)
        context.warn(BUDGET_AS_LEVEL.format(level.value))
    if level in (None, ThinkingLevel.OFF):
        pass  # other models think only on request
    elif context.features.thinking == "reasoning_config":
        context.update_model_fields({"reasoningConfig": {"type": "enabled", "maxReasoningEffort": EFFORTS[level]}})
    elif context.features.thinking == "effort":
        context.update_model_fields({"reasoning_effort": EFFORTS[level]})
    else:
        context.warn(DOES_NOT_THINK)


def send_sampling(name: str, key: str) -> FieldEncoder[ConverseContext]:
    """Send temperature or top_p if the model supports the value."""

    def encode(context: ConverseContext, value: float) -> JsonDict:
        if context.claude is not None:
            encoded = CLAUDE_FIELDS[name](context.claude, value)
            context.claude.body.update(encoded)
            return {key: value} if encoded else {}
        if context.model_facts.sampling is False:
            context.warn(NO_SAMPLING.format(name))
        elif value > 1:
            context.warn(TOO_HIGH)
        else:
            return {key: value}
        return {}

    return send_nested("inferenceConfig", encode)


def encode_top_k(context: ConverseContext, top_k: int) -> JsonDict:
    if not context.features.top_k:
        context.warn(NO_TOP_K)
        return {}
    value: Any = top_k
    for key in reversed(context.features.top_k):
        value = {key: value}
    context.update_model_fields(value)
    return {}


def encode_betas(context: ConverseContext, betas: Sequence[str]) -> Mapping[str, Any]:
    if context.claude is None:
        context.warn(f"betas was left out: {context.provider} does not support it")
        return {}
    context.update_model_fields({"anthropic_beta": list(betas)})
    return {}


# Other fields.


def encode_stop(context: ConverseContext, stop: Sequence[str]) -> JsonDict:
    sequences = [sequence for sequence in stop if sequence.strip()]
    if len(sequences) < len(stop):
        context.warn(BLANK_STOP)
    return {"stopSequences": sequences} if sequences else {}


def encode_output_schema(context: ConverseContext, schema: Any) -> JsonDict:
    compiled = compile_output_schema(context)
    if compiled is None:
        return {}
    name = schema_name(context.request.output_json_schema or {})
    definition = {"name": name, "schema": dump_json(compiled).decode()}
    return {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": definition}}}


def encode_metadata(context: ConverseContext, metadata: Mapping[str, Any]) -> JsonDict:
    """Send metadata for invocation logs."""
    texts = {key: value for key, value in metadata.items() if isinstance(value, str)}
    context.warn(*(NOT_TEXT.format(key) for key in metadata if key not in texts))
    return {"requestMetadata": texts} if texts else {}


PROMPT_FIELDS: dict[str, FieldEncoder[ConverseContext]] = {
    "model": drop_silently,  # part of the URL
    "tools": encode_tools,
    "tool_choice": encode_tool_choice,  # part of the tool configuration
    "parallel_tool_calls": encode_parallel_tool_calls,
}
"""Fields that the endpoint for counting tokens accepts."""
FIELDS: dict[str, FieldEncoder[ConverseContext]] = {
    **PROMPT_FIELDS,
    "output_schema": send_nested("outputConfig", encode_output_schema),
    "output_mode": drop_silently,
    "max_tokens": send_nested("inferenceConfig", lambda context, value: {"maxTokens": value}),
    "temperature": send_sampling("temperature", "temperature"),
    "top_p": send_sampling("top_p", "topP"),
    "stop": send_nested("inferenceConfig", encode_stop),
    "top_k": encode_top_k,
    "service_tier": lambda context, tier: {"serviceTier": {"type": tier}},
    "metadata": encode_metadata,
    "betas": encode_betas,
    "n": refuse_choices,
    "modalities": drop_modalities,
    "session_id": drop_silently,
    "deadline": drop_silently,
    **drop_unsupported(
        "background cached_content conversation frequency_penalty logit_bias logprobs presence_penalty "
        "previous_response_id safety_settings seed store user verbosity"
    ),
}
ENCODED_ELSEWHERE = frozenset(("input", "messages", "system", "cache", "thinking", "thinking_budget", "extra"))
"""Fields that `encode_body` and `MessageEncoder` encode."""
