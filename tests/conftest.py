"""What every test gets: no network but loopback, a clean environment, a printed seed."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from pytest_socket import socket_allow_hosts

from tests.drive import AioDriver, Driver, SimulatedDriver, SyncDriver

SEED = int(os.environ.get("AGENT_TEST_SEED") or random.SystemRandom().randrange(2**32))
WIRE = Path(os.environ.get("AGENT_WIRE_CORPUS") or Path(__file__).parent.parent.parent / "shared" / "wire")

settings.register_profile("agent", deadline=None, print_blob=True)
settings.load_profile("agent")


def pytest_report_header() -> list[str]:
    corpus = str(WIRE) if WIRE.exists() else "absent (set AGENT_WIRE_CORPUS to run the recordings)"
    return [f"seed: AGENT_TEST_SEED={SEED}", f"recordings: {corpus}"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A busy machine can make any one measurement of time too long. What is wrong is too long every time."""
    for item in items:
        if item.get_closest_marker("timing") is not None:
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=0.5))


@pytest.fixture(autouse=True)
def _only_loopback() -> Iterator[None]:
    real = socket.socket.connect
    socket_allow_hosts(["127.0.0.1", "::1", "localhost"], allow_unix_socket=True)
    yield
    socket.socket.connect = real  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().endswith(("_API_KEY", "_BASE_URL", "_PROXY")):
            monkeypatch.delenv(name)


@pytest.fixture
def rng() -> random.Random:
    return random.Random(SEED)


@pytest.fixture(params=[SyncDriver, AioDriver, SimulatedDriver], ids=lambda kind: kind.name)
def drive(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """A behaviour under all three drivers: over a real socket with blocking calls and with await, and simulated."""
    with request.param() as driver:
        yield driver


@pytest.fixture(params=[SyncDriver, AioDriver], ids=lambda kind: kind.name)
def drive_real(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """A behaviour that needs a real socket or a real clock."""
    with request.param() as driver:
        yield driver
