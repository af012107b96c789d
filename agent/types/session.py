"""A conversation as data, and numbers computed from one.

A session here has no state and does nothing; the living one stands on top of this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pydantic import AliasChoices, Field

from ._base import Many, Utc, Value
from .messages import Message, Role
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
