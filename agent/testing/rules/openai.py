"""How OpenAI's two APIs complain, and what both of them check: ranges, names, lengths, schemas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .base import Violation, a_number, a_text, an_object, is_among, listed

_NOT_PERMITTED = frozenset(
    (
        "allOf",
        "oneOf",
        "not",
        "if",
        "then",
        "else",
        "dependentRequired",
        "dependentSchemas",
        "minLength",
        "maxLength",
        "patternProperties",
        "unevaluatedProperties",
        "unevaluatedItems",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "prefixItems",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
    )
)
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))
_MOST_PROPERTIES = 5_000
_MOST_LISTED = 1_000
_TELLING = frozenset(("type", "anyOf", "$ref", "enum", "const"))
"""Keywords of which a strict schema needs one everywhere."""


def broken_parameters(schema: Any) -> Iterator[str]:
    """What is wrong with the parameters of a function, strict or not."""
    if not isinstance(schema, dict):
        yield "schema must be a JSON object."
        return
    kind = schema.get("type")
    if kind != "object":
        yield f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
    for context, node in _nodes(schema, ()):
        if node.get("type") == "array" and not {"items", "prefixItems"} & node.keys():
            yield f"In context={context!r}, array schema missing items."


def broken_strict(schema: Any) -> Iterator[str]:
    """What the strict mode does not take."""
    if not isinstance(schema, dict):
        yield "schema must be a JSON object."
        return
    if schema.get("type") != "object":
        yield f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{schema.get('type')}\"'."
    if "anyOf" in schema:
        yield "In context=(), 'anyOf' is not permitted at the root of the schema."
    properties = listed = 0
    for context, node in _nodes(schema, ()):
        yield from (f"In context={context!r}, {problem}" for problem in _broken_node(node, schema))
        properties += len(node["properties"]) if isinstance(node.get("properties"), dict) else 0
        listed += len(node["enum"]) if isinstance(node.get("enum"), list) else 0
    if properties > _MOST_PROPERTIES:
        yield f"schema has {properties} properties, which exceeds the limit of {_MOST_PROPERTIES}."
    if listed > _MOST_LISTED:
        yield f"schema has {listed} enum values, which exceeds the limit of {_MOST_LISTED}."


def _broken_node(node: dict[str, Any], root: Mapping[str, Any]) -> Iterator[str]:
    for keyword in node:
        if keyword in _NOT_PERMITTED:
            yield f"'{keyword}' is not permitted."
    if not _TELLING & node.keys():
        yield "schema must have a 'type' key."
    if (reference := node.get("$ref")) is not None:
        beside = sorted(node.keys() - {"$ref"} - ({"$defs", "definitions"} if node is root else set()))
        if beside:
            yield f"$ref cannot have keywords {{{', '.join(map(repr, beside))}}}."
        if not _leads_somewhere(a_text(reference), root):
            yield f"reference to component '{reference}' which was not found in the schema."
    kinds = node.get("type")
    if kinds == "object" or (isinstance(kinds, list) and "object" in kinds) or "properties" in node:
        if node.get("additionalProperties") is not False:
            yield "'additionalProperties' is required to be supplied and to be false."
        properties = node.get("properties") if isinstance(node.get("properties"), dict) else {}
        required = node.get("required") if isinstance(node.get("required"), list) else []
        missing = next((name for name in properties or () if name not in (required or ())), None)
        if missing is not None:
            said = "'required' is required to be supplied and to be an array including every key in properties."
            yield f"{said} Missing '{missing}'."
        extra = next((name for name in required or () if not is_among(name, properties or {})), None)
        if extra is not None:
            yield f"'required' is required to be an array of keys in properties. Extra required key '{extra}' supplied."
    if kinds == "array" and "items" not in node:
        yield "array schema missing items."
    if "format" in node and not is_among(node["format"], _FORMATS) and kinds == "string":
        yield f"'{node['format']}' is not a valid format."


def _nodes(schema: Any, context: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every schema within a schema, and the way to it."""
    if not isinstance(schema, dict):
        return
    yield context, schema
    for keyword in ("properties", "$defs", "definitions"):
        inner = schema.get(keyword)
        for name, value in inner.items() if isinstance(inner, dict) else ():
            yield from _nodes(value, (*context, keyword, str(name)))
    yield from _nodes(schema.get("items"), (*context, "items"))
    for keyword in ("anyOf", "allOf", "oneOf", "prefixItems"):
        for n, value in enumerate(schema[keyword]) if isinstance(schema.get(keyword), list) else ():
            yield from _nodes(value, (*context, keyword, str(n)))


def _leads_somewhere(reference: str, root: Mapping[str, Any]) -> bool:
    if reference == "#":
        return True
    found: Any = root
    for step in reference.removeprefix("#/").split("/"):
        if not isinstance(found, Mapping) or step not in found:
            return False
        found = found[step]
    return reference.startswith("#/")


