"""Fixtures of every test: loopback only, a clean environment, a printed seed."""

from __future__ import annotations

import gc
import math
import os
import random
import signal
import socket
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from pytest_socket import socket_allow_hosts

from agent.engine.context import ambient_deadline
from agent.models import _registered, facts
from agent.providers import codec
from tests.support.cases import FULL
from tests.support.corpus import HAS_RECORDINGS, WIRE
from tests.support.drivers import AioDriver, AsyncHttpxDriver, Driver, HttpxDriver, SimulatedDriver, SyncDriver

SEED = int(os.environ.get("AGENT_TEST_SEED") or random.SystemRandom().randrange(2**32))
os.environ["AGENT_TEST_SEED"] = str(SEED)  # for worker processes: they start from this one's environment

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
    "test_heavy",
    "test_matrix",
    "test_malformed_responses",
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

LONG = {
    "test_docs",
    "test_own_server",
    "test_embedded_model",
    "test_odd_requests",
    "test_processes",
    "test_heavy",
    "test_storms",
    "test_killed",
    "test_migration",
    "test_leaks",
    "test_sdk_lifetimes",
    "test_simulation",
    "test_durability",
    "test_time",
}
"""Modules that take long. They begin first, so that at the end no worker waits for another."""

# Examples are the same in every run, so that a build does not fail by chance; `make soak` tries new ones.
settings.register_profile(
    "agent",
    deadline=None,
    print_blob=True,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("soak", settings.get_profile("agent"), derandomize=False, max_examples=400)
settings.load_profile("soak" if FULL else "agent")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background deaf to Ctrl-C, and so would be all that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def is_bug(error: Exception) -> bool:
    """Tell whether an attribute is missing on an object that JSON cannot contain."""
    return isinstance(error, AttributeError) and not isinstance(error.obj, dict | list | str | int | float | None)


def pytest_report_header() -> list[str]:
    corpus = str(WIRE) if HAS_RECORDINGS else "absent, tests/fixtures/wire instead (set AGENT_WIRE_CORPUS)"
    return [f"seed: AGENT_TEST_SEED={SEED}", f"recordings: {corpus}"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in LONG)
    for item in items:
        # A busy machine makes single measurements too long; a defect makes every measurement too long.
        if item.get_closest_marker("timing") is not None:
            item.add_marker(pytest.mark.flaky(reruns=3, reruns_delay=1.0))
        if item.path.stem in NOT_TRACED:
            item.add_marker(pytest.mark.no_cover)


def pytest_xdist_auto_num_workers() -> int | None:
    """Use two workers per core, since many tests wait, but at most four, since each collects all tests."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return min(4, 2 * (os.cpu_count() or 1))


def pytest_collection_finish() -> None:
    """Thousands of tests are a lot of objects, and the collector of garbage need not look at them again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """In a worker process pytest-cov begins to measure twice, and pauses once."""
    if item.get_closest_marker("no_cover") is None:
        return (yield)
    here, elsewhere = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(here)
        threading.settrace(elsewhere)


@pytest.fixture(autouse=True)
def _only_loopback() -> Iterator[None]:
    real = socket.socket.connect
    socket_allow_hosts(["127.0.0.1", "::1", "localhost"], allow_unix_socket=True)
    yield
    socket.socket.connect = real  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().endswith(("_API_KEY", "_BASE_URL", "_PROXY", "AGENT_HTTP")) or name.startswith("AWS_"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _no_deadline_is_left() -> Iterator[None]:
    """Fail a test that leaves a deadline behind, which the next test would inherit."""
    yield
    assert ambient_deadline.get() == math.inf


@pytest.fixture(autouse=True)
def _decoder_bugs_are_raised(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Re-raise errors of codecs in tests, where they would pass for malformed data."""
    malformed = request.node.get_closest_marker("malformed") is not None

    def describe(error: Exception) -> str:
        if is_bug(error) or (not malformed and isinstance(error, AttributeError | TypeError | KeyError)):
            raise error
        return type(error).__name__

    monkeypatch.setattr(codec, "describe_malformed", describe)


@pytest.fixture(autouse=True)
def _registered_models_are_forgotten() -> Iterator[None]:
    before = dict(_registered)
    yield
    if _registered != before:
        _registered.clear()
        _registered.update(before)
        facts.cache_clear()


@pytest.fixture
def rng() -> random.Random:
    return random.Random(SEED)


@pytest.fixture(params=[SyncDriver, AioDriver, SimulatedDriver], ids=lambda kind: kind.name)
def drive(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """Run a test under all three drivers: blocking, asyncio and simulated."""
    with request.param() as driver:
        yield driver


@pytest.fixture(params=[SyncDriver, AioDriver], ids=lambda kind: kind.name)
def drive_real(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """A behaviour that needs a real socket or a real clock."""
    with request.param() as driver:
        yield driver


@pytest.fixture(params=[SyncDriver, AioDriver, HttpxDriver, AsyncHttpxDriver], ids=lambda kind: kind.name)
def drive_http(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """A behaviour of the network: under either driver, directly and through httpx2."""
    with request.param() as driver:
        yield driver
