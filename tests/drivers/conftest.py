"""The stages: one fixture for flows under every driver, one for those that need a real clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.testing import LoopbackServer
from tests.drivers.play import AioStage, SimulatedStage, Stage, SyncStage, streamed_or_whole


@pytest.fixture(params=[SyncStage, AioStage, SimulatedStage], ids=lambda kind: kind.name)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with request.param() as made:
        yield made


@pytest.fixture(params=[SyncStage, AioStage], ids=lambda kind: kind.name)
def real_stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with request.param() as made:
        yield made


@pytest.fixture
def vendor() -> Iterator[LoopbackServer]:
    """A server that answers every call well."""
    with LoopbackServer(streamed_or_whole) as server:
        yield server
