"""What happens in a run, told as it happens: the agent, its turns, their messages, and the tools.

    agent_start
      turn_start
        message_start message_end                    what was asked
        message_start message_update* message_end    what the model says
        tool_execution_start                         one for each call, in the order of the calls
        tool_execution_update* tool_execution_end    as they come
        message_start message_end                    each result, in the order of the calls
      turn_end
    agent_end

Events are values; whoever wants to steer the run uses the stream they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, TypeAlias, TypedDict, cast

from typing_extensions import override

from ..tools.base import AgentToolResult
from ..types import ImageContent, JsonObject, Message, StreamEvent, TextContent, ThinkingContent, ToolCallContent

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


AssistantMessageEvent: TypeAlias = StreamEvent


@dataclass(frozen=True)
class AgentStartEvent:
    """A run begins."""

    type: Literal["agent_start"] = "agent_start"


@dataclass(frozen=True)
class AgentEndEvent:
    """A run is over, however it ended. `messages` are all that it added to the conversation."""

    type: Literal["agent_end"] = "agent_end"
    messages: Sequence[AgentMessage] = field(default_factory=list)


@dataclass(frozen=True)
class TurnStartEvent:
    """The model is about to be asked."""

    type: Literal["turn_start"] = "turn_start"


@dataclass(frozen=True)
class TurnEndEvent:
    """The model has answered, and the tools it called have been dealt with."""

    type: Literal["turn_end"] = "turn_end"
    message: AgentMessage | None = None
    tool_results: Sequence[Message] = field(default_factory=list)


@dataclass(frozen=True)
class MessageStartEvent:
    """A message begins: somebody's, a tool's, or the first piece of the model's."""

    type: Literal["message_start"] = "message_start"
    message: AgentMessage | None = None


@dataclass(frozen=True)
class MessageUpdateEvent:
    """The model's message grew, or failed. `assistant_message_event` is the piece, `message` all that has come."""

    type: Literal["message_update"] = "message_update"
    message: AgentMessage | None = None
    assistant_message_event: AssistantMessageEvent | None = None


class LiveUpdate(MessageUpdateEvent):
    """An update whose message is put together only if somebody asks: most want the new piece alone."""

    def __init__(self, event: StreamEvent, so_far: Callable[[], Message]) -> None:
        super().__init__(assistant_message_event=event)
        object.__setattr__(self, "_so_far", so_far)

    @override
    def __getattribute__(self, name: str) -> Any:
        if name == "message":
            return object.__getattribute__(self, "_so_far")()
        return object.__getattribute__(self, name)


@dataclass(frozen=True)
class MessageEndEvent:
    """A message is complete, or as complete as it will get: see its `stop_reason`."""

    type: Literal["message_end"] = "message_end"
    message: AgentMessage | None = None


@dataclass(frozen=True)
class ToolExecutionStartEvent:
    """A call is taken up. It is followed by its end, also if it is refused and nothing runs."""

    type: Literal["tool_execution_start"] = "tool_execution_start"
    tool_call_id: str = ""
    tool_name: str = ""
    args: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ToolExecutionUpdateEvent:
    """A tool showed something before its result."""

    type: Literal["tool_execution_update"] = "tool_execution_update"
    tool_call_id: str = ""
    tool_name: str = ""
    args: Mapping[str, Any] | None = None
    partial_result: AgentToolResult | None = None


@dataclass(frozen=True)
class ToolExecutionEndEvent:
    """A call has its result."""

    type: Literal["tool_execution_end"] = "tool_execution_end"
    tool_call_id: str = ""
    tool_name: str = ""
    result: AgentToolResult | None = None
    is_error: bool = False


AgentEvent: TypeAlias = (
    AgentStartEvent
    | AgentEndEvent
    | TurnStartEvent
    | TurnEndEvent
    | MessageStartEvent
    | MessageUpdateEvent
    | MessageEndEvent
    | ToolExecutionStartEvent
    | ToolExecutionUpdateEvent
    | ToolExecutionEndEvent
)


def told(*messages: AgentMessage) -> list[AgentEvent]:
    """The events of messages that are complete from the start."""
    return [
        event
        for message in messages
        for event in (MessageStartEvent(message=message), MessageEndEvent(message=message))
    ]
