"""Examples of the seed document about todos and tool state; only imports were adapted."""

from __future__ import annotations

import json
from dataclasses import MISSING, FrozenInstanceError, dataclass, fields
from typing import ClassVar

import pytest

from agent.toolkit import (
    PendingEdit,
    PythonScript,
    TaskStatus,
    Todo,
    TodoItem,
    TodoStatus,
    TruncatedOutput,
    TruncationConfig,
)
from agent.tools import Tool

REQUIRED = MISSING
DESCRIBED: dict[type, dict[str, object]] = {
    TodoItem: {"content": REQUIRED, "status": REQUIRED, "active_form": REQUIRED},
    Todo: {"content": REQUIRED, "status": REQUIRED, "active_form": REQUIRED},
    PendingEdit: {
        "file_path": REQUIRED,
        "old_string": REQUIRED,
        "new_string": REQUIRED,
        "match_line": REQUIRED,
        "context_before": REQUIRED,
        "context_after": REQUIRED,
        "created_at": REQUIRED,
        "replace_all": False,
        "match_count": 1,
    },
    TruncationConfig: {"max_chars": 30000, "max_lines": 1000, "enabled": True},
    TruncatedOutput: {
        "tool_name": REQUIRED,
        "temp_file_path": REQUIRED,
        "original_chars": REQUIRED,
        "original_lines": REQUIRED,
        "created_at": REQUIRED,
    },
    PythonScript: {
        "file_id": REQUIRED,
        "file_path": REQUIRED,
        "content": REQUIRED,
        "created_at": REQUIRED,
        "last_run_at": None,
        "run_count": 0,
    },
}


@pytest.mark.parametrize("kind", DESCRIBED, ids=lambda kind: kind.__name__)
def test_fields_and_defaults_are_the_ones_described_in_that_order(kind: type) -> None:
    assert [(field.name, field.default) for field in fields(kind)] == list(DESCRIBED[kind].items())


def test_a_tool_carries_its_truncation_as_a_class_variable() -> None:
    @dataclass
    class MyTool(Tool):
        _truncation_config: ClassVar[TruncationConfig] = TruncationConfig(
            max_chars=5000,
            enabled=True
        )  # fmt: skip

    assert MyTool._truncation_config == TruncationConfig(5000, 1000, True)
    assert [field.name for field in fields(MyTool)] == [field.name for field in fields(Tool)]


def test_there_is_one_status_under_two_names() -> None:
    assert TodoStatus is TaskStatus
    assert [status.value for status in TaskStatus] == ["pending", "in_progress", "completed"]
    assert TaskStatus("pending") == "pending"
    assert isinstance(TaskStatus.PENDING, str)


def test_an_item_is_frozen_and_a_todo_is_not() -> None:
    item = TodoItem(content="Run tests", status=TaskStatus.PENDING, active_form="Running tests")
    with pytest.raises(FrozenInstanceError):
        item.content = "x"  # type: ignore[misc]
    assert hash(item) == hash(TodoItem("Run tests", TaskStatus.PENDING, "Running tests"))
    todo = Todo("Run tests", TodoStatus.PENDING, "Running tests")
    todo.status = TodoStatus.COMPLETED
    assert todo.to_dict() == {"content": "Run tests", "status": "completed", "active_form": "Running tests"}


@pytest.mark.parametrize(
    "value",
    [
        TodoItem("Run tests", TaskStatus.IN_PROGRESS, "Running tests"),
        Todo("Run tests", TaskStatus.IN_PROGRESS, "Running tests"),
        PendingEdit("a.py", "old", "new", 3, ["before"], ["after"], 1.5, True, 2),
        TruncationConfig(1, 2, False),
        TruncatedOutput("Bash", "out.txt", 100, 10, 1.5),
        PythonScript("py_abc123", "py_abc123.py", "print()", 1.5, 2.5, 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_value_survives_json(value: Todo) -> None:
    assert type(value).from_dict(json.loads(json.dumps(value.to_dict()))) == value


def test_other_spellings_are_read_and_strange_ones_refused() -> None:
    camel = {"content": "Run tests", "status": "pending", "activeForm": "Running tests", "id": "7"}
    assert Todo.from_dict(camel) == Todo("Run tests", TaskStatus.PENDING, "Running tests")
    with pytest.raises(ValueError, match="done"):
        Todo.from_dict({**camel, "status": "done"})
    with pytest.raises(TypeError, match="content"):
        Todo.from_dict({"status": "pending", "active_form": ""})
