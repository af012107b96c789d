"""A router costs little: measured beside a bare agent, on a transport that answers at once."""

from __future__ import annotations

import pytest

from benchmarks import shared_limits
from benchmarks.routing import LIMIT, overhead
from tests.support.redis_server import open_server


@pytest.mark.timing
def test_a_router_of_three_adds_little_to_a_call() -> None:
    """The limit scales with the time of a plain call, for coverage and busy machines."""
    added, plain = overhead(blocks=60)
    assert added <= max(LIMIT, 0.4 * plain)


@pytest.mark.timing
def test_shared_limits_add_little_to_a_call_with_local_ones() -> None:
    """The limit scales as above. Sync and async, with one call in flight."""
    server = open_server()
    try:
        costs = shared_limits.overhead(server.url, blocks=60)
    finally:
        server.close()
    print({form: f"{added:.0f} µs on top of {local:.0f} µs" for form, (added, local) in costs.items()})
    for added, local in costs.values():
        assert added <= max(shared_limits.ADDED, 0.8 * local)
