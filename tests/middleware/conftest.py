"""Redis servers for the tests of middleware that several processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.redis_server import ExternalServer, RedisServer, open_server


@pytest.fixture(scope="module")
def server() -> Iterator[ExternalServer]:
    running = open_server()
    yield running
    running.close()


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    running = RedisServer()
    yield running
    running.close()
