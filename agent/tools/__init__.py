"""Tools: functions that a model may call.

```python
from agent.tools import tool

@tool
def add(a: int, b: int) -> int:
    "Adds two numbers."
    return a + b

assert add(2, 3) == 5
print(add.spec.parameters["required"])
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._missing_names import reject_names
from .base import AgentTool, AgentToolResult, ArgumentsError, Signal, Tool, ToolContext, ToolError
from .functions import FunctionTool, as_tool, tool
from .registry import ToolRegistry

__all__ = [
    "AgentTool",
    "AgentToolResult",
    "ArgumentsError",
    "FunctionTool",
    "Signal",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolRegistry",
    "as_tool",
    "tool",
]

if not TYPE_CHECKING:
    __getattr__ = reject_names(__name__, __all__)
