"""A tool that runs shell commands in the root."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from ..tools.base import AgentToolResult, ToolContext, ToolError
from ..types import JsonObject
from ..types.config import Risk
from .programs import Ended, Programs
from .workspace import WorkspaceTool, schema, text

LONGEST = 600
TIMEOUT: JsonObject = {
    "type": "number",
    "description": f"Seconds it may take, up to {LONGEST}.",
    "exclusiveMinimum": 0,
    "maximum": LONGEST,
}


@dataclass(eq=False)
class BashTool(WorkspaceTool):
    """Runs a command of the shell, with everything that it starts, for a limited time."""

    name: str = "Bash"
    description: str = (
        "Runs a command with bash in the root folder and returns what it writes. Nothing is kept between calls but "
        "files. What it leaves running is ended."
    )
    parameters: JsonObject = field(
        default_factory=lambda: schema(["command"], command=text("The command."), timeout=TIMEOUT)
    )
    risk: Risk = field(default="exec", kw_only=True)
    programs: Programs = field(kw_only=True, repr=False)
    seconds: float = field(default=120.0, kw_only=True)
    """Unless the model asks for another time."""

    @override
    def act(self, arguments: dict[str, Any], context: ToolContext[Any]) -> AgentToolResult:
        command = arguments["command"]
        if "\0" in command:
            raise ToolError("The command has a zero byte in it.")
        shell = ["/bin/bash", "--noprofile", "--norc"] if os.path.exists("/bin/bash") else ["/bin/sh"]
        ended = run_program(self, self.programs, [*shell, "-c", command], arguments, self.seconds, context)
        return answer(ended)


def run_program(
    tool: WorkspaceTool,
    programs: Programs,
    command: list[str],
    arguments: dict[str, Any],
    seconds: float,
    context: ToolContext[Any],
) -> Ended:
    scratch = tool.workspace.scratch
    reading = [str(scratch.folder("outputs")), str(scratch.folder("scripts"))]
    wanted = min(arguments.get("timeout") or seconds, LONGEST)
    try:
        return programs.run(command, str(scratch.folder("tmp")), wanted, context, reading)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ToolError(f"The program could not be started: {reason}.") from None


def answer(ended: Ended) -> AgentToolResult:
    """What a program wrote and how it ended. A failure is its own answer; only one that was stopped is an error."""
    notes = []
    if ended.lost:
        notes.append(f"[{ended.lost:,} more bytes were written, and not kept.]")
    if ended.stopped:
        notes.append(f"[Stopped: {ended.stopped}. What it had written is above.]")
    elif ended.code:
        notes.append(f"[exit code {ended.code}]")
    written = ended.output.removesuffix("\n")
    content = "\n".join(part for part in (written, *notes) if part) or "[It wrote nothing, and ended well.]"
    facts = {"exit_code": ended.code, "seconds": round(ended.seconds, 3)}
    return AgentToolResult(content, facts, is_error=bool(ended.stopped))
