"""A conversation made fit for any vendor, whoever wrote its turns.

Every vendor refuses a call without its result, a result without its call, and sealed reasoning that it did not make.
Conversations get that way: by a crash between call and result, by an edit, by a change of vendor. `repair` mends them
the same way each time, so that a prompt cache still finds its prefix, and says what it had to change. A conversation
that is in order comes back as the very same messages, whose encoded bytes can be reused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, TypeAlias

from ..types import (
    DocumentContent,
    ImageContent,
    Message,
    Origin,
    Part,
    Role,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    VendorContent,
)
from ..types.notes import kept_notes, notes_on
from .beginnings import Begun

NO_RESULT = "There is no result: the call was interrupted before it was answered."
"""What a model is told about a call that nobody answered. Constant, so that repaired prompts stay the same."""

UNANSWERED = "a tool call without a result was answered with an error"
STRAY_RESULT = "a tool result without its call was told as text"
MOVED_RESULT = "a tool result was moved to its call"
REPEATED_RESULT = "a tool call had several results; the first was kept"
REPEATED_CALL = "a tool call's id was used before; the call was renamed"
ONLY_THINKING = "a turn of reasoning alone was left out of the conversation"
MOVED_MEDIA = "what an assistant showed was moved to a user's message"
FOREIGN_THINKING_DROPPED = "reasoning made elsewhere was left out of the conversation"
FOREIGN_THINKING_TOLD = "reasoning made elsewhere was told as text"
FOREIGN_BLOCK_DROPPED = "a block that only its vendor understands was left out of the conversation"


_ASSISTANT, _TOOL = Role.ASSISTANT, Role.TOOL  # looked up once: that would cost more than a turn that is in order

SHOWN = "(The assistant showed this.)"
"""What stands before pictures and documents that an assistant made, where assistants cannot show any."""


def is_home(part: Part, home: Origin) -> bool:
    """Whether a part's opaque data was made by the very model that it would be sent to."""
    origin = part.origin
    return origin is home or (origin is not None and origin == home)  # pydantic's comparison takes its time


@dataclass(slots=True)
class _Repair:
    """One pass over one conversation."""

    home: Origin
    foreign_thinking: Literal["drop", "text"]
    shows: bool
    """Whether assistants' messages may hold pictures and documents that were made elsewhere."""
    key: str = ""
    """Of the notes on messages that depend on `home` and `shows`."""
    out: list[Message] = field(default_factory=list)
    warnings: dict[str, None] = field(default_factory=dict)
    open: dict[str, list[ToolCall]] = field(default_factory=dict)
    """Calls of the latest assistant's turn that have no result yet, by the id that their results name."""
    known: dict[str, int] = field(default_factory=dict)
    """Ids of all calls so far, and how many calls came under each."""
    said: list[Part] = field(default_factory=list)
    """What was said among results, while other results were still to come."""
    late: dict[tuple[str, int], ToolResult] | None = None
    """Results that come too late, by the call's id and which of the calls under that id it is; looked for when a call
    is found to lack its own."""
    moved: dict[str, ToolResult] = field(default_factory=dict)
    """Late results that have been moved to their calls, by the calls' ids."""

    def warn(self, warning: str) -> None:
        self.warnings[warning] = None


def repair(
    messages: Sequence[Message],
    home: Origin,
    foreign_thinking: Literal["drop", "text"] = "drop",
    *,
    assistants_show: bool = False,
    begun: Begun | None = None,
) -> tuple[Sequence[Message], tuple[str, ...]]:
    """The conversation as `home` can take it, and warnings about what had to be changed.

    Afterwards every call has exactly one result, in the tool messages that directly follow it; reasoning and vendor's
    blocks are `home`'s own; and no message is empty. Unless `assistants_show`, pictures and documents made
    elsewhere stand in users' messages only. A beginning that was `begun` before was in order then, and is now.
    """
    key = f"history/{home.provider}/{home.api}/{home.model}/{assistants_show:d}"
    if _is_in_order(messages, key, home, assistants_show, begun):
        return messages, ()
    state = _Repair(home, foreign_thinking, assistants_show, key)
    for message in messages:
        role = message.role
        order = _order_of(message, key, home, assistants_show)
        if order is not _UNFIT and _take_in_order(*order, state):
            state.out.append(message)
        elif role is Role.ASSISTANT and _has(message, ToolResult):
            return repair(_results_apart(messages), home, foreign_thinking, assistants_show=assistants_show)
        elif role is Role.TOOL or _has(message, ToolResult):
            _take_results(message, state)
        else:
            _close(state, messages)
            if role is Role.ASSISTANT:
                _take_assistant(message, state)
            elif (said := _said(message, state)) is not None:
                state.out.append(said)
    _close(state, messages)
    return state.out, tuple(state.warnings)


