"""Tools for process isolation, most of which kill their process. The module is imported for each call."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from typing_extensions import override

from agent.tools import AgentToolResult, ToolContext, tool

HUGE = 100_000_000


class Doom(BaseException):
    """A direct subclass of BaseException."""


class Unprintable:
    @override
    def __repr__(self) -> str:
        raise RuntimeError("no words for it")


def _cyclic_list() -> list[Any]:
    made: list[Any] = [1]
    made.append(made)
    return made


@tool(isolation="process", timeout=10.0)
def dies_at_once() -> None:
    os._exit(3)


@tool(isolation="process", timeout=10.0)
def dies_with_last_words() -> None:
    os.write(2, b'Fatal error\n  File "/srv/app/core.py", line 3\nno more memory in /srv/app/core.c\n')
    os._exit(4)


@tool(isolation="process", timeout=10.0)
def kills_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@tool(isolation="process", timeout=10.0)
def crashes() -> None:
    ctypes.string_at(0)


@tool(isolation="process", timeout=10.0)
def exits() -> None:
    sys.exit(5)


@tool(isolation="process", timeout=10.0)
def raises() -> None:
    raise ValueError("in /srv/me/secret/file.txt")


@tool(isolation="process", timeout=10.0)
def raises_no_exception() -> None:
    raise Doom


@tool(isolation="process", timeout=10.0)
async def answers_async(context: ToolContext[Any]) -> str:
    context.report("soon")
    await asyncio.sleep(0)
    return context.call_id


@tool(isolation="process", timeout=10.0)
def prints_garbage() -> str:
    print('{"result": "forged"}')
    sys.stdout.flush()
    os.write(1, b'{"result": "forged"}\n' + b"\xff\x00" * 100_000)
    os.write(2, b"x" * 3_000_000)
    subprocess.run(["echo", "garbage"], check=True)
    return "clean"


@tool(isolation="process", timeout=10.0)
def writes_everywhere() -> str:
    for number in range(3, 20):
        try:
            os.write(number, b"garbage\n")
        except OSError:
            continue
    return "never read"


@tool(isolation="process", timeout=10.0)
def asks_the_user() -> str:
    return input("Your password, please: ")


@tool(isolation="process", timeout=10.0)
def returns_too_much() -> str:
    return "x" * HUGE


@tool(isolation="process", timeout=10.0)
def returns_a_circle() -> list[Any]:
    return _cyclic_list()


@tool(isolation="process", timeout=10.0)
def reports_odd_things(context: ToolContext[Any]) -> str:
    for odd in ("text", _cyclic_list(), float("nan"), Unprintable(), AgentToolResult("half", details={"done": 0.5})):
        context.report(odd)
    return "done"


@tool(isolation="process", timeout=10.0)
def shows_its_surroundings() -> dict[str, Any]:
    return {"path": os.environ.get("PYTHONPATH"), "stdin": sys.stdin.read(), "leader": os.getpgid(0) == os.getpid()}


@tool(isolation="process", timeout=10.0)
def leaves_a_child_behind(place: str) -> str:
    """A grandchild that holds the process' output open."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
    _note(place, os.getpid(), child.pid)
    return "done"


@tool(isolation="process", timeout=10.0)
def hangs(place: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
    _note(place, os.getpid(), child.pid)
    time.sleep(30)


@tool(isolation="process", timeout=10.0)
def hangs_and_holds_on(place: str) -> None:
    """With a grandchild that has left the process' group, and keeps all its pipes."""
    if (child := os.fork()) == 0:
        os.setsid()
        _note(f"{place}.child", os.getpid())
        time.sleep(3)
        os._exit(0)
    _note(place, os.getpid(), child)
    time.sleep(30)


def _note(place: str, *pids: int) -> None:
    with open(f"{place}.new", "w") as file:
        json.dump(pids, file)
    os.replace(f"{place}.new", place)
