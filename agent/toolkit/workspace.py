"""State shared by the tools of a toolkit: root, temporary folder, limits, todos, edits and outputs.

The temporary folder holds truncated outputs, scripts and temporary files of programs. It is created on first use,
private to the user, and removed when the toolkit is closed or collected.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import Enum, StrEnum
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar, Self

from typing_extensions import override

from ..errors import ConfigurationError
from ..tools.base import AgentToolResult, Tool, ToolContext, count_lines, omit_middle
from ..types import FrozenDict, JsonObject
from .sandbox import Folder


class TaskStatus(StrEnum):
    """The state of a task."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"


TodoStatus = TaskStatus


class _Record:
    """Conversion to JSON dicts, and back."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        given: dict[str, Any] = asdict(self)  # type: ignore[call-overload]  # every subclass is a dataclass
        return {name: value.value if isinstance(value, Enum) else value for name, value in given.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create from a dict; unknown keys are ignored, and `activeForm` is accepted."""
        known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        given = {"active_form" if name == "activeForm" else name: value for name, value in data.items()}
        if "status" in given:
            given["status"] = TaskStatus(given["status"])
        return cls(**{name: value for name, value in given.items() if name in known})


@dataclass(frozen=True)
class TodoItem(_Record):
    """A task of the model's list."""

    content: str
    status: TaskStatus
    active_form: str
    """The text to show during the task: "Running tests"."""


@dataclass
class Todo(_Record):
    """A mutable task."""

    content: str
    status: TodoStatus
    active_form: str


@dataclass
class PendingEdit(_Record):
    """A proposed edit."""

    file_path: str
    old_string: str
    new_string: str
    match_line: int
    """The line of the first match, counted from 1."""
    context_before: list[str]
    context_after: list[str]
    created_at: float
    """Unix time."""
    replace_all: bool = False
    match_count: int = 1


@dataclass
class TruncationConfig(_Record):
    """Output limits of a tool. A tool class defines its own as `_truncation_config`."""

    max_chars: int = 30000
    max_lines: int = 1000
    enabled: bool = True


@dataclass
class TruncatedOutput(_Record):
    """A truncated output, and the file with the complete text."""

    tool_name: str
    temp_file_path: str
    original_chars: int
    original_lines: int
    created_at: float
    """Unix time."""


@dataclass
class PythonScript(_Record):
    """A script of the Python tool."""

    file_id: str
    """The model's id of the script, such as `py_1f9a2c`."""
    file_path: str
    """An absolute path in the temporary folder."""
    content: str
    created_at: float
    last_run_at: float | None = None
    run_count: int = 0


MAX_KEPT = 100
"""Maximum number of stored outputs, edits and scripts; the oldest are dropped."""


def now() -> float:
    """Return the Unix time, for display. Durations use a monotonic clock."""
    return datetime.now(UTC).timestamp()


