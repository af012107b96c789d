"""The stages: one fixture for flows under every driver, one for those that need a real clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.testing import LoopbackServer
from tests.drive import needs_aiohttp
from tests.drivers.play import AioStage, FastStage, SimulatedStage, Stage, SyncStage, streamed_or_whole

FAST = pytest.param(FastStage, marks=needs_aiohttp)


@pytest.fixture(params=[SyncStage, AioStage, FAST, SimulatedStage], ids=lambda kind: kind.name)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with request.param() as made:
        yield made


@pytest.fixture(params=[SyncStage, AioStage, FAST], ids=lambda kind: kind.name)
def real_stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with request.param() as made:
        yield made


@pytest.fixture
def vendor() -> Iterator[LoopbackServer]:
    """A server that answers every call well."""
    with LoopbackServer(streamed_or_whole) as server:
        yield server
