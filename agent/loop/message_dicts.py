"""The dictionaries in which messages of a run may be written, and what a conversation of a run may hold.

A run's own messages are `agent.types.Message`; these shapes are read wherever messages are. A message with a role of
its own (a note of the user interface, say) may stand in a conversation, too: `convert_to_llm` decides what becomes of
it when the model is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Literal, TypeAlias, TypedDict, cast

from ..types import ImageContent, JsonObject, Message, TextContent, ThinkingContent, ToolCallContent

JsonPrimitive: TypeAlias = str | int | float | bool | None
JsonValue: TypeAlias = "JsonPrimitive | list[JsonValue] | dict[str, JsonValue]"
AssistantContent: TypeAlias = TextContent | ThinkingContent | ToolCallContent
StopReason: TypeAlias = Literal[
    "stop", "length", "tool_calls", "content_filter", "refusal", "pause", "error", "aborted", "other"
]


class UserMessage(TypedDict, total=False):
    """What a person says."""

    role: Literal["user"]
    content: list[TextContent | ImageContent]
    timestamp: int | None


class AssistantMessage(TypedDict, total=False):
    """What a model says. With the stop reasons `error` and `aborted` it is not complete."""

    role: Literal["assistant"]
    content: list[AssistantContent | None]
    stop_reason: StopReason | None
    timestamp: int | None
    api: str | None
    provider: str | None
    model: str | None
    usage: JsonObject | None
    error_message: str | None


class ToolResultMessage(TypedDict, total=False):
    """What a tool says: `content` to the model, `details` to a user interface alone."""

    role: Literal["tool_result"]
    tool_call_id: str
    tool_name: str
    content: list[TextContent | ImageContent]
    details: JsonObject
    is_error: bool
    timestamp: int | None


CustomAgentMessage: TypeAlias = Mapping[str, Any]
"""A message with a role that models do not know."""
AgentMessage: TypeAlias = Message | CustomAgentMessage
MessageLike: TypeAlias = str | Message | UserMessage | AssistantMessage | ToolResultMessage | CustomAgentMessage

_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "tool_result"))
_BROKEN_OFF = frozenset(("error", "aborted"))
_stop_reason: Callable[[Any], str | None] = attrgetter("stop_reason")


def read_message(given: MessageLike) -> AgentMessage:
    """Text is a user's; a dictionary with a known role is a message; any other stays what it is."""
    if isinstance(given, Message):
        return given
    if isinstance(given, str):
        return Message.user(given)
    return Message.from_dict(given) if given.get("role") in _ROLES else given


def to_model_messages(messages: Iterable[AgentMessage]) -> list[Message]:
    """What a model is sent unless `convert_to_llm` says otherwise: its own roles, and no turn that broke off."""
    said = list(messages)
    if set(map(type, said)) == {Message} and _BROKEN_OFF.isdisjoint(map(_stop_reason, said)):
        return cast("list[Message]", said)  # as nearly always: a long conversation is not taken apart for every turn
    return [message for message in said if isinstance(message, Message) and message.stop_reason not in _BROKEN_OFF]
