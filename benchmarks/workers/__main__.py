"""Process of a contestant: reads commands and writes results, one JSON object per line.

    python -m benchmarks.workers MODULE VARIANT SERVER

Output of libraries is redirected to standard error.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.cores import allow_many_sockets, pin
from benchmarks.workers.measurement import measure
from benchmarks.workers.tasks import Absent


def _versions(names: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "this checkout"
    return found


class Worker:
    """One library with a client per API and scenario."""

    def __init__(self, module: Any, variant: str, server: str, runner: asyncio.Runner) -> None:
        self.module = module
        self.variant = variant
        self.server = server
        self.runner = runner
        self.made: dict[tuple[str, str], Any] = {}

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        api, scenario = command["api"], command["scenario"]
        try:
            if (api, scenario) not in self.made:
                self.made[api, scenario] = self.module.contestant(api, f"{self.server}/{scenario}", self.variant)
            return measure(self.runner, self.made[api, scenario], command)
        except Absent as absent:
            return {"absent": str(absent)}
        except Exception as error:
            traceback.print_exc()
            return {"error": f"{type(error).__name__}: {error}"[:500]}


def main(module_name: str, variant: str, server: str) -> None:
    pin(1)
    allow_many_sockets()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with asyncio.Runner() as runner:
        module = import_module(f"benchmarks.workers.{module_name}")
        worker = Worker(module, variant, server, runner)
        print(json.dumps({"ready": True, "versions": _versions(module.VERSIONS)}), file=answers)
        for line in sys.stdin:
            print(json.dumps(worker.answer(json.loads(line))), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
