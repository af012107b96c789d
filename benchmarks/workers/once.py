"""One response in a fresh interpreter.

python -m benchmarks.workers.once MODULE VARIANT SERVER API
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from benchmarks import workload
from benchmarks.workers.tasks import Absent


def main(module_name: str, variant: str, server: str, api: str) -> int:
    try:
        module = import_module(f"benchmarks.workers.{module_name}")
        contestant = module.contestant(api, f"{server}/whole", variant)
        if not hasattr(contestant, "call"):
            raise Absent("has no call")
        text, _ = contestant.call()
    except Absent as absent:
        print(absent)
        return 3
    if text != workload.ANSWER:
        print(f"wrong answer: {text[:60]!r}")
        return 4
    print(_peak_kilobytes())
    return 0


def _peak_kilobytes() -> int:
    """Peak memory of this program. The value that a parent gets includes its own size at the fork."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # skips work at the exit of the interpreter, such as joining threads
