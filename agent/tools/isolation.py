"""Tool calls in a separate process, which can be killed.

The process is a fresh interpreter that imports the tool by name: only importable tools can run there, and
`context.deps` is not available. The process and its children end with the call or with this process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO, Any

from ..engine.drivers.threads import start_thread
from ..errors import ConfigurationError
from ..types import ToolResult
from .base import AgentToolResult, Tool, ToolContext, ToolError
from .execution import ProgressReporter
from .results import ToolFailed, sanitize_error_text

_MAX_STDERR = 4_000
_MAX_LAST_LINE = 500
is_loading = False
"""Whether this process is a tool process that is importing its tool."""


class ChildProcess:
    """A tool call in a child process. `run` blocks; `kill` may be called from any thread at any time."""

    def __init__(self, tool: Tool, context: ToolContext[Any], timeout: float, limit: int) -> None:
        if is_loading:
            raise ConfigurationError(
                "Importing this program in a tool process runs it.",
                field="isolation",
                fix='Move its top-level code below `if __name__ == "__main__":`.',
            )
        self._limit = limit
        self._job: dict[str, Any] = {
            "tool": import_reference(tool),
            "main": getattr(sys.modules.get("__main__"), "__file__", None),
            "path": [entry or os.getcwd() for entry in sys.path],
            "python_path": os.environ.get("PYTHONPATH"),
            "arguments": dict(context.arguments),
            "call_id": context.call_id,
            "tool_name": context.tool_name,
            "run_id": context.run_id,
            "turn": context.turn,
            "risk": context.risk,
            "timeout": timeout,
            "limit": limit,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self._lock = threading.Lock()

    def run(self, *, report: Any) -> ToolResult:
        process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        stderr_tail = _StderrTail(process.stderr)
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(self._job).encode() + b"\n")
                process.stdin.flush()  # stays open: the child ends when it is closed, also if this process crashes
            reporter = ProgressReporter(report, self._limit)
            for line in process.stdout:
                result = _read_message(line, reporter)
                if result is not None:
                    return result
            self.kill()
            raise ToolError(" ".join((_describe_exit(process.returncode), stderr_tail.last())).strip())
        finally:
            self.kill()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    pipe.close()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._killed:
                raise ToolError("The call was cancelled before it started.")
            self._process = subprocess.Popen(  # our own module, no shell
                [sys.executable, "-P", "-m", "agent.tools.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(self._job["path"])},
            )
            return self._process

    def kill(self) -> None:
        """Kill the process, if it runs. The pipes are left to their reader: closing them here could block."""
        with self._lock:
            self._killed = True
            process = self._process
            if process is None or process.returncode is not None:
                return  # its process id may be reused
            kill_group(process)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # children may outlive the process itself
    else:
        process.kill()


class _StderrTail:
    """Reads the standard error of a process in a thread, and keeps the end of it."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._kept = b""
        self._thread = start_thread(lambda: self._drain(pipe), "agent-tool-stderr")

    def _drain(self, pipe: IO[bytes]) -> None:
        with suppress(OSError), pipe:
            while chunk := os.read(pipe.fileno(), 65_536):
                self._kept = (self._kept + chunk)[-_MAX_STDERR:]

    def last(self) -> str:
        """Return the last line."""
        self._thread.join(0.5)
        lines = self._kept.decode("utf-8", "replace").split("\n")
        return sanitize_error_text(next((line for line in reversed(lines) if line.strip()), ""))[:_MAX_LAST_LINE]


def _read_message(line: bytes, report: ProgressReporter) -> ToolResult | None:
    """Handle one message of the process: the result, a partial result, or an error."""
    try:
        match json.loads(line):
            case {"result": result}:
                return ToolResult.model_validate(result)
            case {"error": str(text), "final": bool(final)}:
                raise ToolError(text) if final else ToolFailed(text)
            case {"report": partial}:
                report(partial)
                return None
            case {"shown": partial}:
                result = ToolResult.model_validate(partial)
                content = [result.content] if isinstance(result.content, str) else list(result.content)
                parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
                report(AgentToolResult(parts, result.details or {}, result.is_error))
                return None
            case _:
                pass
    except ValueError:
        pass  # the tool wrote to the pipe
    raise ToolError("The tool's process sent an invalid message.")


def _describe_exit(status: int | None) -> str:
    if status is not None and status < 0:
        with suppress(ValueError):
            return f"The tool's process was killed by {signal.Signals(-status).name}."
    return f"The tool's process exited with status {status}."


def import_reference(tool: Tool) -> str:
    """Return the tool's import path, `module:name`."""
    reference = tool.reference() if hasattr(tool, "reference") else None
    if reference is None:
        raise ConfigurationError(
            f"The tool {tool.name!r} cannot run in a process: it cannot be imported by name.",
            field="isolation",
            fix="Define it with @tool at the top level of a module, or remove isolation.",
        )
    return str(reference)
