"""Child process of `agent.tools.isolation`: reads a job, runs its tool, and writes the result.

It kills itself and its children when its parent ends.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import runpy
import signal
import sys
import threading
from time import monotonic
from typing import Any, BinaryIO, TextIO

from . import isolation
from .base import AgentToolResult, Tool, ToolContext, ToolError
from .execution import ProgressReporter
from .results import JsonSample, error_text, render_result


def main() -> None:
    jobs, output = _pipes()
    job = json.loads(jobs.readline())
    threading.Thread(target=_exit_when_closed, args=(jobs,), daemon=True, name="agent-tool-jobs").start()
    _apply_environment(job)
    channel = Channel(output, job)
    try:
        tool = find_tool(job["tool"], job["main"])
        context: ToolContext[Any] = ToolContext(
            call_id=job["call_id"],
            tool_name=job["tool_name"],
            run_id=job["run_id"],
            turn=job["turn"],
            risk=job["risk"],
            arguments=job["arguments"],
            report=ProgressReporter(channel.report, job["limit"]),
            deadline=monotonic() + job["timeout"],
        )
        value = tool.run(tool.check(job["arguments"]), context)
        if inspect.isawaitable(value):
            import asyncio  # lazy: only for async tools

            value = asyncio.run(_await(value))
        result = render_result(value, job["call_id"], job["tool_name"], job["limit"])
        channel.send({"result": result.model_dump(mode="json")})
    except SystemExit:
        channel.send({"error": "The tool tried to exit the program.", "final": True})
    except Exception as error:
        channel.send({"error": error_text(error), "final": isinstance(error, ToolError)})
    except BaseException as error:
        channel.send({"error": f"The tool failed with {type(error).__name__}.", "final": True})
    os._exit(0)  # abandons threads of the tool


def _pipes() -> tuple[BinaryIO, TextIO]:
    """Return the pipes of the protocol, and detach the tool's own standard input and output from them."""
    jobs = os.fdopen(os.dup(0), "rb")
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)
    os.dup2(2, 1)
    return jobs, output


def _exit_when_closed(jobs: BinaryIO) -> None:
    jobs.read()  # returns when the parent ends
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _apply_environment(job: dict[str, Any]) -> None:
    """Use the parent's import path, and restore PYTHONPATH for the tool's child processes."""
    sys.path[:] = [*job["path"], *(entry for entry in sys.path if entry not in job["path"])]
    if job["python_path"] is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = job["python_path"]


class Channel:
    """Thread-safe writer of protocol messages, one per line."""

    def __init__(self, output: TextIO, job: dict[str, Any]) -> None:
        self._output = output
        self._job = job
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message) + "\n"
        with self._lock:
            self._output.write(line)
            self._output.flush()

    def report(self, partial: Any) -> None:
        limit = self._job["limit"]
        if isinstance(partial, AgentToolResult):
            result = render_result(partial, self._job["call_id"], self._job["tool_name"], limit)
            self.send({"shown": result.model_dump(mode="json")})
        else:
            self.send({"report": JsonSample(partial, limit).finite})


def find_tool(reference: str, main_file: str | None) -> Tool:
    """Import the tool. A tool of the main program is target by running its file under another name."""
    isolation.is_loading = True
    try:
        module_name, _, qualname = reference.partition(":")
        target: Any
        if module_name == "__main__":
            if main_file is None:
                raise ToolError("The main program, which defines the tool, has no file.")
            name, _, qualname = qualname.partition(".")
            target = runpy.run_path(main_file, run_name="__agent_worker__")[name]
        else:
            target = importlib.import_module(module_name)
        for name in qualname.split(".") if qualname else ():
            target = getattr(target, name)
    finally:
        isolation.is_loading = False
    assert isinstance(target, Tool)
    return target


async def _await(value: Any) -> Any:
    return await value


if __name__ == "__main__":
    main()
