"""Preparation of conversations for the Messages API, and its prompt cache markers (`cache_control`).

The API requires a separate system prompt and a user message first, and rejects blank messages and assistant turns that
end with thinking.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, assert_never

from ... import errors
from ...types import (
    AudioContent,
    CodeContent,
    DiffContent,
    DocumentContent,
    FileContent,
    ImageContent,
    Message,
    Part,
    RefusalContent,
    Role,
    SearchResultContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    VendorContent,
    VideoContent,
)
from ..encoding import EncodingContext, JsonDict, to_markdown
from ..repair import FOREIGN_BLOCK_DROPPED, ForeignThinking, repair
from .models import MAX_BREAKPOINTS

PLACEHOLDER = "(nothing was said)"
"""Content of required user messages. Constant, so that cached prefixes stay valid."""

LATE_SYSTEM = "a system message within the conversation was sent as a user message"
PLACEHOLDER_SENT = f"the API requires a user message; {PLACEHOLDER!r} was inserted"
LAST_THINKING = "thinking at the end of an assistant turn was dropped"
NO_SIGNATURE = "thinking without a signature was dropped"
NAME_LEFT_OUT = "the name of a message was dropped: the API does not support it"


def prepare_conversation(
    context: EncodingContext, foreign_thinking: ForeignThinking, *, prefill: bool
) -> tuple[list[TextContent], list[Message]]:
    """Return the system prompt, and messages that the API accepts.

    Args:
        context: The request.
        foreign_thinking: Drop reasoning of other models, or send it as text.
        prefill: Whether the conversation may end with an assistant message that the model continues.
    """
    repaired, warnings = repair(context.request.to_messages(), context.origin, foreign_thinking)
    context.warn(*warnings)
    system, messages = _split_system(repaired, context)
    if not messages:
        raise errors.ConfigurationError("The conversation is empty.", field="messages", fix="Pass input= or messages.")
    # A paused turn is not a prefill.
    if not prefill and messages[-1].role is Role.ASSISTANT and not _has_vendor_block(messages[-1]):
        raise context.feature_error(
            f"{context.model} does not support a prefill: the last message is from the assistant.",
            field="messages",
            fix="End the conversation with a user message.",
        )
    return system, messages


def _split_system(messages: Sequence[Message], context: EncodingContext) -> tuple[list[TextContent], list[Message]]:
    """Return the system prompt, and messages that the API accepts: none if there is no content."""
    system: list[TextContent] = []
    start = 0
    while start < len(messages) and messages[start].role is Role.SYSTEM:
        system += _system_texts(messages[start], context)
        if messages[start].name is not None:
            context.warn(NAME_LEFT_OUT)
        context.drop_extra(messages[start].extra, "a message")
        start += 1
    rest = messages[start:]
    if Role.SYSTEM in [message.role for message in rest]:
        context.warn(LATE_SYSTEM)
        rest = [_as_user(message, context) for message in rest]
    return system, _add_placeholders(rest, _drop_blank(rest, context), context)


def _system_texts(message: Message, context: EncodingContext) -> Iterator[TextContent]:
    for part in message.parts:
        match part:
            case TextContent():
                text = part
            case CodeContent() | DiffContent():
                text = TextContent(text=to_markdown(part), cache=part.cache, extra=part.extra)
            case VendorContent():
                context.warn(FOREIGN_BLOCK_DROPPED)
                continue
            case (
                ImageContent()
                | DocumentContent()
                | AudioContent()
                | VideoContent()
                | FileContent()
                | SearchResultContent()
                | ThinkingContent()
                | RefusalContent()
                | ToolCall()
                | ToolResult()
            ):
                raise context.part_error(part, "in a system message")
            case _:
                assert_never(part)
        if text.text.strip():
            yield text


def _as_user(message: Message, context: EncodingContext) -> Message:
    """Convert a system message to a user message. A plain string is encoded as user text anyway."""
    if message.role is not Role.SYSTEM or isinstance(message.content, str):
        return message
    return Message(Role.USER, tuple(_system_texts(message, context)), name=message.name)


def _drop_blank(messages: Sequence[Message], context: EncodingContext) -> list[Message]:
    """Drop blank messages, and thinking at the end of assistant turns."""
    kept: list[Message] = []
    turn_continues = False
    tool, assistant = Role.TOOL, Role.ASSISTANT  # looking up enum members is slow in Python 3.11
    for message in reversed(messages):
        content, role = message.content, message.role
        if role is tool:
            pass  # a call requires its result, even a blank one
        elif isinstance(content, str):
            if not content or content.isspace():
                continue
        elif role is assistant and not turn_continues and _is_thinking_or_blank(content[-1]):
            length = len(content)
            while length and _is_thinking_or_blank(content[length - 1]):
                length -= 1
            if any(isinstance(part, ThinkingContent) for part in content[length:]):
                context.warn(LAST_THINKING)
            if not length:
                continue
            message = message.model_copy(update={"content": content[:length]})
        elif all(map(is_blank, content)):
            if any(isinstance(part, ThinkingContent) for part in content):
                context.warn(NO_SIGNATURE)
            continue
        turn_continues = role is assistant
        kept.append(message)
    kept.reverse()
    return kept


def _add_placeholders(original: Sequence[Message], kept: list[Message], context: EncodingContext) -> list[Message]:
    """Add user messages at the start, and at the end in place of a blank one."""
    ended_with_user = bool(original) and original[-1].role is not Role.ASSISTANT
    if original and (not kept or (kept[-1].role is Role.ASSISTANT and ended_with_user)):
        kept.append(Message(Role.USER, PLACEHOLDER))
        context.warn(PLACEHOLDER_SENT)
    if kept and kept[0].role is Role.ASSISTANT:
        kept.insert(0, Message(Role.USER, PLACEHOLDER))
        context.warn(PLACEHOLDER_SENT)
    return kept


def is_blank(part: Part) -> bool:
    """Whether the API rejects a part: blank text, or thinking without a signature."""
    match part:
        case TextContent():
            return not (part.text.strip() or part.signature)
        case ThinkingContent():
            return not (part.signature or (part.redacted and part.encrypted_content))
        case RefusalContent():
            return not part.refusal.strip()
        case _:
            return False


def _is_thinking_or_blank(part: Part) -> bool:
    return isinstance(part, ThinkingContent) or is_blank(part)


def _has_result(message: Message) -> bool:
    if message.role is Role.TOOL and message.tool_call_id is not None:
        return True
    return not isinstance(message.content, str) and any(isinstance(part, ToolResult) for part in message.content)


def _has_vendor_block(message: Message) -> bool:
    return any(isinstance(part, VendorContent) for part in message.parts)


def turn_starts_with_thinking(messages: Sequence[Message]) -> bool:
    """Whether the current turn starts with thinking. True if the model starts a new turn.

    Tool results and an assistant message at the end continue a turn.
    """
    first: Message | None = None
    answered_by_user, has_result = False, False
    for message in reversed(messages):
        if message.role is not Role.ASSISTANT:
            answered_by_user, has_result = True, has_result or _has_result(message)
        elif answered_by_user and not has_result:
            break
        else:
            first, answered_by_user, has_result = message, False, False
    if first is None:
        return True
    return isinstance(next((part for part in first.parts if not is_blank(part)), None), ThinkingContent)


# Prompt cache markers.

TOO_MANY_BREAKPOINTS = f"anthropic supports {MAX_BREAKPOINTS} prompt cache markers; the first ones were dropped"
SHORTENED = "a 1h prompt cache marker cannot follow a 5m one; it was changed to 5m"

CacheHint: TypeAlias = Literal["short", "long"]


@dataclass(slots=True)
class CacheSlot:
    """A block that has a cache marker, or may get one."""

    block: JsonDict
    hint: CacheHint | None = None
    fixed: bool = False
    """The caller wrote the marker in the vendor's format. It is sent unchanged, and counts toward the limit."""


