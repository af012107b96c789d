"""What tools remember between calls: todos, edits that wait, outputs that were cut, scripts.

Plain dataclasses that a program may read, show and save. They do nothing, and know no tool.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum, StrEnum
from typing import Any, ClassVar, Self


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
