"""Rules of the Messages API for the conversation: roles, calls and results, thinking, blank text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from . import VendorState, Violation, as_text, enumerate_objects

TOOL_NAME = "^[a-zA-Z0-9_-]{1,128}$"
_ID = "^[a-zA-Z0-9_-]+$"
_THINKING = ("thinking", "redacted_thinking")
_ROLE_OF = {"tool_use": "assistant", "tool_result": "user", "thinking": "assistant", "redacted_thinking": "assistant"}
_THINKING_FIRST = (
    "When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the lastmost "
    "set of `tool_use` and `tool_result` blocks). We recommend you include thinking blocks from previous turns. To "
    "avoid this requirement, disable `thinking`."
)


@dataclass(slots=True)
class _Turn:
    """Consecutive messages of one role, which the API merges."""

    role: str
    blocks: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Blocks with their paths."""
    first: int = 0
    """Index of the first message."""

    @property
    def kinds(self) -> list[str]:
        return [as_text(block.get("type")) for _, block in self.blocks]


def check_conversation(messages: list[Any], state: VendorState, *, system_messages: bool) -> Iterator[Violation]:
    """Yield the violations of the messages.

    Args:
        system_messages: Whether the model accepts system messages inside the conversation.
    """
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            yield Violation(f"messages.{index}: Input should be a valid dictionary")
            continue
        role = message.get("role")
        if role not in ("user", "assistant") and not (role == "system" and system_messages and index > 0):
            yield _report_role(index, role)
        yield from _check_content(index, message, last=index == len(messages) - 1, state=state)
    turns = _group_turns(messages)
    if turns and turns[0].role != "user":
        yield Violation('messages: first message must use the "user" role')
    yield from _check_calls(turns)
    yield from _check_last_blocks(turns)


def _group_turns(messages: Any) -> list[_Turn]:
    turns: list[_Turn] = []
    for index, message in enumerate_objects(messages):
        role, content = as_text(message.get("role")), message.get("content")
        if role == "system":
            continue
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not turns or turns[-1].role != role:
            turns.append(_Turn(role, first=index))
        turns[-1].blocks += [
            (f"messages.{index}.content.{position}", block) for position, block in enumerate_objects(content)
        ]
    return turns


def _report_role(index: int, role: Any) -> Violation:
    if role == "system":
        return Violation(
            'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter, not "system" '
            "as an input message role."
        )
    return Violation(f"messages.{index}.role: Input should be 'user' or 'assistant'")


def _check_content(index: int, message: Mapping[str, Any], *, last: bool, state: VendorState) -> Iterator[Violation]:
    content = message.get("content")
    if content is None:
        yield Violation(f"messages.{index}.content: Field required")
    elif not isinstance(content, str | list):
        yield Violation(f"messages.{index}.content: Input should be a valid list")
    elif not content and not (last and message.get("role") == "assistant"):
        reason = "all messages must have non-empty content except for the optional final assistant message"
        yield Violation(f"messages.{index}: {reason}")
    elif isinstance(content, str) and content:
        yield from check_text("messages", content)
    for position, block in enumerate_objects(content):
        yield from _check_block(block, f"messages.{index}.content.{position}", as_text(message.get("role")), state)


def check_text(path: str, text: Any) -> Iterator[Violation]:
    if text == "":
        yield Violation(f"{path}: text content blocks must be non-empty")
    elif not isinstance(text, str):
        yield Violation(f"{path}: text content blocks must be strings")
    elif not text.strip():
        yield Violation(f"{path}: text content blocks must contain non-whitespace text")


def _check_block(block: Mapping[str, Any], path: str, role: str, state: VendorState) -> Iterator[Violation]:
    kind = block.get("type")
    if not isinstance(kind, str):
        yield Violation(f"{path}.type: Field required")
        return
    if kind in _ROLE_OF and role in ("user", "assistant") and _ROLE_OF[kind] != role:
        yield Violation(f"{path}: `{kind}` blocks can only be in `{_ROLE_OF[kind]}` messages")
    match kind:
        case "text":
            if block.get("text") == "" and block.get("cache_control"):
                yield Violation(f"{path}.text.cache_control: cache_control cannot be set for empty text blocks")
            yield from check_text("messages", block.get("text"))
        case "tool_use":
            yield from check_pattern(block.get("id"), _ID, f"{path}.tool_use.id")
            yield from check_pattern(block.get("name"), TOOL_NAME, f"{path}.tool_use.name")
            if not isinstance(block.get("input"), dict):
                yield Violation(f"{path}.tool_use.input: Input should be a valid dictionary")
        case "thinking" | "redacted_thinking":
            yield from _check_thinking(block, kind, path, state)
        case "tool_result":
            yield from _check_result(block, path)
        case _:
            pass


def check_pattern(value: Any, pattern: str, path: str) -> Iterator[Violation]:
    if value is None:
        yield Violation(f"{path}: Field required")
    elif not isinstance(value, str):
        yield Violation(f"{path}: Input should be a valid string")
    elif not re.fullmatch(pattern, value):
        yield Violation(f"{path}: String should match pattern '{pattern}'")


