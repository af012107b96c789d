"""Ctrl-C at any moment of a blocking call: it gets through, and no connection stays behind as busy."""

from __future__ import annotations

import dis
import gc
import inspect
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import agent as package
from agent import Agent
from agent.engine.wire import Cancelled, WireRequest
from agent.http.connections import Connection
from agent.testing import Answer, LoopbackServer
from agent.transports.http import HttpTransport
from agent.types import RetryConfig
from tests.engine.play import agent_at, busy_connections, error_reply, hung_up, stall, tokens, whole
from tests.support.cases import SECONDS

OURS = str(Path(package.__file__).parent)


class FailsEveryOther:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, request: WireRequest) -> Answer:
        self.count += 1
        if self.count % 2:
            return error_reply(503)
        return tokens(1) if b'"stream":true' in request.body else whole()


class InterruptAt:
    """Raises KeyboardInterrupt at the nth line of our package that this thread executes."""

    def __init__(self, line: int) -> None:
        self.left = line
        self.fired: str | None = None
        self.ignored = False
        """It came while an object was being finalized: there, Python prints it and goes on."""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(OURS) or code.co_name == "__del__":
            return None
        if event == "line" and self.fired is None and frame.f_lasti not in _find_exits_of_with(code):
            self.left -= 1
            if self.left == 0:
                self.fired = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"
                self.ignored = _in_finalizer(frame)
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


@cache
def _find_exits_of_with(code: CodeType) -> frozenset[int]:
    """Offsets where a `with` block ends without an error: no signal is handled before `__exit__`."""
    steps = list(dis.get_instructions(code))
    return frozenset(
        step.offset
        for step, *nones, call in zip(steps, steps[1:], steps[2:], steps[3:], strict=False)
        if all(one.opname == "LOAD_CONST" and one.argval is None for one in (step, *nones))
        and call.opname in ("PRECALL", "CALL")
    )


def _in_finalizer(frame: FrameType) -> bool:
    """Whether a `__del__` is running."""
    caller: FrameType | None = frame
    while caller is not None and caller.f_code.co_name != "__del__":
        caller = caller.f_back
    return caller is not None


def read_all(agent: Agent) -> None:
    for _ in agent.stream("hi"):
        pass


def read_some(agent: Agent) -> None:
    """Leave a stream early. Its iterator is closed here: a finalizer would swallow the interrupt."""
    events = iter(agent.stream("hi"))
    assert isinstance(events, Generator)
    with closing(events):
        next(events)


def complete(agent: Agent) -> None:
    agent.complete("hi")


def interrupt_at(line: int, work: Callable[[Agent], None], agent: Agent) -> tuple[InterruptAt, str]:
    tracer = InterruptAt(line)
    before = sys.gettrace()
    outcome = "done"
    sys.settrace(tracer)
    try:
        work(agent)
    except KeyboardInterrupt:
        outcome = "interrupted"
    except Exception as error:
        outcome = repr(error)
    finally:
        sys.settrace(before)
    return tracer, outcome


