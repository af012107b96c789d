"""One typed client for every LLM vendor.

Importing this loads no vendor, no HTTP library and no event loop, and does no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import errors
from .agent import Agent
from .errors import AgentError
from .providers import register_provider
from .types import (
    AgentConfig,
    AgentRequest,
    AgentResponse,
    ContentPart,
    Message,
    ProviderCapabilities,
    RetryConfig,
    Role,
    RoutingStrategy,
    StreamEvent,
    ThinkingLevel,
    ToolCall,
    ToolLoopConfig,
    ToolResult,
    ToolSpec,
    Usage,
)

if TYPE_CHECKING:
    from .looping.plan import Hooks
    from .looping.results import RunResult
    from .router import Router
    from .routing.targets import Target
    from .tools.base import Tool, ToolContext, ToolError
    from .tools.functions import tool
    from .tools.registry import ToolRegistry

__all__ = [
    "Agent",
    "AgentConfig",
    "AgentError",
    "AgentRequest",
    "AgentResponse",
    "ContentPart",
    "Hooks",
    "Message",
    "ProviderCapabilities",
    "RetryConfig",
    "Role",
    "Router",
    "RoutingStrategy",
    "RunResult",
    "StreamEvent",
    "Target",
    "ThinkingLevel",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "ToolLoopConfig",
    "ToolRegistry",
    "ToolResult",
    "ToolSpec",
    "Usage",
    "errors",
    "register_provider",
    "tool",
]

_LATER = {
    "Hooks": "looping.plan",
    "Router": "router",
    "RunResult": "looping.results",
    "Target": "routing.targets",
    "Tool": "tools.base",
    "ToolContext": "tools.base",
    "ToolError": "tools.base",
    "ToolRegistry": "tools.registry",
    "tool": "tools.functions",
}
"""Where to find what programs with one model and no tools do not need."""


def __getattr__(name: str) -> Any:
    """What programs with one model do not need is loaded by those that do."""
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    if name == "__version__":
        from importlib.metadata import version

        return version("agent-llm-router")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
