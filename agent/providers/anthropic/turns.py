"""The conversation in the shape that the Messages API asks for, and where its cache breakpoints stand.

Turns of user and assistant, the user first; instructions apart from them; no turn that says nothing; reasoning never
last in its turn. How a part is written down is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...types import (
    AgentRequest,
    CodeContent,
    DiffContent,
    Message,
    Origin,
    Part,
    Role,
    TextContent,
    ThinkingContent,
    ToolResult,
    ToolSpec,
    VendorContent,
)
from ...types.notes import notes_on
from ..beginnings import Begun
from ..repair import FOREIGN_BLOCK_DROPPED
from ..writing import as_markdown, cannot_take
from .blocks import NAME_LEFT_OUT, says_nothing, why_left_out
from .family import API, MOST_MARKS

NOTHING_SAID = "(nothing was said)"
"""Stands for a user's turn without words where the API needs one. Constant, so that prompts stay the same."""

LATE_SYSTEM = "anthropic takes instructions only at the start; a later system message was told as the user's"
STOOD_IN = f"the API needs a user's turn where nothing was said; it was sent as {NOTHING_SAID!r}"
LAST_THINKING = "reasoning that nothing follows was left out of the conversation"
TOO_MANY_MARKS = f"anthropic takes {MOST_MARKS} cache marks; the first of them were left out"
MARK_ON_NOTHING = "a cache mark on a part that cannot hold one was left out"
SHORTER_MARK = "a cache mark for an hour cannot follow one for minutes; it was shortened"

_USER, _ASSISTANT = Role.USER, Role.ASSISTANT  # looked up once: enums are slow to ask
_STAND_IN = Message(Role.USER, NOTHING_SAID)


@dataclass(slots=True)
class Turns:
    """A conversation, its instructions apart."""

    system: list[TextContent] = field(default_factory=list)
    messages: Sequence[Message] = ()
    notable: list[tuple[int, int, Part]] = field(default_factory=list)
    """Parts that may hold a cache hint and blocks of the vendor's, each with its message's and its own number."""
    warnings: list[str] = field(default_factory=list)
    begun: Begun | None = None
    """What is known of how the conversation begins, if it was left as it was."""


Notable: TypeAlias = tuple[tuple[int, int, Part], ...]


def take_turns(messages: Sequence[Message], home: Origin, begun: Begun | None = None) -> Turns:
    """A repaired conversation as turns. Without any message at all, `messages` is empty."""
    turns = Turns()
    leading = 0
    while leading < len(messages) and messages[leading].role is Role.SYSTEM:
        turns.system.extend(_instructions(messages[leading], turns, home))
        if messages[leading].name is not None:
            turns.warnings.append(NAME_LEFT_OUT)
        leading += 1
    rest = messages[leading:]
    known: Notable = ()
    if begun is None:
        looks = _looks_at(rest)
    else:
        known = () if begun.state is None else begun.state.notable
        looks = _looks_at(begun.messages[begun.start :], begun.start - begun.first)
    if not rest or rest[0].role is Role.ASSISTANT or not all(stays for _, (stays, _) in looks):
        rest = _in_shape(rest, turns, home)
        looks, known, begun = _looks_at(rest), (), None
    turns.messages = rest
    turns.notable = [*known, *((number, *found) for number, (_, notable) in looks for found in notable)]
    turns.begun = begun
    return turns


_Look: TypeAlias = tuple[bool, tuple[tuple[int, Part], ...]]
"""Whether a message is sent as it is, whatever stands around it; and its parts that are notable, with their numbers."""
_LOOK = f"{API}/turn"
_PLAIN: _Look = (True, ())


def _looks_at(messages: Sequence[Message], start: int = 0) -> list[tuple[int, _Look]]:
    """What there is to know about messages, each with its number, but for those that are sent as they are.

    Words alone are seen at a glance; what is found out about other messages is kept with them.
    """
    looks: list[tuple[int, _Look]] = []
    for number, message in enumerate(messages, start):
        content, role = message.content, message.role
        if type(content) is str and (role is _USER or role is _ASSISTANT) and content and not content.isspace():
            continue
        notes = notes_on(message)
        if (look := notes.get(_LOOK)) is None:
            look = notes[_LOOK] = _look_into(message)
        if look is not _PLAIN:
            looks.append((number, look))
    return looks


def _look_into(message: Message) -> _Look:
    content, role = message.content, message.role
    if isinstance(content, str):
        return _PLAIN if role is Role.TOOL or (role is not Role.SYSTEM and content.strip()) else (False, ())
    parts = message.parts if role is Role.TOOL else content
    notable = tuple([found for found in enumerate(parts) if _is_notable(found[1])])
    match role:
        case Role.TOOL:
            stays = True  # a call needs its result, whatever that says
        case Role.ASSISTANT:
            stays = not _is_silent(content[-1])
        case Role.USER:
            stays = not all(map(says_nothing, content))
        case Role.SYSTEM:
            stays = False
    return (stays, notable) if notable or not stays else _PLAIN


