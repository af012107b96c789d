"""Events and messages of a run.

    agent_start
      turn_start
        message_start message_end                    each prompt
        message_start message_update* message_end    the model's response
        tool_execution_start                         one per call, in the order of the calls
        tool_execution_update* tool_execution_end    as they arrive
        message_start message_update message_end     each tool result, in the order of the calls
      turn_end
    agent_end

Events are immutable values. The stream that yields them has the methods that steer the run. A run's messages are
`agent.types.Message`; the TypedDicts below are also accepted. Messages with custom roles are allowed in a conversation:
the `convert_to_llm` hook converts them for the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypedDict

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
    """User message."""

    role: Literal["user"]
    content: list[TextContent | ImageContent]
    timestamp: int | None


class AssistantMessage(TypedDict, total=False):
    """Model message. With the stop reasons `error` and `aborted` it is incomplete."""

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
    """Tool result: `content` is for the model, `details` for user interfaces only."""

    role: Literal["tool_result"]
    tool_call_id: str
    tool_name: str
    content: list[TextContent | ImageContent]
    details: JsonObject
    is_error: bool
    timestamp: int | None


CustomAgentMessage: TypeAlias = Mapping[str, Any]
"""Message with a role that models do not support."""
AgentMessage: TypeAlias = Message | CustomAgentMessage
MessageLike: TypeAlias = str | Message | UserMessage | AssistantMessage | ToolResultMessage | CustomAgentMessage

_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "tool_result"))


def coerce_message(given: MessageLike) -> AgentMessage:
    """Convert text to a user message and a dict with a known role to a `Message`.

    A dict with a custom role is returned unchanged.
    """
    if isinstance(given, Message):
        return given
    if isinstance(given, str):
        return Message.user(given)
    return Message.from_dict(given) if given.get("role") in _ROLES else given


def to_model_messages(messages: Iterable[AgentMessage]) -> list[Message]:
    """Return the messages that a model is sent by default: no custom roles, no incomplete responses."""
    return [one for one in messages if isinstance(one, Message) and one.stop_reason not in ("error", "aborted")]


AssistantMessageEvent: TypeAlias = StreamEvent


@dataclass(frozen=True)
class AgentStartEvent:
    """The run starts."""

    type: Literal["agent_start"] = "agent_start"


@dataclass(frozen=True)
class AgentEndEvent:
    """The run has ended, successfully or not. `messages` are the messages it added."""

    type: Literal["agent_end"] = "agent_end"
    messages: Sequence[AgentMessage] = field(default_factory=list)


@dataclass(frozen=True)
class TurnStartEvent:
    """A turn starts: the model is called next."""

    type: Literal["turn_start"] = "turn_start"


@dataclass(frozen=True)
class TurnEndEvent:
    """A turn ends: the model has responded, and its tool calls have results."""

    type: Literal["turn_end"] = "turn_end"
    message: AgentMessage | None = None
    tool_results: Sequence[Message] = field(default_factory=list)


@dataclass(frozen=True)
class MessageStartEvent:
    """A message starts: a prompt, a tool result, or the first chunk of a response."""

    type: Literal["message_start"] = "message_start"
    message: AgentMessage | None = None


@dataclass(frozen=True)
class MessageUpdateEvent:
    """A chunk of the model's message, its failure, or a tool result. `message` is the message so far."""

    type: Literal["message_update"] = "message_update"
    message: AgentMessage | None = None
    assistant_message_event: AssistantMessageEvent | None = None


class LazyMessageUpdate(MessageUpdateEvent):
    """An update that builds `message` on access, since most listeners read only the chunk."""

    def __init__(self, event: StreamEvent, build: Callable[[], Message]) -> None:
        super().__init__(assistant_message_event=event)
        object.__setattr__(self, "_build", build)

    @override
    def __getattribute__(self, name: str) -> Any:
        if name == "message":
            return object.__getattribute__(self, "_build")()
        return object.__getattribute__(self, name)


@dataclass(frozen=True)
class MessageEndEvent:
    """A message is complete, or ended early; see its `stop_reason`."""

    type: Literal["message_end"] = "message_end"
    message: AgentMessage | None = None


@dataclass(frozen=True)
class ToolExecutionStartEvent:
    """A tool call is handled. An end event follows, even if the call is rejected."""

    type: Literal["tool_execution_start"] = "tool_execution_start"
    tool_call_id: str = ""
    tool_name: str = ""
    args: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ToolExecutionUpdateEvent:
    """A tool reported a partial result."""

    type: Literal["tool_execution_update"] = "tool_execution_update"
    tool_call_id: str = ""
    tool_name: str = ""
    args: Mapping[str, Any] | None = None
    partial_result: AgentToolResult | None = None


@dataclass(frozen=True)
class ToolExecutionEndEvent:
    """A tool call has its result."""

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


def create_message_events(*messages: AgentMessage) -> list[AgentEvent]:
    """Return the start and end events of complete messages."""
    return [
        event
        for message in messages
        for event in (MessageStartEvent(message=message), MessageEndEvent(message=message))
    ]
