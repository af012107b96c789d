"""Rules of Chat Completions, and the rules that both OpenAI APIs share.

They are OpenAI's rules. One is stricter, because compatible vendors reject empty text, which OpenAI accepts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from typing_extensions import override

from ...models import facts
from ...providers.openai_chat.dialect import OPENAI_REFUSALS
from . import (
    Rules,
    VendorState,
    Violation,
    as_list,
    as_number,
    as_object,
    as_text,
    contains_json,
    enumerate_objects,
    find_target,
    is_text_in,
    join_quoted,
    walk_schema,
)

# Shared by both APIs.

_NOT_PERMITTED = frozenset(
    (
        "allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "minLength",
        "maxLength", "patternProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames", "minProperties",
        "maxProperties", "prefixItems", "contains", "minContains", "maxContains", "uniqueItems",
    )
)  # fmt: skip
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))
_FOLLOWED = ("items",)  # the API does not check additionalProperties
_MAX_PROPERTIES = 5_000
_MAX_ENUM_VALUES = 1_000
_TYPE_KEYWORDS = frozenset(("type", "anyOf", "$ref", "enum", "const"))
"""Every node of a strict schema needs one of these keywords."""


def _check_root(schema: Any) -> Iterator[str]:
    if not isinstance(schema, dict):
        yield "schema must be a JSON object."
    elif schema.get("type") != "object":
        yield f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{schema.get('type')}\"'."


def _check_parameters(schema: Any) -> Iterator[str]:
    """Yield the violations of a function's parameters, whether strict or not."""
    yield from _check_root(schema)
    for context, node in walk_schema(schema, _FOLLOWED):
        if node.get("type") == "array" and not {"items", "prefixItems"} & node.keys():
            yield f"In context={context!r}, array schema missing items."


def _check_strict_schema(schema: Any) -> Iterator[str]:
    yield from _check_root(schema)
    if "anyOf" in as_object(schema):
        yield "In context=(), 'anyOf' is not permitted at the root of the schema."
    properties = enum_values = 0
    for context, node in walk_schema(schema, _FOLLOWED):
        yield from (f"In context={context!r}, {problem}" for problem in _check_node(node, schema))
        properties += len(as_object(node.get("properties")))
        enum_values += len(as_list(node.get("enum")))
    if properties > _MAX_PROPERTIES:
        yield f"schema has {properties} properties, which exceeds the limit of {_MAX_PROPERTIES}."
    if enum_values > _MAX_ENUM_VALUES:
        yield f"schema has {enum_values} enum values, which exceeds the limit of {_MAX_ENUM_VALUES}."


def _check_node(node: dict[str, Any], root: Mapping[str, Any]) -> Iterator[str]:
    for keyword in node:
        if keyword in _NOT_PERMITTED:
            yield f"'{keyword}' is not permitted."
    if not _TYPE_KEYWORDS & node.keys():
        yield "schema must have a 'type' key."
    if (reference := node.get("$ref")) is not None:
        siblings = sorted(node.keys() - {"$ref"} - ({"$defs", "definitions"} if node is root else set()))
        if siblings:
            yield f"$ref cannot have keywords {{{', '.join(map(repr, siblings))}}}."
        if find_target(as_text(reference), root) is None:
            yield f"reference to component '{reference}' which was not found in the schema."
    kinds = node.get("type")
    if kinds == "object" or (isinstance(kinds, list) and "object" in kinds) or "properties" in node:
        if node.get("additionalProperties") is not False:
            yield "'additionalProperties' is required to be supplied and to be false."
        properties, required = as_object(node.get("properties")), as_list(node.get("required"))
        missing = next((name for name in properties if name not in required), None)
        if missing is not None:
            reason = "'required' is required to be supplied and to be an array including every key in properties."
            yield f"{reason} Missing '{missing}'."
        extra = next((name for name in required if not is_text_in(name, properties)), None)
        if extra is not None:
            yield f"'required' is required to be an array of keys in properties. Extra required key '{extra}' supplied."
    if kinds == "array" and "items" not in node:
        yield "array schema missing items."
    if "format" in node and not is_text_in(node["format"], _FORMATS) and kinds == "string":
        yield f"'{node['format']}' is not a valid format."


