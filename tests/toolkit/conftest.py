"""Fixtures of the toolkit's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.toolkit import Toolkit
from tests.toolkit.places import Places, make_places, why_not_confined


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return make_places(tmp_path)


@pytest.fixture
def kit(places: Places) -> Iterator[Toolkit]:
    with Toolkit(places.root) as made:
        yield made


@pytest.fixture
def confined(places: Places) -> Iterator[Toolkit]:
    """With programs, confined by the kernel."""
    if reason := why_not_confined():
        pytest.skip(reason)
    with Toolkit(places.root, allow_exec=True) as made:
        yield made


@pytest.fixture
def unconfined(places: Places) -> Iterator[Toolkit]:
    with Toolkit(places.root, allow_exec="unconfined") as made:
        yield made
