"""Ends, interrupts and forks of a whole process, with the engine's threads in it.

Each runs in a subprocess, because a failure would be a crash or a hang.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.local.conftest import STATUS

pytestmark = pytest.mark.skipif(not STATUS.ready, reason=f"{STATUS.problem}")
ROOT = Path(__file__).parents[2]
BEGINNING = """
import asyncio, os, signal, sys, threading, time
from agent import Agent, errors, local

STORY = "Write a very long story about a lighthouse."
agent = Agent("local:smollm2")
"""


def run(code: str, seconds: float = 60) -> str:
    """Return the output of a program that exits normally with an empty standard error."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", BEGINNING + textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_ctrl_c_interrupts_every_kind_of_call_at_once_and_the_model_goes_on() -> None:
    printed = run(
        """
        def streamed():
            for _ in agent.stream(STORY, max_tokens=4000):
                pass

        async def astreamed():
            async for _ in agent.astream(STORY, max_tokens=4000):
                pass

        calls = {
            "complete": lambda: agent.complete(STORY, max_tokens=4000),
            "stream": streamed,
            "acomplete": lambda: asyncio.run(agent.acomplete(STORY, max_tokens=4000)),
            "astream": lambda: asyncio.run(astreamed()),
        }
        agent.complete("Hi", max_tokens=1)
        for name, call in calls.items():
            pressed = []

            def press():
                pressed.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)

            threading.Timer(0.3, press).start()
            try:
                call()
            except KeyboardInterrupt:
                took = time.monotonic() - pressed[0]
                print(name, "interrupted" if took < 1 else took)
            assert agent.complete("Hi", max_tokens=1).text
        """
    )
    names = ("complete", "stream", "acomplete", "astream")
    assert printed.splitlines() == [f"{name} interrupted" for name in names]


@pytest.mark.parametrize("first", [False, True], ids=["while it writes", "while it is loaded"])
def test_a_program_may_end_while_the_model_is_at_work(first: bool) -> None:
    run(
        f"""
        if not {first}:
            agent.complete("Hi", max_tokens=1)
            abandoned = iter(agent.stream(STORY, max_tokens=4000))
            next(abandoned)
        def ask():
            try:
                agent.complete(STORY)
            except errors.AgentError:
                pass  # that the program is ending

        for _ in range(4):
            threading.Thread(target=ask, daemon=True).start()
        time.sleep({0.3 if first else 0.1})
        """
    )


def test_an_engine_that_was_never_asked_can_be_freed() -> None:
    """The engine itself waits for a thread then that has not begun, and takes the whole process with it."""
    run(
        """
        from agent.local import engine, weights
        from agent.local.weights import SMOLLM2, verify_weights

        for _ in range(3):
            engine._load_server(weights.load_engine(), SMOLLM2, verify_weights(SMOLLM2))
        """
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_forked_child_has_a_model_of_its_own_also_while_the_parent_is_answered() -> None:
    printed = run(
        """
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks with threads

        def ask():
            return agent.complete("Hi", max_tokens=3, seed=1).text

        def forked():
            child = os.fork()
            if not child:
                print("child", ask() == expected, flush=True)
                sys.exit(0)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        expected = ask()
        busy = threading.Thread(target=agent.complete, args=(STORY,), kwargs={"max_tokens": 40})
        busy.start()
        print("ended with", forked(), flush=True)
        busy.join()
        print("parent", ask() == expected)
        """
    )
    assert printed.splitlines() == ["child True", "ended with 0", "parent True"]
