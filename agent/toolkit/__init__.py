"""Ready-made tools: files, search, edits, todos and, if enabled, programs and the web.

All tools are confined to a root folder. A `Toolkit` creates them and holds their state.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, overload

from typing_extensions import override

from .._missing_names import reject_names
from ..errors import ConfigurationError, printable
from ..tools.base import AgentToolResult, Tool, ToolContext
from ..types import JsonObject
from ..types.config import Risk
from .files import EditConfirmTool, EditTool, ReadTool, StatTool, WriteTool
from .programs import BashTool, ProgramRunner, PythonTool
from .sandbox import Folder
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
    TruncatedTool,
    TruncationConfig,
    Workspace,
    WorkspaceTool,
    arguments_schema,
    text_field,
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

if not TYPE_CHECKING:
    __getattr__ = reject_names(__name__, __all__)

_MARKS = {TaskStatus.PENDING: "[ ]", TaskStatus.IN_PROGRESS: "[>]", TaskStatus.COMPLETED: "[x]"}


@dataclass(eq=False)
class TodoWriteTool(WorkspaceTool):
    """Replaces the list of tasks."""

    name: str = "TodoWrite"
    description: str = "Stores your task list. Each call replaces the complete list."
    parameters: JsonObject = arguments_schema(
        ["todos"],
        todos={
            "type": "array",
            "maxItems": 200,
            "items": arguments_schema(
                ["content", "status"],
                content=text_field("The task, such as: Run the tests.", minLength=1),
                status={"type": "string", "enum": [status.value for status in TaskStatus]},
                active_form=text_field("The task in progress, such as: Running the tests."),
            ),
        },
    )
    risk: Risk = field(default="read", kw_only=True)
    idempotent: bool = field(default=True, kw_only=True)
    sequential: bool = field(default=True, kw_only=True)

    @override
    def act(self, arguments: dict[str, Any], context: ToolContext[Any]) -> AgentToolResult:
        items = [TodoItem.from_dict({"active_form": todo["content"], **todo}) for todo in arguments["todos"]]
        with self.workspace.lock:
            self.workspace.todos[:] = items
        done = sum(item.status is TaskStatus.COMPLETED for item in items)
        lines = [f"{_MARKS[item.status]} {item.content}" for item in items]
        shown = "\n".join([f"{done} of {len(items)} tasks are done.", *lines])
        return AgentToolResult(shown, {"todos": [item.to_dict() for item in items]})


_Kind = TypeVar("_Kind", bound=Tool)


class _ToolAttribute(Generic[_Kind]):
    """A tool as an attribute of its toolkit. `switch` is the option that includes it."""

    def __init__(self, kind: type[_Kind], switch: str) -> None:
        self._kind = kind
        self._switch = switch

    def __get__(self, kit: Toolkit, owner: type[Toolkit]) -> _Kind:
        for tool in kit:
            if isinstance(tool, self._kind):
                return tool
        raise ConfigurationError(
            f"This toolkit has no {self._kind.name} tool.",
            field=self._switch,
            fix=f"Create it with {self._switch}=True.",
        )


class Toolkit(Sequence[Tool]):
    """Tools confined to a root folder. It is a sequence of tools: pass it as `tools=`.

    ```python
    from agent import toolkit

    with toolkit.Toolkit(".", allow_write=False) as kit:
        print([tool.name for tool in kit])
        #> ['Read', 'Glob', 'Grep', 'Stat', 'TodoWrite']
    ```
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        allow_write: bool = True,
        allow_exec: bool | Literal["unconfined"] = False,
        allow_network: bool = False,
        truncation: TruncationConfig | None = None,
        max_file_bytes: int = 10_000_000,
        program_folders: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        """
        Args:
            root: An existing folder, which no path can leave.
            allow_write: Include the tools that write files: Write, Edit, EditConfirm.
            allow_exec: Include the tools that run programs: Bash, Python. The kernel confines programs to the root, or
                this raises if it cannot. `"unconfined"` runs them with all rights of the user. The loop asks for
                approval in both cases.
            allow_network: Include WebFetch, for pages of the public internet. Confined programs have no network either
                way.
            truncation: Output limits for all tools; by default each tool's own.
            max_file_bytes: The largest file to read or write.
            program_folders: More folders that confined programs may read and execute.
        """
        if allow_exec not in (True, False, "unconfined"):
            raise ConfigurationError(
                f"allow_exec cannot be {allow_exec!r}.", field="allow_exec", fix="Pass True, False or 'unconfined'."
            )
        folder = Folder(root)
        self._workspace = workspace = Workspace(folder, truncation, max_file_bytes)
        self._tools: list[Tool] = [ReadTool(workspace=workspace)]
        if allow_write:
            self._tools += [kind(workspace=workspace) for kind in (WriteTool, EditTool, EditConfirmTool)]
        self._tools += [kind(workspace=workspace) for kind in (GlobTool, GrepTool, StatTool, TodoWriteTool)]
        if allow_exec:
            readable = [os.path.realpath(path) for path in program_folders]
            programs = ProgramRunner(folder.path, allow_exec != "unconfined", allow_write, readable)
            programs.check()
            self._tools += [kind(workspace=workspace, programs=programs) for kind in (BashTool, PythonTool)]
        if allow_network:
            self._tools.append(WebFetchTool(workspace=workspace))

    # Tools

    @property
    def root(self) -> Path:
        return Path(self._workspace.root.path)

    @property
    def tools(self) -> list[Tool]:
        return list(self._tools)

    def add(self, tool: Tool) -> None:
        """Add a custom tool. Its output is truncated as the toolkit, or its `_truncation_config`, specifies."""
        if any(tool.name == present.name for present in self._tools):
            raise ConfigurationError(f"A tool named {tool.name!r} exists already.", field="tools", fix="Rename one.")
        self._tools.append(TruncatedTool.of(tool, self._workspace))

    @override
    def __iter__(self) -> Iterator[Tool]:
        return iter(list(self._tools))

    @override
    def __len__(self) -> int:
        return len(self._tools)

    @overload
    def __getitem__(self, index: int) -> Tool: ...

    @overload
    def __getitem__(self, index: slice) -> list[Tool]: ...

    @override
    def __getitem__(self, index: int | slice) -> Tool | list[Tool]:
        return self._tools[index]

    @override
    @printable
    def __repr__(self) -> str:
        return f"Toolkit({str(self.root)!r}: {', '.join(tool.name for tool in self._tools)})"

    read: _ToolAttribute[ReadTool] = _ToolAttribute(ReadTool, "root")
    write: _ToolAttribute[WriteTool] = _ToolAttribute(WriteTool, "allow_write")
    edit: _ToolAttribute[EditTool] = _ToolAttribute(EditTool, "allow_write")
    edit_confirm: _ToolAttribute[EditConfirmTool] = _ToolAttribute(EditConfirmTool, "allow_write")
    glob: _ToolAttribute[GlobTool] = _ToolAttribute(GlobTool, "root")
    grep: _ToolAttribute[GrepTool] = _ToolAttribute(GrepTool, "root")
    stat: _ToolAttribute[StatTool] = _ToolAttribute(StatTool, "root")
    todo_write: _ToolAttribute[TodoWriteTool] = _ToolAttribute(TodoWriteTool, "root")
    bash: _ToolAttribute[BashTool] = _ToolAttribute(BashTool, "allow_exec")
    python: _ToolAttribute[PythonTool] = _ToolAttribute(PythonTool, "allow_exec")
    web_fetch: _ToolAttribute[WebFetchTool] = _ToolAttribute(WebFetchTool, "allow_network")

    # State

    @property
    def todos(self) -> list[TodoItem]:
        """The model's task list."""
        return list(self._workspace.todos)

    @property
    def pending_edits(self) -> Mapping[str, PendingEdit]:
        """Unconfirmed edits by id."""
        return {edit_id: edit for edit_id, (edit, _) in list(self._workspace.edits.items())}

    @property
    def scripts(self) -> Mapping[str, PythonScript]:
        """Scripts of the Python tool by id."""
        return dict(self._workspace.scripts)

    @property
    def truncated_outputs(self) -> list[TruncatedOutput]:
        """Truncated outputs, oldest first."""
        return list(self._workspace.outputs)

    # Closing

    def close(self) -> None:
        """Remove stored outputs, scripts and temporary files. The root is unchanged."""
        self._workspace.scratch.close()
        with self._workspace.lock:
            self._workspace.outputs.clear()
            self._workspace.scripts.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