_Calls: TypeAlias = tuple[tuple[str, str, ToolCall], ...]
"""The calls of a message: id and name beside each, because a long conversation asks for them in every turn."""
_Results: TypeAlias = tuple[tuple[str, str | None], ...]
"""Ids and names of the results in a message."""
_Order: TypeAlias = tuple[_Calls, _Results]
_SPOKEN: _Order = ((), ())
"""Of a message that neither calls nor answers."""
_UNFIT: _Order = (), (("", None), ("", None))
"""Of a message in which something has to be changed: it answers what was not asked, which is out of order anywhere."""


def _is_in_order(messages: Sequence[Message], key: str, home: Origin, shows: bool, begun: Begun | None = None) -> bool:
    """Whether nothing has to be changed. What matters of a message is kept with it: it is looked into only once."""
    open: dict[str, str] = {}
    known: set[str] = set() if begun is None else begun.calls
    earlier = begun if begun is not None and begun.pieces else None
    for message in messages if begun is None else begun.unknown:
        if type(message.content) is str and message.role is not _TOOL:
            if open or not message.content:
                return False
            continue
        try:
            calls, results = kept_notes(message)[key]
        except (AttributeError, KeyError):
            calls, results = _order_of(message, key, home, shows)
        if results:
            for id, name in results:
                asked = open.pop(id, None)
                if asked is None or (name is not None and name != asked):
                    return False
        elif open:
            return False
        elif calls:
            for id, name, _ in calls:
                if id in known or (earlier is not None and earlier.names(id)):
                    return False
                known.add(id)
                open[id] = name
    return not open


def _order_of(message: Message, key: str, home: Origin, shows: bool) -> _Order:
    """The calls and results of a message in which nothing has to be changed; `_UNFIT` if something has to.

    Words alone are seen at a glance; what else there is in a message is looked for once.
    """
    if type(message.content) is str and message.role is not _TOOL:
        return _SPOKEN if message.content else _UNFIT
    notes = notes_on(message)
    order: _Order | None = notes.get(key)
    if order is None:
        order = notes[key] = _looked_into(message, home, shows)
    return order


def _looked_into(message: Message, home: Origin, shows: bool) -> _Order:
    content, role = message.content, message.role
    if role is _TOOL:
        results = _results_in(message)
        return ((), results) if results else _UNFIT
    if isinstance(content, str):
        return _SPOKEN if content else _UNFIT
    if role is not _ASSISTANT:
        return _SPOKEN if content and all(_is_fit_to_say(part, home) for part in content) else _UNFIT
    return _order_of_turn(content, home, shows)


def _results_in(message: Message) -> _Results | None:
    """Ids and names of the results in a tool's message that holds nothing else; None if it does."""
    content, id = message.content, message.tool_call_id
    if id is not None and (isinstance(content, str) or not _has(message, ToolResult)):
        return ((id, message.name),)
    parts: Sequence[Part] = () if isinstance(content, str) else content
    results = tuple((part.tool_call_id, part.name) for part in parts if isinstance(part, ToolResult))
    return results if len(results) == len(parts) else None


def _order_of_turn(parts: Sequence[Part], home: Origin, shows: bool) -> _Order:
    calls: list[tuple[str, str, ToolCall]] = []
    speaks = False
    for part in parts:
        if isinstance(part, ToolCall):
            calls.append((part.id, part.name, part))
        elif isinstance(part, TextContent):
            if not part.text and not (part.signature and is_home(part, home)):
                return _UNFIT
            speaks = True
        elif isinstance(part, ThinkingContent | VendorContent):
            if not is_home(part, home):
                return _UNFIT
            speaks = speaks or isinstance(part, VendorContent)
        elif isinstance(part, ToolResult) or (not shows and _is_shown(part, home)):
            return _UNFIT
        else:
            speaks = True
    if not calls:
        return _SPOKEN if speaks else _UNFIT
    return (tuple(calls), ()) if len(calls) == 1 or len({id for id, _, _ in calls}) == len(calls) else _UNFIT


def _is_fit_to_say(part: Part, home: Origin) -> bool:
    """Whether a part in a message that is not the model's can stay as it is."""
    if isinstance(part, TextContent):
        return bool(part.text)
    return not isinstance(part, ToolResult) and (not isinstance(part, VendorContent) or is_home(part, home))


def _is_shown(part: Part, home: Origin) -> bool:
    """Whether a part is something to look at that another model made, or nobody knows who."""
    return isinstance(part, ImageContent | DocumentContent) and not is_home(part, home)