_MAX_NAME_LENGTH = 64
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_TYPE_NAMES = {
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    str: "a string",
    list: "an array",
    dict: "an object",
}

Range = tuple[float | None, float | None]


class OpenAIRules(Rules):
    """The format of errors of both APIs."""

    @override
    def encode_error(self, violation: Violation) -> dict[str, Any]:
        error = {"message": violation.message, "type": "invalid_request_error"}
        return {"error": {**error, "param": violation.field, "code": violation.code}}

    @override
    def invalid_json(self) -> Violation:
        return Violation(
            "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP "
            "library correctly. The OpenAI API expects a JSON payload, but what was sent was not valid JSON.)"
        )


def report_missing(path: str) -> Violation:
    return Violation(f"Missing required parameter: '{path}'.", path, "missing_required_parameter")


def report_type(path: str, expected: str, value: Any) -> Violation:
    actual = _TYPE_NAMES.get(type(value), "null")
    return Violation(f"Invalid type for '{path}': expected {expected}, but got {actual} instead.", path, "invalid_type")


def report_value(path: str, value: Any, allowed: Iterable[str]) -> Violation:
    reason = f"Invalid value: '{value}'. Supported values are: {join_quoted(allowed)}."
    return Violation(reason, path, "invalid_value")


def report_empty_array(path: str) -> Violation:
    reason = "empty array. Expected an array with minimum length 1, but got an empty array instead."
    return Violation(f"Invalid '{path}': {reason}", path, "empty_array")


def report_empty_string(path: str) -> Violation:
    reason = "empty string. Expected a string with minimum length 1, but got an empty string instead."
    return Violation(f"Invalid '{path}': {reason}", path, "empty_string")


def check_length(path: str, value: str | list[Any], limit: int) -> Iterator[Violation]:
    if len(value) <= limit:
        return
    kind, article = ("string", "a") if isinstance(value, str) else ("array", "an")
    reason = (
        f"Invalid '{path}': {kind} too long. Expected {article} {kind} with maximum length {limit}, "
        f"but got {article} {kind} with length {len(value)} instead."
    )
    yield Violation(reason, path, f"{kind}_above_max_length")


def check_name(path: str, name: Any) -> Iterator[Violation]:
    """Check the name of a tool, a call or a schema."""
    if name is None:
        yield report_missing(path)
    elif not isinstance(name, str):
        yield report_type(path, "a string", name)
    elif not name:
        yield report_empty_string(path)
    elif not _NAME.fullmatch(name):
        reason = "string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
        yield Violation(f"Invalid '{path}': {reason}", path, "invalid_value")
    else:
        yield from check_length(path, name, _MAX_NAME_LENGTH)


def check_ranges(
    body: Mapping[str, Any], decimals: Mapping[str, Range], integers: Mapping[str, Range]
) -> Iterator[Violation]:
    for kind, ranges in (("decimal", decimals), ("integer", integers)):
        for key, (minimum, maximum) in ranges.items():
            if body.get(key) is None:
                continue
            value = as_number(body[key])
            if value is None or (kind == "integer" and not float(value).is_integer()):
                yield report_type(key, f"{'an' if kind == 'integer' else 'a'} {kind}", body[key])
            elif minimum is not None and value < minimum:
                reason = f"{kind} below minimum value. Expected a value >= {minimum:g}, but got {value:g} instead."
                yield Violation(f"Invalid '{key}': {reason}", key, f"{kind}_below_min_value")
            elif maximum is not None and value > maximum:
                reason = f"{kind} above maximum value. Expected a value <= {maximum:g}, but got {value:g} instead."
                yield Violation(f"Invalid '{key}': {reason}", key, f"{kind}_above_max_value")


