"""Server fixtures, and a check for leftover threads and processes."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

import pytest

from agent.mcp import MCPServer
from tests.mcp_ import official_server

HERE = Path(__file__).parent
OFFICIAL = str(HERE / "official_server.py")


def until(true: object, seconds: float = 2.0) -> None:
    """Wait for something that another thread or process is about to do."""
    assert callable(true)
    end = monotonic() + seconds
    while not true():
        assert monotonic() < end, "it never happened"
        sleep(0.005)


def children() -> set[int]:
    """Processes that this one has started, zombies included."""
    found: set[int] = set()
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            found.update(map(int, listed.read_text().split()))
    return found


def threads(*, pooled: bool) -> set[threading.Thread]:
    """Return the running threads, without those that the SDK keeps for blocking tools unless `pooled`."""
    return {thread for thread in threading.enumerate() if pooled or "AnyIO worker" not in thread.name}


@contextmanager
def check_leftovers(*, pooled: bool) -> Iterator[None]:
    before = threads(pooled=pooled), children()
    yield
    until(lambda: threads(pooled=pooled) <= before[0] and children() <= before[1])


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    with check_leftovers(pooled=False):
        yield


@pytest.fixture(scope="session")
def official_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The official SDK's streamable HTTP application, in a process of its own."""
    told = tmp_path_factory.mktemp("official") / "port"
    process = subprocess.Popen([sys.executable, OFFICIAL, "http", str(told)])
    try:
        until(lambda: told.exists() and told.read_text(), 20.0)
        yield f"http://127.0.0.1:{told.read_text()}/mcp"
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="module", params=["in process", "stdio", "http"])
def server(request: pytest.FixtureRequest) -> Iterator[MCPServer]:
    """One server on the official SDK, reached in each of the three ways, open for all tests of a module."""
    match request.param:
        case "in process":
            made = MCPServer.in_process(official_server.make())
        case "stdio":
            made = MCPServer.stdio(sys.executable, [OFFICIAL, "stdio"])
        case _:
            made = MCPServer.http(request.getfixturevalue("official_url"))
    with check_leftovers(pooled=True), made:
        yield made