def _take_in_order(calls: _Calls, results: _Results, state: _Repair) -> bool:
    """Take a message that is in order itself, if it is so where it stands, too; False, and nothing taken, if not."""
    if results:
        for id, name in results:
            waiting = state.open.get(id)
            if waiting is None or len(waiting) != 1 or waiting[0].id != id or name not in (None, waiting[0].name):
                return False
        if len(results) > 1 and len({id for id, _ in results}) != len(results):
            return False
        for id, _ in results:
            del state.open[id]
        return True
    if state.open or state.said or not state.known.keys().isdisjoint([id for id, _, _ in calls]):
        return False
    for id, _, call in calls:
        state.known[id] = 1
        state.open[id] = [call]
    return True


def _has(message: Message, kind: type[Part]) -> bool:
    content = message.content
    return not isinstance(content, str) and any(isinstance(part, kind) for part in content)


def _said(message: Message, state: _Repair) -> Message | None:
    """What somebody other than the model said; None if nothing is left of it."""
    if isinstance(message.content, str):
        return message if message.content else None
    parts = tuple(part for part in message.content if _says_something(part, state))
    if len(parts) == len(message.content):
        return message if parts else None
    return message.model_copy(update={"content": parts}) if parts else None


def _says_something(part: Part, state: _Repair) -> bool:
    if isinstance(part, VendorContent) and not is_home(part, state.home):
        state.warn(FOREIGN_BLOCK_DROPPED)
        return False
    return not isinstance(part, TextContent) or bool(part.text)


def _results_out_of_place(messages: Sequence[Message]) -> dict[tuple[str, int], ToolResult]:
    """Results that come after something else has been said since their call: each belongs to the latest of its id."""
    waiting: dict[str, int] = {}
    seen: dict[str, int] = {}
    late: dict[tuple[str, int], ToolResult] = {}
    for message in messages:
        if message.role is Role.ASSISTANT:
            waiting = {}
            for call in message.tool_calls or ():
                seen[call.id] = seen.get(call.id, 0) + 1
                waiting[call.id] = waiting.get(call.id, 0) + 1
        if message.role is Role.TOOL or _has(message, ToolResult):
            for part in message.parts:
                if isinstance(part, ToolResult) and (id := part.tool_call_id) in seen:
                    if waiting.get(id):
                        waiting[id] -= 1
                    else:
                        late.setdefault((id, seen[id]), part)
        elif message.role is not Role.ASSISTANT:
            waiting = {}
    return late


def _results_apart(messages: Sequence[Message]) -> list[Message]:
    """The conversation with the results that stand in assistants' messages in messages of their own."""
    apart: list[Message] = []
    for message in messages:
        if message.role is not Role.ASSISTANT or not _has(message, ToolResult):
            apart.append(message)
            continue
        for results, parts in groupby(message.parts, key=lambda part: isinstance(part, ToolResult)):
            apart.append(Message(Role.TOOL if results else Role.ASSISTANT, tuple(parts)))
    return apart


def _take_assistant(message: Message, state: _Repair) -> None:
    if isinstance(message.content, str):
        if message.content:
            state.out.append(message)
        return
    ids = [part.id for part in message.content if isinstance(part, ToolCall)]
    if len(set(ids)) == len(ids) and state.known.keys().isdisjoint(ids):
        _take_new_turn(message, state)
    else:
        _take_turn(message, state)


def _take_new_turn(message: Message, state: _Repair) -> None:
    """A turn whose calls need no other ids. What becomes of it is kept, or each request would write it anew."""
    notes, key = notes_on(message), f"{state.key}/{state.foreign_thinking}"
    if (known := notes.get(key)) is None:
        alone = _Repair(state.home, state.foreign_thinking, state.shows, state.key)
        _take_turn(message, alone)
        if alone.out and alone.out[0] is message:
            alone.out = []  # a note must not hold what it stands on
            known = alone, True
        else:
            known = alone, False
        notes[key] = known
    alone, unchanged = known
    state.warnings.update(alone.warnings)
    state.known.update(alone.known)
    state.open.update({id: [*calls] for id, calls in alone.open.items()})
    state.said.extend(alone.said)
    state.out.extend((message,) if unchanged else alone.out)