def check_function(function: Mapping[str, Any], path: str) -> Iterator[Violation]:
    """Check the declaration of a function."""
    yield from check_name(f"{path}.name", function.get("name"))
    schema = function.get("parameters")
    if schema is None:
        return
    problems = [*_check_parameters(schema), *(_check_strict_schema(schema) if function.get("strict") is True else ())]
    for problem in problems:
        reason = f"Invalid schema for function '{as_text(function.get('name'))}': {problem}"
        yield Violation(reason, f"{path}.parameters", "invalid_function_parameters")


def check_output_format(output_format: Mapping[str, Any], parameter: str, path: str) -> Iterator[Violation]:
    """Check an output schema.

    Args:
        parameter: The parameter in errors about the schema.
        path: The path in errors about its name.
    """
    name, schema = output_format.get("name"), output_format.get("schema")
    yield from check_name(f"{path}.name", name)
    if not isinstance(schema, dict):
        yield report_missing(f"{path}.schema")
    elif output_format.get("strict") is True:
        for problem in _check_strict_schema(schema):
            reason = f"Invalid schema for {parameter} '{as_text(name)}': {problem}"
            yield Violation(reason, parameter, "invalid_json_schema")


# Chat Completions.

KEYS = frozenset(
    (
        "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs", "max_completion_tokens",
        "max_tokens", "messages", "metadata", "modalities", "model", "moderation", "n", "parallel_tool_calls",
        "prediction", "presence_penalty", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "reasoning_effort", "response_format", "safety_identifier", "seed", "service_tier", "stop", "store", "stream",
        "stream_options", "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user", "verbosity",
        "web_search_options",
    )
)  # fmt: skip
_ROLES = ("system", "assistant", "user", "function", "tool", "developer")
_DECIMALS: Mapping[str, Range] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
}
_INTEGERS: Mapping[str, Range] = {
    "n": (1, 128),
    "top_logprobs": (0, 20),
    "max_tokens": (1, None),
    "max_completion_tokens": (1, None),
}
_MAX_STOPS = 4
_REASONING_MODELS = re.compile(r"(?:o\d|gpt-5)(?!.*chat)")
_CONTENT_ALTERNATIVES = ("tool_calls", "function_call", "refusal", "audio")


@dataclass(frozen=True, slots=True)
class ChatRules(OpenAIRules):
    """Rules of Chat Completions.

    Args:
        max_call_id_length: Compatible vendors accept longer ids than OpenAI.
    """

    name: ClassVar[str] = "openai-chat"
    max_call_id_length: int = 40

    @override
    def check(
        self, body: Mapping[str, Any], state: VendorState, *, model: str = "", count_tokens: bool = False
    ) -> Iterator[Violation]:
        if not as_text(body.get("model")) and not model:
            yield Violation("you must provide a model parameter")
        for key in body:
            if key not in KEYS and key not in state.extra_keys:
                yield Violation(f"Unrecognized request argument supplied: {key}")
        yield from self._check_messages(body.get("messages"))
        yield from _check_settings(body)
        yield from _check_tools(body)
        yield from _check_response_format(body)

    def _check_messages(self, messages: Any) -> Iterator[Violation]:
        if messages is None:
            yield report_missing("messages")
        elif not isinstance(messages, list):
            yield report_type("messages", "an array of objects", messages)
        elif not messages:
            yield report_empty_array("messages")
        else:
            calls = _CallTracker(self.max_call_id_length)
            for index, message in enumerate(messages):
                if not isinstance(message, dict):
                    yield report_type(f"messages[{index}]", "an object", message)
                    continue
                if message.get("role") not in _ROLES:
                    yield report_value(f"messages[{index}].role", message.get("role"), _ROLES)
                yield from calls.add(index, message)
                yield from _check_content(index, message)
            yield from calls.check_pending(len(messages))


