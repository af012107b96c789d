"""How OpenAI's two APIs complain, and what both of them check: ranges, names, lengths, schemas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .base import Violation, a_number, a_text, an_object, listed
from .openai_schemas import broken_parameters, broken_strict

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