LONGEST_NAME = 64
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_KINDS = {
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    str: "a string",
    list: "an array",
    dict: "an object",
}

Range = tuple[float | None, float | None]


def complaint(violation: Violation) -> dict[str, Any]:
    said = {"message": violation.message, "type": "invalid_request_error"}
    return {"error": {**said, "param": violation.at, "code": violation.code}}


def unreadable() -> Violation:
    return Violation(
        "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP library "
        "correctly. The OpenAI API expects a JSON payload, but what was sent was not valid JSON.)"
    )


def missing(at: str) -> Violation:
    return Violation(f"Missing required parameter: '{at}'.", at, "missing_required_parameter")


def wrong_type(at: str, wanted: str, value: Any) -> Violation:
    got = _KINDS.get(type(value), "null")
    return Violation(f"Invalid type for '{at}': expected {wanted}, but got {got} instead.", at, "invalid_type")


def wrong_value(at: str, value: Any, allowed: Iterable[str]) -> Violation:
    said = f"Invalid value: '{value}'. Supported values are: {listed(allowed)}."
    return Violation(said, at, "invalid_value")


def empty_array(at: str) -> Violation:
    said = "empty array. Expected an array with minimum length 1, but got an empty array instead."
    return Violation(f"Invalid '{at}': {said}", at, "empty_array")


def empty_string(at: str) -> Violation:
    said = "empty string. Expected a string with minimum length 1, but got an empty string instead."
    return Violation(f"Invalid '{at}': {said}", at, "empty_string")


def too_long(at: str, value: str | list[Any], most: int) -> Iterator[Violation]:
    if len(value) <= most:
        return
    kind, article = ("string", "a") if isinstance(value, str) else ("array", "an")
    said = (
        f"Invalid '{at}': {kind} too long. Expected {article} {kind} with maximum length {most}, "
        f"but got {article} {kind} with length {len(value)} instead."
    )
    yield Violation(said, at, f"{kind}_above_max_length")


def broken_name(at: str, name: Any) -> Iterator[Violation]:
    """The name of a tool, of a call or of a schema."""
    if name is None:
        yield missing(at)
    elif not isinstance(name, str):
        yield wrong_type(at, "a string", name)
    elif not name:
        yield empty_string(at)
    elif not _NAME.fullmatch(name):
        said = "string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
        yield Violation(f"Invalid '{at}': {said}", at, "invalid_value")
    else:
        yield from too_long(at, name, LONGEST_NAME)


def out_of_range(
    body: Mapping[str, Any], decimals: Mapping[str, Range], integers: Mapping[str, Range]
) -> Iterator[Violation]:
    for kind, ranges in (("decimal", decimals), ("integer", integers)):
        for key, (least, most) in ranges.items():
            if body.get(key) is None:
                continue
            value = a_number(body[key])
            if value is None or (kind == "integer" and not float(value).is_integer()):
                yield wrong_type(key, f"{'an' if kind == 'integer' else 'a'} {kind}", body[key])
            elif least is not None and value < least:
                said = f"Invalid '{key}': {kind} below minimum value. Expected a value >= {least:g}, but got {value:g}"
                yield Violation(f"{said} instead.", key, f"{kind}_below_min_value")
            elif most is not None and value > most:
                said = f"Invalid '{key}': {kind} above maximum value. Expected a value <= {most:g}, but got {value:g}"
                yield Violation(f"{said} instead.", key, f"{kind}_above_max_value")


def broken_function(function: Mapping[str, Any], at: str) -> Iterator[Violation]:
    """The declaration of a function, whose place in the body is `at`."""
    yield from broken_name(f"{at}.name", function.get("name"))
    schema = function.get("parameters")
    if schema is None:
        return
    problems = [*broken_parameters(schema), *(broken_strict(schema) if function.get("strict") is True else ())]
    for problem in problems:
        said = f"Invalid schema for function '{a_text(function.get('name'))}': {problem}"
        yield Violation(said, f"{at}.parameters", "invalid_function_parameters")


def broken_format(form: Mapping[str, Any], words: str, at: str) -> Iterator[Violation]:
    """The schema of an answer, which `words` and `at` are the two ways to refer to."""
    yield from broken_name(f"{at}.name", form.get("name"))
    if not isinstance(form.get("schema"), dict):
        yield missing(f"{at}.schema")
    elif form.get("strict") is True:
        for problem in broken_strict(form["schema"]):
            said = f"Invalid schema for {words} '{a_text(form.get('name'))}': {problem}"
            yield Violation(said, words, "invalid_json_schema")


def says_json(value: Any) -> bool:
    """Whether the word stands anywhere in a conversation."""
    if isinstance(value, str):
        return "json" in value.lower()
    if isinstance(value, list):
        return any(map(says_json, value))
    return any(says_json(an_object(value).get(key)) for key in ("content", "text", "output")) if value else False
