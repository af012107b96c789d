"""A router costs little: measured beside a bare agent, on a transport that answers at once."""

from __future__ import annotations

import pytest

from benchmarks.routing import LIMIT, overhead


@pytest.mark.timing
def test_a_router_of_three_adds_little_to_a_call() -> None:
    """Under coverage and on a busy machine everything takes longer, so the limit is for a call of usual length."""
    added, plain = overhead(blocks=60)
    assert added <= max(LIMIT, 0.4 * plain)
