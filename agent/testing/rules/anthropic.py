"""Rules of the Messages API for settings and tools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from ...models import facts
from ...providers.anthropic.models import API, MAX_BREAKPOINTS, MIN_THINKING_BUDGET, ModelFeatures, features_of
from . import (
    IssuedValue,
    Rules,
    VendorState,
    Violation,
    as_list,
    as_number,
    as_object,
    as_text,
    enumerate_objects,
    find_target,
    is_text_in,
    walk_objects,
    walk_schema,
)
from .anthropic_messages import (
    TOOL_NAME,
    check_conversation,
    check_pattern,
    check_text,
    check_thinking_first,
    ends_with_prefill,
)

_UNSUPPORTED_BY_TYPE: Mapping[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("maxItems", "uniqueItems", "contains", "minContains", "maxContains", "prefixItems"),
    "object": ("minProperties", "maxProperties", "patternProperties", "propertyNames"),
}
_UNSUPPORTED = ("oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas")
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"))
_MAX_OPTIONAL = 24
_MAX_UNIONS = 16


def _check_input_schema(schema: Any) -> Iterator[tuple[str, str]]:
    """Yield the violations of a tool's input schema, each with the field within it."""
    if not isinstance(schema, dict):
        yield "", "Input should be a valid dictionary"
    elif "type" not in schema:
        yield ".type", "Field required"
    elif schema["type"] != "object":
        yield ".type", "Input should be 'object'"
    elif any(keyword in schema for keyword in ("oneOf", "allOf", "anyOf")):
        yield "", "input_schema does not support oneOf, allOf, or anyOf at the top level"


def _check_strict_schema(schema: Any) -> Iterator[str]:
    """Yield the violations of a schema that is to be enforced: of a strict tool, or of the output."""
    if not isinstance(schema, dict):
        yield "Input should be a valid dictionary"
        return
    optional = unions = 0
    for _, node in walk_schema(schema):
        yield from _check_node(node, schema)
        required = as_list(node.get("required"))
        optional += sum(name not in required for name in as_object(node.get("properties")))
        unions += "anyOf" in node or isinstance(node.get("type"), list)
    if optional > _MAX_OPTIONAL:
        yield (
            f"Schemas contains too many optional parameters ({optional}), which would make grammar compilation "
            f"inefficient. Reduce the number of optional parameters in your tool schemas (limit: {_MAX_OPTIONAL})."
        )
    if unions > _MAX_UNIONS:
        yield (
            f"Schemas contains too many parameters with union types ({unions} parameters with type arrays or anyOf). "
            f"This would make grammar compilation inefficient (limit: {_MAX_UNIONS})."
        )
    if _is_recursive(schema):
        yield "Recursive schemas are not supported"


def _check_node(node: dict[str, Any], root: Mapping[str, Any]) -> Iterator[str]:
    types = node["type"] if isinstance(node.get("type"), list) else [node.get("type")]
    kinds = [kind for kind in types if isinstance(kind, str)]
    for kind in kinds:
        if unsupported := sorted(keyword for keyword in _UNSUPPORTED_BY_TYPE.get(kind, ()) if keyword in node):
            yield f"For '{kind}' type, properties {', '.join(unsupported)} are not supported"
    for keyword in _UNSUPPORTED:
        if keyword in node:
            yield f"Schema keyword '{keyword}' is not supported"
    if "object" in kinds or "properties" in node:
        additional = node.get("additionalProperties")
        if "additionalProperties" not in node:
            yield "For 'object' type, 'additionalProperties' must be explicitly set to false"
        elif additional is not False:
            yield (
                f"For 'object' type, 'additionalProperties: {'true' if additional is True else 'object'}' is not "
                "supported. Please set 'additionalProperties' to false"
            )
    if "array" in kinds and node.get("minItems") not in (None, 0, 1):
        yield f"For 'array' type, 'minItems' values other than 0 or 1 are not supported, got {node['minItems']}"
    if "string" in kinds and "format" in node and not is_text_in(node["format"], _FORMATS):
        yield f"String format '{node['format']}' is not supported"
    reference = node.get("$ref")
    if isinstance(reference, str):
        if not reference.startswith("#"):
            yield f"External $ref '{reference}' is not supported"
        elif find_target(reference, root) is None:
            yield f"$ref '{reference}' could not be resolved"


