"""A tool that runs shell commands in the root."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

from typing_extensions import override

from ..tools.base import AgentToolResult, ToolContext, ToolError
from ..types import JsonObject
from ..types.config import Risk
from .files import encoded, replaced
from .processes import Ended, Programs
from .workspace import MOST_KEPT, PythonScript, WorkspaceTool, flag, now, schema, text

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


@dataclass(eq=False)
class PythonTool(WorkspaceTool):
    """Keeps Python scripts and runs them in processes of their own."""

    name: str = "Python"
    description: str = (
        "Python scripts. action=create takes content and returns a file_id; action=edit changes a script, by "
        "old_string and new_string or by new content; action=run runs it in the root folder and returns what it writes."
    )
    parameters: JsonObject = field(
        default_factory=lambda: schema(
            ["action"],
            action={"type": "string", "enum": ["create", "edit", "run"]},
            file_id=text("Which script, for edit and run."),
            content=text("The whole script, for create and edit."),
            old_string=text("The text to replace, for edit. It must occur once, unless replace_all is true."),
            new_string=text("What to put in its place."),
            replace_all=flag("Replace every occurrence."),
            args={"type": "array", "items": {"type": "string"}, "description": "Arguments of the script, for run."},
            timeout=TIMEOUT,
        )
    )
    risk: Risk = field(default="exec", kw_only=True)
    programs: Programs = field(kw_only=True, repr=False)
    seconds: float = field(default=120.0, kw_only=True)

    @override
    def act(self, arguments: dict[str, Any], context: ToolContext[Any]) -> str | AgentToolResult:
        match arguments["action"]:
            case "create":
                return self._create(arguments)
            case "edit":
                return self._edit(arguments)
            case _:
                return self._run(arguments, context)

    def _create(self, arguments: dict[str, Any]) -> str:
        content = arguments.get("content")
        if content is None:
            raise ToolError("action=create needs content.")
        file_id = f"py_{token_hex(3)}"
        path = self.workspace.scratch.folder("scripts") / f"{file_id}.py"
        self._write(path, content)
        with self.workspace.lock:
            scripts = self.workspace.scripts
            scripts[file_id] = PythonScript(file_id, str(path), content, now())
            forgotten = [scripts.pop(old) for old in list(scripts)[:-MOST_KEPT]]
        for script in forgotten:
            Path(script.file_path).unlink(missing_ok=True)
        return f"Created {file_id}: {content.count(chr(10)) + 1:,} lines. Run it with action=run, file_id={file_id}."

    def _write(self, path: Path, content: str) -> None:
        path.write_bytes(encoded(content, self.workspace.max_file_bytes))
        path.chmod(0o600)

    def _edit(self, arguments: dict[str, Any]) -> str:
        with self.workspace.lock:
            script = self._script(arguments)
            content = arguments.get("content")
            if content is None:
                old, new = arguments.get("old_string"), arguments.get("new_string")
                if old is None or new is None:
                    raise ToolError("action=edit needs content, or old_string and new_string.")
                content, _ = replaced(script.content, old, new, bool(arguments.get("replace_all")), script.file_id)
            self._write(Path(script.file_path), content)
            self.workspace.scripts[script.file_id] = replace(script, content=content)
        return f"Changed {script.file_id}."

    def _run(self, arguments: dict[str, Any], context: ToolContext[Any]) -> AgentToolResult:
        with self.workspace.lock:
            script = self._script(arguments)
            ran = replace(script, last_run_at=now(), run_count=script.run_count + 1)
            self.workspace.scripts[script.file_id] = ran
        given = arguments.get("args") or []
        if any("\0" in argument for argument in given):
            raise ToolError("An argument has a zero byte in it.")
        command = [sys.executable, "-s", "-B", script.file_path, *given]
        return answer(run_program(self, self.programs, command, arguments, self.seconds, context))

    def _script(self, arguments: dict[str, Any]) -> PythonScript:
        scripts = self.workspace.scripts
        found = scripts.get(arguments.get("file_id") or "")
        if found is None:
            known = ", ".join(scripts) or "none yet"
            raise ToolError(f"There is no script {arguments.get('file_id')!r}. Scripts: {known}.")
        return found
