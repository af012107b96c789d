"""Rules that both of OpenAI's APIs share: types, ranges, names, lengths and schemas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from . import (
    Violation,
    as_list,
    as_number,
    as_object,
    as_text,
    find_target,
    is_text_in,
    join_quoted,
    walk_schema,
)

_NOT_PERMITTED = frozenset(
    (
        "allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "minLength",
        "maxLength", "patternProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames", "minProperties",
        "maxProperties", "prefixItems", "contains", "minContains", "maxContains", "uniqueItems",
    )
)  # fmt: skip
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))
_MAX_PROPERTIES = 5_000
_MAX_ENUM_VALUES = 1_000
_TYPE_KEYWORDS = frozenset(("type", "anyOf", "$ref", "enum", "const"))
"""Every node of a strict schema needs one of these keywords."""


def _walk(schema: Any) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    return walk_schema(schema, ("items",))  # the API does not check additionalProperties


def _check_root(schema: Any) -> Iterator[str]:
    if not isinstance(schema, dict):
        yield "schema must be a JSON object."
    elif schema.get("type") != "object":
        yield f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{schema.get('type')}\"'."


def _check_parameters(schema: Any) -> Iterator[str]:
    """Yield the violations of a function's parameters, whether strict or not."""
    yield from _check_root(schema)
    for context, node in _walk(schema):
        if node.get("type") == "array" and not {"items", "prefixItems"} & node.keys():
            yield f"In context={context!r}, array schema missing items."


def _check_strict_schema(schema: Any) -> Iterator[str]:
    yield from _check_root(schema)
    if "anyOf" in as_object(schema):
        yield "In context=(), 'anyOf' is not permitted at the root of the schema."
    properties = enum_values = 0
    for context, node in _walk(schema):
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


def encode_error(violation: Violation) -> dict[str, Any]:
    error = {"message": violation.message, "type": "invalid_request_error"}
    return {"error": {**error, "param": violation.field, "code": violation.code}}


def invalid_json() -> Violation:
    return Violation(
        "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP library "
        "correctly. The OpenAI API expects a JSON payload, but what was sent was not valid JSON.)"
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


def contains_json(value: Any) -> bool:
    """Whether a conversation contains the word "json", which JSON mode requires."""
    if isinstance(value, str):
        return "json" in value.lower()
    if isinstance(value, list):
        return any(map(contains_json, value))
    return any(contains_json(as_object(value).get(key)) for key in ("content", "text", "output")) if value else False