def _is_recursive(schema: dict[str, Any]) -> bool:
    """Whether a reference leads back to itself."""
    targets = {
        reference: {as_text(node.get("$ref")) for node in walk_objects(find_target(reference, schema))} - {""}
        for node in walk_objects(schema)
        if (reference := as_text(node.get("$ref")))
    }
    for start in targets:
        reached, edge = set[str](), {start}
        while edge:
            edge = {target for reference in edge for target in targets.get(reference, ())} - reached
            reached |= edge
        if start in reached:
            return True
    return False


KEYS = frozenset(
    (
        "billing_policy", "cache_control", "compaction", "container", "context_management", "diagnostics",
        "fallback_credit_token", "fallbacks", "inference_geo", "max_tokens", "mcp_servers", "messages", "metadata",
        "model", "output_config", "output_format", "service_tier", "speed", "stop_sequences", "stream", "system",
        "temperature", "thinking", "thread", "tool_choice", "tools", "top_k", "top_p", "user_profile_id",
        "workspace_id",
    )
)  # fmt: skip
_NOT_COUNTED = frozenset(("max_tokens", "stream", "temperature", "top_k", "top_p", "stop_sequences", "metadata"))
"""Keys that the endpoint for counting tokens rejects."""
_DOCS = "Please consult our documentation at https://docs.claude.com/en/docs/build-with-claude/extended-thinking"


@dataclass(frozen=True, slots=True)
class AnthropicRules(Rules):
    """Rules of the Messages API."""

    name: ClassVar[str] = API

    @override
    def check(
        self, body: Mapping[str, Any], state: VendorState, *, model: str = "", count_tokens: bool = False
    ) -> Iterator[Violation]:
        required = ("model", "messages") if count_tokens else ("model", "max_tokens", "messages")
        for key in required:
            if body.get(key) is None:
                yield Violation(f"{key}: Field required")
        for key in body:
            if (key not in KEYS or (count_tokens and key in _NOT_COUNTED)) and key not in state.extra_keys:
                yield Violation(f"{key}: Extra inputs are not permitted")
        messages = body.get("messages")
        if messages is not None and not isinstance(messages, list):
            yield Violation("messages: Input should be a valid list")
        elif messages == []:
            yield Violation("messages: at least one message is required")
        features = features_of(as_text(body.get("model")))
        yield from _check_system(body.get("system"))
        yield from check_conversation(as_list(messages), state, system_messages=features.thinking == "adaptive")
        yield from _check_tools(body, features)
        yield from _check_limits(body, features)
        yield from _check_thinking(body, features)
        yield from _check_cache_breakpoints(body)
        yield from _check_output(body, features)

    @override
    def encode_error(self, violation: Violation) -> dict[str, Any]:
        return {"type": "error", "error": {"type": "invalid_request_error", "message": violation.message}}

    @override
    def invalid_json(self) -> Violation:
        return Violation("The request body is not valid JSON: expected value at line 1 column 1")

    @override
    def find_issued(self, response: Iterable[Any]) -> Iterator[IssuedValue]:
        thinking = ""
        for item in walk_objects([*response]):
            match item.get("type"):
                case "content_block_start":
                    thinking = ""
                case "thinking_delta":
                    thinking += as_text(item.get("thinking"))
                case "signature_delta" if as_text(item.get("signature")):
                    yield IssuedValue(item["signature"], text=thinking)
                case "thinking" if as_text(item.get("signature")):
                    yield IssuedValue(item["signature"], text=as_text(item.get("thinking")))
                case "redacted_thinking" if as_text(item.get("data")):
                    yield IssuedValue(item["data"])
                case _:
                    pass