@dataclass(slots=True)
class _CallTracker:
    """Checks calls and results, message by message."""

    max_id_length: int
    pending: dict[str, int] = field(default_factory=dict)
    """Indexes of the messages of calls without a result."""
    answered: dict[str, int] = field(default_factory=dict)
    """Indexes of the results since the last call."""
    seen: set[str] = field(default_factory=set)

    def add(self, index: int, message: Mapping[str, Any]) -> Iterator[Violation]:
        if message.get("role") == "tool":
            yield from self._check_result(index, message)
            return
        yield from self.check_pending(index)
        self.answered = {}
        calls = message.get("tool_calls")
        if calls is None:
            return
        if message.get("role") != "assistant":
            reason = f"'tool_calls' is not allowed in messages with role '{message.get('role')}'."
            yield Violation(f"Invalid parameter: {reason}", f"messages.[{index}].tool_calls")
        if calls == []:
            yield report_empty_array(f"messages[{index}].tool_calls")
        for position, call in enumerate_objects(calls):
            yield from self._check_call(call, index, f"messages[{index}].tool_calls[{position}]")

    def _check_call(self, call: Mapping[str, Any], index: int, path: str) -> Iterator[Violation]:
        id = call.get("id")
        kind = "custom" if call.get("type") == "custom" else "function"
        function = as_object(call.get(kind))
        if id is None:
            yield report_missing(f"{path}.id")
        elif not isinstance(id, str):
            yield report_type(f"{path}.id", "a string", id)
        else:
            yield from check_length(f"{path}.id", id, self.max_id_length)
            if id in self.seen:
                yield Violation(f"Invalid parameter: Duplicate value for 'id' of '{id}' in 'tool_calls'.", f"{path}.id")
            self.seen.add(id)
            self.pending[id] = index
        yield from check_name(f"{path}.{kind}.name", function.get("name"))
        text = "input" if kind == "custom" else "arguments"
        if function.get(text) is None:
            yield report_missing(f"{path}.{kind}.{text}")
        elif not isinstance(function[text], str):
            yield report_type(f"{path}.{kind}.{text}", "a string", function[text])

    def _check_result(self, index: int, message: Mapping[str, Any]) -> Iterator[Violation]:
        id = message.get("tool_call_id")
        if not isinstance(id, str):
            reason = "Missing parameter 'tool_call_id': messages with role 'tool' must have a 'tool_call_id'."
            yield Violation(reason, f"messages.[{index}].tool_call_id")
        elif id in self.answered:
            places = f"messages[{self.answered[id]}] and messages[{index}]"
            reason = f"Duplicate value for 'tool_call_id' of '{id}', in {places}."
            yield Violation(f"Invalid parameter: {reason}", f"messages.[{index}].tool_call_id")
        elif id not in self.pending:
            reason = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
            yield Violation(f"Invalid parameter: {reason}", f"messages.[{index}].role")
        else:
            del self.pending[id]
            self.answered[id] = index

    def check_pending(self, index: int) -> Iterator[Violation]:
        if not self.pending:
            return
        reason = (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            "'tool_call_id'. The following tool_call_ids did not have response messages: "
        )
        yield Violation(reason + ", ".join(self.pending), f"messages.[{index}].role")
        self.pending = {}


def _check_content(index: int, message: Mapping[str, Any]) -> Iterator[Violation]:
    content, role = message.get("content"), message.get("role")
    path = f"messages[{index}].content"
    has_alternative = any(message.get(key) for key in _CONTENT_ALTERNATIVES)
    if content is None:
        if not has_alternative:
            reason = "Invalid value for 'content': expected a string, got null."
            yield Violation(reason, f"messages.[{index}].content")
        return
    if not isinstance(content, str | list):
        yield report_type(path, "one of a string or array of objects", content)
        return
    if role == "tool":
        # Results may be empty.
        if any(block.get("type") not in ("text", "image_url") for _, block in enumerate_objects(content)):
            reason = "Content blocks are expected to be either text or image_url type."
            yield Violation(f"Invalid 'messages[{index}]'. {reason}", f"messages[{index}]", "invalid_value")
        return
    if content == "" and not has_alternative:
        yield report_empty_string(path)
    if content == [] and not has_alternative:
        yield report_empty_array(path)
    for position, block in enumerate_objects(content):
        if "type" not in block:
            yield report_missing(f"{path}[{position}].type")
        if block.get("type") == "text" and block.get("text") == "":
            yield report_empty_string(f"{path}[{position}].text")


