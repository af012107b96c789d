"""An agent or a router as a tool of another.

Its calls are part of the run that called it: they share its deadline, stand on its bill, and end with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from typing_extensions import override

from ..context import Context
from ..errors import ConfigurationError
from ..flow import Emit, Flow, intercept
from ..tools.base import AgentToolResult, Tool, ToolContext
from ..tools.flows import NestedTool, Nesting, Suspended
from .flow import looped
from .results import RunResult
from .starting import Runner, begun

_SETTINGS = frozenset(field.name for field in fields(Tool))
_TASK = {
    "type": "object",
    "properties": {"task": {"type": "string", "description": "What to do, with everything needed to do it."}},
    "required": ["task"],
    "additionalProperties": False,
}


@dataclass
class SubAgent(NestedTool):
    """A tool that asks another agent."""

    runner: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, runner: Runner, name: str, description: str, settings: Mapping[str, Any]) -> SubAgent:
        own = {key: value for key, value in settings.items() if key in _SETTINGS}
        options = {key: value for key, value in settings.items() if key not in _SETTINGS}
        if "isolation" in own:
            raise ConfigurationError("A sub-agent is part of its caller's run.", field="isolation", fix="Leave it out.")
        own = {"parameters": _TASK, "risk": "network", "timeout": 600.0, **own}
        return cls(name, description, **own, runner=runner, options=options)

    @property
    @override
    def is_async(self) -> bool:
        return True

    @property
    @override
    def can_run(self) -> bool:
        return True

    @override
    def steps(self, arguments: Any, context: ToolContext[Any]) -> Flow[Any]:
        """The run of the other agent, as part of this one. What it does is shown as partial results.

        It shares the journal of its caller unless it has one of its own, and pauses with it.
        """
        nesting: Nesting = context.nesting or Nesting(Context())
        options = self._options(context)
        if nesting.journal is not None and (self.runner.hooks is None or self.runner.hooks.journal is None):
            options.setdefault("journal", nesting.journal)
        request = nesting.paused or _task(arguments)
        run = begun(self.runner, request, options, streaming=False, is_retried=nesting.is_retried())
        run.record.bill_caller = context.account
        deadline = nesting.context.deadline
        result: RunResult = yield from intercept(looped(run.plan, run.record, Context(deadline=deadline)), _shown)
        return Suspended(result.paused) if result.paused is not None and context.nesting else _answer(result)

    @override
    async def run(self, arguments: Any, context: ToolContext[Any]) -> Any:
        """Outside a run of ours, such as behind an MCP server."""
        return _answer(await self.runner.arun(_task(arguments), **self._options(context)))

    def _options(self, context: ToolContext[Any]) -> dict[str, Any]:
        return {"deps": context.deps, "run_id": f"{context.run_id}/{context.call_id}", **self.options}


def _task(arguments: Mapping[str, Any]) -> str:
    if set(arguments) == {"task"}:
        return str(arguments["task"])
    return "\n".join(f"{name}: {value}" for name, value in arguments.items())


def _shown(emit: Emit) -> Flow[None]:
    yield Emit([AgentToolResult(content=[], details={"event": event}) for event in emit.events])


def _answer(result: RunResult) -> Any:
    if result.paused is not None:
        waiting = ", ".join(call.name for call in result.paused.pending)
        return AgentToolResult(f"The agent waits for a person to approve: {waiting}.", is_error=True)
    return result.output if result.output is not None else result.text or ""
