"""A set of tools that work in one folder, and what they have in mind."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, overload

from typing_extensions import override

from ..errors import ConfigurationError
from ..tools.base import AgentToolResult, Tool, ToolContext
from ..types import JsonObject
from ..types.config import Risk
from .files import EditConfirmTool, EditTool, ReadTool, StatTool, WriteTool
from .processes import Programs
from .sandbox import Folder
from .search import GlobTool, GrepTool
from .shell import BashTool, PythonTool
from .web import WebFetchTool
from .workspace import (
    PendingEdit,
    PythonScript,
    Shortened,
    TaskStatus,
    TodoItem,
    TruncatedOutput,
    TruncationConfig,
    Workspace,
    WorkspaceTool,
    schema,
    text,
)

_MARKS = {TaskStatus.PENDING: "[ ]", TaskStatus.IN_PROGRESS: "[>]", TaskStatus.COMPLETED: "[x]"}


@dataclass(eq=False)
class TodoWriteTool(WorkspaceTool):
    """Replaces the list of tasks."""

    name: str = "TodoWrite"
    description: str = "Keeps your list of tasks. Each call gives the whole list, which replaces the one before."
    parameters: JsonObject = field(
        default_factory=lambda: schema(
            ["todos"],
            todos={
                "type": "array",
                "maxItems": 200,
                "items": schema(
                    ["content", "status"],
                    content=text("What is to be done: Run the tests.", minLength=1),
                    status={"type": "string", "enum": [status.value for status in TaskStatus]},
                    active_form=text("The same, as it is being done: Running the tests."),
                ),
            },
        )
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
            root: The folder that no path leaves. It must be there.
            allow_write: Whether files may be written: Write, Edit, EditConfirm.
            allow_exec: Whether programs may be run: Bash, Python. The kernel confines them to the root; where it
                cannot, this raises. `"unconfined"` runs them with all rights of the user. The loop asks before it runs
                either tool, whatever is said here.
            allow_network: Whether pages of the public internet may be fetched: WebFetch. Programs that are confined
                have no network either way.
            truncation: How long outputs may be, for all tools; each tool's own unless given.
            max_file_bytes: The largest file that is read or written.
            program_folders: Folders that confined programs may read and run, beyond those of the system and of Python.
        """
        if allow_exec not in (True, False, "unconfined"):
            raise ConfigurationError(
                f"allow_exec cannot be {allow_exec!r}.", field="allow_exec", fix="Give True, False or 'unconfined'."
            )
        folder = Folder(root)
        self._workspace = workspace = Workspace(folder, truncation, max_file_bytes)
        self._tools: list[Tool] = [ReadTool(workspace=workspace)]
        if allow_write:
            self._tools += [kind(workspace=workspace) for kind in (WriteTool, EditTool, EditConfirmTool)]
        self._tools += [kind(workspace=workspace) for kind in (GlobTool, GrepTool, StatTool, TodoWriteTool)]
        if allow_exec:
            readable = [os.path.realpath(path) for path in program_folders]
            programs = Programs(folder.path, allow_exec != "unconfined", allow_write, readable)
            programs.check()
            self._tools += [kind(workspace=workspace, programs=programs) for kind in (BashTool, PythonTool)]
        if allow_network:
            self._tools.append(WebFetchTool(workspace=workspace))

    # The tools

    @property
    def root(self) -> Path:
        return Path(self._workspace.root.path)

    @property
    def tools(self) -> list[Tool]:
        return list(self._tools)

    def add(self, tool: Tool) -> None:
        """Take in a tool of your own. Its output is cut as its `_truncation_config` says, or the toolkit's."""
        if any(tool.name == present.name for present in self._tools):
            raise ConfigurationError(f"There is a tool {tool.name!r} already.", field="tools", fix="Rename one.")
        self._tools.append(Shortened.of(tool, self._workspace))

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
    def __repr__(self) -> str:
        return f"Toolkit({str(self.root)!r}: {', '.join(tool.name for tool in self._tools)})"

    def _the(self, kind: type[_Kind], switch: str) -> _Kind:
        for tool in self._tools:
            if isinstance(tool, kind):
                return tool
        raise ConfigurationError(
            f"This toolkit has no {kind.name} tool.", field=switch, fix=f"Make it with {switch}=True."
        )

    @property
    def read(self) -> ReadTool:
        return self._the(ReadTool, "root")

    @property
    def write(self) -> WriteTool:
        return self._the(WriteTool, "allow_write")

    @property
    def edit(self) -> EditTool:
        return self._the(EditTool, "allow_write")

    @property
    def edit_confirm(self) -> EditConfirmTool:
        return self._the(EditConfirmTool, "allow_write")

    @property
    def glob(self) -> GlobTool:
        return self._the(GlobTool, "root")

    @property
    def grep(self) -> GrepTool:
        return self._the(GrepTool, "root")

    @property
    def stat(self) -> StatTool:
        return self._the(StatTool, "root")

    @property
    def todo_write(self) -> TodoWriteTool:
        return self._the(TodoWriteTool, "root")

    @property
    def bash(self) -> BashTool:
        return self._the(BashTool, "allow_exec")

    @property
    def python(self) -> PythonTool:
        return self._the(PythonTool, "allow_exec")

    @property
    def web_fetch(self) -> WebFetchTool:
        return self._the(WebFetchTool, "allow_network")

    # What they remember

    @property
    def todos(self) -> list[TodoItem]:
        """The model's list of tasks."""
        return list(self._workspace.todos)

    @property
    def pending_edits(self) -> Mapping[str, PendingEdit]:
        """Edits that wait to be confirmed, by id."""
        return {edit_id: edit for edit_id, (edit, _) in list(self._workspace.edits.items())}

    @property
    def scripts(self) -> Mapping[str, PythonScript]:
        """Scripts of the Python tool, by id."""
        return dict(self._workspace.scripts)

    @property
    def truncated_outputs(self) -> list[TruncatedOutput]:
        """Outputs that were cut, the oldest first."""
        return list(self._workspace.outputs)

    # Its end

    def close(self) -> None:
        """Remove long outputs, scripts and temporary files. What is in the root stays."""
        self._workspace.scratch.close()
        with self._workspace.lock:
            self._workspace.outputs.clear()
            self._workspace.scripts.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
