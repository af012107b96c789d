"""What the agent loop is configured with, in the vocabulary of stream functions: any model, anybody's client.

`Agent` and `Router` need none of this; they are for those who bring their own way to a model, or who want the loop as
a function.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol, TypeAlias, TypedDict

from ..tools.base import AgentTool, Signal, Tool
from ..types import AgentResponse, Message, ThinkingLevel, ToolLoopConfig
from .approval import AfterToolCall, BeforeToolCall
from .events import AssistantMessageEvent
from .journal import Journal
from .message_dicts import AgentMessage


@dataclass
class Context:
    """What a stream function is given: a conversation that models understand."""

    system_prompt: str = ""
    messages: list[Message] = field(default_factory=list)
    tools: list[Tool] | None = None


@dataclass
class AgentContext:
    """What a run begins with. Messages with roles of their own may stand among the others."""

    system_prompt: str = ""
    messages: list[AgentMessage] = field(default_factory=list)
    tools: list[Tool] | None = None


@dataclass
class Model:
    """Which model, and how hard it shall think."""

    provider: str = ""
    id: str = ""
    api: str = ""
    thinking_level: ThinkingLevel = ThinkingLevel.OFF


class SimpleStreamOptions(TypedDict, total=False):
    """What a stream function is told besides."""

    api_key: str | None
    temperature: float | None
    max_tokens: int | None
    signal: Signal | None


class StreamResponse(Protocol):
    """A model's answer while it arrives. It never raises: a failure is a message with the stop reason `error`."""

    def result(self) -> Awaitable[Message | AgentResponse]: ...

    def __aiter__(self) -> AsyncIterator[AssistantMessageEvent]: ...

    async def __anext__(self) -> AssistantMessageEvent: ...


StreamFn: TypeAlias = Callable[[Model, Context, SimpleStreamOptions], Awaitable[StreamResponse]]
ConvertToLlmFn: TypeAlias = Callable[[Sequence[AgentMessage]], Any]
"""From the conversation of a run to the messages a model is sent. Plain or async."""
TransformContextFn: TypeAlias = Callable[..., Any]
"""From the conversation to the part of it that matters now, before `convert_to_llm`. Plain or async. A second
parameter, if there is one, is the `Signal` that is set when the run is aborted."""
ApiKeyResolver: TypeAlias = Callable[[str], Any]
"""The key for a provider, asked for before each model call. Plain or async."""
AgentMessageProvider: TypeAlias = Callable[[], Any]
"""Messages that are waiting, if any. Plain or async."""


@dataclass
class AgentLoopConfig:
    """How `agent_loop` runs."""

    model: Model
    convert_to_llm: ConvertToLlmFn
    transform_context: TransformContextFn | None = None
    get_api_key: ApiKeyResolver | None = None
    get_steering_messages: AgentMessageProvider | None = None
    get_follow_up_messages: AgentMessageProvider | None = None
    api_key: str | None = field(default=None, repr=False)
    temperature: float | None = None
    max_tokens: int | None = None
    _: KW_ONLY
    before_tool_call: BeforeToolCall | None = None
    after_tool_call: AfterToolCall | None = None
    loop: ToolLoopConfig = field(default_factory=ToolLoopConfig)
    journal: Journal | None = None
    deps: Any = None


class AgentState(TypedDict, total=False):
    """Everything about a loop that can be looked at, as it is now."""

    system_prompt: str
    model: Model | None
    thinking_level: ThinkingLevel
    tools: list[AgentTool | Tool]
    messages: list[AgentMessage]
    is_streaming: bool
    stream_message: AgentMessage | None
    pending_tool_calls: set[str]
    error: str | None
