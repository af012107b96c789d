"""Rules of the Responses API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from ...models import facts
from . import IssuedValue, VendorState, Violation, as_object, as_text, contains_json, enumerate_objects, walk_objects
from . import openai_chat as openai

KEYS = frozenset(
    (
        "access_programs", "background", "context_management", "conversation", "image", "include", "input",
        "instructions", "max_output_tokens", "max_tool_calls", "metadata", "model", "moderation", "parallel_tool_calls",
        "personality", "previous_response_id", "prompt", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention", "reasoning", "safety_identifier", "service_tier", "store", "stream", "stream_options",
        "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user",
    )
)  # fmt: skip
_ROLES = ("assistant", "system", "developer", "user")
_DECIMALS: Mapping[str, openai.Range] = {"temperature": (0, 2), "top_p": (0, 1)}
_INTEGERS: Mapping[str, openai.Range] = {
    "max_output_tokens": (16, None),
    "max_tool_calls": (1, None),
    "top_logprobs": (0, 20),
}
_MAX_CALL_ID_LENGTH = 64
_CALLS = {
    "function_call": "function call",
    "custom_tool_call": "custom tool call",
    "computer_call": "computer call",
}
_PREFIXES = {"function_call": "fc", "custom_tool_call": "ctc", "message": "msg", "reasoning": "rs"}
_OUTPUT_BLOCKS = ("output_text", "refusal")
_INPUT_BLOCKS = ("input_text", "input_image", "input_file", "input_audio")
_STORED = ("previous_response_id", "conversation", "prompt")
"""Keys that refer to content that the vendor stores."""


@dataclass(frozen=True, slots=True)
class ResponsesRules(openai.OpenAIRules):
    """Rules of the Responses API."""

    name: ClassVar[str] = "openai-responses"

    @override
    def check(
        self, body: Mapping[str, Any], state: VendorState, *, model: str = "", count_tokens: bool = False
    ) -> Iterator[Violation]:
        if not as_text(body.get("model")) and not body.get("prompt"):
            yield openai.report_missing("model")
        for key in body:
            if key not in KEYS and key not in state.extra_keys:
                yield Violation(f"Unknown parameter: '{key}'.", key, "unknown_parameter")
        previous = body.get("previous_response_id")
        if isinstance(previous, str) and not state.has_issued(previous):
            reason = f"Previous response with id '{previous}' not found."
            yield Violation(reason, "previous_response_id", "previous_response_not_found")
        items, has_stored_content = body.get("input"), any(body.get(key) for key in _STORED)
        if items is None:
            if not has_stored_content:
                yield Violation(
                    "One of \"input\" or \"previous_response_id\" or 'prompt' or 'conversation_id' must be provided.",
                    "input",
                    "missing_required_parameter",
                )
        elif not isinstance(items, str | list):
            yield openai.report_type("input", "one of a string or array of objects", items)
        elif isinstance(items, list):
            yield from _check_items(items, state, has_stored_content=has_stored_content)
        yield from openai.check_ranges(body, _DECIMALS, _INTEGERS)
        is_reasoning = as_object(body.get("reasoning")).get("effort") != "none"
        for key in ("temperature", "top_p"):
            if (
                body.get(key) is not None
                and is_reasoning
                and facts("openai", as_text(body.get("model"))).sampling is False
            ):
                reason = f"Unsupported parameter: '{key}' is not supported with this model."
                yield Violation(reason, key, "unsupported_parameter")
        yield from _check_tools(body)
        yield from _check_text_format(body)

    @override
    def find_issued(self, response: Iterable[Any]) -> Iterator[IssuedValue]:
        for value in walk_objects([*response]):
            if value.get("object") == "response" and as_text(value.get("id")):
                yield IssuedValue(value["id"])
            reasoning_id = None
            for _, item in enumerate_objects(value.get("output")):
                if as_text(item.get("id")):
                    yield IssuedValue(item["id"], reasoning_id=reasoning_id)
                reasoning_id = item.get("id") if item.get("type") == "reasoning" else None
            if as_text(value.get("encrypted_content")):
                yield IssuedValue(value["encrypted_content"])


def _check_items(items: list[Any], state: VendorState, *, has_stored_content: bool) -> Iterator[Violation]:
    ids: set[str] = set()
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            yield openai.report_type(f"input[{index}]", "an object", item)
            continue
        id, kind = item.get("id"), _kind(item)
        if isinstance(id, str):
            if id in ids:
                reason = f"Duplicate item found with id {id}. Remove duplicate items from your input and try again."
                yield Violation(reason, "input")
            ids.add(id)
            prefix = _PREFIXES.get(kind)
            if prefix is not None and not id.startswith(prefix) and not state.has_issued(id):
                reason = f"Invalid 'input[{index}].id': '{id}'. Expected an ID that begins with '{prefix}'."
                yield Violation(reason, f"input[{index}].id", "invalid_value")
        if kind == "message":
            yield from _check_message(item, f"input[{index}]")
    if not has_stored_content:
        yield from _check_calls(items)
    for index, item in enumerate_objects(items):
        if _kind(item) == "reasoning":
            yield from _check_reasoning(index, item, items, state)
        elif not has_stored_content:
            required = state.find_reasoning(as_text(item.get("id")))
            if required is not None and required not in ids:
                id, kind = item["id"], _kind(item)
                reason = f"Item '{id}' of type '{kind}' was provided without its required 'reasoning' item"
                yield Violation(f"{reason}: '{required}'.", "input")


def _kind(item: Mapping[str, Any]) -> str:
    """Return the type of an item. Messages may omit it."""
    return as_text(item.get("type")) or "message"


def _check_message(item: Mapping[str, Any], path: str) -> Iterator[Violation]:
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        yield openai.report_value(f"{path}.role" if role is not None else path, role, _ROLES)
    if content is None:
        yield openai.report_missing(f"{path}.content")
    elif content == "" and role != "assistant":
        yield openai.report_empty_string(f"{path}.content")
    elif content == []:
        yield openai.report_empty_array(f"{path}.content")
    allowed = _OUTPUT_BLOCKS if role == "assistant" else _INPUT_BLOCKS
    for index, block in enumerate_objects(content):
        if block.get("type") not in allowed:
            yield openai.report_value(f"{path}.content[{index}]", block.get("type"), allowed)
        if block.get("text") == "" and role != "assistant":
            yield openai.report_empty_string(f"{path}.content[{index}].text")


def _check_calls(items: list[Any]) -> Iterator[Violation]:
    pending: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    for index, item in enumerate_objects(items):
        kind = _kind(item)
        called = kind.removesuffix("_output")
        if called not in _CALLS:
            continue
        id = item.get("call_id")
        if not isinstance(id, str):
            yield openai.report_missing(f"input[{index}].call_id")
            continue
        if not id:
            yield openai.report_empty_string(f"input[{index}].call_id")
        yield from openai.check_length(f"input[{index}].call_id", id, _MAX_CALL_ID_LENGTH)
        if (kind, id) in seen:
            reason = f"Duplicate {_CALLS[called]}{' output' if kind != called else ''} for call_id {id}."
            yield Violation(reason, "input")
        elif kind == called:
            pending[id] = called
        elif pending.pop(id, None) != called:
            yield Violation(f"No tool call found for {_CALLS[called]} output with call_id {id}.", "input")
        seen.add((kind, id))
        if kind == "computer_call_output":
            shown = as_object(item.get("output"))
            if not shown.get("image_url") and not shown.get("file_id"):
                yield openai.report_missing(f"input[{index}].output.image_url")
        elif kind == called and kind != "computer_call":
            yield from openai.check_name(f"input[{index}].name", item.get("name"))
            text = "arguments" if kind == "function_call" else "input"
            if not isinstance(item.get(text), str):
                yield openai.report_missing(f"input[{index}].{text}")
        elif kind != called and item.get("output") is None:
            yield openai.report_missing(f"input[{index}].output")
    for id, called in pending.items():
        yield Violation(f"No tool output found for {_CALLS[called]} {id}.", "input")


def _check_reasoning(index: int, item: Mapping[str, Any], items: list[Any], state: VendorState) -> Iterator[Violation]:
    id, encrypted = as_text(item.get("id")), as_text(item.get("encrypted_content"))
    if encrypted:
        if not state.has_issued(encrypted):
            excerpt = encrypted if len(encrypted) < 12 else f"{encrypted[:8]}...{encrypted[-4:]}"
            yield Violation(
                f"The encrypted content {excerpt} could not be verified. Reason: Encrypted content could not be "
                "decrypted or parsed.",
                None,
                "invalid_encrypted_content",
            )
    elif not id:
        yield openai.report_missing(f"input[{index}].id")
    elif not state.has_issued(id):
        reason = f"Item with id '{id}' not found. Items are not persisted when `store` is set to false."
        yield Violation(f"{reason} Try again with `store` set to true, or remove this item from your input.", "input")
    following = next((later for _, later in enumerate_objects(items[index + 1 :]) if _kind(later) != "reasoning"), None)
    if (
        following is None
        or not _is_output(following)
        or (id and following.get("role") == "assistant" and "id" not in following)
    ):
        reason = f"Item '{id}' of type 'reasoning' was provided without its required following item."
        yield Violation(reason, "input")


def _is_output(item: Mapping[str, Any]) -> bool:
    """Whether the model made an item."""
    return item.get("role") == "assistant" or not _kind(item).endswith(("message", "output", "_response"))


def _check_tools(body: Mapping[str, Any]) -> Iterator[Violation]:
    tools, choice = body.get("tools"), body.get("tool_choice")
    names: set[tuple[str, str]] = set()
    kinds: set[str] = set()
    for index, tool in enumerate_objects(tools):
        kind = tool.get("type")
        if not isinstance(kind, str):
            yield openai.report_missing(f"tools[{index}].type")
            continue
        kinds.add(kind)
        names.add((kind, as_text(tool.get("name"))))
        if kind == "function":
            yield from openai.check_function(tool, f"tools[{index}]")
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            yield openai.report_value("tool_choice", choice, ("none", "auto", "required"))
        elif choice == "required" and not tools:
            yield Violation("Tool choice 'required' must be specified with 'tools' parameter.", "tool_choice")
    elif isinstance(choice, dict):
        kind, name = as_text(choice.get("type")), choice.get("name")
        if kind not in ("function", "custom"):
            is_missing = kind != "allowed_tools" and kind not in kinds
            name = kind
        elif name is None:
            yield openai.report_missing("tool_choice.name")
            is_missing = False
        else:
            is_missing = (kind, as_text(name)) not in names
        if is_missing:
            yield Violation(f"Tool choice '{name}' not found in 'tools' parameter.", "tool_choice")


def _check_text_format(body: Mapping[str, Any]) -> Iterator[Violation]:
    text_format = as_object(as_object(body.get("text")).get("format"))
    match text_format.get("type"):
        case "json_schema":
            yield from openai.check_output_format(text_format, "text.format", "text.format")
        case "json_object":
            if not contains_json(body.get("input")) and not contains_json(body.get("instructions")):
                reason = "Response input messages must contain the word 'json' in some form"
                yield Violation(f"{reason} to use 'text.format' of type 'json_object'.", "input")
        case "text" | None:
            pass
        case other:
            yield openai.report_value("text.format.type", other, ("json_object", "json_schema", "text"))
