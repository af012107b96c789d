"""What every test gets: no network but loopback, a clean environment, a printed seed."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from pytest_socket import socket_allow_hosts

from tests.drive import AioDriver, Driver, SimulatedDriver, SyncDriver

SEED = int(os.environ.get("AGENT_TEST_SEED") or random.SystemRandom().randrange(2**32))
os.environ["AGENT_TEST_SEED"] = str(SEED)  # for worker processes: they start from this one's environment
WIRE = Path(os.environ.get("AGENT_WIRE_CORPUS") or Path(__file__).parent.parent.parent / "shared" / "wire")

ALONE = {
    "drivers",
    "transports",
    "live",
    "test_exits",
    "test_imports",
    "test_plugins",
    "test_viewer_browser",
    "test_retry",
    "test_streams",
}
"""Directories and modules whose tests depend on real time, threads or sockets closing in time."""

NOT_TRACED = {
    "test_durability",
    "test_escapes",
    "test_killed",
    "test_scale",
    "test_viewer_browser",
    "test_anthropic_oracle",
    "test_broken_streams",
    "test_conformance",
    "test_gemini_oracle",
    "test_handover",
    "test_matrix",
    "test_odd_answers",
    "test_openai_chat_oracle",
    "test_openai_responses_oracle",
    "test_properties",
    "test_simulation",
    "test_sse",
    "test_storms",
    "test_stream_cuts",
    "test_signatures",
}
"""Modules that run the same code thousands of times: measuring their coverage would double their time."""

# What is generated is the same in every run, so that a build does not fail by chance; `make soak` looks further.
settings.register_profile(
    "agent",
    deadline=None,
    print_blob=True,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("soak", settings.get_profile("agent"), derandomize=False, max_examples=400)
settings.load_profile("soak" if os.environ.get("AGENT_TEST_RANDOM") else "agent")


def pytest_report_header() -> list[str]:
    corpus = str(WIRE) if WIRE.exists() else "absent (set AGENT_WIRE_CORPUS to run the recordings)"
    return [f"seed: AGENT_TEST_SEED={SEED}", f"recordings: {corpus}"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A busy machine can make any one measurement of time too long. What is wrong is too long every time."""
    for item in items:
        timing = item.get_closest_marker("timing") is not None
        if timing:
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=0.5))
        if timing or item.path.parent.name in ALONE or item.path.stem in ALONE:
            item.add_marker(pytest.mark.alone)
        if item.path.stem in NOT_TRACED:
            item.add_marker(pytest.mark.no_cover)


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
