"""One typed client for every LLM vendor.

Importing this loads no vendor, no HTTP library and no event loop, and does no I/O. Names are loaded when they are first
used; type checkers see plain imports.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import errors
    from .agent import Agent
    from .errors import AgentError
    from .loop.hooks import Hooks
    from .loop.results import RunResult
    from .providers import register_provider
    from .routing.router import Router
    from .routing.targets import Target
    from .tools.base import Tool, ToolContext, ToolError
    from .tools.functions import tool
    from .tools.registry import ToolRegistry
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

_HOMES = {
    "agent": ("Agent",),
    "errors": ("AgentError",),
    "loop.hooks": ("Hooks",),
    "loop.results": ("RunResult",),
    "providers": ("register_provider",),
    "routing.router": ("Router",),
    "routing.targets": ("Target",),
    "tools.base": ("Tool", "ToolContext", "ToolError"),
    "tools.functions": ("tool",),
    "tools.registry": ("ToolRegistry",),
    "types": (
        "AgentConfig",
        "AgentRequest",
        "AgentResponse",
        "ContentPart",
        "Message",
        "ProviderCapabilities",
        "RetryConfig",
        "Role",
        "RoutingStrategy",
        "StreamEvent",
        "ThinkingLevel",
        "ToolCall",
        "ToolLoopConfig",
        "ToolResult",
        "ToolSpec",
        "Usage",
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = frozenset(("errors", "providers", "transports", "types"))
"""Modules that programs may use as attributes after nothing but `import agent`."""


def __getattr__(name: str) -> Any:
    """The command line tells its version, and completes a word, without loading what asks models."""
    if name in _HOME:
        found = getattr(import_module(f".{_HOME[name]}", __name__), name)
    elif name in _MODULES:
        found = import_module(f".{name}", __name__)
    elif name == "__version__":
        from importlib.metadata import version  # lazy: slow to import

        found = version("agent-llm-router")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found  # asked for once
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
