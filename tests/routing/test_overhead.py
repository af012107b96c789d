"""A router costs little: measured beside a bare agent, on a transport that answers at once."""

from __future__ import annotations

import pytest

from benchmarks.routing import LIMIT, overhead


@pytest.mark.timing
def test_a_router_of_three_adds_little_to_a_call() -> None:
    """The limit scales with the time of a plain call, for coverage and busy machines."""
    added, plain = overhead(blocks=60)
    assert added <= max(LIMIT, 0.4 * plain)
