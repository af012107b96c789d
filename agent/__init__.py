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
    from .router import Router
    from .routing.targets import Target

__all__ = [
    "Agent",
    "AgentConfig",
    "AgentError",
    "AgentRequest",
    "AgentResponse",
    "ContentPart",
    "Message",
    "ProviderCapabilities",
    "RetryConfig",
    "Role",
    "Router",
    "RoutingStrategy",
    "StreamEvent",
    "Target",
    "ThinkingLevel",
    "ToolCall",
    "ToolLoopConfig",
    "ToolResult",
    "ToolSpec",
    "Usage",
    "errors",
    "register_provider",
]


def __getattr__(name: str) -> Any:
    """What programs with one model do not need is loaded by those that do."""
    if name == "Router":
        from .router import Router

        return Router
    if name == "Target":
        from .routing.targets import Target

        return Target
    if name == "__version__":
        from importlib.metadata import version

        return version("agent-llm-router")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
