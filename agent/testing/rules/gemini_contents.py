"""What generateContent refuses in a conversation: parts without data, calls and responses, signatures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...providers.gemini.models import SKIP_SIGNATURE, features_of
from .base import Known, Violation, a_text, an_object, objects_in
from .gemini_schemas import unknown_name

REQUEST = "* GenerateContentRequest"
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")
_DATA = frozenset(
    (
        "codeExecutionResult",
        "executableCode",
        "fileData",
        "functionCall",
        "functionResponse",
        "inlineData",
        "text",
        "toolCall",
        "toolResponse",
    )
)
_BESIDE = frozenset(
    (
        "audioTranscription",
        "mediaProcessing",
        "mediaResolution",
        "partMetadata",
        "speechMetadata",
        "thought",
        "thoughtSignature",
        "videoMetadata",
    )
)
_SKIPPED = (SKIP_SIGNATURE, "context_engineering_is_the_way_to_go")
"""Documented stand-ins for a signature."""


def broken_contents(contents: Any, known: Known, model: str) -> Iterator[Violation]:
    """What is wrong with the conversation, given in camel case."""
    if not contents:
        yield Violation(f"{REQUEST}.contents: contents is not specified\n")
        return
    if isinstance(contents, dict):
        contents = [contents]
    if not isinstance(contents, list):
        yield Violation("Invalid value at 'contents' (type.googleapis.com/google.ai.generativelanguage.v1beta.Content)")
        return
    turns = objects_in(contents)
    for n, content in turns:
        if content.get("role") not in (None, "", "user", "model", "function"):
            yield Violation("Please use a valid role: user, model.")
        yield from broken_parts(content.get("parts"), f"contents[{n}]", known)
    yield from _calls([content for _, content in turns])
    if features_of(model).signed_calls:
        yield from _unsigned_calls(turns)


def broken_parts(parts: Any, at: str, known: Known, *, spoken: bool = True) -> Iterator[Violation]:
    if not parts:
        yield Violation(f"{REQUEST}.{at}.parts: contents.parts must not be empty.\n")
    found = objects_in([parts] if isinstance(parts, dict) else parts)
    for n, part in found:
        yield from _part(part, f"{at}.parts[{n}]", known)
    # Beside something else, empty text is taken, and so is an instruction that says nothing.
    if found and all(part.get("text") == "" and "thoughtSignature" not in part for _, part in found) and spoken:
        said = "Unable to submit request because it has an empty text parameter."
        yield Violation(f"{said} Add a value to the parameter and try again.", f"{at}.parts")


def _part(part: Mapping[str, Any], at: str, known: Known) -> Iterator[Violation]:
    for key in part:
        if key not in _DATA | _BESIDE:
            yield unknown_name(key, at)
    signature = part.get("thoughtSignature")
    data = [key for key in part if key in _DATA and part[key] is not None]
    if not data and signature is None:
        yield Violation(f"{REQUEST}.{at}.data: required oneof field 'data' must have one initialized field\n")
    elif len(data) > 1:
        said = f"Invalid value at '{at}' (oneof), oneof field 'data' is already set. Cannot set '{data[1]}'"
        yield Violation(said, at)
    if signature is not None and not (isinstance(signature, str) and (signature in _SKIPPED or known.knows(signature))):
        yield Violation("Corrupted thought signature.", f"{at}.thought_signature")
    if isinstance(call := part.get("functionCall"), dict):
        yield from broken_name(call.get("name"), f"{at}.function_call.name")
        if not isinstance(call.get("args", {}), dict):
            yield Violation(f"Invalid value at '{at}.function_call.args' (type.googleapis.com/google.protobuf.Struct)")
    if isinstance(response := part.get("functionResponse"), dict):
        yield from broken_name(response.get("name"), f"{at}.function_response.name")
        if not isinstance(response.get("response"), dict):
            where = f"{at}.function_response.response"
            yield Violation(f"Invalid value at '{where}' (type.googleapis.com/google.protobuf.Struct)", where)


def broken_name(name: Any, at: str) -> Iterator[Violation]:
    if not a_text(name):
        yield Violation(f"{REQUEST}.{at}: Name cannot be empty.\n")
    elif not _NAME.fullmatch(name):
        yield Violation(
            f"{REQUEST}.{at}: Invalid function name. Must start with a letter or an underscore. Must be alphanumeric "
            "(a-z, A-Z, 0-9), underscores (_), dots (.), colons (:), or dashes (-), with a maximum length of 64.\n"
        )


def _of_kind(content: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    return [an_object(part[kind]) for _, part in objects_in(content.get("parts")) if kind in part]


def _is_model(content: Mapping[str, Any]) -> bool:
    return content.get("role") == "model"


def _calls(contents: list[dict[str, Any]]) -> Iterator[Violation]:
    turns: list[list[dict[str, Any]]] = []
    """Contents of one side in a row count as one turn."""
    for content in contents:
        if turns and _is_model(turns[-1][-1]) == _is_model(content):
            turns[-1].append(content)
        else:
            turns.append([content])
    seen: set[str] = set()
    waiting: list[dict[str, Any]] = []
    for position, turn in enumerate(turns):
        calls = [call for content in turn for call in _of_kind(content, "functionCall")]
        responses = [response for content in turn for response in _of_kind(content, "functionResponse")]
        if calls and not _is_model(turn[0]):
            yield Violation("Please ensure that function call parts are only in turns with the model role.")
        if calls and position == 0:
            said = "function call turn comes immediately after a user turn or after a function response turn."
            yield Violation(f"Please ensure that {said}")
        if responses and (_is_model(turn[0]) or not waiting):
            yield Violation("Please ensure that function response turn comes immediately after a function call turn.")
        elif len(responses) != len(waiting):
            said = "the number of function response parts is equal to the number of function call parts"
            yield Violation(f"Please ensure that {said} of the function call turn.")
        else:
            yield from _matched(waiting, responses)
        for id in filter(None, (a_text(call.get("id")) for call in calls)):
            if id in seen:
                yield Violation(f"Please ensure that function call ids are unique: {id} occurs more than once.")
            seen.add(id)
        waiting = calls if _is_model(turn[0]) else []
    if waiting:
        said = "the number of function response parts is equal to the number of function call parts"
        yield Violation(f"Please ensure that {said} of the function call turn.")


def _matched(calls: list[dict[str, Any]], responses: list[dict[str, Any]]) -> Iterator[Violation]:
    names = [call.get("name") for call in calls]
    ids = [call.get("id") for call in calls if call.get("id")]
    for response in responses:
        if response.get("name") not in names or (ids and response.get("id") and response["id"] not in ids):
            found = response.get("id") or response.get("name")
            said = "each function response part corresponds to a function call part of the function call turn"
            yield Violation(f"Please ensure that {said}: {found} does not.")


def _unsigned_calls(turns: list[tuple[int, dict[str, Any]]]) -> Iterator[Violation]:
    """The first call of every step needs a signature, from the latest question on; older turns are let be."""
    steps: list[tuple[int, dict[str, Any]]] = []
    for n, content in reversed(turns):
        if _is_model(content):
            steps.append((n, content))
        elif not _of_kind(content, "functionResponse"):
            break
    for n, content in reversed(steps):
        for position, part in objects_in(content.get("parts")):
            if "functionCall" in part:
                if part.get("thoughtSignature") is None:
                    name = a_text(an_object(part["functionCall"]).get("name"))
                    yield Violation(
                        "Function call is missing a thought_signature in functionCall parts. This is required for "
                        "tools to work correctly, and missing thought_signature may lead to degraded model "
                        f"performance. Additional data, function call `default_api:{name}` , position {n + 1}. Please "
                        "refer to https://ai.google.dev/gemini-api/docs/thought-signatures for more details.",
                        f"contents[{n}].parts[{position}]",
                    )
                break