def read_cache_slot(block: JsonDict, control: Any) -> CacheSlot:
    is_long = isinstance(control, Mapping) and control.get("ttl") == "1h"
    return CacheSlot(block, "long" if is_long else "short", fixed=True)


def add_cache_markers(context: EncodingContext, sections: Sequence[Sequence[CacheSlot]]) -> None:
    """Add prompt cache markers (`cache_control`).

    Blocks with a hint get one. With `request.cache`, so does the last block of each section.

    Args:
        context: The request.
        sections: The slots of tools, system prompt and messages, in the order of the prompt.
    """
    request = context.request
    for section in sections if request.cache is not None else ():
        if last := next((slot for slot in reversed(section) if not slot.fixed), None):
            last.hint = last.hint or request.cache
    slots = [slot for section in sections for slot in section if slot.hint is not None]
    if control := request.extra.get("cache_control"):
        slots.append(read_cache_slot({}, control))
    slots = _limit(slots, context)
    _order(slots, context)
    for slot in slots:
        if not slot.fixed and slot.hint is not None:
            lifetime = {"ttl": "1h"} if slot.hint == "long" else {}
            slot.block.setdefault("cache_control", {"type": "ephemeral", **lifetime})


def _limit(slots: list[CacheSlot], context: EncodingContext) -> list[CacheSlot]:
    """Drop the first markers if there are too many."""
    excess = len(slots) - MAX_BREAKPOINTS
    if excess <= 0:
        return slots
    dropped = [id(slot) for slot in slots if not slot.fixed][:excess]
    if dropped:
        context.warn(TOO_MANY_BREAKPOINTS)
    return [slot for slot in slots if id(slot) not in dropped]


def _order(slots: Sequence[CacheSlot], context: EncodingContext) -> None:
    """Lengthen or shorten markers, because a long one must not follow a short one."""
    first_short = next((number for number, slot in enumerate(slots) if slot.fixed and slot.hint == "short"), len(slots))
    long_follows = False
    for number, slot in reversed([*enumerate(slots)]):
        if not slot.fixed:
            if long_follows:
                slot.hint = "long"
            if slot.hint == "long" and number > first_short:
                context.warn(SHORTENED)
                slot.hint = "short"
        long_follows = long_follows or (slot.hint == "long" and number < first_short)