def _check_system(system: Any) -> Iterator[Violation]:
    # The API accepts an empty string.
    for _, block in enumerate_objects(system):
        yield from check_text("system", block.get("text"))


def _check_tools(body: Mapping[str, Any], features: ModelFeatures) -> Iterator[Violation]:
    names: list[str] = []
    for index, tool in enumerate_objects(body.get("tools")):
        names.append(as_text(tool.get("name")))
        if (tool.get("type") or "custom") != "custom":
            continue
        path = f"tools.{index}.custom"
        yield from check_pattern(tool.get("name"), TOOL_NAME, f"{path}.name")
        if "input_schema" not in tool:
            yield Violation(f"{path}.input_schema: Field required")
            continue
        for inner, problem in _check_input_schema(tool["input_schema"]):
            yield Violation(f"{path}.input_schema{inner}: {problem}")
        for problem in _check_strict_schema(tool["input_schema"]) if tool.get("strict") is True else ():
            yield Violation(f"{path}: {problem}")
    nonempty = [name for name in names if name]
    if len(nonempty) != len(set(nonempty)):
        yield Violation("tools: Tool names must be unique.")
    choice = body.get("tool_choice")
    if choice is None:
        return
    kind = as_object(choice).get("type")
    if kind not in ("auto", "any", "tool", "none"):
        reason = f"Input tag '{kind}' found using 'type' does not match any of the expected tags"
        yield Violation(f"tool_choice: {reason}: 'any', 'auto', 'none', 'tool'")
    elif not body.get("tools"):
        yield Violation("tool_choice: tool_choice may only be specified while providing tools")
    elif kind == "tool" and choice.get("name") not in names:
        yield Violation(f"Tool '{choice.get('name')}' not found in provided tools")
    elif kind in ("any", "tool") and not features.forced_calls:
        yield Violation(f"tool_choice: this model does not support forcing tool use with type '{kind}'")


def _check_limits(body: Mapping[str, Any], features: ModelFeatures) -> Iterator[Violation]:
    model = as_text(body.get("model"))
    model_facts = facts(API, model)
    max_tokens, max_output = body.get("max_tokens"), model_facts.max_output
    if isinstance(max_tokens, bool) or (max_tokens is not None and not isinstance(max_tokens, int)):
        yield Violation("max_tokens: Input should be a valid integer")
    elif max_tokens is not None and max_tokens < 1:
        yield Violation("max_tokens: must be greater than or equal to 1")
    elif max_tokens is not None and max_output is not None and max_tokens > max_output:
        yield Violation(
            f"max_tokens: {max_tokens} > {max_output}, which is the maximum allowed number of output tokens for {model}"
        )
    for key in ("temperature", "top_p"):
        value = as_number(body.get(key))
        if body.get(key) is not None and value is None:
            yield Violation(f"{key}: Input should be a valid number")
        elif value is not None and not 0 <= value <= 1:
            yield Violation(f"{key}: range: 0..1")
        elif value is not None and model_facts.sampling is False:
            yield Violation(f"`{key}` is deprecated for this model.")
    if body.get("temperature") is not None and body.get("top_p") is not None and not features.both_samplers:
        yield Violation("`temperature` and `top_p` cannot both be specified for this model. Please use only one.")
    stops = body.get("stop_sequences")
    if stops is not None and not isinstance(stops, list):
        yield Violation("stop_sequences: Input should be a valid list")
    for index, stop in enumerate(as_list(stops)):
        if not isinstance(stop, str):
            yield Violation(f"stop_sequences.{index}: Input should be a valid string")
        elif not stop.strip():
            yield Violation("stop_sequences: each stop sequence must contain non-whitespace")


