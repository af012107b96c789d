"""Pytest plugin: agents send through mocked clients in tests that use `httpx2_mock` or `respx_mock`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest

_LIBRARIES: dict[str, Literal["httpx2", "httpx"]] = {"httpx2_mock": "httpx2", "respx_mock": "httpx"}
"""The library that each fixture mocks."""


@pytest.fixture(autouse=True)
def _agent_http_option(request: pytest.FixtureRequest) -> Iterator[None]:
    library = next((found for name, found in _LIBRARIES.items() if name in request.fixturenames), None)
    if library is None:
        yield
        return
    from agent.testing import use_httpx  # lazy: every pytest run loads this module

    with use_httpx(library):
        yield
