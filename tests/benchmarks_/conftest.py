"""The benchmarks' server, once for all tests of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.server import run_server


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with run_server() as url:
        yield url
