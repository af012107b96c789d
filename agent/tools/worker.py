"""The other side of `isolated`: reads one order from standard input, runs the tool, writes the result, and ends.

It ends as well when nobody could read the result any more, together with everything that it started.
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
from .execution import Reports
from .results import Sample, error_text, rendered


def main() -> None:
    orders, answers = _pipes()
    order = json.loads(orders.readline())
    threading.Thread(target=_end_with, args=(orders,), daemon=True, name="agent-tool-orders").start()
    _take_over(order)
    channel = Channel(answers, order)
    try:
        tool = find(order["tool"], order["main"])
        context: ToolContext[Any] = ToolContext(
            call_id=order["call_id"],
            tool_name=order["tool_name"],
            run_id=order["run_id"],
            turn=order["turn"],
            risk=order["risk"],
            arguments=order["arguments"],
            report=Reports(channel.show, order["limit"]),
            deadline=monotonic() + order["timeout"],
        )
        value = tool.run(tool.check(order["arguments"]), context)
        if inspect.isawaitable(value):
            import asyncio

            value = asyncio.run(_awaited(value))
        result = rendered(value, order["call_id"], order["tool_name"], order["limit"])
        channel.say({"result": result.model_dump(mode="json")})
    except SystemExit:
        channel.say({"error": "The tool tried to end the program; that was prevented.", "final": True})
    except Exception as error:
        channel.say({"error": error_text(error), "final": isinstance(error, ToolError)})
    except BaseException as error:
        channel.say({"error": f"The tool failed with {type(error).__name__}.", "final": True})
    os._exit(0)  # threads that the tool left behind do not matter any more


def _pipes() -> tuple[BinaryIO, TextIO]:
    """The order and the answer, where neither what the tool prints nor what it reads gets between their lines."""
    orders = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return orders, answers


def _end_with(orders: BinaryIO) -> None:
    orders.read()  # until the other side closes it, which it does when it ends, however it ends
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _take_over(order: dict[str, Any]) -> None:
    """Find modules where the program finds them; what the tool starts gets the program's own settings."""
    sys.path[:] = [*order["path"], *(entry for entry in sys.path if entry not in order["path"])]
    if order["python_path"] is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = order["python_path"]


class Channel:
    """Where answers go, line by line, from any thread."""

    def __init__(self, answers: TextIO, order: dict[str, Any]) -> None:
        self._answers = answers
        self._order = order
        self._lock = threading.Lock()

    def say(self, what: dict[str, Any]) -> None:
        line = json.dumps(what) + "\n"
        with self._lock:
            self._answers.write(line)
            self._answers.flush()

    def show(self, partial: Any) -> None:
        limit = self._order["limit"]
        if isinstance(partial, AgentToolResult):
            made = rendered(partial, self._order["call_id"], self._order["tool_name"], limit)
            self.say({"shown": made.model_dump(mode="json")})
        else:
            self.say({"report": Sample(partial, limit).finite})


def find(reference: str, main_file: str | None) -> Tool:
    """The tool that is called so. One that is defined in the program itself needs its file to be run, not as main."""
    isolation.is_loading = True
    try:
        module_name, _, qualname = reference.partition(":")
        found: Any
        if module_name == "__main__":
            if main_file is None:
                raise ToolError("The program that defines the tool has no file.")
            first, _, qualname = qualname.partition(".")
            found = runpy.run_path(main_file, run_name="__agent_worker__")[first]
        else:
            found = importlib.import_module(module_name)
        for name in qualname.split(".") if qualname else ():
            found = getattr(found, name)
    finally:
        isolation.is_loading = False
    assert isinstance(found, Tool)
    return found


async def _awaited(value: Any) -> Any:
    return await value


if __name__ == "__main__":
    main()