@pytest.mark.parametrize("work", [complete, read_all, read_some])
def test_an_interrupt_at_any_line_leaves_no_busy_connection(
    work: Callable[[Agent], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)  # pytest's own keeps the objects alive
    network = FailsEveryOther()
    with LoopbackServer(network) as server:
        transport = HttpTransport(proxy=False)
        agent = agent_at(server, retry=RetryConfig(max_retries=1, initial_delay=0, jitter=False), transport=transport)
        work(agent)
        bad: list[str] = []
        line = 0
        while True:
            line += 1
            network.count = 0 if work is complete else 1  # one of them sees a failure and tries again
            transport.close()  # each time it connects anew, so that the lines are always the same
            tracer, outcome = interrupt_at(line, work, agent)
            if tracer.fired is None:
                break
            if busy_connections(transport):
                bad.append(f"{tracer.fired}: a connection stayed busy")
            if outcome != "interrupted" and not tracer.ignored:
                bad.append(f"{tracer.fired}: {outcome}")
        transport.close()
        assert bad == []
        assert line > 500
        assert server.wait_until(lambda: server.open_connections == 0)


def test_an_interrupted_exchange_is_closed_before_the_interrupt_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspended generator would be closed by a finalizer, where Python swallows a second interrupt."""

    def interrupt(*_: Any) -> bytes:
        raise KeyboardInterrupt

    with LoopbackServer(lambda request: whole()) as server:
        monkeypatch.setattr(Connection, "receive", interrupt)
        with pytest.raises(KeyboardInterrupt) as caught:
            agent_at(server, transport=HttpTransport(proxy=False)).complete("hi")
        suspended = [
            steps
            for steps in gc.get_objects()
            if inspect.isgenerator(steps)
            and steps.gi_code.co_filename.endswith("http/exchange.py")
            and inspect.getgeneratorstate(steps) == inspect.GEN_SUSPENDED
        ]
        assert suspended == []
        assert caught.tb is not None


@pytest.mark.parametrize("failure", [OSError("reset"), Cancelled()], ids=["a failure", "a cancellation"])
def test_an_interrupt_while_a_failed_exchange_is_closed_gets_through(
    monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    def fail(*_: Any) -> bytes:
        raise failure

    def interrupt(connection: Connection) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with LoopbackServer(lambda request: whole()) as server:
        monkeypatch.setattr(Connection, "receive", fail)
        monkeypatch.setattr(Connection, "close", interrupt)
        with pytest.raises(KeyboardInterrupt):
            agent_at(server, transport=HttpTransport(proxy=False)).complete("hi")


@pytest.fixture
def interrupts() -> Iterator[Callable[[float], threading.Thread]]:
    """Sends SIGINT to this process after a while, unless the test is over."""
    over = threading.Event()
    threads: list[threading.Thread] = []

    def start(after: float) -> threading.Thread:
        def fire() -> None:
            if not over.wait(after):
                os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=fire)
        threads.append(thread)
        thread.start()
        return thread

    yield start
    over.set()
    for thread in threads:
        thread.join()


@pytest.mark.timing
def test_an_interrupt_while_waiting_for_bytes_closes_the_socket(
    interrupts: Callable[[float], threading.Thread],
) -> None:
    with LoopbackServer(lambda request: stall()) as server:
        agent = agent_at(server, max_retries=2)
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            interrupts(0.2)
            read_all(agent)
        assert time.monotonic() - started < 0.8
        assert hung_up(server)
        assert len(server.requests) == 1


@pytest.mark.timing
def test_interrupts_at_random_moments_leave_nothing(rng: random.Random) -> None:
    """In a separate process, because an interrupted coverage tracer would leave its lock held."""
    command = [sys.executable, "-m", "tests.engine.random_interrupts", str(rng.randrange(2**32))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2])
    outcome = json.loads(done.stdout)
    assert outcome["errors"] == [], done.stderr
    assert outcome["hits"] > 15
    assert outcome["open"] == 0


@pytest.mark.parametrize(
    ("scope", "step"),
    [
        ("ours", 211),
        ("all", 20_011),
        pytest.param("ours", 3, marks=pytest.mark.soak),
        pytest.param("all", 331, marks=pytest.mark.soak),
    ],
)
@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="counts descriptors")
def test_an_interrupt_of_the_first_batch_leaves_nothing_and_breaks_no_later_one(
    scope: str, step: int, vendor: LoopbackServer, rng: random.Random
) -> None:
    first = rng.randrange(1, step + 1)
    command = [
        sys.executable,
        "-m",
        "tests.engine.interrupted_batches",
        vendor.url,
        scope,
        str(first),
        str(step),
        str(SECONDS),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3500, cwd=Path(__file__).parents[2])
    outcome = json.loads(done.stdout)
    print(f"{outcome['cases']} interrupts")
    assert outcome["broken"] == [], done.stderr
    assert outcome["cases"] >= 5
