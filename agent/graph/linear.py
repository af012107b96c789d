"""From messages in causal order to a conversation that a vendor takes: every call with its one result, right behind it.

A chain that was written in order comes back as it is. After a merge, the results of one branch may stand behind the
turns of another, two branches may have answered the same call, and ids may have been used twice; here that is put in
order, the same way every time. Nothing is sent and nothing is known about vendors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..types import Message, Part, Role, TextContent, ToolCall, ToolResult

NO_RESULT = "There is no result: the call was interrupted before it was answered."
"""The words that a request's repair has for it, too, so that a prompt stays the same."""


def linearised(messages: Sequence[Message]) -> list[Message]:
    """The conversation in order. The calls of a last turn may be without results: they are still to come."""
    if _in_order(messages):
        return list(messages)
    return _arranged(messages)


def _in_order(messages: Sequence[Message]) -> bool:
    """Whether each turn's calls are answered once, directly behind it, before anybody else speaks."""
    waiting: set[str] = set()
    seen: set[str] = set()
    for message in messages:
        if isinstance(message.content, str) and message.role is not Role.TOOL:
            if waiting:
                return False
            continue
        results = [part.tool_call_id for part in message.parts if isinstance(part, ToolResult)]
        if results:
            if len(set(results)) != len(results) or not waiting.issuperset(results) or message.role is Role.ASSISTANT:
                return False
            waiting.difference_update(results)
            if len(results) != len(message.parts) and waiting:
                return False
        elif waiting:
            return False
        if message.role is Role.ASSISTANT:
            calls = [call.id for call in message.tool_calls or ()]
            if len(set(calls)) != len(calls) or not seen.isdisjoint(calls):
                return False
            seen.update(calls)
            waiting = set(calls)
    return True


@dataclass(slots=True, eq=False)
class _Turn:
    """A message, and the results that belong behind it."""

    message: Message
    calls: list[ToolCall] = field(default_factory=list)
    results: dict[int, ToolResult] = field(default_factory=dict)
    """By the call's place."""


def _arranged(messages: Sequence[Message]) -> list[Message]:
    turns: list[_Turn] = []
    open_calls: dict[str, list[tuple[_Turn, int]]] = {}
    answered: set[str] = set()
    for message in messages:
        said: list[Part] = []
        for part in message.parts:
            if not isinstance(part, ToolResult):
                said.append(part)
                continue
            waiting = open_calls.get(part.tool_call_id)
            if waiting:
                turn, place = waiting.pop()  # the latest: in causal order it is the nearest
                turn.results[place] = part
                answered.add(part.tool_call_id)
            elif part.tool_call_id not in answered:
                said.append(_told(part))
        if not said:
            continue
        turn = _Turn(message if len(said) == len(message.parts) and _unchanged(said, message) else _with(message, said))
        turns.append(turn)
        if message.role is Role.ASSISTANT:
            turn.calls = [part for part in said if isinstance(part, ToolCall)]
            for place, call in enumerate(turn.calls):
                open_calls.setdefault(call.id, []).append((turn, place))
    return _written(turns)


def _unchanged(said: Sequence[Part], message: Message) -> bool:
    return all(new is old for new, old in zip(said, message.parts, strict=True))


def _with(message: Message, parts: Sequence[Part]) -> Message:
    role = Role.USER if message.role is Role.TOOL else message.role
    return message.model_copy(update={"content": tuple(parts), "role": role, "tool_call_id": None})


def _told(result: ToolResult) -> TextContent:
    """A result whose call is not in this conversation, in words."""
    return TextContent(text=f"[{result.name or 'a tool'} returned: {result.text}]")


def _written(turns: Sequence[_Turn]) -> list[Message]:
    out: list[Message] = []
    used: set[str] = set()
    for number, turn in enumerate(turns):
        if not turn.calls:
            out.append(turn.message)
            continue
        names = {place: _free(call.id, used) for place, call in enumerate(turn.calls)}
        out.append(_renamed(turn, names))
        last = number == len(turns) - 1
        for place, call in enumerate(turn.calls):
            result = turn.results.get(place)
            if result is None:
                if last:
                    continue  # it is still to come
                result = ToolResult(tool_call_id=call.id, name=call.name, content=NO_RESULT, is_error=True)
            if result.tool_call_id != names[place]:
                result = result.model_copy(update={"tool_call_id": names[place]})
            out.append(Message(Role.TOOL, (result,)))
    return out


def _free(id: str, used: set[str]) -> str:
    """An id of its own for each call, also if branches used the same one."""
    name, number = id, 1
    while name in used:
        number += 1
        name = f"{id}_{number}"
    used.add(name)
    return name


def _renamed(turn: _Turn, names: dict[int, str]) -> Message:
    if all(call.id == names[place] for place, call in enumerate(turn.calls)):
        return turn.message
    place = -1
    parts: list[Part] = []
    for part in turn.message.parts:
        if isinstance(part, ToolCall):
            place += 1
            part = part if part.id == names[place] else part.model_copy(update={"id": names[place]})
        parts.append(part)
    return turn.message.model_copy(update={"content": tuple(parts)})
