"""Session data, session statistics, and the data types of graph nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AliasChoices, BeforeValidator, Field

from ._base import EMPTY_OBJECT, EMPTY_SEQUENCE, Accepts, JsonObject, SequenceOf, Utc, Value
from .media import ContentPart
from .messages import AgentRequest, Message, Role
from .parts import Part, TextContent
from .tools import ToolSpec
from .usage import Usage


class Session(Value, frozen=True):
    """A conversation as pure data; `agent.session()` returns an `AgentSession` that manages one."""

    id: str
    title: str = ""
    messages: SequenceOf[Message] = EMPTY_SEQUENCE
    created_at: Utc | None = Field(default=None, validation_alias=AliasChoices("created_at", "createdAt"))
    updated_at: Utc | None = Field(default=None, validation_alias=AliasChoices("updated_at", "updatedAt"))

    def to_request(self) -> AgentRequest:
        """Return the conversation as a request."""
        return AgentRequest(messages=self.messages, session_id=self.id)


class SessionStats(Value, frozen=True):
    """Statistics of a list of messages, computed on demand."""

    message_count: int = 0
    system_messages: int = 0
    user_messages: int = 0
    assistant_messages: int = 0
    tool_messages: int = 0
    tool_calls: int = 0
    usage: Usage = Field(default_factory=Usage)


def compute_session_stats(messages: Iterable[Message]) -> SessionStats:
    """Count messages, tool calls and tokens."""
    of_role: Counter[Role] = Counter()
    tool_calls = 0
    usage = Usage()
    for message in messages:
        of_role[message.role] += 1
        tool_calls += len(message.tool_calls or ())
        if message.usage is not None:
            usage += message.usage
    return SessionStats(
        message_count=of_role.total(),
        system_messages=of_role[Role.SYSTEM],
        user_messages=of_role[Role.USER],
        assistant_messages=of_role[Role.ASSISTANT],
        tool_messages=of_role[Role.TOOL],
        tool_calls=tool_calls,
        usage=usage,
    )


class SystemPrompt(Value, frozen=True):
    """A system prompt that applies from this node on."""

    __match_args__ = ("content",)
    _positional: ClassVar[tuple[str, ...]] = ("content",)
    type: Literal["system_prompt"] = "system_prompt"
    content: str

    if TYPE_CHECKING:

        def __init__(self, content: str, *, type: Literal["system_prompt"] = ...) -> None: ...


class ToolDefinitions(Value, frozen=True):
    """Tools available from this node on."""

    _positional: ClassVar[tuple[str, ...]] = ("tools",)
    type: Literal["tool_definitions"] = "tool_definitions"
    tools: SequenceOf[ToolSpec] = EMPTY_SEQUENCE

    if TYPE_CHECKING:

        def __init__(
            self, tools: Sequence[ToolSpec | Mapping[str, Any]] = ..., *, type: Literal["tool_definitions"] = ...
        ) -> None: ...


def _read_result(value: Any) -> Any:
    if isinstance(value, str):
        return (TextContent(text=value),)
    return (value,) if isinstance(value, Mapping | ContentPart) else value


def _read_usage(value: Any) -> Any:
    return value.to_dict() if isinstance(value, Usage) else value


ResultParts: TypeAlias = Annotated[SequenceOf[Part], BeforeValidator(_read_result)]
_NO_PARTS: Any = EMPTY_SEQUENCE


class ToolExecution(Value, frozen=True):
    """A tool execution, shown in drawings of the graph and never sent to a model."""

    _positional: ClassVar[tuple[str, ...]] = ("tool_name", "tool_use_id", "result", "is_error")
    type: Literal["tool_execution"] = "tool_execution"
    tool_name: str
    tool_use_id: str
    result: Accepts[ResultParts, str | ContentPart | Sequence[ContentPart]] = _NO_PARTS
    is_error: bool = False

    if TYPE_CHECKING:

        def __init__(
            self,
            tool_name: str,
            tool_use_id: str,
            result: str | ContentPart | Sequence[ContentPart | Mapping[str, Any]] = ...,
            is_error: bool = ...,
            *,
            type: Literal["tool_execution"] = ...,
        ) -> None: ...


class StopReason(Value, frozen=True):
    """Why a run ended, and its usage."""

    __match_args__ = ("reason",)
    _positional: ClassVar[tuple[str, ...]] = ("reason", "usage")
    type: Literal["stop_reason"] = "stop_reason"
    reason: str
    usage: Accepts[Annotated[JsonObject, BeforeValidator(_read_usage)], Mapping[str, Any] | Usage] = EMPTY_OBJECT

    if TYPE_CHECKING:

        def __init__(
            self, reason: str, usage: Mapping[str, Any] | Usage = ..., *, type: Literal["stop_reason"] = ...
        ) -> None: ...


NodeData: TypeAlias = Message | SystemPrompt | ToolDefinitions | ToolExecution | StopReason

_CLASS_OF_TAG: dict[str, type[SystemPrompt | ToolDefinitions | ToolExecution | StopReason]] = {
    "system_prompt": SystemPrompt,
    "tool_definitions": ToolDefinitions,
    "tool_execution": ToolExecution,
    "stop_reason": StopReason,
}


def read_node_data(data: Mapping[str, Any]) -> NodeData:
    """Restore node data from its `to_dict` output. A dict with a role is a message."""
    if "role" in data:
        return Message.from_dict(data)
    kind = _CLASS_OF_TAG.get(data.get("type", ""))
    if kind is None:
        known = ", ".join(_CLASS_OF_TAG)
        raise ValueError(f"unknown type {data.get('type')!r}; expected one of {known}, or a message with a role")
    return kind.from_dict(data)