def _check_thinking(block: Mapping[str, Any], kind: str, path: str, state: VendorState) -> Iterator[Violation]:
    key = "signature" if kind == "thinking" else "data"
    value = block.get(key)
    if "cache_control" in block:
        yield Violation(f"{path}.{kind}.cache_control: Extra inputs are not permitted")
    if kind == "thinking" and not isinstance(block.get("thinking"), str):
        yield Violation(f"{path}.thinking.thinking: Field required")
    elif value is None:
        yield Violation(f"{path}.{kind}.{key}: Field required")
    elif not isinstance(value, str):
        yield Violation(f"{path}.{kind}.{key}: Input should be a valid string")
    elif not state.has_issued(value):
        yield Violation(f"{path}: Invalid `{key}` in `{kind}` block")
    elif kind == "thinking" and not state.has_signed(value, block["thinking"]):
        yield Violation(
            f"{path}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. "
            "These blocks must remain as they were in the original response."
        )


def _check_result(block: Mapping[str, Any], path: str) -> Iterator[Violation]:
    if not isinstance(block.get("tool_use_id"), str):
        yield Violation(f"{path}.tool_result.tool_use_id: Field required")
    content = block.get("content")
    for position, inner in enumerate_objects(content):
        if inner.get("type") == "text":
            yield from check_text("messages", inner.get("text"))
        elif block.get("is_error"):
            yield Violation(f"{path}.tool_result: all content must be type `text` if `is_error` is true")
        if "cache_control" in inner:
            inner_path = f"{path}.tool_result.content.{position}.cache_control"
            yield Violation(f"{inner_path}: cache_control cannot be set inside of a tool_result")
    if block.get("is_error") and not content:
        yield Violation(f"{path}.tool_result: content cannot be empty if `is_error` is true")


def _check_calls(turns: list[_Turn]) -> Iterator[Violation]:
    seen: set[str] = set()
    calls: list[str] = []
    for position, turn in enumerate(turns):
        answered: set[str] = set()
        for path, block in turn.blocks:
            id = as_text(block.get("tool_use_id"))
            if block.get("type") != "tool_result" or turn.role != "user":
                continue
            if id in answered:
                reason = f"each tool_use must have a single result. Found multiple `tool_result` blocks with id: {id}"
                yield Violation(f"{path}: {reason}")
            elif id not in calls:
                yield Violation(
                    f"{path}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` block "
                    "must have a corresponding `tool_use` block in the previous message."
                )
            answered.add(id)
        calls = []
        for path, block in turn.blocks if turn.role == "assistant" else ():
            id = as_text(block.get("id"))
            if block.get("type") == "tool_use":
                if id in seen:
                    yield Violation(f"{path}: `tool_use` ids must be unique")
                seen.add(id)
                calls.append(id)
        results = _find_results(turns[position + 1]) if position + 1 < len(turns) else []
        if missing := [id for id in calls if id not in results]:
            yield Violation(
                f"messages.{turn.first}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                "next message."
            )


def _find_results(turn: _Turn) -> list[str]:
    """Return the call ids of a turn's results. Results after other blocks do not count."""
    blocks = takewhile(lambda block: block.get("type") == "tool_result", (block for _, block in turn.blocks))
    return [as_text(block.get("tool_use_id")) for block in blocks]


def _check_last_blocks(turns: list[_Turn]) -> Iterator[Violation]:
    for turn in turns:
        if turn.role == "assistant" and turn.kinds and turn.kinds[-1] in _THINKING:
            reason = f"The final block in an assistant message cannot be `{turn.kinds[-1]}`."
            yield Violation(f"messages.{turn.first}: {reason}")
    last = turns[-1] if turns else None
    if last is not None and last.role == "assistant" and last.kinds and last.kinds[-1] == "text":
        text = as_text(last.blocks[-1][1].get("text"))
        if text != text.rstrip():
            yield Violation("messages: final assistant content cannot end with trailing whitespace")


def check_thinking_first(messages: Any) -> Iterator[Violation]:
    """Check that the assistant's last turn, including its tool calls, begins with thinking."""
    first: tuple[str, dict[str, Any]] | None = None
    for turn in reversed(_group_turns(messages)):
        if turn.role == "assistant":
            first = turn.blocks[0] if turn.blocks else None
        elif "tool_result" not in turn.kinds:
            break
    if first is not None and first[1].get("type") not in _THINKING:
        reason = f"Expected `thinking` or `redacted_thinking`, but found `{first[1].get('type')}`."
        yield Violation(f"{first[0]}.type: {reason} {_THINKING_FIRST}")


def ends_with_prefill(messages: Any) -> bool:
    """Whether the conversation ends with assistant text, and not with a server tool."""
    turns = _group_turns(messages)
    return bool(turns) and turns[-1].role == "assistant" and (not turns[-1].kinds or turns[-1].kinds[-1] == "text")
