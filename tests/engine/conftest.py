"""The stages: one fixture for flows under every driver, one for those that need a real clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.testing import LoopbackServer
from tests.engine.play import AioStage, AsyncHttpxStage, HttpxStage, SimulatedStage, Stage, SyncStage, stream_or_whole

REAL = [SyncStage, AioStage, HttpxStage, AsyncHttpxStage]


@pytest.fixture(params=[*REAL, SimulatedStage], ids=lambda kind: kind.name)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with request.param() as made:
        yield made


@pytest.fixture(params=REAL, ids=lambda kind: kind.name)
def real_stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with request.param() as made:
        yield made


@pytest.fixture
def vendor() -> Iterator[LoopbackServer]:
    """A server that answers every call well."""
    with LoopbackServer(stream_or_whole) as server:
        yield server
