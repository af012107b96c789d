"""The agent loop: run events, hooks, approval, journals, and `agent_loop` for custom stream functions.

`Agent.run` and `Router.run` execute this loop. This package exports its event and option types, `AgentLoop`, which
keeps a conversation, and `agent_loop`, which runs the loop on a stream function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._missing_names import reject_names
from ..tools.base import AgentTool, AgentToolResult, Signal, Tool
from ..types import ImageContent, JsonObject, Message, TextContent, ThinkingContent, ThinkingLevel, ToolCallContent
from .agent_loop import AgentLoop
from .events import (
    AgentEndEvent,
    AgentEvent,
    AgentMessage,
    AgentStartEvent,
    AssistantContent,
    AssistantMessage,
    AssistantMessageEvent,
    CustomAgentMessage,
    JsonPrimitive,
    JsonValue,
    MessageEndEvent,
    MessageStartEvent,
    MessageUpdateEvent,
    StopReason,
    ToolExecutionEndEvent,
    ToolExecutionStartEvent,
    ToolExecutionUpdateEvent,
    ToolResultMessage,
    TurnEndEvent,
    TurnStartEvent,
    UserMessage,
    to_model_messages,
)
from .functions import (
    AgentContext,
    AgentLoopConfig,
    AgentMessageProvider,
    AgentState,
    ApiKeyResolver,
    Context,
    ConvertToLlmFn,
    EventStream,
    Model,
    SimpleStreamOptions,
    StreamFn,
    StreamResponse,
    TransformContextFn,
    agent_loop,
    agent_loop_continue,
    stream_function,
)
from .hooks import Allow, ApprovalRules, Ask, Change, Compaction, Decision, Deny, Hooks
from .journal import (
    Journal,
    JournalEntry,
    JournalError,
    MemoryJournal,
    Outcome,
    SqliteJournal,
    ToolCallRecord,
    list_calls,
)
from .results import PausedRun, PendingCall, RunResult
from .streams import AsyncRunStream, RunStream

__all__ = [
    "AgentContext",
    "AgentEndEvent",
    "AgentEvent",
    "AgentLoop",
    "AgentLoopConfig",
    "AgentMessage",
    "AgentMessageProvider",
    "AgentStartEvent",
    "AgentState",
    "AgentTool",
    "AgentToolResult",
    "Allow",
    "ApiKeyResolver",
    "ApprovalRules",
    "Ask",
    "AssistantContent",
    "AssistantMessage",
    "AssistantMessageEvent",
    "AsyncRunStream",
    "Change",
    "Compaction",
    "Context",
    "ConvertToLlmFn",
    "CustomAgentMessage",
    "Decision",
    "Deny",
    "EventStream",
    "Hooks",
    "ImageContent",
    "Journal",
    "JournalEntry",
    "JournalError",
    "JsonObject",
    "JsonPrimitive",
    "JsonValue",
    "MemoryJournal",
    "Message",
    "MessageEndEvent",
    "MessageStartEvent",
    "MessageUpdateEvent",
    "Model",
    "Outcome",
    "PausedRun",
    "PendingCall",
    "RunResult",
    "RunStream",
    "Signal",
    "SimpleStreamOptions",
    "SqliteJournal",
    "StopReason",
    "StreamFn",
    "StreamResponse",
    "TextContent",
    "ThinkingContent",
    "ThinkingLevel",
    "Tool",
    "ToolCallContent",
    "ToolCallRecord",
    "ToolExecutionEndEvent",
    "ToolExecutionStartEvent",
    "ToolExecutionUpdateEvent",
    "ToolResultMessage",
    "TransformContextFn",
    "TurnEndEvent",
    "TurnStartEvent",
    "UserMessage",
    "agent_loop",
    "agent_loop_continue",
    "list_calls",
    "stream_function",
    "to_model_messages",
]

if not TYPE_CHECKING:
    __getattr__ = reject_names(__name__, __all__)
