"""Client of the heavy faults in a separate process, to measure its memory and time.

Run as `python -m tests.testing.faults.heavy URL CODEC DRIVER`; prints one JSON object for each fault and form.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

from agent.testing import FAULTS
from tests.engine.play import NO_TLS
from tests.support.drivers import make_transport
from tests.testing.faults.fault_server import PATIENT, Client, Outcome

HEAVY = [(fault.name, form) for fault in FAULTS.values() if fault.heavy for form in sorted(fault.forms)]
BEAT = 0.002
LONGEST_HOLD = 0.05
"""Seconds of CPU time for which a call may hold the event loop."""


def megabytes(line: str) -> float:
    """From Linux's account of this process."""
    found = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(line))
    return int(found.split()[1]) / 1024


def forget_the_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


class Heart:
    """Measures the longest time for which the event loop was blocked."""

    def __init__(self) -> None:
        self.waited = 0.0
        self.worked = 0.0
        """Of that, what the loop's thread itself has computed; the rest, other programs have."""

    async def beat(self) -> None:
        while True:
            wall, work = time.monotonic(), time.thread_time()
            await asyncio.sleep(BEAT)
            self.waited = max(self.waited, time.monotonic() - wall - BEAT)
            self.worked = max(self.worked, time.thread_time() - work)


async def beside_a_heart(caller: Client, agent: Any, *, streaming: bool) -> tuple[Outcome, Heart]:
    heart = Heart()
    beating = asyncio.create_task(heart.beat())
    await asyncio.sleep(4 * BEAT)
    outcome = await caller.acall(agent, streaming=streaming)
    await asyncio.sleep(BEAT)
    beating.cancel()
    return outcome, heart


def measure(caller: Client, codec: str, driver: str, fault: str, form: str) -> dict[str, Any]:
    agent = caller.agent(codec, fault, **PATIENT)
    gc.collect()
    forget_the_peak()
    before, heart = megabytes("VmRSS"), Heart()
    if driver in ("sync", "httpx"):
        outcome = caller.call(agent, streaming=form == "stream")
    else:
        outcome, heart = asyncio.run(beside_a_heart(caller, agent, streaming=form == "stream"))
    error = outcome.error
    return {
        "fault": fault,
        "form": form,
        "error": None if error is None else type(error).__name__,
        "cause": None if error is None else type(error.__cause__).__name__,
        "retryable": None if error is None else error.retryable,
        "seconds": outcome.seconds,
        "megabytes": megabytes("VmHWM") - before,
        "held": heart.worked,
        "late": heart.waited,
    }


def main(url: str, codec: str, driver: str) -> None:
    caller = Client(transport=make_transport("httpx" if "httpx" in driver else None, proxy=False, ssl_context=NO_TLS))
    caller.url = url
    for _ in range(3):  # warm up imports and caches
        measure(caller, codec, driver, "good", "stream")
        measure(caller, codec, driver, "good", "whole")
    for fault, form in HEAVY:
        measured = measure(caller, codec, driver, fault, form)
        for _ in range(2):
            if measured["held"] <= LONGEST_HOLD:
                break
            # Threads that share a core can double the CPU time of one measurement, but not of every one.
            measured = measure(caller, codec, driver, fault, form)
        print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
