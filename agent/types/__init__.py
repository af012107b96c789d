"""The types of the package: frozen values that describe requests, answers, events and settings.

They know no vendor and do no I/O. One thing has one class; other vocabularies' names for it are aliases.
"""

from __future__ import annotations

from ._base import FrozenDict, FrozenList, JsonObject, Value, freeze, thaw
from .citation import Citation
from .config import AgentConfig, ProviderCapabilities, RetryConfig, ToolLoopConfig
from .guards import (
    is_audio_content,
    is_code_content,
    is_diff_content,
    is_document_content,
    is_image_content,
    is_refusal_content,
    is_text_content,
    is_thinking_content,
    is_tool_call_content,
    is_tool_result_content,
    is_vendor_content,
)
from .messages import AgentRequest, Message, MessageRole, Role, ThinkingLevel
from .nodes import NodeData, StopReason, SystemPrompt, ToolDefinitions, ToolExecution, read_node_data
from .parts import (
    AudioContent,
    CodeContent,
    ContentBlock,
    ContentPart,
    DiffContent,
    DocumentContent,
    Image,
    ImageContent,
    MessageContent,
    Origin,
    Part,
    RefusalContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolCallContent,
    ToolResult,
    ToolResultContent,
    ToolUseContent,
    VendorContent,
)
from .policies import BreakerConfig, HedgeConfig, RateLimit, SpendLimit
from .response import AgentResponse, FinishReason, Response
from .router import Attempt, Candidate, Route, RouteResult, RoutingStrategy
from .secret import Secret, redact
from .session import Session, SessionStats, compute_session_stats
from .stream import Fold, StreamEvent, StreamEventType, fold
from .tools import ToolDefinition, ToolSpec
from .usage import TokenUsage, Usage

__all__ = [
    "AgentConfig",
    "AgentRequest",
    "AgentResponse",
    "Attempt",
    "AudioContent",
    "BreakerConfig",
    "Candidate",
    "Citation",
    "CodeContent",
    "ContentBlock",
    "ContentPart",
    "DiffContent",
    "DocumentContent",
    "FinishReason",
    "Fold",
    "FrozenDict",
    "FrozenList",
    "HedgeConfig",
    "Image",
    "ImageContent",
    "JsonObject",
    "Message",
    "MessageContent",
    "MessageRole",
    "NodeData",
    "Origin",
    "Part",
    "ProviderCapabilities",
    "RateLimit",
    "RefusalContent",
    "Response",
    "RetryConfig",
    "Role",
    "Route",
    "RouteResult",
    "RoutingStrategy",
    "Secret",
    "Session",
    "SessionStats",
    "SpendLimit",
    "StopReason",
    "StreamEvent",
    "StreamEventType",
    "SystemPrompt",
    "TextContent",
    "ThinkingContent",
    "ThinkingLevel",
    "TokenUsage",
    "ToolCall",
    "ToolCallContent",
    "ToolDefinition",
    "ToolDefinitions",
    "ToolExecution",
    "ToolLoopConfig",
    "ToolResult",
    "ToolResultContent",
    "ToolSpec",
    "ToolUseContent",
    "Usage",
    "Value",
    "VendorContent",
    "compute_session_stats",
    "fold",
    "freeze",
    "is_audio_content",
    "is_code_content",
    "is_diff_content",
    "is_document_content",
    "is_image_content",
    "is_refusal_content",
    "is_text_content",
    "is_thinking_content",
    "is_tool_call_content",
    "is_tool_result_content",
    "is_vendor_content",
    "read_node_data",
    "redact",
    "thaw",
]
