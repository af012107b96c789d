"""What the Messages API refuses: settings here, the conversation in `anthropic_turns`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from ...models import facts
from ...providers.anthropic.models import API, MAX_BREAKPOINTS, MIN_THINKING_BUDGET, ModelFeatures, features_of
from .anthropic_turns import (
    begins_without_thinking,
    broken_conversation,
    broken_text,
    broken_tool_name,
    ends_with_assistant,
)
from .base import Issued, Known, Rules, Violation, a_number, a_text, an_object, everything_in, is_among, objects_in

_NOT_SUPPORTED: Mapping[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("maxItems", "uniqueItems", "contains", "minContains", "maxContains", "prefixItems"),
    "object": ("minProperties", "maxProperties", "patternProperties", "propertyNames"),
}
_NOWHERE = ("oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas")
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"))
_AT_TOP = ("oneOf", "allOf", "anyOf")
_MOST_OPTIONAL = 24
_MOST_UNIONS = 16


def broken_input_schema(schema: Any) -> Iterator[tuple[str, str]]:
    """What is wrong with the input schema of any tool: where within it, and what."""
    if not isinstance(schema, dict):
        yield "", "Input should be a valid dictionary"
    elif "type" not in schema:
        yield ".type", "Field required"
    elif schema["type"] != "object":
        yield ".type", "Input should be 'object'"
    elif any(keyword in schema for keyword in _AT_TOP):
        yield "", "input_schema does not support oneOf, allOf, or anyOf at the top level"


def broken_enforced(schema: Any) -> Iterator[str]:
    """What cannot be enforced, and so is refused: in a strict tool, and in the schema of an answer."""
    if not isinstance(schema, dict):
        yield "Input should be a valid dictionary"
        return
    optional = unions = 0
    for node in _nodes(schema):
        yield from _broken_node(node, schema)
        properties = node["properties"] if isinstance(node.get("properties"), dict) else {}
        required = node["required"] if isinstance(node.get("required"), list) else []
        optional += sum(name not in required for name in properties)
        unions += "anyOf" in node or isinstance(node.get("type"), list)
    if optional > _MOST_OPTIONAL:
        yield (
            f"Schemas contains too many optional parameters ({optional}), which would make grammar compilation "
            f"inefficient. Reduce the number of optional parameters in your tool schemas (limit: {_MOST_OPTIONAL})."
        )
    if unions > _MOST_UNIONS:
        yield (
            f"Schemas contains too many parameters with union types ({unions} parameters with type arrays or anyOf). "
            f"This would make grammar compilation inefficient (limit: {_MOST_UNIONS})."
        )
    if _recurs(schema):
        yield "Recursive schemas are not supported"


def _broken_node(node: dict[str, Any], root: Mapping[str, Any]) -> Iterator[str]:
    given = node.get("type")
    kinds = [kind for kind in (given if isinstance(given, list) else [given]) if isinstance(kind, str)]
    for kind in kinds:
        if found := sorted(keyword for keyword in _NOT_SUPPORTED.get(kind, ()) if keyword in node):
            yield f"For '{kind}' type, properties {', '.join(found)} are not supported"
    for keyword in _NOWHERE:
        if keyword in node:
            yield f"Schema keyword '{keyword}' is not supported"
    if "object" in kinds or "properties" in node:
        if "additionalProperties" not in node:
            yield "For 'object' type, 'additionalProperties' must be explicitly set to false"
        elif node["additionalProperties"] is not False:
            said = str(node["additionalProperties"]).lower() if node["additionalProperties"] is True else "object"
            yield (
                f"For 'object' type, 'additionalProperties: {said}' is not supported. "
                "Please set 'additionalProperties' to false"
            )
    if "array" in kinds and node.get("minItems") not in (None, 0, 1):
        yield f"For 'array' type, 'minItems' values other than 0 or 1 are not supported, got {node['minItems']}"
    if "string" in kinds and "format" in node and not is_among(node["format"], _FORMATS):
        yield f"String format '{node['format']}' is not supported"
    reference = node.get("$ref")
    if isinstance(reference, str):
        if not reference.startswith("#"):
            yield f"External $ref '{reference}' is not supported"
        elif _target(reference, root) is None:
            yield f"$ref '{reference}' could not be resolved"


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema within a schema."""
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword in ("properties", "$defs", "definitions"):
        for value in schema[keyword].values() if isinstance(schema.get(keyword), dict) else ():
            yield from _nodes(value)
    yield from _nodes(schema.get("items"))
    yield from _nodes(schema.get("additionalProperties"))
    for keyword in ("anyOf", "allOf", "oneOf", "prefixItems"):
        for value in schema[keyword] if isinstance(schema.get(keyword), list) else ():
            yield from _nodes(value)


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        if step and (not isinstance(found, Mapping) or step not in found):
            return None
        found = found[step] if step else found
    return found