def _check_thinking(body: Mapping[str, Any], features: ModelFeatures) -> Iterator[Violation]:
    messages, thinking = body.get("messages"), body.get("thinking")
    if not features.prefill and ends_with_prefill(messages):
        yield Violation(
            "This model does not support assistant message prefill. The conversation must end with a user message."
        )
    if thinking is None:
        return
    kind = as_object(thinking).get("type")
    if kind not in ("enabled", "adaptive"):
        if kind not in ("disabled", "between_tools"):
            reason = f"Input tag '{kind}' found using 'type' does not match any of the expected tags"
            yield Violation(f"thinking: {reason}: 'adaptive', 'disabled', 'enabled'")
        return
    if kind == "adaptive" and features.thinking == "budget" and facts(API, as_text(body.get("model"))).known:
        yield Violation("adaptive thinking is not supported on this model")
    if kind == "enabled":
        budget, max_tokens = thinking.get("budget_tokens"), as_number(body.get("max_tokens"))
        if as_number(budget) is None:
            yield Violation("thinking.enabled.budget_tokens: Field required")
        elif budget < MIN_THINKING_BUDGET:
            reason = f"Input should be greater than or equal to {MIN_THINKING_BUDGET}"
            yield Violation(f"thinking.enabled.budget_tokens: {reason}")
        elif max_tokens is not None and budget >= max_tokens:
            yield Violation(f"`max_tokens` must be greater than `thinking.budget_tokens`. {_DOCS}")
        yield from check_thinking_first(messages)
    if as_object(body.get("tool_choice")).get("type") in ("any", "tool"):
        yield Violation("Thinking may not be enabled when tool_choice forces tool use.")
    if body.get("temperature") not in (None, 1):
        yield Violation(f"`temperature` may only be set to 1 when thinking is enabled. {_DOCS}")
    if (top_p := as_number(body.get("top_p"))) is not None and top_p < 0.95:
        reason = "`top_p` must be greater than or equal to 0.95 or unset when thinking is enabled."
        yield Violation(f"{reason} {_DOCS}")
    if body.get("top_k") is not None:
        yield Violation(f"`top_k` must be unset when thinking is enabled. {_DOCS}")


def _check_cache_breakpoints(body: Mapping[str, Any]) -> Iterator[Violation]:
    """Check the number of cache breakpoints, and that those with a long lifetime come first."""
    blocks: list[tuple[str, Mapping[str, Any]]] = []
    for key in ("tools", "system"):
        blocks += [(f"{key}.{index}", block) for index, block in enumerate_objects(body.get(key))]
    for index, message in enumerate_objects(body.get("messages")):
        for position, block in enumerate_objects(message.get("content")):
            blocks.append((f"messages.{index}.content.{position}", block))
    breakpoints = [(path, block) for path, block in [*blocks, ("", body)] if block.get("cache_control")]
    if len(breakpoints) > MAX_BREAKPOINTS:
        count = len(breakpoints)
        yield Violation(f"A maximum of {MAX_BREAKPOINTS} blocks with cache_control may be provided. Found {count}.")
    short = False
    for path, holder in breakpoints:
        long = as_object(holder["cache_control"]).get("ttl") == "1h"
        if long and short:
            yield Violation(
                f"{path}.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' "
                "cache_control block. Note that blocks are processed in the following order: `tools`, `system`, "
                "`messages`."
            )
        short = short or not long


def _check_output(body: Mapping[str, Any], features: ModelFeatures) -> Iterator[Violation]:
    config = as_object(body.get("output_config"))
    effort = config.get("effort")
    if effort is not None and features.efforts and effort not in features.efforts:
        supported = ", ".join(sorted(features.efforts))
        yield Violation(f"This model does not support effort level '{effort}'. Supported levels: {supported}.")
    formats = (("output_config.format", config.get("format")), ("output_format", body.get("output_format")))
    for path, output_format in formats:
        if output_format is None:
            continue
        if as_object(output_format).get("type") != "json_schema":
            yield Violation(f"{path}.type: Input should be 'json_schema'")
        elif "schema" not in output_format:
            yield Violation(f"{path}.schema: Field required")
        else:
            for problem in _check_strict_schema(output_format["schema"]):
                yield Violation(f"{path}.schema: {problem}")
