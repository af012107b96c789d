"""What the Responses API refuses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from ...models import facts
from . import openai
from .base import Issued, Known, Rules, Violation, a_text, an_object, everything_in, objects_in

KEYS = frozenset(
    (
        "access_programs",
        "background",
        "context_management",
        "conversation",
        "image",
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "model",
        "moderation",
        "parallel_tool_calls",
        "personality",
        "previous_response_id",
        "prompt",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "truncation",
        "user",
    )
)
_ROLES = ("assistant", "system", "developer", "user")
_DECIMALS: Mapping[str, openai.Range] = {"temperature": (0, 2), "top_p": (0, 1)}
_INTEGERS: Mapping[str, openai.Range] = {
    "max_output_tokens": (16, None),
    "max_tool_calls": (1, None),
    "top_logprobs": (0, 20),
}
_LONGEST_ID = 64
_CALLS = {"function_call": "function call", "custom_tool_call": "custom tool call"}
_PREFIXES = {"function_call": "fc", "custom_tool_call": "ctc", "message": "msg", "reasoning": "rs"}
_SAID_BY_ASSISTANT = ("output_text", "refusal")
_SAID_TO_MODEL = ("input_text", "input_image", "input_file", "input_audio")
_STORED = ("previous_response_id", "conversation", "prompt")
"""By these a request holds more than can be seen in it."""


@dataclass(frozen=True, slots=True)
class ResponsesRules(Rules):
    """The API's rules."""

    name: ClassVar[str] = "openai-responses"

    @override
    def broken(
        self, body: Mapping[str, Any], known: Known, *, model: str = "", counting: bool = False
    ) -> Iterator[Violation]:
        if not a_text(body.get("model")) and not body.get("prompt"):
            yield openai.missing("model")
        for key in body:
            if key not in KEYS and key not in known.keys:
                yield Violation(f"Unknown parameter: '{key}'.", key, "unknown_parameter")
        previous = body.get("previous_response_id")
        if isinstance(previous, str) and not known.knows(previous):
            said = f"Previous response with id '{previous}' not found."
            yield Violation(said, "previous_response_id", "previous_response_not_found")
        given = body.get("input")
        if given is None:
            if not any(body.get(key) for key in _STORED):
                yield Violation(
                    "One of \"input\" or \"previous_response_id\" or 'prompt' or 'conversation_id' must be provided.",
                    "input",
                    "missing_required_parameter",
                )
        elif not isinstance(given, str | list):
            yield openai.wrong_type("input", "one of a string or array of objects", given)
        elif isinstance(given, list):
            yield from _items(given, known, stored=any(body.get(key) for key in _STORED))
        yield from openai.out_of_range(body, _DECIMALS, _INTEGERS)
        thinks = an_object(body.get("reasoning")).get("effort") != "none"
        for key in ("temperature", "top_p"):
            if body.get(key) is not None and thinks and facts("openai", a_text(body.get("model"))).sampling is False:
                said = f"Unsupported parameter: '{key}' is not supported with this model."
                yield Violation(said, key, "unsupported_parameter")
        yield from _tools(body)
        yield from _format(body)

    @override
    def complaint(self, violation: Violation) -> dict[str, Any]:
        return openai.complaint(violation)

    @override
    def unreadable(self) -> Violation:
        return openai.unreadable()

    @override
    def issued(self, answer: Iterable[Any]) -> Iterator[Issued]:
        for found in everything_in([*answer]):
            if found.get("object") == "response" and a_text(found.get("id")):
                yield Issued(found["id"])
            reasoning = None
            for _, item in objects_in(found.get("output")):
                if a_text(item.get("id")):
                    yield Issued(item["id"], after=reasoning)
                reasoning = item.get("id") if item.get("type") == "reasoning" else None
            if a_text(found.get("encrypted_content")):
                yield Issued(found["encrypted_content"])


def _items(items: list[Any], known: Known, *, stored: bool) -> Iterator[Violation]:
    ids: set[str] = set()
    for n, item in enumerate(items):
        if not isinstance(item, dict):
            yield openai.wrong_type(f"input[{n}]", "an object", item)
            continue
        id, kind = item.get("id"), _kind(item)
        if isinstance(id, str):
            if id in ids:
                said = f"Duplicate item found with id {id}. Remove duplicate items from your input and try again."
                yield Violation(said, "input")
            ids.add(id)
            prefix = _PREFIXES.get(kind)
            if prefix is not None and not id.startswith(prefix) and not known.knows(id):
                said = f"Invalid 'input[{n}].id': '{id}'. Expected an ID that begins with '{prefix}'."
                yield Violation(said, f"input[{n}].id", "invalid_value")
        if kind == "message":
            yield from _message(item, f"input[{n}]")
    if not stored:
        yield from _calls(items)
    for n, item in objects_in(items):
        if _kind(item) == "reasoning":
            yield from _reasoning(n, item, items, known)
        elif (reasoning := known.followed(a_text(item.get("id")))) is not None and reasoning not in ids and not stored:
            said = f"Item '{item['id']}' of type '{_kind(item)}' was provided without its required 'reasoning' item"
            yield Violation(f"{said}: '{reasoning}'.", "input")


def _kind(item: Mapping[str, Any]) -> str:
    """The type of an item; messages need not say theirs."""
    return a_text(item.get("type")) or "message"


