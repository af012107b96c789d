"""Ready-made tools for agents: files, search, edits, todos; and, where they are switched on, programs and the web.

All of them are confined to a root folder. A `Toolkit` makes them and holds what they remember.
"""

from __future__ import annotations

from .files import EditConfirmTool, EditTool, ReadTool, StatTool, WriteTool
from .kit import TodoWriteTool, Toolkit
from .search import GlobTool, GrepTool
from .shell import BashTool, PythonTool
from .web import WebFetchTool
from .workspace import (
    PendingEdit,
    PythonScript,
    TaskStatus,
    Todo,
    TodoItem,
    TodoStatus,
    TruncatedOutput,
    TruncationConfig,
)

__all__ = [
    "BashTool",
    "EditConfirmTool",
    "EditTool",
    "GlobTool",
    "GrepTool",
    "PendingEdit",
    "PythonScript",
    "PythonTool",
    "ReadTool",
    "StatTool",
    "TaskStatus",
    "Todo",
    "TodoItem",
    "TodoStatus",
    "TodoWriteTool",
    "Toolkit",
    "TruncatedOutput",
    "TruncationConfig",
    "WebFetchTool",
    "WriteTool",
]