def _take_turn(message: Message, state: _Repair) -> None:
    parts: list[Part] = []
    changed = False
    shown: list[Part] = []
    for part in message.content:
        assert not isinstance(part, str)
        if not state.shows and _is_shown(part, state.home):
            shown.append(part)
            changed = True
            continue
        taken = _taken(part, state)
        changed = changed or taken is not part
        if taken is not None:
            parts.append(taken)
    if shown:
        state.warn(MOVED_MEDIA)
        state.said.extend((TextContent(text=SHOWN), *shown))
    if all(isinstance(part, ThinkingContent) for part in parts):
        if parts:  # a turn in which nothing follows the thinking says nothing
            state.warn(ONLY_THINKING)
        return
    state.out.append(message.changed(content=tuple(parts)) if changed else message)


def _taken(part: Part, state: _Repair) -> Part | None:
    match part:
        case TextContent():
            return part if part.text or (part.signature and is_home(part, state.home)) else None
        case ThinkingContent() if not is_home(part, state.home):
            if state.foreign_thinking == "text" and part.thinking.strip():
                state.warn(FOREIGN_THINKING_TOLD)
                return TextContent(text=f"<thinking>\n{part.thinking}\n</thinking>\n")
            state.warn(FOREIGN_THINKING_DROPPED)
            return None
        case VendorContent() if not is_home(part, state.home):
            state.warn(FOREIGN_BLOCK_DROPPED)
            return None
        case ToolCall():
            return _taken_call(part, state)
        case _:
            return part


def _taken_call(call: ToolCall, state: _Repair) -> ToolCall:
    number = state.known[call.id] = state.known.get(call.id, 0) + 1
    taken = call
    if number > 1:
        state.warn(REPEATED_CALL)
        while f"{call.id}#{number}" in state.known:
            number += 1
        taken = call.model_copy(update={"id": f"{call.id}#{number}"})
        state.known[taken.id] = 1
    state.open.setdefault(call.id, []).append(taken)  # its result still says the old id
    return taken


def _take_results(message: Message, state: _Repair) -> None:
    """A message with results in it. Results answer calls; everything else is said after the last of them."""
    parts: list[Part] = []
    said: list[Part] = []
    changed = False
    for part in message.parts:
        if not isinstance(part, ToolResult):
            if _says_something(part, state):
                said.append(part)
            continue
        waiting = state.open.get(part.tool_call_id)
        if waiting:
            call = waiting.pop(0)
            fitted = _fitted(part, call)
            changed = changed or fitted is not part
            parts.append(fitted)
        elif part.tool_call_id in state.known:
            changed = True
            if state.moved.get(part.tool_call_id) != part:
                state.warn(REPEATED_RESULT)
        else:
            changed = True
            state.warn(STRAY_RESULT)
            told = f"Result of the tool {part.name or 'call'} ({part.tool_call_id}):\n{part.text}"
            said.append(TextContent(text=told))
            if not isinstance(part.content, str):
                said.extend(inner for inner in part.content if not isinstance(inner, TextContent))
    if message.role is Role.TOOL and said and not _has(message, ToolResult) and message.tool_call_id is None:
        state.warn(STRAY_RESULT)  # it names no call at all
    if parts and not changed and not said and message.role is Role.TOOL:
        state.out.append(message)
        return
    if parts:
        state.out.append(Message(Role.TOOL, parts))
    state.said.extend(said)


def _fitted(result: ToolResult, call: ToolCall) -> ToolResult:
    """A result under its call's id, with the call's name, which some vendors ask for."""
    if result.tool_call_id == call.id and result.name == call.name:
        return result
    if result.tool_call_id == call.id and result.name is None:
        return result  # codecs that need the name look it up themselves; the message stays the same object
    return result.model_copy(update={"tool_call_id": call.id, "name": call.name})


def _close(state: _Repair, messages: Sequence[Message]) -> None:
    """Before something else is said, every open call gets its result: the one that comes too late, or an error."""
    answers = [
        _late_answer(id, number, call, state, messages)
        for id, calls in state.open.items()
        for number, call in enumerate(calls, start=state.known[id] - len(calls) + 1)
    ]
    state.open.clear()
    if answers:
        state.out.append(Message(Role.TOOL, answers))
    if state.said:
        state.out.append(Message(Role.USER, state.said))
        state.said = []


def _late_answer(id: str, number: int, call: ToolCall, state: _Repair, messages: Sequence[Message]) -> ToolResult:
    """The result of a call that came as the given one under that id."""
    if state.late is None:
        state.late = _results_out_of_place(messages)
    result = state.late.get((id, number))
    if result is None:
        state.warn(UNANSWERED)
        return ToolResult(tool_call_id=call.id, name=call.name, content=NO_RESULT, is_error=True)
    state.warn(MOVED_RESULT)
    state.moved[id] = result
    return result.model_copy(update={"tool_call_id": call.id, "name": call.name})