def _recurs(schema: dict[str, Any]) -> bool:
    """Whether some definition leads back to itself."""
    leads = {
        reference: {a_text(node.get("$ref")) for node in everything_in(_target(reference, schema))} - {""}
        for node in everything_in(schema)
        if (reference := a_text(node.get("$ref")))
    }
    for start in leads:
        reached, edge = set[str](), {start}
        while edge:
            edge = {step for reference in edge for step in leads.get(reference, ())} - reached
            reached |= edge
        if start in reached:
            return True
    return False


KEYS = frozenset(
    (
        "billing_policy",
        "cache_control",
        "compaction",
        "container",
        "context_management",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "max_tokens",
        "mcp_servers",
        "messages",
        "metadata",
        "model",
        "output_config",
        "output_format",
        "service_tier",
        "speed",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking",
        "thread",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
        "user_profile_id",
        "workspace_id",
    )
)
_NOT_COUNTED = frozenset(("max_tokens", "stream", "temperature", "top_k", "top_p", "stop_sequences", "metadata"))
"""What the endpoint that counts tokens does not take."""
_DOCS = "Please consult our documentation at https://docs.claude.com/en/docs/build-with-claude/extended-thinking"


@dataclass(frozen=True, slots=True)
class AnthropicRules(Rules):
    """The API's rules."""

    name: ClassVar[str] = API

    @override
    def broken(
        self, body: Mapping[str, Any], known: Known, *, model: str = "", counting: bool = False
    ) -> Iterator[Violation]:
        required = ("model", "messages") if counting else ("model", "max_tokens", "messages")
        for key in required:
            if body.get(key) is None:
                yield Violation(f"{key}: Field required")
        for key in body:
            if (key not in KEYS or (counting and key in _NOT_COUNTED)) and key not in known.keys:
                yield Violation(f"{key}: Extra inputs are not permitted")
        messages = body.get("messages")
        if messages is not None and not isinstance(messages, list):
            yield Violation("messages: Input should be a valid list")
        elif messages == []:
            yield Violation("messages: at least one message is required")
        features = features_of(a_text(body.get("model")))
        yield from _system(body.get("system"))
        conversation = messages if isinstance(messages, list) else []
        yield from broken_conversation(conversation, known, system=features.thinking == "adaptive")
        yield from _tools(body, features)
        yield from _limits(body, features)
        yield from _thinking(body, features)
        yield from _marks(body)
        yield from _output(body, features)

    @override
    def complaint(self, violation: Violation) -> dict[str, Any]:
        return {"type": "error", "error": {"type": "invalid_request_error", "message": violation.message}}

    @override
    def unreadable(self) -> Violation:
        return Violation("The request body is not valid JSON: expected value at line 1 column 1")

    @override
    def issued(self, answer: Iterable[Any]) -> Iterator[Issued]:
        thought = ""
        for found in everything_in([*answer]):
            match found.get("type"):
                case "content_block_start":
                    thought = ""
                case "thinking_delta":
                    thought += a_text(found.get("thinking"))
                case "signature_delta" if a_text(found.get("signature")):
                    yield Issued(found["signature"], text=thought)
                case "thinking" if a_text(found.get("signature")):
                    yield Issued(found["signature"], text=a_text(found.get("thinking")))
                case "redacted_thinking" if a_text(found.get("data")):
                    yield Issued(found["data"])
                case _:
                    pass


