"""The threads of a blocking run: used again, left behind when they hang, and gone when the run is."""

from __future__ import annotations

import gc
import threading
import time

import pytest

from agent import Agent, tool
from agent.engine.drivers import threads as threads_module
from agent.engine.drivers.threads import WorkerThreads
from agent.testing import scripted_agent
from agent.types import ToolCall


def worker_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "agent-branch"]


def wait_until_gone(within: float = 2.0) -> bool:
    end = time.monotonic() + within
    while worker_threads() and time.monotonic() < end:
        time.sleep(0.005)
    return not worker_threads()


def test_a_thread_that_is_done_does_the_next_work() -> None:
    threads = WorkerThreads()
    seen: list[int] = []
    for _ in range(5):
        work = threads.start(lambda: seen.append(threading.get_ident()))
        work.wait(2.0)
        time.sleep(0.02)  # it says that it waits just after it has said that it is done
    assert len(seen) == 5
    assert len(set(seen)) < 5
    threads.close()
    assert wait_until_gone()


def test_work_that_is_started_at_once_is_done_at_once() -> None:
    threads = WorkerThreads()
    together = threading.Barrier(6)
    works = [threads.start(lambda: together.wait(2.0)) for _ in range(6)]
    for work in works:
        work.wait(2.0)
    assert all(work.is_done for work in works)
    threads.close()
    assert wait_until_gone()


def test_who_hangs_when_the_crew_is_closed_goes_when_it_is_done() -> None:
    threads = WorkerThreads()
    go = threading.Event()
    work = threads.start(lambda: go.wait(5.0))
    threads.close()
    assert not work.is_done
    go.set()
    assert wait_until_gone()


def test_a_crew_that_was_dropped_without_being_closed_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads_module, "_IDLE_SECONDS", 0.05)
    WorkerThreads().start(lambda: None).wait(2.0)
    gc.collect()
    assert wait_until_gone()


def test_the_tools_of_a_run_share_its_threads_and_leave_none() -> None:
    seen: list[int] = []

    @tool
    def note(number: int) -> str:
        """Note who does it."""
        seen.append(threading.get_ident())
        return f"noted {number}"

    calls = [ToolCall(id=f"c{number}", name="note", arguments={"number": number}) for number in range(8)]
    agent: Agent = scripted_agent(*calls, "Done.", tools=[note])
    assert agent.run("Note it, again and again.").text == "Done."
    assert len(seen) == 8
    assert len(set(seen)) <= 4
    assert wait_until_gone()
