"""One typed client for every LLM vendor.

`import agent` loads no vendor, no HTTP library and no event loop, and does no I/O. Names are loaded on first use; type
checkers see plain imports.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import errors
    from . import providers as providers
    from . import transports as transports
    from . import types as types
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

    __version__: str

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
"""Modules that are attributes after `import agent`."""


if not TYPE_CHECKING:

    def __getattr__(name):
        if name in _HOME:
            value = getattr(import_module(f".{_HOME[name]}", __name__), name)
        elif name in _MODULES:
            value = import_module(f".{name}", __name__)
        elif name == "__version__":
            from importlib.metadata import version  # lazy: slow to import

            value = version("agent-llm-router")
        elif name.startswith("__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        else:
            from ._missing_names import create_import_error  # lazy: only misspelled names need it

            raise create_import_error(__name__, name, __all__)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
