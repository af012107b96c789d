"""Makes agents send through httpx clients, so that HTTP mocks and recorders see their requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from ..transports.http import select_library


@contextmanager
def use_httpx(library: Literal["httpx2", "httpx"] = "httpx2") -> Iterator[None]:
    """Send all HTTP requests through clients of httpx2 or httpx while the block runs.

    ```python
    from agent.testing import use_httpx

    with use_httpx():
        ...  # respx, pytest-httpx2 and VCR see the requests
    ```

    Agents with an `http_client` or an SDK's `client` are not affected. Setting `AGENT_HTTP=httpx` does the same for a
    whole process.
    """
    before = select_library(library)
    try:
        yield
    finally:
        select_library(before)
