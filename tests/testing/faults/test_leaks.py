"""A thousand streams, some broken, cancelled or abandoned, leak no socket, task or thread."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent import Agent, errors
from agent.engine.wire import WireRequest
from agent.testing import Answer, Chaos, LoopbackServer, Piece, VendorScript
from agent.transports.http import HttpTransport
from tests.engine.play import NO_TLS
from tests.support.drivers import AnyHttp, make_transport
from tests.testing.faults.fault_server import CODECS, MODELS

pytestmark = pytest.mark.malformed

THREADS = 8
TASKS = 50
SHARE = 0.05
LIMITS: dict[str, Any] = {"timeout": 20.0, "idle_timeout": 5.0, "max_retries": 0}
SAID = "a few words that take a little while to be said"


def slowly(request: WireRequest) -> Answer:
    """An answer in whichever API, with a breath before every second event."""
    answer = VendorScript(SAID)(request)  # a new script each time, because scripts keep all requests
    pieces = [Piece(piece.outcome, 0.001 * (number % 2)) for number, piece in enumerate(answer.iter_pieces())]
    return Answer(pieces, headers=answer.headers)


class World:
    """A server that breaks five of a hundred answers, and one transport for each hundred streams or so."""

    def __init__(self, seed: int) -> None:
        self.chaos = Chaos(slowly, share=SHARE, seed=seed)
        self.server = LoopbackServer(self.chaos)
        self.outcomes: Counter[str] = Counter()
        self._lock = threading.Lock()

    def note(self, outcome: str) -> None:
        with self._lock:
            self.outcomes[outcome] += 1

    def agents(self, transport: AnyHttp) -> list[Agent]:
        made = []
        for codec in CODECS:
            url = f"{self.server.url}/v1"
            made.append(Agent(MODELS[codec], api_key="sk-test", base_url=url, transport=transport, **LIMITS))
        return made

    def is_everything_closed(self) -> bool:
        return self.server.wait_until(lambda: self.server.open_connections == 0, timeout=1.0)


@pytest.fixture
def world(rng: random.Random) -> Iterator[World]:
    made = World(rng.randrange(2**32))
    with made.server:
        yield made


def fate(die: random.Random) -> str:
    draw = die.random()
    return "cancelled" if draw < SHARE else "abandoned" if draw < 2 * SHARE else "read"


# Blocking, in threads


def run_stream(world: World, agent: Agent, die: random.Random) -> None:
    wanted = fate(die)
    stream = agent.stream("Hi")
    timer = threading.Timer(die.random() * 0.01, stream.abort) if wanted == "cancelled" else None
    try:
        if timer is not None:
            timer.start()
        if wanted == "abandoned":
            for _ in stream:
                break
            world.note("abandoned")
        else:
            world.note("whole" if stream.collect().text == SAID else "wrong")
    except errors.Aborted:
        world.note("cancelled")
    except errors.AgentError:
        world.note("broken")
    finally:
        if timer is not None:
            timer.join()


def in_threads(world: World, count: int, seed: int) -> None:
    transport = HttpTransport(proxy=False, ssl_context=NO_TLS)
    agents = world.agents(transport)

    def work(worker: int) -> None:
        die = random.Random(f"{seed}/{worker}")
        for number in range(count // THREADS):
            run_stream(world, agents[number % len(agents)], die)

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(work, range(THREADS)))
    transport.close()


# With asyncio


async def run_astream(world: World, agent: Agent, die: random.Random) -> None:
    wanted = fate(die)
    if wanted == "abandoned":
        try:
            async for _ in agent.astream("Hi"):
                break
            world.note("abandoned")
        except errors.AgentError:
            world.note("broken")
        return
    reading = asyncio.create_task(agent.astream("Hi").collect())
    if wanted == "cancelled":
        await asyncio.sleep(die.random() * 0.01)
        reading.cancel()
    try:
        world.note("whole" if (await reading).text == SAID else "wrong")
    except asyncio.CancelledError:
        world.note("cancelled")
    except errors.AgentError:
        world.note("broken")


async def in_tasks(world: World, count: int, seed: int, carrier: str) -> set[str]:
    """Return the names of leaked tasks."""
    agents = world.agents(make_transport(carrier, proxy=False, ssl_context=NO_TLS))

    async def work(worker: int) -> None:
        die = random.Random(f"{seed}/{worker}")
        for number in range(count // TASKS):
            await run_astream(world, agents[number % len(agents)], die)

    await asyncio.gather(*(work(worker) for worker in range(TASKS)))
    for _ in range(100):
        if len(asyncio.all_tasks()) == 1:
            break
        await asyncio.sleep(0.01)
    return {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}


def threads_left(before: set[threading.Thread]) -> set[str]:
    end = time.monotonic() + 1.0
    while (left := {thread for thread in threading.enumerate() if thread not in before}) and time.monotonic() < end:
        time.sleep(0.005)
    return {thread.name for thread in left}


def check(world: World, count: int) -> None:
    outcomes = world.outcomes
    assert sum(outcomes.values()) == count
    assert outcomes["wrong"] == 0
    assert outcomes["whole"] > 0.75 * count
    for kind in ("broken", "cancelled", "abandoned"):
        assert 0.01 * count < outcomes[kind] < 0.12 * count, outcomes
    assert world.chaos.injected


@pytest.mark.timing
def test_streams_in_threads_leave_no_socket_and_no_thread(world: World, rng: random.Random) -> None:
    before = set(threading.enumerate())
    in_threads(world, 1000, rng.randrange(2**32))
    check(world, 1000)
    assert threads_left(before) == set()
    assert world.is_everything_closed(), world.server.open_connections


@pytest.mark.timing
@pytest.mark.parametrize("carrier", ["http", "httpx"])
def test_streams_in_tasks_leave_no_socket_no_task_and_no_thread(world: World, rng: random.Random, carrier: str) -> None:
    before = set(threading.enumerate())
    assert asyncio.run(in_tasks(world, 1000, rng.randrange(2**32), carrier)) == set()
    check(world, 1000)
    assert threads_left(before) == set()
    assert world.is_everything_closed(), world.server.open_connections


def resident() -> float:
    """Megabytes of this process, server and all."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


@pytest.mark.soak
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is measured as Linux tells it")
@pytest.mark.parametrize("driver", ["sync", "aio", "httpx"])
def test_ten_thousand_streams_leave_nothing_and_memory_stays_flat(
    world: World, rng: random.Random, driver: str
) -> None:
    rounds = 6
    sizes: list[float] = []
    before = set(threading.enumerate())
    for _ in range(rounds):
        world.server.requests.clear()  # the server remembers them all
        world.server.disconnects.clear()
        seed = rng.randrange(2**32)
        if driver == "sync":
            in_threads(world, 2000, seed)
        else:
            assert asyncio.run(in_tasks(world, 2000, seed, driver)) == set()
        assert threads_left(before) == set()
        assert world.is_everything_closed(), world.server.open_connections
        sizes.append(resident())
    assert sum(world.outcomes.values()) == rounds * 2000
    assert world.outcomes["wrong"] == 0
    assert sizes[-1] <= sizes[1] * 1.05, sizes