def _system(system: Any) -> Iterator[Violation]:
    if isinstance(system, str):
        return  # an empty one is no system prompt
    for _, block in objects_in(system):
        yield from broken_text("system", block.get("text"))


def _tools(body: Mapping[str, Any], features: ModelFeatures) -> Iterator[Violation]:
    names: list[str] = []
    for n, tool in objects_in(body.get("tools")):
        kind = tool.get("type") or "custom"
        if kind != "custom":
            names.append(a_text(tool.get("name")))
            continue
        yield from broken_tool_name(tool.get("name"), f"tools.{n}.custom.name")
        names.append(a_text(tool.get("name")))
        if "input_schema" not in tool:
            yield Violation(f"tools.{n}.custom.input_schema: Field required")
            continue
        for within, problem in broken_input_schema(tool["input_schema"]):
            yield Violation(f"tools.{n}.custom.input_schema{within}: {problem}")
        for problem in broken_enforced(tool["input_schema"]) if tool.get("strict") is True else ():
            yield Violation(f"tools.{n}.custom: {problem}")
    given = [name for name in names if name]
    if len(given) != len(set(given)):
        yield Violation("tools: Tool names must be unique.")
    choice = body.get("tool_choice")
    if choice is None:
        return
    kind = an_object(choice).get("type")
    if kind not in ("auto", "any", "tool", "none"):
        said = f"Input tag '{kind}' found using 'type' does not match any of the expected tags"
        yield Violation(f"tool_choice: {said}: 'any', 'auto', 'none', 'tool'")
    elif not body.get("tools"):
        yield Violation("tool_choice: tool_choice may only be specified while providing tools")
    elif kind == "tool" and choice.get("name") not in names:
        yield Violation(f"Tool '{choice.get('name')}' not found in provided tools")
    elif kind in ("any", "tool") and not features.forced_calls:
        yield Violation(f"tool_choice: this model does not support forcing tool use with type '{kind}'")


def _limits(body: Mapping[str, Any], features: ModelFeatures) -> Iterator[Violation]:
    model = a_text(body.get("model"))
    about = facts(API, model)
    most = body.get("max_tokens")
    if isinstance(most, bool) or (most is not None and not isinstance(most, int)):
        yield Violation("max_tokens: Input should be a valid integer")
    elif most is not None and most < 1:
        yield Violation("max_tokens: must be greater than or equal to 1")
    elif most is not None and about.max_output is not None and most > about.max_output:
        allowed = f"which is the maximum allowed number of output tokens for {model}"
        yield Violation(f"max_tokens: {most} > {about.max_output}, {allowed}")
    for key in ("temperature", "top_p"):
        value = a_number(body.get(key))
        if body.get(key) is not None and value is None:
            yield Violation(f"{key}: Input should be a valid number")
        elif value is not None and not 0 <= value <= 1:
            yield Violation(f"{key}: range: 0..1")
        elif value is not None and about.sampling is False:
            yield Violation(f"`{key}` is deprecated for this model.")
    if body.get("temperature") is not None and body.get("top_p") is not None and not features.both_samplers:
        yield Violation("`temperature` and `top_p` cannot both be specified for this model. Please use only one.")
    stops = body.get("stop_sequences")
    if stops is not None and not isinstance(stops, list):
        yield Violation("stop_sequences: Input should be a valid list")
    for n, stop in enumerate(stops if isinstance(stops, list) else ()):
        if not isinstance(stop, str):
            yield Violation(f"stop_sequences.{n}: Input should be a valid string")
        elif not stop.strip():
            yield Violation("stop_sequences: each stop sequence must contain non-whitespace")


