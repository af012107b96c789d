"""The agent loop: events, steering, approval, journals, and the loop as a function of anybody's model.

`Agent.run` and `Router.run` are this loop. Here is what their events and options are made of, an `AgentLoop` that keeps
a conversation, and `agent_loop` for those who bring their own stream function.
"""

from __future__ import annotations

from ..tools.base import AgentTool, AgentToolResult, Signal, Tool
from ..types import ImageContent, JsonObject, Message, TextContent, ThinkingContent, ThinkingLevel, ToolCallContent
from .agent_loop import AgentLoop
from .approval import Allow, Ask, Change, Decision, Deny, ApprovalRules
from .compaction import Compaction
from .functions import (
    AgentContext,
    AgentLoopConfig,
    AgentMessageProvider,
    AgentState,
    ApiKeyResolver,
    Context,
    ConvertToLlmFn,
    Model,
    SimpleStreamOptions,
    StreamFn,
    StreamResponse,
    TransformContextFn,
)
from .events import (
    AgentEndEvent,
    AgentEvent,
    AgentStartEvent,
    AssistantMessageEvent,
    MessageEndEvent,
    MessageStartEvent,
    MessageUpdateEvent,
    ToolExecutionEndEvent,
    ToolExecutionStartEvent,
    ToolExecutionUpdateEvent,
    TurnEndEvent,
    TurnStartEvent,
)
from .functions import EventStream, agent_loop, agent_loop_continue, stream_function
from .journal import ToolCallRecord, JournalEntry, Journal, JournalError, MemoryJournal, Outcome, SqliteJournal, list_calls
from .message_dicts import (
    AgentMessage,
    AssistantContent,
    AssistantMessage,
    CustomAgentMessage,
    JsonPrimitive,
    JsonValue,
    StopReason,
    ToolResultMessage,
    UserMessage,
    to_model_messages,
)
from .plan import Hooks
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
    "Ask",
    "AssistantContent",
    "AssistantMessage",
    "AssistantMessageEvent",
    "AsyncRunStream",
    "ToolCallRecord",
    "Change",
    "Compaction",
    "Context",
    "ConvertToLlmFn",
    "CustomAgentMessage",
    "Decision",
    "Deny",
    "JournalEntry",
    "EventStream",
    "Hooks",
    "ImageContent",
    "Journal",
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
    "ApprovalRules",
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
    "to_model_messages",
    "stream_function",
]
