"""What the tools of one toolkit share: the root, a folder of their own, limits, and what they remember.

The folder of their own holds outputs that were too long, scripts, and the temporary files of programs. It is made when
it is first needed, only this user may open it, and it goes when the toolkit is closed or forgotten.
"""

from __future__ import annotations

import os
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
from ..tools.base import AgentToolResult, Tool, ToolContext
from ..types import JsonObject
from .sandbox import Folder


class TaskStatus(StrEnum):
    """How far a task is."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"


TodoStatus = TaskStatus


class _Record:
    """To dicts of JSON, and back."""

    __slots__ = ()
    _other_names: ClassVar[Mapping[str, str]] = {}
    """Spellings that are read, but never written."""

    def to_dict(self) -> dict[str, Any]:
        given: dict[str, Any] = asdict(self)  # type: ignore[call-overload]  # every subclass is a dataclass
        return {name: value.value if isinstance(value, Enum) else value for name, value in given.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Unknown keys are left alone. Raises TypeError for a missing one, ValueError for an unknown status."""
        known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        given = {cls._other_names.get(name, name): value for name, value in data.items()}
        if "status" in given:
            given["status"] = TaskStatus(given["status"])
        return cls(**{name: value for name, value in given.items() if name in known})


@dataclass(frozen=True)
class TodoItem(_Record):
    """A task of the list that the model keeps."""

    _other_names: ClassVar[Mapping[str, str]] = {"activeForm": "active_form"}

    content: str
    status: TaskStatus
    active_form: str
    """What to show while it is being done: "Running tests"."""


@dataclass
class Todo(_Record):
    """A task that may be changed in place."""

    _other_names: ClassVar[Mapping[str, str]] = {"activeForm": "active_form"}

    content: str
    status: TodoStatus
    active_form: str


@dataclass
class PendingEdit(_Record):
    """An edit that was proposed, and waits to be confirmed."""

    file_path: str
    old_string: str
    new_string: str
    match_line: int
    """The line of the first match, counted from 1."""
    context_before: list[str]
    context_after: list[str]
    created_at: float
    """Seconds since 1970."""
    replace_all: bool = False
    match_count: int = 1


@dataclass
class TruncationConfig(_Record):
    """How long the output of a tool may be. A tool has its own as `_truncation_config`."""

    max_chars: int = 30000
    max_lines: int = 1000
    enabled: bool = True


@dataclass
class TruncatedOutput(_Record):
    """An output that was cut, and where the whole of it is."""

    tool_name: str
    temp_file_path: str
    original_chars: int
    original_lines: int
    created_at: float
    """Seconds since 1970."""


@dataclass
class PythonScript(_Record):
    """A script that the Python tool has written."""

    file_id: str
    """As the model names it: `py_1f9a2c`."""
    file_path: str
    """Absolute, in the toolkit's own folder."""
    content: str
    created_at: float
    last_run_at: float | None = None
    run_count: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """The two ends of a text, and the size of what lay between."""

    head: str
    tail: str
    missing_chars: int
    missing_lines: int

    def text(self, original_chars: int, whereabouts: str) -> str:
        lost = f"{self.missing_chars:,} of {original_chars:,} characters ({self.missing_lines:,} lines)"
        marker = f"[… {lost} are left out here. {whereabouts}]"
        return "\n".join(part for part in (self.head.rstrip("\n"), marker, self.tail) if part)


