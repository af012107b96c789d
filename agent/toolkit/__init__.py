"""Ready-made tools for agents: files, search, edits, todos; and, where they are switched on, programs and the web.

All of them are confined to a root folder. A `Toolkit` makes them and holds what they remember.
"""

from __future__ import annotations

from .edits import EditConfirmTool, EditTool
from .files import ReadTool, StatTool, WriteTool
from .kit import Toolkit
from .scripts import PythonTool
from .search import GlobTool, GrepTool
from .shell import BashTool
from .state import (
    PendingEdit,
    PythonScript,
    TaskStatus,
    Todo,
    TodoItem,
    TodoStatus,
    TruncatedOutput,
    TruncationConfig,
)
from .todos import TodoWriteTool
from .web import WebFetchTool

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
