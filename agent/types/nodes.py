"""What the nodes of a conversation graph hold besides messages.

Only the data: how nodes connect, and what becomes of them, is the graph's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator

from ._base import NOTHING, JsonObject, Many, Reads, Value
from .messages import Message
from .parts import ContentPart, Part, TextContent
from .tools import ToolSpec
from .usage import Usage


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