def _check_settings(body: Mapping[str, Any]) -> Iterator[Violation]:
    model = as_text(body.get("model"))
    yield from check_ranges(body, _DECIMALS, _INTEGERS)
    if body.get("max_tokens") is not None:
        if body.get("max_completion_tokens") is not None:
            reason = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
            yield Violation(reason, "max_tokens", "invalid_parameter_combination")
        if _REASONING_MODELS.match(model):
            reason = "Unsupported parameter: 'max_tokens' is not supported with this model."
            yield Violation(f"{reason} Use 'max_completion_tokens' instead.", "max_tokens", "unsupported_parameter")
    for models, settings in OPENAI_REFUSALS:
        for key in sorted(settings):
            if body.get(key) not in (None, []) and re.match(models, model):
                reason = f"Unsupported parameter: '{key}' is not supported with this model."
                yield Violation(reason, key, "unsupported_parameter")
    is_reasoning = body.get("reasoning_effort") != "none"
    for key in ("temperature", "top_p"):
        if body.get(key) not in (None, 1) and is_reasoning and facts("openai", model).sampling is False:
            reason = f"Unsupported value: '{key}' does not support {body[key]} with this model."
            yield Violation(f"{reason} Only the default (1) value is supported.", key, "unsupported_value")
    if isinstance(body.get("stop"), list):
        yield from check_length("stop", body["stop"], _MAX_STOPS)
    if body.get("stream_options") is not None and not body.get("stream"):
        reason = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        yield Violation(reason, "stream_options")
    if body.get("top_logprobs") is not None and not body.get("logprobs"):
        reason = "Invalid value for 'top_logprobs': 'top_logprobs' is only allowed when 'logprobs' is set to true."
        yield Violation(reason, "top_logprobs")


def _check_tools(body: Mapping[str, Any]) -> Iterator[Violation]:
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools == []:
        yield report_empty_array("tools")
    names: set[str] = set()
    for index, tool in enumerate_objects(tools):
        kind = tool.get("type")
        if kind is None:
            yield report_missing(f"tools[{index}].type")
        elif kind == "function":
            function = tool.get("function")
            if isinstance(function, dict):
                yield from check_function(function, f"tools[{index}].function")
            else:
                yield report_missing(f"tools[{index}].function")
        if isinstance(kind, str):
            names.add(as_text(as_object(tool.get(kind)).get("name")))
    for key in ("tool_choice", "parallel_tool_calls"):
        if not tools and body.get(key) is not None and not body.get("functions"):
            yield Violation(f"Invalid value for '{key}': '{key}' is only allowed when 'tools' are specified.", key)
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            yield report_value("tool_choice", choice, ("none", "auto", "required"))
    elif isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        name = as_object(choice.get(choice["type"])).get("name")
        if name is None:
            yield report_missing(f"tool_choice.{choice['type']}.name")
        elif not is_text_in(name, names):
            reason = f"Invalid value for 'tool_choice': no {choice['type']} named '{name}' was specified in 'tools'."
            yield Violation(reason, f"tool_choice.{choice['type']}.name")


def _check_response_format(body: Mapping[str, Any]) -> Iterator[Violation]:
    response_format = as_object(body.get("response_format"))
    match response_format.get("type"):
        case "json_schema":
            schema = response_format.get("json_schema")
            if isinstance(schema, dict):
                yield from check_output_format(schema, "response_format", "response_format.json_schema")
            else:
                yield report_missing("response_format.json_schema")
        case "json_object":
            if not contains_json(body.get("messages")):
                reason = "'messages' must contain the word 'json' in some form"
                yield Violation(f"{reason}, to use 'response_format' of type 'json_object'.", "messages")
        case "text" | None:
            pass
        case other:
            yield report_value("response_format.type", other, ("json_object", "json_schema", "text"))
