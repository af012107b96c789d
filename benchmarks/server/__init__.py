"""A server that plays four vendors from bytes made beforehand, in a process of its own, cheaper than any client of it.

The first part of a path says what is wanted, so that a client chooses with its base URL and sends a usual request:

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
def running() -> Iterator[str]:
    """The address of a server in another process, which ends with the block, or with this process."""
    command = [sys.executable, "-m", "benchmarks.server"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
