"""Repair of conversations that a vendor would reject.

Vendors reject calls without results, results without calls, and signed reasoning of other models. Crashes, edits and
changes of vendor produce such conversations. The repair is deterministic, so prompts keep their cached prefix; every
change is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from operator import is_
from typing import Literal, assert_never

from ..types import (
    AudioContent,
    CodeContent,
    DiffContent,
    DocumentContent,
    FileContent,
    ImageContent,
    Message,
    Origin,
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

NO_RESULT = "There is no result: the call was interrupted before it was answered."
"""Error result of an unanswered call. Constant, so that repaired prompts keep their cached prefix."""
ASSISTANT_MEDIA = "(The assistant showed this.)"
"""Text before an assistant's media in a user message."""

# Warnings.
UNANSWERED = "a tool call had no result; an error result was added"
STRAY_RESULT = "a tool result without its call was sent as text"
MOVED_RESULT = "a tool result was moved to its call"
REPEATED_RESULT = "a tool call had several results; the first was kept"
REPEATED_CALL = "a tool call with a duplicate id was renamed"
ONLY_THINKING = "an assistant message with reasoning alone was left out"
MOVED_MEDIA = "media of an assistant message was moved to a user message"
FOREIGN_THINKING_DROPPED = "reasoning of another model was left out"
FOREIGN_THINKING_AS_TEXT = "reasoning of another model was sent as text"
FOREIGN_BLOCK_DROPPED = "a vendor-specific block of another vendor was left out"

ForeignThinking = Literal["drop", "text"]


def repair(
    messages: Sequence[Message],
    origin: Origin,
    foreign_thinking: ForeignThinking = "drop",
    *,
    assistant_media: bool = False,
) -> tuple[list[Message], tuple[str, ...]]:
    """Return the conversation in a form that the target accepts, and warnings about the changes.

    Every call has exactly one result, in the tool messages right after it; reasoning and vendor blocks are the
    target's own; no message is empty. Valid messages are returned as the same objects.

    Args:
        messages: The conversation.
        origin: The target: provider, API and model.
        foreign_thinking: Whether reasoning of other models is dropped or sent as text.
        assistant_media: Whether the API accepts other models' images and documents in assistant messages. Otherwise
            they move to a user message.
    """
    return _Repair(messages, origin, foreign_thinking, assistant_media=assistant_media).run()


def is_own(part: Part, origin: Origin) -> bool:
    """Whether the target made this part, so that it accepts its opaque data."""
    return part.origin is origin or (part.origin is not None and part.origin == origin)


