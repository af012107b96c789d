"""What the Messages API refuses in a conversation: who speaks when, calls and results, thinking, empty text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .base import Known, Violation, a_text, objects_in

NAME = "^[a-zA-Z0-9_-]{1,128}$"
ID = "^[a-zA-Z0-9_-]+$"
_THOUGHTS = ("thinking", "redacted_thinking")
_ROLE_OF = {"tool_use": "assistant", "tool_result": "user", "thinking": "assistant", "redacted_thinking": "assistant"}
_THINKING_FIRST = (
    "When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the lastmost "
    "set of `tool_use` and `tool_result` blocks). We recommend you include thinking blocks from previous turns. To "
    "avoid this requirement, disable `thinking`."
)


@dataclass(slots=True)
class Turn:
    """Messages of one role in a row, which count as one."""

    role: str
    blocks: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Where each block stands, and the block."""
    first: int = 0

    @property
    def kinds(self) -> list[str]:
        return [a_text(block.get("type")) for _, block in self.blocks]


def broken_conversation(messages: list[Any], known: Known, *, system: bool) -> Iterator[Violation]:
    """What is wrong with the messages, whatever the settings.

    Args:
        system: Whether the model takes messages of the system between the others.
    """
    for n, message in enumerate(messages):
        if not isinstance(message, dict):
            yield Violation(f"messages.{n}: Input should be a valid dictionary")
            continue
        role = message.get("role")
        if role not in ("user", "assistant") and not (role == "system" and system and n > 0):
            yield _wrong_role(n, role)
        yield from _content(n, message, last=n == len(messages) - 1, known=known)
    turns = turns_of(messages)
    if turns and turns[0].role != "user":
        yield Violation('messages: first message must use the "user" role')
    yield from _calls(turns)
    yield from _endings(turns)


def turns_of(messages: Any) -> list[Turn]:
    turns: list[Turn] = []
    for n, message in objects_in(messages):
        role, content = a_text(message.get("role")), message.get("content")
        if role == "system":
            continue
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not turns or turns[-1].role != role:
            turns.append(Turn(role, first=n))
        turns[-1].blocks += [(f"messages.{n}.content.{position}", block) for position, block in objects_in(content)]
    return turns


def _wrong_role(n: int, role: Any) -> Violation:
    if role == "system":
        return Violation(
            'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter, not "system" '
            "as an input message role."
        )
    return Violation(f"messages.{n}.role: Input should be 'user' or 'assistant'")


def _content(n: int, message: Mapping[str, Any], *, last: bool, known: Known) -> Iterator[Violation]:
    content = message.get("content")
    if content is None:
        yield Violation(f"messages.{n}.content: Field required")
    elif not isinstance(content, str | list):
        yield Violation(f"messages.{n}.content: Input should be a valid list")
    elif not content and not (last and message.get("role") == "assistant"):
        said = "all messages must have non-empty content except for the optional final assistant message"
        yield Violation(f"messages.{n}: {said}")
    elif isinstance(content, str) and content:
        yield from broken_text("messages", content)
    for position, block in objects_in(content):
        yield from _block(block, f"messages.{n}.content.{position}", a_text(message.get("role")), known)


def broken_text(where: str, text: Any) -> Iterator[Violation]:
    if text == "":
        yield Violation(f"{where}: text content blocks must be non-empty")
    elif not isinstance(text, str):
        yield Violation(f"{where}: text content blocks must be strings")
    elif not text.strip():
        yield Violation(f"{where}: text content blocks must contain non-whitespace text")


def _block(block: Mapping[str, Any], at: str, role: str, known: Known) -> Iterator[Violation]:
    kind = block.get("type")
    if not isinstance(kind, str):
        yield Violation(f"{at}.type: Field required")
        return
    if kind in _ROLE_OF and role in ("user", "assistant") and _ROLE_OF[kind] != role:
        yield Violation(f"{at}: `{kind}` blocks can only be in `{_ROLE_OF[kind]}` messages")
    match kind:
        case "text":
            if block.get("text") == "" and block.get("cache_control"):
                yield Violation(f"{at}.text.cache_control: cache_control cannot be set for empty text blocks")
            yield from broken_text("messages", block.get("text"))
        case "tool_use":
            yield from _matching(block.get("id"), ID, f"{at}.tool_use.id")
            yield from _matching(block.get("name"), NAME, f"{at}.tool_use.name")
            if not isinstance(block.get("input"), dict):
                yield Violation(f"{at}.tool_use.input: Input should be a valid dictionary")
        case "thinking" | "redacted_thinking":
            yield from _thought(block, kind, at, known)
        case "tool_result":
            yield from _result(block, at)
        case _:
            pass


def _matching(value: Any, pattern: str, at: str) -> Iterator[Violation]:
    if value is None:
        yield Violation(f"{at}: Field required")
    elif not isinstance(value, str):
        yield Violation(f"{at}: Input should be a valid string")
    elif not re.fullmatch(pattern, value):
        yield Violation(f"{at}: String should match pattern '{pattern}'")


