"""A program that interrupts the first batch of a process, and prints what it breaks.

Run by test_interrupts: `python -m tests.engine.interrupted_batches URL SCOPE SKIP STEP`. Each interrupt is tried in a
forked child, because asyncio is imported once per process. This module must not import it.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from types import FrameType
from typing import Any

import agent as package
from agent import Agent

OURS = os.path.dirname(package.__file__)
LATER_BATCHES = 2


class InterruptAt:
    """Raises KeyboardInterrupt at the nth line of our package or of any module."""

    def __init__(self, line: int, *, ours: bool) -> None:
        self.left = line
        self.ours = ours
        self.fired: str | None = None
        self.ignored = False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        # The import system itself may leave its locks held; that is beyond a library.
        if code.co_name == "__del__" or "importlib" in code.co_filename:
            return None
        if self.ours and not code.co_filename.startswith(OURS):
            return None
        if event == "line" and self.fired is None:
            self.left -= 1
            if self.left == 0:
                self.fired = f"{os.path.basename(code.co_filename)}:{frame.f_lineno} {code.co_name}"
                caller: FrameType | None = frame
                while caller is not None:
                    self.ignored |= caller.f_code.co_name == "__del__"  # Python prints it and goes on
                    caller = caller.f_back
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


def list_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("agent-")]


def interrupt(agent: Agent, line: int, *, ours: bool) -> tuple[str | None, list[str]]:
    """Interrupt a batch at a line. Returns where, and what is wrong afterwards."""
    sys.unraisablehook = lambda unraisable: None
    before, tracer, outcome = len(os.listdir("/dev/fd")), InterruptAt(line, ours=ours), "done"
    sys.settrace(tracer)
    try:
        agent.batch(["hi"])
    except KeyboardInterrupt:
        outcome = "interrupted"
    except Exception as error:
        outcome = repr(error)
    finally:
        sys.settrace(None)
    gc.collect()
    wrong = []
    if ours and tracer.fired is not None and not tracer.ignored and outcome != "interrupted":
        wrong.append(outcome)
    end = time.monotonic() + 2
    while (list_threads() or len(os.listdir("/dev/fd")) > before) and time.monotonic() < end:
        time.sleep(0.005)
    wrong += list_threads()
    if (more := len(os.listdir("/dev/fd")) - before) > 0:
        wrong.append(f"{more} more descriptors")
    for _ in range(LATER_BATCHES):
        try:
            agent.batch(["hi"]).unwrap()
        except Exception as error:
            wrong.append(f"a later batch: {error!r}")
    return tracer.fired, wrong


PASSES = 8
"""The lines are covered in so many passes, so that a short run reaches all of them."""


def main(url: str, scope: str, skip: int, step: int, seconds: float) -> None:
    agent = Agent("openai-chat:m", api_key="k", base_url=f"{url}/v1", max_retries=0)
    number, line, cases, broken, until = 0, skip, 0, [], time.monotonic() + seconds
    while time.monotonic() < until:
        receiver, sender = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(sender, json.dumps(interrupt(agent, line, ours=scope == "ours")).encode())
            os._exit(0)
        os.close(sender)
        os.waitpid(child, 0)
        data = os.read(receiver, 65_536)
        os.close(receiver)
        fired, wrong = json.loads(data or '["?", ["the child died"]]')
        if fired is None:
            if (number := number + 1) == PASSES:
                break
            line = skip + number * step
            continue
        cases += 1
        broken += [f"{line} {fired}: {problem}" for problem in wrong]
        line += PASSES * step
    print(json.dumps({"cases": cases, "broken": broken}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
