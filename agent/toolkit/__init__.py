"""Ready-made tools: files, search, edits, todos and, if enabled, programs and the web.

All tools are confined to a root folder. A `Toolkit` creates them and holds their state.
"""

from __future__ import annotations

from .files import EditConfirmTool, EditTool, ReadTool, StatTool, WriteTool
from .kit import TodoWriteTool, Toolkit
from .programs import BashTool, PythonTool
from .search import GlobTool, GrepTool
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