def _message(item: Mapping[str, Any], at: str) -> Iterator[Violation]:
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        yield openai.wrong_value(f"{at}.role" if role is not None else at, role, _ROLES)
    if content is None:
        yield openai.missing(f"{at}.content")
    elif content == "" and role != "assistant":
        yield openai.empty_string(f"{at}.content")
    elif content == []:
        yield openai.empty_array(f"{at}.content")
    allowed = _SAID_BY_ASSISTANT if role == "assistant" else _SAID_TO_MODEL
    for n, block in objects_in(content):
        if block.get("type") not in allowed:
            yield openai.wrong_value(f"{at}.content[{n}]", block.get("type"), allowed)
        if block.get("text") == "" and role != "assistant":  # a model may have had nothing to say
            yield openai.empty_string(f"{at}.content[{n}].text")


def _calls(items: list[Any]) -> Iterator[Violation]:
    waiting: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    for n, item in objects_in(items):
        kind = _kind(item)
        called = kind.removesuffix("_output")
        if called not in _CALLS:
            continue
        id = item.get("call_id")
        if not isinstance(id, str):
            yield openai.missing(f"input[{n}].call_id")
            continue
        if not id:
            yield openai.empty_string(f"input[{n}].call_id")
        yield from openai.too_long(f"input[{n}].call_id", id, _LONGEST_ID)
        if (kind, id) in seen:
            said = f"Duplicate {_CALLS[called]}{' output' if kind != called else ''} for call_id {id}."
            yield Violation(said, "input")
        elif kind == called:
            waiting[id] = called
        elif waiting.pop(id, None) != called:
            yield Violation(f"No tool call found for {_CALLS[called]} output with call_id {id}.", "input")
        seen.add((kind, id))
        if kind == called:
            yield from openai.broken_name(f"input[{n}].name", item.get("name"))
            text = "arguments" if kind == "function_call" else "input"
            if not isinstance(item.get(text), str):
                yield openai.missing(f"input[{n}].{text}")
        elif item.get("output") is None:
            yield openai.missing(f"input[{n}].output")
    for id, called in waiting.items():
        yield Violation(f"No tool output found for {_CALLS[called]} {id}.", "input")


def _reasoning(n: int, item: Mapping[str, Any], items: list[Any], known: Known) -> Iterator[Violation]:
    id, sealed = a_text(item.get("id")), a_text(item.get("encrypted_content"))
    if sealed:
        if not known.knows(sealed):
            start = sealed if len(sealed) < 12 else f"{sealed[:8]}...{sealed[-4:]}"
            said = f"The encrypted content {start} could not be verified."
            reason = "Reason: Encrypted content could not be decrypted or parsed."
            yield Violation(f"{said} {reason}", None, "invalid_encrypted_content")
    elif not id:
        yield openai.missing(f"input[{n}].id")
    elif not known.knows(id):
        said = f"Item with id '{id}' not found. Items are not persisted when `store` is set to false."
        yield Violation(f"{said} Try again with `store` set to true, or remove this item from your input.", "input")
    led_to = next((later for _, later in objects_in(items[n + 1 :]) if _kind(later) != "reasoning"), None)
    if (
        led_to is None
        or not _made_by_model(led_to)
        or (id and led_to.get("role") == "assistant" and "id" not in led_to)
    ):
        said = f"Item '{id}' of type 'reasoning' was provided without its required following item."
        yield Violation(said, "input")


def _made_by_model(item: Mapping[str, Any]) -> bool:
    return item.get("role") == "assistant" or not _kind(item).endswith(("message", "output", "_response"))


def _tools(body: Mapping[str, Any]) -> Iterator[Violation]:
    tools, choice = body.get("tools"), body.get("tool_choice")
    names: set[tuple[str, str]] = set()
    kinds: set[str] = set()
    for n, tool in objects_in(tools):
        kind = tool.get("type")
        if not isinstance(kind, str):
            yield openai.missing(f"tools[{n}].type")
            continue
        kinds.add(kind)
        names.add((kind, a_text(tool.get("name"))))
        if kind == "function":
            yield from openai.broken_function(tool, f"tools[{n}]")
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            yield openai.wrong_value("tool_choice", choice, ("none", "auto", "required"))
        elif choice == "required" and not tools:
            yield Violation("Tool choice 'required' must be specified with 'tools' parameter.", "tool_choice")
    elif isinstance(choice, dict):
        kind, wanted = a_text(choice.get("type")), choice.get("name")
        named = kind in ("function", "custom")
        if named and wanted is None:
            yield openai.missing("tool_choice.name")
        elif (named and (kind, a_text(wanted)) not in names) or (
            not named and kind != "allowed_tools" and kind not in kinds
        ):
            said = f"Tool choice '{wanted if named else kind}' not found in 'tools' parameter."
            yield Violation(said, "tool_choice")


def _format(body: Mapping[str, Any]) -> Iterator[Violation]:
    form = an_object(an_object(body.get("text")).get("format"))
    match form.get("type"):
        case "json_schema":
            yield from openai.broken_format(form, "text.format", "text.format")
        case "json_object":
            if not openai.says_json(body.get("input")) and not openai.says_json(body.get("instructions")):
                said = "Response input messages must contain the word 'json' in some form"
                yield Violation(f"{said} to use 'text.format' of type 'json_object'.", "input")
        case "text" | None:
            pass
        case other:
            yield openai.wrong_value("text.format.type", other, ("json_object", "json_schema", "text"))
