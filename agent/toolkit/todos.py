"""A tool by which a model keeps a list of tasks: for itself to remember, and for people to watch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from ..tools.base import AgentToolResult, ToolContext
from ..types import JsonObject
from ..types.config import Risk
from .state import TaskStatus, TodoItem
from .workspace import WorkspaceTool, schema, text

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
