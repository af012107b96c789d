"""Rules of generateContent: settings, tools, the conversation, and both kinds of schemas.

`parameters` and `responseSchema` are a message type with its own fields, not JSON schema. `parametersJsonSchema` and
`responseJsonSchema` are JSON schema, of which the API ignores unknown keywords.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

from typing_extensions import override

from ...providers.gemini.fields import MAX_STOPS
from ...providers.gemini.models import SKIP_SIGNATURE, ModelFeatures, features_of
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
)

KEYS = frozenset(
    (
        "cachedContent", "contents", "generationConfig", "labels", "model", "modelArmorConfig", "safetySettings",
        "serviceTier", "store", "systemInstruction", "toolConfig", "tools",
    )
)  # fmt: skip
CONFIG_KEYS = frozenset(
    (
        "audioTimestamp", "audioTranscriptionConfig", "candidateCount", "enableAffectiveDialog",
        "enableEnhancedCivicAnswers", "frequencyPenalty", "imageConfig", "logprobs", "maxOutputTokens",
        "mediaResolution", "modelSelectionConfig", "presencePenalty", "responseFormat", "responseJsonSchema",
        "responseLogprobs", "responseMimeType", "responseModalities", "responseSchema", "routingConfig", "seed",
        "speechConfig", "stopSequences", "temperature", "thinkingConfig", "topK", "topP", "translationConfig",
    )
)  # fmt: skip
_OPAQUE_KEYS = frozenset(
    ("args", "response", "parameters", "parametersJsonSchema", "responseSchema", "responseJsonSchema")
)
"""Keys whose values belong to the caller, not to the API."""
_RANGES = {"temperature": ("temperature", 2), "topP": ("top_p", 1)}
_PROTO = "type.googleapis.com/google.ai.generativelanguage.v1beta"
_MODES = ("MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED")


@dataclass(frozen=True, slots=True)
class GeminiRules(Rules):
    """Rules of generateContent."""

    name: ClassVar[str] = "gemini"

    @override
    def check(
        self, body: Mapping[str, Any], state: VendorState, *, model: str = "", count_tokens: bool = False
    ) -> Iterator[Violation]:
        if count_tokens and isinstance(inner := body.get("generateContentRequest"), dict):
            body = inner
        for key in body:
            if _camel_key(key) not in KEYS and key not in state.extra_keys:
                yield _report_unknown_name(key, "")
        plain: dict[str, Any] = normalize_keys(body)
        config = as_object(plain.get("generationConfig"))
        for key in config:
            if key not in CONFIG_KEYS and key not in state.extra_keys:
                yield _report_unknown_name(key, "generation_config")
        features = features_of(model)
        yield from _check_contents(plain.get("contents"), state, model)
        if isinstance(system := plain.get("systemInstruction"), dict):
            yield from _check_parts(system.get("parts"), "system_instruction", state, allow_empty_text=True)
        yield from _check_tools(plain, features)
        yield from _check_settings(config)
        yield from _check_thinking(as_object(config.get("thinkingConfig")), features)
        yield from _check_output(plain, config, features)

    @override
    def encode_error(self, violation: Violation) -> dict[str, Any]:
        error: dict[str, Any] = {"code": 400, "message": violation.message, "status": "INVALID_ARGUMENT"}
        if violation.field is not None:
            details = {"field": violation.field, "description": violation.message}
            error["details"] = [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [details]}]
        return {"error": error}

    @override
    def invalid_json(self) -> Violation:
        return Violation("Invalid JSON payload received. Unexpected token.")

    @override
    def find_issued(self, response: Iterable[Any]) -> Iterator[IssuedValue]:
        for item in walk_objects([*response]):
            if signature := as_text(item.get("thoughtSignature")):
                yield IssuedValue(signature)


def normalize_keys(value: Any) -> Any:
    """Convert keys to camel case, except those that belong to the caller. The API also accepts snake case."""
    if isinstance(value, list):
        return [normalize_keys(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    renamed = {_camel_key(key): inner for key, inner in value.items()}
    return {key: inner if key in _OPAQUE_KEYS else normalize_keys(inner) for key, inner in renamed.items()}


def _camel_key(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join(word.capitalize() for word in rest) if head else key


def _report_unknown_name(name: str, path: str) -> Violation:
    place = f" at '{path}'" if path else ""
    reason = f'Invalid JSON payload received. Unknown name "{name}"{place}: Cannot find field.'
    return Violation(reason, path or None)


def _check_tools(body: Mapping[str, Any], features: ModelFeatures) -> Iterator[Violation]:
    names: set[str] = set()
    server_tools: list[str] = []
    for index, tool in enumerate_objects(body.get("tools")):
        server_tools += [key for key in tool if key != "functionDeclarations"]
        for position, function in enumerate_objects(tool.get("functionDeclarations")):
            path = f"tools[{index}].function_declarations[{position}]"
            yield from _check_name(function.get("name"), f"{path}.name")
            name = as_text(function.get("name"))
            if name in names:
                yield Violation(f"Duplicate function declaration found: {name}")
            names.add(name)
            if "parameters" in function and "parametersJsonSchema" in function:
                yield _report_both(path, "parameters", "parameters_json_schema")
            if isinstance(schema := function.get("parameters"), dict):
                kind = schema.get("type")
                if isinstance(kind, str) and kind.upper() != "OBJECT":
                    yield Violation(f"{REQUEST}.{path}.parameters.type: only allowed to be OBJECT type\n")
                yield from _check_schema(schema, f"{path}.parameters", f"GenerateContentRequest.{path}.parameters")
            if "parametersJsonSchema" in function:
                schema_path = f"GenerateContentRequest.{path}.parameters_json_schema"
                yield from _check_json_schema(function["parametersJsonSchema"], schema_path)
    if names and server_tools and not features.mixes_tools:
        yield Violation("Tool use with function calling is unsupported")
    calling = as_object(as_object(body.get("toolConfig")).get("functionCallingConfig"))
    if not calling:
        return
    path = "tool_config.function_calling_config"
    if not names:
        yield Violation("Function calling config is set without function_declarations.")
    if as_text(calling.get("mode") or "AUTO").upper() not in _MODES:
        mode_type = f"{_PROTO}.FunctionCallingConfig.Mode"
        yield Violation(f"Invalid value at '{path}.mode' ({mode_type}), \"{calling['mode']}\"", f"{path}.mode")
    allowed = calling.get("allowedFunctionNames")
    if allowed and as_text(calling.get("mode")).upper() not in ("ANY", "VALIDATED"):
        reason = "can only be set when function calling mode is ANY or VALIDATED"
        yield Violation(f"{REQUEST}.{path}.allowed_function_names: {reason}\n")
    for index, name in enumerate(as_list(allowed)):
        if names and not is_text_in(name, names):
            reason = f"'{name}' is not the name of a declared function"
            yield Violation(f"{REQUEST}.{path}.allowed_function_names[{index}]: {reason}\n")


def _report_both(path: str, one: str, other: str) -> Violation:
    return Violation(f"{REQUEST}.{path}: only one of {one} and {other} may be set\n")


def _check_settings(config: Mapping[str, Any]) -> Iterator[Violation]:
    path = f"{REQUEST}.generation_config"
    for key, (name, most) in _RANGES.items():
        value = as_number(config.get(key))
        if config.get(key) is not None and value is None:
            field = f"generation_config.{name}"
            yield Violation(f"Invalid value at '{field}' (TYPE_FLOAT), \"{config[key]}\"", field)
        elif value is not None and not 0 <= value <= most:
            yield Violation(f"{path}.{name}: {name} must be in the range [0.0, {most:.1f}].\n")
    for key, name in (("maxOutputTokens", "max_output_tokens"), ("candidateCount", "candidate_count")):
        if (value := as_number(config.get(key))) is not None and value < 1:
            yield Violation(f"{path}.{name}: {name} must be positive.\n")
    stops = as_list(config.get("stopSequences"))
    if len(stops) > MAX_STOPS:
        yield Violation(f"{path}.stop_sequences: the maximum number of stop sequences is {MAX_STOPS}.\n")
    for index, stop in enumerate(stops):
        if not stop:
            yield Violation(f"{path}.stop_sequences[{index}]: stop sequence must not be empty.\n")


def _check_thinking(thinking: Mapping[str, Any], features: ModelFeatures) -> Iterator[Violation]:
    budget, level = as_number(thinking.get("thinkingBudget")), thinking.get("thinkingLevel")
    if budget is not None and level is not None:
        yield Violation("You can only set only one of thinking budget and thinking level.")
    if level is not None and features.levels and as_text(level).upper() not in features.levels:
        reason = f"Thinking level {as_text(level).upper()} is not supported for this model."
        yield Violation(f"{reason} Please retry with other thinking level.")
    elif level is not None and not features.levels:
        yield Violation("Thinking level is not supported for this model.")
    if budget is None or features.budget is None or budget == -1:
        return
    least, most = features.budget
    if budget == 0:
        if not features.can_stop_thinking:
            yield Violation("Budget 0 is invalid. This model only works in thinking mode.")
    elif not least <= budget <= most:
        reason = f"The thinking budget {budget:g} is invalid. Please choose a value between {least} and {most}."
        yield Violation(reason)


def _check_output(body: Mapping[str, Any], config: Mapping[str, Any], features: ModelFeatures) -> Iterator[Violation]:
    path = "generation_config"
    media_type = config.get("responseMimeType")
    schemas = [key for key in ("responseSchema", "responseJsonSchema") if config.get(key) is not None]
    if len(schemas) == 2:
        yield _report_both(path, "response_schema", "response_json_schema")
    if schemas and media_type not in ("application/json", "text/x.enum"):
        reason = "only allowed when response_mime_type is application/json"
        yield Violation(f"{REQUEST}.{path}.response_schema: {reason}\n")
    if "responseSchema" in schemas:
        schema_path = f"{path}.response_schema"
        yield from _check_schema(config["responseSchema"], schema_path, f"GenerateContentRequest.{schema_path}")
    if "responseJsonSchema" in schemas:
        yield from _check_json_schema(
            config["responseJsonSchema"], f"GenerateContentRequest.{path}.response_json_schema"
        )
    functions = any(tool.get("functionDeclarations") for _, tool in enumerate_objects(body.get("tools")))
    if media_type == "application/json" and functions and not features.schema_with_tools:
        yield Violation("Function calling with a response mime type: 'application/json' is unsupported")


# The conversation.

REQUEST = "* GenerateContentRequest"
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")
_PART_DATA = frozenset(
    (
        "codeExecutionResult", "executableCode", "fileData", "functionCall", "functionResponse", "inlineData", "text",
        "toolCall", "toolResponse",
    )
)  # fmt: skip
_PART_METADATA = frozenset(
    (
        "audioTranscription", "mediaProcessing", "mediaResolution", "partMetadata", "speechMetadata", "thought",
        "thoughtSignature", "videoMetadata",
    )
)  # fmt: skip
_PLACEHOLDER_SIGNATURES = (SKIP_SIGNATURE, "context_engineering_is_the_way_to_go")
"""Documented replacements for a signature."""


def _check_contents(contents: Any, state: VendorState, model: str) -> Iterator[Violation]:
    """Yield the violations of the conversation, whose keys are in camel case."""
    if not contents:
        yield Violation(f"{REQUEST}.contents: contents is not specified\n")
        return
    if isinstance(contents, dict):
        contents = [contents]
    if not isinstance(contents, list):
        yield Violation(f"Invalid value at 'contents' ({_PROTO}.Content)")
        return
    turns = enumerate_objects(contents)
    for index, content in turns:
        if content.get("role") not in (None, "", "user", "model", "function"):
            yield Violation("Please use a valid role: user, model.")
        yield from _check_parts(content.get("parts"), f"contents[{index}]", state)
    yield from _check_calls([content for _, content in turns])
    if features_of(model).signed_calls:
        yield from _check_signatures(turns)


def _check_parts(parts: Any, path: str, state: VendorState, *, allow_empty_text: bool = False) -> Iterator[Violation]:
    if not parts:
        yield Violation(f"{REQUEST}.{path}.parts: contents.parts must not be empty.\n")
    found = enumerate_objects([parts] if isinstance(parts, dict) else parts)
    for index, part in found:
        yield from _check_part(part, f"{path}.parts[{index}]", state)
    # The API accepts empty text beside other parts.
    is_empty = found and all(part.get("text") == "" and "thoughtSignature" not in part for _, part in found)
    if is_empty and not allow_empty_text:
        reason = "Unable to submit request because it has an empty text parameter."
        yield Violation(f"{reason} Add a value to the parameter and try again.", f"{path}.parts")


def _check_part(part: Mapping[str, Any], path: str, state: VendorState) -> Iterator[Violation]:
    for key in part:
        if key not in _PART_DATA | _PART_METADATA:
            yield _report_unknown_name(key, path)
    signature = part.get("thoughtSignature")
    data = [key for key in part if key in _PART_DATA and part[key] is not None]
    if not data and signature is None:
        yield Violation(f"{REQUEST}.{path}.data: required oneof field 'data' must have one initialized field\n")
    elif len(data) > 1:
        reason = f"Invalid value at '{path}' (oneof), oneof field 'data' is already set. Cannot set '{data[1]}'"
        yield Violation(reason, path)
    if signature is not None and not (
        isinstance(signature, str) and (signature in _PLACEHOLDER_SIGNATURES or state.has_issued(signature))
    ):
        yield Violation("Corrupted thought signature.", f"{path}.thought_signature")
    if isinstance(call := part.get("functionCall"), dict):
        yield from _check_name(call.get("name"), f"{path}.function_call.name")
        if not isinstance(call.get("args", {}), dict):
            yield Violation(
                f"Invalid value at '{path}.function_call.args' (type.googleapis.com/google.protobuf.Struct)"
            )
    if isinstance(response := part.get("functionResponse"), dict):
        yield from _check_name(response.get("name"), f"{path}.function_response.name")
        if not isinstance(response.get("response"), dict):
            field = f"{path}.function_response.response"
            yield Violation(f"Invalid value at '{field}' (type.googleapis.com/google.protobuf.Struct)", field)


def _check_name(name: Any, path: str) -> Iterator[Violation]:
    if not as_text(name):
        yield Violation(f"{REQUEST}.{path}: Name cannot be empty.\n")
    elif not _NAME.fullmatch(name):
        yield Violation(
            f"{REQUEST}.{path}: Invalid function name. Must start with a letter or an underscore. Must be alphanumeric "
            "(a-z, A-Z, 0-9), underscores (_), dots (.), colons (:), or dashes (-), with a maximum length of 64.\n"
        )


def _of_kind(content: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    return [as_object(part[kind]) for _, part in enumerate_objects(content.get("parts")) if kind in part]


def _is_model(content: Mapping[str, Any]) -> bool:
    return content.get("role") == "model"


def _check_calls(contents: list[dict[str, Any]]) -> Iterator[Violation]:
    seen: set[str] = set()
    pending: list[dict[str, Any]] = []
    turns = groupby(contents, _is_model)  # consecutive contents of one role are one turn
    for position, (is_model, group) in enumerate(turns):
        turn = list(group)
        calls = [call for content in turn for call in _of_kind(content, "functionCall")]
        responses = [response for content in turn for response in _of_kind(content, "functionResponse")]
        if calls and not is_model:
            yield Violation("Please ensure that function call parts are only in turns with the model role.")
        if calls and position == 0:
            reason = "function call turn comes immediately after a user turn or after a function response turn."
            yield Violation(f"Please ensure that {reason}")
        if responses and (is_model or not pending):
            yield Violation("Please ensure that function response turn comes immediately after a function call turn.")
        elif len(responses) != len(pending):
            reason = "the number of function response parts is equal to the number of function call parts"
            yield Violation(f"Please ensure that {reason} of the function call turn.")
        else:
            yield from _check_responses(pending, responses)
        for id in filter(None, (as_text(call.get("id")) for call in calls)):
            if id in seen:
                yield Violation(f"Please ensure that function call ids are unique: {id} occurs more than once.")
            seen.add(id)
        pending = calls if is_model else []
    if pending:
        reason = "the number of function response parts is equal to the number of function call parts"
        yield Violation(f"Please ensure that {reason} of the function call turn.")


def _check_responses(calls: list[dict[str, Any]], responses: list[dict[str, Any]]) -> Iterator[Violation]:
    names = [call.get("name") for call in calls]
    ids = [call.get("id") for call in calls if call.get("id")]
    for response in responses:
        if response.get("name") not in names or (ids and response.get("id") and response["id"] not in ids):
            name = response.get("id") or response.get("name")
            reason = "each function response part corresponds to a function call part of the function call turn"
            yield Violation(f"Please ensure that {reason}: {name} does not.")


def _check_signatures(turns: list[tuple[int, dict[str, Any]]]) -> Iterator[Violation]:
    """Check the signature of the first call of each model turn after the last user message."""
    steps: list[tuple[int, dict[str, Any]]] = []
    for index, content in reversed(turns):
        if _is_model(content):
            steps.append((index, content))
        elif not _of_kind(content, "functionResponse"):
            break
    for index, content in reversed(steps):
        for position, part in enumerate_objects(content.get("parts")):
            if "functionCall" in part:
                if part.get("thoughtSignature") is None:
                    name = as_text(as_object(part["functionCall"]).get("name"))
                    yield Violation(
                        "Function call is missing a thought_signature in functionCall parts. This is required for "
                        "tools to work correctly, and missing thought_signature may lead to degraded model "
                        f"performance. Additional data, function call `default_api:{name}` , position {index + 1}. "
                        "Please refer to https://ai.google.dev/gemini-api/docs/thought-signatures for more details.",
                        f"contents[{index}].parts[{position}]",
                    )
                break


# Schemas.

SCHEMA_KEYS = frozenset(
    (
        "anyOf", "default", "description", "enum", "example", "format", "items", "maxItems", "maxLength",
        "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "nullable", "pattern",
        "properties", "propertyOrdering", "required", "title", "type",
    )
)  # fmt: skip
_TYPES = frozenset(("STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL", "TYPE_UNSPECIFIED"))
_TEXT_FORMATS = ("enum", "date-time")


def _check_schema(schema: Any, path: str, proto_path: str) -> Iterator[Violation]:
    """Yield the violations of a schema in the API's own format.

    Args:
        path: Its path in errors of the JSON parser, with indexes of properties.
        proto_path: Its path in errors of the API, with names of properties.
    """
    if not isinstance(schema, dict):
        yield Violation(f"Invalid value at '{path}' ({_PROTO}.Schema)", path)
        return
    fields = {_camel_key(key): value for key, value in schema.items()}
    for key in schema:
        if _camel_key(key) not in SCHEMA_KEYS:
            yield _report_unknown_name(key, path)
    kind = fields.get("type")
    if isinstance(kind, list):
        reason = f"Proto field is not repeating, cannot start list. At '{path}.type'."
        yield Violation(f"Invalid JSON payload received. {reason}", f"{path}.type")
    elif kind is not None and as_text(kind).upper() not in _TYPES:
        reason = f"Invalid value at '{path}.type' ({_PROTO}.Type)"
        yield Violation(f'{reason}, "{kind}"', f"{path}.type")
    yield from _check_keywords(fields, as_text(kind).upper(), path, proto_path)
    for index, (name, value) in enumerate(as_object(fields.get("properties")).items()):
        yield from _check_schema(value, f"{path}.properties[{index}].value", f"{proto_path}.properties[{name}]")
    if "items" in fields:
        yield from _check_schema(fields["items"], f"{path}.items", f"{proto_path}.items")
    for index, value in enumerate(as_list(fields.get("anyOf"))):
        yield from _check_schema(value, f"{path}.any_of[{index}]", f"{proto_path}.any_of[{index}]")


def _check_keywords(fields: dict[str, Any], kind: str, path: str, proto_path: str) -> Iterator[Violation]:
    properties = as_object(fields.get("properties"))
    if kind == "ARRAY" and "items" not in fields:
        yield Violation(f"* {proto_path}.items: missing field.\n")
    values = as_list(fields.get("enum"))
    for index, value in enumerate(values):
        if not isinstance(value, str):
            reason = f"Invalid value at '{path}.enum[{index}]' (TYPE_STRING), {value}"
            yield Violation(reason, f"{path}.enum[{index}]")
        elif not value:
            yield Violation(f"* {proto_path}.enum[{index}]: cannot be empty\n")
    if values and kind not in ("STRING", ""):
        yield Violation(f"* {proto_path}.enum: only allowed for STRING type\n")
    if kind == "STRING" and fields.get("format") not in (None, *_TEXT_FORMATS):
        yield Violation(f"* {proto_path}.format: only 'enum' and 'date-time' are supported for STRING type\n")
    for index, name in enumerate(as_list(fields.get("required"))):
        if not is_text_in(name, properties):
            yield Violation(f"* {proto_path}.required[{index}]: property is not defined\n")


def _check_json_schema(schema: Any, path: str) -> Iterator[Violation]:
    """Yield the violations of a JSON schema, which are all about references."""
    if not isinstance(schema, dict):
        yield Violation(f"* {path}: must be a JSON object\n")
        return
    for node in walk_objects(schema):
        reference = node.get("$ref")
        if not isinstance(reference, str):
            continue
        if any(not key.startswith("$") for key in node):
            yield Violation(f"* {path}: no other fields may be set beside $ref '{reference}'\n")
        if find_target(reference, schema) is None:
            yield Violation(f"* {path}: reference '{reference}' could not be resolved\n")