def _is_notable(part: Part) -> bool:
    if part.cache is not None or isinstance(part, VendorContent):
        return True
    if not isinstance(part, ToolResult) or isinstance(part.content, str):
        return False
    return any(inner.cache is not None for inner in part.content)


def _in_shape(messages: Sequence[Message], turns: Turns, home: Origin) -> list[Message]:
    if any(message.role is Role.SYSTEM for message in messages):
        turns.warnings.append(LATE_SYSTEM)
        messages = [_told_by_the_user(message, turns, home) for message in messages]
    kept = list(_with_something_to_say(messages, turns))
    kept.reverse()
    if messages and (not kept or (kept[-1].role is Role.ASSISTANT and messages[-1].role is not Role.ASSISTANT)):
        kept.append(_STAND_IN)
        turns.warnings.append(STOOD_IN)
    if kept and kept[0].role is Role.ASSISTANT:
        kept.insert(0, _STAND_IN)
        turns.warnings.append(STOOD_IN)
    return kept


def _told_by_the_user(message: Message, turns: Turns, home: Origin) -> Message:
    if message.role is not Role.SYSTEM or isinstance(message.content, str):
        return message
    return Message(Role.USER, tuple(_instructions(message, turns, home)), name=message.name)


def _instructions(message: Message, turns: Turns, home: Origin) -> Iterator[TextContent]:
    for part in message.parts:
        match part:
            case TextContent():
                text = part
            case CodeContent() | DiffContent():
                text = TextContent(text=as_markdown(part), cache=part.cache)
            case VendorContent():
                turns.warnings.append(FOREIGN_BLOCK_DROPPED)
                continue
            case _:
                raise cannot_take(part, "in a system message", provider=home.provider, model=home.model)
        if text.text.strip():
            yield text


def _with_something_to_say(messages: Sequence[Message], turns: Turns) -> Iterator[Message]:
    """The messages from last to first, without those that say nothing and without reasoning that nothing follows."""
    assistant_follows = False
    for message in reversed(messages):
        content = message.content
        if message.role is Role.TOOL:
            pass  # a call needs its result, whatever that says
        elif isinstance(content, str):
            if not content.strip():
                continue
        elif message.role is Role.ASSISTANT and not assistant_follows and _is_silent(content[-1]):
            length = len(content)
            while length and _is_silent(content[length - 1]):
                length -= 1
            if any(isinstance(part, ThinkingContent) for part in content[length:]):
                turns.warnings.append(LAST_THINKING)
            if not length:
                continue
            message = message.model_copy(update={"content": content[:length]})
        elif all(map(says_nothing, content)):
            turns.warnings.extend(why for part in content if (why := why_left_out(part)) is not None)
            continue
        assistant_follows = message.role is Role.ASSISTANT
        yield message


def _is_silent(part: Part) -> bool:
    return isinstance(part, ThinkingContent) or says_nothing(part)


def _brings_results(message: Message) -> bool:
    if message.role is Role.TOOL and message.tool_call_id is not None:
        return True
    return not isinstance(message.content, str) and any(isinstance(part, ToolResult) for part in message.content)


def begins_with_thinking(turns: Turns) -> bool:
    """Whether the turn that the model is to go on with begins with its reasoning; True if it begins a new one.

    A turn goes on after tool results, and where an assistant's message stands last.
    """
    begins: Message | None = None
    said, answered = False, False  # whether the user speaks after that message, and whether that brings results
    for message in reversed(turns.messages):
        if message.role is not Role.ASSISTANT:
            said, answered = True, answered or _brings_results(message)
        elif said and not answered:
            break
        else:
            begins, said, answered = message, False, False
    if begins is None:
        return True
    return isinstance(next((part for part in begins.parts if not says_nothing(part)), None), ThinkingContent)


def ends_with_prefill(turns: Turns) -> bool:
    """Whether the model is to go on from words put into its mouth. A turn that it paused itself does not count."""
    last = turns.messages[-1]
    return last.role is Role.ASSISTANT and not any(isinstance(part, VendorContent) for part in last.parts)


Place: TypeAlias = tuple[int, int, int]
"""Section (tools, system, messages), number there, number of the part: in the order in which the API reads."""
_TOOLS, _SYSTEM, _MESSAGES, _END = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Marks:
    """Cache breakpoints: hints by tool, by part of the instructions, and by message and part."""

    tools: Mapping[int, str]
    system: Mapping[int, str]
    messages: Mapping[int, Mapping[int, str]]
    warnings: tuple[str, ...] = ()