def broken_tool_name(name: Any, at: str) -> Iterator[Violation]:
    yield from _matching(name, NAME, at)


def _thought(block: Mapping[str, Any], kind: str, at: str, known: Known) -> Iterator[Violation]:
    seal = "signature" if kind == "thinking" else "data"
    value = block.get(seal)
    if "cache_control" in block:
        yield Violation(f"{at}.{kind}.cache_control: Extra inputs are not permitted")
    if kind == "thinking" and not isinstance(block.get("thinking"), str):
        yield Violation(f"{at}.thinking.thinking: Field required")
    elif value is None:
        yield Violation(f"{at}.{kind}.{seal}: Field required")
    elif not isinstance(value, str):
        yield Violation(f"{at}.{kind}.{seal}: Input should be a valid string")
    elif not known.knows(value):
        yield Violation(f"{at}: Invalid `{seal}` in `{kind}` block")
    elif kind == "thinking" and not known.vouches(value, block["thinking"]):
        yield Violation(
            f"{at}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. "
            "These blocks must remain as they were in the original response."
        )


def _result(block: Mapping[str, Any], at: str) -> Iterator[Violation]:
    if not isinstance(block.get("tool_use_id"), str):
        yield Violation(f"{at}.tool_result.tool_use_id: Field required")
    content = block.get("content")
    for position, piece in objects_in(content):
        if piece.get("type") == "text":
            yield from broken_text("messages", piece.get("text"))
        elif block.get("is_error"):
            yield Violation(f"{at}.tool_result: all content must be type `text` if `is_error` is true")
        if "cache_control" in piece:
            where = f"{at}.tool_result.content.{position}.cache_control"
            yield Violation(f"{where}: cache_control cannot be set inside of a tool_result")
    if block.get("is_error") and not content:
        yield Violation(f"{at}.tool_result: content cannot be empty if `is_error` is true")


def _calls(turns: list[Turn]) -> Iterator[Violation]:
    seen: set[str] = set()
    before: list[str] = []
    for position, turn in enumerate(turns):
        answered: set[str] = set()
        for at, block in turn.blocks:
            id = a_text(block.get("tool_use_id"))
            if block.get("type") != "tool_result" or turn.role != "user":
                continue
            if id in answered:
                said = f"each tool_use must have a single result. Found multiple `tool_result` blocks with id: {id}"
                yield Violation(f"{at}: {said}")
            elif id not in before:
                yield Violation(
                    f"{at}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` block "
                    "must have a corresponding `tool_use` block in the previous message."
                )
            answered.add(id)
        before = []
        for at, block in turn.blocks if turn.role == "assistant" else ():
            id = a_text(block.get("id"))
            if block.get("type") == "tool_use":
                if id in seen:
                    yield Violation(f"{at}: `tool_use` ids must be unique")
                seen.add(id)
                before.append(id)
        missing = _unanswered(before, turns[position + 1] if position + 1 < len(turns) else None)
        if missing:
            yield Violation(
                f"messages.{turn.first}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                "next message."
            )


def _unanswered(calls: list[str], after: Turn | None) -> list[str]:
    """Calls without a result at the head of the next turn: those behind other blocks come too late."""
    found: set[str] = set()
    for _, block in after.blocks if after is not None else ():
        if block.get("type") != "tool_result":
            break
        found.add(a_text(block.get("tool_use_id")))
    return [id for id in calls if id not in found]


def _endings(turns: list[Turn]) -> Iterator[Violation]:
    for turn in turns:
        if turn.role == "assistant" and turn.kinds and turn.kinds[-1] in _THOUGHTS:
            said = f"The final block in an assistant message cannot be `{turn.kinds[-1]}`."
            yield Violation(f"messages.{turn.first}: {said}")
    last = turns[-1] if turns else None
    if last is not None and last.role == "assistant" and last.kinds and last.kinds[-1] == "text":
        text = a_text(last.blocks[-1][1].get("text"))
        if text != text.rstrip():
            yield Violation("messages: final assistant content cannot end with trailing whitespace")


def begins_without_thinking(messages: Any) -> Iterator[Violation]:
    """With thinking on, the turn that is still going on must begin with a thought: the last, through its calls."""
    first: tuple[str, dict[str, Any]] | None = None
    for turn in reversed(turns_of(messages)):
        if turn.role == "assistant":
            first = turn.blocks[0] if turn.blocks else None
        elif "tool_result" not in turn.kinds:
            break
    if first is not None and first[1].get("type") not in _THOUGHTS:
        found = f"Expected `thinking` or `redacted_thinking`, but found `{first[1].get('type')}`."
        yield Violation(f"{first[0]}.type: {found} {_THINKING_FIRST}")


def ends_with_assistant(messages: Any) -> bool:
    """Whether the model is to go on from words that stand last; a turn of its own tools is merely unfinished."""
    turns = turns_of(messages)
    return bool(turns) and turns[-1].role == "assistant" and (not turns[-1].kinds or turns[-1].kinds[-1] == "text")