def count_lines(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n") and bool(text))


def cut(text: str, config: TruncationConfig) -> Cut | None:
    """None for a text that may stay as it is."""
    if not config.enabled or (len(text) <= config.max_chars and count_lines(text) <= config.max_lines):
        return None
    most_chars, most_lines = max(config.max_chars, 0), max(config.max_lines, 0)
    lines = text.removesuffix("\n").split("\n")
    if len(lines) > most_lines:
        ending = len(lines) - most_lines // 2
        head, tail = "\n".join(lines[: most_lines - most_lines // 2]), "\n".join(lines[ending:])
    else:
        head, tail = text, text
    head = head[: most_chars - most_chars // 2]
    room = most_chars // 2
    tail = tail[-room:] if room else ""
    missing = max(len(text) - len(head) - len(tail), 0)
    return Cut(head, tail, missing, max(count_lines(text) - count_lines(head) - count_lines(tail), 0))


MOST_KEPT = 100
"""Outputs, edits and scripts beyond these are forgotten, the oldest first."""


def now() -> float:
    """Seconds since 1970, for people to read. Durations are measured otherwise."""
    return datetime.now(UTC).timestamp()


class Scratch:
    """The toolkit's own folder."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._path: str | None = None
        self._remove: weakref.finalize[Any, Any] | None = None
        self._closed = False

    def folder(self, name: str) -> Path:
        """`outputs`, `scripts` or `tmp`."""
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
        """Where long outputs are, if there are any."""
        return None if self._path is None else Path(self._path, "outputs")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._remove is not None:
                self._remove()
            self._path = None


def _remove_tree(path: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked child must not take its parent's folder away
        shutil.rmtree(path, ignore_errors=True)


@dataclass(eq=False)
class Workspace:
    """Shared by the tools of a toolkit."""

    root: Folder
    truncation: TruncationConfig | None = None
    """For all tools; None: each tool's own."""
    max_file_bytes: int = 10_000_000
    scratch: Scratch = field(default_factory=Scratch)
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while files and the things below are changed: calls of one turn run beside each other."""
    todos: list[TodoItem] = field(default_factory=list)
    edits: dict[str, tuple[PendingEdit, bytes]] = field(default_factory=dict)
    """By id, with a digest of the file as it was when the edit was proposed."""
    scripts: dict[str, PythonScript] = field(default_factory=dict)
    outputs: list[TruncatedOutput] = field(default_factory=list)

    def folder_of(self, given: str) -> Folder:
        """The root, or the folder of long outputs if a path leads there: what was cut can be read."""
        outputs = self.scratch.outputs
        if outputs is not None and given.startswith(f"{outputs}/") and outputs.is_dir():
            return Folder(outputs)
        return self.root

    def config_of(self, tool: Tool) -> TruncationConfig:
        """The toolkit's, else the tool's own."""
        own = getattr(type(tool), "_truncation_config", None)
        return self.truncation or (own if isinstance(own, TruncationConfig) else TruncationConfig())

    def shortened(self, tool: Tool, result: Any) -> Any:
        """A result that is not too long for the model. What is not text stays as it is."""
        if isinstance(result, AgentToolResult):
            return replace(result, content=self.shortened(tool, result.content))
        if not isinstance(result, str):
            return result
        parts = cut(result, self.config_of(tool))
        if parts is None:
            return result
        stored = self._store(tool.name, result)
        return parts.text(len(result), f"All of it is in {stored.temp_file_path}: Read it with offset and limit.")

    def _store(self, tool_name: str, text: str) -> TruncatedOutput:
        name = "".join(character for character in tool_name if character.isalnum()).lower()[:40] or "tool"
        path = self.scratch.folder("outputs") / f"{name}_{token_hex(4)}.txt"
        path.write_bytes(text.encode("utf-8", "replace"))
        path.chmod(0o600)
        stored = TruncatedOutput(name, str(path), len(text), count_lines(text), now())
        stored.tool_name = tool_name
        with self.lock:
            self.outputs.append(stored)
            forgotten = self.outputs[:-MOST_KEPT]
            del self.outputs[:-MOST_KEPT]
        for old in forgotten:
            with suppress(OSError):
                os.unlink(old.temp_file_path)
        return stored


@dataclass(eq=False)
class WorkspaceTool(Tool):
    """A tool of a toolkit: writes `act`, and its result is shortened for the model."""

    _truncation_config: ClassVar[TruncationConfig] = TruncationConfig()

    workspace: Workspace = field(kw_only=True, repr=False)

    @override
    def run(self, arguments: Any, context: ToolContext[Any]) -> Any:
        return self.workspace.shortened(self, self.act(arguments, context))

    def act(self, arguments: dict[str, Any], context: ToolContext[Any]) -> str | AgentToolResult:
        raise NotImplementedError


@dataclass(eq=False)
class Shortened(Tool):
    """Somebody's own tool in a toolkit: as it is, but its text is not too long for the model."""

    tool: Tool = field(kw_only=True)
    workspace: Workspace = field(kw_only=True, repr=False)

    @classmethod
    def of(cls, tool: Tool, workspace: Workspace) -> Shortened:
        if tool.isolation == "process":
            raise ConfigurationError(
                f"{tool.name!r} runs in a process of its own, where this toolkit is not.",
                field="isolation",
                fix="Pass it beside the toolkit: tools=[*toolkit, tool].",
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
        return self._later(result) if self.is_async else self.workspace.shortened(self.tool, result)

    async def _later(self, coming: Any) -> Any:
        return self.workspace.shortened(self.tool, await coming)


def schema(required: Sequence[str] = (), **properties: JsonObject) -> JsonObject:
    """A JSON schema of arguments: these, and no others."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def text(description: str, **more: Any) -> JsonObject:
    return {"type": "string", "description": description, **more}


def number(description: str, **more: Any) -> JsonObject:
    return {"type": "integer", "description": description, "minimum": 1, **more}


def flag(description: str) -> JsonObject:
    return {"type": "boolean", "description": description, "default": False}