class _Repair:
    """One pass over one conversation."""

    def __init__(
        self,
        messages: Sequence[Message],
        origin: Origin,
        foreign_thinking: ForeignThinking,
        *,
        assistant_media: bool,
    ) -> None:
        self._messages = messages
        self._origin = origin
        self._foreign_thinking = foreign_thinking
        self._assistant_media = assistant_media
        self._repaired: list[Message] = []
        self._warnings: dict[str, None] = {}
        self._unanswered: dict[str, list[ToolCall]] = {}
        """Calls of the latest assistant turn without a result, by the id that their results use."""
        self._call_counts: dict[str, int] = {}
        """Number of calls so far, by id."""
        self._postponed: list[Part] = []
        """Parts for a user message after the turn's last result."""
        self._late_results: dict[tuple[str, int], ToolResult] | None = None
        self._moved: dict[str, ToolResult] = {}
        """Late results that were moved to their calls, by call id."""

    def run(self) -> tuple[list[Message], tuple[str, ...]]:
        tool, assistant = Role.TOOL, Role.ASSISTANT  # looking up enum members is slow in Python 3.11
        for message in self._messages:
            content, role = message.content, message.role
            if isinstance(content, str):
                if role is tool:
                    self._add_text_result(message)
                else:
                    if self._unanswered or self._postponed:
                        self._end_turn()
                    if content:
                        self._repaired.append(message)
                    else:
                        self._drop_keys(message)
            elif role is assistant and _has_result(content):
                pieces = list(_split_results(message))
                if all(piece.role is tool for piece in pieces):
                    self._drop_keys(message)
                for piece in pieces:
                    self._add_parts(piece)
            else:
                self._add_parts(message)
        if self._unanswered or self._postponed:
            self._end_turn()
        return self._repaired, tuple(self._warnings)

    def _add_parts(self, message: Message) -> None:
        if message.role is Role.ASSISTANT:
            self._end_turn()
            self._add_assistant(message)
            return
        parts = message.parts
        if message.role is Role.TOOL or _has_result(parts):
            self._add_results(message, parts)
        else:
            self._end_turn()
            self._append(message, [part for part in parts if self._is_sendable(part)])

    def _append(self, message: Message, parts: Sequence[Part]) -> None:
        """Add a message with the given parts; the same object if they are unchanged."""
        if not parts:
            self._drop_keys(message)
            return
        if len(parts) == len(message.content) and all(map(is_, parts, message.content)):
            self._repaired.append(message)
        else:
            self._repaired.append(message.model_copy(update={"content": tuple(parts)}))

    def _warn(self, warning: str) -> None:
        self._warnings[warning] = None

    def _drop_keys(self, message: Message) -> None:
        """Warn about the name and the vendor's keys of a message that is not sent, or in another form."""
        keys = [*message.extra]
        if message.name is not None and message.role is not Role.TOOL:
            keys.append("name")
        if keys:
            self._warn(f"keys of a message without content of its own were left out: {', '.join(keys)}")

    # Assistant messages.

    def _add_assistant(self, message: Message) -> None:
        parts = [repaired for part in message.parts if (repaired := self._repair_part(part)) is not None]
        if all(isinstance(part, ThinkingContent) for part in parts):
            if parts:
                self._warn(ONLY_THINKING)
            self._drop_keys(message)
            return
        self._append(message, parts)

    def _repair_part(self, part: Part) -> Part | None:
        match part:
            case TextContent():
                return part if part.text or (part.signature and is_own(part, self._origin)) else None
            case ToolCall():
                return self._add_call(part)
            case ThinkingContent():
                return part if is_own(part, self._origin) else self._replace_thinking(part)
            case VendorContent():
                return part if self._is_sendable(part) else None
            case ImageContent() | DocumentContent() | VideoContent() | FileContent() | SearchResultContent():
                if self._assistant_media or is_own(part, self._origin):
                    return part
                self._postpone_media(part)
                return None
            case CodeContent() | DiffContent() | AudioContent() | RefusalContent() | ToolResult():
                return part
            case _:
                assert_never(part)

    def _is_sendable(self, part: Part) -> bool:
        """Whether the target can use a part."""
        if isinstance(part, TextContent):
            return bool(part.text)
        if isinstance(part, VendorContent) and not is_own(part, self._origin):
            self._warn(FOREIGN_BLOCK_DROPPED)
            return False
        return True

    def _replace_thinking(self, part: ThinkingContent) -> TextContent | None:
        if self._foreign_thinking == "text" and part.thinking.strip():
            self._warn(FOREIGN_THINKING_AS_TEXT)
            return TextContent(text=f"<thinking>\n{part.thinking}\n</thinking>\n")
        self._warn(FOREIGN_THINKING_DROPPED)
        return None

    def _postpone_media(self, part: Part) -> None:
        self._warn(MOVED_MEDIA)
        if not self._postponed:
            self._postponed.append(TextContent(text=ASSISTANT_MEDIA))
        self._postponed.append(part)

    def _add_call(self, call: ToolCall) -> ToolCall:
        """Register a call, with another id if its own is a duplicate."""
        id = call.id
        number = self._call_counts[id] = self._call_counts.get(id, 0) + 1
        if number > 1:
            self._warn(REPEATED_CALL)
            while f"{id}#{number}" in self._call_counts:
                number += 1
            call = call.model_copy(update={"id": f"{id}#{number}"})
            self._call_counts[call.id] = 1
        self._unanswered.setdefault(id, []).append(call)  # its result uses the original id
        return call

    # Results.

    def _add_text_result(self, message: Message) -> None:
        """Add a tool message of text alone, which needs no repair if it follows its call."""
        calls = self._unanswered.get(message.tool_call_id) if message.tool_call_id is not None else None
        if calls and calls[0].id == message.tool_call_id and message.name in (None, calls[0].name):
            calls.pop(0)
            self._repaired.append(message)
        else:
            self._add_results(message, message.parts)

    def _add_results(self, message: Message, parts: Sequence[Part]) -> None:
        """Add a message with results. Its other parts follow the turn's last result."""
        results: list[ToolResult] = []
        changed = message.role is not Role.TOOL
        if message.role is Role.TOOL and parts and not _has_result(parts):
            self._warn(STRAY_RESULT)  # it names no call
        for part in parts:
            if isinstance(part, ToolResult) and (calls := self._unanswered.get(part.tool_call_id)):
                result = _fit_result(part, calls.pop(0))
                results.append(result)
                changed = changed or result is not part
                continue
            changed = True
            if not isinstance(part, ToolResult):
                if self._is_sendable(part):
                    self._postponed.append(part)
            elif part.tool_call_id not in self._call_counts:
                self._postpone_stray(part)
            elif self._moved.get(part.tool_call_id) != part:
                self._warn(REPEATED_RESULT)
        if message.role is not Role.TOOL or not results:
            self._drop_keys(message)
        if results:
            extra = message.extra if message.role is Role.TOOL else {}
            self._repaired.append(Message(Role.TOOL, results, extra=extra) if changed else message)

    def _postpone_stray(self, result: ToolResult) -> None:
        """Send a result without a call as text, followed by its media."""
        self._warn(STRAY_RESULT)
        text = f"Result of the tool {result.name or 'call'} ({result.tool_call_id}):\n{result.text}"
        self._postponed.append(TextContent(text=text))
        texts = (
            []
            if isinstance(result.content, str)
            else [part for part in result.content if isinstance(part, TextContent)]
        )
        if keys := [key for part in (result, *texts) for key in part.extra]:
            self._warn(f"keys of a tool result without its call were left out: {', '.join(keys)}")
        if not isinstance(result.content, str):
            self._postponed.extend(part for part in result.content if not isinstance(part, TextContent))

    def _end_turn(self) -> None:
        """Add late results or errors for unanswered calls, and the postponed parts."""
        if self._unanswered:
            results = [
                self._late_result(id, number, call)
                for id, calls in self._unanswered.items()
                for number, call in enumerate(calls, start=self._call_counts[id] - len(calls) + 1)
            ]
            self._unanswered.clear()
            if results:
                self._repaired.append(Message(Role.TOOL, results))
        if self._postponed:
            self._repaired.append(Message(Role.USER, self._postponed))
            self._postponed = []

    def _late_result(self, id: str, number: int, call: ToolCall) -> ToolResult:
        """Find the result of a call after the end of its turn, or create an error."""
        if self._late_results is None:
            self._late_results = _find_late_results(self._messages)
        result = self._late_results.get((id, number))
        if result is None:
            self._warn(UNANSWERED)
            return ToolResult(tool_call_id=call.id, name=call.name, content=NO_RESULT, is_error=True)
        self._warn(MOVED_RESULT)
        self._moved[id] = result
        return result.model_copy(update={"tool_call_id": call.id, "name": call.name})