class Scratch:
    """The temporary folder of a toolkit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._path: str | None = None
        self._remove: weakref.finalize[Any, Any] | None = None
        self._closed = False

    def folder(self, name: str) -> Path:
        """Create `outputs`, `scripts` or `tmp`."""
        with self._lock:
            if self._path is None:
                if self._closed:
                    raise RuntimeError("The toolkit is closed.")
                self._path = os.path.realpath(tempfile.mkdtemp(prefix="agent-toolkit-"))
                self._remove = weakref.finalize(self, _remove_tree, self._path, os.getpid())
            made = Path(self._path, name)
            made.mkdir(mode=0o700, exist_ok=True)
            return made

    @property
    def outputs(self) -> Path | None:
        """The folder of truncated outputs, if it exists."""
        return None if self._path is None else Path(self._path, "outputs")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._remove is not None:
                self._remove()
            self._path = None


def _remove_tree(path: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked child must not remove its parent's folder
        shutil.rmtree(path, ignore_errors=True)


@dataclass(eq=False)
class Workspace:
    """The state shared by the tools of a toolkit."""

    root: Folder
    truncation: TruncationConfig | None = None
    """Limits for all tools; None for each tool's own."""
    max_file_bytes: int = 10_000_000
    scratch: Scratch = field(default_factory=Scratch)
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held during changes of files and shared state, because tool calls run concurrently."""
    todos: list[TodoItem] = field(default_factory=list)
    edits: dict[str, tuple[PendingEdit, bytes]] = field(default_factory=dict)
    """Proposed edits by id, with the digest of the original file."""
    scripts: dict[str, PythonScript] = field(default_factory=dict)
    outputs: list[TruncatedOutput] = field(default_factory=list)

    def folder_of(self, given: str) -> Folder:
        """Return the root, or the output folder for paths in it, so that truncated outputs can be read."""
        outputs = self.scratch.outputs
        if outputs is not None and given.startswith(f"{outputs}/") and outputs.is_dir():
            return Folder(outputs)
        return self.root

    def config_of(self, tool: Tool) -> TruncationConfig:
        """Return the toolkit's limits, or the tool's own."""
        own = getattr(type(tool), "_truncation_config", None)
        return self.truncation or (own if isinstance(own, TruncationConfig) else TruncationConfig())

    def truncate(self, tool: Tool, result: Any) -> Any:
        """Truncate the text of a result; other content is unchanged."""
        if isinstance(result, AgentToolResult):
            return replace(result, content=self.truncate(tool, result.content))
        if not isinstance(result, str):
            return result

        return omit_middle(result, self.config_of(tool), lambda text: self._store(tool.name, text))

    def _store(self, tool_name: str, text: str) -> str:
        """Write the complete output to a file; return a sentence that names it."""
        name = re.sub(r"[\W_]", "", tool_name).lower()[:40] or "tool"
        path = self.scratch.folder("outputs") / f"{name}_{token_hex(4)}.txt"
        path.write_bytes(text.encode("utf-8", "replace"))
        path.chmod(0o600)
        stored = TruncatedOutput(tool_name, str(path), len(text), count_lines(text), now())
        with self.lock:
            self.outputs.append(stored)
            forgotten = self.outputs[:-MAX_KEPT]
            del self.outputs[:-MAX_KEPT]
        for old in forgotten:
            with suppress(OSError):
                os.unlink(old.temp_file_path)
        return f"The complete output is in {path}: Read it with offset and limit."


@dataclass(eq=False)
class WorkspaceTool(Tool):
    """A tool of a toolkit. Subclasses implement `act`, whose result is truncated."""

    _truncation_config: ClassVar[TruncationConfig] = TruncationConfig()

    workspace: Workspace = field(kw_only=True, repr=False)

    @property
    @override
    def truncation(self) -> None:
        """None: the workspace truncates outputs, and stores them."""

    @override
    def run(self, arguments: Any, context: ToolContext[Any]) -> Any:
        return self.workspace.truncate(self, self.act(arguments, context))

    def act(self, arguments: dict[str, Any], context: ToolContext[Any]) -> str | AgentToolResult:
        raise NotImplementedError


@dataclass(eq=False)
class TruncatedTool(Tool):
    """A custom tool whose output is truncated."""

    tool: Tool = field(kw_only=True)
    workspace: Workspace = field(kw_only=True, repr=False)

    @classmethod
    def of(cls, tool: Tool, workspace: Workspace) -> TruncatedTool:
        if tool.isolation == "process":
            raise ConfigurationError(
                f"{tool.name!r} runs in a separate process, and cannot use this toolkit.",
                field="isolation",
                fix="Pass it next to the toolkit: tools=[*toolkit, tool].",
            )
        same = ("name", "description", "parameters", "timeout", "retries", "risk", "idempotent", "sequential")
        settings = {name: getattr(tool, name) for name in (*same, "strict")}
        return cls(**settings, tool=tool, workspace=workspace)

    @property
    @override
    def is_async(self) -> bool:
        return self.tool.is_async

    @property
    @override
    def can_run(self) -> bool:
        return self.tool.can_run

    @override
    def check(self, arguments: Any) -> Any:
        return self.tool.check(arguments)

    @override
    def run(self, arguments: Any, context: ToolContext[Any]) -> Any:
        result = self.tool.run(arguments, context)
        return self._truncate_async(result) if self.is_async else self.workspace.truncate(self.tool, result)

    async def _truncate_async(self, awaitable: Any) -> Any:
        return self.workspace.truncate(self.tool, await awaitable)


def arguments_schema(required: Sequence[str] = (), **properties: JsonObject) -> JsonObject:
    """Build the JSON schema of the arguments, without additional properties."""
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return FrozenDict(schema)


def text_field(description: str, **more: Any) -> JsonObject:
    return {"type": "string", "description": description, **more}


def integer_field(description: str, **more: Any) -> JsonObject:
    return {"type": "integer", "description": description, "minimum": 1, **more}


def boolean_field(description: str) -> JsonObject:
    return {"type": "boolean", "description": description, "default": False}