def _thinking(body: Mapping[str, Any], features: ModelFeatures) -> Iterator[Violation]:
    messages, thinking = body.get("messages"), body.get("thinking")
    if not features.prefill and ends_with_assistant(messages):
        said = "This model does not support assistant message prefill. The conversation must end with a user message."
        yield Violation(said)
    if thinking is None:
        return
    kind = an_object(thinking).get("type")
    if kind not in ("enabled", "adaptive"):
        if kind not in ("disabled", "between_tools"):
            said = f"Input tag '{kind}' found using 'type' does not match any of the expected tags"
            yield Violation(f"thinking: {said}: 'adaptive', 'disabled', 'enabled'")
        return
    if kind == "adaptive" and features.thinking == "budget" and facts(API, a_text(body.get("model"))).known:
        yield Violation("adaptive thinking is not supported on this model")
    if kind == "enabled":
        budget, most = thinking.get("budget_tokens"), a_number(body.get("max_tokens"))
        if a_number(budget) is None:
            yield Violation("thinking.enabled.budget_tokens: Field required")
        elif budget < MIN_THINKING_BUDGET:
            said = f"Input should be greater than or equal to {MIN_THINKING_BUDGET}"
            yield Violation(f"thinking.enabled.budget_tokens: {said}")
        elif most is not None and budget >= most:
            yield Violation(f"`max_tokens` must be greater than `thinking.budget_tokens`. {_DOCS}")
        yield from begins_without_thinking(messages)
    if an_object(body.get("tool_choice")).get("type") in ("any", "tool"):
        yield Violation("Thinking may not be enabled when tool_choice forces tool use.")
    if body.get("temperature") not in (None, 1):
        yield Violation(f"`temperature` may only be set to 1 when thinking is enabled. {_DOCS}")
    if (top_p := a_number(body.get("top_p"))) is not None and top_p < 0.95:
        said = "`top_p` must be greater than or equal to 0.95 or unset when thinking is enabled."
        yield Violation(f"{said} {_DOCS}")
    if body.get("top_k") is not None:
        yield Violation(f"`top_k` must be unset when thinking is enabled. {_DOCS}")


def _marks(body: Mapping[str, Any]) -> Iterator[Violation]:
    """Cache breakpoints: how many there are, and that those which live longer come first."""
    marks: list[tuple[str, dict[str, Any]]] = []
    for key in ("tools", "system"):
        marks += [(f"{key}.{n}", block) for n, block in objects_in(body.get(key)) if block.get("cache_control")]
    for n, message in objects_in(body.get("messages")):
        for position, block in objects_in(message.get("content")):
            if block.get("cache_control"):
                marks.append((f"messages.{n}.content.{position}", block))
    whole = [("", dict(body))] if body.get("cache_control") else []
    if len(marks) + len(whole) > MAX_BREAKPOINTS:
        found = len(marks) + len(whole)
        yield Violation(f"A maximum of {MAX_BREAKPOINTS} blocks with cache_control may be provided. Found {found}.")
    short = False
    for at, block in [*marks, *whole]:
        long = an_object(block["cache_control"]).get("ttl") == "1h"
        if long and short:
            yield Violation(
                f"{at}.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' cache_control "
                "block. Note that blocks are processed in the following order: `tools`, `system`, `messages`."
            )
        short = short or not long


def _output(body: Mapping[str, Any], features: ModelFeatures) -> Iterator[Violation]:
    config = an_object(body.get("output_config"))
    effort = config.get("effort")
    if effort is not None and features.efforts and effort not in features.efforts:
        supported = ", ".join(sorted(features.efforts))
        yield Violation(f"This model does not support effort level '{effort}'. Supported levels: {supported}.")
    forms = (("output_config.format", config.get("format")), ("output_format", body.get("output_format")))
    for at, form in forms:
        if form is None:
            continue
        if an_object(form).get("type") != "json_schema":
            yield Violation(f"{at}.type: Input should be 'json_schema'")
        elif "schema" not in form:
            yield Violation(f"{at}.schema: Field required")
        else:
            for problem in broken_enforced(form["schema"]):
                yield Violation(f"{at}.schema: {problem}")
