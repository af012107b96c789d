"""Fake server of four vendors in a separate process, with prebuilt responses.

The first part of the path selects a scenario, so that clients choose it by their base URL:

    /whole/…        an answer at once
    /slow/…         the same after 20 to 25 ms, as if a model had thought
    /stream-1000/…  a stream of a thousand chunks of text
    /loop/…         a call of a tool until four results are in the request, then text
    /fail/…         503, overloaded
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def run_server() -> Iterator[str]:
    """Run the server in another process, and yield its address."""
    command = [sys.executable, "-m", "benchmarks.server"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
