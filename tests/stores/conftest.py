"""Where stores are put that are opened hundreds of times."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def ram(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, if available: syncing is free there."""
    memory = "/dev/shm"
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    folder = tempfile.mkdtemp(dir=memory)
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
