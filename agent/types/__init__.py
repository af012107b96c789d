"""Types: frozen values that describe requests, responses, events and settings.

They know no vendor and do no I/O. Types of higher packages, such as `Node`, can be imported from here, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ._base import FrozenDict, FrozenList, FrozenTuple, JsonObject, Value, Vocabulary, freeze, thaw
from .config import AgentConfig, ProviderCapabilities, RetryConfig, ToolLoopConfig
from .fold import Fold, fold
from .guards import (
    is_audio_content,
    is_code_content,
    is_diff_content,
    is_document_content,
    is_file_content,
    is_image_content,
    is_refusal_content,
    is_search_result_content,
    is_text_content,
    is_thinking_content,
    is_tool_call_content,
    is_tool_result_content,
    is_vendor_content,
    is_video_content,
)
from .media import (
    AudioContent,
    Citation,
    ContentPart,
    DocumentContent,
    FileContent,
    ImageContent,
    Origin,
    VideoContent,
)
from .messages import AgentRequest, Message, MessageRole, Role, ThinkingLevel
from .parts import (
    CodeContent,
    ContentBlock,
    DiffContent,
    Image,
    MessageContent,
    Part,
    RefusalContent,
    SearchResultContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolCallContent,
    ToolResult,
    ToolResultContent,
    ToolUseContent,
    VendorContent,
)
from .response import AgentResponse, FinishReason, Response
from .routing import (
    Attempt,
    BreakerConfig,
    Candidate,
    HedgeConfig,
    RateLimit,
    Route,
    RouteResult,
    RoutingStrategy,
    SpendLimit,
)
from .secrets import Secret, redact
from .stream import (
    AnyStreamEvent,
    ContentPartEvent,
    ErrorEvent,
    MessageEnd,
    MessageStart,
    PartialImage,
    RefusalDelta,
    RestartEvent,
    StreamEvent,
    StreamEventType,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolProgress,
    ToolResultEvent,
    UsageEvent,
)
from .tools import (
    BuiltinTool,
    CodeExecution,
    ComputerUse,
    FileSearch,
    ImageGeneration,
    McpConnector,
    RequestTool,
    ToolDefinition,
    ToolSpec,
    UserLocation,
    WebSearch,
    tool_name,
)
from .usage import TokenUsage, Usage

if TYPE_CHECKING:
    from ..graph import DAG as DAG
    from ..graph import Node as Node
    from ..loop import AgentContext as AgentContext
    from ..loop import AgentEndEvent as AgentEndEvent
    from ..loop import AgentEvent as AgentEvent
    from ..loop import AgentLoopConfig as AgentLoopConfig
    from ..loop import AgentMessage as AgentMessage
    from ..loop import AgentMessageProvider as AgentMessageProvider
    from ..loop import AgentStartEvent as AgentStartEvent
    from ..loop import AgentState as AgentState
    from ..loop import AgentTool as AgentTool
    from ..loop import AgentToolResult as AgentToolResult
    from ..loop import ApiKeyResolver as ApiKeyResolver
    from ..loop import AssistantContent as AssistantContent
    from ..loop import AssistantMessage as AssistantMessage
    from ..loop import AssistantMessageEvent as AssistantMessageEvent
    from ..loop import Context as Context
    from ..loop import ConvertToLlmFn as ConvertToLlmFn
    from ..loop import EventStream as EventStream
    from ..loop import JsonPrimitive as JsonPrimitive
    from ..loop import JsonValue as JsonValue
    from ..loop import MessageEndEvent as MessageEndEvent
    from ..loop import MessageStartEvent as MessageStartEvent
    from ..loop import MessageUpdateEvent as MessageUpdateEvent
    from ..loop import Model as Model
    from ..loop import SimpleStreamOptions as SimpleStreamOptions
    from ..loop import StreamFn as StreamFn
    from ..loop import StreamResponse as StreamResponse
    from ..loop import ToolExecutionEndEvent as ToolExecutionEndEvent
    from ..loop import ToolExecutionStartEvent as ToolExecutionStartEvent
    from ..loop import ToolExecutionUpdateEvent as ToolExecutionUpdateEvent
    from ..loop import ToolResultMessage as ToolResultMessage
    from ..loop import TransformContextFn as TransformContextFn
    from ..loop import TurnEndEvent as TurnEndEvent
    from ..loop import TurnStartEvent as TurnStartEvent
    from ..loop import UserMessage as UserMessage
    from ..toolkit import PendingEdit as PendingEdit
    from ..toolkit import PythonScript as PythonScript
    from ..toolkit import TaskStatus as TaskStatus
    from ..toolkit import Todo as Todo
    from ..toolkit import TodoItem as TodoItem
    from ..toolkit import TodoStatus as TodoStatus
    from ..toolkit import TruncatedOutput as TruncatedOutput
    from ..toolkit import TruncationConfig as TruncationConfig
    from ..tools.base import Tool as Tool
    from .session import NodeData as NodeData
    from .session import Session as Session
    from .session import SessionStats as SessionStats
    from .session import StopReason as StopReason
    from .session import SystemPrompt as SystemPrompt
    from .session import ToolDefinitions as ToolDefinitions
    from .session import ToolExecution as ToolExecution
    from .session import compute_session_stats as compute_session_stats
    from .session import read_node_data as read_node_data

__all__ = [
    "AgentConfig",
    "AgentRequest",
    "AgentResponse",
    "AnyStreamEvent",
    "Attempt",
    "AudioContent",
    "BreakerConfig",
    "BuiltinTool",
    "Candidate",
    "Citation",
    "CodeContent",
    "CodeExecution",
    "ComputerUse",
    "ContentBlock",
    "ContentPart",
    "ContentPartEvent",
    "DiffContent",
    "DocumentContent",
    "ErrorEvent",
    "FileContent",
    "FileSearch",
    "FinishReason",
    "Fold",
    "FrozenDict",
    "FrozenList",
    "FrozenTuple",
    "HedgeConfig",
    "Image",
    "ImageContent",
    "ImageGeneration",
    "JsonObject",
    "McpConnector",
    "Message",
    "MessageContent",
    "MessageEnd",
    "MessageRole",
    "MessageStart",
    "NodeData",
    "Origin",
    "Part",
    "PartialImage",
    "ProviderCapabilities",
    "RateLimit",
    "RefusalContent",
    "RefusalDelta",
    "RequestTool",
    "Response",
    "RestartEvent",
    "RetryConfig",
    "Role",
    "Route",
    "RouteResult",
    "RoutingStrategy",
    "SearchResultContent",
    "Secret",
    "Session",
    "SessionStats",
    "SpendLimit",
    "StopReason",
    "StreamEvent",
    "StreamEventType",
    "SystemPrompt",
    "TextContent",
    "TextDelta",
    "ThinkingContent",
    "ThinkingDelta",
    "ThinkingLevel",
    "TokenUsage",
    "ToolCall",
    "ToolCallContent",
    "ToolCallDelta",
    "ToolCallEnd",
    "ToolCallStart",
    "ToolDefinition",
    "ToolDefinitions",
    "ToolExecution",
    "ToolLoopConfig",
    "ToolProgress",
    "ToolResult",
    "ToolResultContent",
    "ToolResultEvent",
    "ToolSpec",
    "ToolUseContent",
    "Usage",
    "UsageEvent",
    "UserLocation",
    "Value",
    "VendorContent",
    "VideoContent",
    "Vocabulary",
    "WebSearch",
    "compute_session_stats",
    "fold",
    "freeze",
    "is_audio_content",
    "is_code_content",
    "is_diff_content",
    "is_document_content",
    "is_file_content",
    "is_image_content",
    "is_refusal_content",
    "is_search_result_content",
    "is_text_content",
    "is_thinking_content",
    "is_tool_call_content",
    "is_tool_result_content",
    "is_vendor_content",
    "is_video_content",
    "read_node_data",
    "redact",
    "thaw",
    "tool_name",
]

_HOMES = {
    "graph": (
        "DAG",
        "Node",
    ),
    "loop": (
        "AgentContext",
        "AgentEndEvent",
        "AgentEvent",
        "AgentLoopConfig",
        "AgentMessage",
        "AgentMessageProvider",
        "AgentStartEvent",
        "AgentState",
        "AgentTool",
        "AgentToolResult",
        "ApiKeyResolver",
        "AssistantContent",
        "AssistantMessage",
        "AssistantMessageEvent",
        "Context",
        "ConvertToLlmFn",
        "EventStream",
        "JsonPrimitive",
        "JsonValue",
        "MessageEndEvent",
        "MessageStartEvent",
        "MessageUpdateEvent",
        "Model",
        "SimpleStreamOptions",
        "StreamFn",
        "StreamResponse",
        "ToolExecutionEndEvent",
        "ToolExecutionStartEvent",
        "ToolExecutionUpdateEvent",
        "ToolResultMessage",
        "TransformContextFn",
        "TurnEndEvent",
        "TurnStartEvent",
        "UserMessage",
    ),
    "toolkit": (
        "PendingEdit",
        "PythonScript",
        "TaskStatus",
        "Todo",
        "TodoItem",
        "TodoStatus",
        "TruncatedOutput",
        "TruncationConfig",
    ),
    "tools.base": ("Tool",),
    "types.session": (
        "NodeData",
        "Session",
        "SessionStats",
        "StopReason",
        "SystemPrompt",
        "ToolDefinitions",
        "ToolExecution",
        "compute_session_stats",
        "read_node_data",
    ),
}
"""Names of types that belong to packages above this one, or that few programs use; loaded at their first use."""

if not TYPE_CHECKING:

    def __getattr__(name):
        for module, names in _HOMES.items():
            if name in names:
                return getattr(import_module(f"agent.{module}"), name)
        if name.startswith("__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .._missing_names import create_import_error  # lazy: only misspelled names need it

        raise create_import_error(__name__, name, __all__)
