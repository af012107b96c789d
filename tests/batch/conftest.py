"""Every batch behaviour is tested sync and async."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.batch.desk import Files
from tests.batch.ways import Awaiting, Blocking, Way


@pytest.fixture(params=[Blocking, Awaiting], ids=lambda kind: kind.name)
def way(request: pytest.FixtureRequest) -> Way:
    made: Way = request.param()
    return made


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)
