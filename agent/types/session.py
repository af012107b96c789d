"""A conversation as data, and numbers computed from one.

A session here has no state and does nothing; the living one stands on top of this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AliasChoices, BeforeValidator, Field

from ._base import NOTHING, JsonObject, Many, Reads, Utc, Value
from .messages import Message, Role
from .parts import ContentPart, Part, TextContent
from .tools import ToolSpec
from .usage import Usage


class Session(Value, frozen=True):
    """Messages that belong together."""

    id: str
    title: str = ""
    messages: Many[Message] = ()
    created_at: Utc | None = Field(default=None, validation_alias=AliasChoices("created_at", "createdAt"))
    updated_at: Utc | None = Field(default=None, validation_alias=AliasChoices("updated_at", "updatedAt"))


class SessionStats(Value, frozen=True):
    """Numbers about messages, never stored beside them."""

    message_count: int = 0
    system_messages: int = 0
    user_messages: int = 0
    assistant_messages: int = 0
    tool_messages: int = 0
    tool_calls: int = 0
    usage: Usage = Field(default_factory=Usage)


def compute_session_stats(messages: Iterable[Message]) -> SessionStats:
    """Counts messages, calls and tokens."""
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
    """Instructions that hold from here on."""

    __match_args__ = ("content",)
    type: Literal["system_prompt"] = "system_prompt"
    content: str


class ToolDefinitions(Value, frozen=True):
    """Tools that are offered from here on."""

    type: Literal["tool_definitions"] = "tool_definitions"
    tools: Many[ToolSpec] = ()


def _read_result(value: Any) -> Any:
    if isinstance(value, str):
        return (TextContent(text=value),)
    return (value,) if isinstance(value, Mapping | ContentPart) else value


def _read_usage(value: Any) -> Any:
    return value.to_dict() if isinstance(value, Usage) else value


_NO_PARTS: Any = ()


class ToolExecution(Value, frozen=True):
    """A tool's run, for whoever looks at the graph. It is drawn, and never sent."""

    type: Literal["tool_execution"] = "tool_execution"
    tool_name: str
    tool_use_id: str
    result: Reads[Annotated[Many[Part], BeforeValidator(_read_result)], str | ContentPart | Sequence[ContentPart]] = (
        _NO_PARTS
    )
    is_error: bool = False


class StopReason(Value, frozen=True):
    """Why a run ended, and what it had consumed."""

    __match_args__ = ("reason",)
    type: Literal["stop_reason"] = "stop_reason"
    reason: str
    usage: Reads[Annotated[JsonObject, BeforeValidator(_read_usage)], Mapping[str, Any] | Usage] = NOTHING


NodeData: TypeAlias = Message | SystemPrompt | ToolDefinitions | ToolExecution | StopReason

_CLASS_OF_TAG: dict[str, type[SystemPrompt | ToolDefinitions | ToolExecution | StopReason]] = {
    "system_prompt": SystemPrompt,
    "tool_definitions": ToolDefinitions,
    "tool_execution": ToolExecution,
    "stop_reason": StopReason,
}


def read_node_data(data: Mapping[str, Any]) -> NodeData:
    """The value that `to_dict` of any node data wrote. What has a role is a message."""
    if "role" in data:
        return Message.from_dict(data)
    kind = _CLASS_OF_TAG.get(data.get("type", ""))
    if kind is None:
        known = ", ".join(_CLASS_OF_TAG)
        raise ValueError(f"type is {data.get('type')!r}; expected one of {known}, or a message with its role")
    return kind.from_dict(data)