def _has_result(parts: Sequence[Part]) -> bool:
    for part in parts:  # noqa: SIM110  # twice as fast as `any`, and used for every message
        if isinstance(part, ToolResult):
            return True
    return False


def _split_results(message: Message) -> Iterator[Message]:
    """Split an assistant message that contains results into assistant and tool messages."""
    if message.role is not Role.ASSISTANT or isinstance(message.content, str) or not _has_result(message.content):
        yield message
        return
    for are_results, parts in groupby(message.content, key=lambda part: isinstance(part, ToolResult)):
        if are_results:
            yield Message(Role.TOOL, tuple(parts))
        else:
            yield message.copy_with(content=tuple(parts))


def _fit_result(result: ToolResult, call: ToolCall) -> ToolResult:
    """Set the call's id and name on a result. A missing name stays missing."""
    if result.tool_call_id == call.id and result.name in (None, call.name):
        return result
    return result.model_copy(update={"tool_call_id": call.id, "name": call.name})


def _find_late_results(messages: Sequence[Message]) -> dict[tuple[str, int], ToolResult]:
    """Find results after the end of their call's turn, by id and number of the call with that id."""
    waiting: dict[str, int] = {}
    counts: dict[str, int] = {}
    late: dict[tuple[str, int], ToolResult] = {}
    for message in chain.from_iterable(map(_split_results, messages)):
        if message.role is Role.ASSISTANT:
            waiting = {}
            for call in message.tool_calls or ():
                counts[call.id] = counts.get(call.id, 0) + 1
                waiting[call.id] = waiting.get(call.id, 0) + 1
        elif message.role is Role.TOOL or _has_result(message.parts):
            for part in message.parts:
                if isinstance(part, ToolResult) and (id := part.tool_call_id) in counts:
                    if waiting.get(id):
                        waiting[id] -= 1
                    else:
                        late.setdefault((id, counts[id]), part)
        else:
            waiting = {}
    return late
