"""Immutable conversation graphs: branch, merge, compare, draw and save.

```python
from agent.graph import DAG

dag = DAG().system("Be brief.").user("What is the capital of France?").assistant("Paris.")
print(dag)
```
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._missing_names import reject_names
from ..types import (
    ContentBlock,
    Message,
    NodeData,
    Role,
    StopReason,
    SystemPrompt,
    TextContent,
    ThinkingContent,
    ToolDefinition,
    ToolDefinitions,
    ToolExecution,
    ToolResultContent,
    ToolUseContent,
)
from .dag import DAG, Difference
from .node import Node

__all__ = [
    "DAG",
    "ContentBlock",
    "Difference",
    "Message",
    "Node",
    "NodeData",
    "Role",
    "StopReason",
    "SystemPrompt",
    "TextContent",
    "ThinkingContent",
    "ToolDefinition",
    "ToolDefinitions",
    "ToolExecution",
    "ToolResultContent",
    "ToolUseContent",
]

if not TYPE_CHECKING:
    __getattr__ = reject_names(__name__, __all__)
