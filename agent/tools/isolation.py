"""One call of a tool in a process of its own, which can be killed.

The process is a fresh interpreter that imports the tool by name, so only tools that can be imported can run there, and
`context.deps` stays behind. It ends with the call or with this process, whichever is first, and so does everything that
it started, but for what has left its process group.
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

from ..errors import ConfigurationError
from ..types import ToolResult
from .base import AgentToolResult, Tool, ToolContext, ToolError
from .execution import Reports
from .results import ToolFailed, for_a_model

_KEPT_COMPLAINTS = 4_000
_MOST_LAST_WORDS = 500
is_loading = False
"""Whether this process is such a one, and is looking for its tool."""


class ChildProcess:
    """A call that runs elsewhere. `run` blocks; `kill` may come from any thread, before, meanwhile and after."""

    def __init__(self, tool: Tool, context: ToolContext[Any], timeout: float, limit: int) -> None:
        if is_loading:
            raise ConfigurationError(
                "The program runs itself when the process of a tool loads it.",
                field="isolation",
                fix='Put what the program does below `if __name__ == "__main__":`.',
            )
        self._limit = limit
        self._order: dict[str, Any] = {
            "tool": reference_of(tool),
            "main": _main_file(),
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
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        complaints = _Complaints(process.stderr)
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(self._order).encode() + b"\n")
                process.stdin.flush()  # and it stays open: the process ends when it is closed, by whatever end of ours
            show = Reports(report, self._limit)
            for line in process.stdout:
                result = _taken(line, show)
                if result is not None:
                    return result
            self.kill()
            raise ToolError(" ".join((_end_of(process.returncode), complaints.last())).strip())
        finally:
            self.kill()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    pipe.close()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._killed:
                raise ToolError("The call was given up before it began.")
            self._process = subprocess.Popen(  # our own module, no shell
                [sys.executable, "-P", "-m", "agent.tools.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(self._order["path"])},
            )
            return self._process

    def kill(self) -> None:
        """Again is harmless. The pipes are left to who reads them: closing one that is being read would block."""
        with self._lock:
            self._killed = True
            process = self._process
            if process is None or process.returncode is not None:
                return  # one that has been waited for may have left its number to somebody else
            kill_group(process)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # the group outlives its leader, and so might what it started
    else:
        process.kill()


class _Complaints:
    """What a process writes where errors go: all of it is read, or it would block, and little is kept."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._kept = b""
        self._thread = threading.Thread(target=self._listen, args=(pipe,), daemon=True, name="agent-tool-stderr")
        self._thread.start()

    def _listen(self, pipe: IO[bytes]) -> None:
        with suppress(OSError), pipe:
            while chunk := os.read(pipe.fileno(), 65_536):
                self._kept = (self._kept + chunk)[-_KEPT_COMPLAINTS:]

    def last(self) -> str:
        """The last line of it."""
        self._thread.join(0.5)
        lines = self._kept.decode("utf-8", "replace").split("\n")
        return for_a_model(next((line for line in reversed(lines) if line.strip()), ""))[:_MOST_LAST_WORDS]


def _taken(line: bytes, report: Reports) -> ToolResult | None:
    """What the process says: the result, something to show before it, or what went wrong."""
    try:
        match json.loads(line):
            case {"result": result}:
                return ToolResult.model_validate(result)
            case {"error": str(words), "final": bool(final)}:
                raise ToolError(words) if final else ToolFailed(words)
            case {"report": partial}:
                report(partial)
                return None
            case {"shown": shown}:
                made = ToolResult.model_validate(shown)
                content = [made.content] if isinstance(made.content, str) else list(made.content)
                parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
                report(AgentToolResult(parts, made.details or {}, made.is_error))
                return None
            case _:
                pass
    except ValueError:
        pass  # somebody else has written there
    raise ToolError("The tool's process wrote something where its answer belongs, so that it cannot be read.")


def _end_of(status: int | None) -> str:
    if status is not None and status < 0:
        with suppress(ValueError):
            return f"The tool's process was ended by {signal.Signals(-status).name}."
    return f"The tool's process ended with status {status}."


def reference_of(tool: Tool) -> str:
    """Where another process finds the tool: `module:name`."""
    reference = tool.reference() if hasattr(tool, "reference") else None
    if reference is None:
        raise ConfigurationError(
            f"The tool {tool.name!r} cannot run in a process of its own: it cannot be imported by name.",
            field="isolation",
            fix="Define it with @tool at the top level of a module, or leave isolation out.",
        )
    return str(reference)


def _main_file() -> str | None:
    """The program itself, for tools that are defined in it."""
    return getattr(sys.modules.get("__main__"), "__file__", None)