_NO_MARKS = Marks({}, {}, {})


def place_marks(request: AgentRequest, turns: Turns) -> Marks:
    """Where breakpoints go: where parts and tools ask for them, and with `request.cache` at the end of each section."""
    if request.cache is None and not (request.tools or turns.system or turns.notable):
        return _NO_MARKS
    warnings: list[str] = []
    wanted = dict(_asked_for(request, turns, warnings))
    if request.cache is not None:
        for place in _ends(request, turns):
            wanted.setdefault(place, request.cache)
    if not wanted:
        return Marks({}, {}, {}, tuple(warnings)) if warnings else _NO_MARKS
    fixed = dict(_fixed(request, turns))
    room = max(0, MOST_MARKS - len(fixed))
    places = sorted(wanted)
    if len(places) > room:
        warnings.append(TOO_MANY_MARKS)
        places = places[len(places) - room :]
    hints = _in_order({place: wanted[place] for place in places}, fixed, warnings)
    messages: dict[int, dict[int, str]] = {}
    for (section, number, part), hint in hints.items():
        if section == _MESSAGES:
            messages.setdefault(number, {})[part] = hint
    tools = {number: hint for (section, number, _), hint in hints.items() if section == _TOOLS}
    system = {number: hint for (section, number, _), hint in hints.items() if section == _SYSTEM}
    return Marks(tools, system, messages, tuple(warnings))


def _asked_for(request: AgentRequest, turns: Turns, warnings: list[str]) -> Iterator[tuple[Place, str]]:
    for number, tool in enumerate(request.tools):
        if isinstance(tool, ToolSpec) and tool.cache is not None:
            yield (_TOOLS, number, 0), tool.cache
    for number, text in enumerate(turns.system):
        if text.cache is not None:
            yield (_SYSTEM, number, 0), text.cache
    for number, position, part in turns.notable:
        hint = part.cache
        if hint is None and isinstance(part, ToolResult) and not isinstance(part.content, str):
            # Only whole results can be marked.
            hint = next((inner.cache for inner in reversed(part.content) if inner.cache is not None), None)
        if hint is None:
            continue
        if _can_be_marked(part):
            yield (_MESSAGES, number, position), hint
        else:
            warnings.append(MARK_ON_NOTHING)


def _can_be_marked(part: Part) -> bool:
    return not isinstance(part, ThinkingContent | VendorContent) and not says_nothing(part)


def _ends(request: AgentRequest, turns: Turns) -> Iterator[Place]:
    own = [number for number, tool in enumerate(request.tools) if isinstance(tool, ToolSpec)]
    if own:
        yield (_TOOLS, own[-1], 0)
    if turns.system:
        yield (_SYSTEM, len(turns.system) - 1, 0)
    for number in reversed(range(len(turns.messages))):
        parts = turns.messages[number].parts
        for position in reversed(range(len(parts))):
            if _can_be_marked(parts[position]):
                yield (_MESSAGES, number, position)
                return


def _fixed(request: AgentRequest, turns: Turns) -> Iterator[tuple[Place, str]]:
    """Breakpoints that the caller wrote in the vendor's own form; they are sent as they are, and count."""
    for number, tool in enumerate(request.tools):
        if not isinstance(tool, ToolSpec) and (control := tool.get("cache_control")):
            yield (_TOOLS, number, 0), _hint(control)
    for number, position, part in turns.notable:
        if isinstance(part, VendorContent) and (control := (part.provider_data or {}).get("cache_control")):
            yield (_MESSAGES, number, position), _hint(control)
    if control := request.extra.get("cache_control"):
        yield (_END, 0, 0), _hint(control)


def _hint(control: Any) -> str:
    return "long" if isinstance(control, Mapping) and control.get("ttl") == "1h" else "short"


def _in_order(wanted: Mapping[Place, str], fixed: Mapping[Place, str], warnings: list[str]) -> dict[Place, str]:
    """No mark for an hour may follow one for minutes: the earlier become longer, as the later ask for them, too."""
    short_from = min((place for place, hint in fixed.items() if hint == "short"), default=(_END, 1, 0))
    hints: dict[Place, str] = {}
    long_follows = False
    for place in sorted({**fixed, **wanted}, reverse=True):
        if place in fixed:
            long_follows = long_follows or (fixed[place] == "long" and place < short_from)
            continue
        hint = "long" if long_follows else wanted[place]
        if hint == "long" and place > short_from:
            warnings.append(SHORTER_MARK)
            hint = "short"
        hints[place] = hint
        long_follows = long_follows or hint == "long"
    return hints
